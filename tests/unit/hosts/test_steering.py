"""Packet steering: setting a device, reading back and undoing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.campaign import treatments
from labkit.errors import ManipulationError, RigError
from labkit.hosts import LocalHost, Settings
from labkit.hosts.packet_steering import cpu_mask, mask_cpus, read_queues, steer

HOST = LocalHost()


@pytest.mark.parametrize(("cpus", "after"), [("", ""), ("0,1", "0-1")])
def test_a_device_is_steered_read_back_and_undone(tmp_path: Path, cpus: str, after: str) -> None:
    sysfs, off = str(tmp_path / "sys"), {"rx-0/rps_cpus": "", "rx-1/rps_cpus": ""}
    for name in off:
        path = tmp_path / "sys/class/net/eth1/queues" / name
        path.parent.mkdir(parents=True)
        path.write_text("00000000,00000000\n")
    with Settings(HOST, "lkt-1", journal=str(tmp_path / "journal")) as settings:
        assert steer(settings, "eth1", cpus, sysfs=sysfs) == dict.fromkeys(off, after)
        assert read_queues(HOST, "eth1", sysfs=sysfs) == dict.fromkeys(off, after)
        assert steer(settings, "eth7", "", sysfs=sysfs) == {}
        with pytest.raises(RigError, match="RPS of eth7 cannot be set to 0") as caught:
            steer(settings, "eth7", "0", sysfs=sysfs)
        assert "is not there, or has no receive queue" in caught.value.why
    assert read_queues(HOST, "eth1", sysfs=sysfs) == off


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [("", "0"), ("1,0", "3"), ("31", "80000000"), ("32", "1,00000000"), ("0,33", "2,00000001")],
)
def test_masks(cpus: str, mask: str) -> None:
    assert cpu_mask(cpus) == mask and cpu_mask(mask_cpus(mask)) == mask


@pytest.mark.parametrize(
    ("counters", "why"), [({"rps_ipis": 0}, "no other CPU"), ({}, "does not count")]
)
def test_steering_without_effect_is_an_error(counters: dict[str, float], why: str) -> None:
    treatment = treatments.PacketSteering()
    treatment.check("on", {"rps_ipis": 1})
    treatment.check("off", counters)
    with pytest.raises(ManipulationError, match="no packet was steered") as caught:
        treatment.check("on", counters)
    assert why in caught.value.why


@pytest.mark.parametrize(("shared", "level"), [(False, "own"), (True, "as found")])
def test_where_no_packet_is_to_be_moved_none_needs_to_be(shared: bool, level: str) -> None:
    rig = SimpleNamespace(shared_kernel=shared, interfaces={"sut": ("eth0",)}, missing={})
    treatment = treatments.ReceivingCpu()
    assert treatment.feasibility(rig, level, {}) is None
    with treatment.apply(rig, level, "lkt-1"):
        assert treatment.check(level, {"rps_ipis": 0}) == []
