"""What a plan promises before it runs: how long it takes and the smallest margin it decides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from labkit import dataset
from labkit.design import Condition
from labkit.errors import DatasetError
from labkit.paths import project
from labkit.power import decidable_margin

if TYPE_CHECKING:
    from labkit.campaign.study import Plan

#: Placing, checking, collecting and taking down one trial, in seconds; rounded up from what it
#: took on the development machine.
OVERHEAD = 0.8


@dataclass(frozen=True)
class Estimate:
    """Duration in seconds; smallest margin (a ratio minus 1), and where that is known from."""

    seconds: float
    margin: float | None
    source: str

    @property
    def duration_text(self) -> str:
        """The duration in words."""
        minutes = self.seconds / 60
        return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"

    @property
    def margin_text(self) -> str:
        """The margin in words."""
        if self.margin is None:
            return f"not known before a pilot ({self.source})"
        return f"{self.margin:.1%} on medians (80 % power; from {self.source})"


def estimate(plan: Plan, earlier: Path | str | None = None) -> Estimate:
    """Return the estimate of a plan.

    Parameters
    ----------
    plan : Plan
        What is to run.
    earlier : path, optional
        A campaign, or a folder of them; its trials tell durations and noise.
    """
    window = plan.study.seconds or (lambda levels: 5.0)
    planned = [window(dict(one.levels)) for block in plan.design.order for one in _of(plan, block)]
    seconds = sum(planned) + OVERHEAD * len(planned)
    if earlier is None:
        return Estimate(seconds, None, "no earlier campaign was named")
    try:
        found = dataset.load(project(earlier))
    except DatasetError as error:
        return Estimate(seconds, None, error.what)
    sd = noise(found.ok, list(plan.study.factors))
    if sd is None:
        return Estimate(seconds, None, "the earlier campaign has too few doubled trials")
    margin = decidable_margin(sd, plan.blocks) if plan.blocks >= 2 else None
    return Estimate(seconds, margin, f"campaign {found.path.name}")


def _of(plan: Plan, block: tuple[int, ...]) -> list[Condition]:
    return [plan.design.conditions[index] for index in block]


def noise(trials: pd.DataFrame, factors: list[str]) -> float | None:
    """Return the pooled SD of the log ratio of twin trials in a block; None under 3 pairs.

    Conditions differ in noise, so the largest of their values is the one that is promised.
    """
    column = next((name for name in trials.columns if name.endswith("_ns_median")), None)
    if column is None or not {"copy", "block", *factors} <= set(trials.columns):
        return None
    wide = trials.pivot_table(index=[*factors, "block"], columns="copy", values=column)
    if not {1, 2} <= set(wide.columns):
        return None
    ratios = (wide[1] / wide[2]).dropna().map(math.log)
    found = [group.std(ddof=1) for _, group in ratios.groupby(level=factors) if len(group) >= 3]
    return max(map(float, found)) if found else None
