"""A trial: contexts entered at the same time, the record, the rows, and a prepared client."""

import os
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from labkit.campaign.trial import AT_ONCE, Trial, at_once, saturated
from labkit.design import Condition
from labkit.errors import ManipulationError, ToolOutput, UsageError
from labkit.hosts import LocalHost
from labkit.placement import docker
from labkit.runtimes import Server
from labkit.tools.base import NOT_REACHED, Client, Measurement

NOWHERE: Any = None


@pytest.mark.parametrize(
    ("failing", "said"),
    [(None, ""), ((7, "in"), "7 in"), ((0, "out"), "0 out"), (("block", ""), "block")],
)
def test_all_stand_in_order_or_none_is_left(failing, said):
    standing, left, entered = set(), set(), []

    def fail(*where):
        if where == failing:
            raise ValueError(" ".join(map(str, where)))

    @contextmanager
    def place(number):
        fail(number, "in")
        standing.add(number)
        try:
            yield number
        finally:
            standing.remove(number)
            left.add(number)
            fail(number, "out")

    with (
        pytest.raises(ValueError, match=said) if said else nullcontext(),
        at_once([*map(place, range(20))]) as values,
    ):
        entered += values
        assert standing == {*range(20)}
        fail("block", "")
    assert not standing and entered == ([] if said == "7 in" else [*range(20)])
    assert said == "7 in" or left == {*range(20)}


def test_they_are_entered_at_the_same_time():
    barrier = threading.Barrier(AT_ONCE)

    @contextmanager
    def meeting():
        barrier.wait(timeout=60)  # broken unless all are under way at once
        yield
        barrier.wait(timeout=60)

    with at_once([meeting() for _ in range(AT_ONCE)]):
        pass


def test_two_placements_of_one_name_are_refused_before_any_is_made():
    twice = Trial(NOWHERE, {}, "trial-1").serve_all([{"name": "hop"}] * 2)
    with pytest.raises(UsageError, match="two placements called 'hop' at once"), twice:
        pass


def test_a_long_argument_is_recorded_by_its_length():
    trial = Trial(NOWHERE, {}, "trial-1")
    trial.keep_command(("python3", "-c", "x" * 5000))
    assert trial.record["commands"] == [["python3", "-c", "<5000 characters>"]]


# Rows.

KEYS = {"trial": "b01-p02", "attempt": 1, "block": 1, "position": 2, "session": 1}
OUTCOME = {"status": "ok", "problem": "", "started_ns": 5, "seconds": 0.5}
CONDITION = Condition({"placement": docker("host"), "size_b": 64}, repeat=2)


def test_a_published_port_that_no_flow_took_is_an_error():
    flows = {"flows udp": "3"}
    place = {"port": 7, "pid": 1, "host": NOWHERE, "cpus": "0", "enter": NOWHERE}
    server = Server("198.18.0.3", verification=flows, placement=docker("nat"), **place)
    trial = Trial(NOWHERE, {}, "lkt", _servers={"server": server}, _main="server")
    clients = {"tool": (Client((), server.address, 1.0, NOWHERE), None)}
    with pytest.raises(ManipulationError, match="did not pass the address translation"):
        trial._check_used(SimpleNamespace(ends={}, after={"server": flows}), clients)
    trial._check_used(SimpleNamespace(ends={}, after={"server": {"flows udp": "4"}}), clients)


def rows(measurement, *flags, **verified):
    trial = Trial(NOWHERE, {}, "trial-1", counters={"steal": 0.1}, _verified=verified)
    trial.flag(*(flags or ("odd", "late")))
    return trial.rows(KEYS, CONDITION, OUTCOME, measurement)


def test_a_row_has_levels_flags_counters_metrics_and_statistics():
    samples = {"rtt_ns": np.arange(1, 21), "start_ns": np.arange(20), "set": np.arange(20)}
    (row,) = rows(Measurement(samples, {"rate": 2.5, "steal": 0.2, "unknown": None}))
    assert list(row)[:8] == [*KEYS, "repeat", "placement", "size_b"]
    assert (row["placement"], row["size_b"], row["repeat"]) == ("docker host", "64", 2)
    assert (row["flags"], row["n_samples"], row["steal"]) == ("odd; late", 20, 0.2)
    found = {name: value for name, value in row.items() if name.startswith("rtt_ns")}
    assert found["rtt_ns_median"] == 10.5 and found["rtt_ns_p95"] == np.quantile(range(1, 21), 0.95)
    assert found["rtt_ns_std"] == np.std(range(1, 21), ddof=1) and "rtt_ns_p99" not in found
    assert not {"start_ns_mean", "set_mean", "unknown", "loaded_saturated"} & set(row)
    assert row["router"] == ""


def test_further_conditions_and_the_data_path_of_routers_are_in_rows():
    verified = {"server": {"router to 198.18.0.5": "sleeve"}, "client": {}}
    also = (({"size_b": 128}, {"rate": 3.0}),)
    own, other = rows(Measurement({}, {"rate": 2.0}, also=also), **verified)
    assert [row["trial"] for row in (own, other)] == ["b01-p02", "b01-p02/1"]
    assert [row["size_b"] for row in (own, other)] == ["64", "128"]
    assert [row["rate"] for row in (own, other)] == [2.0, 3.0]
    assert other["placement"] == "docker host" and other["steal"] == 0.1
    assert other["router"] == "sleeve"


@pytest.mark.parametrize(
    ("numbers", "flags", "expected"),
    [
        ({}, "", False),
        ({"tool_cpu": 0.91}, "", True),
        ({"tool_cpu": 0.9, "client_delay": 0.05}, "", False),
        ({"client_delay": 0.06}, "", True),
        ({"reached": 0.9}, "", False),
        ({"reached": 0.9}, f"{NOT_REACHED}: 9 of 10", True),
        ({"reached": 0.96}, NOT_REACHED, False),
        ({"sent_per_s": 90.0, "offered_per_s": 100}, NOT_REACHED, True),
        ({"sent_per_s": 90.0}, NOT_REACHED, False),
    ],
)
def test_a_load_generator_may_be_the_limit(numbers, flags, expected):
    assert saturated(numbers, flags) is expected


def test_the_window_at_the_offered_rate_has_its_own_limit():
    numbers = {"sent_per_s": 99.0, "loaded_sent_per_s": 80.0, "offered_per_s": 100}
    (row,) = rows(Measurement({}, numbers), NOT_REACHED)
    assert (row["saturated"], row["loaded_saturated"]) == (False, True)


# A client that is started before its window, and stopped until then.

HOST, LABEL = LocalHost(), f"test-prestart-{os.getpid()}"
#: As sockperf does: it says so, sleeps in one call, and then sends.
PROGRAM = """
import sys, time
print("Warmup stage", flush=True)
time.sleep(0.2)
open(sys.argv[1], "w").write("begun")
print("sent")
sys.exit(7)
"""


@pytest.fixture
def prepared(tmp_path):
    """A function that starts a client and stops it in the folder LABEL-load, as a context."""
    generator = SimpleNamespace(host=HOST, directory=str(tmp_path))
    rig: Any = SimpleNamespace(targets={"generator": generator})
    rig.check_target, rig.cpus = (lambda address: None), (lambda role, affinity: "0")

    def prepare(*command):
        sleep = (0.2, "Warmup stage")
        client = Client(command, "198.18.0.1", 1.0, lambda *_: Measurement({}), prestart=sleep)
        return Trial(rig, {}, LABEL).prepare(client, name="load")

    return prepare


@pytest.mark.parametrize("let_go", [True, False])
def test_it_begins_when_it_is_let_go_and_not_before(prepared, tmp_path, let_go):
    begun, folder = tmp_path / "begun", tmp_path / f"{LABEL}-load"
    command = ("python3", "-c", PROGRAM, str(begun))
    with prepared(*command) as one:
        ready = one.ready()
        # It has slept its time, and is stopped all the same.
        pid = int((folder / "client").read_text())
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED and not begun.exists()
        if let_go:
            result = HOST.run(*ready.argv, check=False)
            assert result.status == 7 and result.stdout.splitlines() == ["Warmup stage", "sent"]
        # Whoever looks what aims where finds the command itself.
        assert set(command) <= set(ready.argv)
    assert begun.exists() == let_go and not folder.exists()
    assert HOST.call("labelled", prefix=LABEL) == []


def test_one_that_ends_at_once_says_why(prepared):
    failing = ("sh", "-c", "echo no such option >&2; exit 1")
    with prepared(*failing) as one, pytest.raises(ToolOutput, match="no such option"):
        one.ready()
