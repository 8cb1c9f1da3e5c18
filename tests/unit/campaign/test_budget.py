"""What fits into a time: claims and questions that decide most."""

from __future__ import annotations

from functools import cache

import pytest

from labkit import load
from labkit.campaign.budget import SETUP, BudgetPlan, Candidate, plan_budget
from labkit.claims.ledger import ledger
from labkit.claims.schema import load_claims
from labkit.paths import project


@cache
def reference():
    claims = load_claims()
    campaigns = {name: load(project("data/reference") / name) for name in claims.studies}
    return claims, ledger(list(campaigns.values())), campaigns


def planned(seconds: float, *questions: Candidate) -> BudgetPlan:
    return plan_budget(seconds, *reference(), questions)


@pytest.mark.parametrize("seconds", [0, 60, 300, 900, 3600])
def test_a_plan_keeps_to_its_time(seconds: float) -> None:
    plan = planned(seconds)
    assert plan.seconds <= seconds
    assert all(candidate.seconds + plan.seconds > 0 for candidate in plan.left_out)
    claims, rows, _ = reference()
    names = {*plan.names, *(one.name for one in plan.left_out), *plan.impossible}
    assert names == {claim.id for claim in claims} and len(plan.names) == len(set(plan.names))
    settings = rows.set_index("id").loc[plan.names, "setting"]
    assert "unsuitable" not in set(settings)
    for study in plan.studies:
        assert study.looks[-1] == study.blocks and study.looks[0] >= 5


def test_more_time_decides_more_and_headlines_go_first() -> None:
    counts = [len(planned(seconds).names) for seconds in (100, 300, 900, 3600)]
    assert counts == sorted(counts) and counts[0] < counts[-1]
    tiers = {claim.id: claim.tier for claim in reference()[0]}
    headlines = [
        [tiers[name] for name in planned(seconds).names].count("headline") for seconds in (100, 900)
    ]
    assert 0 < headlines[0] < headlines[1]


def test_conditions_that_are_shared_are_paid_once() -> None:
    one, two = (Candidate(name, "nets", 5, {"a": 5.0, "b": 10.0}, 1.0) for name in "ab")
    empty = plan_budget(SETUP + 15, [], *reference()[1:], [one, two])
    assert empty.names == ["a", "b"] and empty.seconds == SETUP + 15
    assert planned(SETUP + 14, one).names == []
