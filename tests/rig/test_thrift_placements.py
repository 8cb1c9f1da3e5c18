"""The Thrift service where placements put it: called, throttled, and beside others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from labkit.campaign.trial import Trial
from labkit.placement import Placement, bare, docker
from labkit.rig.base import Rig
from labkit.tools import thrift_rpc
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
Left = Callable[[], list[str]]
Make = Callable[..., Trial]
CALLS = 1_000


@pytest.mark.parametrize("placement", [docker("host"), bare("cgroup"), bare()], ids=str)
def test_the_service_is_called_wherever_it_is(
    lab: Rig, make_trial: Make, left: Left, placement: Placement
) -> None:
    trial = make_trial(placement)
    with trial.serve(thrift_rpc.server(), placement) as server:
        measurement = trial.measure(thrift_rpc.client(server.address, calls=CALLS))
    assert len(measurement.samples["latency_ns"]) == CALLS
    assert not any("protocol" in flag for flag in measurement.flags)
    assert trial.mechanisms["cpu_ns"] > CALLS * 1_000  # a call costs more than 1 us of CPU
    assert left() == []


@pytest.mark.parametrize(("fifo", "policy"), [(0, "SCHED_OTHER"), (50, "SCHED_FIFO")])
def test_a_client_has_the_real_time_class_where_it_asks_for_it(
    lab: Rig, make_trial: Make, fifo: int, policy: str
) -> None:
    def read(stdout: str, log: str) -> Measurement:
        return Measurement({}, {}, 0, (stdout,))

    trial = make_trial(bare())
    with trial.serve(thrift_rpc.server(), bare()) as server:
        argv = ("sh", "-c", "chrt --pid $$; sleep 0.2")
        measurement = trial.measure(Client(argv, server.address, 1.0, read, fifo=fifo))
    assert policy in measurement.flags[0] and f"priority: {fifo}\n" in measurement.flags[0]


@pytest.mark.parametrize("placement", [docker("host"), bare("cgroup")], ids=str)
def test_a_quota_below_the_cpu_use_makes_calls_wait_for_the_next_period(
    lab: Rig, make_trial: Make, left: Left, placement: Placement
) -> None:
    limited = placement.limited(quota_us=1_000, period_us=10_000)
    trial = make_trial(limited)
    with trial.serve(thrift_rpc.server(), limited) as server:
        measurement = trial.measure(thrift_rpc.client(server.address, calls=CALLS, share=0.1))
    found, slow = (
        trial.mechanisms,
        measurement.metrics["slow_calls"] + measurement.metrics["slow_warmup"],
    )
    assert found["nr_throttled"] > 10 and slow >= 0.5 * found["nr_throttled"]
    called = measurement.metrics["elapsed_ns"] + measurement.metrics["warmup_ns"]
    assert found["cpu_ns"] / called < 0.13
    assert left() == []


def test_a_client_in_a_container_calls_one_in_another(
    lab: Rig, make_trial: Make, left: Left
) -> None:
    trial = make_trial(docker("nat"))
    ends = {"name": "client", "cpus": lab.cpu_map["generator"]}
    with (
        trial.serve(thrift_rpc.server(), docker("nat")) as server,
        trial.serve(thrift_rpc.busy(), docker("nat"), **ends) as client,
    ):
        load = thrift_rpc.client(
            server.own_address, calls=100, call="send", size=10_000, inside=True
        )
        measurement = trial.measure(load, inside=client)
    assert len(measurement.samples["latency_ns"]) == 100
    assert "tool.out" not in trial.logs  # its output is the samples
    assert trial.mechanisms["client_cpu_use"] > 0.1
    assert left() == []
