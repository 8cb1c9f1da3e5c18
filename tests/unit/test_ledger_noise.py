"""Regions that the noise of a rig cannot reach in the planned blocks."""

from __future__ import annotations

from typing import Any

import pytest
from claim_files import claim, claims
from memory_campaigns import PLACEMENTS, Campaign, campaign

from labkit.analysis.estimates import Estimate
from labkit.claims.estimators import Part
from labkit.claims.ledger import blocks_needed, ledger, reachable

A, B = ({"placement": name, "size_b": 4} for name in PLACEMENTS[:2])
SAME = claim("equivalence", condition=B, baseline=A, margin=0.02)
HIGHER = claim("difference", condition=B, baseline=A, direction="higher")


def twice(noise: float, **plan: Any) -> Campaign:
    """Return a campaign whose second placement takes twice as long."""
    factors = {"placement": PLACEMENTS[:2], "size_b": ["4"]}
    truth = {PLACEMENTS[0]: 1.0, PLACEMENTS[1]: 2.0}
    return campaign(lambda place, size: truth[place], factors=factors, noise=noise, **plan)


@pytest.mark.parametrize(
    ("which", "noise", "planned", "result"),
    [
        (SAME, 0.1, 10, "undecided"),
        (SAME, 0.005, 10, "contradicted"),
        (SAME, 0.1, 4000, "contradicted"),  # so many blocks could have shown it inside
        (HIGHER, 0.1, 10, "replicated"),  # a region without an end is never too narrow
    ],
)
def test_a_region_that_noise_cannot_reach_is_not_contradicted(
    which: Any, noise: float, planned: int, result: str
) -> None:
    found = twice(noise, blocks=10)
    found = Campaign(dict(found.plan) | {"blocks": planned}, found.records)
    row = ledger(found, claims=claims(which)).iloc[0]
    assert row["result"] == result
    said = f"not decidable at this noise: about {row['blocks_needed']} blocks, 10 planned"
    assert row["why"].startswith(said) is (result == "undecided")
    if result == "undecided":
        assert row["blocks_needed"] > 10 and row["exploratory"] == "contradicted"


def test_parts_that_all_have_to_hold_take_more_blocks_than_each_alone() -> None:
    part = Part("it", Estimate(0.0, 0.02, 9.0, n_blocks=10, scale="log"), 0.95, 1.05)
    one, six = (blocks_needed([part] * number, 0.01, 5) for number in (1, 6))
    assert one is not None and six is not None and 1.3 * one < six


@pytest.mark.parametrize("scale", ["log", "linear"])
def test_the_interval_of_the_blocks_needed_is_no_wider_than_the_region(scale: Any) -> None:
    estimate = Estimate(1.0, 0.05, 4.0, n_blocks=5, scale=scale)
    part = Part("it", estimate, 0.9, 1.1)
    answers = [reachable(part, blocks, 0.05) for blocks in range(1, 40)]
    first = answers.index(True)
    assert first > 1 and all(answers[first:])
    assert reachable(Part("it", estimate, 0.9, float("inf")), 2, 0.05)
