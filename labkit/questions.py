"""The questions of `labkit ask`: parts of studies that are small enough for minutes."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labkit.campaign.budget import LOOKS_FACTOR, WORTH, Candidate, costs_of, looks_of, rows_of
from labkit.campaign.looks import ALPHA, GIVE_UP_AT, baselines_of, deciding_blocks, log_tables
from labkit.dataset import Dataset
from labkit.errors import DatasetError, UsageError, suggestion
from labkit.paths import project

#: A planned condition whose trials nobody has timed yet takes so many seconds.
UNKNOWN_SECONDS = 4.0
#: Fewer blocks decide nothing, and more take longer than minutes.
FEWEST, MOST = 6, 80


class Question(BaseModel):
    """A part of a study: its conditions, what is compared, and the notebook's parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str
    study: str
    #: A column of trials.
    outcome: str
    #: Levels that all conditions share.
    where: dict[str, str]
    over: list[dict[str, str]]
    #: In place of the study's.
    baseline: dict[str, str] = {}
    #: The parameter that has the networks of the placements; empty where there is none.
    networks: str = ""
    parameters: dict[str, Any] = {}

    @property
    def only(self) -> list[dict[str, str]]:
        """The levels of each condition."""
        return [{**self.where, **levels} for levels in self.over]

    def on(self, placements: Sequence[str]) -> Question:
        """Return the question for other placements, the first of which is the baseline.

        Raises
        ------
        UsageError
            The question does not compare placements, or fewer than two are named.
        """
        if any(list(levels) != ["placement"] for levels in self.over):
            raise UsageError("this question does not compare placements", where=self.title)
        if len(set(placements)) < 2:
            raise UsageError(
                "two placements or more are compared", remedy='"docker host" "docker bridge"'
            )
        parameters = dict(self.parameters)
        if self.networks:
            names = [name.split()[-1] for name in placements if not name.startswith("bare")]
            parameters[self.networks] = list(dict.fromkeys(names))
        return self.model_copy(
            update={
                "over": [{"placement": name} for name in placements],
                "baseline": {"placement": placements[0]},
                "parameters": parameters,
            }
        )

    def blocks(self, seconds: float, earlier: Dataset | None) -> int:
        """Return how many blocks fit into a time, by the trials of an earlier campaign."""
        known = {} if earlier is None else self.costs(earlier)
        block = sum(known.values()) + UNKNOWN_SECONDS * (len(self.over) + 1 - len(known))
        return min(MOST, max(FEWEST, int(seconds / block)))

    def conditions(self, campaign: Dataset) -> dict[str, Mapping[str, str]]:
        """Return the levels of its conditions in a campaign by their labels."""
        return {
            label: levels
            for levels, label in rows_of(campaign)
            if any(part.items() <= levels.items() for part in self.only)
        }

    def costs(self, campaign: Dataset) -> dict[str, float]:
        """Return the seconds in a block of its conditions that a campaign measured, by label."""
        seconds = costs_of(campaign)
        return {label: seconds[label] for label in self.conditions(campaign) if label in seconds}

    def needed(self, campaign: Dataset) -> dict[str, float]:
        """Return how many blocks decide each condition, by label; infinity: a campaign cannot."""
        levels = self.conditions(campaign)
        baseline = self.baseline or campaign.plan["baseline"]
        pairs = baselines_of(levels, baseline)
        tables = dict(log_tables(campaign, [self.outcome]))
        logs = tables[self.outcome].logs if tables else pd.DataFrame()
        margin = float(campaign.plan["margin"])
        numbers = {}
        for label, base in pairs.items():
            # A condition that never succeeded does not say how many blocks it takes.
            both, needed = logs.reindex(columns=[label, base]).dropna(), None
            if len(both) >= 2:
                ratios = (both[label] - both[base]).to_numpy()
                needed = deciding_blocks(ratios, margin, ALPHA / len(pairs))
            numbers[label] = math.inf if needed is None else float(needed)
        return numbers

    def decide(self, blocks: int) -> dict[str, Any]:
        """Return the parameter `decide` of a campaign of so many blocks."""
        return {
            "looks": looks_of(blocks),
            "claims": [],
            "only": self.only,
            "outcomes": [self.outcome],
            **({"baseline": self.baseline} if self.baseline else {}),
        }


class _Entry(Question):
    """A question of the file, with what another tool and the rig `one-host` change in it."""

    tool: dict[str, dict[str, Any]] = {}
    one_host: dict[str, Any] = Field(default={}, alias="one-host")


def load_questions(rig: str = "") -> dict[str, dict[str, Question]]:
    """Return every question by name and tool, as asked on a rig.

    The tool ``""`` is the study's own.

    Raises
    ------
    DatasetError
        The file is missing or wrong.
    """
    path = project("notebooks/questions.toml")
    try:
        entries = {
            name: _Entry.model_validate(entry)
            for name, entry in tomllib.loads(path.read_text()).items()
        }
        return {name: _by_tool(entry, rig) for name, entry in entries.items()}
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        raise DatasetError(
            "the questions cannot be read", where=str(path), why=str(error)
        ) from None


def _by_tool(entry: _Entry, rig: str) -> dict[str, Question]:
    own = entry.model_dump(exclude={"tool", "one_host"})
    here = entry.one_host if rig == "one-host" else {}
    return {
        tool: Question.model_validate({**own, **changes})
        for tool, changes in {"": here, **entry.tool}.items()
    }


def choose(questions: Mapping[str, Mapping[str, Question]], name: str, tool: str) -> Question:
    """Return the question of a name, asked of a tool.

    Raises
    ------
    UsageError
        There is no such question or tool.
    """
    if name not in questions:
        raise UsageError(f"no question {name!r}", remedy=suggestion(name, questions))
    tools = questions[name]
    if tool not in tools:
        known = [*filter(None, tools)] or ["the study's own, which needs no --tool"]
        raise UsageError(
            f"no tool {tool!r} for the question {name!r}", remedy=suggestion(tool, known)
        )
    return tools[tool]


def candidate(question: Question, campaign: Dataset, blocks: int) -> Candidate:
    """Return a question as something to measure within a budget, in at most so many blocks.

    By the noise of an earlier campaign, a condition is measured until the look that decides it, or
    gives it up, and the baseline as long as any. What is given up is worth nothing.
    """
    looks = looks_of(blocks)
    needed = {label: LOOKS_FACTOR * n for label, n in question.needed(campaign).items()}
    measured = {
        label: looks[0]
        if n > GIVE_UP_AT * blocks
        else next((at for at in looks if at >= n), blocks)
        for label, n in needed.items()
    }
    longest = max(measured.values(), default=blocks)
    seconds = {
        label: each * measured.get(label, longest)
        for label, each in question.costs(campaign).items()
    }
    worth = WORTH["headline"] * sum(n <= blocks for n in needed.values())
    return Candidate(question.title, question.study, blocks, seconds, worth)
