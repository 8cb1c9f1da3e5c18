"""Trials: clients on hosts and inside placements, several loads, neighbours, looped containers."""

from dataclasses import replace
from pathlib import Path

import pytest
from loads import count_characters, echoes, shell

from labkit.errors import UsageError
from labkit.hosts import SshHost
from labkit.placement import Limits, Workload, bare, docker, waiting
from labkit.tools import sockperf, thrift_rpc
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
HOST, NAT = docker("host"), docker("nat")
BUSY = Workload(("sh", "-c", "while :; do :; done"), 0)
#: Uses a second of CPU time, as the kernel counts it by ticks, however long that takes.
SECOND = "(ulimit -t 1; while :; do :; done) || true"
#: Its log is in a folder that the client has made, where no other user can prepare or read it.
WHERE = 'stat -c "%a %n" "$(dirname "$1")" >"$1"; hostname; taskset -cp $$; ' + SECOND


def test_a_plain_trial_takes_six_commands(make_trial, monkeypatch):
    """As docs/method.md lists them."""
    commands, execute = list[str](), SshHost._execute

    def counted(host, line, *rest):
        commands.append(f"{host.name}: {' '.join(line)[:200]}")
        return execute(host, line, *rest)

    monkeypatch.setattr(SshHost, "_execute", counted)
    trial = make_trial(docker("bridge"))
    with trial.serve(sockperf.server("block"), docker("bridge")) as server:
        trial.measure(echoes(server.address))
    assert len(commands) <= 6, commands


@pytest.mark.parametrize("placement", [HOST, NAT, bare("cgroup"), bare("chroot"), bare()], ids=str)
def test_a_client_inside_a_placement_has_its_cpus_namespaces_and_own_log(
    lab, make_trial, placement
):
    logs, trial = [], make_trial(placement)

    def parse(stdout, log):
        logs.append(log)
        return count_characters(stdout, log)

    with trial.serve(waiting("net"), placement) as server:
        argv = ("sh", "-euc", WHERE, "sh", "{log}")
        trial.measure(Client(argv, "", 2.0, parse), inside=server)
        mode, path = logs[0].split()
        assert not path.startswith("/tmp") and mode == "700"
        here = Path(path) if placement == bare() else Path(server.verification["root"] + path)
        assert not here.exists()
    words, mechanisms = trial.logs["tool.out"].split(), trial.mechanisms
    assert words[-1] == lab.cpus("sut", "split")
    assert mechanisms["cpu_ns"] < 50e6  # the server itself sleeps
    if placement.runtime == "docker" or placement.baseline_level == "cgroup":
        assert mechanisms["group_cpu_ns"] > 400e6
    else:
        assert not {"group_cpu_ns", "group_cpu_use"} & set(mechanisms)
    own_name = words[0] != Path("/etc/hostname").read_text().strip()
    assert own_name == (placement == NAT)


def test_a_neighbour_has_its_own_columns(lab, make_trial):
    """Both compute all the time on one CPU, with twice as many shares for the first."""
    first, second = docker("host", Limits(shares=1024)), docker("host", Limits(shares=512))
    trial, place = make_trial(first), {"name": "clock", "cpus": lab.cpu_map["generator"]}
    with (
        trial.serve(BUSY, first),
        trial.serve(BUSY, second, name="neighbour") as server,
        trial.serve(waiting("net"), HOST, **place) as clock,
    ):
        trial.measure(shell("sleep 2"), inside=clock)
        assert trial.record["verifications"]["neighbour"]["allowed CPUs"] == lab.cpu_map["sut"]
        assert server.pid != clock.pid
    found = trial.mechanisms
    # Other work on that CPU takes time from both, and changes neither their ratio nor its idle
    # time.
    assert found["cpu_ns"] / found["neighbour_cpu_ns"] == pytest.approx(2, rel=0.3)
    assert found["cpu_use"] + found["neighbour_cpu_use"] < 1.1
    assert found[f"cpu{lab.cpu_map['sut']}_idle"] < 0.1
    for side in ("", "neighbour_"):
        assert found[f"{side}group_cpu_ns"] == pytest.approx(found[f"{side}cpu_ns"], rel=0.2)


@pytest.mark.parametrize("program", ["true", "no-such-program"])
def test_containers_are_started_in_a_loop(make_trial, program):
    trial, place = make_trial(HOST), docker("host", Limits(shares=512))
    looped = trial.churn(Workload((program,), 0), place)
    with trial.serve(waiting("net"), HOST) as server, looped as starts:
        trial.measure(shell("sleep 1"), inside=server)
    assert trial.mechanisms["churn_containers"] == len(starts) and all(ns > 0 for ns in starts)
    flags = [flag for flag in trial.flags if flag.startswith("churn: ")]
    assert len(starts) >= 1 and not flags if program == "true" else program in flags[0]


@pytest.mark.parametrize("placement", [HOST, bare("cgroup"), bare()], ids=str)
def test_a_real_time_class_is_set_and_read_back(lab, make_trial, placement):
    def read(stdout, log):
        return Measurement({}, {}, 0, (stdout,))

    if "realtime" in lab.missing:
        pytest.skip(lab.missing["realtime"])
    trial = make_trial(placement.limited(fifo=10))
    argv = ("sh", "-c", "chrt --pid $$; sleep 0.2")
    with trial.serve(sockperf.server("block"), placement.limited(fifo=10)) as server:
        assert trial.record["verification"]["scheduling class"] == "fifo 10"
        found = trial.measure(Client(argv, server.address, 1.0, read, fifo=50))
    assert "SCHED_FIFO" in found.flags[0] and "priority: 50\n" in found.flags[0]


@pytest.mark.parametrize("placement", [HOST, bare("cgroup")], ids=str)
def test_a_quota_below_the_cpu_use_makes_calls_wait_for_the_next_period(make_trial, placement):
    limited, calls = placement.limited(quota_us=1_000, period_us=10_000), 1_000
    trial = make_trial(limited)
    with trial.serve(thrift_rpc.server(), limited) as server:
        measurement = trial.measure(thrift_rpc.client(server.address, calls=calls, share=0.1))
    found, metrics = trial.mechanisms, measurement.metrics
    slow = metrics["slow_calls"] + metrics["slow_warmup"]
    assert len(measurement.samples["latency_ns"]) == calls
    assert not any("protocol" in flag for flag in measurement.flags)
    assert found["cpu_ns"] > calls * 1_000  # a call costs more than 1 us of CPU
    assert found["nr_throttled"] > 10 and slow >= 0.5 * found["nr_throttled"]
    assert found["cpu_ns"] / (metrics["elapsed_ns"] + metrics["warmup_ns"]) < 0.13


@pytest.mark.parametrize(("network", "at"), [("nat", ""), ("nat", "peer"), ("host", "peer")])
def test_a_client_in_a_container_calls_one_in_another(lab, make_trial, network, at):
    placement = docker(network)
    trial = make_trial(placement)
    ends = {"name": "client", "cpus": trial.cpus("generator"), "at": at}
    with (
        trial.serve(thrift_rpc.server(), placement) as server,
        trial.serve(thrift_rpc.busy(), placement, **ends) as client,
    ):
        assert client.host.name == (at or "sut") and server.host.name == "sut"
        # On one host the target is the container's own address, not that of its published port.
        target = server.address if at else server.own_address
        load = thrift_rpc.client(target, calls=200, call="receive", size=200)
        found, address = trial.measure(load, inside=client), client.own_address
        with pytest.raises(UsageError, match="no load is sent"):
            trial.measure(replace(load, target="192.0.2.1"), inside=client)
    assert len(found.samples["latency_ns"]) == 200
    assert "tool.out" not in trial.logs  # its output is the samples
    assert trial.mechanisms["client_cpu_use"] > 0.1
    verification = trial.record["verifications"]["client"]
    assert verification["allowed CPUs"] == lab.cpus("generator", "split")
    assert verification["image"] == lab.targets[at or "sut"].images["python"].digest
    own = {"": "198.19.0.", "peer": "198.19.128."}
    assert address.startswith(own[at] if network == "nat" else "198.18.0.5")
