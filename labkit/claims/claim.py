"""One claim: a published statement as a testable hypothesis, with what it asks of a rig."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from labkit.claims.stated import PublishedValue

#: A factor's level, as selectors write it.
Level = str | float
#: One combination of levels, by factor.
Cell = Mapping[str, Level]


@dataclass(frozen=True)
class Needs:
    """What a claim asks of a rig; zero, or empty, where it asks nothing.

    Parameters
    ----------
    capabilities : tuple of str
        Of ``separate-machines``, ``nic-hardware``, ``isolated-cpus``, ``busy-poll``, ``aufs``.
    cores, cores_at_most : int
        CPUs of the system under test, at least and at most.
    hosts : int
        Hosts, at least.
    link_gbit_per_s : float
        Rate of the link in Gbit/s, at least.
    samples : int
        Samples a trial, at least.
    engine : str
        The runtime that must have run.
    """

    capabilities: tuple[str, ...] = ()
    cores: int = 0
    hosts: int = 0
    link_gbit_per_s: float = 0.0
    samples: int = 0
    engine: str = ""
    cores_at_most: int = 0


@dataclass(frozen=True)
class StudyWords:
    """The words of a study: what selectors of its claims may use.

    Parameters
    ----------
    name, text : str
        Its name, and what it is about.
    factors : mapping
        Each factor's levels, or None for any number.
    metrics : mapping
        ``samples`` for a metric of many samples a trial, ``trial`` for one number a trial.
    """

    name: str
    text: str
    factors: Mapping[str, tuple[str, ...] | None]
    metrics: Mapping[str, Literal["samples", "trial"]]


@dataclass(frozen=True)
class Claim:
    """One published statement as a hypothesis about cells of a study.

    Cells are complete: the levels of `where` are merged into each. What a kind does not have is
    empty; see the table in `labkit.claims.shapes`.

    Parameters
    ----------
    id, source, place, statement : str
        Unique name (it starts with the source), the document's key, where in it, and our words.
    study, kind, metric : str
        Of the vocabulary.
    statistic : str
        Of the samples of a trial; empty for a metric that has one number a trial.
    where : mapping
        Levels held fixed for every cell.
    each : mapping of str to tuple
        Levels of factors for all combinations of which the statement must hold; see `versions`.
    condition, baseline, condition2, baseline2 : mapping
        Cells; the second pair is that of a contrast.
    cells : tuple of mapping
        The cells of an order, in the order stated, or the conditions of a range of ratios.
    direction : str
        ``higher`` or ``lower`` (than the baseline), ``increasing`` or ``decreasing``.
    at_least : float
        Ratio of a difference that must be exceeded, always 1 or more: with ``lower`` the ratio to
        the baseline lies below ``1 / at_least``.
    margin : float
        Relative; the kind's own default where the file gives none, NaN for kinds without.
    low, high : float
        Bounds of the region; infinite where the file gives none.
    over : str
        The factor that a curve runs over.
    levels : tuple
        Levels of `over`, in the order stated; empty for all that were measured.
    unit : str
        Of the bounds of a bound, as the metric is stored.
    blocks : int
        Fewest blocks for a verdict; `labkit.power.least_blocks` may ask for more.
    needs, same : Needs
        What makes a rig suitable at all, and what makes it the same setting.
    published : PublishedValue or None
        What the paper has for the quantity that is estimated.
    checks : tuple of str
        Identifiers of the statements (`labkit.claims.stated`) that bear on it.
    note : str
        What to know about it.
    """

    id: str
    source: str
    place: str
    statement: str
    study: str
    kind: str
    metric: str
    statistic: str = ""
    where: Cell = field(default_factory=dict)
    each: Mapping[str, tuple[Level, ...]] = field(default_factory=dict)
    condition: Cell = field(default_factory=dict)
    baseline: Cell = field(default_factory=dict)
    condition2: Cell = field(default_factory=dict)
    baseline2: Cell = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()
    direction: str = ""
    at_least: float = 1.0
    margin: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    over: str = ""
    levels: tuple[Level, ...] = ()
    unit: str = ""
    blocks: int = 5
    needs: Needs = field(default_factory=Needs)
    same: Needs = field(default_factory=Needs)
    published: PublishedValue | None = None
    checks: tuple[str, ...] = ()
    note: str = ""

    def versions(self) -> tuple[Claim, ...]:
        """Return the claim at every combination of `each`: itself where there is none.

        The statement holds if it holds in all of them.
        """
        return tuple(
            self._at(dict(zip(self.each, levels, strict=True)))
            for levels in itertools.product(*self.each.values())
        )

    def _at(self, levels: Cell) -> Claim:
        """Return the claim with levels merged into `where` and into every cell that it has."""
        pairs = ("condition", "baseline", "condition2", "baseline2")
        there: dict[str, Any] = {
            name: {**cell, **levels} for name in pairs if (cell := getattr(self, name))
        }
        cells = tuple({**cell, **levels} for cell in self.cells)
        return replace(self, where={**self.where, **levels}, each={}, cells=cells, **there)


def words(cell: Cell, *, without: Cell | None = None) -> str:
    """Return a cell in words, without the levels that another has too (if any are left)."""
    left = {name: level for name, level in cell.items() if (without or {}).get(name) != level}
    return " | ".join(
        f"{name} {level_words(level)}" if isinstance(level, int | float) else str(level)
        for name, level in (left or cell).items()
    )


def level_words(level: Level) -> str:
    """Return a level as a message names it."""
    return f"{level:g}" if isinstance(level, int | float) else repr(level)
