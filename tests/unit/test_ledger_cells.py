"""What a claim takes of a campaign: its cells, averages, pairs, and why there is none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from claim_files import claim, claims
from memory_campaigns import PLACEMENTS, Campaign, campaign
from memory_campaigns import fail as failed

from labkit.claims.ledger import ledger
from labkit.claims.schema import CLAIM

A, B, C = ({"placement": name, "size_b": 4} for name in PLACEMENTS[:3])
FACTORS = {"placement": PLACEMENTS, "size_b": ["4"]}
DIFFERS = claim("difference", condition=B, baseline=A, direction="higher")


def higher(placement: str, size: float) -> float:
    return 2.0 if placement == PLACEMENTS[1] else 1.0


def small(**options: Any) -> Campaign:
    return campaign(higher, **{"factors": FACTORS} | options)


def one(found: Any, which: Any = DIFFERS) -> Any:
    return ledger(found, claims=claims(which)).iloc[0]


def test_no_trial_at_all() -> None:
    assert "no trial of nets succeeded" in one(Campaign(small().plan, []))["why"]
    found = small()
    failed(found, lambda one: True, "no disk")
    assert one(found)["why"] == "no trial of nets succeeded: no disk"


def test_why_a_cell_is_not_measured() -> None:
    refused = {"condition": "docker c | 4", "reason": "no such network"}
    factors = FACTORS | {"placement": PLACEMENTS[:2]}
    found = campaign(higher, factors=factors, infeasible=[refused])
    found.plan["factors"] = FACTORS

    def why(cell: dict[str, Any]) -> str:
        which = claim("difference", condition=cell, baseline=A, direction="higher")
        row = one(found, which)
        assert row["result"] == "not measured"
        return row["why"]

    assert why(C) == "docker c, size 4 B: infeasible: no such network"
    assert why({"placement": "docker b", "size_b": 5}).endswith("size 5 B is not in this campaign")
    assert why({"placement": "docker d", "size_b": 4}).endswith("no trial of it was run")
    failed(found, lambda one: one["levels"]["placement"] == "docker b", "no disk")
    assert why(B) == "docker b, size 4 B: none of 10 attempts succeeded: no disk"
    assert why({"placement": "docker e", "size_b": 4}).endswith("docker e is not in this campaign")


def test_what_is_measured_beside_an_infeasible_condition_is_infeasible_too() -> None:
    refused = {"condition": "docker c | 4", "reason": "no such network"}
    factors = {"placement": PLACEMENTS[:2], "size_b": ["4", "8"]}
    found = campaign(higher, factors=factors, infeasible=[refused])
    # Trials of the plan's size measure another one in turn.
    found.plan["factors"] = {"placement": PLACEMENTS, "size_b": ["4"]}
    which = claim("difference", condition={**C, "size_b": 8}, baseline=A, direction="higher")
    row = one(found, which)
    assert row["why"] == "docker c, size 8 B: infeasible: no such network"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"condition": {**B, "wait": "spin"}}, "condition: unknown factor 'wait'; known are"),
        ({"baseline": {"place": "docker a"}}, "baseline: unknown factor 'place'; known are"),
        ({"where": {"place": "docker a"}}, "where: unknown factor 'place'; known are"),
        ({"each": {"place": ("a", "b")}}, "each: unknown factor 'place'; known are"),
        (
            {"condition": {**B, "size_b": "4"}},
            "condition: size_b takes a number and not '4', as ['4'] are",
        ),
        (
            {"condition": {"placement": 7}},
            "condition: placement takes words and not 7, as ['docker a'",
        ),
        ({"each": {"idle": (1, 2)}}, "each: idle takes words and not 1, as ['poll'] are"),
    ],
)
def test_a_selector_that_the_plan_does_not_know_is_named(fields: Any, said: str) -> None:
    entry = {"condition": B, "baseline": A, "high": 2.0} | fields
    which = CLAIM.validate_python(
        DIFFERS.model_dump(include={"id", "source", "place", "statement", "study", "metric"})
        | {"kind": "ratio"}
        | entry
    )
    row = one(small(settings={"idle": "poll", "seconds": 3, "load": {"kind": "none"}}), which)
    assert row["result"] == "error"
    assert "small-difference does not fit the plan of nets" in row["why"] and said in row["why"]
    assert "unknown" not in said or "known are ['idle', 'seconds', 'placement'" in row["why"]


@pytest.mark.parametrize(
    ("over", "levels", "said"),
    [
        ("size", (), "over: unknown factor 'size'; known are"),
        ("placement", (), "over: placement has no numbers; write levels"),
        ("size_b", ("a", "b"), "over: size_b takes a number and not 'a', as ['4'] are"),
    ],
)
def test_a_curve_that_the_plan_does_not_know_is_named(over: str, levels: Any, said: str) -> None:
    which = claim(
        "monotone", over=over, direction="increasing", **({"levels": levels} if levels else {})
    )
    row = one(small(), which)
    assert row["result"] == "error" and said in row["why"]


def test_a_metric_that_the_trials_do_not_have_is_named() -> None:
    row = one(small(), claim("bound", condition=A, high=2, metric="speed"))
    assert row["result"] == "error"
    assert "small-bound: metric: unknown metric 'speed'" in row["why"] and "['rate']" in row["why"]
    # Where nothing of its cell was measured, the trials cannot tell.
    row = one(small(), claim("bound", condition={**A, "size_b": 5}, high=2, metric="speed"))
    assert row["result"] == "not measured"


def test_a_level_that_a_trial_measured_beside_its_own_is_part_of_the_campaign() -> None:
    found = small()
    for record in found.records:
        if record["levels"]["placement"] == "docker a":
            record["also"] = [{"levels": {"size_b": "6"}, "metrics": {"rate": 1.0}}]
    found.__dict__.pop("trials", None)
    cells = {"condition": {**B, "size_b": 6}, "baseline": {**A, "size_b": 6}}
    row = one(found, claim("difference", direction="higher", **cells))
    assert row["why"] == "docker b, size 6 B: no trial of it was run"


def test_a_setting_stands_for_a_factor_that_was_not_varied() -> None:
    spin = claim(
        "difference", condition={**B, "wait": "spin"}, baseline={**A, "wait": "spin"},
        direction="higher",
    )  # fmt: skip
    assert one(small(settings={"wait": "spin"}), spin)["result"] == "replicated"
    row = one(small(settings={"wait": "block"}), spin)
    assert row["result"] == "not measured"


def test_factors_that_no_cell_names_are_averaged_over_what_all_have() -> None:
    factors = {**FACTORS, "wait": ["block", "spin"]}
    found = campaign(higher, factors=factors, noise=0.01)
    for record in found.records:
        if record["levels"]["wait"] == "spin":
            record["metrics"]["rate"] *= 100
    assert one(found)["estimate"] == pytest.approx(2, rel=0.02)
    assert "averaged over wait" in one(found)["why"]
    # The baseline never spun: what the condition did then is not compared with anything.
    unlike = Campaign(
        found.plan,
        [
            one
            for one in copy.deepcopy(found.records)
            if one["levels"]["wait"] == "block" or one["levels"]["placement"] != PLACEMENTS[0]
        ],
    )
    assert one(unlike)["estimate"] == pytest.approx(2, rel=0.02)
    # A block that lost one of the two levels is no pair.
    failed(found, lambda one: one["block"] < 4 and one["levels"]["wait"] == "spin")
    row = one(found)
    assert row["estimate"] == pytest.approx(2, rel=0.02) and row["n_blocks"] == 7
    assert "3 of 10 blocks without a value of both" in row["why"]
    nothing = Campaign(
        found.plan,
        [
            one
            for one in unlike.records
            if one["levels"]["wait"] == "spin" or one["levels"]["placement"] != PLACEMENTS[1]
        ],
    )
    assert one(nothing)["why"] == "the conditions have no level of wait in common"


def test_blocks_over_two_sessions_are_left_out() -> None:
    found = small()
    for record in found.records:
        record["session"] = 1 + (record["block"] > 5)
    assert one(found)["n_blocks"] == 10
    for record in found.records:
        if record["block"] in (5, 6) and record["levels"]["placement"] == PLACEMENTS[1]:
            record["session"] = 3
    found.__dict__.pop("trials")
    row = one(found)
    assert row["n_blocks"] == 8 and "blocks 5, 6 span sessions and are left out" in row["why"]
    for record in found.records:
        record["session"] = record["position"]
    found.__dict__.pop("trials")
    assert one(found)["why"] == "every block spans several sessions"


def test_what_is_left_out_is_said() -> None:
    found = small()
    for record in found.records:
        if record["block"] < 4:
            record["metrics"] = {}
    for which, lost in ((DIFFERS, 6), (claim("bound", condition=A, high=2), 3)):
        row = one(found, which)
        assert row["n_blocks"] == 7 and f"{lost} trials without rate" in row["why"]
    found = campaign(higher, factors={**FACTORS, "wait": ["block", "spin"]})
    failed(found, lambda one: one["block"] < 4 and one["levels"]["wait"] == "spin")
    row = one(found, claim("bound", condition=A, high=2))
    assert row["n_blocks"] == 7 and "3 of 10 blocks without a value" in row["why"]
    never = [
        one
        for one in campaign(higher, factors={**FACTORS, "wait": ["block", "spin"]}).records
        if one["levels"]["wait"] == "block" or one["levels"]["placement"] != PLACEMENTS[0]
    ]
    row = one(Campaign(found.plan, never))
    assert "averaged over" not in row["why"]
    assert "10 trials left out: not every condition was measured at their wait" in row["why"]


def test_copies_of_which_one_is_0_are_averaged_without_logs() -> None:
    found = small(copies=2)
    for record in found.records:
        if record["replicate"] == 2 and record["levels"]["placement"] == PLACEMENTS[0]:
            record["metrics"]["rate"] = 0.0
    row = one(found)
    assert row["estimate"] == pytest.approx(4, rel=0.02)
    assert "averaged without logs, as a value is 0" in row["why"]
