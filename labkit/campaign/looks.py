"""Planned looks: what a campaign has decided after so many blocks, and which conditions it drops.

At a look every question of the campaign is asked of the blocks so far: each claim that the plan is
to decide, and each condition against its baseline. A question that is decided, or would take more
than `GIVE_UP_AT` times the planned blocks, needs no more trials, and a condition that no open
question needs is dropped. The levels are those of `labkit.analysis.sequential`. Giving a question
up costs power, and no error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.checks import blocks_across_sessions
from labkit.analysis.compare import LogTable, contrasts, decide, log_table
from labkit.analysis.power import blocks_for, blocks_to_detect, least_blocks
from labkit.analysis.sequential import Floats, Looks, campaign_share
from labkit.answers import Answer
from labkit.claims.cells import Measured, NotMeasured
from labkit.claims.estimators import evaluate
from labkit.claims.ledger import blocks_needed, blocks_text, p_values, reachable
from labkit.claims.schema import Claim
from labkit.claims.setting import setting
from labkit.dataset import Dataset, dropped_before
from labkit.design import condition_label
from labkit.errors import LabkitError
from labkit.units import level_words

ALPHA = 0.05
#: A question that takes so many times the planned blocks is given up.
GIVE_UP_AT = 3

Levels = Mapping[str, str]


@dataclass(frozen=True)
class Question:
    """A question at a look.

    Parameters
    ----------
    name : str
        The id of a claim, or a condition and its baseline.
    state : {"decided", "open", "given up"}
        ``given up``: it would take more than `GIVE_UP_AT` times the planned blocks, or no number
        of blocks decides it on this rig.
    result : str
        What was decided, or why it is not.
    conditions : tuple of str
        The labels of the conditions that it needs.
    """

    name: str
    state: str
    result: str
    conditions: tuple[str, ...]
    #: Of a comparison: its `labkit.answers.Answer` as a record.
    answer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Questions:
    """What a campaign is to decide, and when it looks.

    Parameters
    ----------
    looks : Looks
        Numbers of blocks at which it looks.
    claims : sequence of Claim
        Claims that are to be decided, of this study and of others: those of one source are one
        family.
    outcomes : sequence of str
        Columns of trials; conditions are compared by the first that they have.
    """

    looks: Looks
    claims: Sequence[Claim]
    outcomes: Sequence[str] = ()
    #: What the papers' hosts had, by the claim's id (`Claims.paper_hosts`).
    hosts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def take(self, campaign: Dataset, blocks: int) -> dict[str, Any]:
        """Return the record of a look after so many blocks, as ``looks.json`` holds it."""
        part = campaign.part(lambda record: record["block"] <= blocks)
        conditions = {
            condition_label(one["levels"]): one["levels"] for one in part.plan["conditions"]
        }
        earlier = [look for look in campaign.looks if look["blocks"] < blocks]
        ends = [look["blocks"] for look in earlier if look["dropped"]]
        level = self.looks.level(ALPHA, *ends, blocks)
        questions = [*self._claims(part, conditions), *self._comparisons(part, conditions, level)]
        # What needed a dropped condition was settled then; with others it could only waver.
        dropped = dropped_before(earlier, blocks)
        settled = {one["name"]: one for look in earlier for one in look["questions"]}
        questions = [
            Question(**settled[one.name])
            if one.name in settled and dropped.intersection(one.conditions)
            else one
            for one in questions
        ]
        needed = {name for one in questions if one.state == "open" for name in one.conditions}
        return {
            "blocks": blocks,
            "questions": [asdict(one) for one in questions],
            "dropped": [label for label in conditions if label not in needed],
        }

    def _claims(self, part: Dataset, conditions: Mapping[str, Levels]) -> Iterator[Question]:
        about = [claim for claim in self.claims if claim.study == part.plan["study"]]
        measured = Measured(part, about)
        rows = measured_rows(conditions.values(), [part])
        for claim in about:
            family = sum(other.source == claim.source for other in self.claims)
            state, result = self._claim(claim, measured, family)
            yield Question(claim.id, state, result, needs(claim, rows))

    def _claim(self, claim: Claim, measured: Measured, family: int) -> tuple[str, str]:
        """Return state and result of a claim; the ledger corrects by Holm, and here is Bonferroni.

        So what is decided here is decided in the ledger too.
        """
        try:
            evaluation = evaluate(claim, measured)
            hosts = self.hosts.get(claim.id)
            where = setting(claim, measured.dataset, evaluation.samples, {}, hosts)
        except (NotMeasured, LabkitError) as reason:
            return "given up", str(reason)
        if where[0] == "unsuitable":
            return "given up", f"not decidable on this rig: {where[1]}"
        if evaluation.limited:
            return "given up", evaluation.limited
        n, alpha = evaluation.n_blocks, ALPHA * campaign_share(1) / family
        least, total = least_blocks(ALPHA), self.looks.blocks[-1]
        narrow = not all(reachable(part, total, ALPHA) for part in evaluation.deciding)
        found = p_values(evaluation, self.looks, n)
        if n >= least and found["p_replicates"] < alpha:
            return "decided", "replicated"
        # What the noise leaves no region for could only ever be contradicted.
        if n >= least and found["p_contradicts"] < alpha and not narrow:
            return "decided", "contradicted"
        level = self.looks.level(alpha, total)
        blocks = blocks_needed(evaluation.deciding, level, least)
        # On fewer blocks than a verdict takes, the noise is not known well enough to give up.
        if n >= least and blocks is not None and blocks > GIVE_UP_AT * total:
            return "given up", f"{blocks_text(blocks)} would decide, and {total} are planned"
        return "open", "" if blocks is None else f"{blocks_text(blocks)} would decide"

    def _comparisons(
        self, part: Dataset, conditions: Mapping[str, Levels], level: float
    ) -> Iterator[Question]:
        """Yield each condition against its baseline, by the test of a page; they are one family."""
        baseline, margin = part.plan.get("baseline", {}), part.margin
        pairs = baselines_of(conditions, baseline)
        names = short_names(conditions)
        tables = log_tables(part, self.outcomes) if pairs and len(part.ok) else []
        rows: dict[str, dict[str, Any]] = {}
        for label, other in pairs.items():
            both = [one for one in tables if {label, other} <= set(one[1].logs)]
            if not both:
                continue
            metric, table = both[0]
            pair = table.logs[[other, label]]
            ratios = (pair[label] - pair[other]).dropna().to_numpy(dtype=np.float64)
            if len(ratios) < 2:
                continue
            needed = deciding_blocks(ratios, margin, level / len(pairs))
            row = contrasts(replace(table, logs=pair), other, margin=margin, alpha=level)[label]
            rows[label] = {**row, "condition": label, "metric": metric, "needed": needed}
        verdicts = decide([*rows.values()], alpha=level).to_dict("records") if rows else []
        verdict_of = dict(zip(rows, verdicts, strict=True))
        for label, other in pairs.items():
            title = f"{names[label]} against {names[other]}"
            if label not in rows:
                yield Question(title, "given up", "fewer than 2 blocks of both", (label, other))
                continue
            answer = Answer.from_comparison(
                {str(name): value for name, value in verdict_of[label].items()},
                metric=rows[label]["metric"],
                condition=names[label],
                baseline=names[other],
                margin=margin,
            )
            answer = replace(answer, needed=rows[label]["needed"])
            state = "open" if answer.verdict == "undecided" else "decided"
            if state == "open" and answer.n_blocks >= least_blocks(level):
                most = GIVE_UP_AT * self.looks.blocks[-1]
                if answer.needed is None or answer.needed > most:
                    state = "given up"
            yield Question(title, state, answer.sentence, (label, other), answer.as_record())


def log_tables(campaign: Dataset, outcomes: Iterable[str]) -> list[tuple[str, LogTable]]:
    """Return each outcome that was measured, with its logs: blocks by the labels of conditions.

    As on pages, without blocks that span sessions, and with the trials that never succeeded.
    """
    factors = [*campaign.plan["factors"]]
    lost = campaign.lost[["trial", "block", "status", *factors]]
    rows = pd.concat([campaign.ok, lost], ignore_index=True)
    spans = rows["block"].isin(blocks_across_sessions(campaign.ok))
    rows = rows[~spans & ~rows["trial"].str.contains("/")]
    rows = rows.assign(condition=[condition_label(row) for row in rows[factors].to_dict("records")])
    tables = []
    for name in outcomes:
        if name in rows and (rows[name] > 0).any():
            tried = rows[(rows["status"] != "ok") | (rows[name] > 0)]
            table = log_table(tried, value=name, condition="condition")
            # Lost trials of a condition with another outcome leave a column without values.
            tables.append((name, replace(table, logs=table.logs.dropna(axis=1, how="all"))))
    return tables


def baselines_of(conditions: Mapping[str, Levels], baseline: Levels) -> dict[str, str]:
    """Return the label of each condition's baseline, of those that are none themselves."""
    labels = {tuple(levels.values()): label for label, levels in conditions.items()}
    bases = {
        label: labels.get(tuple({**levels, **baseline}.values()), label)
        for label, levels in conditions.items()
    }
    return {label: base for label, base in bases.items() if base != label}


def short_names(conditions: Mapping[str, Levels]) -> dict[str, str]:
    """Return a name of each condition by its label: the fewest levels that tell them apart."""
    rows = list(conditions.values())
    names = [name for name in rows[0] if len({levels[name] for levels in rows}) > 1]
    for name in reversed(names):
        fewer = [other for other in names if other != name]
        if len({tuple(levels[other] for other in fewer) for levels in rows}) == len(rows):
            names = fewer
    return {
        label: ", ".join(level_words(name, levels[name]) for name in names) or label
        for label, levels in conditions.items()
    }


def deciding_blocks(ratios: Floats, margin: float, alpha: float = ALPHA) -> int | None:
    """Return how many blocks tell two conditions apart, or equal within a margin; None: too many.

    Parameters
    ----------
    ratios : array of float, shape (blocks,)
        Log ratios so far.
    margin, alpha : float
        Relative difference that counts as equal, and the level.
    """
    sd, n = float(ratios.std(ddof=1)), len(ratios)
    different = math.expm1(abs(float(ratios.mean())))
    numbers = (
        blocks_for(margin, sd, alpha=alpha, pilot=n),
        blocks_to_detect(different, sd, alpha=alpha, pilot=n) if different > 0 else None,
    )
    return min((number for number in numbers if number is not None), default=None)


def measured_rows(
    conditions: Iterable[Levels], campaigns: Iterable[Dataset]
) -> list[tuple[Levels, str]]:
    """Return levels, each with the label of the condition whose trials measure them.

    A condition measures its own levels, and others in turns inside its trials, as campaigns show.
    """
    rows = [(dict(levels), condition_label(levels)) for levels in conditions]
    turns = {
        (tuple((record["levels"] | also["levels"]).items()), condition_label(record["levels"]))
        for campaign in campaigns
        for record in campaign.records
        for also in record.get("also", [])
    }
    return [*rows, *((dict(levels), label) for levels, label in sorted(turns))]


def needs(claim: Claim, rows: Sequence[tuple[Levels, str]]) -> tuple[str, ...]:
    """Return the labels of the conditions that a claim is about.

    Where nothing has a level of the claim, as of a factor that is measured in turns and never was,
    that level selects nothing.
    """
    cells = [
        {**cell, **at}
        for cell in (claim.complete_cells() or {"": claim.where}).values()
        for at in claim.at_each()
    ]
    selected: dict[str, None] = {}
    for cell in cells:
        labels = [label for levels, label in rows if _all_same(levels, cell)]
        if not labels:
            known = {
                name: level
                for name, level in cell.items()
                if any(name in levels and _same(levels[name], level) for levels, _ in rows)
            }
            labels = [label for levels, label in rows if _all_same(levels, known)]
        selected |= dict.fromkeys(labels)
    return tuple(selected)


def _all_same(levels: Levels, cell: Mapping[str, Any]) -> bool:
    # What is no factor is a setting, and the same in all conditions.
    return all(_same(levels[name], level) for name, level in cell.items() if name in levels)


def _same(label: object, level: object) -> bool:
    """Return whether a level's label is a claim's level: a number as a number, text as text."""
    if isinstance(level, int | float):
        try:
            return float(str(label)) == float(level)
        except ValueError:
            return False
    return str(label) == level
