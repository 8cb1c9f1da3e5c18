"""Campaigns on the real rig: from plan to dataset, interrupted, and resumed."""

import json
import os

import numpy as np
import pytest
from conftest import leftovers

from labkit import Study, load
from labkit.placement import bare, docker
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
#: The number of the call of a protocol whose load interrupts this process; not in an identity.
INTERRUPTED: list[int] = []
CALLS: list[str] = []


def count(stdout, log):
    values = np.array([int(word) for word in stdout.split()], dtype=np.int64)
    return Measurement({"value_ns": values}, {"words": float(len(values))}, messages=len(values))


def quick(trial, placement, messages):
    """Serve and measure, with a load that takes no time, or interrupts in the window."""
    with trial.serve(sockperf.server("block"), placement) as server:
        CALLS.append(placement.label)
        argv = ("sh", "-c", 'echo out >&2; exec seq "$0"', str(messages))
        if len(CALLS) in INTERRUPTED:
            argv = ("sh", "-c", 'kill -INT "$0"; exec sleep 60', str(os.getpid()))
        return trial.measure(Client(argv, server.address, 60.0, count))


@pytest.fixture(autouse=True)
def clear():
    INTERRUPTED.clear()
    CALLS.clear()


def plan(lab, **more):
    factors = {"placement": [bare("clean"), docker("bridge")]}
    return Study("tiny", quick, factors, {"messages": 4}, **more).plan(lab, blocks=2, seed=7)


def once_each(found, planned):
    """Check that each planned trial has succeeded exactly once."""
    ok = found.ok["trial"].tolist()
    assert len(ok) == len(set(ok)) == planned == sum(map(len, found.plan["order"]))


def files(found):
    paths = [path for path in found.path.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): path.read_bytes() for path in paths}


def test_from_plan_to_dataset(lab, label, tmp_path):
    planned = plan(lab, tools={"sockperf": sockperf.probe})
    found = planned.run(into=tmp_path)
    once_each(found, 4)
    stored = json.loads((found.path / "plan.json").read_text())
    assert stored == json.loads(json.dumps({"format": 2, **planned.as_record()}))
    assert set(stored["identity"]["tools"]) == {"sockperf on clean", "sockperf on generator"}
    assert found.trials["trial"].tolist() == sorted(found.ok["trial"])
    assert found.samples("value_ns")["value_ns"].tolist() == [1, 2, 3, 4] * 4
    assert set(found.ok["value_ns_median"]) == {2.5} and not found.ok["saturated"].any()
    assert set(found.ok["server_last_cpu"]) == {float(lab.cpu_map["sut"])}
    for path in found.path.glob("trials/*/trial.json"):
        record, folder = json.loads(path.read_text()), path.parent
        assert record["verification"]["allowed CPUs"] == lab.cpu_map["sut"]
        evidence = record["evidence"]
        assert evidence["before"]["uptime"] < evidence["after"]["uptime"]
        begun = [command[:2] for command in record["commands"]]
        assert begun == [["sockperf", "server"], ["sh", "-c"]]
        assert "sockperf" in (folder / "server.log").read_text()
        assert (folder / "tool.out").read_text() == "1\n2\n3\n4\n"
        assert (folder / "tool.err").read_text() == "out\n"
    assert sorted(found.facts) == sorted(lab.hosts)
    assert found.plan["identity"]["images"] == lab.images()
    before = files(found)
    assert files(planned.run(into=tmp_path)) == before  # complete: the same again does nothing
    assert len(CALLS) == 4


# A window of each placement, in the second block; test_runner.py interrupts every call.
@pytest.mark.parametrize("call", [3, 4])
def test_an_interrupt_in_a_window_keeps_finished_trials_and_leaves_nothing_running(
    lab, label, tmp_path, call
):
    INTERRUPTED.append(call)
    with pytest.raises(KeyboardInterrupt):
        plan(lab).run(into=tmp_path)
    assert leftovers() == []
    stored = load(tmp_path / "tiny")
    before = files(stored)
    assert stored.trials["status"].tolist() == ["ok"] * (call - 1)
    found = plan(lab).run(into=tmp_path)
    once_each(found, 4)
    assert len(found.trials) == 4 and len(found.sessions) == 1
    assert before.items() <= files(found).items()
    assert len(CALLS) == 5  # four trials, and the one that was interrupted
