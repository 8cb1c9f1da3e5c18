"""A tool repeated for a window, and two services that are repeated at the same time.

Services whose runs take different times disturb each other for the same time when each is repeated
for a whole window; an iteration counts as measured with the neighbour only where the neighbour ran
for all of it. Which iterations count is decided by when they start, never by how long they take:
slow ones would otherwise be lost.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

from labkit.errors import ToolOutput
from labkit.tools.base import Client, Measurement, python
from labkit.tools.parsing import reading

#: An iteration counts where the neighbour ran for this share of its time. Commands of containers
#: start some 50 ms apart, and between two iterations of the neighbour a process starts.
MIN_OVERLAP = 0.9


@dataclass(frozen=True)
class Iteration:
    """One run of the command, with its times on the monotonic clock of the host.

    One that was `cut` still ran at the end of the grace time; one that is `late` started after the
    window, as a load for the neighbour.
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

    Iterations that start in the window of so many seconds count, `at_most` so many (0: any number).
    It goes on for the grace time, in which the slowest can end: what runs then is cut off.
    """
    argv = python("repeat", str(seconds), str(grace), str(at_most), *client.argv)
    read = partial(parse, client.parse)
    return replace(client, argv=argv, seconds=seconds + grace + 1, parse=read)


def parse(read: Callable[[str, str], Measurement], stdout: str, log: str = "") -> Repeated:
    """Read every iteration by the tool's parser; one that failed is an error."""
    iterations: list[Iteration] = []
    with reading("repeated runs", stdout):
        *lines, last = [json.loads(text) for text in stdout.splitlines()]
        if "end" not in last or not all("start_ns" in line for line in lines):
            raise ValueError("it breaks off: was the container stopped, or the time too short?")
        for line in lines:
            one = Iteration(line["start_ns"], line["end_ns"], line["cut"], line["late"])
            if not one.cut:
                if line["status"] != 0:
                    # A negative status is a signal: -9 as by hand or for want of memory.
                    printed = line["stderr"].strip() or line["stdout"].strip() or "(nothing)"
                    raise ToolOutput(
                        f"iteration {len(iterations) + 1} ended with status {line['status']}",
                        why=f"it printed: {printed[-600:]}",
                        remedy="run the same command in the image by hand",
                    )
                once = read(line["stdout"], "")
                one = replace(one, metrics=once.metrics, flags=once.flags)
            iterations.append(one)
    counted = [one for one in iterations if not (one.cut or one.late)]
    flags = distinct(one.flags for one in counted)
    means = mean(one.metrics for one in counted)
    return Repeated({}, means, flags=flags, iterations=tuple(iterations))


def mean(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the rows that have it."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in columns.items()}


def distinct(flags: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return each flag once."""
    return tuple(dict.fromkeys(flag for several in flags for flag in several))


def overlap(one: Iteration, neighbour: Sequence[Iteration]) -> float:
    """Return the share of an iteration's time in which one of the neighbour ran."""
    spans = (min(one.end_ns, n.end_ns) - max(one.start_ns, n.start_ns) for n in neighbour)
    return sum(max(0, span) for span in spans) / max(1, one.end_ns - one.start_ns)


def side_of(name: str, service: Repeated, neighbour: Repeated | None = None) -> Measurement:
    """Return one service of a window; alone, every iteration of it counts that ended.

    Its metrics are means over the iterations that count, with their number (``iterations``), that
    of others which started in the window and ended (``iterations_partly``) or did not
    (``iterations_cut``), and the mean share of the neighbour's presence (``overlap``).
    """
    started = [one for one in service.iterations if not one.late]
    ended = [one for one in started if not one.cut]
    shares = [overlap(one, neighbour.iterations) if neighbour else 1.0 for one in ended]
    counted = [one for one, part in zip(ended, shares, strict=True) if part >= MIN_OVERLAP]
    cut = len(started) - len(ended)
    flags = distinct(one.flags for one in counted)
    if not counted:
        missing = "overlapped its neighbour entirely" if neighbour else "ended in time"
        flags = (f"no iteration of {name} {missing}",)
    elif cut:  # those that are left are the fast ones
        flags += (f"{cut} of {len(started)} iterations of {name} did not end in time",)
    metrics = mean(one.metrics for one in counted)
    metrics |= {"iterations": float(len(counted)), "iterations_cut": float(cut)}
    metrics["iterations_partly"] = float(len(ended) - len(counted))
    if neighbour and ended:
        metrics["overlap"] = fmean(shares)
    return Measurement({}, metrics, flags=flags)


def combine(measured: Sequence[tuple[str, Repeated]]) -> Measurement:
    """Return one or two services that were repeated in one window as one measurement.

    It has the first service's metrics, and as ``neighbour_NAME`` the mean of all that the neighbour
    measured. Two of the same service are one row, of the mean of both, or without value where one
    has none; two that differ are a row each, the second in `Measurement.also`, with the factors
    ``service`` and ``neighbour`` exchanged.
    """
    messages = sum(not one.cut for _, service in measured for one in service.iterations)
    if len(measured) == 1:
        return replace(side_of(*measured[0]), messages=messages)
    (name, service), (other, neighbour) = measured
    sides = side_of(name, service, neighbour), side_of(other, neighbour, service)
    flags = distinct(side.flags for side in sides)
    first, second = (
        {**side.metrics, **{f"neighbour_{key}": value for key, value in near.metrics.items()}}
        for side, near in zip(sides, (neighbour, service), strict=True)
    )
    if name == other:
        metrics = {key: fmean([first[key], second[key]]) for key in first if key in second}
        return Measurement({}, metrics, messages, flags)
    also = (({"service": other, "neighbour": name}, second),)
    return Measurement({}, first, messages, flags, also)
