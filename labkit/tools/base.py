"""Clients and measurements: the interface between a tool and a trial.

A tool is one module of this package: functions that return a `Client` or a server to place
(`labkit.placement.Workload`), ``probe(host)``, and a reader of text that makes a `Measurement`.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit import errors
from labkit.errors import LabkitError, UsageError, suggestion
from labkit.hosts import Host
from labkit.paths import project
from labkit.process import announce
from labkit.tools.parsing import Column, plain

#: Debian's interpreter, which runs the programs of ``labkit/tools/programs`` in every image.
PYTHON = "/usr/bin/python3"
#: Tools that no distribution packages: images get what is in ``containers/apps/local``.
UNPACKAGED = ("sfnt-pingpong", "memtier_benchmark", "wrk2")


@dataclass(frozen=True)
class Measurement:
    """Samples and metrics of one trial.

    Samples are columns such as ``rtt_ns``; metrics are one number per trial. `messages`, with those
    of the warm-up, divide the evidence per operation. `also` holds other conditions that the trial
    measured, a row each: their levels that differ, and their metrics. `mechanisms` is evidence that
    the tool took itself, such as how fast its CPU was.
    """

    samples: Mapping[str, Column]
    metrics: Mapping[str, float] = field(default_factory=dict)
    messages: int = 0
    flags: tuple[str, ...] = ()
    also: tuple[tuple[Mapping[str, Any], Mapping[str, float]], ...] = ()
    mechanisms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prestart:
    """A sleep of a client before its first packet: its seconds, and a message printed by then."""

    seconds: float
    message: str


@dataclass(frozen=True)
class Client:
    """A command that measures, and the reader of its output, which takes (stdout, log) as text.

    ``{log}`` in an argument stands for the path of its log file, of which `log_rows` rows (lines
    that begin with a digit) are kept, spread evenly; where `samples_in_stdout`, the text of its
    output is not kept. `target` is the address that it sends to, "" for a command that runs inside
    a placement; `protocols` are the transports that must be seen to pass the rules of a published
    port, "" for any. `fifo` is its priority in the real-time class SCHED_FIFO on the generator.
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


def python(program: str, action: str, **options: object) -> tuple[str, ...]:
    """Return the command that calls a function of a file of ``labkit/tools/programs``.

    The text itself is an argument, and needs only Python's standard library (and Thrift), so that
    the same program runs in a container, in a chroot, on a host and on the generator.
    """
    text = (Path(__file__).parent / "programs" / f"{program}.py").read_text()
    return (PYTHON, "-c", text, action, json.dumps(options))


def prober(pattern: str, *argv: str, package: str = "") -> Callable[[Host], str]:
    """Return a function that reads a tool's version on a host: the first group of a pattern."""
    package = package or argv[0]
    remedy = errors.UNPACKAGED if package in UNPACKAGED else f"apt-get install {package}"

    def probe(host: Host) -> str:
        result = host.run(*argv, check=False)
        printed = plain(result.stdout + result.stderr)
        match = re.search(pattern, printed)
        if result.status == 127 or match is None:
            where, why = f"host {host.name}", printed.strip()[-300:]
            raise LabkitError(f"{package} is not installed", where=where, why=why, remedy=remedy)
        return match[1]

    return probe


def is_built(tool: str) -> bool:
    """Tell whether images have a tool: it is packaged, or in ``containers/apps/local``."""
    return tool not in UNPACKAGED or os.access(project("containers/apps/local") / tool, os.X_OK)


def first_built(text: str, known: Collection[str]) -> str:
    """Return the first of tools such as ``"wrk2 or h2load"`` that images have, or the last."""
    names = text.split(" or ")
    for name in names:
        one_of("tool", name, known)
    chosen = next(filter(is_built, names), names[-1])
    if chosen != names[0]:
        announce(f"{names[0]} is not in containers/apps/local: {chosen} takes its place")
    return chosen


def one_of(what: str, value: object, known: Collection[str]) -> None:
    """Raise `UsageError` with the nearest name unless the value is a known one."""
    if value not in known:
        raise UsageError(f"unknown {what} {value!r}", remedy=suggestion(value, known))
