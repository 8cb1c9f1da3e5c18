"""What every tool's file offers: what to run, where its output is, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Reading:
    """What a tool measured in one trial.

    Parameters
    ----------
    samples : mapping of str to ndarray of int64, shape (n,)
        Columns of samples, such as ``rtt_ns``.
    metrics : mapping of str to float
        One number a trial.
    messages : int
        Messages that were exchanged in the window, warm-up included: the denominator of the
        mechanism evidence.
    flags : tuple of str
        Validity rules that did not hold; the trial is kept and flagged.
    also : tuple of (levels, metrics)
        Other conditions that the same trial measured, such as the other side of a pair: the levels
        in which they differ from the trial's own, and their metrics. Each is a row of its own.
    """

    samples: Mapping[str, NDArray[np.int64]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    messages: int = 0
    flags: tuple[str, ...] = ()
    also: tuple[tuple[Mapping[str, Any], Mapping[str, float]], ...] = ()


@dataclass(frozen=True)
class Client:
    """A load to be sent at a server, and how its output is read.

    Parameters
    ----------
    argv : tuple of str
        The command; ``{log}`` in an argument stands for the path of its log file.
    target : str
        Address that it sends to; the rig refuses one that it does not own. "" for what runs inside
        a placement and sends nothing.
    seconds : float
        How long the command is expected to take.
    parse : callable
        Takes (stdout, log) as text and returns a `Reading`.
    log_rows : int, optional
        How many rows (lines that begin with a digit) of the log are wanted, spread evenly over it.
    bulky : bool
        What it prints is its samples, which are not kept as text beside themselves.
    protocols : tuple of str
        Transports of which flows must have taken the rules of a published port that it aims at;
        "" is any.
    sleeps : float
        How long it sleeps before it begins, in seconds; 0 for one that begins at once.
    says : str
        What it has printed by then.
    """

    argv: tuple[str, ...]
    target: str
    seconds: float
    parse: Callable[[str, str], Reading]
    log_rows: int | None = None
    bulky: bool = False
    protocols: tuple[str, ...] = ("",)
    sleeps: float = 0.0
    says: str = ""


Evidence = dict[str, Any]
