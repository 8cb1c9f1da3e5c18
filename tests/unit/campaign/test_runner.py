"""The runner on a plan without hosts: order, retries, resuming, giving up, records, progress."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.campaign import runner, study
from labkit.campaign.study import Plan, Study
from labkit.campaign.treatments import CpuSpeed
from labkit.campaign.trial import Trial
from labkit.campaign.window import harness_switches
from labkit.data import KEYS, Campaign
from labkit.errors import CommandFailed, CpusDisturbed, HostUnreachable, LabkitError, Rebooted
from labkit.process import TERMINAL
from labkit.rig.base import Rig
from labkit.status import find
from labkit.tools.base import Measurement

BOOT = ["boot a"]


class Nowhere(Rig):
    """A rig without hosts; its facts name the boot."""

    def facts(self) -> dict[str, Any]:
        return {"sut": {"stable": {}, "volatile": {"boot_id": BOOT[0]}}}


@pytest.fixture
def rig() -> Rig:
    BOOT[0] = "boot a"
    cpus = {"harness": str(min(os.sched_getaffinity(0))), "sut": "1"}
    return Nowhere("nowhere", "virtual", {}, cpus, shared_kernel=True)


def measurement(*values: int) -> Measurement:
    return Measurement({"value_ns": np.array(values, dtype=np.int64)}, {"words": 1.0}, len(values))


def plan_of(rig: Rig, protocol: Callable[..., Any], **settings: Any) -> Plan:
    one = Study("tiny", protocol, {"n": list(range(3))}, {"messages": 3, **settings})
    return one.plan(rig, blocks=2, seed=1)


def records(found: Campaign) -> list[dict[str, Any]]:
    """Return the record of every attempt in the order of the plan."""
    return [json.loads(p.read_text()) for p in sorted(found.path.glob("trials/*/trial.json"))]


class Protocol:
    """A protocol whose calls have scripted outcomes: ``c2=error``; else a sample, the level."""

    def __init__(self, **script: Any) -> None:
        self.script = {int(call[1:]): outcome for call, outcome in script.items()}
        self.seen: list[int] = []

    def __call__(self, trial: Trial, n: int) -> Any:
        self.seen.append(n)
        outcome = self.script.get(len(self.seen), measurement(n))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture(autouse=True)
def sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted protocol has no source of its own."""
    monkeypatch.setattr(study, "code_digest", lambda function: type(function).__name__)


def test_every_planned_trial_runs_once_in_the_order_of_the_plan(rig: Rig, tmp_path: Path) -> None:
    protocol = Protocol()
    plan = plan_of(rig, protocol)
    found = plan.run(tmp_path)
    wanted = [condition.levels["n"] for _, condition in plan.design.trials()]
    assert protocol.seen == wanted == found.trials["n"].tolist()
    assert found.samples("value_ns")["value_ns"].tolist() == wanted
    assert found.trials["value_ns_median"].tolist() == wanted
    assert list(found.trials)[:6] == list(KEYS)
    plan.run(tmp_path)
    assert len(protocol.seen) == 6


def test_a_resumed_campaign_goes_on_with_the_least_times(rig: Rig, tmp_path: Path) -> None:
    speed = CpuSpeed("kept")
    plan = plan_of(rig, Protocol(c3=KeyboardInterrupt()), cpu_speed=speed)
    with pytest.raises(KeyboardInterrupt):
        plan.run(tmp_path)
    first = next(tmp_path.rglob("b01-p01-a1/trial.json"))
    record = json.loads(first.read_text())
    record["rows"][0] |= {"cache_line_ns": 160.0, "cache_line_ratio": 2.0, "reference_ns": 7.0}
    first.write_text(json.dumps(record))
    rig.nearest_ns = 200.0
    plan.run(tmp_path)
    assert (rig.nearest_ns, speed.least_ns) == (80.0, 7.0)


@pytest.mark.parametrize("n", range(1, 7))
def test_an_interrupted_campaign_is_resumed(rig: Rig, tmp_path: Path, n: int) -> None:
    protocol = Protocol(**{f"c{n}": KeyboardInterrupt()})
    plan = plan_of(rig, protocol)
    with pytest.raises(KeyboardInterrupt, match=f"^{n - 1} of 6 trials are measured") as raised:
        plan.run(tmp_path)
    # A notebook shows where it was called, not where deep in a trial it came.
    assert {one.name for one in raised.traceback[1:]} == {"run"}
    found = plan.run(tmp_path)
    assert found.ok["trial"].tolist() == [f"b{b:02d}-p{p:02d}" for b in (1, 2) for p in (1, 2, 3)]
    assert len(found.trials) == 6 and len(protocol.seen) == 7


def test_a_piece_ends_with_a_block_and_the_next_goes_on(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = Protocol()
    # A trial takes 10 s, and a block of three trials 30 s.
    monkeypatch.setattr(runner.time, "monotonic", lambda: 10.0 * len(protocol.seen))
    plan = plan_of(rig, protocol)
    assert len(plan.run(tmp_path / "cut", minutes=15 / 60).ok) == 2
    protocol.seen.clear()
    assert set(plan.run(tmp_path, minutes=50 / 60).ok["block"]) == {1} and len(protocol.seen) == 3
    found = plan.run(tmp_path, minutes=60, only=[1])
    assert len(protocol.seen) == 3
    found = plan.run(tmp_path, minutes=60, only=[2])
    assert len(found.ok) == 6 == len(protocol.seen)
    assert found.trials.groupby("block")["session"].nunique().eq(1).all()


@pytest.mark.parametrize(
    "outcome",
    [
        CommandFailed("tool failed", evidence={"status": 3}),
        None,
        Measurement({"value_ns": np.array([1.5])}),
        Measurement({"a": np.array([1]), "b": np.array([1, 2])}),
    ],
)
def test_a_protocol_error_is_a_failed_row(rig: Rig, tmp_path: Path, outcome: Any) -> None:
    found = plan_of(rig, Protocol(c2=outcome)).run(tmp_path)
    assert found.trials["status"].tolist() == ["ok", "failed", *["ok"] * 5]
    assert found.trials["trial"].tolist()[1] == found.trials["trial"].tolist()[2]
    failed = found.trials.iloc[1]
    assert failed["problem"] and failed["n_samples"] == 0 and math.isnan(failed["value_ns_median"])
    (stored,) = (one for one in records(found) if one["error"])
    assert stored["error"]["what"] == failed["problem"]
    assert len(list((found.path / "samples.parquet").iterdir())) == 6


def test_a_run_ends_after_five_planned_trials_failed_in_a_row(rig: Rig, tmp_path: Path) -> None:
    bad = runner.GIVE_UP * runner.ATTEMPTS
    failing = {f"c{call}": ValueError(f"call {call}") for call in range(1, bad + 1)}
    protocol = Protocol(**failing)
    with pytest.raises(LabkitError, match="5 planned trials failed") as caught:
        plan_of(rig, protocol).run(tmp_path)
    assert len(protocol.seen) == bad and caught.value.why == f"call {bad}"
    assert [one.state for one in find([tmp_path])] == ["stopped"]
    # The next run attempts all of them again, and continues their numbering.
    found = plan_of(rig, protocol).run(tmp_path)
    assert found.trials["attempt"].max() == runner.ATTEMPTS + 1
    assert len(found.ok) == 6

    del failing["c9"]  # the fifth trial's first attempt succeeds
    plan_of(rig, Protocol(**failing)).run(tmp_path / "other")


def test_progress_is_a_bar_on_a_terminal_and_a_line_a_trial_elsewhere(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").touch()
    monkeypatch.setenv(TERMINAL, str(tmp_path / "said"))
    plan_of(rig, Protocol(c2=ValueError("odd"))).run(tmp_path / "a")
    lines = (tmp_path / "said").read_text().splitlines()
    assert [re.sub(r".* (INFO|WARNING) (\S+) .*\) (\w+).*", r"\1 \2 \3", one) for one in lines] == [
        *("INFO b01-p01 ok", "WARNING b01-p02 failed", "INFO b01-p02 ok", "INFO b01-p03 ok"),
        *(f"INFO b02-p0{number} ok" for number in (1, 2, 3)),
    ]
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    monkeypatch.setenv(TERMINAL, os.ttyname(theirs))
    plan_of(rig, Protocol(c2=ValueError("odd"))).run(tmp_path / "b")
    os.set_blocking(ours, False)
    os.close(theirs)
    shown = ""
    with contextlib.suppress(OSError):  # it ends with an error, since nobody has the other end
        while True:
            shown += os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "6/6" in shown and shown.count(": odd") == 1 and "INFO" not in shown


GONE = HostUnreachable("no answer", where="host sut")


class Flaky(Nowhere):
    """A rig whose host is silent at first, and lost again once while what was left is removed."""

    left = cuts = 0

    def silent(self) -> dict[str, HostUnreachable]:
        self.left -= 1
        return {"sut": GONE} if self.left >= 0 else {}

    def boots(self) -> dict[str, str]:
        return {"sut": BOOT[0]}

    def remove_trial(self, label: str) -> None:
        self.cuts -= 1
        if self.cuts >= 0:
            raise GONE
        self.removed = [label]


@pytest.fixture
def flaky(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Flaky:
    monkeypatch.setattr(runner, "_PAUSE_SECONDS", 0.0)
    return Flaky("flaky", "virtual", {}, rig.cpu_map, shared_kernel=True)


def test_a_host_that_does_not_answer_is_waited_for(
    flaky: Flaky, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flaky.left, flaky.patience, flaky.cuts = 3, 60.0, 2
    found = plan_of(flaky, Protocol(c2=GONE)).run(tmp_path)
    assert found.trials["status"].tolist() == ["ok", "failed", "ok", "ok", "ok", "ok", "ok"]
    assert records(found)[1]["error"]["where"] == "host sut"
    assert flaky.removed == [f"trial-{os.getpid()}-b01-p02-a1"]
    assert caplog.text.count("host sut does not answer") == 1


@pytest.mark.parametrize("error", [HostUnreachable, CpusDisturbed])
def test_lost_connections_and_moved_cpus_are_not_counted_as_attempts(
    flaky: Flaky, tmp_path: Path, error: type[LabkitError]
) -> None:
    found = plan_of(flaky, Protocol(**{f"c{n}": error("") for n in range(2, 8)})).run(tmp_path)
    assert len(found.ok) == 6 and len(found.trials) == 12
    assert found.ok.set_index("trial").loc["b01-p02", "attempt"] == 7
    # Not without end, though.
    protocol = Protocol(**{f"c{n}": error("") for n in range(1, 99)})
    with pytest.raises(LabkitError, match="5 planned trials failed"):
        plan_of(flaky, protocol).run(tmp_path / "never")
    assert len(protocol.seen) == 5 * runner.LOSSES


def test_a_host_that_stays_away_ends_the_campaign(flaky: Flaky, tmp_path: Path) -> None:
    flaky.left, flaky.patience = 10**9, 0.001
    with pytest.raises(HostUnreachable, match="waited for 0 s"):
        plan_of(flaky, Protocol(c2=GONE)).run(tmp_path)
    flaky.left = 0
    found = plan_of(flaky, Protocol()).run(tmp_path)
    assert len(found.ok) == 6


def test_a_reboot_ends_the_run_and_the_next_has_a_session_of_its_own(
    flaky: Flaky, tmp_path: Path
) -> None:
    def protocol(trial: Trial) -> Measurement:
        if BOOT[0] == "boot a" and len(list(tmp_path.rglob("trial.json"))) == 2:
            BOOT[0] = "boot b"
            raise CommandFailed("the server is gone")
        return measurement(1)

    with pytest.raises(Rebooted, match="host sut has rebooted"):
        plan_of(flaky, protocol).run(tmp_path)
    found = plan_of(flaky, protocol).run(tmp_path)
    assert len(found.ok) == 6
    assert found.trials["session"].tolist() == [1, 1, 1, 2, 2, 2, 2]


def test_the_harness_leaves_the_sut_during_a_run_and_its_wake_ups_are_counted(rig: Rig) -> None:
    before, switches = os.sched_getaffinity(0), harness_switches()
    with pytest.raises(KeyboardInterrupt), runner.pinned_to_harness(rig):
        assert os.sched_getaffinity(0) == {int(rig.cpu_map["harness"])}
        for _ in range(20):
            time.sleep(0.001)
        raise KeyboardInterrupt
    assert os.sched_getaffinity(0) == before and harness_switches() >= switches + 20
