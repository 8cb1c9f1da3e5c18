"""Mechanism evidence: snapshots, mechanisms, and the CPU time of both sides.

``snapshot-before.txt`` and ``snapshot-after.txt`` were recorded around one run of sockperf against
a spinning container with a CPU quota, which it exceeded.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.campaign import counters
from labkit.errors import ToolOutput
from labkit.hosts import LocalHost, script

CAPTURED = Path(__file__).parents[2] / "captured"
BEFORE = (CAPTURED / "snapshot-before.txt").read_text()
AFTER = (CAPTURED / "snapshot-after.txt").read_text()
SECTIONS = ["stat", "softirqs", "idle", "sched", "task", "netstat", "snmp", "softnet"]
SECTIONS += ["conntrack", "cpu.stat", "pressure", "latency"]


def number_after(text: str, words: str, position: int = 0) -> int:
    """Read a number from a recorded file in the plainest way there is."""
    return int(text[text.index(words) + len(words) :].replace(":", " ").split()[position])


def test_a_recorded_snapshot_is_parsed() -> None:
    found = counters.parse(AFTER)
    assert found["cpu"]["cpu"] == [int(n) for n in AFTER.split("cpu  ")[1].split()[:8]]
    assert sorted(found["cpu"]) == ["cpu", "cpu0", "cpu1"]
    assert found["context_switches"] == number_after(AFTER, "\nctxt")
    for name in ("NET_RX", "NET_TX", "TIMER", "SCHED"):
        both = [number_after(AFTER, f" {name}:", cpu) for cpu in (0, 1)]
        assert found["softirqs"][name] == sum(both)
    usages = [int(line.split(":")[1]) for line in AFTER.splitlines() if "/usage:" in line]
    assert len(usages) == 4 and found["idle_exits"] == sum(usages)
    assert found["voluntary"] == number_after(AFTER, "nr_voluntary_switches")
    assert found["migrations"] == number_after(AFTER, "se.nr_migrations")
    assert found["last_cpu"] == 1
    assert found["throttling"]["nr_throttled"] == number_after(AFTER, "nr_throttled") > 0
    assert found["throttling"]["nr_periods"] == number_after(AFTER, "nr_periods") > 0
    assert found["latency_request_us"] > 0 and found["softnet_dropped"] == 0
    assert found["pressure_us"] == int(AFTER.split("total=")[1].split()[0])
    assert found["clock_ns"] == number_after(AFTER, "@@ clock")


def test_recorded_snapshots_show_the_quota() -> None:
    found = counters.mechanisms(counters.parse(BEFORE), counters.parse(AFTER), 15_034)
    assert found["nr_throttled"] == number_after(AFTER, "nr_throttled") - number_after(
        BEFORE, "nr_throttled"
    )
    assert 0 < found["nr_throttled"] <= found["nr_periods"]
    assert found["server_last_cpu"] == 1.0
    kinds = [value for name, value in found.items() if name.startswith("cpu_")]
    assert sum(kinds) + found["steal"] == pytest.approx(1.0)
    assert found["softirqs"] == found["softirq_net_rx"] + found["softirq_net_tx"]


EARLIER: dict[str, Any] = {
    "cpu": {"cpu": [10, 0, 10, 100, 0, 0, 0, 0], "cpu0": [0, 0, 0, 50, 0, 0, 0, 0]},
    "context_switches": 1000,
    "voluntary": 10,
    "idle_exits": 500,
    "migrations": 3,
    "softirqs": {"NET_RX": 100, "NET_TX": 5},
    "throttling": {"nr_throttled": 1, "nr_periods": 4},
    "Udp.RcvbufErrors": 2,
}
LATER: dict[str, Any] = {
    "cpu": {"cpu": [40, 5, 30, 130, 5, 1, 8, 1], "cpu0": [25, 0, 0, 125, 0, 0, 0, 0]},
    "context_switches": 3000,
    "voluntary": 1010,
    "idle_exits": 1500,
    "migrations": 4,
    "softirqs": {"NET_RX": 2100, "NET_TX": 5},
    "throttling": {"nr_throttled": 8, "nr_periods": 24},
    "Udp.RcvbufErrors": 2,
    "last_cpu": 1,
}


def test_mechanisms_by_hand() -> None:
    assert counters.mechanisms(EARLIER, LATER, 1000) == {
        "context_switches": 2.0,
        "server_switches": 1.0,
        "idle_exits": 1.0,
        "softirq_net_rx": 2.0,
        "softirq_net_tx": 0.0,
        "softirqs": 2.0,
        "migrations": 1,
        "Udp.RcvbufErrors": 0,
        "nr_throttled": 7,
        "nr_periods": 20,
        "cpu_user": 0.3,
        "cpu_nice": 0.05,
        "cpu_system": 0.2,
        "cpu_idle": 0.3,
        "cpu_iowait": 0.05,
        "cpu_irq": 0.01,
        "cpu_softirq": 0.08,
        "steal": 0.01,
        "cpu0_idle": 0.75,
        "steal_worst": 0.0,
        "server_last_cpu": 1.0,
    }


def without(text: str, name: str) -> str:
    """Return a snapshot as a kernel prints it that does not have this file."""
    head, _, tail = text.partition(f"@@ {name}\n")
    return head + tail[tail.index("@@ ") :]


@pytest.mark.parametrize("name", SECTIONS)
def test_mechanisms_that_a_kernel_does_not_count_are_missing(name: str) -> None:
    columns = {
        "stat": {"context_switches", "cpu_idle", "steal", "cpu0_idle", "steal_worst"},
        "softirqs": {"softirq_net_rx", "softirq_net_tx", "softirqs"},
        "idle": {"idle_exits"},
        "sched": {"server_switches", "migrations"},
        "task": {"server_last_cpu"},
        "netstat": {"TcpExt.BusyPollRxPackets"},
        "snmp": {"Udp.InErrors", "Udp.RcvbufErrors", "Tcp.RetransSegs"},
        "cpu.stat": {"nr_throttled", "nr_periods"},
        "pressure": {"pressure_us"},
        "softnet": {"softnet_dropped", "rps_ipis", "cpu0_packets", "cpu1_packets"},
        "conntrack": {"conntrack_entries"},
        "latency": {"latency_request_us"},
    }
    whole = counters.mechanisms(counters.parse(BEFORE), counters.parse(AFTER), 100)
    pair = [counters.parse(without(text, name)) for text in (BEFORE, AFTER)]
    found = counters.mechanisms(*pair, 100)
    gone = set(whole) - set(found)
    assert columns[name] <= gone
    assert {key: whole[key] for key in found} == found


def test_packets_and_rps_interrupts_of_each_cpu() -> None:
    def snapshot(*rows: str) -> dict[str, Any]:
        return counters.parse("@@ softnet\n" + "\n".join(rows) + "\n@@ end\n")

    row = "{:08x} 00000000 00000000 0 0 0 0 0 0 {:08x} 0 0 {:08x} 0 0"
    before = snapshot(row.format(10, 0, 0), row.format(2, 7, 2))
    after = snapshot(row.format(300, 4, 0), row.format(20, 19, 2))
    assert before["packets"] == {"cpu0": 10, "cpu2": 2} and before["rps_ipis"] == 7
    found = counters.mechanisms(before, after, 0)
    assert found["rps_ipis"] == 16 and found["softnet_dropped"] == 0
    assert (found["cpu0_packets"], found["cpu2_packets"]) == (290.0, 18.0)
    # Older kernels name no CPU, and the oldest do not count what called it.
    old = snapshot("0000000a 00000001 00000000", "0000000b 00000000 00000000")
    assert old["packets"] == {"cpu0": 10, "cpu1": 11} and "rps_ipis" not in old


def test_without_messages_there_are_no_rates() -> None:
    found = counters.mechanisms(counters.parse(BEFORE), counters.parse(AFTER), 0)
    assert "context_switches" not in found and "nr_throttled" in found


@given(st.integers(0, len(AFTER)))
def test_a_truncated_snapshot_is_an_error(cut: int) -> None:
    text = AFTER[:cut].rstrip()
    if text.endswith("@@ end"):
        assert counters.parse(text) == counters.parse(AFTER)
        return
    with pytest.raises(ToolOutput, match="incomplete") as caught:
        counters.parse(text)
    assert caught.value.evidence["snapshot"] == text[-4000:]


def test_a_snapshot_of_this_machine_is_complete() -> None:
    text = LocalHost().run(*script(counters.AFTER, str(os.getpid()), "")).stdout
    found = counters.parse(text)
    assert found["clock_ns"] > 0 and found["cpu"]["cpu"][3] > 0


def test_a_window_fails_with_the_first_load_that_fails(tmp_path: Path) -> None:
    loads = ["one", "true", "two", "sh -c 'sleep 0.2; exit 3'", "three", "sh -c 'exit 4'"]
    job = LocalHost().run(
        *script(counters.WINDOW, str(tmp_path), str(os.getpid()), "", "", *loads), check=False
    )
    assert job.status == 3


_TIMING = "sh -c 'trap \"echo 95; exit\" TERM; echo 90; while :; do sleep 0.01; done'"


@pytest.mark.parametrize(
    ("timing", "printed"), [(_TIMING, "90\n95\n"), ("echo 90", "90\n"), ("false", ""), ("", None)]
)
def test_a_cache_line_is_timed_from_before_the_loads_to_after_them(
    tmp_path: Path, timing: str, printed: str | None
) -> None:
    times = tmp_path / "line"
    loads = ["seen", f"cat {times}" if timing else "true"]
    arguments = (str(tmp_path), str(os.getpid()), "", timing, *loads)
    assert LocalHost().run(*script(counters.WINDOW, *arguments), check=False).status == 0
    assert (times.read_text() if times.exists() else None) == printed
    if printed:
        assert (tmp_path / "seen.out").read_text() == "90\n"


def test_the_cpu_time_of_each_placement() -> None:
    def snapshot(clock: int, ran: str, neighbour: str, usage: int) -> str:
        sections = {
            "ran": ran,
            "cpuacct": str(usage),
            "cpu.stat": f"nr_periods {clock // 100}\nnr_throttled 1\nthrottled_time 5",
            "neighbour=ran": neighbour,
            "neighbour=cpu.stat": f"usage_usec {usage}\nnr_periods 0\nnr_throttled 0\n"
            f"throttled_usec {usage}",
            "clock": str(clock),
            "end": "",
        }
        return "".join(f"@@ {name}\n{text}\n" for name, text in sections.items())

    before = counters.parse(snapshot(1_000, "10 0 1\n20 0 1", "5 0 1", 7))
    after = counters.parse(snapshot(2_000, "310 0 9\n20 0 1", "105 0 2", 407))
    found = counters.mechanisms(before, after, 1)
    assert found["cpu_ns"] == 300 and found["cpu_use"] == 0.3
    assert found["group_cpu_ns"] == 400 and found["group_cpu_use"] == 0.4
    assert found["nr_periods"] == 10 and found["nr_throttled"] == 0
    assert found["neighbour_cpu_ns"] == 100 and found["neighbour_cpu_use"] == 0.1
    assert found["neighbour_throttled_time"] == 400_000 and found["throttled_time"] == 0
    assert found["neighbour_group_cpu_ns"] == 400_000  # control group version 2 counts in us
    assert counters.mechanisms(after, after, 1)["cpu_ns"] == 0


def test_the_script_reads_named_placements(tmp_path: Path) -> None:
    mine = str(os.getpid())
    text = LocalHost().run(*script(counters.AFTER, f"{mine} other={mine}", "")).stdout
    found = counters.parse(text)
    assert found["ran_ns"] > 0 and found["beside"]["other"]["ran_ns"] >= found["ran_ns"]
    assert set(found["beside"]) == {"other"}


# Other programs.


def programs(uptime: float, *rows: tuple[int, str, int, int, int]) -> dict[str, Any]:
    """Return a snapshot of programs: identity, name, flags, ticks of CPU time, tick of starting."""
    text = f"@@ programs\n{uptime} 1.0\n"
    for pid, name, flags, ticks, start in rows:
        rest = f"1 1 1 0 -1 {flags} 0 0 0 0 {ticks - 1} 1 0 0 20 0 1 0 {start} 9 9"
        text += f"{pid} ({name}) S {rest}\n"
    return counters.parse(text + "@@ end\n")


def test_other_programs_by_hand() -> None:
    kernel, user = 0x00208040, 0x00400100
    before = programs(
        1000.0, (7, "make) S (x", user, 100, 5), (8, "idle", user, 9, 6),
        (9, "kswapd0", kernel, 1, 0), (10, "weaver", user, 50, 400),
        (11, "server", user, 10, 99_500), (12, "ended", user, 3, 8), (13, "was", user, 3, 8),
    )  # fmt: skip
    after = programs(
        1002.0, (7, "make) S (x", user, 250, 5), (8, "idle", user, 10, 6),
        (9, "kswapd0", kernel, 99, 0), (10, "weaver", user, 150, 400),
        (11, "server", user, 190, 99_500), (13, "came", user, 90, 100_050),
    )  # fmt: skip
    used = counters.other_programs(before, after, seconds=10.0)
    assert used == pytest.approx({"make) S (x (process 7)": 0.75, "idle (process 8)": 0.005})
    # A trial that began two seconds after the server did not start it.
    assert "server (process 11)" in (counters.other_programs(before, after, seconds=5.0) or {})
    assert counters.other_programs({}, after, 10.0) is None  # missing, not zero
    assert counters.other_programs(after, after, 10.0) is None
    odd = "@@ programs\n9.0 1.0\n5 (a\n6 (b) S x\n7 (c) S 1 2\n@@ end\n"
    assert counters.parse(odd)["programs"] == {"uptime": 9.0, "found": []}


def test_the_script_reads_the_time_of_this_process() -> None:
    def snapshot() -> dict[str, Any]:
        return counters.parse(LocalHost().run(*script(counters.AFTER, "", "")).stdout)

    before, began = snapshot(), time.process_time()
    while time.process_time() < began + 0.1:
        pass
    used = counters.other_programs(before, snapshot(), seconds=0.0) or {}
    (own,) = (share for name, share in used.items() if name.endswith(f"(process {os.getpid()})"))
    assert own > 0


# Sockets.

#: The open files of a process that has the sockets 11 and 12 of three in its namespace.
HELD = "/dev/null\npipe:[10]\nsocket:[11]\nsocket:[12]\nsocket:[99]\n"
TABLE = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  273: 00000000:2B67 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 11 2 00000000c6a4 {}
  274: 0300120A:2B68 00000000:0000 07 00000000:00000300 00:00000000 00000000     0        0 12 2 00000000c6a5 {}
  275: 00000000:2B69 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 13 2 00000000c6a6 {}
"""  # noqa: E501


def with_sockets(*places: tuple[str, str, tuple[int, int, int]]) -> dict[str, Any]:
    """Return a snapshot of placements: name, what they hold, drops of the three sockets."""
    text = ""
    for name, held, drops in places:
        lost = sum(drops)
        text += f"@@ {name}sockets\n{held}{TABLE.format(*drops)}"
        text += f"@@ {name}snmp\nUdp: InDatagrams InErrors RcvbufErrors\nUdp: 9 {lost} {lost}\n"
    return counters.parse(f"{text}@@ end\n")


def test_drops_are_those_of_the_process_s_own_sockets() -> None:
    before = with_sockets(("", HELD, (1, 5, 100)), ("hop2=", "socket:[13]\n", (1, 5, 100)))
    after = with_sockets(("", HELD, (1, 8, 140)), ("hop2=", "socket:[13]\n", (1, 8, 140)))
    assert after["sockets"] == {"11": 1, "12": 8}
    found = counters.mechanisms(before, after, 1)
    assert found["socket_drops"] == 3.0 and found["hop2_socket_drops"] == 40.0
    # The namespace's counters are shared by its placements.
    assert found["Udp.RcvbufErrors"] == found["hop2_Udp.RcvbufErrors"] == 43.0
    assert found["Udp.InErrors"] == found["hop2_Udp.InErrors"] == 43.0


def test_without_a_socket_drops_are_missing() -> None:
    nothing = with_sockets(("", "/dev/null\n", (1, 5, 100)))
    assert "socket_drops" not in counters.mechanisms(nothing, nothing, 1)
    one = with_sockets(("", HELD, (1, 5, 100)))
    assert counters.mechanisms(one, one, 1)["socket_drops"] == 0.0
    # All drops of a socket that was opened in the window count.
    assert counters.mechanisms(nothing, one, 1)["socket_drops"] == 6.0


def test_the_kernel_s_counter_of_drops_may_wrap_around() -> None:
    pair = [with_sockets(("", HELD, (drops, 0, 0))) for drops in (2**32 - 3, 4)]
    assert counters.mechanisms(*pair, 1)["socket_drops"] == 7.0


@pytest.mark.parametrize("wrong", ["", "zero", "-1", "5 6"])
def test_an_incomplete_row_of_the_socket_table_is_an_error(wrong: str) -> None:
    text = f"@@ sockets\n{HELD}{TABLE.format(0, 0, wrong)}@@ end\n"
    with pytest.raises(ToolOutput, match="275: 00000000:2B69"):
        counters.parse(text)


def test_the_script_counts_the_drops_of_a_socket() -> None:
    def snapshot() -> dict[str, Any]:
        mine = str(os.getpid())
        text = LocalHost().run(*script(counters.AFTER, f"{mine} other={mine}", "")).stdout
        return counters.parse(text)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least
        taker.bind(("127.0.0.1", 0))
        before = snapshot()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(200):
                sender.sendto(b"x" * 1000, taker.getsockname())
        after = snapshot()
    found = counters.mechanisms(before, after, 1)
    assert 150 < found["socket_drops"] < 200
    assert found["other_socket_drops"] == found["socket_drops"] <= found["Udp.RcvbufErrors"]
    json.dumps(after)


# CPU time of both sides.


def ticks(**each: tuple[int, ...]) -> dict[str, Any]:
    """Return a snapshot of nothing but CPU time."""
    total = [sum(column) for column in zip(*each.values(), strict=True)]
    return {"cpu": {"cpu": total, **{name: list(row) for name, row in each.items()}}}


NOTHING = ticks(cpu0=(0,) * 8, cpu1=(0,) * 8)
# user, nice, system, idle, iowait, irq, softirq, steal
ENDS = ticks(cpu0=(30, 10, 20, 10, 0, 5, 15, 10), cpu1=(10, 0, 10, 60, 20, 0, 0, 0))


def test_the_cpu_use_of_both_sides_by_hand() -> None:
    found = counters.cpu_sides(client=(NOTHING, ENDS, "0"), server=(NOTHING, ENDS, "1"))
    assert found == pytest.approx(
        {
            "client_cpu": 0.8,
            "client_cpu_user": 0.4,
            "client_cpu_system": 0.2,
            "client_cpu_irq": 0.05,
            "client_cpu_softirq": 0.15,
            "client_cpu_kernel": 0.4,
            "client_cpu_iowait": 0.0,
            "client_cpu_steal": 0.1,
            "client_cpu_idle": 0.1,
            "server_cpu": 0.2,
            "server_cpu_user": 0.1,
            "server_cpu_system": 0.1,
            "server_cpu_irq": 0.0,
            "server_cpu_softirq": 0.0,
            "server_cpu_kernel": 0.1,
            "server_cpu_iowait": 0.2,
            "server_cpu_steal": 0.0,
            "server_cpu_idle": 0.6,
            "client_to_server_cpu": 4.0,
            "client_kernel_to_user": 1.0,
            "server_kernel_to_user": 1.0,
        }
    )


def test_a_side_with_its_own_kernel_has_all_its_cpus() -> None:
    far, near = ticks(cpu0=(9,) * 8), ticks(cpu0=(8,) * 8, cpu1=(0, 0, 0, 64, 0, 0, 0, 0))
    zero = ticks(cpu0=(0,) * 8)
    found = counters.cpu_sides(client=(NOTHING, near, ""), server=(zero, far, ""))
    assert found["client_cpu"] == 5 / 16 and found["server_cpu"] == 5 / 8
    # The same CPU number under two kernels is not the same CPU.
    found = counters.cpu_sides(client=(NOTHING, near, "0"), server=(zero, far, "0"))
    assert found["client_to_server_cpu"] == 1.0


@pytest.mark.parametrize(("client", "server"), [("0-1", "0-1"), ("0", "0"), ("", "1")])
def test_sides_that_share_a_cpu_have_no_shares(client: str, server: str) -> None:
    assert counters.cpu_sides(client=(NOTHING, ENDS, client), server=(NOTHING, ENDS, server)) == {}


def test_a_side_without_ticks_has_no_shares() -> None:
    # A CPU that the machine has not; a window without a tick; a snapshot without the file.
    for before, after, cpus in ((NOTHING, ENDS, "1-2"), (ENDS, ENDS, "1"), ({}, {}, "1")):
        other = ticks(cpu0=(4, 0, 4, 0, 0, 0, 0, 0))
        zero = ticks(cpu0=(0,) * 8)
        found = counters.cpu_sides(client=(zero, other, "0"), server=(before, after, cpus))
        assert found["client_cpu"] == 1.0
        assert not [name for name in found if "server" in name]
    idle = ticks(cpu0=(0, 0, 0, 9, 0, 0, 0, 0), cpu1=(0, 0, 1, 8, 0, 0, 0, 0))
    found = counters.cpu_sides(client=(NOTHING, idle, "1"), server=(NOTHING, idle, "0"))
    assert found["server_cpu"] == 0.0 and found["client_cpu"] == 1 / 9
    assert not {"client_to_server_cpu", "client_kernel_to_user", "server_kernel_to_user"} & set(
        found
    )


def test_a_decreasing_counter_counts_as_zero() -> None:
    back = ticks(cpu0=(10, 0, 10, 60, 15, 0, 0, 0), cpu1=(0,) * 8)
    now = ticks(cpu0=(20, 0, 10, 70, 14, 0, 0, 0), cpu1=(5,) * 8)
    found = counters.cpu_sides(client=(back, now, "0"), server=(back, now, "1"))
    assert found["client_cpu_iowait"] == 0.0 and found["client_cpu"] == 0.5


TICKS = st.lists(st.integers(0, 1_000_000), min_size=8, max_size=8)


@given(TICKS, TICKS)
def test_categories_add_up_to_one(first: list[int], second: list[int]) -> None:
    after = ticks(cpu0=tuple(first), cpu1=tuple(second))
    found = counters.cpu_sides(client=(NOTHING, after, "0"), server=(NOTHING, after, "1"))
    for side, row in (("client", first), ("server", second)):
        if not sum(row):
            assert f"{side}_cpu" not in found
            continue
        parts = ("user", "kernel", "iowait", "steal", "idle")
        assert sum(found[f"{side}_cpu_{kind}"] for kind in parts) == pytest.approx(1.0)
        assert 0 <= found[f"{side}_cpu"] <= 1 + 1e-9


def test_the_sides_of_recorded_snapshots() -> None:
    before, after = counters.parse(BEFORE), counters.parse(AFTER)
    found = counters.cpu_sides(client=(before, after, "0"), server=(before, after, "1"))
    whole = counters.mechanisms(before, after, 1)
    assert found["client_cpu_idle"] == pytest.approx(whole["cpu0_idle"])
    assert found["server_cpu_idle"] == pytest.approx(whole["cpu1_idle"])
    assert found["client_cpu_softirq"] > 0
