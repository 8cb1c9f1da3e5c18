"""Packet steering: setting each level, reading back and undoing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.campaign import treatments
from labkit.errors import ManipulationError, RigError, UsageError
from labkit.hosts import LocalHost, Settings
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
