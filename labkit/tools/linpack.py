"""Linpack: dense linear equations by LU factorisation with partial pivoting; GFLOPS = 10^9/s.

The program is ``containers/services/linpack.c`` over LAPACK's dgesv of OpenBLAS, which takes as
many threads as it may use CPUs. Only the solution is timed: 2/3 n^3 + 2 n^2 operations.
"""

from __future__ import annotations

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.tools.base import Client, Measurement, check_integers
from labkit.tools.parsing import fields, numbers, unreadable, version

#: Above this normalised residual a solution is wrong, as in HPL.
RESIDUAL = 16.0
#: Operations per second that any CPU reaches, for the expected duration.
_SLOWEST = 1e9


def probe(host: Host) -> str:
    """Return which LAPACK it uses on the host."""
    remedy = "it is built in containers/services: run it in that image"
    return version(host, ("linpack", "8"), r"^linpack: (.*)", remedy=remedy)


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
    check_integers("linpack", equations=equations)
    check_integers("linpack", least=8, alignment=alignment)
    check_integers("linpack", least=0, threads=threads)
    if alignment & (alignment - 1):
        raise UsageError(f"linpack: alignment={alignment}: must be a power of two")
    argv = ("linpack", str(equations), str(alignment), str(threads))
    return Client(argv, "", 1 + equations**3 / _SLOWEST, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read ``gflops``, ``linpack_seconds``, ``linpack_threads``; a wrong solution is an error."""
    names = ("gflops", "seconds", "threads", "residual", "limit")
    values = numbers(stdout, names, tool="linpack")
    check = fields(stdout).get("check")
    if check != "passed" or values["residual"] >= RESIDUAL:
        raise unreadable("linpack", f"the residual is {values['residual']:g}, {check}", stdout)
    metrics = {"gflops": values["gflops"]}
    metrics |= {f"linpack_{name}": values[name] for name in ("seconds", "threads")}
    return Measurement({}, metrics)
