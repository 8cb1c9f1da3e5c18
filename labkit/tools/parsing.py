"""Readers that tools share: JSON, rows of integers, ``name=value``, flags, versions.

They refuse whatever contradicts itself: a key that occurs twice, a row that is cut off, a number
that is none, a failure that the tool reports in the middle of its results.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.errors import ToolMissing, ToolOutput
from labkit.hosts import Host

#: A number as tools print it in the locale C, without a decimal comma.
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
#: A line in which a tool says that its run is not to be used.
_FAILURE = re.compile(
    r"^(?:[\w+-]+: (?:error|fatal)\b|.*\b(?:was aborted|unsuccessful|untrustworthy)\b).*$",
    re.MULTILINE | re.IGNORECASE,
)
#: A version that a tool prints among its results.
_VERSION = re.compile(r"(?:version\W+(?:[a-z]\w* )?|^\w+ \()(\d+(?:\.\d+)+)", re.MULTILINE)
#: Numbers that C prints and JSON does not have, such as -nan.
_NAN = re.compile(r"(?<=[\s:,\[])-?(?:nan|inf)(?=[\s,\]}])")
#: The shortest pause between messages that is flagged, and how many times longer it is than others.
_PAUSE_NS, _LONGER = 500_000_000, 10
#: A rate counts as reached from this share of the requested one.
REACHED = 0.99
#: How the flag of a rate that was not reached begins.
NOT_REACHED = "rate not reached"
#: From this share of its CPUs on, a load is flagged as the possible bottleneck.
SATURATED = 0.95
#: Separates the output of a wrapped tool from the files that it wrote.
LOG_MARK = "@@ log"
_SPENT = re.compile(r"^@@ spent (.*)$", re.MULTILINE)

Column = NDArray[np.int64]


@contextmanager
def reading(tool: str, text: str, log: str = "", *, needs: str = "") -> Iterator[None]:
    """Turn whatever goes wrong while output is read into `ToolOutput`, which shows the output.

    Output in which the tool reports a failure is refused before it is read. `needs` names the
    version whose output is read, such as ``"pgbench 15"``.
    """
    try:
        if failure := _FAILURE.search(text):
            raise ValueError(f"it reports a failure: {failure[0].strip()}")
        yield
    except (
        *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
        RecursionError,  # of JSON
    ) as error:
        shown = text.strip() or log.strip() or "(nothing)"
        shown = shown if len(shown) < 1000 else f"{shown[:300]} ... {shown[-600:]}"
        found = _VERSION.search(text)
        says = f"; this says {found[1]}" if found else ""
        needed = f"needs {needs} or later{says}; " if needs else ""
        raise ToolOutput(
            f"cannot read the output of {tool}",
            why=f"there is no result ({error!r}); it printed: {shown}",
            remedy=f"{needed}see the trial's raw output; run the same command in the image by hand",
            evidence={"stdout": text[-4000:]} | ({"log": log[:2000]} if log else {}),
        ) from None


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a dict of pairs, none of whose keys may occur twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} occurs twice")
        found[name] = value
    return found


def json_in(text: str) -> dict[str, Any]:
    """Return the JSON object in a text: the first one that begins a line."""
    plain = _NAN.sub("NaN", text)
    decoder, failures = json.JSONDecoder(object_pairs_hook=unique), []
    for start in re.finditer(r"^\{", plain, re.MULTILINE):
        try:
            found: dict[str, Any] = decoder.raw_decode(plain, start.start())[0]
        except ValueError as error:
            failures.append(error)
        else:
            return found
    raise failures[0] if failures else ValueError("there is no JSON object")


def check_duration(lasted: float, requested: float | None) -> None:
    """Raise `ValueError` unless a run lasted about as long as was requested (s)."""
    if requested and abs(lasted - requested) > 0.1 * requested + 0.5:
        raise ValueError(f"it ran for {lasted:g} s instead of {requested:g}: was the clock set?")


def positive(text: str, name: str) -> float:
    """Return a number of a tool's output, which must be finite and above 0."""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {text!r}, not a positive number")
    return value


def fields(text: str) -> dict[str, str]:
    """Return the value of each line that is ``name=value``."""
    pairs = (line.partition("=") for line in text.splitlines())
    return unique((name.strip(), value.strip()) for name, middle, value in pairs if middle)


def rows(text: str, names: Sequence[str], separator: str) -> dict[str, Column]:
    """Return the columns of lines of integers, which are in the order of `names`."""
    line = separator.join([r"-?[0-9]+"] * len(names))
    if not re.fullmatch(f"(?:{line}\n)+", text):
        cut = "" if text.endswith("\n") else "; it is cut off" if text else "; it is empty"
        raise ValueError(f"its log is not lines of {len(names)} integers{cut}")
    values = np.array(text.replace(separator, "\n").split(), dtype=np.int64)
    return dict(zip(names, values.reshape(-1, len(names)).T.copy(), strict=True))


def csv_rows(text: str, names: Sequence[str]) -> dict[str, Column]:
    """Return the columns of a CSV of integers that begins with their names; as `rows`."""
    head, _, body = text.partition("\n")
    if head != ",".join(names):
        raise ValueError(f"its log has not the columns {', '.join(names)}")
    return rows(body, names, ",")


def split(stdout: str, log: str) -> tuple[str, str]:
    """Return what a tool of `base.wrapped` printed, and the files that it wrote."""
    printed, mark, files = stdout.partition(f"\n{LOG_MARK}\n")
    return (printed, files) if mark else (stdout, log)


def own_cpu(printed: str, threads: int, seconds: float | None = None) -> float | None:
    """Return the share of its CPUs that a tool of `base.wrapped` took; None if it was not wrapped.

    It has no more CPUs than threads. ``seconds`` is how long it sent, where its process lasts
    longer than that.
    """
    found = _SPENT.search(printed)
    if found is None:
        return None
    spent = json.loads(found[1])
    available = min(spent["cpus"], threads) * (seconds or spent["elapsed_ns"] / 1e9)
    return float(spent["cpu_ns"] / 1e9 / available)


def saturated(share: float | None) -> tuple[str, ...]:
    """Return the flag of a load that had hardly any CPU time left, or none."""
    if share is None or share <= SATURATED:
        return ()
    return (f"the load used {share:.0%} of its CPUs: it may be the limit",)


def shortfall(achieved: float, requested: float, *, chance: float = 0.0) -> tuple[str, ...]:
    """Return the flag of a rate per second that fell short by more than chance, or none."""
    if achieved >= REACHED * requested - chance:
        return ()
    return (f"{NOT_REACHED}: {achieved:,.1f} of {requested:,.1f} per second",)


def too_few(count: int, requested: int | None) -> tuple[str, ...]:
    """Return the flag of fewer messages than were requested, or none."""
    if requested is None or count >= requested:
        return ()
    return (f"short: {count} of {requested} messages",)


def paused(times: Column) -> tuple[str, ...]:
    """Return the flag of the longest pause in the times of messages in ns, or none.

    One end may have been stopped. 99 % of the pauses must be much shorter.
    """
    times = np.sort(times)
    gaps = np.diff(times)
    if len(gaps) < 100 or gaps.max() < max(_PAUSE_NS, _LONGER * np.quantile(gaps, 0.99)):
        return ()
    after = (times[gaps.argmax()] - times[0]) / 1e9
    length = gaps.max() / 1e9
    return (f"pause of {length:.2f} s, {after:.2f} s after the first message: was an end stopped?",)


def version(host: Host, argv: Sequence[str], pattern: str, *, remedy: str = "") -> str:
    """Return the version that a command prints on a host: the first group of the pattern.

    Without it, `ToolMissing` is raised; by default the package has the command's name.
    """
    result = host.run(*argv, check=False)
    match = re.search(pattern, result.stdout + result.stderr)
    if result.status == 127 or match is None:
        raise ToolMissing(
            f"{argv[0]} is not installed",
            where=f"host {host.name}",
            remedy=remedy or f"apt-get install {argv[0]}",
        )
    return match[1]
