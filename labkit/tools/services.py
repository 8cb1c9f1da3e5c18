"""Linpack, STREAM, Bonnie++ and Netperf, which run in the image ``services``; M is 10^6."""

import math
import re
from collections.abc import Mapping
from functools import partial

from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, check_duration, flag, reading, unique

#: The bytes of an element in the arrays of STREAM; and netserver's port.
STREAM_BYTES, PORT = 24, 12865
#: Bonnie++'s column of each metric in its CSV (format 1.98), and the factor to the metric's unit.
COLUMNS = {
    "block_output_mb_per_s": (11, 1024 / 1e6),
    "block_rewrite_mb_per_s": (13, 1024 / 1e6),
    "block_input_mb_per_s": (17, 1024 / 1e6),
    "seeks_per_s": (19, 1.0),
}
_KEYS = "THROUGHPUT,THROUGHPUT_UNITS,ELAPSED_TIME,LOCAL_SEND_SIZE,PROTOCOL"


def positive(text: str) -> float:
    """Return a number, which must be finite and above 0."""
    if not 0 < (value := float(text)) < math.inf:
        raise ValueError(f"{text!r} is not a positive number")
    return value


def _check_lines(text: str, pattern: str) -> None:
    """Raise `ValueError` for a line without a pattern, by which a tool says that it has failed."""
    if wrong := re.search(f"^(?!{pattern}).+", text, re.MULTILINE):
        raise ValueError(f"it says {wrong[0]!r}")


def _values(text: str, names: Mapping[str, str], **expected: str) -> dict[str, float]:
    """Return metrics from lines that are ``name=value``, of which some are as expected."""
    found = unique(re.findall(r"^ *(\w+) *= *(.*?) *$", text, re.MULTILINE))
    for name, value in expected.items():
        if found[name] != value:
            raise ValueError(f"{name} is {found[name]}, and not {value}")
    return {metric: positive(found[name]) for metric, name in names.items()}


def linpack(equations: int, *, alignment: int = 4096, threads: int = 0) -> Client:
    """Return the client that solves n equations once, by so many threads (0: one a CPU)."""
    # By LAPACK's dgesv of OpenBLAS: 2/3 n^3 + 2 n^2 operations.
    argv = ("linpack", str(equations), str(alignment), str(threads))
    return Client(argv, "", 1 + equations**3 / 1e9, parse_linpack)


def parse_linpack(stdout: str, log: str = "") -> Measurement:
    """Read rate, time and threads; a wrong solution is an error."""
    names = {"gflops": "gflops", "linpack_seconds": "seconds", "linpack_threads": "threads"}
    with reading("linpack", stdout):
        return Measurement({}, _values(stdout, names, check="passed"))


def stream(elements: int, *, times: int) -> Client:
    """Return the client that runs the four kernels `times` times; the first does not count."""
    seconds = 1 + elements * STREAM_BYTES * (times + 2) * 4 / 1e9
    return Client(("stream", str(elements), str(times)), "", seconds, parse_stream)


def parse_stream(stdout: str, log: str = "") -> Measurement:
    """Read each kernel's rate in its fastest pass, and on the mean, which shows disturbances."""
    names = {
        f"{kernel}{suffix}_gb_per_s": f"{kernel}_{kind}_mb_per_s"
        for kernel in ("copy", "scale", "add", "triad")
        for suffix, kind in {"": "best", "_mean": "mean"}.items()
    }
    with reading("stream", stdout):
        rates = _values(stdout, names, check="passed")
        return Measurement({}, {name: rate / 1e3 for name, rate in rates.items()})


def bonnie(megabytes: int, *, chunk: int = 8192) -> Client:
    """Return the client that runs the four phases once, on a file of so many MiB."""
    # Blocks only (-f), no small files (-n 0); the rule for the size is the caller's (-r 0).
    argv = f"bonnie++ -q -d /scratch -u root -m labkit -f -n 0 -r 0 -s {megabytes}:{chunk}".split()
    return Client(tuple(argv), "", 10 + 5 * megabytes * 2**20 / 20e6, parse_bonnie)


def parse_bonnie(stdout: str, log: str = "") -> Measurement:
    """Read the rates of writing, rewriting and reading, and seeks; too short a phase is flagged."""
    metrics, flags = {}, tuple[str, ...]()
    with reading("bonnie++", stdout, needs="bonnie++ 2.00a"):
        _check_lines(stdout, r"\d+\.\d+,")
        (line,) = stdout.split()
        cells = line.split(",")
        if cells[0] != "1.98" or len(cells) < 22:
            raise ValueError(f"it has {len(cells)} columns of format {cells[0]}, not of 1.98")
        for name, (column, unit) in COLUMNS.items():
            if re.fullmatch(r"\++", text := cells[column]):  # less than half a second
                phase = re.sub("(_mb)?_per_s$", "", name)
                flags += flag(f"bonnie++ found {phase} too short to time")
            else:
                metrics[name] = unit * positive(text)
    return Measurement({}, metrics, flags=flags)


def netserver(*, port: int = PORT) -> Workload:
    """Return netserver in the foreground; it serves any number of clients, a process each."""
    return Workload(("netserver", "-D", "-4", "-p", str(port)), port, ("tcp",), "services")


def netperf(address: str, *, seconds: int, port: int = PORT) -> Client:
    """Return the client that sends one TCP stream to a server for whole seconds."""
    argv = f"netperf -4 -H {address} -p {port} -t TCP_STREAM -P 0 -l {seconds} -f m -- -k {_KEYS}"
    reader = partial(parse_netperf, seconds=seconds)
    return Client(tuple(argv.split()), address, seconds + 2.0, reader)


def parse_netperf(stdout: str, log: str = "", *, seconds: float) -> Measurement:
    """Read the throughput, and the time over which it was measured."""
    names = {"mbit_per_s": "THROUGHPUT", "netperf_seconds": "ELAPSED_TIME"}
    with reading("netperf", stdout):
        _check_lines(stdout, r"\w+=")
        metrics = _values(stdout, names, THROUGHPUT_UNITS="10^6bits/s", PROTOCOL="TCP")
        check_duration(metrics["netperf_seconds"], seconds)
        return Measurement({}, metrics)
