"""What the evidence says of each end: what its sockets dropped, and where its CPUs' time went."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.campaign import evidence
from labkit.errors import ToolOutput
from labkit.hosts import LocalHost, script

CAPTURED = Path(__file__).parents[2] / "captured"
BEFORE = (CAPTURED / "snapshot-before.txt").read_text()
AFTER = (CAPTURED / "snapshot-after.txt").read_text()
#: A process that holds the sockets 11 and 12 of three in its namespace, and a pipe and a file.
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
    return evidence.parse(f"{text}@@ end\n")


def test_a_socket_s_drops_are_its_process_s_own() -> None:
    before = with_sockets(("", HELD, (1, 5, 100)), ("hop2=", "socket:[13]\n", (1, 5, 100)))
    after = with_sockets(("", HELD, (1, 8, 140)), ("hop2=", "socket:[13]\n", (1, 8, 140)))
    assert after["sockets"] == {"11": 1, "12": 8}
    found = evidence.mechanisms(before, after, 1)
    assert found["socket_drops"] == 3.0 and found["hop2_socket_drops"] == 40.0
    # The namespace's counters are those of all who share it.
    assert found["Udp.RcvbufErrors"] == found["hop2_Udp.RcvbufErrors"] == 43.0
    assert found["Udp.InErrors"] == found["hop2_Udp.InErrors"] == 43.0


def test_no_socket_is_not_the_same_as_no_drop() -> None:
    nothing = with_sockets(("", "/dev/null\n", (1, 5, 100)))
    assert "socket_drops" not in evidence.mechanisms(nothing, nothing, 1)
    one = with_sockets(("", HELD, (1, 5, 100)))
    assert evidence.mechanisms(one, one, 1)["socket_drops"] == 0.0
    # One that was opened in between has dropped all it says.
    assert evidence.mechanisms(nothing, one, 1)["socket_drops"] == 6.0


def test_the_kernel_s_counter_of_drops_may_wrap_around() -> None:
    pair = [with_sockets(("", HELD, (drops, 0, 0))) for drops in (2**32 - 3, 4)]
    assert evidence.mechanisms(*pair, 1)["socket_drops"] == 7.0


@pytest.mark.parametrize("wrong", ["", "zero", "-1", "5 6"])
def test_a_row_of_the_socket_table_that_is_not_whole_is_an_error(wrong: str) -> None:
    text = f"@@ sockets\n{HELD}{TABLE.format(0, 0, wrong)}@@ end\n"
    with pytest.raises(ToolOutput, match="275: 00000000:2B69"):
        evidence.parse(text)


def test_the_script_counts_what_a_socket_of_ours_drops() -> None:
    def snapshot() -> dict[str, Any]:
        mine = str(os.getpid())
        text = LocalHost().run(*script(evidence.AFTER, mine, f"other={mine}")).stdout
        return evidence.parse(text)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel's least
        taker.bind(("127.0.0.1", 0))
        before = snapshot()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(200):
                sender.sendto(b"x" * 1000, taker.getsockname())
        after = snapshot()
    found = evidence.mechanisms(before, after, 1)
    assert 150 < found["socket_drops"] < 200
    assert found["other_socket_drops"] == found["socket_drops"] <= found["Udp.RcvbufErrors"]
    json.dumps(after)


def ticks(**each: tuple[int, ...]) -> dict[str, Any]:
    """Return a snapshot of nothing but CPU time."""
    total = [sum(column) for column in zip(*each.values(), strict=True)]
    return {"cpu": {"cpu": total, **{name: list(row) for name, row in each.items()}}}


NOTHING = ticks(cpu0=(0,) * 8, cpu1=(0,) * 8)
# user, nice, system, idle, iowait, irq, softirq, steal
ENDS = ticks(cpu0=(30, 10, 20, 10, 0, 5, 15, 10), cpu1=(10, 0, 10, 60, 20, 0, 0, 0))


def test_the_cpu_use_of_both_sides_by_hand() -> None:
    found = evidence.cpu_sides(client=(NOTHING, ENDS, "0"), server=(NOTHING, ENDS, "1"))
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


def test_sides_with_a_kernel_each_have_all_of_its_cpus() -> None:
    far, near = ticks(cpu0=(9,) * 8), ticks(cpu0=(8,) * 8, cpu1=(0, 0, 0, 64, 0, 0, 0, 0))
    zero = ticks(cpu0=(0,) * 8)
    found = evidence.cpu_sides(client=(NOTHING, near, ""), server=(zero, far, ""))
    assert found["client_cpu"] == 5 / 16 and found["server_cpu"] == 5 / 8
    # The same CPU number under two kernels is not the same CPU.
    found = evidence.cpu_sides(client=(NOTHING, near, "0"), server=(zero, far, "0"))
    assert found["client_to_server_cpu"] == 1.0


@pytest.mark.parametrize(("client", "server"), [("0-1", "0-1"), ("0", "0"), ("", "1")])
def test_sides_that_share_a_cpu_are_not_told_apart(client: str, server: str) -> None:
    assert evidence.cpu_sides(client=(NOTHING, ENDS, client), server=(NOTHING, ENDS, server)) == {}


def test_what_cannot_be_known_of_a_side_is_missing_and_not_zero() -> None:
    # A CPU that the machine has not; a window without a tick; a snapshot without the file.
    for before, after, cpus in ((NOTHING, ENDS, "1-2"), (ENDS, ENDS, "1"), ({}, {}, "1")):
        other = ticks(cpu0=(4, 0, 4, 0, 0, 0, 0, 0))
        zero = ticks(cpu0=(0,) * 8)
        found = evidence.cpu_sides(client=(zero, other, "0"), server=(before, after, cpus))
        assert found["client_cpu"] == 1.0
        assert not [name for name in found if "server" in name]
    idle = ticks(cpu0=(0, 0, 0, 9, 0, 0, 0, 0), cpu1=(0, 0, 1, 8, 0, 0, 0, 0))
    found = evidence.cpu_sides(client=(NOTHING, idle, "1"), server=(NOTHING, idle, "0"))
    assert found["server_cpu"] == 0.0 and found["client_cpu"] == 1 / 9
    assert not {"client_to_server_cpu", "client_kernel_to_user", "server_kernel_to_user"} & set(
        found
    )


def test_a_counter_that_went_back_counts_nothing() -> None:
    back = ticks(cpu0=(10, 0, 10, 60, 15, 0, 0, 0), cpu1=(0,) * 8)
    now = ticks(cpu0=(20, 0, 10, 70, 14, 0, 0, 0), cpu1=(5,) * 8)
    found = evidence.cpu_sides(client=(back, now, "0"), server=(back, now, "1"))
    assert found["client_cpu_iowait"] == 0.0 and found["client_cpu"] == 0.5


TICKS = st.lists(st.integers(0, 1_000_000), min_size=8, max_size=8)


@given(TICKS, TICKS)
def test_categories_are_shares_of_one_whole(first: list[int], second: list[int]) -> None:
    after = ticks(cpu0=tuple(first), cpu1=tuple(second))
    found = evidence.cpu_sides(client=(NOTHING, after, "0"), server=(NOTHING, after, "1"))
    for side, row in (("client", first), ("server", second)):
        if not sum(row):
            assert f"{side}_cpu" not in found
            continue
        parts = ("user", "kernel", "iowait", "steal", "idle")
        assert sum(found[f"{side}_cpu_{kind}"] for kind in parts) == pytest.approx(1.0)
        assert 0 <= found[f"{side}_cpu"] <= 1 + 1e-9


def test_the_recorded_pair_has_sides() -> None:
    before, after = evidence.parse(BEFORE), evidence.parse(AFTER)
    found = evidence.cpu_sides(client=(before, after, "0"), server=(before, after, "1"))
    whole = evidence.mechanisms(before, after, 1)
    assert found["client_cpu_idle"] == pytest.approx(whole["cpu0_idle"])
    assert found["server_cpu_idle"] == pytest.approx(whole["cpu1_idle"])
    assert found["client_cpu_softirq"] > 0
