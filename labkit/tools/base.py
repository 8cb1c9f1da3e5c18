"""What a tool's module offers: the `Tool` protocol, `Client` and `Measurement`, and helpers."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from labkit.errors import UsageError, suggestion
from labkit.hosts import Host, script
from labkit.paths import project
from labkit.process import announce


@dataclass(frozen=True)
class Measurement:
    """What a tool measured in one trial.

    Parameters
    ----------
    samples : mapping of str to ndarray of int64, shape (n,)
        Columns of samples, such as ``rtt_ns``.
    metrics : mapping of str to float
        One number per trial.
    messages : int
        Messages exchanged in the window, warm-up included: what evidence per operation is
        divided by.
    flags : tuple of str
        Validity rules that did not hold; the trial is kept and flagged.
    also : tuple of (levels, metrics)
        Other conditions that the same trial measured, such as the other side of a pair: the levels
        in which they differ from the trial's own, and their metrics. Each becomes a row.
    mechanisms : mapping of str to float
        Evidence that the tool took itself, such as how fast its CPU was; of one client of a window.

    Examples
    --------
    >>> from labkit.tools import Measurement
    >>> Measurement({}, {"operations_per_s": 1200.0}).metrics
    {'operations_per_s': 1200.0}
    """

    samples: Mapping[str, NDArray[np.int64]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    messages: int = 0
    flags: tuple[str, ...] = ()
    also: tuple[tuple[Mapping[str, Any], Mapping[str, float]], ...] = ()
    mechanisms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prestart:
    """How a client sleeps before its first packet, so that it can be started before its window.

    Parameters
    ----------
    seconds : float
        How long it sleeps.
    message : str
        What it has printed by then.
    """

    seconds: float
    message: str


@dataclass(frozen=True)
class Client:
    """A command that measures, and how its output is read.

    Parameters
    ----------
    argv : tuple of str
        The command; ``{log}`` in an argument stands for the path of its log file.
    target : str
        Address that it sends to, which must belong to the rig; "" for a command that runs inside a
        placement and sends nothing.
    seconds : float
        Expected duration.
    parse : callable
        Takes (stdout, log) as text and returns a `Measurement`.
    log_rows : int, optional
        How many rows of the log (lines that begin with a digit) are kept, spread evenly; all of
        them by default.
    samples_in_stdout : bool
        Standard output holds the samples themselves, so its text is not kept as well.
    protocols : tuple of str
        Transports that must be seen to pass the rules of a published port; "" for any.
    prestart : Prestart, optional
        For a tool that sleeps before it sends.
    fifo : int
        Its priority in the real-time class SCHED_FIFO on the generator; 0 for the ordinary class.

    Examples
    --------
    >>> from labkit.tools import Client, sockperf
    >>> client = sockperf.ping_pong("198.18.0.2", messages=1000, size=64, wait="block")
    >>> isinstance(client, Client), client.target
    (True, '198.18.0.2')
    """

    argv: tuple[str, ...]
    target: str
    seconds: float
    parse: Callable[[str, str], Measurement]
    log_rows: int | None = None
    samples_in_stdout: bool = False
    protocols: tuple[str, ...] = ("",)
    prestart: Prestart | None = None
    fifo: int = 0


@runtime_checkable
class Tool(Protocol):
    """What the module of a tool offers; a new tool is one file in ``labkit/tools``.

    Besides these two functions it has one or more that return a `Client` (what measures) or a
    `labkit.placement.Workload` (a server to be placed), named after what they do, such as
    ``sockperf.ping_pong`` and ``sockperf.server``. Each validates its arguments, since a wrong one
    would otherwise show only after the placement was made.

    Examples
    --------
    >>> from labkit.tools import Tool, sockperf
    >>> isinstance(sockperf, Tool)
    True
    """

    def probe(self, host: Host) -> str:
        """Return the tool's version on a host; raise `ToolMissing` where it is not installed."""
        ...

    def parse(self, stdout: str, log: str = "") -> Measurement:
        """Read what the tool printed and its log; raise `ToolOutput` for anything unexpected.

        Further arguments are those of the client: a reader needs them to check the output.
        """
        ...


#: Debian's interpreter, which runs the programs of ``labkit/tools/programs`` in every image.
PYTHON = "/usr/bin/python3"


def python(program: str, *args: str, **options: object) -> tuple[str, ...]:
    """Return the command that runs a file of ``labkit/tools/programs``, wherever it is placed.

    Options follow the arguments, each as ``name=value``.
    """
    text = (Path(__file__).parent / "programs" / f"{program}.py").read_text()
    pairs = (f"{name}={value}" for name, value in options.items())
    return (PYTHON, "-c", text, *args, *pairs)


#: Programs that no distribution packages, of which images get what is in ``containers/apps/local``.
UNPACKAGED = ("sfnt-pingpong", "memtier_benchmark", "wrk2")


def first_built(text: str, known: tuple[str, ...]) -> str:
    """Return the first tool of a text such as ``"wrk2 or h2load"`` that is packaged or there.

    Where there is none, it is the last.
    """
    names = text.split(" or ")
    for name in names:
        one_of("tool", name, known)
    local = project("containers/apps/local")
    there = (name for name in names if name not in UNPACKAGED or os.access(local / name, os.X_OK))
    chosen = next(there, names[-1])
    if chosen != names[0]:
        announce(f"{names[0]} is not in containers/apps/local: {chosen} takes its place")
    return chosen


#: Separates what a tool printed from the files that it wrote.
LOG_MARK = "@@ log"
# A tool that is ended because its time is up has written what there is to be read.
_LOGGED = rf"""
log=$1 limit=$2
shift 2
if [ "$log" = - ]; then folder=$(mktemp -d); else folder=$log.d; mkdir "$folder"; fi
trap 'cd / && rm -rf "$folder"' EXIT
cd "$folder"
status=0
timeout --foreground -k 1 "$limit" "$@" || status=$?
if [ "$status" != 0 ] && {{ [ "$status" != 124 ] || [ "$limit" = 0 ]; }}; then exit "$status"; fi
files() {{ for file in *; do [ ! -f "$file" ] || cat -- "$file"; done; }}
if [ "$log" = - ]; then printf '\n{LOG_MARK}\n'; files; else files >"$log"; fi
"""


# The second line of `times` is the CPU time of what the shell has waited for.
_METERED = """
status=0
began=$(date +%s%N)
"$@" || status=$?
ended=$(date +%s%N)
printf '\\n@@ cpu %s %s\\n' "$(nproc)" "$((ended - began))"
times
exit "$status"
"""
_SPENT = re.compile(r"^@@ cpu (\d+) (\d+)\n.*\n(\d+)m([\d.]+)s (\d+)m([\d.]+)s$", re.MULTILINE)
#: From this share of its CPUs on, a load is flagged as the possible bottleneck.
SATURATED = 0.95


def metered(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs a load and prints what CPU time it took; see `own_cpu`."""
    return tuple(script(_METERED, *argv))


def own_cpu(stdout: str, threads: int, seconds: float | None = None) -> float | None:
    """Return the share of its CPUs that a load of `metered` took itself; None if it is not told.

    It has no more CPUs than threads. ``seconds`` is how long it sent, where its process lasts
    longer than that.
    """
    found = _SPENT.search(stdout)
    if found is None:
        return None
    cpus = min(int(found[1]), threads)
    elapsed = int(found[2]) / 1e9 if seconds is None else seconds
    spent = 60 * (int(found[3]) + int(found[5])) + float(found[4]) + float(found[6])
    return spent / (cpus * elapsed) if cpus * elapsed > 0 else None


def saturated(share: float | None) -> tuple[str, ...]:
    """Return the flag of a load that had hardly any CPU time left, or none."""
    if share is None or share <= SATURATED:
        return ()
    return (f"the load used {share:.0%} of its CPUs: it may be the limit",)


def logged(argv: Sequence[str], *, log: str = "-", limit: float = 0.0) -> tuple[str, ...]:
    """Return the command that runs a tool in a new directory and keeps the files that it writes.

    Parameters
    ----------
    argv : sequence of str
        The tool; it writes to names without a directory.
    log : {"-", "{log}"}
        Where the files go: after the tool's output, for a client inside a placement, which must
        leave no file there; or into the client's log.
    limit : float
        Seconds after which it is ended, and what it wrote is read all the same; 0 for none.
    """
    return tuple(script(_LOGGED, log, f"{limit:g}", *argv))


def check_integers(tool: str, *, least: int = 1, **values: object) -> None:
    """Raise `UsageError` unless all values are integers of at least `least`."""
    wrong = {
        name: value
        for name, value in values.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < least
    }
    if wrong:
        raise UsageError(
            f"{tool}: {_shown(wrong)}: must be an integer, at least {least}",
            remedy="write 100000, not 1e5",
        )


def check_positive(tool: str, **values: object) -> None:
    """Raise `UsageError` unless all values are finite numbers above 0."""
    wrong = {
        name: value
        for name, value in values.items()
        if not isinstance(value, int | float) or not value > 0 or not math.isfinite(value)
    }
    if wrong:
        raise UsageError(f"{tool}: {_shown(wrong)}: must be positive")


def one_of(what: str, value: object, known: tuple[str, ...]) -> None:
    """Raise `UsageError` unless the value is a known one.

    Examples
    --------
    >>> from labkit.tools import one_of
    >>> one_of("exchange", "upd", ("udp", "tcp"))
    Traceback (most recent call last):
        ...
    labkit.errors.UsageError: unknown exchange 'upd'
      remedy: did you mean 'udp'? One of udp, tcp
    """
    if value not in known:
        raise UsageError(f"unknown {what} {value!r}", remedy=suggestion(value, known))


def _shown(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())
