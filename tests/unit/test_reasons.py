"""Experiments on why a claim differs: what a setting does to it, and whether it is the reason."""

from __future__ import annotations

from typing import Any

import pytest
from claim_files import claim, claims
from memory_campaigns import PLACEMENTS, campaign, fail

from labkit.claims.cells import Measured
from labkit.claims.ledger import ledger
from labkit.claims.reasons import Reason, of_campaign, of_experiment
from labkit.claims.schema import CLAIM

A, B, C = ({"placement": name} for name in PLACEMENTS[:3])
#: The paper has 0.75 to 0.85.
RATIO = claim("ratio", condition=B, baseline=A, low=0.75, high=0.85)
ORDER = claim("order", cells=(A, B, C), direction="increasing")


def found(first: float, other: float, **more: Any) -> Reason:
    """Return what an experiment says whose ratio is `first` at one size and `other` at another."""
    (reason,) = of_experiment(
        measured({1.0: (1, first, 2), 2.0: (1, other, 2)}, **more), claims(RATIO)
    )
    return reason


def measured(values: dict[float, tuple[float, ...]], **more: Any) -> Any:
    return campaign(
        lambda placement, size: values[size][PLACEMENTS.index(placement)],
        factors={"placement": PLACEMENTS[:3], "size_b": ["1", "2"]},
        vary=["size_b"],
        claims=[RATIO.id],
        reason="small packets",
        margin=0.05,
        **more,
    )


@pytest.mark.parametrize(
    ("first", "other", "verdict"),
    [
        (1.2, 0.8, "it is the reason"),
        (1.2, 1.0, "it is a part of the reason"),
        (0.5, 0.6, "it is a part of the reason"),
        (1.2, 0.86, "it is at least a part of the reason"),
        (1.2, 0.6, "it is a reason: the result passes the published one"),
        (0.5, 1.2, "it is a reason: the result passes the published one"),
        (1.2, 1.3, "it is not the reason: the difference to the paper grows"),
        (0.5, 0.4, "it is not the reason: the difference to the paper grows"),
        (1.2, 1.2, "it is not the reason: the ratio changes by less than 5%"),
        (0.8, 1.2, "here there was no difference to the paper to explain"),
    ],
)
def test_a_setting_is_the_reason_or_a_part_of_it_or_not(
    first: float, other: float, verdict: str
) -> None:
    reason = found(first, other, noise=0.015 if other == 0.86 else 0.005)
    assert reason.verdict.startswith(verdict)
    assert reason.as_claimed.value == pytest.approx(first, rel=0.02)
    assert reason.instead.value == pytest.approx(other, rel=0.02)
    low, high = reason.change.interval()
    assert low < reason.change.value < high
    assert reason.change.value == pytest.approx(other / first, rel=0.03)


def test_noise_leaves_it_open_and_the_sentence_has_all_numbers() -> None:
    text = str(found(1.2, 1.1, noise=0.5))
    assert text.startswith("Tested: small packets. docker b against docker a: ")
    assert "with size 2 B in place of size 1 B" in text and "in 10 blocks" in text
    assert text.endswith("; whether it is the reason cannot be told.")


def test_a_result_that_stays_beyond_the_paper_has_another_reason_too() -> None:
    reason = found(1.3, 1.25, noise=0.07)
    low, high = reason.change.interval()
    assert low < 1 < high
    assert reason.verdict.startswith("it is at most a part of the reason")


def test_of_several_comparisons_the_furthest_from_the_paper_counts() -> None:
    values = {1.0: (1.0, 2.0, 1.0), 2.0: (1.0, 2.0, 3.0)}
    several = measured(values)
    several.plan["claims"] = [ORDER.id]
    (reason,) = of_experiment(several, claims(ORDER))
    assert reason.part == "docker c against docker b" and reason.verdict.startswith("it is the")
    assert reason.change.value == pytest.approx(3.0, rel=0.02)


def test_another_baseline_of_the_same_campaign_tells() -> None:
    rules = {"why": "the rules are on the host", "baseline": C, "metric": "other"}
    alike = claim("equivalence", condition=B, baseline=A, reasons=[rules])
    found = campaign(
        lambda placement, size: {"docker a": 1.0, "docker b": 1.2, "docker c": 1.2}[placement],
        factors={"placement": PLACEMENTS[:3]},
        metrics=["rate", "other"],
        margin=0.05,
    )
    (reason,) = of_campaign(alike, Measured(found, [alike]))
    assert reason.verdict.startswith("it is the reason: the result is then as published")
    assert reason.as_claimed.value == pytest.approx(1.2, rel=0.02)
    assert "; against docker c 1.000x [" in str(reason)
    fail(found, lambda one: one["levels"]["placement"] == "docker c")
    assert list(of_campaign(alike, Measured(found, [alike]))) == []


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("bound", {"condition": A, "low": 1.0}, "only of a claim about the ratio"),
        ("difference", {"conditions": [B, C], "baseline": A, "direction": "higher"}, "several"),
    ],
)
def test_reasons_that_no_claim_of_the_kind_can_have(
    kind: str, fields: dict[str, Any], message: str
) -> None:
    entry = {"source": "small", "place": "1", "statement": "one", "study": "nets"}
    entry |= {"metric": "rate", "id": "small-one", "kind": kind, **fields}
    entry |= {"reasons": [{"why": "rules", "condition": B}]}
    assert message in "; ".join(CLAIM.validate_python(entry).mistakes())


def test_no_claim_is_decided_by_an_experiment() -> None:
    row = ledger(measured({1.0: (1, 0.8, 2), 2.0: (1, 0.8, 2)}), claims=claims(RATIO)).iloc[0]
    assert row["result"] == "not measured"


def test_claims_that_are_not_of_ratios_are_left_out() -> None:
    bound = claim("bound", condition=A, low=0.5)
    several = measured({1.0: (1, 1.2, 2), 2.0: (1, 0.8, 2)})
    several.plan["claims"] = [bound.id]
    assert list(of_experiment(several, claims(bound, RATIO))) == []
