"""The runner on a plan without hosts: order, retries, resuming, giving up, progress, and files."""

import contextlib
import json
import math
import os
import re
import termios
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from labkit import errors
from labkit.campaign import runner, study
from labkit.campaign.study import Study
from labkit.campaign.treatments import CpuSpeed, SharedCache
from labkit.data import KEYS, load
from labkit.errors import CommandFailed, HostLost, LabkitError, UsageError
from labkit.process import TERMINAL
from labkit.tools.base import Measurement


def measurement(*values):
    return Measurement({"value_ns": np.array(values, dtype=np.int64)}, {"words": 1.0}, len(values))


def plan_of(rig, protocol, **settings):
    one = Study("tiny", protocol, {"n": list(range(3))}, {"messages": 3, **settings})
    return one.plan(rig, blocks=2, seed=1)


class Protocol:
    """A protocol whose calls have scripted outcomes: ``c2=error``; else a sample, the level."""

    def __init__(self, **script):
        self.script = {int(call[1:]): outcome for call, outcome in script.items()}
        self.seen: list[int] = []

    def __call__(self, trial, n):
        self.seen.append(n)
        outcome = self.script.get(len(self.seen), measurement(n))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    """A scripted protocol has no source of its own."""
    monkeypatch.setattr(study, "code_digest", lambda function: type(function).__name__)


def test_every_planned_trial_runs_once_in_the_order_of_the_plan(rig, tmp_path):
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


def test_a_resumed_campaign_goes_on_with_the_least_times(rig, tmp_path):
    speed, cache = CpuSpeed("kept"), SharedCache("kept")
    plan = plan_of(rig, Protocol(c3=KeyboardInterrupt()), cpu_speed=speed, shared_cache=cache)
    with pytest.raises(KeyboardInterrupt):
        plan.run(tmp_path)
    first = next(tmp_path.rglob("b01-p01-a1/trial.json"))
    record = json.loads(first.read_text())
    record["rows"][0] |= {"cache_line_ns": 160.0, "cache_line_ratio": 2.0, "reference_ns": 7.0}
    first.write_text(json.dumps(record))
    cache.least_ns = 200.0
    plan.run(tmp_path)
    assert (cache.least_ns, speed.least_ns) == (80.0, 7.0)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_an_interrupted_campaign_is_resumed(rig, tmp_path, n):
    protocol = Protocol(**{f"c{n}": KeyboardInterrupt()})
    plan = plan_of(rig, protocol)
    with pytest.raises(KeyboardInterrupt, match=f"^{n - 1} of 6 trials are measured") as raised:
        plan.run(tmp_path)
    # A notebook shows where it was called, not where deep in a trial it came.
    assert {one.name for one in raised.traceback[1:]} == {"run"}
    found = plan.run(tmp_path)
    assert found.ok["trial"].tolist() == [f"b{b:02d}-p{p:02d}" for b in (1, 2) for p in (1, 2, 3)]
    assert len(found.trials) == 6 and len(protocol.seen) == 7


def test_a_piece_ends_with_a_block_and_the_next_goes_on(rig, tmp_path, monkeypatch):
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
def test_a_protocol_error_is_a_failed_row(rig, tmp_path, outcome):
    found = plan_of(rig, Protocol(c2=outcome)).run(tmp_path)
    assert found.trials["status"].tolist() == ["ok", "failed", *["ok"] * 5]
    assert found.trials["trial"].tolist()[1] == found.trials["trial"].tolist()[2]
    failed = found.trials.iloc[1]
    assert failed["problem"] and failed["n_samples"] == 0 and math.isnan(failed["value_ns_median"])
    records = map(Path.read_text, found.path.glob("trials/*/trial.json"))
    (stored,) = (one for one in map(json.loads, records) if one["error"])
    assert stored["error"]["what"] == failed["problem"]
    assert len(list((found.path / "samples.parquet").iterdir())) == 6


def test_a_run_ends_after_five_planned_trials_failed_in_a_row(rig, tmp_path):
    bad = runner.GIVE_UP * runner.ATTEMPTS
    failing = {f"c{call}": ValueError(f"call {call}") for call in range(1, bad + 1)}
    protocol = Protocol(**failing)
    with pytest.raises(LabkitError, match="5 planned trials failed") as caught:
        plan_of(rig, protocol).run(tmp_path)
    assert len(protocol.seen) == bad and caught.value.why == f"call {bad}"
    # The next run attempts all of them again, and continues their numbering.
    found = plan_of(rig, protocol).run(tmp_path)
    assert found.trials["attempt"].max() == runner.ATTEMPTS + 1 and len(found.ok) == 6
    del failing["c9"]  # the fifth trial's first attempt succeeds
    plan_of(rig, Protocol(**failing)).run(tmp_path / "other")


def test_progress_is_a_bar_on_a_terminal_and_a_line_a_trial_elsewhere(rig, tmp_path, monkeypatch):
    (tmp_path / "said").touch()
    monkeypatch.setenv(TERMINAL, str(tmp_path / "said"))
    plan_of(rig, Protocol(c2=ValueError("odd"))).run(tmp_path / "a")
    lines = re.findall(r" (b\S+) .*\) \S+ s, (ok|failed): ", (tmp_path / "said").read_text())
    assert lines[:3] == [("b01-p01-a1", "ok"), ("b01-p02-a1", "failed"), ("b01-p02-a2", "ok")]
    assert len(lines) == 7
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
    assert "6/6" in shown and shown.count(": odd") == 1 and " ok: " not in shown


@pytest.mark.parametrize("error", [errors.HostUnreachable, errors.CpusDisturbed])
def test_lost_connections_and_moved_cpus_are_not_counted_as_attempts(rig, tmp_path, error):
    found = plan_of(rig, Protocol(**{f"c{n}": error("") for n in range(2, 8)})).run(tmp_path)
    assert len(found.ok) == 6 and len(found.trials) == 12
    assert found.ok.set_index("trial").loc["b01-p02", "attempt"] == 7
    # Not without end, though.
    protocol = Protocol(**{f"c{n}": error("") for n in range(1, 99)})
    with pytest.raises(LabkitError, match="5 planned trials failed"):
        plan_of(rig, protocol).run(tmp_path / "never")
    assert len(protocol.seen) == 5 * runner.LOSSES


@pytest.mark.parametrize(
    ("boot", "said", "sessions"),
    [("boot a", "host sut does not answer", {1}), ("boot b", "host sut has rebooted", {1, 2})],
)
def test_a_lost_host_ends_the_run_and_the_next_goes_on(rig, tmp_path, boot, said, sessions):
    def protocol(trial):
        if len(list(tmp_path.rglob("trial.json"))) == 2:
            rig.boot, rig.gone = boot, boot == "boot a"
            raise CommandFailed("the server is gone")
        return measurement(1)

    with pytest.raises(HostLost, match=said):
        plan_of(rig, protocol).run(tmp_path)
    rig.gone = False
    found = plan_of(rig, protocol).run(tmp_path)
    assert found.trials["status"].tolist() == ["ok", "ok", "failed", "ok", "ok", "ok", "ok"]
    assert {*found.trials["session"]} == sessions and len(found.ok) == 6


def test_a_reboot_of_an_idle_host_begins_another_session(rig, tmp_path):
    def protocol(trial):
        if len(list(tmp_path.rglob("trial.json"))) == 1:
            rig.boot = "boot b"
        return measurement(1)

    rig.shared_kernel = False
    plan = plan_of(rig, protocol)
    assert plan.facts
    with pytest.raises(HostLost, match="host sut has rebooted"):
        plan.run(tmp_path)
    found = plan_of(rig, protocol).run(tmp_path)
    assert found.trials["session"].tolist() == [1, 1, 2, 2, 2, 2] and len(found.ok) == 6


def test_the_harness_leaves_the_sut_during_a_run(rig):
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyboardInterrupt), runner.pinned_to_harness(rig):
        assert os.sched_getaffinity(0) == {int(rig.cpu_map["harness"])}
        raise KeyboardInterrupt
    assert os.sched_getaffinity(0) == before


PLAN: dict[str, Any] = {"identity": {"settings": {"messages": 3}, "order": [[0, 1]]}}
PLAN |= {"study": "made-up", "factors": {}, "settings": {}, "order": [], "rig": {}}
ROW: dict[str, Any] = {"trial": "b01-p01", "attempt": 1, "block": 1, "position": 1}
ROW |= {"session": 1, "repeat": 1, "status": "ok", "flags": ""}
RTT = {"rtt_ns": np.array([1, 2])}


def begin(tmp_path, plan=PLAN, new=False):
    with runner.opened(tmp_path / "study", plan, new=new) as path:
        return path


@pytest.fixture
def store(tmp_path):
    return begin(tmp_path)


def test_samples_and_numbers_of_numpy_round_trip_exactly(store):
    limits, row = np.iinfo(np.int64), ROW | {"n": np.int64(3), "x": np.float64(0.5)}
    values = np.array([limits.min, limits.max, 0, -1, limits.min])
    runner.add(store, {"rows": [row]}, {"a": values, "b": values[::-1]}, {})
    wanted = {"trial": ["b01-p01"] * 5, "attempt": [1] * 5, "a": values.tolist()}
    (path,) = store.glob("samples.parquet/*")
    assert parquet.read_table(path).to_pydict() == wanted | {"b": values[::-1].tolist()}
    assert runner.attempts(store) == [row]


def test_the_same_plan_resumes_and_another_or_a_packed_one_is_refused(store, tmp_path):
    assert begin(tmp_path) == store
    other = PLAN | {"identity": {"settings": {"messages": 4}, "order": [[1, 0]]}}
    with pytest.raises(UsageError, match=r"settings\.messages: 3 -> 4(.|\n)*--new") as caught:
        begin(tmp_path, other)
    assert "order" not in str(caught.value)
    new, again = begin(tmp_path, other, True), begin(tmp_path, other, True)
    assert store < new < again == begin(tmp_path, other)
    (store / "plan.json").write_text('{"format": 1}')  # only the newest one matters
    (again / "trials.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match="packed campaign cannot be continued"):
        begin(tmp_path, other)


def files(store):
    paths = [path for path in store.rglob("*") if path.is_file() and path.name != ".lock"]
    return sorted(str(path.relative_to(store)) for path in paths)


def test_a_study_is_measured_by_one_process(store, tmp_path):
    part = store / ".attempt"
    with runner.opened(tmp_path / "study", PLAN, new=False):
        part.mkdir()
        with pytest.raises(UsageError, match=f"another process measures(.|\n)*{os.getpid()} on "):
            begin(tmp_path, new=True)
        assert part.exists()
    assert begin(tmp_path) == store and not part.exists()


@pytest.mark.parametrize("step", range(13))
def test_a_trial_appears_complete_or_not_at_all(store, tmp_path, monkeypatch, step):
    """Die at each flush to the disk in turn; what is then read is nothing or everything."""
    calls = iter(range(1000))

    def dying(handle):
        if next(calls) == step:
            raise KeyboardInterrupt

    logs = {"tool.out": "x", "server.log": "y"}
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(runner.os, "fsync", dying)
        runner.add(store, {"rows": [ROW]}, RTT, logs)
    whole = bool(runner.attempts(begin(tmp_path)))
    assert (files(store) != ["plan.json"]) == whole
    if not whole:
        runner.add(store, {"rows": [ROW]}, RTT, logs)
    assert files(store) == [
        *("plan.json", "samples.parquet/b01-p01-a1.parquet"),
        *(f"trials/b01-p01-a1/{name}" for name in ("server.log", "tool.out", "trial.json")),
    ]
    assert load(store).samples("rtt_ns")["rtt_ns"].tolist() == [1, 2]
