"""Steering of packets: what is set, what is refused, that it was proven, that it is undone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from labkit.campaign import treatments
from labkit.errors import ManipulationError, RigError, UsageError
from labkit.hosts import LocalHost, Tuning, restore
from labkit.hosts.journal import Journal
from labkit.hosts.packet_steering import read_queues, rfs, rps, steer, xps

HOST = LocalHost()


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
    monkeypatch.setattr("labkit.hosts.packet_steering.FLOW_TABLE", str(table))
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
    monkeypatch.setattr("labkit.hosts.packet_steering.FLOW_TABLE", str(tmp_path / "nothing"))
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        with pytest.raises(RigError, match="not supported on this host"):
            rfs(tuning, "eth1", 32768, sysfs=sysfs)
        with pytest.raises(UsageError, match="power of two"):
            rfs(tuning, "eth1", 1000, sysfs=sysfs)


def test_each_level_of_a_study_sets_what_it_says(
    sysfs: str, book: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    table.write_text("0\n")
    monkeypatch.setattr("labkit.hosts.packet_steering.FLOW_TABLE", str(table))
    before = read_queues(HOST, "eth1", sysfs=sysfs)
    seen = {}
    for level in ("off", "on", "rfs", "xps"):
        with Tuning(HOST, "lkt-1", journal=book) as tuning:
            seen[level] = steer(tuning, "eth1", level, "0,1", sysfs=sysfs).record()
        assert read_queues(HOST, "eth1", sysfs=sysfs) == before and table.read_text() == "0\n"
    assert seen["off"] == before.record()
    assert seen["on"] == before.record() | {"rx-0/rps_cpus": "0-1", "rx-1/rps_cpus": "0-1"}
    flows = {"rx-0/rps_flow_cnt": 16384, "rx-1/rps_flow_cnt": 16384}
    assert seen["rfs"] == seen["on"] | flows
    assert seen["xps"] == seen["on"] | {"tx-0/xps_cpus": "0", "tx-1/xps_cpus": "1"}
    with pytest.raises(UsageError, match="unknown steering 'rss'"):
        steer(Tuning(HOST, "lkt-1", journal=book), "eth1", "rss", "0", sysfs=sysfs)


def test_off_turns_off_what_was_on_and_gives_it_back(sysfs: str, book: str) -> None:
    lever = Path(sysfs) / "class/net/eth0/queues/rx-0/rps_cpus"
    lever.write_text("3\n")
    with Tuning(HOST, "lkt-1", journal=book) as tuning:
        assert steer(tuning, "eth0", "off", "0", sysfs=sysfs).record()["rx-0/rps_cpus"] == ""
    assert lever.read_text() == "3\n"


def test_a_kernel_without_rps_is_off_and_nothing_else(sysfs: str, book: str) -> None:
    (Path(sysfs) / "class/net/eth0/queues/rx-0/rps_cpus").unlink()
    tuning = Tuning(HOST, "lkt-1", journal=book)
    assert "rx-0/rps_cpus" not in steer(tuning, "eth0", "off", "0", sysfs=sysfs).record()
    with pytest.raises(RigError, match="has no rps_cpus in this kernel"):
        steer(tuning, "eth0", "on", "0", sysfs=sysfs)


@pytest.mark.parametrize(
    ("found", "why"), [({"rps_ipis": 0}, "it did nothing"), ({}, "does not count")]
)
def test_steering_that_did_nothing_is_no_measurement(found: dict[str, float], why: str) -> None:
    for level in ("on", "rfs", "xps"):
        with pytest.raises(ManipulationError, match="no packet was steered") as caught:
            treatments.PacketSteering().check(level, found)
        assert why in caught.value.why
        treatments.PacketSteering().check(level, {"rps_ipis": 1})
    treatments.PacketSteering().check("off", found)


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
            with pytest.raises(UsageError, match="invalid device name"):
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


@contextmanager
def mounted_sysfs(namespace: str, folder: Path) -> Iterator[str]:
    """Mount the sysfs of a namespace, as the virtual rig does for its hosts."""
    folder.mkdir(exist_ok=True)
    enter = ["nsenter", f"--net=/run/netns/{namespace}"]
    subprocess.run([*enter, "mount", "-t", "sysfs", "sysfs", str(folder)], check=True)
    try:
        yield str(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class TestOtherNamespaces:
    """What needs the real kernel."""

    pytestmark = needs_namespaces

    def test_devices_of_another_namespace_are_steered_and_put_back(
        self, namespace: str, book: str, tmp_path: Path
    ) -> None:
        assert not read_queues(HOST, "four").there  # the machine does not see it
        with mounted_sysfs(namespace, tmp_path / "sys") as sysfs:
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

    def test_a_cpu_that_the_machine_has_not_is_not_taken(
        self, namespace: str, book: str, tmp_path: Path
    ) -> None:
        far = str(os.cpu_count() or 1)
        with (
            mounted_sysfs(namespace, tmp_path / "sys") as sysfs,
            Tuning(HOST, namespace, journal=book) as tuning,
            pytest.raises(RigError, match="rx-0/rps_cpus of one was not taken"),
        ):
            rps(tuning, "one", far, sysfs=sysfs)

    def test_after_a_kill_the_levers_are_still_found(
        self, namespace: str, book: str, tmp_path: Path
    ) -> None:
        with mounted_sysfs(namespace, tmp_path / "sys") as sysfs:
            rps(Tuning(HOST, namespace, journal=book), "one", "0", sysfs=sysfs)
            # Whoever set it is gone without a word; another restores it.
            assert [one.state for one in restore(HOST, journal=book)] == ["restored"]
            assert read_queues(HOST, "one", sysfs=sysfs).record()["rx-0/rps_cpus"] == ""

    def test_levers_that_went_with_their_namespace_are_no_conflict(
        self, namespace: str, book: str, tmp_path: Path
    ) -> None:
        tuning = Tuning(HOST, namespace, journal=book)
        with mounted_sysfs(namespace, tmp_path / "sys") as sysfs:
            rps(tuning, "one", "0", sysfs=sysfs)
        assert [one.state for one in tuning.restore()] == ["gone"]
