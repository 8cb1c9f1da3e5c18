"""Steering of packets: masks, what a device has, what is refused, and that it is always undone.

``queues-*.txt`` were recorded from devices of a network namespace: a veth with one queue, and one
with four.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import RigError, ToolOutput, UsageError
from labkit.hosts import LocalHost, Tuning, restore
from labkit.hosts.journal import Journal
from labkit.hosts.levers import cpu_mask, cpu_numbers, mask_cpus
from labkit.hosts.steering import (
    parse_queues,
    read_queues,
    refusal,
    rfs,
    rps,
    xps,
)
from labkit.hosts.sysfs import own_sysfs

CAPTURED = Path(__file__).parents[1] / "captured"
ONE = (CAPTURED / "queues-one.txt").read_text()
FOUR = (CAPTURED / "queues-four.txt").read_text()
HOST = LocalHost()


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
    assert cpu_numbers(text) == tuple(sorted(cpus))
    mask = cpu_mask(text)
    assert cpu_numbers(mask_cpus(mask)) == tuple(sorted(cpus))
    assert int(mask.replace(",", ""), 16) == sum(1 << cpu for cpu in cpus)
    first, *rest = mask.split(",")
    assert (first[0] != "0" or mask == "0") and all(len(group) == 8 for group in rest)


@pytest.mark.parametrize("wrong", ["a", "3-1", "-1", "0,", "0 1", "8192", "99999", "0x3", "\u0661"])
def test_what_is_no_list_of_cpus_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="no list of CPUs"):
        cpu_mask(wrong)


@pytest.mark.parametrize("wrong", ["", "g", "3,", "123456789", "0-1", "-"])
def test_what_is_no_mask_is_an_error(wrong: str) -> None:
    with pytest.raises(ToolOutput, match="no mask of CPUs"):
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
    assert [refusal(one, what) for what in ("rps", "rfs")] == [None, None]
    assert refusal(one, "xps") == "veth0 has a single transmit queue: XPS has nothing to choose"
    assert refusal(one, "rss") == "veth0 has a single receive queue: RSS has nothing to choose"
    assert [refusal(four, what) for what in ("rps", "rfs", "xps", "rss")] == [None] * 4
    absent = parse_queues("absent\nend\n", "eth7")
    assert refusal(absent, "rps") == "there is no device eth7"
    without = parse_queues("present\nend\n", "eth7")
    assert refusal(without, "rps") == "eth7 has no receive queue"
    assert refusal(without, "xps") == "eth7 has no transmit queue"
    plain = parse_queues("present\nrx-0\ntx-0\nend\n", "eth7")
    assert refusal(plain, "rps") == "rx-0 of eth7 has no rps_cpus in this kernel"
    with pytest.raises(UsageError, match="unknown steering"):
        refusal(four, "dns")


@pytest.fixture
def sysfs(tmp_path: Path) -> str:
    """Return plain files that look like the sysfs of two devices, with one queue and with two."""
    for device, count in (("eth0", 1), ("eth1", 2)):
        for number in range(count):
            queues = tmp_path / "sys" / "class" / "net" / device / "queues"
            for queue, levers in (
                (f"rx-{number}", {"rps_cpus": "0", "rps_flow_cnt": "0"}),
                (f"tx-{number}", {"xps_cpus": "3"}),
            ):
                (queues / queue).mkdir(parents=True)
                for lever, value in levers.items():
                    (queues / queue / lever).write_text(f"{value}\n")
    return str(tmp_path / "sys")


@pytest.fixture
def book(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


def test_rps_is_set_on_every_queue_read_back_and_undone(sysfs: str, book: str) -> None:
    before = read_queues(HOST, "eth1", sysfs=sysfs)
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        found = rps(tuning, "eth1", "0-1", sysfs=sysfs)
        assert found == read_queues(HOST, "eth1", sysfs=sysfs)
        assert found.record()["rx-0/rps_cpus"] == found.record()["rx-1/rps_cpus"] == "0-1"
        assert len(Journal(HOST, book).load().pending) == 2
        assert rps(tuning, "eth1", "", sysfs=sysfs).record()["rx-1/rps_cpus"] == ""
    assert read_queues(HOST, "eth1", sysfs=sysfs) == before
    assert Journal(HOST, book).load().pending == ()


def test_flows_are_shared_out_among_queues(
    sysfs: str, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    table.write_text("0\n")
    monkeypatch.setattr("labkit.hosts.steering.FLOW_TABLE", str(table))
    machine = Tuning(HOST, "lkt-2", journal=f"{book}-machine")
    with machine, Tuning(HOST, "lkt-1", journal=book) as tuning:
        found = rfs(tuning, "eth1", 32768, sysfs=sysfs, machine=machine)
        assert found.record()["rx-0/rps_flow_cnt"] == found.record()["rx-1/rps_flow_cnt"] == 16384
        assert table.read_text() == "32768\n"
        assert len(Journal(HOST, f"{book}-machine").load().pending) == 1
        assert rfs(tuning, "eth0", 0, sysfs=sysfs).record()["rx-0/rps_flow_cnt"] == 0
    assert table.read_text() == "0\n"
    assert read_queues(HOST, "eth1", sysfs=sysfs).record()["rx-1/rps_flow_cnt"] == 0


def test_flows_without_the_machine_s_table_are_refused(
    sysfs: str, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labkit.hosts.steering.FLOW_TABLE", str(tmp_path / "nothing"))
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        with pytest.raises(RigError, match="there is no such lever"):
            rfs(tuning, "eth1", 32768, sysfs=sysfs)
        with pytest.raises(UsageError, match="power of two"):
            rfs(tuning, "eth1", 1000, sysfs=sysfs)


def test_xps_has_a_list_for_each_queue(sysfs: str, book: str) -> None:
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        found = xps(tuning, "eth1", ["0", "1"], sysfs=sysfs).record()
        assert (found["tx-0/xps_cpus"], found["tx-1/xps_cpus"]) == ("0", "1")
        with pytest.raises(UsageError, match="2 transmit queues, not 1"):
            xps(tuning, "eth1", ["0"], sysfs=sysfs)
        with pytest.raises(RigError, match="single transmit queue"):
            xps(tuning, "eth0", ["0"], sysfs=sysfs)
    assert read_queues(HOST, "eth1", sysfs=sysfs).record()["tx-0/xps_cpus"] == "0-1"


def test_a_device_that_is_not_there_is_refused(sysfs: str, book: str) -> None:
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        with pytest.raises(RigError, match="there is no device eth7"):
            rps(tuning, "eth7", "0", sysfs=sysfs)
        for wrong in ("", ".", "..", "eth0/queues", "much-too-long-a-name"):
            with pytest.raises(UsageError, match="no name of a device"):
                rps(tuning, wrong, "0", sysfs=sysfs)
    assert Journal(HOST, book).load().pending == ()


needs_namespaces = [
    pytest.mark.rig,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is missing"),
]


@pytest.fixture
def namespace() -> Iterator[str]:
    """Make a network namespace with a veth pair: ``one`` has one queue, ``four`` four."""
    name = f"lkt-{uuid4().hex[:8]}"
    ip = ("ip", "-n", name, "link", "add")
    queues = ("numtxqueues", "4", "numrxqueues", "4")
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        peer = ("type", "veth", "peer", "name", "four", *queues)
        subprocess.run([*ip, "one", "numtxqueues", "1", "numrxqueues", "1", *peer], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def _mounts(namespace: str, folder: str) -> list[str]:
    """Return the machine's mounts that this test could have left; others may mount meanwhile."""
    rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    own = ("/sys", f"/run/netns/{namespace}")
    return sorted(" ".join(row[:3]) for row in rows if row[1] in own or row[1].startswith(folder))


class TestOtherNamespaces:
    """What needs the real kernel."""

    pytestmark = needs_namespaces

    def test_devices_of_another_namespace_are_steered_and_put_back(
        self, namespace: str, book: str, tmp_path: Path
    ) -> None:
        place, folder = f"/run/netns/{namespace}", str(tmp_path / "job")
        mounts = _mounts(namespace, folder)
        assert not read_queues(HOST, "four").there  # the machine does not see it
        with own_sysfs(HOST, place, directory=folder, label=namespace) as sysfs:
            before = read_queues(HOST, "four", sysfs=sysfs)
            with Tuning(HOST, namespace, journal=book) as tuning:
                found = rps(tuning, "four", "0", sysfs=sysfs).record()
                assert [found[f"rx-{queue}/rps_cpus"] for queue in range(4)] == ["0"] * 4
                assert rps(tuning, "one", "0", sysfs=sysfs).record()["rx-0/rps_cpus"] == "0"
                found = xps(tuning, "four", ["0"] * 4, sysfs=sysfs).record()
                assert found["tx-3/xps_cpus"] == "0"
                with pytest.raises(RigError, match="single transmit queue"):
                    xps(tuning, "one", ["0"], sysfs=sysfs)
            assert read_queues(HOST, "four", sysfs=sysfs) == before
        assert _mounts(namespace, folder) == mounts
        assert not Path(folder).exists() and not Path(sysfs).exists()

    def test_a_cpu_that_the_machine_has_not_is_not_taken(
        self, namespace: str, book: str, tmp_path: Path
    ) -> None:
        far = str(os.cpu_count() or 1)
        with (
            own_sysfs(
                HOST, f"/run/netns/{namespace}", directory=str(tmp_path / "job"), label=namespace
            ) as sysfs,
            Tuning(HOST, namespace, journal=book) as tuning,
            pytest.raises(RigError, match="rx-0/rps_cpus of one was not taken"),
        ):
            rps(tuning, "one", far, sysfs=sysfs)

    def test_after_a_kill_the_levers_are_still_found(
        self, namespace: str, book: str, tmp_path: Path
    ) -> None:
        place, folder = f"/run/netns/{namespace}", str(tmp_path / "job")
        with own_sysfs(HOST, place, directory=folder, label=namespace) as sysfs:
            rps(Tuning(HOST, namespace, journal=book), "one", "0", sysfs=sysfs)
            # Whoever set it is gone without a word; another restores it.
            assert [one.state for one in restore(HOST, journal=book)] == ["restored"]
            assert read_queues(HOST, "one", sysfs=sysfs).record()["rx-0/rps_cpus"] == ""

    def test_levers_that_went_with_their_namespace_are_no_conflict(
        self, namespace: str, book: str, tmp_path: Path
    ) -> None:
        place, folder = f"/run/netns/{namespace}", str(tmp_path / "job")
        tuning = Tuning(HOST, namespace, journal=book)
        with own_sysfs(HOST, place, directory=folder, label=namespace) as sysfs:
            rps(tuning, "one", "0", sysfs=sysfs)
        assert [one.state for one in tuning.restore()] == ["gone"]

    def test_a_namespace_that_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        folder = str(tmp_path / "job")
        with (
            pytest.raises(RigError, match="cannot be reached") as caught,
            own_sysfs(HOST, 1 << 22, directory=folder, label="lkt-none"),
        ):
            raise AssertionError
        assert "nsenter" in caught.value.why and not Path(folder).exists()
