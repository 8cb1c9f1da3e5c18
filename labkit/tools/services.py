"""Linpack, STREAM, Bonnie++ and Netperf, which run in the image ``services``.

Linpack (``containers/services/linpack.c``) solves dense equations by LAPACK's dgesv of OpenBLAS
with as many threads as it may use CPUs; only the solution is timed: 2/3 n^3 + 2 n^2 operations.
STREAM (``containers/services/stream.c``, after McCalpin's definition) has one thread that is not
pinned, and reports the fastest pass; the mean is a metric too, since the fastest of many passes
hides disturbances. Bonnie++ prints KiB/s, and ``+++++`` for a phase of less than half a second, a
missing value here. Its direct I/O holds only where it creates the file: a limit of the container's
memory keeps the page cache too small for the file. Netperf is TCP_STREAM. M and G are 10^6 and
10^9.
"""

from __future__ import annotations

import re
from functools import partial

from labkit.placement import Workload
from labkit.tools.base import Client, Measurement
from labkit.tools.parsing import check_duration, fields, positive, reading

#: Above this normalised residual a solution of Linpack is wrong, as in HPL.
RESIDUAL = 16.0
#: The kernels of STREAM, and the bytes of one element in its three arrays.
KERNELS, STREAM_BYTES = ("copy", "scale", "add", "triad"), 24
#: Bonnie++'s column of each metric in its CSV (format 1.98), and the factor to the metric's unit.
COLUMNS = {
    "block_output_mb_per_s": (11, 1024 / 1e6),
    "block_rewrite_mb_per_s": (13, 1024 / 1e6),
    "block_input_mb_per_s": (17, 1024 / 1e6),
    "seeks_per_s": (19, 1.0),
}
_FORMAT, _WIDTH = "1.98", 22
#: netserver's port.
PORT = 12865
_KEYS = ("THROUGHPUT", "THROUGHPUT_UNITS", "ELAPSED_TIME", "LOCAL_SEND_SIZE", "PROTOCOL")
#: Operations, moved bytes, and bytes on a disk per second that any machine reaches.
_CPU, _MEMORY, _DISK = 1e9, 1e9, 20e6


def linpack(equations: int, *, alignment: int = 4096, threads: int = 0) -> Client:
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
    argv = ("linpack", str(equations), str(alignment), str(threads))
    return Client(argv, "", 1 + equations**3 / _CPU, parse_linpack)


def parse_linpack(stdout: str, log: str = "") -> Measurement:
    """Read ``gflops``, ``linpack_seconds``, ``linpack_threads``; a wrong solution is an error."""
    with reading("linpack", stdout):
        text = fields(stdout)
        names = ("gflops", "seconds", "threads", "residual", "limit")
        value = {name: positive(text[name], name) for name in names}
        if text["check"] != "passed" or value["residual"] >= RESIDUAL:
            raise ValueError(f"the residual is {value['residual']:g}, {text['check']}")
    metrics = {f"linpack_{name}": value[name] for name in ("seconds", "threads")}
    return Measurement({}, {"gflops": value["gflops"]} | metrics)


def stream(elements: int, *, times: int) -> Client:
    """Return the client that runs the four kernels `times` times, of which the first is left out.

    Each of the three arrays has so many elements of 8 bytes.
    """
    seconds = 1 + elements * STREAM_BYTES * (times + 2) * 4 / _MEMORY
    return Client(("stream", str(elements), str(times)), "", seconds, parse_stream)


def parse_stream(stdout: str, log: str = "") -> Measurement:
    """Read of each kernel ``copy_gb_per_s`` (fastest pass) and ``copy_mean_gb_per_s`` (mean)."""
    metrics = {}
    with reading("stream", stdout):
        text = fields(stdout)
        for kind, suffix in {"best": "", "mean": "_mean"}.items():
            for kernel in KERNELS:
                name = f"{kernel}_{kind}_mb_per_s"
                metrics[f"{kernel}{suffix}_gb_per_s"] = positive(text[name], name) / 1e3
        if text["check"] != "passed":
            raise ValueError("the arrays do not hold the expected values")
    return Measurement({}, metrics)


def bonnie(megabytes: int, *, chunk: int = 8192) -> Client:
    """Return the client that runs the four phases once, as root.

    Its file has so many MiB; `chunk` is the bytes of one read or write, a power of two.
    """
    argv: tuple[str, ...] = ("bonnie++", "-q", "-d", "/scratch", "-u", "root", "-m", "labkit")
    # Blocks only (-f), no small files (-n 0); the rule for the size is the caller's (-r 0).
    argv += ("-f", "-n", "0", "-r", "0", "-s", f"{megabytes}:{chunk}")
    return Client(argv, "", 10 + 5 * megabytes * 2**20 / _DISK, parse_bonnie)


def parse_bonnie(stdout: str, log: str = "") -> Measurement:
    """Read the line of CSV that ``-q`` leaves: the metrics of `COLUMNS`.

    A phase that was too short has none, and a flag.
    """
    metrics, short = {}, []
    with reading("bonnie++", stdout, needs="bonnie++ 2.00a"):
        (line,) = (line for line in stdout.splitlines() if re.match(r"\d+\.\d+,", line))
        cells = line.split(",")
        if cells[0] != _FORMAT or len(cells) < _WIDTH:
            raise ValueError(f"{len(cells)} columns of format {cells[0]}, not of {_FORMAT}")
        for name, (column, unit) in COLUMNS.items():
            if re.fullmatch(r"\++", cells[column]):
                short.append(name.rpartition("_per_s")[0].removesuffix("_mb"))
            else:
                metrics[name] = unit * positive(cells[column], name)
    flags = tuple(f"bonnie++ found {name} too short to time" for name in short)
    return Measurement({}, metrics, flags=flags)


def netserver(*, port: int = PORT) -> Workload:
    """Return netserver in the foreground; it serves any number of clients, a process each."""
    argv = ("netserver", "-D", "-4", "-p", str(port))
    return Workload(argv, port, protocol="tcp", image="services")


def netperf(address: str, *, seconds: int, port: int = PORT) -> Client:
    """Return the client that sends one TCP stream to a server for whole seconds."""
    argv: tuple[str, ...] = ("netperf", "-4", "-H", address, "-p", str(port))
    argv += ("-t", "TCP_STREAM", "-P", "0", "-l", str(seconds), "-f", "m")
    reader = partial(parse_netperf, seconds=seconds)
    return Client((*argv, "--", "-k", ",".join(_KEYS)), address, seconds + 2.0, reader)


def parse_netperf(stdout: str, log: str = "", *, seconds: float | None = None) -> Measurement:
    """Read ``mbit_per_s``, the throughput, and ``netperf_seconds``, over which it was measured."""
    with reading("netperf", stdout):
        text = fields(stdout)
        if text["THROUGHPUT_UNITS"] != "10^6bits/s" or text["PROTOCOL"] != "TCP":
            raise ValueError("it is not TCP in 10^6bits/s")
        names = {"mbit_per_s": "THROUGHPUT", "netperf_seconds": "ELAPSED_TIME"}
        metrics = {name: positive(text[theirs], theirs) for name, theirs in names.items()}
        check_duration(metrics["netperf_seconds"], seconds)
    return Measurement({}, metrics)
