"""Studies and plans: infeasible conditions, what a plan promises, its identity, one trial."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.campaign import study as studies
from labkit.campaign import treatments
from labkit.campaign import trial as trials
from labkit.campaign.runner import LOSSES
from labkit.campaign.study import Study
from labkit.campaign.treatments import CPU_SLOW, Treatment
from labkit.campaign.trial import Trial
from labkit.design import Condition
from labkit.errors import CpusDisturbed, ManipulationError, PlanMismatch, UsageError
from labkit.hosts import LocalHost, Result
from labkit.placement import bare, docker
from labkit.rig.base import Rig
from labkit.runtimes import Server
from labkit.tools.base import Measurement


class Nowhere(Rig):
    """A rig without hosts, which can run every placement but those in Docker."""

    def facts(self) -> dict[str, Any]:
        return {"sut": {"stable": {}, "volatile": {"boot_id": "a"}}}

    def infeasible(self, placement: Any) -> str | None:
        return "no engine" if placement.runtime == "docker" else None


@pytest.fixture
def rig() -> Rig:
    cpus = {"harness": str(min(os.sched_getaffinity(0))), "sut": "1", "all": "0-1"}
    cpus |= {"generator": "0"}
    return Nowhere("nowhere", "virtual", {}, {}, {}, cpus, shared_kernel=True)


def measured(trial: Trial) -> Measurement:
    """Return a few samples, as a tool would."""
    trial.note(tool=["--level", str(trial.level)], cpus=trial.cpus("sut"))
    trial.logs["tool.out"] = "\n".join(f"line {n}" for n in range(40))
    trial.flag("odd")
    return Measurement({"rtt_ns": np.arange(1, 201, dtype=np.int64)}, {"rate": 2.5}, 200)


class Loud(Treatment):
    """A treatment of a study's own."""

    def feasibility(self, rig: Rig, level: Any, levels: Mapping[str, Any]) -> str | None:
        return "too loud" if level == 11 else None


def study_of(**more: Any) -> Study:
    return Study("tiny", measured, {"level": [1, 11]}, {"n": 3}, **more)


# Treatments.


def test_only_capabilities_that_a_plan_uses_are_in_its_identity(rig: Rig) -> None:
    places = {"placement": [bare("rules"), docker("host")]}
    study = Study("places", measured, places)
    before = study.plan(rig, blocks=1, seed=1).identity
    rig.missing = {"runtime:lxc": "it is not installed"}
    assert study.plan(rig, blocks=1, seed=1).identity == before
    rig.infeasible = lambda placement: None  # type: ignore[method-assign]
    assert study.plan(rig, blocks=1, seed=1).identity["conditions"] != before["conditions"]


def test_the_data_of_a_variant_are_of_another_study_than_those_of_the_study(rig: Rig) -> None:
    plan = study_of(variant="loud").plan(rig, blocks=1, seed=1)
    assert plan.as_record()["study"] == plan.identity["study"] == "tiny-loud"
    assert study_of().plan(rig, blocks=1, seed=1).as_record()["study"] == "tiny"


def test_a_treatment_says_where_its_level_is_infeasible(rig: Rig) -> None:
    plan = study_of(treatments={"level": Loud()}).plan(rig, blocks=1, seed=1)
    assert [(one.condition, one.reason) for one in plan.design.infeasible] == [("11", "too loud")]
    places = {"placement": [bare("rules"), docker("host")]}
    plan = Study("places", measured, places).plan(rig, blocks=1, seed=1)
    assert [one.reason for one in plan.design.infeasible] == ["no engine"]


@pytest.mark.parametrize(
    ("treatment", "level", "levels", "missing", "reason"),
    [
        (treatments.Pinning(), "split", {}, {"two-cpus": "one CPU"}, "one CPU"),
        (treatments.Pinning(), "same", {}, {"one-machine": "apart"}, "apart"),
        (treatments.Pinning(), "same", {"wait": "spin"}, {}, "measures the scheduler"),
        (treatments.BusyPolling(), "busy_poll", {}, {"busy-poll": "old kernel"}, "old kernel"),
        (treatments.ColdCache(), "cold", {}, {"cold-cache": "not root"}, "not root"),
        (treatments.RealTime(), "fifo", {}, {"realtime": "no"}, "no"),
        (treatments.ContainerStorage(), "bind", {}, {}, "no engine"),
        (treatments.SecondHost(at="both"), "both", {}, {"peer": "no memory"}, "no memory"),
        (treatments.SecondHost(at="both"), "server", {}, {}, None),
        (treatments.PacketCapture(), "on", {}, {}, "no collector"),
        (treatments.PacketCapture(), "off", {}, {}, None),
        (treatments.PacketSteering(), "on", {}, {}, "no host sut"),
        (treatments.ReceivingCpu(), "own", {}, {"separate-cpu-time": "one machine"}, None),
        (treatments.CongestionControl(), "as found", {}, {}, None),
    ],
)
def test_feasibility_of_treatments(
    rig: Rig,
    treatment: Treatment,
    level: Any,
    levels: dict[str, Any],
    missing: dict[str, str],
    reason: str | None,
) -> None:
    rig.missing = missing
    found = treatment.feasibility(rig, level, levels)
    assert found is None if reason is None else reason in (found or "")


def test_a_placement_on_both_hosts_needs_two_with_an_engine(rig: Rig) -> None:
    rig.targets = {"peer": None}  # type: ignore[dict-item]
    both, spread = treatments.SecondHost(at=2), treatments.SecondHost(at=2, spread=True)
    assert both.feasibility(rig, 2, {"placement": bare("clean")}) is None
    assert spread.feasibility(rig, 2, {"placement": bare("rules")}) is None
    assert "one host without" in str(spread.feasibility(rig, 2, {"placement": bare("clean")}))


class Kernel(LocalHost):
    """A host that answers every command with one text."""

    name = "sut"

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def run(self, *argv: str, **options: Any) -> Result:
        return Result(argv, "sut", 0, self.answer, "", 0.0)


@pytest.mark.parametrize(
    ("own", "answer", "said"),
    [(True, "cubic\n", ""), (True, "bbr\n", "is bbr, not"), (False, "cubic\n", "is bbr, not")],
)
def test_congestion_control_is_read_back_inside(own: bool, answer: str, said: str) -> None:
    observed = {"network": "its own" if own else "the host's", "congestion control": "bbr"}
    server = Server("", 1, 7, Kernel(answer), observed, "0", list)
    with pytest.raises(ManipulationError, match=said) if said else nullcontext():
        treatments.CongestionControl().placed("cubic", server)
    assert observed["congestion control"] == (answer.strip() if own else "bbr")


def test_treatments_check_a_window() -> None:
    assert treatments.Pinning().check("split", {"migrations": 2}) == ["server migrated 2 times"]
    assert treatments.Pinning().check("free", {"migrations": 9}) == []
    assert treatments.BusyPolling().check("busy_poll", {}) == ["busy polling took no packet"]
    polled = {"TcpExt.BusyPollRxPackets": 3.0}
    assert treatments.BusyPolling().check("busy_poll", polled) == []
    assert treatments.BusyPolling().check("block", {}) == []
    assert treatments.IdlePolicy().check("as found", {"latency_request_us": 9}) == []
    assert treatments.IdlePolicy().check("held", {"latency_request_us": 0}) == []
    with pytest.raises(ManipulationError, match="idle policy was not held"):
        treatments.IdlePolicy().check("held", {"latency_request_us": 9})


class Moving(Rig):
    """A rig whose cache lines take the times of a list, to the least; the last one stays."""

    def __init__(self, *ratios: float) -> None:
        self.ratios = list(ratios)

    def cache_line(self) -> dict[str, float]:
        ratio = self.ratios.pop(0) if len(self.ratios) > 1 else self.ratios[0]
        return {"cache_line_ns": 100 * ratio, "cache_line_ratio": ratio} if ratio else {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes in sleeps alone."""
    now = [0.0]
    monkeypatch.setattr(treatments.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(treatments.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    return now


def test_a_window_waits_until_the_cpus_share_a_cache(clock: list[float]) -> None:
    cache, apart = treatments.SharedCache(), {"cache_line_ns": 280.0, "cache_line_ratio": 2.8}
    rig = Moving(3, 3.1, 2.9, 1)
    cache.ready(rig, "kept")
    assert clock[0] == pytest.approx(0.6) and rig.ratios == [1]
    assert cache.check("kept", {"cache_line_ratio": 1.2}) == cache.check("kept", {}) == []
    with pytest.raises(CpusDisturbed, match="moved the CPUs of generator and SUT apart") as caught:
        cache.check("kept", apart)
    assert "280 ns there and back" in caught.value.why
    assert cache.check("as found", apart) == []


def test_where_cpus_do_not_come_to_share_a_cache_ever_less_is_waited(clock: list[float]) -> None:
    cache, rig = treatments.SharedCache(), Moving(3)
    for waited in (120, 60, 30, 15, 7.5, 3.75, 2, 2):
        began = clock[0]
        cache.ready(rig, "kept")
        assert clock[0] - began == pytest.approx(waited, abs=0.25)
        assert cache.check("kept", {"cache_line_ratio": 3.0}) == [], "it was so before the window"
    began = clock[0]
    cache.ready(rig, "as found")
    cache.ready(Moving(0), "kept")
    assert clock[0] == began
    cache.ready(rig, "kept")
    assert clock[0] - began == pytest.approx(120, abs=0.25), "they had come to share it"


def at(ns: float) -> dict[str, float]:
    return {"reference_ns": ns}


def test_a_trial_is_repeated_twice_for_a_slow_cpu_then_kept_and_flagged() -> None:
    speed = treatments.CpuSpeed()
    assert speed.check("kept", at(12)) == speed.check("kept", {}) == []
    assert speed.check("kept", at(10)) == speed.check("kept", at(12.5)) == []
    assert speed.check("as found", at(16)) == [CPU_SLOW]
    for _ in range(2):
        for attempt in range(treatments.CpuSpeed.REPETITIONS):
            with pytest.raises(CpusDisturbed, match="the CPU was slow") as caught:
                speed.check("kept", at(16))
            assert "took 16 ns, where it takes 10" in caught.value.why and attempt < LOSSES
        assert speed.check("kept", at(16)) == [CPU_SLOW]
    with pytest.raises(CpusDisturbed):
        speed.check("kept", at(16))
    assert speed.check("kept", at(11)) == []


@pytest.mark.parametrize("moved", [0, trials.WINDOW_ATTEMPTS - 1, trials.WINDOW_ATTEMPTS])
def test_a_window_is_repeated_alone_where_the_cpus_were_moved(moved: int) -> None:
    trial, left = Trial(Moving(1), Condition(()), {}, "trial-1", {}), [moved]
    trial.flag("before")

    def measure(text: str) -> str:
        trial.flag("of the window")
        if left[0]:
            left[0] -= 1
            raise CpusDisturbed("moved")
        return text

    if moved == trials.WINDOW_ATTEMPTS:
        with pytest.raises(CpusDisturbed):
            trial.repeated(measure, "measured")
        return
    assert trial.repeated(measure, "measured") == "measured"
    assert trial.record["flags"] == ["before", "of the window"]
    assert trial.record["mechanisms"] == {"windows_repeated": moved} and not trial.mechanisms


@pytest.mark.parametrize(
    ("name", "treatment", "level", "known"),
    [
        ("idle", treatments.IdlePolicy(), "hold", "did you mean 'held'? One of as found, held"),
        ("capture", treatments.PacketCapture(), True, "one of off, on"),
    ],
)
def test_an_unknown_level_of_a_treatment_is_refused_before_any_work(
    rig: Rig, name: str, treatment: Treatment, level: object, known: str
) -> None:
    study = Study("odd", measured, {"level": [1]}, {name: level}, treatments={name: treatment})
    with pytest.raises(UsageError, match=f"{name} has no level {level!r}") as caught:
        study.plan(rig, blocks=1, seed=1)
    assert caught.value.remedy == known


def test_a_treatment_needs_a_factor_or_setting() -> None:
    with pytest.raises(UsageError, match="volume") as caught:
        study_of(treatments={"volume": Loud()})
    assert caught.value.remedy == "one of level, n"


def test_a_trial_takes_levels_from_factors_and_settings(rig: Rig) -> None:
    affinity = {"affinity": treatments.Pinning()}
    study = Study("tiny", measured, {"level": [1]}, {"affinity": "free"}, treatments=affinity)
    assert '"cpus": "0-1"' in str(study.try_one(rig))
    study = Study("tiny", measured, {"level": [1]}, {"affinity": "free"})
    assert '"cpus": "1"' in str(study.try_one(rig)), "declared by name only"


# Identity.


def test_outcomes_are_fixed_with_the_plan_and_stop_no_campaign_from_resuming(rig: Rig) -> None:
    study = Study("s", measured, {"n": [1]}, outcomes=["rtt_ns_median"])
    plan, other = (
        one.plan(rig, blocks=1, seed=1) for one in (study, replace(study, outcomes=["rtt_ns_p99"]))
    )
    assert plan.as_record()["outcomes"] == ["rtt_ns_median"]
    assert plan.identity == other.identity


def test_only_another_measurement_version_stops_a_campaign_from_resuming(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = study_of().plan(rig, blocks=1, seed=1)
    campaign = plan.run(tmp_path)
    assert campaign.plan["labkit"] == studies.VERSION and "labkit" not in plan.identity
    monkeypatch.setattr(studies, "VERSION", "99")
    assert study_of().plan(rig, blocks=1, seed=1).run(tmp_path).path == campaign.path
    monkeypatch.setattr(studies, "MEASUREMENT_VERSION", 99)
    with pytest.raises(PlanMismatch, match=r"measurement_version: \d+ -> 99"):
        study_of().plan(rig, blocks=1, seed=1).run(tmp_path)


# One trial.


def test_one_trial_shows_what_it_did(rig: Rig) -> None:
    one = study_of().try_one(rig, level=11)
    for words in ("11", "--level", '"cpus": "1"', "line 39", "odd"):
        assert words in str(one) and html.escape(words) in one._repr_html_()
    (row,) = one.record["rows"]
    assert row["rtt_ns_median"] == 100.5 and row["rate"] == 2.5 and row["level"] == "11"
    assert one.measurement.messages == 200


def test_one_trial_has_the_baseline_levels_by_default(rig: Rig) -> None:
    assert study_of().try_one(rig).condition == "1"
    assert study_of(baseline={"level": 11}).try_one(rig).condition == "11"
    with pytest.raises(UsageError, match="no factor called sise"):
        study_of().try_one(rig, sise=1)
    with pytest.raises(UsageError, match="11 is not possible here"):
        study_of(treatments={"level": Loud()}).try_one(rig, level=11)


def test_one_trial_that_fails_raises_its_error(rig: Rig) -> None:
    def failing(trial: Trial) -> Measurement:
        raise ManipulationError("not what its label says")

    with pytest.raises(ManipulationError, match="not what its label says"):
        Study("tiny", failing, {"level": [1]}).try_one(rig)
