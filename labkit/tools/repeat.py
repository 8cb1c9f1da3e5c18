"""Any tool repeated for a window, and two services that repeat side by side.

The program is ``programs/repeat.py``. Services whose runs take differently long disturb each other
for the same time when each repeats for a whole window; what an iteration measured counts as
measured beside the other only where the other ran for all of it. Which iterations count is decided
by when they start, and never by how long they take: what is slow would otherwise be lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from labkit.errors import ToolOutput, UsageError
from labkit.tools.base import Client, Measurement

Reader = Callable[[str, str], Measurement]

_PROGRAM = (Path(__file__).parent / "programs" / "repeat.py").read_text()
#: An iteration counts where the other service ran for this share of its time. The rest is
#: for the two containers' commands, which start some 50 ms apart, and for the start of a process
#: between two iterations of the other.
MIN_OVERLAP = 0.9


@dataclass(frozen=True)
class Iteration:
    """One run of the command.

    Parameters
    ----------
    start_ns, end_ns : int
        On the monotonic clock of the host.
    cut : bool
        The time for stragglers ended before it did, so that it measured nothing.
    late : bool
        It started after the window: a load for the other, and not counted.
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
        How much longer it goes on, at least as long as the slowest iteration: one that is still
        running then measures nothing, and is told apart.
    at_most : int
        End after so many iterations; 0 for no such end.
    """
    if (
        not seconds > 0
        or not grace >= 0
        or at_most < 0
        or any("{log}" in part for part in client.argv)
    ):
        raise UsageError(
            f"seconds={seconds}, grace={grace}, at_most={at_most}: what is repeated needs a "
            "window, and no log",
            remedy="repeated(client, seconds=10, grace=5)",
        )
    argv = ("python3", "-c", _PROGRAM, str(seconds), str(grace), str(at_most), *client.argv)
    read = partial(parse, client.parse)
    return replace(client, argv=argv, seconds=seconds + grace + 1, parse=read, log_rows=None)


def parse(read: Reader, stdout: str, log: str = "") -> Repeated:
    """Read every iteration by the tool's own parser.

    Parameters
    ----------
    read : callable
        Takes (stdout, log) of one iteration and returns its `Measurement`.
    stdout, log : str
        What the program printed; it has no log.

    Raises
    ------
    ToolOutput
        It breaks off, an iteration failed, or one cannot be read.
    """
    lines = [_line(text) for text in stdout.splitlines()]
    if not lines or "end" not in lines[-1] or not all("start_ns" in one for one in lines[:-1]):
        raise ToolOutput(
            "the output of the repeated runs is truncated",
            why=stdout.strip()[-400:] or "nothing was printed",
            remedy="was the container stopped, or the time too short?",
            evidence={"stdout": stdout[-4000:]},
        )
    iterations = tuple(_iteration(read, one, place) for place, one in enumerate(lines[:-1], 1))
    whole = [one for one in iterations if not (one.cut or one.late)]
    flags = tuple(dict.fromkeys(flag for one in whole for flag in one.flags))
    return Repeated({}, means(whole), flags=flags, iterations=iterations)


def _line(text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return dict(line) if isinstance(line, dict) else {}


def _iteration(read: Reader, line: Mapping[str, Any], place: int) -> Iteration:
    start, end, late = int(line["start_ns"]), int(line["end_ns"]), bool(line["late"])
    if line["cut"]:
        return Iteration(start, end, cut=True, late=late)
    if line["status"] != 0:
        printed = str(line["stderr"]).strip() or str(line["stdout"]).strip() or "(nothing)"
        raise ToolOutput(
            f"iteration {place} ended with status {line['status']}",
            why=printed[-600:],
            remedy="run the same command in the image by hand",
            evidence=dict(line),
        )
    measurement = read(line["stdout"], "")
    return Iteration(start, end, late=late, metrics=measurement.metrics, flags=measurement.flags)


def means(iterations: Sequence[Iteration]) -> dict[str, float]:
    """Return the mean of each metric over the iterations that have it."""
    return _mean_of([one.metrics for one in iterations])


def overlap(one: Sequence[Iteration], other: Sequence[Iteration]) -> list[float]:
    """Return for each iteration of `one` the share of its time in which an `other` ran."""
    return [
        sum(max(0, min(a.end_ns, b.end_ns) - max(a.start_ns, b.start_ns)) for b in other)
        / max(1, a.end_ns - a.start_ns)
        for a in one
    ]


@dataclass(frozen=True)
class Side:
    """What one service measured while another ran.

    Parameters
    ----------
    name : str
        The service's.
    metrics : dict of str to float
        Means over the iterations that count, with ``iterations``, how many
        these are, ``iterations_partly`` and ``iterations_cut``, how many more started in the window
        and ended, or did not, and ``overlap``, the mean share of the other's presence in those that
        ended. Without any that counts, only the numbers of iterations.
    iterations : list of dict
        For the record: start and end of every iteration in ns from the earliest start of both, its
        overlap, and what it measured.
    flags : tuple of str
        That no iteration counts, or what the measurements of those that count flag.
    """

    name: str
    metrics: dict[str, float]
    iterations: list[dict[str, Any]]
    flags: tuple[str, ...]


def side_of(name: str, one: Repeated, other: Repeated | None) -> Side:
    """Return what a service measured while another ran.

    Parameters
    ----------
    name : str
        The service's.
    one : Repeated
        Its iterations.
    other : Repeated, optional
        The neighbour's; None for a service alone, every whole iteration of which counts.
    """
    shares = overlap(one.iterations, other.iterations) if other else [1.0] * len(one.iterations)
    pairs = list(zip(one.iterations, shares, strict=True))
    begun = [(it, share) for it, share in pairs if not it.late]
    ended = [(it, share) for it, share in begun if not it.cut]
    counted = [(it, share) for it, share in ended if share >= MIN_OVERLAP]
    flags = tuple(dict.fromkeys(flag for it, _ in counted for flag in it.flags))
    if not counted:
        how = "overlapped its neighbour entirely" if other else "ended in time"
        flags = (f"no iteration of {name} {how}",)
    metrics = means([it for it, _ in counted])
    metrics |= {
        "iterations": float(len(counted)),
        "iterations_partly": float(len(ended) - len(counted)),
        "iterations_cut": float(len(begun) - len(ended)),
    }
    if other and ended:
        metrics["overlap"] = math.fsum(share for _, share in ended) / len(ended)
    first = min(it.start_ns for it in (*one.iterations, *(other.iterations if other else ())))
    rows = [_row(it, share, first) for it, share in pairs]
    return Side(name, metrics, rows, flags)


def _row(iteration: Iteration, share: float, first: int) -> dict[str, Any]:
    return {
        "start_ns": iteration.start_ns - first,
        "end_ns": iteration.end_ns - first,
        "cut": iteration.cut,
        "late": iteration.late,
        "overlap": round(share, 4),
        **iteration.metrics,
    }


def combine(
    measured: Sequence[tuple[str, Repeated]], *, own: str = "service", other: str = "neighbour"
) -> tuple[Measurement, list[Side]]:
    """Return one or two services that repeated in one window as one measurement.

    Parameters
    ----------
    measured : sequence of (str, Repeated)
        A service and its iterations; two of them may be the same service.
    own, other : str
        Factors that name a row's service and its neighbour.

    Returns
    -------
    measurement : Measurement
        The first service's metrics, and the neighbour's own as ``neighbour_NAME``: the mean of
        all that it measured. Two of the same service are one row, of the mean of both, or without
        value where one has none; two that differ are a row each, the second in `Measurement.also`.
    sides : list of Side
        What each measured, for the record.
    """
    if not 1 <= len(measured) <= 2:
        raise UsageError(f"{len(measured)} services: one alone, or two together")
    first, last = measured[0], measured[-1]
    alone = len(measured) == 1
    sides = [side_of(*first, None if alone else last[1])]
    sides += [] if alone else [side_of(*last, first[1])]
    flags = tuple(dict.fromkeys(flag for side in sides for flag in side.flags))
    messages = sum(sum(not it.cut for it in one.iterations) for _, one in measured)
    rows = [
        side.metrics | ({} if alone else _intensity(neighbour))
        for side, (_, neighbour) in zip(sides, reversed(measured), strict=True)
    ]
    if alone or first[0] == last[0]:
        shared = set.intersection(*(set(row) for row in rows))
        both = [{name: x for name, x in row.items() if name in shared} for row in rows]
        return Measurement({}, _mean_of(both), messages, flags), sides
    also = (({own: last[0], other: first[0]}, rows[1]),)
    return Measurement({}, rows[0], messages, flags, also), sides


def _intensity(neighbour: Repeated) -> dict[str, float]:
    return {f"neighbour_{name}": value for name, value in neighbour.metrics.items()}


def _mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}
