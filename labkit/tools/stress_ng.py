"""stress-ng: one kind of stressor for a set time, in its own bogus operations per second."""

from __future__ import annotations

import re
from functools import partial

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, check_integers
from labkit.tools.parsing import number, unreadable, version

# A stressor's row: operations, three times in seconds, and two rates.
_ROW = r"metrc: \[\d+\] +{name} +(\d\S*) +(\S+) +\S+ +\S+ +(\S+) +\S+$"


def probe(host: Host) -> str:
    """Return stress-ng's version on the host."""
    return version(host, ("stress-ng", "--version"), r"version (\S+)").rstrip(",")


def stress(stressor: str, *, seconds: int, workers: int = 1) -> Client:
    """Return the client that runs a stressor, such as ``cpu``, ``vm``, ``cache`` or ``hdd``."""
    check_integers("stress-ng", seconds=seconds, workers=workers)
    if not re.fullmatch(r"[a-z][a-z0-9-]*", stressor):
        raise UsageError(f"stress-ng: invalid stressor {stressor!r}", remedy="such as cpu or vm")
    argv: tuple[str, ...] = ("stress-ng", f"--{stressor}", str(workers), "--timeout", str(seconds))
    argv += ("--metrics-brief", "--stdout", "--temp-path", "/scratch")
    return Client(argv, "", seconds + 3.0, partial(parse, stressor=stressor))


def busy(workers: int) -> Workload:
    """Return a workload that computes until it is ended, with so many workers."""
    check_integers("stress-ng", workers=workers)
    return Workload(("stress-ng", "--cpu", str(workers), "--timeout", "0"), 0, image="services")


def parse(stdout: str, log: str = "", *, stressor: str) -> Measurement:
    """Read ``stress_STRESSOR_per_s``, by wall-clock time."""
    row = re.search(_ROW.format(name=re.escape(stressor)), stdout, re.MULTILINE)
    if row is None or "successful run completed" not in stdout:
        raise unreadable("stress-ng", f"there is no whole result of {stressor}", stdout)
    name = f"stress_{stressor.replace('-', '_')}_per_s"
    return Measurement({}, {name: number(row[3], tool="stress-ng", name=name, output=stdout)})
