"""Campaigns on the real rig: run, interrupt, resume, fail, refuse to mix, begin anew."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import Study, load
from labkit.campaign import runner
from labkit.campaign.trial import Trial
from labkit.data import Campaign
from labkit.errors import LabkitError
from labkit.placement import Placement, bare, docker
from labkit.rig.base import Rig
from labkit.runtimes import RUNTIMES
from labkit.runtimes.docker import Docker
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
Left = Callable[[], list[str]]
#: Functions that the protocols below call at their n-th call; not part of a plan's identity.
AT: dict[int, Callable[[], Any]] = {}
CALLS: list[str] = []


def count(stdout: str, log: str) -> Measurement:
    values = np.array([int(word) for word in stdout.split()], dtype=np.int64)
    return Measurement({"value_ns": values}, {"words": float(len(values))}, messages=len(values))


def quick(trial: Trial, placement: Placement, messages: int) -> Measurement:
    """Serve and measure, with a load that takes no time."""
    with trial.serve(sockperf.server("block"), placement) as server:
        CALLS.append(placement.label)
        AT.get(len(CALLS), lambda: None)()
        argv = ("sh", "-c", 'echo out >&2; exec seq "$0"', str(messages))
        return trial.measure(Client(argv, server.address, 1.0, count))


def failing(trial: Trial, placement: Placement) -> Measurement:
    """Measure a load that prints something and fails."""
    with trial.serve(sockperf.server("block"), placement) as server:
        argv = ("sh", "-c", "echo half; echo broken >&2; exit 3")
        return trial.measure(Client(argv, server.address, 1.0, count))


@pytest.fixture(autouse=True)
def no_calls() -> None:
    AT.clear()
    CALLS.clear()


def study(protocol: Callable[..., Measurement] = quick, *, messages: int = 4, **more: Any) -> Study:
    placements = more.pop("placements", [bare("clean"), docker("bridge")])
    return Study("tiny", protocol, {"placement": placements}, {"messages": messages}, **more)


def once_each(found: Campaign, planned: int) -> None:
    """Check that each planned trial has succeeded exactly once."""
    ok = found.ok["trial"].tolist()
    assert len(ok) == len(set(ok)) == planned == sum(map(len, found.plan["order"]))


def records(found: Campaign) -> list[dict[str, Any]]:
    """Return the record of every attempt in the order of the plan, with its folder."""
    paths = sorted(found.path.glob("trials/*/trial.json"))
    return [json.loads(path.read_text()) | {"folder": path.parent} for path in paths]


def files(found: Campaign) -> dict[str, bytes]:
    paths = [path for path in found.path.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): path.read_bytes() for path in paths}


def test_from_plan_to_dataset(lab: Rig, left: Left, tmp_path: Path) -> None:
    plan = study(tools={"sockperf": sockperf.probe}).plan(lab, blocks=2, seed=7)
    found = plan.run(into=tmp_path)
    once_each(found, 4)
    stored = json.loads((found.path / "plan.json").read_text())
    assert stored == json.loads(json.dumps({"format": 2, **plan.as_record()}))
    assert set(stored["identity"]["tools"]) == {"sockperf on clean", "sockperf on generator"}
    assert found.trials["trial"].tolist() == sorted(found.ok["trial"])
    assert found.samples("value_ns")["value_ns"].tolist() == [1, 2, 3, 4] * 4
    assert set(found.ok["value_ns_median"]) == {2.5} and not found.ok["saturated"].any()
    assert set(found.ok["server_last_cpu"]) == {float(lab.cpu_map["sut"])}
    for record in records(found):
        assert record["verification"]["allowed CPUs"] == lab.cpu_map["sut"]
        assert record["evidence"]["before"]["clock_ns"] < record["evidence"]["after"]["clock_ns"]
        assert record["commands"][0][:2] == ["sockperf", "server"]
        assert record["commands"][1][:2] == ["sh", "-c"]
        folder = record["folder"]
        assert "sockperf" in (folder / "server.log").read_text()
        assert (folder / "tool.out").read_text() == "1\n2\n3\n4\n"
        assert (folder / "tool.err").read_text() == "out\n"
    assert sorted(found.facts) == ["clean", "generator", "sut"]
    assert found.plan["identity"]["images"] == lab.images()
    before = files(found)
    assert files(plan.run(into=tmp_path)) == before  # complete: the same again does nothing
    assert len(CALLS) == 4
    assert left() == []


# Of each placement, in the second block; test_runner.py interrupts every call.
@pytest.mark.parametrize("n", [3, 4])
def test_an_interrupt_keeps_finished_trials_and_leaves_nothing_running(
    lab: Rig, left: Left, tmp_path: Path, n: int
) -> None:
    AT[n] = lambda: signal.raise_signal(signal.SIGINT)
    plan = study().plan(lab, blocks=2, seed=7)
    with pytest.raises(KeyboardInterrupt):
        plan.run(into=tmp_path)
    assert left() == []
    stored = load(tmp_path / "tiny")
    before = files(stored)
    assert stored.trials["status"].tolist() == ["ok"] * (n - 1)
    found = study().plan(lab, blocks=2, seed=7).run(into=tmp_path)
    once_each(found, 4)
    assert len(found.trials) == 4 and len(found.sessions) == 1
    assert before.items() <= files(found).items()
    assert len(CALLS) == 5  # four trials, and the one that was interrupted
    assert left() == []


def interrupted(trial: Trial, placement: Placement) -> Measurement:
    """Measure a load that interrupts this process, and would take a minute."""
    with trial.serve(sockperf.server("block"), placement) as server:
        argv = ("sh", "-c", 'kill -INT "$0"; exec sleep 60', str(os.getpid()))
        return trial.measure(Client(argv, server.address, 60.0, count))


@pytest.mark.parametrize("placement", [bare("cgroup"), docker("nat")], ids=str)
def test_an_interrupt_inside_the_window_leaves_nothing(
    lab: Rig, left: Left, tmp_path: Path, placement: Placement
) -> None:
    plan = study(interrupted, placements=[placement]).plan(lab, blocks=1, seed=7)
    with pytest.raises(KeyboardInterrupt):
        plan.run(into=tmp_path)
    assert left() == []
    assert load(tmp_path / "tiny").trials.empty


def test_a_failed_trial_is_a_row_and_is_attempted_again(
    lab: Rig, left: Left, tmp_path: Path
) -> None:
    def fail() -> None:
        raise RuntimeError("by chance")

    AT[2] = fail
    found = study().plan(lab, blocks=1, seed=7).run(into=tmp_path)
    once_each(found, 2)
    assert found.trials["status"].tolist() == ["ok", "failed", "ok"]
    assert found.trials["attempt"].tolist() == [1, 1, 2]
    (failed,) = (one for one in records(found) if one["error"])
    assert failed["error"]["type"] == "RuntimeError" and failed["error"]["what"] == "by chance"
    assert failed["verification"]["command"].startswith("sockperf server")
    assert found.trials["problem"].tolist() == ["", "by chance", ""]
    assert left() == []


def test_a_run_on_a_broken_rig_ends_and_keeps_every_attempt(
    lab: Rig, left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "GIVE_UP", 2)
    plan = study(failing).plan(lab, blocks=3, seed=7)
    with pytest.raises(LabkitError, match="2 planned trials failed one after the other"):
        plan.run(into=tmp_path)
    found = load(tmp_path / "tiny")
    assert len(found.trials) == runner.GIVE_UP * runner.ATTEMPTS
    assert len(found.ok) == 0 and not (found.path / "samples.parquet").exists()
    for record in records(found):
        folder = record["folder"]
        assert record["error"]["type"] == "CommandFailed"
        assert record["error"]["evidence"]["status"] == 3
        assert (folder / "tool.out").read_text() == "half\n"
        assert (folder / "tool.err").read_text() == "broken\n"
    assert left() == []


def test_a_placement_that_fails_its_verification_is_a_failed_row(
    lab: Rig, left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HostMode(Docker):
        @staticmethod
        def network(*arguments: Any) -> list[str]:
            return ["--network", "host"]

    monkeypatch.setitem(RUNTIMES, "docker", HostMode())
    plan = study(placements=[docker("bridge")]).plan(lab, blocks=1, seed=7)
    found = plan.run(into=tmp_path)
    assert CALLS == []  # the protocol never had the server
    assert found.trials["status"].tolist() == ["failed"] * runner.ATTEMPTS
    assert found.trials["n_samples"].tolist() == [0] * runner.ATTEMPTS
    for record in records(found):
        error = record["error"]
        assert error["type"] == "ManipulationError"
        assert "network: the host's, not its own" in error["what"]
        verification = error["evidence"]["verification"]
        assert verification["network"] == "the host's"
        names = sorted(path.name for path in record["folder"].iterdir())
        assert names == ["server.log", "trial.json"]
    assert left() == []
