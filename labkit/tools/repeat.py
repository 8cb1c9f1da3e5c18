"""A tool repeated for a window, and two services that are repeated at the same time.

The program is ``programs/repeat.py``. Services whose runs take different times disturb each other
for the same time when each is repeated for a whole window; an iteration counts as measured with the
neighbour only where the neighbour ran for all of it. Which iterations count is decided by when they
start, never by how long they take: slow ones would otherwise be lost.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from labkit.errors import ToolOutput, UsageError
from labkit.tools.base import Client, Measurement, python

Reader = Callable[[str, str], Measurement]

#: An iteration counts where the neighbour ran for this share of its time. The rest allows for the
#: containers' commands, which start some 50 ms apart, and for the start of a process between two
#: iterations of the neighbour.
MIN_OVERLAP = 0.9


@dataclass(frozen=True)
class Iteration:
    """One run of the command.

    Parameters
    ----------
    start_ns, end_ns : int
        On the monotonic clock of the host.
    cut : bool
        The grace time ended before it did, so that it measured nothing.
    late : bool
        It started after the window: a load for the neighbour, and not counted.
    metrics : mapping of str to float
        What it measured.
    flags : tuple of str
        Of its measurement.
    """

    start_ns: int
    end_ns: int
    cut: bool = False
    late: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repeated(Measurement):
    """A measurement of several iterations; `metrics` are means of those that ended in time."""

    iterations: tuple[Iteration, ...] = ()


def repeated(client: Client, *, seconds: float, grace: float, at_most: int = 0) -> Client:
    """Return a client that runs another's command again and again; it reads a `Repeated`.

    Parameters
    ----------
    client : Client
        What is repeated; it runs in a placement and has no log.
    seconds : float
        The window; iterations that start in it count.
    grace : float
        How much longer it goes on, at least as long as the slowest iteration: one that still runs
        then is cut off and measures nothing.
    at_most : int
        End after so many iterations; 0 for no limit.
    """
    with_log = any("{log}" in part for part in client.argv)
    if not seconds > 0 or not grace >= 0 or at_most < 0 or with_log:
        raise UsageError(
            f"seconds={seconds}, grace={grace}, at_most={at_most}: what is repeated needs a "
            "window, and no log",
            remedy="repeated(client, seconds=10, grace=5)",
        )
    argv = python("repeat", str(seconds), str(grace), str(at_most), *client.argv)
    read = partial(parse, client.parse)
    return replace(client, argv=argv, seconds=seconds + grace + 1, parse=read, log_rows=None)


def parse(read: Reader, stdout: str, log: str = "") -> Repeated:
    """Read every iteration by the tool's parser, `read`.

    Raises
    ------
    ToolOutput
        It breaks off, an iteration failed, or one cannot be read.
    """
    lines = [_line(text) for text in stdout.splitlines()]
    if not lines or "end" not in lines[-1] or not all("start_ns" in line for line in lines[:-1]):
        raise ToolOutput(
            "the output of the repeated runs is truncated",
            why=stdout.strip()[-400:] or "nothing was printed",
            remedy="was the container stopped, or the time too short?",
            evidence={"stdout": stdout[-4000:]},
        )
    iterations = tuple(_iteration(read, line, n) for n, line in enumerate(lines[:-1], 1))
    counted = [iteration for iteration in iterations if not (iteration.cut or iteration.late)]
    flags = _distinct(flag for iteration in counted for flag in iteration.flags)
    return Repeated({}, means(counted), flags=flags, iterations=iterations)


def _line(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


def _iteration(read: Reader, line: Mapping[str, Any], number: int) -> Iteration:
    start, end, late = int(line["start_ns"]), int(line["end_ns"]), bool(line["late"])
    if line["cut"]:
        return Iteration(start, end, cut=True, late=late)
    if line["status"] != 0:
        printed = str(line["stderr"]).strip() or str(line["stdout"]).strip()
        if isinstance(line["status"], int) and line["status"] < 0:
            ended = f"signal {-line['status']} ended it"
            if line["status"] == -signal.SIGKILL:
                ended += ", as by hand or for want of memory"
            printed = f"{ended}; {printed}" if printed else ended
        raise ToolOutput(
            f"iteration {number} ended with status {line['status']}",
            why=printed[-600:] or "it printed nothing",
            remedy="run the same command in the image by hand",
            evidence=dict(line),
        )
    measurement = read(line["stdout"], "")
    return Iteration(start, end, late=late, metrics=measurement.metrics, flags=measurement.flags)


def means(iterations: Sequence[Iteration]) -> dict[str, float]:
    """Return the mean of each metric over the iterations that have it."""
    return _means([iteration.metrics for iteration in iterations])


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}


def _distinct(flags: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(flags))


def overlap(iterations: Sequence[Iteration], neighbour: Sequence[Iteration]) -> list[float]:
    """Return for each iteration the share of its time in which one of the neighbour ran."""
    return [
        sum(max(0, min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns)) for b in neighbour)
        / max(1, a.end_ns - a.start_ns)
        for a in iterations
    ]


@dataclass(frozen=True)
class Side:
    """What one service measured while another ran.

    Parameters
    ----------
    name : str
        The service's.
    metrics : dict of str to float
        Means over the iterations that count, with their number as ``iterations``; the numbers of
        further iterations that started in the window and ended (``iterations_partly``) or did not
        (``iterations_cut``); and ``overlap``, the mean share of the neighbour's presence in those
        that ended. If none counts, only the numbers of iterations.
    iterations : list of dict
        For the record: start and end of every iteration in ns from the earliest start of both, its
        overlap, and what it measured.
    flags : tuple of str
        That no iteration counts, or the flags of those that count.
    """

    name: str
    metrics: dict[str, float]
    iterations: list[dict[str, Any]]
    flags: tuple[str, ...]


def side_of(name: str, service: Repeated, neighbour: Repeated | None) -> Side:
    """Return what a service measured while another ran.

    Parameters
    ----------
    name : str
        The service's.
    service : Repeated
        Its iterations.
    neighbour : Repeated, optional
        The neighbour's; None for a service alone, every iteration of which counts if it ended.
    """
    others = neighbour.iterations if neighbour else ()
    shares = overlap(service.iterations, others) if neighbour else [1.0] * len(service.iterations)
    pairs = list(zip(service.iterations, shares, strict=True))
    started = [(iteration, share) for iteration, share in pairs if not iteration.late]
    ended = [(iteration, share) for iteration, share in started if not iteration.cut]
    counted = [iteration for iteration, share in ended if share >= MIN_OVERLAP]
    flags = _distinct(flag for iteration in counted for flag in iteration.flags)
    if not counted:
        what = "overlapped its neighbour entirely" if neighbour else "ended in time"
        flags = (f"no iteration of {name} {what}",)
    cut = len(started) - len(ended)
    if cut and counted:  # those that are left are the fast ones
        flags = (*flags, f"{cut} of {len(started)} iterations of {name} did not end in time")
    metrics = means(counted) | {
        "iterations": float(len(counted)),
        "iterations_partly": float(len(ended) - len(counted)),
        "iterations_cut": float(cut),
    }
    if neighbour and ended:
        metrics["overlap"] = math.fsum(share for _, share in ended) / len(ended)
    first = min(iteration.start_ns for iteration in (*service.iterations, *others))
    rows = [
        {
            "start_ns": iteration.start_ns - first,
            "end_ns": iteration.end_ns - first,
            "cut": iteration.cut,
            "late": iteration.late,
            "overlap": round(share, 4),
            **iteration.metrics,
        }
        for iteration, share in pairs
    ]
    return Side(name, metrics, rows, flags)


def combine(measured: Sequence[tuple[str, Repeated]]) -> tuple[Measurement, list[Side]]:
    """Return one or two services that were repeated in one window as one measurement.

    Parameters
    ----------
    measured : sequence of (str, Repeated)
        A service and its iterations; two of them may be the same service.

    Returns
    -------
    measurement : Measurement
        The first service's metrics, and the neighbour's as ``neighbour_NAME``: the mean of all that
        it measured. Two of the same service are one row, of the mean of both, or without value
        where one has none; two that differ are a row each, the second in `Measurement.also`, with
        the factors ``service`` and ``neighbour`` exchanged.
    sides : list of Side
        What each measured, for the record.
    """
    if not 1 <= len(measured) <= 2:
        raise UsageError(f"{len(measured)} services: one alone, or two together")
    (name, service), (other, neighbour) = measured[0], measured[-1]
    messages = sum(not it.cut for _, repeats in measured for it in repeats.iterations)
    if len(measured) == 1:
        side = side_of(name, service, None)
        return Measurement({}, side.metrics, messages, side.flags), [side]
    sides = [side_of(name, service, neighbour), side_of(other, neighbour, service)]
    flags = _distinct(flag for side in sides for flag in side.flags)
    first, second = (
        side.metrics | {f"neighbour_{key}": value for key, value in near.metrics.items()}
        for side, near in zip(sides, (neighbour, service), strict=True)
    )
    if name == other:
        both = _means([first, second])
        metrics = {key: value for key, value in both.items() if key in first and key in second}
        return Measurement({}, metrics, messages, flags), sides
    also = (({"service": other, "neighbour": name}, second),)
    return Measurement({}, first, messages, flags, also), sides
