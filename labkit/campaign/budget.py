"""Which questions and claims to measure in a given time: those that decide most.

What each takes is known from an earlier campaign on the same kind of rig: how many blocks would
decide it, which conditions it needs, and how long a trial of each lasts. They are chosen one by
one, each time the one that decides most for the time that it adds. A study is measured only with
its question, so that its page has an answer; its claims come after.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from labkit.analysis.power import least_blocks
from labkit.campaign.looks import measured_rows, needs
from labkit.claims.schema import Claim
from labkit.dataset import Dataset
from labkit.design import condition_label

#: What a decision is worth, by the claim's tier.
WORTH = {"headline": 3.0, "result": 1.0, "remark": 0.5}
#: Seconds before the first trial of a study: its rig and its images.
SETUP = 20.0
#: Looks take more blocks than a fixed design.
LOOKS_FACTOR = 1.2
#: A campaign with more blocks is no matter of minutes.
MOST_BLOCKS = 60
#: Blocks at which campaigns look, but for the last one.
LOOKS = (6, 12, 24, 48)


def looks_of(blocks: int) -> list[int]:
    """Return after how many blocks a campaign of so many looks."""
    return [n for n in LOOKS if n < blocks] + [blocks]


@dataclass(frozen=True)
class Candidate:
    """A claim or a question that could be measured, with what it takes.

    Parameters
    ----------
    name : str
        The id of the claim, or the title of the question.
    study : str
        What measures it.
    blocks : int
        How many blocks decide it.
    trials : mapping of str to float
        Seconds that the trials of a condition take in all, by its label.
    worth : float
        What its decision is worth.
    """

    name: str
    study: str
    blocks: int
    trials: Mapping[str, float]
    worth: float

    @property
    def seconds(self) -> float:
        """How long it takes alone."""
        return SETUP + sum(self.trials.values())


@dataclass(frozen=True)
class StudyPlan:
    """What is measured of one study."""

    study: str
    candidates: tuple[Candidate, ...] = ()

    @property
    def blocks(self) -> int:
        """The number of planned blocks."""
        return max(candidate.blocks for candidate in self.candidates)

    @property
    def looks(self) -> list[int]:
        """After how many blocks the campaign looks."""
        return looks_of(self.blocks)

    @cached_property
    def seconds(self) -> float:
        """How long it takes when each condition is dropped once its claims are decided."""
        if not self.candidates:
            return 0.0
        longest: dict[str, float] = {}
        for candidate in self.candidates:
            for label, seconds in candidate.trials.items():
                longest[label] = max(longest.get(label, 0.0), seconds)
        return SETUP + sum(longest.values())


@dataclass(frozen=True)
class BudgetPlan:
    """What is measured in a given time, and what is left out."""

    studies: tuple[StudyPlan, ...]
    #: Claims that take longer, with their seconds alone.
    left_out: tuple[Candidate, ...]

    @property
    def names(self) -> list[str]:
        """The names of all claims and questions that are to be decided."""
        every = (one.name for study in self.studies for one in study.candidates)
        return list(dict.fromkeys(every))


def plan_budget(
    seconds: float,
    claims: Iterable[Claim],
    rows: pd.DataFrame,
    campaigns: Mapping[str, Dataset],
    questions: Iterable[Candidate] = (),
) -> BudgetPlan:
    """Return what to measure in so many seconds.

    Parameters
    ----------
    seconds : float
        The time for measuring.
    claims : iterable of Claim
        All claims.
    rows : DataFrame
        The ledger of the earlier campaigns.
    campaigns : mapping of str to Dataset
        The earlier campaign of each study.
    questions : iterable of Candidate
        The questions of studies; one may come several times, with more blocks that decide more.
    """
    asking = [*questions]
    left = [*asking, *_candidates(claims, rows, campaigns)]
    asked: dict[str, set[str]] = {}
    for one in asking:
        asked.setdefault(one.study, set()).add(one.name)
    plans = {one.study: StudyPlan(one.study) for one in left}
    decided: dict[str, float] = {}
    while True:
        spent = sum(plan.seconds for plan in plans.values())
        best, best_value = None, 0.0
        for candidate in left:
            plan = plans[candidate.study]
            first = asked.get(candidate.study)
            if first and not plan.candidates and candidate.name not in first:
                continue
            longer = StudyPlan(plan.study, (*plan.candidates, candidate))
            added = longer.seconds - plan.seconds
            value = (candidate.worth - decided.get(candidate.name, 0.0)) / max(added, 0.1)
            if spent + added <= seconds and value > best_value:
                best, best_value = (candidate, longer), value
        if best is None:
            break
        left.remove(best[0])
        plans[best[1].study] = best[1]
        decided[best[0].name] = best[0].worth
    chosen = [plan for plan in plans.values() if plan.candidates]
    left_out: dict[str, Candidate] = {}
    for candidate in sorted(left, key=lambda candidate: candidate.seconds):
        if candidate.name not in decided:
            left_out.setdefault(candidate.name, candidate)
    return BudgetPlan(
        tuple(sorted(chosen, key=lambda plan: plan.seconds)), tuple(left_out.values())
    )


def _candidates(
    claims: Iterable[Claim], rows: pd.DataFrame, campaigns: Mapping[str, Dataset]
) -> list[Candidate]:
    """Return the claims that some time decides."""
    by_claim = rows.set_index("id")
    known = {
        study: (rows_of(campaign), costs_of(campaign)) for study, campaign in campaigns.items()
    }
    candidates: list[Candidate] = []
    for claim in claims:
        row = by_claim.loc[claim.id]
        blocks = row["blocks_needed"]
        if claim.study not in known or row["setting"] == "unsuitable" or pd.isna(blocks):
            continue
        levels, seconds = known[claim.study]
        labels = needs(claim, levels)
        # The ledger counts looks where the campaign had them.
        factor = 1.0 if campaigns[claim.study].plan.get("looks") else LOOKS_FACTOR
        planned = max(least_blocks(), math.ceil(factor * int(blocks)))
        trials = {label: planned * seconds[label] for label in labels if label in seconds}
        if planned <= MOST_BLOCKS and trials:
            candidates.append(Candidate(claim.id, claim.study, planned, trials, WORTH[claim.tier]))
    return candidates


def rows_of(campaign: Dataset) -> list[tuple[Mapping[str, str], str]]:
    """Return the levels that a campaign measures, each with the label of its condition."""
    conditions = [condition["levels"] for condition in campaign.plan["conditions"]]
    unique = {condition_label(levels): levels for levels in conditions}
    return measured_rows(unique.values(), [campaign])


def costs_of(campaign: Dataset) -> dict[str, float]:
    """Return the seconds of each condition in a block by its label, A/A replicates included."""
    seconds: dict[str, list[float]] = {}
    for record in campaign.records:
        if record["status"] == "ok":
            label = condition_label(record["levels"])
            seconds.setdefault(label, []).append(float(record["seconds"]))
    planned = (condition_label(condition["levels"]) for condition in campaign.plan["conditions"])
    runs = Counter(planned)
    return {label: float(np.median(of)) * runs[label] for label, of in seconds.items()}
