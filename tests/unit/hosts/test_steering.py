"""Packet steering: parsing a device's queues, setting each level, reading back and undoing.

``queues-*.txt`` were recorded from devices of a network namespace: a veth with one queue, and one
with four.
"""

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
from hypothesis import given
from hypothesis import strategies as st

from labkit.campaign import treatments
from labkit.errors import ManipulationError, RigError, ToolOutput, UsageError
from labkit.hosts import LocalHost, Tuning, restore
from labkit.hosts.journal import Journal
from labkit.hosts.packet_steering import LEVELS, infeasible, parse_queues, read_queues, steer

HOST = LocalHost()
CAPTURED = Path(__file__).parents[2] / "captured"
ONE = (CAPTURED / "queues-one.txt").read_text()
FOUR = (CAPTURED / "queues-four.txt").read_text()


def test_recorded_queues() -> None:
    one = parse_queues(ONE, "veth0")
    assert (one.receive, one.transmit, one.exists) == (("rx-0",), ("tx-0",), True)
    assert one.record() == {"rx-0/rps_cpus": "", "rx-0/rps_flow_cnt": 0}
    four = parse_queues(FOUR, "veth1")
    assert four.receive == ("rx-0", "rx-1", "rx-2", "rx-3")
    assert four.transmit == ("tx-0", "tx-1", "tx-2", "tx-3")
    assert set(four.record()) == {
        *(f"rx-{queue}/{file}" for queue in range(4) for file in ("rps_cpus", "rps_flow_cnt")),
        *(f"tx-{queue}/xps_cpus" for queue in range(4)),
    }


def test_queues_are_in_numerical_order() -> None:
    names = "\n".join(f"rx-{number}" for number in (0, 1, 10, 11, 2))
    queues = parse_queues(f"present\n{names}\nend\n", "eth0")
    assert queues.receive == ("rx-0", "rx-1", "rx-2", "rx-10", "rx-11")


@given(st.integers(0, len(FOUR)))
def test_truncated_output_is_an_error(length: int) -> None:
    if FOUR[:length].rstrip() == FOUR.rstrip():
        return
    with pytest.raises(ToolOutput, match="queues of veth1"):
        parse_queues(FOUR[:length], "veth1")


@pytest.mark.parametrize("text", ["present\nwhat is this\nend\n", "end\n", "vorhanden\nend\n"])
def test_unknown_output_is_an_error_with_evidence(text: str) -> None:
    with pytest.raises(ToolOutput) as caught:
        parse_queues(text, "eth0")
    assert caught.value.evidence["stdout"] == text


@pytest.mark.parametrize(
    ("text", "mechanism", "reason"),
    [
        (ONE, "rps", None),
        (ONE, "rfs", None),
        (ONE, "xps", "eth7 has a single transmit queue: XPS has nothing to choose"),
        (FOUR, "rps", None),
        (FOUR, "rfs", None),
        (FOUR, "xps", None),
        ("absent\nend\n", "rps", "there is no device eth7"),
        ("present\nend\n", "rps", "eth7 has no receive queue"),
        ("present\nend\n", "xps", "eth7 has no transmit queue"),
        ("present\nrx-0\ntx-0\nend\n", "rps", "rx-0 of eth7 has no rps_cpus in this kernel"),
    ],
)
def test_infeasible(text: str, mechanism: str, reason: str | None) -> None:
    assert infeasible(parse_queues(text, "eth7"), mechanism) == reason


@pytest.fixture
def sysfs(tmp_path: Path) -> str:
    """Return plain files that look like the sysfs of two devices, with one queue and with two."""
    for device, count in (("eth0", 1), ("eth1", 2)):
        queues = tmp_path / "sys" / "class" / "net" / device / "queues"
        for number in range(count):
            for queue, files in (
                (f"rx-{number}", {"rps_cpus": "0", "rps_flow_cnt": "0"}),
                (f"tx-{number}", {"xps_cpus": "3"}),
            ):
                (queues / queue).mkdir(parents=True)
                for file, value in files.items():
                    (queues / queue / file).write_text(f"{value}\n")
    return str(tmp_path / "sys")


@pytest.fixture
def flow_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = tmp_path / "table"
    table.write_text("0\n")
    monkeypatch.setattr("labkit.hosts.packet_steering.FLOW_TABLE", str(table))
    return table


@pytest.fixture
def journal(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


RPS = {"rx-0/rps_cpus": "0-1", "rx-1/rps_cpus": "0-1"}


@pytest.mark.parametrize(
    ("level", "changes"),
    [
        ("off", {}),
        ("on", RPS),
        ("rfs", RPS | {"rx-0/rps_flow_cnt": 16384, "rx-1/rps_flow_cnt": 16384}),
        ("xps", RPS | {"tx-0/xps_cpus": "0", "tx-1/xps_cpus": "1"}),
    ],
)
def test_each_level_is_set_read_back_and_undone(
    sysfs: str, journal: str, flow_table: Path, level: str, changes: dict[str, object]
) -> None:
    before = read_queues(HOST, "eth1", sysfs=sysfs)
    with Tuning(HOST, "lkt-1", journal=journal) as tuning:
        queues = steer(tuning, "eth1", level, "0,1", sysfs=sysfs)
        assert queues == read_queues(HOST, "eth1", sysfs=sysfs)
        assert queues.record() == before.record() | changes
        assert flow_table.read_text() == ("32768\n" if level == "rfs" else "0\n")
        files = len(changes) + (level == "rfs")
        assert len(Journal(HOST, journal).load().pending) == files
    assert read_queues(HOST, "eth1", sysfs=sysfs) == before and flow_table.read_text() == "0\n"


def test_the_flow_table_can_be_set_by_another_host(
    sysfs: str, journal: str, flow_table: Path
) -> None:
    machine = Tuning(HOST, "lkt-2", journal=f"{journal}-machine")
    with machine, Tuning(HOST, "lkt-1", journal=journal) as tuning:
        steer(tuning, "eth1", "rfs", "0", sysfs=sysfs, machine=machine)
        assert len(Journal(HOST, f"{journal}-machine").load().pending) == 1
    assert flow_table.read_text() == "0\n"


def test_rfs_needs_the_flow_table(sysfs: str, journal: str, flow_table: Path) -> None:
    flow_table.unlink()
    with (
        Tuning(HOST, "lkt-1", journal=journal) as tuning,
        pytest.raises(RigError, match="not supported on this host"),
    ):
        steer(tuning, "eth1", "rfs", "0", sysfs=sysfs)


def test_off_switches_rps_off_and_restores_it(sysfs: str, journal: str) -> None:
    file = Path(sysfs) / "class/net/eth0/queues/rx-0/rps_cpus"
    file.write_text("3\n")
    with Tuning(HOST, "lkt-1", journal=journal) as tuning:
        assert steer(tuning, "eth0", "off", "0", sysfs=sysfs).record()["rx-0/rps_cpus"] == ""
    assert file.read_text() == "3\n"


def test_a_kernel_without_rps_has_only_the_level_off(sysfs: str, journal: str) -> None:
    (Path(sysfs) / "class/net/eth0/queues/rx-0/rps_cpus").unlink()
    tuning = Tuning(HOST, "lkt-1", journal=journal)
    assert "rx-0/rps_cpus" not in steer(tuning, "eth0", "off", "0", sysfs=sysfs).record()
    with pytest.raises(RigError, match="RPS cannot be set on eth0") as caught:
        steer(tuning, "eth0", "on", "0", sysfs=sysfs)
    assert "has no rps_cpus in this kernel" in caught.value.why


@pytest.mark.parametrize(
    ("device", "level", "error", "message"),
    [
        ("eth0", "xps", RigError, "single transmit queue"),
        ("eth7", "on", RigError, "there is no device eth7"),
        ("eth1", "rss", UsageError, "unknown steering 'rss'"),
        *(
            (name, "on", UsageError, "invalid device name")
            for name in ("", ".", "..", "eth0/queues", "much-too-long-a-name")
        ),
    ],
)
def test_what_cannot_be_steered_changes_nothing(
    sysfs: str, journal: str, device: str, level: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        steer(Tuning(HOST, "lkt-1", journal=journal), device, level, "0", sysfs=sysfs)
    assert Journal(HOST, journal).load().pending == ()


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
        assert not read_queues(HOST, "four").exists  # not visible in the machine's own sysfs
        with mounted_sysfs(namespace, tmp_path / "sys") as sysfs:
            before = read_queues(HOST, "four", sysfs=sysfs)
            with Tuning(HOST, namespace, journal=journal) as tuning:
                record = steer(tuning, "four", "xps", "0", sysfs=sysfs).record()
                assert [record[f"rx-{queue}/rps_cpus"] for queue in range(4)] == ["0"] * 4
                assert record["tx-3/xps_cpus"] == "0"
                record = steer(tuning, "one", "on", "0", sysfs=sysfs).record()
                assert record["rx-0/rps_cpus"] == "0"
            assert read_queues(HOST, "four", sysfs=sysfs) == before

    def test_a_cpu_that_does_not_exist(self, namespace: str, journal: str, tmp_path: Path) -> None:
        with (
            mounted_sysfs(namespace, tmp_path / "sys") as sysfs,
            Tuning(HOST, namespace, journal=journal) as tuning,
            pytest.raises(RigError, match="rx-0/rps_cpus of one was not taken"),
        ):
            steer(tuning, "one", "on", str(os.cpu_count() or 1), sysfs=sysfs)

    def test_restore_after_the_process_has_ended(
        self, namespace: str, journal: str, tmp_path: Path
    ) -> None:
        with mounted_sysfs(namespace, tmp_path / "sys") as sysfs:
            steer(Tuning(HOST, namespace, journal=journal), "one", "on", "0", sysfs=sysfs)
            assert [outcome.state for outcome in restore(HOST, journal=journal)] == ["restored"]
            assert read_queues(HOST, "one", sysfs=sysfs).record()["rx-0/rps_cpus"] == ""

    def test_files_of_a_deleted_namespace_are_gone(
        self, namespace: str, journal: str, tmp_path: Path
    ) -> None:
        tuning = Tuning(HOST, namespace, journal=journal)
        with mounted_sysfs(namespace, tmp_path / "sys") as sysfs:
            steer(tuning, "one", "on", "0", sysfs=sysfs)
        assert [outcome.state for outcome in tuning.restore()] == ["gone"]
