"""Windows on this machine: loads, their ends, what changes meanwhile, counters, broken rules."""

import os
import re
import time
from contextlib import nullcontext
from typing import Any

import pytest

from labkit.campaign import window
from labkit.campaign.window import Kernel, Load, Window
from labkit.errors import ManipulationError
from labkit.hosts import Host, Result, agent, script
from labkit.runtimes import Server
from labkit.tools.base import Client, Measurement

CPUS = sorted(os.sched_getaffinity(0))
ALL = ",".join(map(str, CPUS))
ONE, OTHER = str(CPUS[0]), str(CPUS[-1])


def load(name, *argv, cpus=ALL, seconds=5.0, **options):
    client = Client(argv, "", seconds, lambda out, log: Measurement({}), **options)
    return Load(name, client, argv, "", cpus)


def run(tmp_path, *loads, host=None):
    """Run a window with some loads on this machine."""
    own, folder = Kernel(host or Host(), {"": os.getpid()}), str(tmp_path / "window")
    line = CPUS[0], CPUS[-1]
    found = window.measure(loads, [own], folder, "lkt-window", line)
    assert len(found.line) in (0, 2)
    return found, own


class Stopped(Host):
    """A host from which the end of a window comes half a second late."""

    def call(self, function, **arguments):
        found = super().call(function, **arguments)
        time.sleep(0.5 if function == "run_window" else 0.0)
        return found


def test_labkit_is_stopped_in_a_window(tmp_path, monkeypatch):
    monkeypatch.setattr(window, "LATE", 0.5)
    found, _ = run(tmp_path, load("tool", "true"), host=Stopped())
    assert "was stopped for" in found.flags[0]


def test_hosts_with_kernels_of_their_own_are_counted_and_observed_around_a_window(tmp_path):
    kernels = [Kernel(Host(name), {}, {f"the host {name}": {}}) for name in ("near", "far")]
    folder = str(tmp_path / "window")
    found = window.measure([load("tool", "sleep", "0.2")], kernels, folder, "lkt-two", [])
    assert {*found.before} == {*found.after} == {"the host near", "the host far"}
    near, far = ((one.before["uptime"], one.after["uptime"]) for one in kernels)
    assert far[0] < near[0] < near[1] < far[1]


def test_a_window_fails_with_the_first_load_that_fails(tmp_path):
    texts = ("echo out; echo err >&2", "sleep 0.2; exit 3", "exit 4")
    found, own = run(tmp_path, *(load(str(n), "sh", "-c", one) for n, one in enumerate(texts)))
    assert (found.job.status, found.job.timed_out, found.job.stderr) == (3, False, "err")
    assert not found.flags
    assert not (tmp_path / "window").exists()
    assert (found.texts["0.out"], found.texts["0.err"]) == ("out\n", "err\n")
    assert own.after["uptime"] - own.before["uptime"] > 0.2
    assert own.before["threads"].keys() <= own.after["threads"].keys()
    window.check_unchanged(found, [], {})


def ended(*argv):
    result = Host().run(*script(window.GUARD, *argv), check=False)
    return *window.taken_end(result.stderr), result.status


def test_a_guarded_client_keeps_its_status_and_streams():
    stderr, end, status = ended("sh", "-c", "echo no >&2; exit 3")
    assert (stderr, status) == ("no\n", 3)
    assert window.problems_of(load("tool"), end) == []
    assert Host().run(*script(window.GUARD, "echo", "yes")).stdout == "yes\n"
    assert ended("sh", "-c", "kill -9 $$")[2] == 137


def test_a_client_that_ends_at_once_is_read_before_it_is_reaped():
    os.sched_setaffinity(0, CPUS[:1])  # so that it often ends before its shell goes on
    try:
        assert all(ended("true")[1] for _ in range(400))
    finally:
        os.sched_setaffinity(0, CPUS)


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_a_client_that_was_moved_or_has_another_class_is_named():
    move = f"taskset -pc {OTHER} $$ >&2; chrt --batch --pid 0 $$ >&2"
    _, end, _ = ended("taskset", "-c", ONE, "sh", "-c", move)
    problems = window.problems_of(load("tool", cpus=ONE), end)
    assert re.match("client tool: scheduling class was .* at its end, not ", problems[0])
    assert problems[1] == f"client tool: allowed CPUs were {OTHER} at its end, not {ONE}"
    _, end, _ = ended("true")
    end["client"][16] = "-5"
    (problem,) = window.problems_of(load("a"), end)
    assert re.match("client a: nice value was -5 at its end, not ", problem)
    back = f"taskset -pc {OTHER} $$; taskset -pc {ONE} $$"
    _, end, _ = ended("taskset", "-c", ONE, "sh", "-c", back)
    assert int(end["migrations"]) >= 2
    found = window.problems_of(load("a", cpus=ONE), end)
    assert found == ["client a: it was on another CPU meanwhile"]
    # Not every kernel counts them.
    del end["migrations"]
    assert window.problems_of(load("a", cpus=ONE), end) == []


def test_the_agent_reads_the_end_and_the_time_of_its_own_child(tmp_path):
    # The limit counts ticks, and this the time.
    busy = load("tool", "sh", "-c", "(ulimit -t 1; while :; do :; done) || true", cpus=ONE)
    found, _ = run(tmp_path, busy)
    end = found.ends["tool"]
    ticks = sum(map(int, end["client"][11:15]))
    assert ticks * window.TICK_NS >= 0.1e9 and window.problems_of(busy, end) == []
    (problem,) = window.problems_of(load("tool", cpus=ONE, fifo=10), end)
    assert re.match("client tool: scheduling class was .* at its end, not 1 10", problem)


NEAR = {"rules of the host": "none", "setting /x": "1", "engine rules": "yes"}
VERIFIED = {"state": "running", "process": "7", "flows udp": "1", **NEAR}


@pytest.mark.parametrize(
    ("first", "last", "ends", "said"),
    [
        ({}, {}, False, ""),
        # What was set up since it was verified.
        ({"rules of the host": "3 lines", "setting /x": "2"}, {}, False, ""),
        ({}, {"rules of the host": "3 lines"}, False, "rules of the host: 3 lines, not none"),
        ({}, {"process": "8"}, False, "process: 8, not 7"),
        ({}, {"flows udp": "7", "address 198.18.0.9": "yes"}, False, ""),
        ({}, {"state": "stopped", "process": "8"}, False, "not running; process: 8"),
        ({}, {"state": "ended"}, False, "state: ended, not running"),
        ({}, {"state": "ended"}, True, ""),
    ],
)
def test_what_changes_in_a_window_is_an_error(first, last, ends, said):
    server = Server("", 1, 7, Host(), VERIFIED, "0", list, ends_with_client=ends)
    before, links = {"server": NEAR | first}, {"host sut": {"lab0": "up"}}
    after = {"server": last if "ended" in last.values() else VERIFIED | first | last} | links
    done = Result(("job",), "sut", 0, "", "")
    found = Window(done, {}, {}, before | links, after)
    with pytest.raises(ManipulationError, match=said) if said else nullcontext():
        window.check_unchanged(found, [], {"server": server})


SUT = Host("sut")


@pytest.fixture
def proc(monkeypatch):
    """The text of every file that is read, by its path."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(agent, "read", lambda path, default="": texts.get(path, default))
    return texts


def test_what_a_kernel_does_not_count_is_missing(proc):
    found = agent.snapshot({"": 7_000_000}, before=True)
    assert not {"context_switches", "voluntary", "migrations", "last_cpu", "threads"} & set(found)
    assert not {"sockets", "throttling", "group_ns", "packets", "pressure_us"} & set(found)
    kernel = Kernel(SUT, {}, {}, found, found)
    assert set(window.mechanisms(kernel, 9)) <= {"idle_exits"} and not window.used(kernel)


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


CPU = {"cpu": [10, 0, 10, 100, 0, 0, 0, 0], "cpu0": [0, 0, 0, 50, 0, 0, 0, 0]}
BESIDE = {"other": {"threads": {"7": 5}}, "less": {"threads": {"8": 9, "9": 1}}}
EARLIER: dict[str, Any] = {"cpu": CPU, "beside": BESIDE, "softnet_dropped": 5}
EARLIER |= {"context_switches": 1000, "voluntary": 10, "idle_exits": 500, "migrations": 3}
EARLIER |= {"softirqs": {"NET_RX": 100, "NET_TX": 5}, "packets": {"cpu0": 2**32 - 10}}
EARLIER |= {"throttling": {"nr_throttled": 1, "nr_periods": 4}, "Udp.RcvbufErrors": 2}
EARLIER |= {"sockets": {"11": 2**32 - 3}, "uptime": 1.0, "threads": {"4": 10, "5": 20}}
CPU = {"cpu": [40, 5, 30, 130, 5, 1, 8, 1], "cpu0": [25, 0, 0, 125, 0, 0, 0, 0]}
BESIDE = {"other": {"threads": {"7": 105}}, "less": {"threads": {"8": 99}}}
LATER: dict[str, Any] = {"cpu": CPU, "beside": BESIDE, "softnet_dropped": 3}
LATER |= {"context_switches": 3000, "voluntary": 1010, "idle_exits": 1500, "migrations": 4}
LATER |= {"softirqs": {"NET_RX": 2100, "NET_TX": 5}, "packets": {"cpu0": 280}}
LATER |= {"throttling": {"nr_throttled": 8, "nr_periods": 24}, "Udp.RcvbufErrors": 2}
LATER |= {"sockets": {"11": 4, "12": 6}, "uptime": 1.5, "last_cpu": 1}
LATER |= {"threads": {"4": 110, "5": 20, "6": 200_000_000}}


def test_differences_by_hand():
    kernel = Kernel(SUT, {}, {}, EARLIER, LATER)
    wanted = {"context_switches": 2.0, "server_switches": 1.0, "idle_exits": 1.0, "migrations": 1}
    wanted |= {"softirq_net_rx": 2.0, "softirq_net_tx": 0.0, "softirqs": 2.0}
    wanted |= {"Udp.RcvbufErrors": 0, "cpu0_packets": 290.0, "nr_throttled": 7, "nr_periods": 20}
    # Counters have wrapped around or fallen, a socket was opened, a thread of `less` has ended.
    wanted |= {"socket_drops": 13.0, "cpu_ns": 200_000_100.0, "server_last_cpu": 1.0}
    wanted |= {"cpu_user": 0.3, "cpu_nice": 0.05, "cpu_system": 0.2, "cpu_idle": 0.3}
    wanted |= {"cpu_iowait": 0.05, "cpu_irq": 0.01, "cpu_softirq": 0.08, "steal": 0.01}
    wanted |= {"cpu0_idle": 0.75, "steal_worst": 0.0}
    wanted |= {"cpu_use": 0.4000002, "other_cpu_ns": 100.0, "other_cpu_use": 2e-7}
    found = window.mechanisms(kernel, 1000) | window.used(kernel)
    assert found == pytest.approx(wanted)
    assert "context_switches" not in window.mechanisms(kernel, 0), "no messages, no rates"


def test_a_cpu_whose_counters_fell_is_left_out_and_flagged():
    ticks = [1000, 0, 500, 10_000, 400, 0, 10, 0]
    before = {name: [*ticks] for name in ("cpu", "cpu0", "cpu1")}
    before["cpu0"][4] = 1400  # iowait may fall at any time
    for index in (3, 7):  # idle, steal
        after = {name: [one + 100 for one in ticks] for name in before}
        before["cpu1"][index], before["cpu0"][index] = ticks[index] + 900, ticks[index] + 101
        known = ({"cpu": cpus, "programs": [], "uptime": 9.0} for cpus in (before, after))
        kernel = Kernel(SUT, {"": 1}, {}, *known)
        found, _, flags = window.account([kernel], messages=1, cpus=("0", "1"), seconds=9)
        assert flags == ["the counters of cpu1 on sut fell or ended: its use is unknown"]
        assert not {"cpu_user", "cpu1_idle", "server_cpu"} & set(found)
        assert found["cpu0_idle"] < 0.2 and found["client_cpu_iowait"] == 0.0


NOTHING: dict[str, Any] = {"cpu": {}}


def test_other_programs_by_hand():
    programs = [[7, 5, "make", 100], [10, 400, "weaver", 50], [11, 99_500, "server", 10]]
    programs += [[12, 8, "ended", 3], [13, 8, "was", 3]]
    later = [[7, 5, "make", 250], [10, 400, "weaver", 150], [11, 99_500, "server", 190]]
    later += [[13, 100_050, "came", 90]]

    def kernel(**more):
        before = NOTHING | {"uptime": 1000.0, "programs": programs}
        after = NOTHING | {"uptime": 1002.0, "programs": later} | more
        return Kernel(SUT, {"": 1}, {}, before, after)

    assert window.other_programs(kernel(), 10.0) == pytest.approx({"make (process 7)": 0.75})
    # A trial that began two seconds after the server did not start it.
    assert "server (process 11)" in window.other_programs(kernel(), 5.0)
    # What held the idle states of the other machine has ended.
    kernels = [kernel(latency_request_us=2_000_000_000), kernel(latency_request_us=0)]
    found, _, flags = window.account(kernels, messages=1, cpus=("0", "0"), seconds=10.0)
    assert flags[0] == "make (process 7), which is not part of the trial, used 75% of a CPU of sut"
    assert found["latency_request_us"] == 2_000_000_000
    assert found["other_programs_cpu"] == pytest.approx(0.75)


# user, nice, system, idle, iowait, irq, softirq, steal
ENDS = {"cpu0": [30, 10, 20, 10, -5, 5, 15, 10], "cpu1": [10, 0, 10, 60, 20, 0, 0, 0]}


def test_the_cpu_use_of_both_sides_by_hand():
    found = window.cpu_sides((ENDS, "0"), (ENDS, "1"))
    wanted = {"client_cpu": 0.8, "client_cpu_user": 0.4, "client_cpu_kernel": 0.4}
    wanted |= {"client_cpu_steal": 0.1, "client_cpu_softirq": 0.15, "client_kernel_to_user": 1.0}
    wanted |= {"client_cpu_iowait": 0.0, "server_cpu": 0.2, "server_cpu_iowait": 0.2}
    wanted |= {"client_to_server_cpu": 4.0, "server_cpu_idle": 0.6}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert window.cpu_sides((ENDS, ""), (ENDS, "1")) == {}, "they share a CPU"
    assert window.cpu_sides(({"cpu0": [0] * 8}, "0"), ({}, "1")) == {}


IMPOSSIBLE = {"group_cpu_use": 902.0, "group_cpu_ns": 9e11, "cpu0_idle": 0.0, "cpu1_idle": 0.0}


@pytest.mark.parametrize(
    ("found", "flag"),
    [
        ({"steal_worst": 0.02}, "steal 2.0% of a CPU"),
        ({"Udp.RcvbufErrors": 3}, "3 datagrams dropped at the socket"),
        (IMPOSSIBLE, "impossible: group_cpu_use is 902.00 of 2 CPUs"),
    ],
)
def test_broken_validity_rules_are_flags(found, flag):
    assert window.validity(found) == [flag]
    assert window.validity({"migrations": 9, "steal_worst": 0.001}) == []
