"""Packet steering: setting a device, reading back and undoing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.campaign import treatments
from labkit.errors import ManipulationError
from labkit.hosts import LocalHost, Settings
from labkit.placement import cpu_mask

HOST = LocalHost()


@pytest.mark.parametrize(("level", "mask"), [("off", "00000000,00000000"), ("on", "3")])
def test_a_device_is_steered_and_that_is_undone(tmp_path: Path, level: str, mask: str) -> None:
    folder, off = tmp_path / "class/net/eth1/queues", "00000000,00000000"
    paths = [folder / name / "rps_cpus" for name in ("rx-0", "rx-1")]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text(off)
    host, rig = SimpleNamespace(sysfs=str(tmp_path)), SimpleNamespace()
    rig.hosts, rig.targets = {"sut": HOST, "peer": HOST}, {"sut": host, "peer": host}
    rig.interfaces, rig.shared_kernel = {"sut": ("eth1",), "peer": ("eth7",)}, True
    rig.cpus = lambda role, affinity: "0,1"
    treatment = treatments.PacketSteering()
    with Settings(HOST, "lkt-1", journal=str(tmp_path / "journal")) as settings:
        treatment.apply(rig, level, lambda host: settings)
        assert [path.read_text().strip() for path in paths] == [mask] * 2
    assert [path.read_text().strip() for path in paths] == [off] * 2
    why = "local: an interface has no receive queue with rps_cpus"
    assert treatment.feasibility(rig, level, {}) == (why if level == "on" else None)


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [("", "0"), ("1,0", "3"), ("31", "80000000"), ("32", "1,00000000"), ("0,33", "2,00000001")],
)
def test_masks(cpus: str, mask: str) -> None:
    assert cpu_mask(cpus) == mask


@pytest.mark.parametrize(
    ("counters", "why"), [({"rps_ipis": 0}, "made 0 inter"), ({}, "an unknown number")]
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
    treatment.apply(rig, level, None)
    assert treatment.check(level, {"rps_ipis": 0}) == []
