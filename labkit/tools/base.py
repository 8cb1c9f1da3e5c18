"""Clients and measurements, the interface between a tool and a trial, and readers of output."""

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.data import refuse_unknown
from labkit.errors import UNPACKAGED, LabkitError, ToolOutput
from labkit.hosts import Host
from labkit.paths import project
from labkit.process import announce

Column = NDArray[np.int64]
#: Debian's interpreter, which runs ``labkit/tools/programs`` in every image.
PYTHON = "/usr/bin/python3"
#: Tools that no distribution packages: images get what is in ``containers/apps/local``.
LOCAL = ("sfnt-pingpong", "memtier_benchmark", "wrk2")
_WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
#: A line in which a tool says that its run is not to be used.
_FAILURE = re.compile(
    r"^(?:[\w+-]+: (?:error|fatal)\b|(?:error|fatal):"
    r"|.*\b(?:was aborted|unsuccessful|untrustworthy)\b).*$",
    re.MULTILINE | re.IGNORECASE,
)
#: A version that a tool prints among its results.
_VERSION = re.compile(r"(?:version\W+(?:[a-z]\w* )?|^\w+ \()(\d+(?:\.\d+)+)", re.MULTILINE)
#: A rate counts as reached from this share of the requested one; and how its flag begins.
REACHED, NOT_REACHED = 0.99, "rate not reached"
_QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_ORDER = ("min", "median", "p75", "p90", "p95", "p99", "p999", "p9999", "max")


@dataclass(frozen=True)
class Measurement:
    """Samples and metrics of one trial.

    Samples are columns such as ``rtt_ns``; metrics are one number per trial. `messages`, with those
    of the warm-up, divide the evidence per operation. `also` holds other conditions that the trial
    measured, a row each: their levels that differ, and their metrics.
    """

    samples: Mapping[str, Column]
    metrics: Mapping[str, float] = field(default_factory=dict)
    messages: int = 0
    flags: tuple[str, ...] = ()
    also: tuple[tuple[Mapping[str, Any], Mapping[str, float]], ...] = ()


@dataclass(frozen=True)
class Client:
    """A command that measures, and the reader of its output, which takes (stdout, log) as text.

    ``{log}`` in an argument stands for the path of its log file, of which `log_rows` rows (lines
    that begin with a digit) are kept, spread evenly; where `samples_in_stdout`, the text of its
    output is not kept. `target` is the address that it sends to, "" for a command that runs inside
    a placement; `protocols` are the transports that must be seen to pass the rules of a published
    port, "" for any. `prestart` has the seconds of its sleep before its first packet, and what is
    printed by then. `fifo` is its priority in the real-time class SCHED_FIFO on the generator.
    """

    argv: tuple[str, ...]
    target: str
    seconds: float
    parse: Callable[[str, str], Measurement]
    log_rows: int = 0
    samples_in_stdout: bool = False
    protocols: tuple[str, ...] = ("",)
    prestart: tuple[float, str] = (0.0, "")
    fifo: int = 0


def python(program: str, action: str, **options: object) -> tuple[str, ...]:
    """Return the command that prints the JSON of a call in a file of ``labkit/tools/programs``."""
    # The text itself is an argument, so that it runs in a container, in a chroot and on a host.
    text = Path(__file__).with_name("programs").joinpath(f"{program}.py").read_text()
    call = "globals()[sys.argv[1]](*sys.argv[3:], **json.loads(sys.argv[2]))"
    text += f"\n\nimport json, sys\nprint(json.dumps({call}))\n"
    return (PYTHON, "-c", text, action, json.dumps(options))


def prober(pattern: str, *argv: str, package: str = "") -> Callable[[Host], str]:
    """Return a function that reads a tool's version on a host: the first group of a pattern."""
    package = package or argv[0]
    remedy = UNPACKAGED if package in LOCAL else f"apt-get install {package}"

    def probe(host: Host) -> str:
        result = host.run(*argv, check=False)
        printed = plain(result.stdout + result.stderr)
        match = re.search(pattern, printed)
        if match and result.status != 127:
            return match[1]
        where, why = f"host {host.name}", printed.strip()[-300:]
        raise LabkitError(f"{package} is not installed", where=where, why=why, remedy=remedy)

    return probe


def is_built(tool: str) -> bool:
    """Tell whether images have a tool: it is packaged, or in ``containers/apps/local``."""
    return tool not in LOCAL or os.access(project("containers/apps/local") / tool, os.X_OK)


def first_built(text: str, known: Collection[str]) -> str:
    """Return the first of tools such as ``"wrk2 or h2load"`` that images have, or the last."""
    first, *_ = names = text.split(" or ")
    refuse_unknown("tool", names, known)
    chosen = next(filter(is_built, names), names[-1])
    if chosen != first:
        announce(f"{first} is not in containers/apps/local: {chosen} takes its place")
    return chosen


@contextmanager
def reading(tool: str, text: str, log: str = "", *, needs: str = "") -> Iterator[None]:
    """Turn what goes wrong while output is read into `ToolOutput`; `needs` is a version."""
    try:
        if failure := _FAILURE.search(text):
            raise ValueError(f"it reports a failure: {failure[0].strip()}")
        yield
    except _WRONG as error:
        shown = text.strip() or log.strip() or "(nothing)"
        shown = shown if len(shown) < 1000 else f"{shown[:300]} ... {shown[-600:]}"
        why = f"there is no result ({error!r}); it printed: {shown}"
        says = "".join(f"; this says {version}" for version in _VERSION.findall(text)[:1])
        remedy = f"needs {needs} or later{says}; " if needs else ""
        remedy += "see the trial's raw output; run the same command in the image by hand"
        kept = {"stdout": text[-4000:], "log": log[:2000]}
        what = f"cannot read the output of {tool}"
        raise ToolOutput(what, why=why, remedy=remedy, evidence=kept) from None


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of pairs, whose keys may occur only once."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} occurs twice")
        found[name] = value
    return found


def json_in(text: str) -> dict[str, Any]:
    """Return the JSON object that begins the only line with a brace."""
    # C prints numbers that JSON does not have, such as -nan.
    number = re.sub(r"(?<=[\s:,\[])-?(?:nan|inf)(?=[\s,\]}])", "NaN", text)
    (json_text,) = re.split(r"^(?={)", number, flags=re.MULTILINE)[1:]
    return dict(json.JSONDecoder(object_pairs_hook=unique).raw_decode(json_text)[0])


def document(text: str) -> tuple[dict[str, Any], dict[str, Column]]:
    """Return what a program of labkit printed, and its ``samples``: columns of integers."""
    found = json_in(text)
    samples = found.pop("samples").items()
    return found, {name: np.array(values, np.int64) for name, values in samples}


def rows(text: str, columns: int, separator: str) -> Column:
    """Return the columns of lines of so many integers."""
    line = separator.join([r"-?[0-9]+"] * columns)
    if not re.fullmatch(f"(?:{line}\n)+", text):
        raise ValueError(f"its log is empty, cut off or not lines of {columns} integers")
    values = np.array(text.replace(separator, "\n").split(), dtype=np.int64)
    return values.reshape(-1, columns).T.copy()


def flag(text: str, when: object = True) -> tuple[str, ...]:
    """Return the text as the flags of a measurement, or none."""
    return (text,) if when else ()


def shortfall(achieved: float, requested: float, *, chance: float = 0.0) -> tuple[str, ...]:
    """Return the flag of a rate per second that fell short by more than chance, or none."""
    text = f"{NOT_REACHED}: {achieved:,.1f} of {requested:,.1f} per second"
    return flag(text, achieved < REACHED * requested - chance)


def paused(times: Column) -> tuple[str, ...]:
    """Return the flag of a pause between messages (ns): 0.5 s, and ten times 99 % of the others."""
    times = np.sort(times)
    gaps = np.diff(times)
    if len(gaps) < 100 or gaps.max() < max(500_000_000, 10 * np.quantile(gaps, 0.99)):
        return ()
    after, length = (times[gaps.argmax()] - times[0]) / 1e9, gaps.max() / 1e9
    return (f"pause of {length:.2f} s, {after:.2f} s after the first message: was an end stopped?",)


def check_duration(lasted: float, requested: float) -> None:
    """Raise `ValueError` unless a run lasted about as long as was requested (s)."""
    if abs(lasted - requested) > 0.05 * requested + 0.2:
        raise ValueError(f"it ran for {lasted:g} s instead of {requested:g}: was the clock set?")


def check_numbers(metrics: Mapping[str, float]) -> None:
    """Raise `ValueError` unless metrics are finite, at least 0, and quantiles in order."""
    odd = {name: number for name, number in metrics.items() if not 0 <= number < math.inf}
    for prefix in (name.removesuffix("max") for name in metrics if name.endswith("_max")):
        found = {name: metrics[prefix + name] for name in _ORDER if prefix + name in metrics}
        mean, least = metrics[f"{prefix}mean"], found.get("min", 0.0)
        pairs = [*pairwise(found.values()), (least, mean), (mean, found["max"])]
        # A histogram's step may be off by some per cent, and by 16 us.
        if any(one > other * 1.05 + 16e3 for one, other in pairs) or not all(found.values()):
            odd |= {f"{prefix}mean": mean, **found}
    if odd:
        raise ValueError(f"these numbers are impossible or not in order: {odd}")


def scheduled(name: str, achieved: float, requested: float) -> dict[str, float]:
    """Return the rate per second of a load with a schedule, as `name`, and the requested one."""
    return {name: achieved, "offered_per_s": float(requested), "reached": achieved / requested}


def latency(values: Column, name: str = "latency_ns") -> dict[str, float]:
    """Return mean, extremes and quantiles of latencies in ns; a quantile is one of them."""
    if not len(values):
        return {}
    statistics = {"mean": values.mean(), "min": values.min(), "max": values.max()}
    for label, share in _QUANTILES.items():
        statistics[label] = np.quantile(values, share, method="inverted_cdf")
    return {f"{name}_{label}": float(value) for label, value in statistics.items()}


def plain(text: str) -> str:
    """Return a text without the colours of a terminal."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)
