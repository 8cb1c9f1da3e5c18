"""A trial: contexts entered at the same time, the record, the rows, and a prepared client."""

import os
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.campaign.trial import AT_ONCE, Trial, at_once, saturated
from labkit.campaign.window import Window
from labkit.design import Condition
from labkit.errors import ManipulationError, ToolOutput, UsageError
from labkit.hosts import Host, Result
from labkit.placement import docker
from labkit.runtimes import Server
from labkit.tools.base import NOT_REACHED, Client, Measurement

NOWHERE: Any = None


@pytest.mark.parametrize(
    ("failing", "said"),
    [(None, ""), ((19, "in"), "19 in"), ((0, "out"), "0 out"), (("block", ""), "block")],
)
def test_all_stand_in_order_several_at_a_time_or_none_is_left(failing, said):
    standing, entered = set(), []
    # It is broken unless so many are under way at once; the last fails, and nobody waits for it.
    barrier = threading.Barrier(AT_ONCE)

    def fail(*where):
        if where == failing:
            raise ValueError(" ".join(map(str, where)))

    @contextmanager
    def place(number):
        barrier.wait(timeout=60)
        fail(number, "in")
        standing.add(number)
        try:
            yield number
        finally:
            standing.remove(number)
            fail(number, "out")

    with (
        pytest.raises(ValueError, match=said) if said else nullcontext(),
        at_once([*map(place, range(20))]) as values,
    ):
        entered += values
        assert standing == {*range(20)}
        fail("block", "")
    assert not standing and entered == ([] if said == "19 in" else [*range(20)])


def test_two_placements_of_one_name_are_refused_before_any_is_made():
    twice = Trial(NOWHERE, {}, "trial-1").serve_all([{"name": "hop"}] * 2)
    with pytest.raises(UsageError, match="two placements called 'hop' at once"), twice:
        pass


def test_a_long_argument_is_recorded_by_its_length():
    trial = Trial(NOWHERE, {}, "trial-1")
    trial.keep_command(("python3", "-c", "x" * 5000))
    assert trial.record["commands"] == [["python3", "-c", "<5000 characters>"]]


KEYS = {"trial": "b01-p02", "attempt": 1, "block": 1, "position": 2, "session": 1}
OUTCOME = {"status": "ok", "problem": "", "started_ns": 5, "seconds": 0.5}
CONDITION = Condition({"placement": docker("host"), "size_b": 64}, repeat=2)


def rows(measurement, *flags, **verified):
    trial = Trial(NOWHERE, {}, "trial-1", mechanisms={"steal": 0.1}, _verified=verified)
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


def test_the_load_of_a_window_takes_the_published_port_and_stays_in_its_control_group():
    verified, nat = {"flows tcp": "1"}, docker("nat")
    server = Server("198.18.0.3", 80, 7, Host(), verified, "0", list, placement=nat)
    client = Client((), server.address, 1.0, lambda *_: Measurement({}), protocols=("tcp",))
    trial = Trial(NOWHERE, {}, "trial-1", _servers={"server": server}, _main="server")

    def check(flows, client=client):
        facts = {"server": {"flows tcp": flows}}
        found = Window(Result(("job",), "sut", 0, "", ""), {}, {}, facts, facts)
        trial._check_used(found, {"tool": (client, server)})

    with pytest.raises(ManipulationError, match="tcp flows: 1, as before the window"):
        check("1")
    check("1", replace(client, target="172.17.0.2"))  # the container's own address
    check("2")
    assert verified == {"flows tcp": "2"}
    trial.mechanisms |= {"cpu_ns": 1e9, "group_cpu_ns": 5e8}
    with pytest.raises(ManipulationError, match="what ran inside 1"):
        check("3")


@pytest.mark.parametrize(
    ("numbers", "flags", "expected"),
    [
        ({}, "", False),
        ({"tool_cpu": 0.91}, "", True),
        ({"tool_cpu": 0.9, "client_delay": 0.05}, "", False),
        ({"client_delay": 0.06}, "", True),
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


def test_a_prepared_client_that_ends_at_once_says_why(tmp_path):
    generator = SimpleNamespace(host=Host(), directory=str(tmp_path))
    rig: Any = SimpleNamespace(targets={"generator": generator})
    rig.check_target, rig.cpus = (lambda address: None), (lambda role, affinity: "0")
    argv = ("sh", "-c", "echo no such option >&2; exit 1")
    client = Client(argv, "", 1.0, lambda *_: Measurement({}), prestart=(9.0, "Warmup stage"))
    with (
        Trial(rig, {}, f"test-prestart-{os.getpid()}").prepare(client, name="load") as one,
        pytest.raises(ToolOutput, match="no such option"),
    ):
        one()
