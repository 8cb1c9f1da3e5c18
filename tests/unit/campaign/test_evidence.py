"""Reading what a host says: snapshots of evidence, and the verification of a placement.

``snapshot-before.txt`` and ``snapshot-after.txt`` were recorded around one run of sockperf against
a spinning container with a CPU quota, which it exceeded.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.campaign import evidence
from labkit.campaign.record import validity
from labkit.errors import ToolOutput
from labkit.hosts import LocalHost, script
from labkit.runtimes import observed

CAPTURED = Path(__file__).parents[2] / "captured"
BEFORE = (CAPTURED / "snapshot-before.txt").read_text()
AFTER = (CAPTURED / "snapshot-after.txt").read_text()
RAW = (CAPTURED / "verification-docker-nat.txt").read_text()
SECTIONS = ["stat", "softirqs", "idle", "sched", "task", "netstat", "snmp", "softnet"]
SECTIONS += ["conntrack", "cpu.stat", "pressure", "latency"]


def number_after(text: str, words: str, position: int = 0) -> int:
    """Read a number from a recorded file in the plainest way there is."""
    return int(text[text.index(words) + len(words) :].replace(":", " ").split()[position])


def test_a_recorded_snapshot_is_read_to_the_number() -> None:
    found = evidence.parse(AFTER)
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


def test_the_recorded_pair_shows_the_quota() -> None:
    found = evidence.mechanisms(evidence.parse(BEFORE), evidence.parse(AFTER), 15_034)
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
    assert evidence.mechanisms(EARLIER, LATER, 1000) == {
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
def test_what_a_kernel_does_not_have_is_missing_and_not_zero(name: str) -> None:
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
    whole = evidence.mechanisms(evidence.parse(BEFORE), evidence.parse(AFTER), 100)
    pair = [evidence.parse(without(text, name)) for text in (BEFORE, AFTER)]
    found = evidence.mechanisms(*pair, 100)
    gone = set(whole) - set(found)
    assert columns[name] <= gone
    assert {key: whole[key] for key in found} == found


def test_what_each_cpu_received_and_what_called_it_by_hand() -> None:
    def snapshot(*rows: str) -> dict[str, Any]:
        return evidence.parse("@@ softnet\n" + "\n".join(rows) + "\n@@ end\n")

    row = "{:08x} 00000000 00000000 0 0 0 0 0 0 {:08x} 0 0 {:08x} 0 0"
    before = snapshot(row.format(10, 0, 0), row.format(2, 7, 2))
    after = snapshot(row.format(300, 4, 0), row.format(20, 19, 2))
    assert before["packets"] == {"cpu0": 10, "cpu2": 2} and before["rps_ipis"] == 7
    found = evidence.mechanisms(before, after, 0)
    assert found["rps_ipis"] == 16 and found["softnet_dropped"] == 0
    assert (found["cpu0_packets"], found["cpu2_packets"]) == (290.0, 18.0)
    # Older kernels name no CPU, and the oldest do not count what called it.
    old = snapshot("0000000a 00000001 00000000", "0000000b 00000000 00000000")
    assert old["packets"] == {"cpu0": 10, "cpu1": 11} and "rps_ipis" not in old


def test_no_messages_leave_no_rate() -> None:
    found = evidence.mechanisms(evidence.parse(BEFORE), evidence.parse(AFTER), 0)
    assert "context_switches" not in found and "nr_throttled" in found


@given(st.integers(0, len(AFTER)))
def test_a_snapshot_that_breaks_off_is_an_error(cut: int) -> None:
    text = AFTER[:cut].rstrip()
    if text.endswith("@@ end"):
        assert evidence.parse(text) == evidence.parse(AFTER)
        return
    with pytest.raises(ToolOutput, match="incomplete") as caught:
        evidence.parse(text)
    assert caught.value.evidence["snapshot"] == text[-4000:]


def test_a_snapshot_of_this_very_machine_is_complete() -> None:
    text = LocalHost().run(*script(evidence.AFTER, str(os.getpid()))).stdout
    found = evidence.parse(text)
    assert found["clock_ns"] > 0 and found["cpu"]["cpu"][3] > 0


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"steal_worst": 0.02}, "steal 2.0% of a CPU"),
        ({"Udp.RcvbufErrors": 3}, "3 datagrams dropped at the socket"),
    ],
)
def test_a_validity_rule_that_does_not_hold_is_a_flag(found: dict[str, float], words: str) -> None:
    assert validity(found) == [words]
    assert validity({"migrations": 9, "steal_worst": 0.001}) == []


def test_a_window_fails_with_the_first_load_that_fails(tmp_path: Path) -> None:
    loads = ["one", "true", "two", "sh -c 'sleep 0.2; exit 3'", "three", "sh -c 'exit 4'"]
    job = LocalHost().run(
        *script(evidence.WINDOW, str(tmp_path), str(os.getpid()), *loads), check=False
    )
    assert job.status == 3
    loads = ["one", "true", "two", "true"]
    arguments = (str(tmp_path), str(os.getpid()), *loads)
    assert LocalHost().run(*script(evidence.WINDOW, *arguments), check=False).status == 0


def test_the_script_s_output_is_parsed_as_it_was_recorded() -> None:
    assert observed.parse(RAW) == json.loads(
        (CAPTURED / "verification-docker-nat.json").read_text()
    )


@pytest.mark.parametrize("name", ["ns.net", "host.net", "status", "cgroup"])
def test_a_part_that_every_host_has_may_not_be_missing(name: str) -> None:
    body = observed.sections(RAW)[name]
    with pytest.raises(ToolOutput, match=f"could not read {name}"):
        observed.parse(RAW.replace(f"@@ {name}\n{body}\n", f"@@ {name}\n"))


def test_links_that_are_no_json_are_an_error_with_what_was_printed() -> None:
    with pytest.raises(ToolOutput) as caught:
        observed.parse(RAW.replace("@@ links\n[", "@@ links\n!"))
    assert caught.value.evidence["links"].startswith("!")


def test_the_cpu_time_of_each_placement_is_told_apart() -> None:
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

    before = evidence.parse(snapshot(1_000, "10 0 1\n20 0 1", "5 0 1", 7))
    after = evidence.parse(snapshot(2_000, "310 0 9\n20 0 1", "105 0 2", 407))
    found = evidence.mechanisms(before, after, 1)
    assert found["cpu_ns"] == 300 and found["cpu_use"] == 0.3
    assert found["group_cpu_ns"] == 400 and found["group_cpu_use"] == 0.4
    assert found["nr_periods"] == 10 and found["nr_throttled"] == 0
    assert found["neighbour_cpu_ns"] == 100 and found["neighbour_cpu_use"] == 0.1
    assert found["neighbour_throttled_time"] == 400_000 and found["throttled_time"] == 0
    assert found["neighbour_group_cpu_ns"] == 400_000  # control group version 2 counts in us
    assert evidence.mechanisms(after, after, 1)["cpu_ns"] == 0


def test_the_script_names_each_placement(tmp_path: Path) -> None:
    mine = str(os.getpid())
    text = LocalHost().run(*script(evidence.AFTER, mine, f"other={mine}")).stdout
    found = evidence.parse(text)
    assert found["ran_ns"] > 0 and found["beside"]["other"]["ran_ns"] >= found["ran_ns"]
    assert set(found["beside"]) == {"other"}
