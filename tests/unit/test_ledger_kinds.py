"""Synthetic campaigns drive every kind of claim to every one of its results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from claim_files import claim, claims
from memory_campaigns import PLACEMENTS, REAL, SIZES, campaign, fail

from labkit.claims.ledger import RESULTS, ledger
from labkit.claims.schema import KINDS, Needs

A, B, C, D = ({"placement": name} for name in PLACEMENTS)
AT = {"size_b": 4}
PAIR: dict[str, Any] = {"where": AT, "condition": B, "baseline": A}
CURVE: dict[str, Any] = {"where": A, "over": "size_b"}
SMALL = {"placement": PLACEMENTS[:2], "size_b": ["4"]}
VIRTUAL = REAL | {"shared_kernel": True, "capabilities": {"separate-machines": "one kernel"}}


def means(b: float = 1.0, c: float = 1.0, d: float = 1.0):
    """Return a truth that differs by placement only."""
    values = dict(zip(PLACEMENTS, (1.0, b, c, d), strict=True))
    return lambda placement, size: values[placement]


#: Of each kind: the claim, a truth under which it holds, and one under which it fails.
CASES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "difference": ({**PAIR, "direction": "higher", "at_least": 1.05}, means(1.2), means(1.02)),
    "equivalence": (PAIR, means(1.0), means(1.05)),
    "ratio": ({**PAIR, "low": 0.75, "high": 0.85}, means(0.8), means(0.9)),
    "order": (
        {"where": AT, "cells": (A, B, C), "direction": "increasing"},
        means(1.1, 1.2),
        means(1.1, 1.0),
    ),
    "contrast": (
        {**PAIR, "condition2": D, "baseline2": C, "direction": "higher"},
        means(1.3, 1.0, 1.1),
        means(1.0, 1.0, 1.1),
    ),
    "fixed-offset": (
        {"condition": B, "baseline": A, "over": "size_b"},
        lambda placement, size: 100 + 5 * size + 30 * (placement == PLACEMENTS[1]),
        lambda placement, size: 100 + 5 * size + (30 + 2 * size) * (placement == PLACEMENTS[1]),
    ),
    "linear": (
        {**CURVE, "direction": "increasing"},
        lambda placement, size: 100 + 10 * size,
        lambda placement, size: 100 + size**3,
    ),
    "monotone": (
        {**CURVE, "direction": "decreasing"},
        lambda placement, size: 100 / size,
        lambda placement, size: 100 / size if size < 16 else 20,
    ),
    "knee": (
        {**CURVE, "low": 5, "high": 7},
        lambda placement, size: 100 / min(size, 6),
        lambda placement, size: 100 / min(size, 3),
    ),
    "bound": ({"condition": A | AT, "high": 10, "unit": "1/s"}, lambda p, s: 9, lambda p, s: 12),
    "range-of-ratios": (
        {"where": AT, "conditions": (B, C), "baseline": {**A, **AT}, "low": 1, "high": 1.5},
        means(1.2, 1.3),
        means(1.2, 1.7),
    ),
}


def result_of(kind: str, found: Any, **fields: Any) -> Any:
    about = CASES[kind][0] | fields
    rows = ledger(found, claims=claims(claim(kind, **about)))
    assert len(rows) == 1
    return rows.iloc[0]


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(KINDS)


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("wanted", RESULTS)
def test_every_kind_comes_to_every_result(kind: str, wanted: str) -> None:
    _, holds, fails = CASES[kind]
    row = result_of(kind, **given(wanted, holds, fails))
    assert row["result"] == wanted, row["why"]
    assert row["why"]
    measured = wanted not in ("not measured", "error")
    assert math.isfinite(row["estimate"]) is measured
    assert (row["setting"] == "unsuitable") is (wanted == "not decidable on this rig")
    if measured:
        assert row["low"] <= row["estimate"] <= row["high"]
        undecided = wanted == "not decidable on this rig"
        assert bool(row["p_replicates"] < 0.05) is (wanted == "replicated" or undecided)
        assert bool(row["p_replicates_adjusted"] < 0.05) is (wanted == "replicated")
        assert math.isnan(row["p_replicates_adjusted"]) is undecided  # outside of the family
        assert bool(row["p_contradicts_adjusted"] < 0.05) is (wanted == "contradicted")


def given(wanted: str, holds: Any, fails: Any) -> dict[str, Any]:
    """Return a campaign, and fields of the claim, that lead to a result."""
    if wanted == "contradicted":
        return {"found": campaign(fails)}
    if wanted == "undecided":
        return {"found": campaign(holds, noise=1.0, seed=3)}
    if wanted == "not measured":
        found = campaign(holds)
        fail(found, lambda one: one["levels"]["placement"] == PLACEMENTS[0])
        return {"found": found}
    found = campaign(holds, rig=VIRTUAL if wanted == "not decidable on this rig" else REAL)
    if wanted == "error":
        found.records[3]["metrics"]["rate"] = math.inf
        assert found.records[3]["levels"] == {"placement": PLACEMENTS[0], "size_b": "4"}
    alone = wanted == "not decidable on this rig"
    needs = Needs(capabilities=("separate-machines",)) if alone else Needs()
    return {"found": found, "needs": needs}


@pytest.mark.parametrize("kind", CASES)
def test_few_blocks_are_a_pilot_however_clear(kind: str) -> None:
    row = result_of(kind, campaign(CASES[kind][1], blocks=4))
    assert row["result"] == "undecided" and row["why"].startswith("pilot: 4 complete blocks")
    single = result_of(kind, campaign(CASES[kind][1], blocks=1))
    assert single["result"] == "undecided" and not single["p_replicates"] < 0.05
    assert math.isnan(single["low"])


@pytest.mark.parametrize("kind", CASES)
def test_copies_and_a_lost_trial_change_no_result(kind: str) -> None:
    _, holds, fails = CASES[kind]
    for truth, wanted in ((holds, "replicated"), (fails, "contradicted")):
        found = campaign(truth, copies=2)
        fail(found, lambda one: one["block"] == 3 and one["levels"]["placement"] == PLACEMENTS[0])
        row = result_of(kind, found)
        assert row["result"] == wanted, row["why"]
        assert row["n_blocks"] == 9 and "attempts failed" in row["why"]


@pytest.mark.parametrize("kind", CASES)
def test_values_without_variance_are_decided(kind: str) -> None:
    found = campaign(CASES[kind][1], noise=0.0)
    for one in found.records:
        one["metrics"]["rate"] = CASES[kind][1](
            one["levels"]["placement"], float(one["levels"]["size_b"])
        )
    row = result_of(kind, found)
    # A profile has no interval where nothing varies.
    assert row["result"] == ("undecided" if kind == "knee" else "replicated"), row["why"]


@pytest.mark.parametrize("kind", CASES)
def test_zeros_have_no_ratio_and_are_no_error(kind: str) -> None:
    found = campaign(CASES[kind][1])
    for one in found.records:
        if one["block"] % 2:
            one["metrics"]["rate"] = 0.0
    row = result_of(kind, found)
    assert row["result"] in RESULTS[:3]
    if kind != "linear":
        assert "a value of 0 has no logarithm" in row["why"]


@pytest.mark.parametrize("kind", CASES)
def test_a_claim_of_several_levels_holds_at_each(kind: str) -> None:
    _, holds, fails = CASES[kind]
    extra = {"placement": PLACEMENTS, "size_b": [str(one) for one in SIZES], "wait": ["a", "b"]}
    row = result_of(kind, campaign(holds, factors=extra, seed=2), each={"wait": ("a", "b")})
    assert row["result"] == "replicated", row["why"]
    both = campaign(holds, factors=extra, seed=2)
    worse = {one["trial"]: one for one in campaign(fails, factors=extra).records}
    for one in both.records:
        if one["levels"]["wait"] == "b":
            one["metrics"] = worse[one["trial"]]["metrics"]
    row = result_of(kind, both, each={"wait": ("a", "b")})
    assert row["result"] == "contradicted" and row["why"].startswith("b: "), row["why"]
    assert result_of(kind, both, each={"wait": ("a", "c")})["result"] == "not measured"


@pytest.mark.parametrize(
    ("truth", "result", "said"),
    [
        (means(1.2, 1.2, 0.9), "replicated", "and so does 1 more"),
        (means(1.2, 0.9, 0.9), "contradicted", "nor does 1 more"),
        (means(1.2, 1.2, 1.0), "replicated", "and so does 1 more"),
        (means(1.2, 1.0, 1.0), "undecided", "is open"),
    ],
)
def test_most_is_more_than_half(truth: Any, result: str, said: str) -> None:
    others = {"where": AT, "conditions": (B, C, D), "baseline": A, "low": 1.0}
    row = result_of("range-of-ratios", campaign(truth), **others, most=True)
    assert (row["result"], said in row["why"]) == (result, True), row["why"]
    # All of them hold nowhere here.
    assert result_of("range-of-ratios", campaign(truth), **others)["result"] != "replicated"


def test_what_decides_is_said() -> None:
    _, holds, fails = CASES["order"]
    row = result_of("order", campaign(fails))
    assert "docker c against docker b" in row["why"] and "does not lie above 1" in row["why"]
    assert row["estimate"] == pytest.approx(1 / 1.1, rel=0.02)
    row = result_of("order", campaign(holds))
    assert row["why"].endswith("and so does the other (p < 0.0001)")
    row = result_of("fixed-offset", campaign(CASES["fixed-offset"][1]))
    assert "growth as a share of the baseline" in row["why"] and abs(row["estimate"]) < 0.02
    row = result_of("knee", campaign(CASES["knee"][1]))
    assert row["estimate"] == pytest.approx(6, rel=0.1) and row["unit"] == "B"


def test_a_place_of_a_knee_needs_a_knee() -> None:
    row = result_of("knee", campaign(lambda placement, size: 100 / size), low=0.5, high=40)
    assert row["result"] == "undecided" and "that there is a knee was not shown" in row["why"]


def test_too_few_levels_of_a_curve_are_not_measured() -> None:
    few = {"placement": PLACEMENTS, "size_b": ["1", "4", "16"]}
    row = result_of("knee", campaign(CASES["knee"][1], factors=few))
    assert row["result"] == "not measured"
    row = result_of("linear", campaign(CASES["linear"][1], factors=few | {"size_b": ["1", "4"]}))
    assert row["result"] == "undecided" and "two levels have no curvature" in row["why"]
    row = result_of("monotone", campaign(CASES["monotone"][1], factors=few | {"size_b": ["4"]}))
    assert row["result"] == "not measured" and "1 level of the size" in row["why"]


def test_levels_of_a_curve_are_those_of_all_campaigns() -> None:
    which, truth = claim("monotone", **CASES["monotone"][0]), CASES["monotone"][1]
    low, high = campaign(truth, seed=1), campaign(truth, seed=2)
    fail(low, lambda one: float(one["levels"]["size_b"]) > 4)
    fail(high, lambda one: float(one["levels"]["size_b"]) < 4)
    row = ledger([low, high], claims=claims(which)).iloc[0]
    assert row["result"] == "not measured" and "1 level of the size" in row["why"]


def test_a_quota_of_none_is_no_place_for_a_knee() -> None:
    sizes = ["0", "1", "2", "3", "6", "12"]
    truth = CASES["knee"][1]
    found = campaign(
        lambda placement, size: truth(placement, size or 100),
        factors={"placement": PLACEMENTS, "size_b": sizes},
    )
    assert result_of("knee", found)["result"] == "replicated"


def test_how_many_blocks_it_would_take_is_said_and_enough() -> None:
    row = result_of("difference", campaign(means(1.05), blocks=6, noise=0.05), at_least=1.0)
    assert row["result"] == "undecided", row["why"]
    blocks = int(row["why"].split("about ")[1].split()[0].replace(",", ""))
    assert blocks > 6
    truth = means(row["estimate"])
    spread = (math.log(row["high"]) - math.log(row["estimate"])) / 2.5706 * math.sqrt(6)
    found = [
        result_of(
            "difference",
            campaign(truth, blocks=blocks, noise=spread / math.sqrt(2), seed=seed, factors=SMALL),
            at_least=1.0,
        )["result"]
        for seed in range(60)
    ]
    assert 0.6 < np.mean(np.array(found) == "replicated") < 0.95  # the power is 0.8


def bowed(placement: str, size: float) -> float:
    """Return a parabola that deviates from its line by a tenth of the line's rise."""
    sizes = np.array(SIZES, dtype=float)
    fit = np.polyfit(sizes, sizes**2, 1)
    most = np.abs(sizes**2 - np.polyval(fit, sizes)).max()
    return float(100 + 10 * size + 0.1 * 10 * 15 / most * (size**2 - np.polyval(fit, size)))


#: Of each kind: the claim and a truth on the edge of its region.
EDGES: dict[str, tuple[dict[str, Any], Any]] = {
    "difference": ({"at_least": 1.05}, means(1.05)),
    "equivalence": ({"margin": 0.02}, means(1.02)),
    "ratio": ({}, means(0.85)),
    "order": ({}, means(1.0, 1.2)),
    "contrast": ({}, means(1.1, 1.0, 1.1)),
    "fixed-offset": (
        {},
        # Grows by 0.02 of the baseline's mean over the sizes, 100.
        lambda placement, size: 100 + (30 + 2 * size / 15) * (placement == PLACEMENTS[1]),
    ),
    "linear": ({"margin": 0.1}, bowed),
    "knee": ({"low": 2, "high": 6}, lambda placement, size: 100 / min(size, 6)),
    "monotone": ({"levels": (1, 2, 3)}, lambda placement, size: 100 if size < 3 else 50),
    "bound": ({}, lambda placement, size: 10),
    "range-of-ratios": ({}, means(1.2, 1.5)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_edge_it_is_called_replicated_at_most_at_alpha(kind: str) -> None:
    """One campaign of 120 metrics, which are 120 experiments, with a claim on each."""
    fields, truth = EDGES[kind]
    names = [f"m{number}" for number in range(120)]
    base = claim(kind, **{**CASES[kind][0], **fields})
    several = [base.model_copy(update={"id": f"small-{name}", "metric": name}) for name in names]
    found = campaign(truth, blocks=6, noise=0.01, metrics=names, seed=11)
    rows = ledger(found, claims=claims(*several))
    assert (rows["result"] != "error").all()
    most = 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(names))
    assert np.mean(rows["p_replicates"] < 0.05) <= most
    assert (rows["result"] == "replicated").sum() <= 1  # after Holm's correction


def test_a_knee_that_is_not_there_is_not_shown_as_one() -> None:
    row = result_of("knee", campaign(lambda placement, size: 100 / size))
    assert row["result"] == "contradicted"
    assert "that there is a knee was not shown" in row["why"]
