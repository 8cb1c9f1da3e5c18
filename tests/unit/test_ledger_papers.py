"""The papers' claims against the plans of the reference, and where all of it was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from memory_campaigns import REAL, Campaign, record

from labkit.claims.cells import Measured
from labkit.claims.ledger import ledger
from labkit.claims.schema import Cell, Claim, Claims, Level, load_claims
from labkit.dataset import Dataset, load
from labkit.paths import project

#: Levels of a curve that names none.
LEVELS = (1, 2, 4, 8, 16)
SAMPLES = 1000  # what the 99.9 % quantile takes
STUDIES = load_claims().studies


@pytest.fixture(scope="module")
def papers() -> Claims:
    return load_claims()


@cache
def reference(study: str) -> Dataset:
    return load(project(f"data/reference/{study}"))


def cells_of(claim: Claim) -> Iterator[Cell]:
    """Yield every cell of a claim."""
    over = getattr(claim, "over", "")
    for at in claim.at_each():
        for cell in claim.complete_cells().values() or [claim.where]:
            for level in (claim.levels or LEVELS) if over else [None]:
                yield {**cell, **at} | ({over: level} if over else {})


def everything(study: str, claims: Claims, blocks: int = 5) -> Campaign:
    """Return a campaign that has every cell of the claims of a study, and its metrics."""
    rng = np.random.default_rng(1)
    levels = reference(study).plan["factors"]
    about = [one for one in claims if one.study == study]
    conditions = {
        tuple((name, words(cell.get(name, levels[name][0]))) for name in levels)
        for one in about
        for cell in cells_of(one)
    }
    metrics = {one.metric for one in about if not one.statistic}
    records, samples = [], {}
    for block in range(1, blocks + 1):
        for position, condition in enumerate(sorted(conditions), 1):
            values = {name: float(rng.lognormal(0, 0.05)) for name in sorted(metrics)}
            records.append(record(block, position, dict(condition), values, n_samples=SAMPLES))
            drawn = 1e5 * rng.lognormal(0, 0.3, SAMPLES)
            samples[records[-1]["trial"]] = drawn.astype(np.int64)
    factors = {name: sorted({dict(one)[name] for one in conditions}) for name in levels}
    plan = {"study": study, "factors": factors, "infeasible": [], "settings": {}, "rig": REAL}
    return Campaign(plan, records, samples)


def words(level: Level) -> str:
    return level if isinstance(level, str) else f"{level:g}"


@pytest.mark.parametrize("study", STUDIES)
def test_every_claim_is_written_in_the_words_of_its_study(study: str, papers: Claims) -> None:
    dataset = reference(study)
    about = [one for one in papers if one.study == study]
    measured = Measured(dataset, about)
    (notebook,) = project("notebooks/studies").glob(f"*-{study}.ipynb")
    sources = [notebook, *project("notebooks/profiles").glob(f"*-{study}.*.yaml")]
    text = " ".join(path.read_text() for path in sources)
    declared = set(re.findall(r"[0-9]+", text))
    sampled = set().union(*dataset.sampled.values())
    for claim in about:
        measured.check(claim)
        # A metric is measured whatever the conditions were.
        assert claim.metric in (sampled if claim.statistic else dataset.ok.columns), claim.id
        cells = cells_of(claim) if getattr(claim, "levels", True) else [claim.where]
        for name, level in {pair for cell in cells for pair in cell.items()}:
            # A level that the reference did not measure is one of those that the study declares.
            known = {*map(words, measured.known[name]), *map(str, dataset.trials.get(name, []))}
            assert words(level) in known or words(level) in declared, (claim.id, name, level)
        # The observer is a treatment: a claim says whether it is about trials that were captured.
        assert (
            all("capture" in cell for cell in cells_of(claim))
            or "capture" not in dataset.plan["factors"]
        )


def test_no_claim_of_the_papers_is_an_error_or_cannot_be_measured(papers: Claims) -> None:
    rows = ledger([everything(name, papers) for name in papers.studies], claims=papers)
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
