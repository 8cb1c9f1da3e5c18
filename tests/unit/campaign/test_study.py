"""Studies and plans: levels by name, treatments, needs of a rig, identity, one trial."""

import linecache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.campaign import study as studies
from labkit.campaign import treatments
from labkit.campaign import trial as trials
from labkit.campaign.runner import LOSSES
from labkit.campaign.study import Study, code_digest
from labkit.campaign.treatments import LEAST_NS, Treatment
from labkit.campaign.trial import Trial
from labkit.data import CPU_SLOW, CPUS_APART
from labkit.errors import CpusDisturbed, ManipulationError, UsageError
from labkit.hosts import Host
from labkit.placement import bare, container, cpu_mask, docker
from labkit.runtimes import Server
from labkit.tools.base import Measurement


def measured(trial, level):
    """Return a few samples, as a tool would."""
    trial.logs["tool.out"] = f"--level {level}, cpus {trial.cpus('sut')}"
    trial.flag("odd")
    return Measurement({"rtt_ns": np.arange(1, 201, dtype=np.int64)}, {"rate": 2.5}, 200)


def nothing(trial):
    return Measurement({})


class Loud(Treatment):
    """A treatment of a study's own."""

    def feasibility(self, rig, level, levels):
        return "too loud" if level == 11 else None

    def apply(self, rig, level, settings_of):
        self.applied = level


def study_of(**more):
    return Study("tiny", **{"protocol": measured, "factors": {"level": [1, 11]}} | more)


def plan_of(rig, **more):
    return study_of(**more).plan(rig, blocks=1, seed=1)


def test_functions_take_levels_and_settings_by_name(rig):
    seen: list[Any] = []

    def protocol(trial, n, memory):
        seen.append((n, memory))
        return Measurement({})

    study = Study(
        "names",
        protocol,
        factors={"n": [1, 2, 3], "wait": ["spin"]},
        settings={"memory": lambda rig: rig.facts()["sut"]["stable"]["memory_gib"]},
        only=lambda n: n > 1,
        infeasible=lambda rig, n: f"{rig.name} has no {n}" if n == 3 else None,
        seconds=lambda memory, n: memory * n,
    )
    plan = study.plan(rig, blocks=2, seed=1)
    assert [one.label for one in plan.design.conditions] == ["2 | spin"]
    assert plan.design.infeasible == {"3 | spin": "nowhere has no 3"}
    assert plan.as_record()["settings"] == {"memory": 2}
    assert plan.seconds == 2 * (2 * 2 + studies.OVERHEAD)
    study.try_one(rig, n=2)
    assert seen == [(2, 2)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"protocol": lambda trial, lefel: None}, "no factor or setting called 'lefel'"),
        ({"only": lambda levels: True}, "no factor or setting called 'levels'"),
        ({"baseline": {"level": 2}}, "no level of level called '2'"),
        ({"twice": [{"levle": 1}]}, "no factor called 'levle'"),
        ({"together": ["service"]}, "no factor called 'service'"),
        ({"margin": 2.0}, "the margin is 2.0"),
    ],
)
def test_a_study_that_names_what_it_has_not_is_refused(more, said):
    with pytest.raises(UsageError, match=said):
        study_of(**more)


def test_a_variant_is_a_setting_or_with_several_levels_a_study_of_its_own(rig):
    for level in ("default", ["default"], Treatment("default")):
        plan = plan_of(rig, variants={"sec_comp": level})
        assert plan.as_record()["study"] == plan.identity["study"] == "tiny"
        assert plan.settings == {"sec_comp": "default"}
    plan = plan_of(rig, variants={"sec_comp": ["default", "none"]})
    assert plan.as_record()["study"] == plan.identity["study"] == "tiny-sec-comp"
    assert plan.as_record()["factors"]["sec_comp"] == ["default", "none"] and not plan.settings


def test_a_rig_is_opened_with_what_the_kept_conditions_need():
    study = Study(
        "needs",
        nothing,
        factors={
            "placement": [docker("nat"), docker("macvlan"), container("lxc", "nat"), bare()],
            "hosts": treatments.SecondHost(1, 2, at=2, images=["net"], spread=True),
            "capture": treatments.PacketCapture("off", "on", of=["generator"]),
            "storage": treatments.ContainerStorage(["bind", "aufs"], images=["image"]),
        },
        only=lambda placement, storage: placement != docker("macvlan") and storage == "bind",
    )
    added = {"peer": ["net"], "clean_peer": True, "collector": ("generator",), "layers": ["image"]}
    assert study.needs() == {"networks": ["nat"]} | added


def test_only_capabilities_that_a_plan_uses_are_in_its_identity(rig):
    options = {"protocol": nothing, "factors": {"placement": [bare("rules"), docker("host")]}}
    plan = plan_of(rig, **options)
    assert plan.design.infeasible == {"docker host": "no engine"}
    rig.missing = {"runtime:lxc": "it is not installed"}
    assert plan_of(rig, **options).identity == plan.identity
    rig.infeasible = lambda placement: None  # type: ignore[method-assign]
    assert plan_of(rig, **options).identity["conditions"] != plan.identity["conditions"]


def test_a_treatment_is_declared_with_its_levels(rig):
    loud = Loud(1, [11])
    plan = plan_of(rig, factors={"level": loud})
    assert plan.design.infeasible == {"11": "too loud"}
    study_of(factors={"level": loud}).try_one(rig)
    assert loud.applied == 1
    with pytest.raises(
        UsageError, match=r"no level of IdlePolicy called 'hold'\n.*did you mean 'held'"
    ):
        treatments.IdlePolicy("hold")
    with pytest.raises(UsageError, match="SecondHost has no option 'image'"):
        treatments.SecondHost(2, image=["net"])


@pytest.mark.parametrize(
    ("treatment", "level", "placement", "reason"),
    [
        (treatments.Pinning(), "split", bare(), "one CPU"),
        (treatments.ContainerStorage(), "bind", bare(), "no engine"),
        (treatments.SecondHost(at=2), 2, bare("clean"), "None"),
        (treatments.SecondHost(at=2, spread=True), 2, bare("rules"), "None"),
        (treatments.SecondHost(at=2, spread=True), 2, bare("clean"), "one host without"),
        (treatments.SecondHost(at=2, spread=True), 1, bare("clean"), "None"),
        (treatments.PacketCapture(), "on", bare(), "no memory"),
        (treatments.PacketSteering(), "own", bare(), "None"),
    ],
)
def test_feasibility_of_treatments(rig, treatment, level, placement, reason):
    rig.missing = {"two-cpus": "one CPU", "collector": "no memory", "separate-cpu-time": "one"}
    assert reason in str(treatment.feasibility(rig, level, {"placement": placement}))


def test_treatments_check_a_window():
    assert treatments.Pinning().check("split", {"migrations": 2}) == ["server migrated 2 times"]
    assert treatments.Pinning().check("free", {"migrations": 9}) == []
    assert treatments.BusyPolling().check("busy_poll", {}) == ["busy polling took no packet"]
    polled = {"TcpExt.BusyPollRxPackets": 3.0}
    assert treatments.BusyPolling().check("busy_poll", polled) == []
    assert treatments.IdlePolicy().check("as found", {"latency_request_us": 9}) == []
    with pytest.raises(ManipulationError, match="idle policy was not held"):
        treatments.IdlePolicy().check("held", {"latency_request_us": 9})
    observed = {"network": "the host's", "congestion control": "bbr"}
    server = Server("", 1, 7, Host(), observed, "0", list)
    with pytest.raises(ManipulationError, match="bbr, not cubic"):
        treatments.CongestionControl().placed("cubic", server)


def test_steering_without_effect_or_a_queue(rig):
    masks = {"": "0", "1,0": "3", "31": "80000000", "32": "1,00000000", "0,33": "2,00000001"}
    assert {cpus: cpu_mask(cpus) for cpus in masks} == masks
    treatment = treatments.PacketSteering()
    for counters, why in (({"rps_ipis": 0}, "made 0 inter"), ({}, "an unknown number")):
        with pytest.raises(ManipulationError, match=f"no packet was steered(.|\n)*{why}"):
            treatment.check("on", counters)
        assert treatment.check("off", counters) == treatment.check("on", {"rps_ipis": 1}) == []
    host = SimpleNamespace(name="sut", call=lambda *_, **__: [])
    rig.targets = {"sut": SimpleNamespace(host=host, sysfs="/sys", interfaces=("eth0",))}
    # Where no packet is to be moved, none needs to be.
    for shared, level in ((True, "as found"), (True, "off"), (False, "own")):
        rig.shared_kernel = shared
        assert treatment.feasibility(rig, level, {}) is None and treatment.check(level, {}) == []
    rig.shared_kernel = True
    for level in ("on", "own"):
        assert "no receive queue" in str(treatment.feasibility(rig, level, {}))


@pytest.fixture
def clock(monkeypatch):
    """The time, which passes in sleeps alone."""
    now = [0.0]
    monkeypatch.setattr(treatments.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(treatments.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    return now


@pytest.fixture
def moving(rig):
    """A rig on which a cache line takes the times of a list; the last one stays."""
    times = [65]
    host = SimpleNamespace(call=lambda *_, cpus: [times.pop(0) if times[1:] else times[0]])
    rig.targets = {"sut": SimpleNamespace(host=host)}
    return rig, times


def test_a_window_waits_until_the_cpus_share_a_cache(clock, moving):
    rig, times = moving
    cache, apart = treatments.SharedCache(), {"cache_line_ns": 280.0, "cache_line_ratio": 2.8}
    cache.least_ns, times[:] = 65, [195, 200, 190, 65]
    cache.ready(rig, "kept")
    assert clock[0] == pytest.approx(0.6) and times == [65]
    assert cache.check("kept", {"cache_line_ratio": 1.2}) == cache.check("kept", {}) == []
    with pytest.raises(CpusDisturbed, match="280 ns there and back"):
        cache.check("kept", apart)
    assert cache.check("as found", apart) == [CPUS_APART]


def test_where_cpus_do_not_come_to_share_a_cache_ever_less_is_waited(clock, moving):
    (rig, times), cache = moving, treatments.SharedCache()
    cache.least_ns, times[:] = 65, [195]
    for waited in (120, 60, 30, 15, 7.5, 3.75, 2, 2):
        began = clock[0]
        cache.ready(rig, "kept")
        assert clock[0] - began == pytest.approx(waited, abs=0.25)
        # It was so before the window.
        assert cache.check("kept", {"cache_line_ratio": 3.0}) == [CPUS_APART]
    times[:] = [65, 195]
    for level, waited in (("as found", 0), ("kept", 0), ("kept", 120)):  # they came to share it
        began = clock[0]
        cache.ready(rig, level)
        assert clock[0] - began == pytest.approx(waited, abs=0.25)


def test_a_cache_line_is_compared_with_the_least_of_the_campaign(rig):
    cache = treatments.SharedCache()
    assert cache.ready(rig, "as found") == [0, 1]
    for rig.cpu_map in ({}, {"generator": "0", "sut": "0"}):
        assert cache.ready(rig, "as found") == []
    ratios = [cache.timed([ns])["cache_line_ratio"] for ns in (200, 80, 200, 20, 80)]
    assert ratios == pytest.approx([1, 1, 2.5, 20 / LEAST_NS, 80 / LEAST_NS])
    assert cache.timed([]) == {}
    assert cache.timed([65, 195]) == {"cache_line_ns": 195, "cache_line_ratio": 3}


def test_a_trial_is_repeated_twice_for_a_slow_cpu_then_kept_and_flagged():
    speed = treatments.CpuSpeed()

    def check(level, ns):
        return speed.check(level, {"reference_ns": ns})

    assert check("kept", 12) == speed.check("kept", {}) == []
    assert check("kept", 10) == check("kept", 12.5) == []
    assert check("as found", 16) == [CPU_SLOW]
    for _ in range(2):
        for _ in range(treatments.CpuSpeed.REPETITIONS):
            with pytest.raises(CpusDisturbed, match="took 16 ns, where it takes 10"):
                check("kept", 16)
        assert check("kept", 16) == [CPU_SLOW]
    assert check("kept", 11) == [] and treatments.CpuSpeed.REPETITIONS < LOSSES


@pytest.mark.parametrize("moved", [0, trials.WINDOW_ATTEMPTS - 1, trials.WINDOW_ATTEMPTS])
def test_a_window_is_repeated_alone_where_the_cpus_were_moved(moved):
    nowhere: Any = None
    trial, left = Trial(nowhere, {}, "trial-1"), [moved]
    trial.flag("before")

    def measure(text):
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
    assert trial.flags == ["before", "of the window"]
    assert trial._repeated == {"windows_repeated": moved} and not trial.mechanisms


def test_only_another_measurement_version_stops_resuming(rig, tmp_path, monkeypatch):
    campaign = plan_of(rig, outcomes=["rtt_ns_median"]).run(tmp_path)
    assert campaign.plan["labkit"] == studies.__version__
    assert campaign.plan["outcomes"] == ["rtt_ns_median"]
    monkeypatch.setattr(studies, "__version__", "99")
    assert plan_of(rig, outcomes=["rtt_ns_p99"]).run(tmp_path).path == campaign.path
    monkeypatch.setattr(studies, "MEASUREMENT_VERSION", 99)
    with pytest.raises(UsageError, match=r"measurement_version: \d+ -> 99"):
        plan_of(rig).run(tmp_path)


def test_the_identity_has_the_code_of_functions_that_the_protocol_calls():
    def digest_of(text):
        names: dict[str, Any] = {}
        linecache.cache["cell"] = (len(text), None, text.splitlines(keepends=True), "cell")
        exec(compile(text, "cell", "exec"), names)
        return code_digest(names["protocol"])

    text = "def helper():\n    return 1\n\ndef protocol(trial):\n    return helper()\n"
    found = digest_of(text)
    assert digest_of(f"# A comment.\n{text.replace('return 1', 'return 1  # one')}") == found
    assert digest_of(text.replace("return 1", "return 2")) != found
    assert digest_of(f"def other():\n    return 2\n\n{text}") == found


def test_one_trial_shows_what_it_did(rig):
    one = study_of().try_one(rig, level=11)
    assert "--level 11, cpus 1" in repr(one) and "odd" in repr(one)
    (row,) = one.record["rows"]
    assert row["rtt_ns_median"] == 100.5 and row["rate"] == 2.5 and row["level"] == "11"
    # It has the baseline's levels by default, and the affinity of its treatment.
    free = study_of(settings={"affinity": treatments.Pinning("free")}, baseline={"level": 11})
    assert free.try_one(rig).logs["tool.out"] == "--level 11, cpus 0-1"


def test_one_trial_that_is_impossible_or_fails_raises_its_error(rig):
    def failing(trial):
        raise ManipulationError("not what its label says")

    with pytest.raises(UsageError, match="11 is not possible here"):
        study_of(factors={"level": Loud(1)}).try_one(rig, level=11)
    with pytest.raises(ManipulationError, match="not what its label says"):
        study_of(protocol=failing).try_one(rig)
