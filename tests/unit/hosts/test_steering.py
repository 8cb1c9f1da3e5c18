"""Packet steering: setting each level, reading back and undoing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from labkit.campaign import treatments
from labkit.errors import ManipulationError, RigError, UsageError
from labkit.hosts import LocalHost, Settings, restore
from labkit.hosts.packet_steering import LEVELS, cpu_mask, mask_cpus, read_queues, steer

HOST = LocalHost()


@pytest.fixture
def sysfs(tmp_path: Path) -> str:
    for device, count in (("eth0", 1), ("eth1", 2)):
        for number in range(count):
            queue = tmp_path / "sys/class/net" / device / "queues" / f"rx-{number}"
            queue.mkdir(parents=True)
            (queue / "rps_cpus").write_text("00000000,00000000\n")
    return str(tmp_path / "sys")


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


@pytest.mark.parametrize(("level", "cpus"), [("off", ""), ("on", "0-1")])
def test_each_level_is_set_read_back_and_undone(
    sysfs: str, journal: str, level: str, cpus: str
) -> None:
    before = read_queues(HOST, "eth1", sysfs=sysfs)
    assert before.record() == {"rx-0/rps_cpus": "", "rx-1/rps_cpus": ""}
    with Settings(HOST, "lkt-1", journal=journal) as settings:
        queues = steer(settings, "eth1", level, "0,1", sysfs=sysfs)
        assert queues == read_queues(HOST, "eth1", sysfs=sysfs)
        assert queues.record() == {"rx-0/rps_cpus": cpus, "rx-1/rps_cpus": cpus}
    assert read_queues(HOST, "eth1", sysfs=sysfs) == before


def test_a_device_without_rps_has_only_the_level_off(sysfs: str, journal: str) -> None:
    settings = Settings(HOST, "lkt-1", journal=journal)
    assert steer(settings, "eth7", "off", "0", sysfs=sysfs).record() == {}
    with pytest.raises(RigError, match="RPS of eth7 cannot be on") as caught:
        steer(settings, "eth7", "on", "0", sysfs=sysfs)
    assert "is not there, or has no receive queue" in caught.value.why
    with pytest.raises(UsageError, match="unknown steering 'rss'"):
        steer(settings, "eth0", "rss", "0", sysfs=sysfs)


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [
        ("", "0"),
        ("0", "1"),
        ("1,0", "3"),
        ("31", "80000000"),
        ("32", "1,00000000"),
        ("0,33", "2,00000001"),
        ("64-67,3", "f,00000000,00000008"),
    ],
)
def test_masks(cpus: str, mask: str) -> None:
    assert cpu_mask(cpus) == mask and cpu_mask(mask_cpus(mask)) == mask


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("mechanisms", "why"), [({"rps_ipis": 0}, "no other CPU"), ({}, "does not count")]
)
def test_steering_without_effect_is_an_error(
    level: str, mechanisms: dict[str, float], why: str
) -> None:
    treatment = treatments.PacketSteering()
    treatment.check(level, {"rps_ipis": 1})
    if level == "off":
        treatment.check(level, mechanisms)
        return
    with pytest.raises(ManipulationError, match="no packet was steered") as caught:
        treatment.check(level, mechanisms)
    assert why in caught.value.why


@pytest.mark.parametrize(("shared", "level"), [(False, "own"), (True, "as found")])
def test_where_no_packet_is_to_be_moved_none_needs_to_be(shared: bool, level: str) -> None:
    rig = SimpleNamespace(shared_kernel=shared, interfaces={"sut": ("eth0",)}, missing={})
    treatment = treatments.ReceivingCpu()
    assert treatment.feasibility(rig, level, {}) is None
    with treatment.apply(rig, level, "lkt-1"):
        assert treatment.check(level, {"rps_ipis": 0}) == []


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


class TestRealDevices:
    """Devices of a network namespace of the real kernel."""

    pytestmark = needs_namespaces

    def test_devices_of_another_namespace(
        self, namespace: str, journal: str, tmp_path: Path
    ) -> None:
        assert not read_queues(HOST, "four").masks  # not visible in the machine's own sysfs
        settings = Settings(HOST, namespace, journal=journal)
        with mounted_sysfs(namespace, tmp_path / "sys") as sysfs:
            before = read_queues(HOST, "four", sysfs=sysfs)
            record = steer(settings, "four", "on", "0", sysfs=sysfs).record()
            assert list(record.values()) == ["0"] * 4
            with pytest.raises(RigError, match="RPS of one cannot be on"):
                steer(settings, "one", "on", str(os.cpu_count() or 1), sysfs=sysfs)
            assert {outcome.state for outcome in restore(HOST, journal=journal)} <= {
                "restored",
                "unchanged",
            }
            assert read_queues(HOST, "four", sysfs=sysfs) == before
            steer(settings, "one", "on", "0", sysfs=sysfs)
        assert [outcome.state for outcome in settings.restore()] == ["gone"]
