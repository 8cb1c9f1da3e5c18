"""The papers' claims: each can be evaluated where everything that it is about was measured."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from memory_campaigns import REAL, Campaign, record

from labkit.claims.claim import Cell, Claim, StudyWords
from labkit.claims.ledger import ledger
from labkit.claims.reading import Claims, load_claims
from labkit.paths import project

#: Levels of a curve that names none.
LEVELS = (1, 2, 4, 8, 16)
SAMPLES = 1000  # what the 99.9 % quantile takes


@pytest.fixture(scope="module")
def papers() -> Claims:
    return load_claims()


def cells_of(claim: Claim) -> Iterator[Cell]:
    """Yield every cell of a claim."""
    for one in claim.versions():
        pairs = (one.condition, one.baseline, one.condition2, one.baseline2, *one.cells)
        for cell in [cell for cell in pairs if cell] or [one.where]:
            if one.over:
                yield from ({**cell, one.over: level} for level in one.levels or LEVELS)
            else:
                yield cell


def everything(study: StudyWords, claims: Claims, blocks: int = 5) -> Campaign:
    """Return a campaign that has every cell of the claims of a study."""
    rng = np.random.default_rng(1)
    conditions = {
        tuple(
            (name, str(cell.get(name, levels[0] if levels else 1)))
            for name, levels in study.factors.items()
        )
        for one in claims
        if one.study == study.name
        for cell in cells_of(one)
    }
    records, samples = [], {}
    for block in range(1, blocks + 1):
        for position, levels in enumerate(sorted(conditions), 1):
            metrics = {
                name: float(rng.lognormal(0, 0.05))
                for name, sort in study.metrics.items()
                if sort == "trial"
            }
            records.append(record(block, position, dict(levels), metrics, n_samples=SAMPLES))
            drawn = 1e5 * rng.lognormal(0, 0.3, SAMPLES)
            samples[records[-1]["trial"]] = drawn.astype(np.int64)
    factors = {name: sorted({dict(one)[name] for one in conditions}) for name in study.factors}
    plan = {"study": study.name, "factors": factors, "refusals": [], "settings": {}, "rig": REAL}
    return Campaign(plan, records, samples)


def test_no_claim_of_the_papers_is_an_error_or_cannot_be_measured(papers: Claims) -> None:
    studies = dict.fromkeys(one.study for one in papers)
    rows = ledger([everything(papers.studies[name], papers) for name in studies], claims=papers)
    wrong = rows[rows["result"].isin(["error", "not measured"])]
    assert wrong.empty, wrong[["id", "why"]].to_dict("records")
    assert rows["estimate"].notna().all() and rows["why"].ne("").all()


def test_the_reference_is_held_against_every_claim_without_an_error(papers: Claims) -> None:
    rows = ledger(project("data/reference/affinity-spinning"), claims=papers)
    assert rows["id"].tolist() == [one.id for one in papers]
    wrong = rows[rows["result"] == "error"]
    assert wrong.empty, wrong[["id", "why"]].to_dict("records")
    assert set(rows[rows["study"] != "affinity-spinning"]["result"]) <= {"not measured"}
    for row in rows[rows["study"] == "affinity-spinning"].to_dict("records"):
        needs = papers[row["id"]].needs
        if {"separate-machines", "nic-hardware", "isolated-cpus"} & set(needs.capabilities):
            assert row["setting"] == "unsuitable"
            assert row["result"] in ("not decidable on this rig", "not measured")
