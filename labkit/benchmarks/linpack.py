"""Linpack: dense linear equations by LU factorisation with partial pivoting; GFLOPS = 10^9/s.

The program is ``containers/services/linpack.c`` over LAPACK's dgesv of OpenBLAS, which takes as
many threads as it may use CPUs. Only the solution is timed: 2/3 n^3 + 2 n^2 operations.
"""

from __future__ import annotations

from labkit.benchmarks.base import Client, Reading
from labkit.benchmarks.fields import fields, numbers, unreadable
from labkit.errors import ToolMissing, UsageError
from labkit.hosts import Host

#: Above this normalised residual a solution is wrong, as in HPL.
RESIDUAL = 16.0
#: Operations a second that a CPU surely has, for the expected duration.
_SLOWEST = 1e9


def probe(host: Host) -> str:
    """Return which LAPACK it uses on the host; raise `ToolMissing` where it is not."""
    result = host.run("linpack", "8", check=False)
    if result.status != 0 or not result.stdout.startswith("linpack: "):
        raise ToolMissing(
            "linpack is not installed",
            where=f"host {host.name}",
            remedy="it is made in containers/services: run it in that image",
        )
    return result.stdout.splitlines()[0].removeprefix("linpack: ")


def solve(equations: int, *, alignment: int = 4096, threads: int = 0) -> Client:
    """Return the client that solves a system of equations once.

    Parameters
    ----------
    equations : int
        Order of the matrix, which takes 8 n^2 bytes.
    alignment : int
        Of matrix and vectors, in bytes: a power of two.
    threads : int
        0 for one on each CPU that the process may use.
    """
    if equations < 1 or alignment < 8 or alignment & (alignment - 1) or threads < 0:
        raise UsageError(
            f"equations={equations}, alignment={alignment}, threads={threads}: linpack needs a "
            "positive order and an alignment that is a power of two",
            remedy="linpack.solve(2000, alignment=4096)",
        )
    argv = ("linpack", str(equations), str(alignment), str(threads))
    return Client(argv, "", 1 + equations**3 / _SLOWEST, parse)


def parse(stdout: str, log: str = "") -> Reading:
    """Read one solution.

    Returns
    -------
    Reading
        ``gflops``; ``linpack_seconds``, that it took; ``linpack_threads``.

    Raises
    ------
    ToolOutput
        The output is not whole, or the solution is wrong.
    """
    names = ("gflops", "seconds", "threads", "residual", "limit")
    found = numbers(stdout, names, tool="linpack")
    said = fields(stdout).get("check")
    if said != "passed" or found["residual"] >= RESIDUAL:
        raise unreadable("linpack", f"the residual is {found['residual']:g}, {said}", stdout)
    metrics = {"gflops": found["gflops"]}
    metrics |= {f"linpack_{name}": found[name] for name in ("seconds", "threads")}
    return Reading({}, metrics)
