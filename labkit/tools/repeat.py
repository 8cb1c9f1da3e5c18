"""A tool that is run once in a directory of its own, or repeated for a window, beside another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pandas as pd

from labkit.tools.base import Client, Measurement, flag, json_in, python, reading

#: An iteration counts where the neighbour ran for this share of its time. Commands of containers
#: start some 50 ms apart, and between two iterations of the neighbour a process starts.
MIN_OVERLAP = 0.9
_TIMES = ["start_ns", "end_ns", "cut", "late"]


@dataclass(frozen=True)
class Repeated(Measurement):
    """A measurement of several iterations, a row each, of which some are `cut` or `late`."""

    iterations: pd.DataFrame = field(default_factory=pd.DataFrame)


def once(
    client: Client, limit: float = 1e6, first: Sequence[str] = (), threads: int = 0, busy: int = 0
) -> Client:
    """Return a client that runs a command, after another, once; its reader gets files as the log.

    After `limit` seconds it is ended and yet read. ``tool_cpu`` is the share of the CPUs of its
    `threads` that it took in the seconds in which they were `busy` (0: all).
    """

    def parse(stdout: str, log: str) -> Measurement:
        with reading("the tool's run", stdout):
            found = json_in(stdout)
            (ran,) = found["runs"]
            time = busy * 1e9 or ran["end_ns"] - ran["start_ns"]
            cpus = min(found["cpus"], threads)
            used = {"tool_cpu": ran["cpu_ns"] / (cpus * time)} if threads else {}
        measured = client.parse(ran["stdout"], ran["files"])
        return replace(measured, metrics={**measured.metrics, **used})

    argv = python("run", "main", seconds=limit, at_most=1, first=first)
    return replace(client, argv=argv + client.argv, parse=parse)


def repeated(client: Client, *, seconds: float, grace: float, at_most: int = 0) -> Client:
    """Return a client that runs another's command again and again; it reads a `Repeated`.

    Iterations that start in the window of so many seconds count, `at_most` so many (0: any number);
    what still runs after the grace time is cut off.
    """
    argv = python("run", "main", seconds=seconds, grace=grace, at_most=at_most)
    read = partial(parse, client.parse)
    return replace(client, argv=argv + client.argv, seconds=seconds + grace + 1, parse=read)


def parse(read: Callable[[str, str], Measurement], stdout: str, log: str = "") -> Repeated:
    """Read every iteration by the tool's parser; none has failed."""
    with reading("repeated runs", stdout):
        rows, flags = [], dict[str, None]()
        for line in json_in(stdout)["runs"]:
            one = Measurement({}) if line["cut"] else read(line["stdout"], "")
            rows.append({name: line[name] for name in _TIMES} | dict(one.metrics))
            flags |= {} if line["late"] else dict.fromkeys(one.flags)
        iterations = pd.DataFrame(rows)
        counted = iterations[~iterations["cut"] & ~iterations["late"]]
    return Repeated({}, _means(counted), flags=tuple(flags), iterations=iterations)


def _means(iterations: pd.DataFrame) -> dict[str, float]:
    means = iterations.drop(columns=_TIMES).mean().dropna()
    return {str(name): float(value) for name, value in means.items()}


def side_of(name: str, service: Repeated, neighbour: Repeated | None = None) -> Measurement:
    """Return one service of a window: its iterations that had the neighbour all the time count."""
    # Which count is decided by their start, never by how long they take: slow ones would be lost.
    started = service.iterations[~service.iterations["late"]]
    ended = started[~started["cut"]]
    counted, cut, near = ended, len(started) - len(ended), {}
    if neighbour:
        spans = (one[["start_ns", "end_ns"]].to_numpy().T for one in (ended, neighbour.iterations))
        (begin, end), (first, last) = spans
        shared = np.minimum.outer(end, last) - np.maximum.outer(begin, first)
        shares = shared.clip(0).sum(axis=1) / (end - begin).clip(1)
        counted = ended[shares >= MIN_OVERLAP]
        near = {f"neighbour_{key}": value for key, value in neighbour.metrics.items()}
        near |= {"overlap": float(shares.mean())} if len(shares) else {}
    numbers = {"": len(counted), "_cut": cut, "_partly": len(ended) - len(counted)}
    metrics = {f"iterations{kind}": float(number) for kind, number in numbers.items()} | near
    metrics |= _means(counted)
    if counted.empty:
        missing = "overlapped its neighbour entirely" if neighbour else "ended in time"
        return Measurement({}, metrics, flags=(f"no iteration of {name} {missing}",))
    # Those that are left are the fast ones.
    lost = flag(f"{cut} of {len(started)} iterations of {name} did not end in time", cut)
    return Measurement({}, metrics, flags=lost)


def combine(measured: Sequence[tuple[str, Repeated]]) -> Measurement:
    """Return one or two services that were repeated in one window as one measurement.

    Two of the same service are one row, of the mean of both; two that differ are a row each, the
    second in `Measurement.also`, with the factors ``service`` and ``neighbour`` exchanged.
    """
    names, services = zip(*measured, strict=True)
    others = services[::-1] if len(services) == 2 else (None,)
    sides = list(map(side_of, names, services, others))
    rows = [side.metrics for side in sides]
    if len(set(names)) < len(rows):
        one, other = rows
        rows = [{key: (one[key] + other[key]) / 2 for key in one if key in other}]
    also = tuple(({"service": names[1], "neighbour": names[0]}, row) for row in rows[1:])
    messages = sum(int((~service.iterations["cut"]).sum()) for service in services)
    flags = [text for one in [*services, *sides] for text in one.flags]
    return Measurement({}, rows[0], messages, tuple(dict.fromkeys(flags)), also)
