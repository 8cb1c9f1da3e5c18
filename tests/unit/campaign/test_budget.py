"""What fits into a time: claims and questions that decide most."""

from __future__ import annotations

from functools import cache

import committed
import pytest

from labkit import load
from labkit.campaign.budget import SETUP, BudgetPlan, Candidate, plan_budget
from labkit.claims.schema import load_claims
from labkit.paths import project


@cache
def reference():
    claims = load_claims()
    campaigns = {name: load(project("data/reference") / name) for name in claims.studies}
    return claims, committed.ledger_of(committed.campaigns()), campaigns


def planned(seconds: float, *questions: Candidate) -> BudgetPlan:
    return plan_budget(seconds, *reference(), questions)


@pytest.mark.parametrize("seconds", [0, 60, 300, 900, 3600])
def test_a_plan_keeps_to_its_time(seconds: float) -> None:
    plan = planned(seconds)
    assert sum(study.seconds for study in plan.studies) <= seconds
    claims, rows, _ = reference()
    names = {*plan.names, *(one.name for one in plan.left_out)}
    assert names <= {claim.id for claim in claims} and len(plan.names) == len(set(plan.names))
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
    assert empty.names == ["a", "b"]
    assert [study.seconds for study in empty.studies] == [SETUP + 15]
    assert planned(SETUP + 14, one).names == []


def test_a_study_is_measured_with_its_question_and_a_question_may_get_more_blocks() -> None:
    few, many = (
        Candidate("question", "cpu-quota", blocks, {"a": 10.0 * blocks}, worth)
        for blocks, worth in {6: 3.0, 24: 6.0}.items()
    )
    assert "question" in planned(900, few, many).names
    names = [one.name for one in planned(900, few, many).left_out]
    assert len(names) == len(set(names)) and "question" not in names
    (study,) = plan_budget(SETUP + 60, [], *reference()[1:], [few, many]).studies
    assert (study.blocks, study.seconds) == (6, SETUP + 60)
    longest = Candidate("question", "cpu-quota", 24, {"a": 1e6}, 3.0)
    claims = {claim.id for claim in reference()[0] if claim.study == "cpu-quota"}
    assert claims.isdisjoint(planned(900, longest).names)
    assert claims & set(planned(900).names)
    both = plan_budget(SETUP + 240, [], *reference()[1:], [few, many])
    assert both.names == ["question"] and both.studies[0].looks == [6, 12, 24]
