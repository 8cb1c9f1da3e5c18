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
from labkit.tools.parsing import reading

Reader = Callable[[str, str], Measurement]

#: An iteration counts where the neighbour ran for this share of its time. The rest allows for the
#: containers' commands, which start some 50 ms apart, and for the start of a process between two
#: iterations of the neighbour.
MIN_OVERLAP = 0.9


@dataclass(frozen=True)
class Iteration:
    """One run of the command, with its times on the monotonic clock of the host.

    One that was `cut` still ran at the end of the grace time, and measured nothing. One that is
    `late` started after the window: a load for the neighbour, and not counted.
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

    Iterations that start in the window of so many seconds count. It goes on for the grace time, at
    least as long as the slowest iteration: one that still runs then is cut off and measures
    nothing. It ends after `at_most` iterations, if that is not 0.
    """
    if not seconds > 0 or not grace >= 0:
        raise UsageError(
            f"seconds={seconds}, grace={grace}: a repeated tool needs a window",
            remedy="repeated(client, seconds=10, grace=5)",
        )
    argv = python("repeat", str(seconds), str(grace), str(at_most), *client.argv)
    read = partial(parse, client.parse)
    return replace(client, argv=argv, seconds=seconds + grace + 1, parse=read)


def parse(read: Reader, stdout: str, log: str = "") -> Repeated:
    """Read every iteration by the tool's parser; one that failed is an error."""
    with reading("repeated runs", stdout):
        *lines, last = [json.loads(text) for text in stdout.splitlines()]
        if "end" not in last or not all("start_ns" in line for line in lines):
            raise ValueError("it breaks off: was the container stopped, or the time too short?")
        iterations = tuple(_iteration(read, line, n) for n, line in enumerate(lines, 1))
    counted = [iteration for iteration in iterations if not (iteration.cut or iteration.late)]
    flags = _distinct(flag for iteration in counted for flag in iteration.flags)
    measured = means([iteration.metrics for iteration in counted])
    return Repeated({}, measured, flags=flags, iterations=iterations)


def _iteration(read: Reader, line: Mapping[str, Any], number: int) -> Iteration:
    start, end, late = int(line["start_ns"]), int(line["end_ns"]), bool(line["late"])
    if line["cut"]:
        return Iteration(start, end, cut=True, late=late)
    if (status := line["status"]) != 0:
        printed = [str(line["stderr"]).strip() or str(line["stdout"]).strip()]
        if status < 0:
            by = ", as by hand or for want of memory" if status == -signal.SIGKILL else ""
            printed.insert(0, f"signal {-status} ended it{by}")
        raise ToolOutput(
            f"iteration {number} ended with status {status}",
            why="; ".join(filter(None, printed))[-600:] or "it printed nothing",
            remedy="run the same command in the image by hand",
            evidence=dict(line),
        )
    measurement = read(line["stdout"], "")
    return Iteration(start, end, late=late, metrics=measurement.metrics, flags=measurement.flags)


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the rows that have it."""
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
    """One service of a window.

    Its metrics are means over the iterations that count, with their number as ``iterations``; the
    numbers of those that started in the window and ended without counting (``iterations_partly``)
    or did not end (``iterations_cut``); and ``overlap``, the mean share of the neighbour's presence
    in those that ended. For the record each iteration is kept, in ns from the earliest start.
    """

    name: str
    metrics: dict[str, float]
    iterations: list[dict[str, Any]]
    flags: tuple[str, ...]


def side_of(name: str, service: Repeated, neighbour: Repeated | None) -> Side:
    """Return one service of a window; alone, every iteration of it counts that ended."""
    others = neighbour.iterations if neighbour else ()
    shares = overlap(service.iterations, others) if neighbour else [1.0] * len(service.iterations)
    pairs = list(zip(service.iterations, shares, strict=True))
    started = [(iteration, share) for iteration, share in pairs if not iteration.late]
    ended = [(iteration, share) for iteration, share in started if not iteration.cut]
    counted = [iteration for iteration, share in ended if share >= MIN_OVERLAP]
    cut = len(started) - len(ended)
    flags = _distinct(flag for iteration in counted for flag in iteration.flags)
    if not counted:
        missing = "overlapped its neighbour entirely" if neighbour else "ended in time"
        flags = (f"no iteration of {name} {missing}",)
    elif cut:  # those that are left are the fast ones
        flags = (*flags, f"{cut} of {len(started)} iterations of {name} did not end in time")
    metrics = means([iteration.metrics for iteration in counted]) | {
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

    It has the first service's metrics, and as ``neighbour_NAME`` the mean of all that the neighbour
    measured. Two of the same service are one row, of the mean of both, or without value where one
    has none; two that differ are a row each, the second in `Measurement.also`, with the factors
    ``service`` and ``neighbour`` exchanged. The sides are for the record.
    """
    messages = sum(not it.cut for _, repeats in measured for it in repeats.iterations)
    if len(measured) == 1:
        side = side_of(*measured[0], None)
        return Measurement({}, side.metrics, messages, side.flags), [side]
    (name, service), (other, neighbour) = measured
    sides = [side_of(name, service, neighbour), side_of(other, neighbour, service)]
    flags = _distinct(flag for side in sides for flag in side.flags)
    first, second = (
        side.metrics | {f"neighbour_{key}": value for key, value in near.metrics.items()}
        for side, near in zip(sides, (neighbour, service), strict=True)
    )
    if name == other:
        both = means([first, second])
        metrics = {key: value for key, value in both.items() if key in first and key in second}
        return Measurement({}, metrics, messages, flags), sides
    also = (({"service": other, "neighbour": name}, second),)
    return Measurement({}, first, messages, flags, also), sides
