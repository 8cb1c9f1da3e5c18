"""The queues of devices: masks of CPUs, what a device has, and what it cannot.

``queues-*.txt`` were recorded from devices of a network namespace: a veth with one queue, and one
with four.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ToolOutput, UsageError
from labkit.hosts.packet_steering import infeasible, parse_queues
from labkit.hosts.sysfs_values import cpu_mask, mask_cpus
from labkit.placement import parse_cpus

CAPTURED = Path(__file__).parents[2] / "captured"
ONE = (CAPTURED / "queues-one.txt").read_text()
FOUR = (CAPTURED / "queues-four.txt").read_text()


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [
        ("", "0"),
        ("0", "1"),
        ("0-1", "3"),
        ("1,0", "3"),
        ("31", "80000000"),
        ("32", "1,00000000"),
        ("0,33", "2,00000001"),
        ("64-67,3", "f,00000000,00000008"),
    ],
)
def test_lists_and_masks_by_hand(cpus: str, mask: str) -> None:
    assert cpu_mask(cpus) == mask and cpu_mask(mask_cpus(mask)) == mask


@given(st.sets(st.integers(0, 300)))
def test_a_mask_says_what_its_list_says(cpus: set[int]) -> None:
    text = ",".join(map(str, cpus))
    assert parse_cpus(text) == tuple(sorted(cpus))
    mask = cpu_mask(text)
    assert parse_cpus(mask_cpus(mask)) == tuple(sorted(cpus))
    assert int(mask.replace(",", ""), 16) == sum(1 << cpu for cpu in cpus)
    first, *rest = mask.split(",")
    assert (first[0] != "0" or mask == "0") and all(len(group) == 8 for group in rest)


@pytest.mark.parametrize("wrong", ["a", "3-1", "-1", "0,", "0 1", "8192", "99999", "0x3", "\u0661"])
def test_what_is_no_list_of_cpus_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="invalid CPU list"):
        cpu_mask(wrong)


@pytest.mark.parametrize("wrong", ["", "g", "3,", "123456789", "0-1", "-"])
def test_what_is_no_mask_is_an_error(wrong: str) -> None:
    with pytest.raises(ToolOutput, match="is not a CPU mask"):
        mask_cpus(wrong)


def test_recorded_queues() -> None:
    one = parse_queues(ONE, "veth0")
    assert (one.receive, one.transmit, one.there) == (("rx-0",), ("tx-0",), True)
    assert one.record() == {"rx-0/rps_cpus": "", "rx-0/rps_flow_cnt": 0}
    four = parse_queues(FOUR, "veth1")
    assert four.receive == ("rx-0", "rx-1", "rx-2", "rx-3")
    assert four.transmit == ("tx-0", "tx-1", "tx-2", "tx-3")
    assert set(four.record()) == {
        *(f"rx-{queue}/{lever}" for queue in range(4) for lever in ("rps_cpus", "rps_flow_cnt")),
        *(f"tx-{queue}/xps_cpus" for queue in range(4)),
    }


def test_queues_stand_in_the_order_of_their_numbers() -> None:
    names = "\n".join(f"rx-{number}" for number in (0, 1, 10, 11, 2))
    found = parse_queues(f"present\n{names}\nend\n", "eth0")
    assert found.receive == ("rx-0", "rx-1", "rx-2", "rx-10", "rx-11")


@given(st.integers(0, len(FOUR)))
def test_an_answer_that_breaks_off_is_an_error(cut: int) -> None:
    if FOUR[:cut].rstrip() == FOUR.rstrip():
        return
    with pytest.raises(ToolOutput, match="queues of veth1"):
        parse_queues(FOUR[:cut], "veth1")


@pytest.mark.parametrize("text", ["present\nwhat is this\nend\n", "end\n", "vorhanden\nend\n"])
def test_another_answer_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(ToolOutput) as caught:
        parse_queues(text, "eth0")
    assert caught.value.evidence["stdout"] == text


def test_what_a_device_cannot_do_is_refused_with_the_reason() -> None:
    one, four = parse_queues(ONE, "veth0"), parse_queues(FOUR, "veth1")
    assert [infeasible(one, what) for what in ("rps", "rfs")] == [None, None]
    assert infeasible(one, "xps") == "veth0 has a single transmit queue: XPS has nothing to choose"
    assert infeasible(one, "rss") == "veth0 has a single receive queue: RSS has nothing to choose"
    assert [infeasible(four, what) for what in ("rps", "rfs", "xps", "rss")] == [None] * 4
    absent = parse_queues("absent\nend\n", "eth7")
    assert infeasible(absent, "rps") == "there is no device eth7"
    without = parse_queues("present\nend\n", "eth7")
    assert infeasible(without, "rps") == "eth7 has no receive queue"
    assert infeasible(without, "xps") == "eth7 has no transmit queue"
    plain = parse_queues("present\nrx-0\ntx-0\nend\n", "eth7")
    assert infeasible(plain, "rps") == "rx-0 of eth7 has no rps_cpus in this kernel"
    with pytest.raises(UsageError, match="unknown steering"):
        infeasible(four, "dns")
