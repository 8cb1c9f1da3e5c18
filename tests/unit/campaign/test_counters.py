"""The counters of a window: snapshots of this machine, their differences, and broken rules."""

import json
import os
import socket
from typing import Any

import pytest

from labkit.campaign import counters
from labkit.campaign.counters import Kernel
from labkit.hosts import LocalHost, agent
from labkit.hosts.cache_line import CPUS_APART

GENERATOR, SUT, PEER = LocalHost("generator"), LocalHost("sut"), LocalHost("peer")
MINE = os.getpid()


# Snapshots.


@pytest.fixture
def proc(monkeypatch):
    """The text of every file that is read, by its path."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(agent, "read", lambda path, default="": texts.get(path, default))
    return texts


def test_the_program_on_a_host_takes_a_snapshot():
    found = LocalHost().call("snapshot", places={"": MINE, "other": MINE}, before=False)
    assert found["clock_ns"] > 0 and found["cpu"]["cpu"][3] > 0 and found["context_switches"] > 0
    assert found["ran_ns"] > 0 and found["beside"]["other"]["ran_ns"] >= found["ran_ns"]
    assert set(found["softirqs"]) == {"NET_RX", "NET_TX", "TIMER", "SCHED"}
    own = [program for program in found["programs"] if program[0] == MINE]
    assert len(own) == 1 and own[0][3] > 0


def test_what_a_kernel_does_not_count_is_missing(proc):
    proc["/proc/uptime"] = "9.0 1.0"
    found = agent.snapshot({"": 7_000_000}, before=True)
    assert not {"context_switches", "voluntary", "migrations", "last_cpu", "ran_ns"} & set(found)
    assert not {"sockets", "throttling", "group_ns", "packets", "pressure_us"} & set(found)
    kernel = Kernel(SUT, {}, {}, found, found)
    assert set(counters.mechanisms(kernel, 9)) <= {"idle_exits"}


def test_counters_of_a_control_group_have_one_unit(proc):
    proc["/v2/cpu.stat"] = "usage_usec 5\nnr_periods 4\nnr_throttled 2\nthrottled_usec 3\n"
    throttling = {"nr_periods": 4, "nr_throttled": 2, "throttled_time": 3000}
    assert agent.group_counters("/v2") == {"group_ns": 5000, "throttling": throttling}
    proc["/v1/cpu.stat"] = "nr_periods 4\nnr_throttled 2\nthrottled_time 3000\n"
    proc["/v1/cpuacct.usage"] = "7\n"
    assert agent.group_counters("/v1") == {"group_ns": 7, "throttling": throttling}
    assert agent.group_counters("/v0") == {}


def test_packets_and_rps_interrupts_of_each_cpu(proc):
    row = "{:08x} 00000001 00000000 0 0 0 0 0 0 {:08x} 0 0 {:08x} 0 0\n"
    proc["/proc/7/net/softnet_stat"] = row.format(10, 3, 0) + row.format(2, 7, 2)
    found = agent.server_counters(7)
    assert found["packets"] == {"cpu0": 10, "cpu2": 2}
    assert (found["rps_ipis"], found["softnet_dropped"]) == (10, 2)
    # Older kernels name no CPU, and the oldest do not count what called it.
    proc["/proc/7/net/softnet_stat"] = "0000000a 00000001 00000000\n"
    assert not {"packets", "rps_ipis"} & set(agent.server_counters(7))


def test_the_drops_of_each_host_s_sockets_are_counted():
    """The same socket is counted as that of three hosts."""
    places = {GENERATOR: "sink", SUT: "", PEER: "hop01"}
    kernels = [Kernel(host, {name: MINE}) for host, name in places.items()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least
        receiver.bind(("127.0.0.1", 0))
        for kernel in kernels:
            kernel.before = kernel.snapshot(before=True)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(200):
                sender.sendto(b"x" * 1000, receiver.getsockname())
        for kernel in kernels:
            kernel.after = kernel.snapshot(before=False)
    found, evidence, _ = counters.account(kernels, messages=200, cpus=("0", "0"), seconds=0.0)
    # Each socket is counted once, on its host.
    assert 150 < found["socket_drops"] < 200
    assert found["sink_socket_drops"] == found["hop01_socket_drops"] == found["socket_drops"]
    assert set(evidence) == {"before", "after", "generator", "peer"}
    assert "programs" not in json.dumps(evidence), "they may be somebody else's"


# Differences.

CPU = {"cpu": [10, 0, 10, 100, 0, 0, 0, 0], "cpu0": [0, 0, 0, 50, 0, 0, 0, 0]}
EARLIER: dict[str, Any] = {"cpu": CPU, "beside": {"other": {"ran_ns": 5}}}
EARLIER |= {"context_switches": 1000, "voluntary": 10, "idle_exits": 500, "migrations": 3}
EARLIER |= {"softirqs": {"NET_RX": 100, "NET_TX": 5}, "packets": {"cpu0": 10}}
EARLIER |= {"throttling": {"nr_throttled": 1, "nr_periods": 4}, "Udp.RcvbufErrors": 2}
EARLIER |= {"sockets": {"11": 2**32 - 3}, "clock_ns": 1000, "ran_ns": 30}
CPU = {"cpu": [40, 5, 30, 130, 5, 1, 8, 1], "cpu0": [25, 0, 0, 125, 0, 0, 0, 0]}
LATER: dict[str, Any] = {"cpu": CPU, "beside": {"other": {"ran_ns": 105, "group_ns": 7}}}
LATER |= {"context_switches": 3000, "voluntary": 1010, "idle_exits": 1500, "migrations": 4}
LATER |= {"softirqs": {"NET_RX": 2100, "NET_TX": 5}, "packets": {"cpu0": 300}}
LATER |= {"throttling": {"nr_throttled": 8, "nr_periods": 24}, "Udp.RcvbufErrors": 2}
LATER |= {"sockets": {"11": 4, "12": 6}, "clock_ns": 2000, "ran_ns": 330, "last_cpu": 1}


def test_differences_by_hand():
    kernel = Kernel(SUT, {}, {}, EARLIER, LATER)
    wanted = {"context_switches": 2.0, "server_switches": 1.0, "idle_exits": 1.0, "migrations": 1}
    wanted |= {"softirq_net_rx": 2.0, "softirq_net_tx": 0.0, "softirqs": 2.0}
    wanted |= {"Udp.RcvbufErrors": 0, "cpu0_packets": 290.0, "nr_throttled": 7, "nr_periods": 20}
    # A counter has wrapped around, and a socket was opened.
    wanted |= {"socket_drops": 13.0, "cpu_ns": 300.0, "cpu_use": 0.3, "server_last_cpu": 1.0}
    wanted |= {"cpu_user": 0.3, "cpu_nice": 0.05, "cpu_system": 0.2, "cpu_idle": 0.3}
    wanted |= {"cpu_iowait": 0.05, "cpu_irq": 0.01, "cpu_softirq": 0.08, "steal": 0.01}
    wanted |= {"cpu0_idle": 0.75, "steal_worst": 0.0}
    assert counters.mechanisms(kernel, 1000) == wanted
    assert "context_switches" not in counters.mechanisms(kernel, 0), "no messages, no rates"
    assert counters.of_placements(kernel) == {"other_cpu_ns": 100.0, "other_cpu_use": 0.1}


NOTHING = {"cpu": {}, "clock_ns": 0}


def test_other_programs_by_hand():
    programs = [[7, 5, "make", 100], [10, 400, "weaver", 50], [11, 99_500, "server", 10]]
    programs += [[12, 8, "ended", 3], [13, 8, "was", 3]]
    later = [[7, 5, "make", 250], [10, 400, "weaver", 150], [11, 99_500, "server", 190]]
    later += [[13, 100_050, "came", 90]]

    def kernel(**more):
        before = NOTHING | {"uptime": 1000.0, "programs": programs}
        after = NOTHING | {"uptime": 1002.0, "programs": later, "clock_ns": 5} | more
        return Kernel(SUT, {"": 1}, {}, before, after)

    assert counters.other_programs(kernel(), 10.0) == pytest.approx({"make (process 7)": 0.75})
    # A trial that began two seconds after the server did not start it.
    assert "server (process 11)" in counters.other_programs(kernel(), 5.0)
    # What held the idle states of the other machine has ended.
    kernels = [kernel(latency_request_us=2_000_000_000), kernel(latency_request_us=0)]
    found, _, flags = counters.account(kernels, messages=1, cpus=("0", "0"), seconds=10.0)
    assert flags[0] == "make (process 7), which is not part of the trial, used 75% of a CPU of sut"
    assert found["latency_request_us"] == 2_000_000_000
    assert found["other_programs_cpu"] == pytest.approx(0.75)


# CPU time of both sides.


# user, nice, system, idle, iowait, irq, softirq, steal
ENDS = {"cpu0": [30, 10, 20, 10, -5, 5, 15, 10], "cpu1": [10, 0, 10, 60, 20, 0, 0, 0]}


def test_the_cpu_use_of_both_sides_by_hand():
    found = counters.cpu_sides((ENDS, "0"), (ENDS, "1"))
    wanted = {"client_cpu": 0.8, "client_cpu_user": 0.4, "client_cpu_kernel": 0.4}
    wanted |= {"client_cpu_steal": 0.1, "client_cpu_softirq": 0.15, "client_kernel_to_user": 1.0}
    wanted |= {"client_cpu_iowait": 0.0, "server_cpu": 0.2, "server_cpu_iowait": 0.2}
    wanted |= {"client_to_server_cpu": 4.0, "server_cpu_idle": 0.6}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert counters.cpu_sides((ENDS, ""), (ENDS, "1")) == {}, "they share a CPU"
    assert counters.cpu_sides(({"cpu0": [0] * 8}, "0"), ({}, "1")) == {}


# Rules.


IMPOSSIBLE = {"group_cpu_use": 902.0, "group_cpu_ns": 9e11, "cpu0_idle": 0.0, "cpu1_idle": 0.0}


@pytest.mark.parametrize(
    ("found", "flag"),
    [
        ({"steal_worst": 0.02}, "steal 2.0% of a CPU"),
        ({"cache_line_ratio": 2.7}, CPUS_APART),
        ({"Udp.RcvbufErrors": 3}, "3 datagrams dropped at the socket"),
        (IMPOSSIBLE, "impossible: group_cpu_use is 902.00 of 2 CPUs"),
    ],
)
def test_broken_validity_rules_are_flags(found, flag):
    assert counters.validity(found) == [flag]
    assert counters.validity({"migrations": 9, "steal_worst": 0.001}) == []
