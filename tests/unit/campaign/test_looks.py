"""Planned looks: what they decide, what they drop, and campaigns that stop and resume at them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from claim_files import claim

from labkit import compare, load
from labkit.analysis.sequential import Looks
from labkit.campaign import study as studies
from labkit.campaign.looks import Questions, measured_rows, needs, short_names
from labkit.campaign.study import Plan, Study
from labkit.claims.ledger import ledger
from labkit.claims.reasons import of_experiment
from labkit.claims.schema import Claims
from labkit.dataset.package import pack
from labkit.errors import PlanMismatch, ToolOutput, UsageError
from labkit.rig.base import Rig
from labkit.status import look as status_of
from labkit.tools.base import Measurement

#: The rate of each network: `far` differs much from `host`, `near` not, `noisy` nobody knows.
RATES = {"host": 100.0, "far": 40.0, "near": 100.0, "noisy": 103.0}
NOISE = {"host": 0.004, "far": 0.004, "near": 0.004, "noisy": 0.3}
FAR = claim("difference", condition={"net": "far"}, baseline={"net": "host"}, direction="lower")
NOISY = claim(
    "difference",
    "small-noisy",
    condition={"net": "noisy"},
    baseline={"net": "host"},
    direction="higher",
)


class Nowhere(Rig):
    """A rig without hosts."""

    def facts(self) -> dict[str, Any]:
        return {"sut": {"stable": {}, "volatile": {"boot_id": "a"}}}


class Protocol:
    """Draws the rate of a network from its truth; `stop` interrupts a trial."""

    def __init__(self, stop: int = 0) -> None:
        self.stop, self.seen = stop, []

    def __call__(self, trial: Any) -> Measurement:
        self.seen.append((trial.turn, trial.net))
        if len(self.seen) == self.stop:
            raise KeyboardInterrupt
        rng = np.random.default_rng([trial.turn, list(RATES).index(trial.net)])
        rate = RATES[trial.net] * np.exp(NOISE[trial.net] * rng.normal())
        return Measurement({}, {"rate": float(rate)}, 1)


@pytest.fixture
def rig() -> Rig:
    cpus = {"harness": str(min(os.sched_getaffinity(0))), "sut": "1"}
    return Nowhere("nowhere", "virtual", {}, {}, {}, cpus, shared_kernel=True)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Claims:
    """The claims of the project, and a protocol that has no source of its own."""
    claims = Claims((FAR, NOISY))
    monkeypatch.setattr(studies, "load_claims", lambda: claims)
    monkeypatch.setattr(studies, "_source", lambda function: type(function).__name__)
    return claims


def plan_of(rig: Rig, protocol: Protocol, **options: Any) -> Plan:
    study = Study(
        "nets",
        protocol,
        {"net": list(RATES)},
        baseline={"net": "host"},
        replicates=[{"net": "host"}],
        margin=0.02,
        outcomes=["rate"],
        settings={"offload": "as found"},
    )
    return study.plan(rig, blocks=20, seed=1, decide={"looks": (6, 10, 20), **options})


def test_decided_conditions_and_those_given_up_are_dropped(rig: Rig, tmp_path: Path) -> None:
    protocol = Protocol()
    campaign = plan_of(rig, protocol).run(tmp_path)
    first = campaign.looks[0]
    states = {question["name"]: question["state"] for question in first["questions"]}
    assert first["blocks"] == 6
    assert states["small-difference"] == states["far against host"] == "decided"
    assert states["near against host"] == "decided"
    assert states["small-noisy"] == states["noisy against host"] == "given up"
    assert set(first["dropped"]) == set(RATES)
    assert max(block for block, _ in protocol.seen) == 6
    assert campaign.planned == len(protocol.seen) == len(campaign.ok)
    (shown,) = status_of([tmp_path])
    assert shown.state == "finished" and shown.planned == campaign.planned


def test_what_was_settled_stays_so_while_others_go_on(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NOISE, "noisy", 0.05)
    monkeypatch.setitem(RATES, "noisy", 106.0)
    protocol = Protocol()
    campaign = plan_of(rig, protocol).run(tmp_path)
    first, second, *_ = ({one["name"]: one for one in look["questions"]} for look in campaign.looks)
    assert {"far", "near"} <= set(campaign.looks[0]["dropped"])
    for name in ("far against host", "near against host", "small-difference"):
        assert second[name] == first[name] and first[name]["state"] == "decided"
    assert second["noisy against host"] != first["noisy against host"]
    # What goes on is measured with its baseline and the baseline's A/A replicate.
    later = [net for block, net in protocol.seen if block == 7]
    assert sorted(later) == ["host", "host", "noisy"]


def test_a_look_has_the_verdicts_of_a_page(rig: Rig, tmp_path: Path) -> None:
    campaign = plan_of(rig, Protocol(), looks=()).run(tmp_path)
    looked = Questions(Looks((10, 20)), (), ["rate"]).take(campaign, 10)
    trials = campaign.ok[campaign.ok["block"] <= 10]
    page = compare(
        trials,
        value="rate",
        condition="net",
        baseline="host",
        margin=0.02,
        alpha=Looks((10, 20)).level(0.05, 10),
    ).set_index("condition")
    for one in looked["questions"]:
        row = page.loc[one["name"].split()[0]]
        answer = one["answer"]
        assert (answer["verdict"], answer["ratio"]) == (row["verdict"], row["estimate"])
        assert answer["low"] == (row["equal_low"] if row["verdict"] == "equivalent" else row["low"])


def test_trials_that_never_succeeded_forbid_equivalence_at_a_look_as_on_a_page(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NOISE, "near", 0.012)

    class Failing(Protocol):
        def __call__(self, trial: Any) -> Measurement:
            if trial.net == "near" and trial.turn in (3, 7):
                raise ToolOutput("no answer")
            return super().__call__(trial)

    campaign = plan_of(rig, Failing(), looks=()).run(tmp_path)
    (looked,) = (
        one
        for one in Questions(Looks((10, 20)), (), ["rate"]).take(campaign, 10)["questions"]
        if one["name"] == "near against host"
    )
    trials = pd.concat([campaign.ok, campaign.lost])
    options = {"value": "rate", "condition": "net", "baseline": "host"}
    level = Looks((10, 20)).level(0.05, 10)
    page = compare(trials[trials["block"] <= 10], **options, alpha=level).set_index("condition")
    assert page.loc["near", "p_equivalence"] < level
    assert looked["answer"]["verdict"] == page.loc["near", "verdict"] == "undecided"


def test_conditions_are_compared_by_the_first_outcome_that_they_have(
    rig: Rig, tmp_path: Path
) -> None:
    class Several(Protocol):
        def __call__(self, trial: Any) -> Measurement:
            if trial.net == "far" and trial.turn == 3:
                raise ToolOutput("no answer")
            rate = super().__call__(trial).metrics["rate"]
            names = {"far": ["speed"], "host": ["rate", "speed"]}.get(trial.net, ["rate"])
            return Measurement({}, dict.fromkeys(names, rate), 1)

    campaign = plan_of(rig, Several(), looks=()).run(tmp_path)
    asked = Questions(Looks((10, 20)), (), ["rate", "speed"]).take(campaign, 10)["questions"]
    found = {one["name"].split()[0]: one for one in asked}
    metrics = {name: one["answer"]["metric"] for name, one in found.items()}
    assert metrics == {"far": "speed", "near": "rate", "noisy": "rate"}
    assert found["far"]["state"] == "decided"


def test_a_look_decides_nothing_on_fewer_blocks_than_its_page(rig: Rig, tmp_path: Path) -> None:
    campaign = plan_of(rig, Protocol(), looks=()).run(tmp_path)
    early = Questions(Looks((6, 20, 200)), (), ["rate"]).take(campaign, 6)
    assert {one["state"] for one in early["questions"]} == {"open"}
    later = Questions(Looks((6, 20, 200)), (), ["rate"]).take(campaign, 20)
    states = {one["name"]: one["state"] for one in later["questions"]}
    assert states["far against host"] == "decided"


def test_a_claim_is_not_given_up_on_fewer_blocks_than_a_verdict_takes(
    rig: Rig, tmp_path: Path, known: Claims
) -> None:
    campaign = plan_of(rig, Protocol(), looks=()).run(tmp_path)
    looked = Questions(Looks((4, 20)), known, ["rate"])
    early, late = (
        {one["name"]: one["state"] for one in looked.take(campaign, blocks)["questions"]}
        for blocks in (4, 20)
    )
    assert early["small-noisy"] == "open" and late["small-noisy"] == "given up"


def test_a_block_that_spans_sessions_decides_nothing(rig: Rig, tmp_path: Path) -> None:
    campaign = plan_of(rig, Protocol(), looks=()).run(tmp_path)
    looked = Questions(Looks((5, 10, 20)), (), ["rate"])
    spans = {record["trial"]: record for record in campaign.records if record["block"] == 2}
    next(iter(spans.values()))["session"] = 2
    campaign.__dict__.pop("trials", None)
    answers = [one["answer"] for one in looked.take(campaign, 6)["questions"]]
    assert [one["n_blocks"] for one in answers if one] == [5, 5, 5]


def test_the_interval_of_an_answer_has_its_confidence(rig: Rig, tmp_path: Path) -> None:
    campaign = plan_of(rig, Protocol(), looks=()).run(tmp_path)
    look = Questions(Looks((20,)), (), ["rate"]).take(campaign, 20)
    answers = {one["name"]: one["answer"] for one in look["questions"]}
    # The first step of three comparisons; two one-sided tests, as on a page without a correction.
    levels = {name: 1 - one["confidence"] for name, one in answers.items()}
    assert levels["far against host"] == pytest.approx(0.05 / 3)
    assert levels["near against host"] == pytest.approx(2 * 0.05)


def test_an_interrupted_campaign_resumes_after_its_look(rig: Rig, tmp_path: Path) -> None:
    whole = Protocol()
    plan_of(rig, whole).run(tmp_path / "whole")
    for stop in (26, 27):  # the first block has 5 trials
        folder, halted = tmp_path / str(stop), Protocol(stop)
        with pytest.raises(KeyboardInterrupt):
            plan_of(rig, halted).run(folder)
        rest = Protocol()
        campaign = plan_of(rig, rest).run(folder)
        assert halted.seen[:-1] + rest.seen == whole.seen
        assert [look["blocks"] for look in campaign.looks] == [
            look["blocks"] for look in load(tmp_path / "whole/nets").looks
        ]


@pytest.mark.parametrize("claims", [[], ["small-difference"]], ids=["goes on", "ends there"])
def test_a_look_that_was_interrupted_is_taken_by_the_next_run(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: list[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    options = {"claims": claims} if claims else {}
    whole, halted, rest = Protocol(), Protocol(), Protocol()
    expected = plan_of(rig, whole, **options).run(tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Questions, "take", interrupt)
        plan_of(rig, halted, **options).run(tmp_path / "halted")
    campaign = plan_of(rig, rest, **options).run(tmp_path / "halted")
    assert halted.seen + rest.seen == whole.seen
    assert campaign.looks == expected.looks
    (shown,) = status_of([tmp_path / "halted"])
    assert shown.state == "finished" and shown.planned == campaign.planned


def test_only_conditions_of_the_chosen_claims_are_measured(rig: Rig, tmp_path: Path) -> None:
    protocol = Protocol()
    plan = plan_of(rig, protocol, claims=["small-difference"])
    campaign = plan.run(tmp_path)
    assert {net for _, net in protocol.seen} == {"host", "far"}
    assert max(block for block, _ in protocol.seen) == 6  # decided at the first look
    rows = ledger(campaign, claims=Claims((FAR, NOISY))).set_index("id")
    assert rows.loc["small-difference", "result"] == "replicated"
    assert rows.loc["small-noisy", "result"] == "not measured"
    with pytest.raises(PlanMismatch):
        plan_of(rig, protocol, claims=[]).run(tmp_path)


def test_the_ledger_counts_looks_and_only_what_was_planned(rig: Rig, tmp_path: Path) -> None:
    both = Claims((FAR, NOISY))
    fixed = plan_of(rig, Protocol(), looks=(), claims=["small-noisy"]).run(tmp_path)
    rows = ledger(fixed, claims=both).set_index("id")
    fixed.plan["looks"] = [10, 20]
    looked = ledger(fixed, claims=both).set_index("id")
    for column in ("p_replicates_adjusted", "p_contradicts_adjusted"):
        before, after = (table.loc["small-noisy", column] for table in (rows, looked))
        assert before < after or before == after == 1
    fixed.plan["claims"] = ["small-difference"]
    row = ledger(fixed, claims=both).set_index("id").loc["small-noisy"]
    assert row["result"] == "undecided" and "not planned to decide it" in row["why"]
    assert np.isnan(row["p_replicates_adjusted"])


def test_looks_are_packed_with_the_campaign(rig: Rig, tmp_path: Path) -> None:
    campaign = plan_of(rig, Protocol()).run(tmp_path / "local")
    pack(tmp_path / "local", tmp_path / "packed")
    packed = load(tmp_path / "packed/nets" / campaign.path.name)
    assert packed.looks == campaign.looks and packed.planned == campaign.planned


def test_looks_end_with_the_last_block(rig: Rig) -> None:
    with pytest.raises(UsageError, match="the last look is after 10 blocks, and 20"):
        plan_of(rig, Protocol(), looks=(5, 10))
    with pytest.raises(UsageError, match="no claim 'nope'"):
        plan_of(rig, Protocol(), claims=["nope"])


def test_only_some_conditions_with_another_baseline(rig: Rig, tmp_path: Path) -> None:
    only, baseline = [{"net": "far"}, {"net": "near"}], {"net": "near"}
    plan = plan_of(rig, Protocol(), claims=[], only=only, baseline=baseline)
    keys = [condition.key for condition in plan.design.conditions]
    assert keys == ["far", "near", "near (replicate 2)"]
    (question,) = plan.run(tmp_path).looks[0]["questions"]
    assert question["name"] == "far against near" and question["state"] == "decided"
    assert question["answer"]["word"] == "less" and "60 %" not in question["result"]
    assert question["answer"]["ratio"] == pytest.approx(0.4, rel=0.02)
    with pytest.raises(UsageError, match="net has no level 'moon'"):
        plan_of(rig, Protocol(), only=[{"net": "moon"}])
    with pytest.raises(UsageError, match="unknown in decide: look"):
        plan_of(rig, Protocol(), look=(5,))


VARY = {"vary": {"offload": ["as found", "off"]}, "reason": "packets are cut", "looks": ()}


def test_a_setting_is_varied_for_the_conditions_of_a_claim(rig: Rig, tmp_path: Path) -> None:
    plan = plan_of(rig, Protocol(), claims=["small-difference"], **VARY)
    keys = [condition.key for condition in plan.design.conditions]
    assert keys[:2] == ["host | as found", "host | as found (replicate 2)"]
    assert sorted(keys[2:]) == [
        "far | as found",
        "far | off",
        "host | off",
        "host | off (replicate 2)",
    ]
    campaign = plan.run(tmp_path)
    assert campaign.plan["vary"] == ["offload"] and campaign.plan["reason"] == "packets are cut"
    assert "offload" not in campaign.plan["settings"] and campaign.planned == len(campaign.ok)
    (found,) = of_experiment(campaign, Claims((FAR,)))
    assert found.claim == FAR.id and found.change.value == pytest.approx(1)


def test_an_experiment_names_one_setting_its_levels_claims_and_a_reason(rig: Rig) -> None:
    whole = {"claims": ["small-difference"], **VARY}
    for wrong, message in (
        ({"vary": {"offlaod": ["a", "b"]}}, "no setting 'offlaod'"),
        ({"vary": {"offload": ["off"]}}, "two levels or more"),
        ({"reason": ""}, "vary goes with claims and a reason"),
        ({"claims": []}, "vary goes with claims and a reason"),
        ({"looks": (5, 20)}, "without looks"),
    ):
        with pytest.raises(UsageError, match=message):
            plan_of(rig, Protocol(), **{**whole, **wrong})


def test_a_claim_needs_the_conditions_that_measure_its_cells() -> None:
    conditions = [
        {"net": net, "size": size, "turn": "a"} for net in ("host", "far") for size in ("1", "64")
    ]
    at = claim(
        "difference",
        where={"size": 64},
        condition={"net": "far"},
        baseline={"net": "host"},
        direction="lower",
    )
    rows = measured_rows(conditions, [])
    assert needs(at, rows) == ("far | 64 | a", "host | 64 | a")
    turns = claim(
        "difference",
        condition={"net": "far", "turn": "b"},
        baseline={"net": "far", "turn": "a"},
        direction="lower",
    )
    # `b` is measured in turns by one condition; as long as nobody knows, by any of its network.
    assert needs(turns, rows) == ("far | 1 | a", "far | 64 | a")
    rows.append(({"net": "far", "size": "64", "turn": "b"}, "far | 64 | a"))
    assert needs(turns, rows) == ("far | 64 | a", "far | 1 | a")


def test_conditions_are_named_by_the_fewest_levels() -> None:
    rows = [
        {"storage": storage, "operation": operation, "size_b": size, "layer": "top"}
        for storage in ("bind", "overlay2")
        for operation, size in {"open": "0", "write": "4096"}.items()
    ]
    labels = {" | ".join(levels.values()): levels for levels in rows}
    assert list(short_names(labels).values()) == [
        "bind, open",
        "bind, write",
        "overlay2, open",
        "overlay2, write",
    ]
    quotas = [{"shares": "1024", "quota_us": "0"}, {"shares": "0", "quota_us": "1000"}]
    quotas.append({"shares": "0", "quota_us": "2000"})
    named = short_names({" | ".join(levels.values()): levels for levels in quotas})
    assert list(named.values()) == ["quota 0 us", "quota 1000 us", "quota 2000 us"]
    assert short_names({"alone": {"rps": "on"}}) == {"alone": "alone"}
