"""Every baseline level and Docker placement on the real rig, and placements broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broken import broken
from echoes import echoes
from tampering import assert_untampered

from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError, PlacementError
from labkit.hosts import script
from labkit.hosts.target import Target
from labkit.placement import BASELINE_LEVELS, Limits, Placement, Workload, bare, container, docker
from labkit.rig.base import Rig
from labkit.runtimes import RUNTIMES, placed
from labkit.runtimes.base import Started, wait_ready
from labkit.tools import sockperf

pytestmark = pytest.mark.rig
PLACEMENTS = [
    *(bare(level) for level in BASELINE_LEVELS),
    *(docker(network) for network in ("host", "bridge", "nat")),
    docker("host").with_seccomp("unconfined"),
]
#: 100,000,000 bytes are not a multiple of the page size.
LIMITS = Limits("1", 512, 10_000, 2_000, 100_000_000)
LIMITED_DISK = docker("host", Limits(reads_per_s=100))
Left = Callable[[], list[str]]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_trial_from_start_to_stop(
    lab: Rig, make_trial: Callable[..., Trial], left: Left, placement: Placement
) -> None:
    assert lab.infeasible(placement) is None
    trial = make_trial(placement)
    with trial.serve(sockperf.server("block"), placement) as server:
        route = lab.hosts["generator"].run("ip", "route", "get", server.address).stdout
        assert " dev lab0 " in route
        measurement = trial.measure(echoes(server.address, 500))
        assert left() != []  # `left` finds the running placement
    assert measurement.messages > 0
    assert_untampered(trial)
    assert trial.record["verification"]["command"].startswith("sockperf server -i 0.0.0.0")
    assert trial.record["mechanisms"]["server_last_cpu"] == float(lab.cpu_map["sut"])
    assert "sockperf" in trial.logs["server.log"]
    assert not Path(f"/proc/{server.pid}").is_dir()
    assert left() == []


def group_file(pid: int, *names: str) -> str:
    """Read a file of a process's control group, in whichever hierarchy has it."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for base in (f"/sys/fs/cgroup/{controllers}", "/sys/fs/cgroup"):
            for name in names:
                file = Path(f"{base}{path}/{name}")
                if file.is_file():
                    return file.read_text().strip()
    raise AssertionError(f"no {names} for process {pid}")


@pytest.mark.parametrize("placement", [docker("host", LIMITS), bare("cgroup", LIMITS)], ids=str)
def test_limits_are_set_and_throttle(
    lab: Rig, make_trial: Callable[..., Trial], left: Left, placement: Placement
) -> None:
    trial = make_trial(placement, wait="spin")
    with trial.serve(sockperf.server("spin"), placement) as server:
        pid = server.pid
        assert group_file(pid, "cpuset.cpus") == "1"
        assert group_file(pid, "cpu.shares", "cpu.weight") in ("512", "20", "59")
        assert group_file(pid, "cpu.cfs_quota_us", "cpu.max") in ("2000", "2000 10000")
        assert group_file(pid, "cpu.cfs_period_us", "cpu.max") in ("10000", "2000 10000")
        memory = int(group_file(pid, "memory.limit_in_bytes", "memory.max"))
        assert 100_000_000 - 65536 < memory <= 100_000_000
        trial.measure(sockperf.ping_pong(server.address, messages=500, size=64, wait="spin"))
    found = trial.record["mechanisms"]
    assert 0 < found["nr_throttled"] <= found["nr_periods"]
    assert left() == []


def test_read_requests_are_limited(make_trial: Callable[..., Trial], left: Left) -> None:
    trial = make_trial(LIMITED_DISK)
    with trial.serve(sockperf.server("block"), LIMITED_DISK) as server:
        text = group_file(server.pid, "blkio.throttle.read_iops_device", "io.max")
        assert re.search(r"^\d+:\d+ (100$|.*riops=100 )", text)
    assert left() == []


def unpublish(target: Target, started: Started) -> None:
    """Delete the one rule that leads to the container; the engine's proxy still answers then."""
    text = """iptables -t nat -S DOCKER | sed -n 's/^-A \\(.*--dport 11111 .*\\)/-D \\1/p' |
    while read -r rule; do iptables -t nat $rule; done"""
    target.host.run(*script(text))


def to_cpu_0(target: Target, started: Started) -> None:
    shown = ("docker", "inspect", "--format", "{{.State.Pid}}", started.container)
    engine = {"DOCKER_HOST": str(target.engine)}
    pid = started.pid or target.host.run(*shown, env=engine).stdout.strip()
    target.host.run("taskset", "-acp", "0", str(pid))


MEMORY, QUOTA = Limits(memory=64 << 20), Limits(period_us=10_000, quota_us=2_000)
LAYER2, NAT, HOST, CGROUP = docker("bridge"), docker("nat"), docker("host"), bare("cgroup")
UNCONFINED = HOST.with_seccomp("unconfined")
OTHER = {"options": ("--network", "labkit-layer2", "--ip", "198.18.1.11")}
DEFAULT = {"options": ("--network", "bridge")}
CHROOT = bare("chroot")
#: A placement, what is started instead, and what the error says.
CASES: list[tuple[Placement, dict[str, Any], str]] = [
    (LAYER2, {"really": HOST}, "network: the host's, not its own"),
    (LAYER2, DEFAULT, "bridge labbr0: none, not yes"),
    (LAYER2, OTHER, "address 198.18.1.10: none, not yes"),
    (HOST, {"really": NAT}, "network: its own, not the host's"),
    (NAT, {"after": unpublish}, "NAT from 198.18.0.3 udp: none, not to it"),
    (docker("host", MEMORY), {"really": HOST}, "memory limit: none, not 67108864"),
    (LIMITED_DISK, {"really": HOST}, "limit of read requests: none, not 100"),
    (bare("cgroup", QUOTA), {"really": CGROUP}, "CPU quota: none, not 2000/10000 us"),
    (HOST, {"really": docker("host", QUOTA)}, "2000/10000 us, not none"),
    (CGROUP, {"really": bare("cgroup", Limits(shares=2))}, "CPU weight: "),
    (CGROUP, {"really": CHROOT}, "control group: / of /sys/fs"),
    (CHROOT, {"really": CGROUP}, "control group: /labkit/"),
    (CHROOT, {"really": bare("rules")}, "root: /, not"),
    (bare("clean"), {"after": to_cpu_0}, "allowed CPUs: 0, not 1"),
    (HOST, {"after": to_cpu_0}, "allowed CPUs: 0, not 1"),
    (HOST, {"really": UNCONFINED}, "seccomp filter: none, not yes"),
    (UNCONFINED, {"really": HOST}, "seccomp filter: yes, not none"),
]


def verification_error(
    lab: Rig, target: Target, placement: Placement, engine: Any, label: str
) -> str:
    """Place a server, and return the message of the verification error."""
    logs: dict[str, str] = {}
    place = (engine, target, placement, sockperf.server("block"))
    with (
        pytest.raises(ManipulationError) as caught,
        placed(*place, cpus=lab.cpu_map["sut"], label=label, logs=logs),
    ):
        raise AssertionError("verification passed")
    assert caught.value.evidence["verification"]["command"].startswith("sockperf server")
    assert "server.log" in logs
    return caught.value.what


@pytest.mark.parametrize(("placement", "wrong", "words"), CASES)
def test_wrong_placements_are_rejected(
    lab: Rig, label: str, left: Left, placement: Placement, wrong: dict[str, Any], words: str
) -> None:
    engine = broken(placement.runtime, **wrong)
    assert words in verification_error(lab, lab.target(placement), placement, engine, label)
    assert left() == []


def test_a_baseline_level_on_the_wrong_host_is_rejected(lab: Rig, label: str, left: Left) -> None:
    for level, role, words in (
        ("clean", "sut", "rules of the host: "),
        ("rules", "clean", "engine rules: none, not yes"),
    ):
        place = (lab.targets[role], bare(level), RUNTIMES["bare"])
        assert words in verification_error(lab, *place, label)
    assert left() == []


@pytest.fixture
def other_image(lab: Rig) -> Iterator[str]:
    """An image with the same files and another digest."""
    target = lab.targets["sut"]
    env = {"DOCKER_HOST": str(target.engine)}
    make = """id=$(docker create --label labkit=image "$1" true)
    docker commit "$id" labkit-test:other >/dev/null; docker rm "$id" >/dev/null"""
    target.host.run(*script(make, target.images["net"].reference), env=env)
    yield "labkit-test:other"
    target.host.run("docker", "rmi", "labkit-test:other", env=env)


def test_another_image_is_rejected(lab: Rig, label: str, other_image: str, left: Left) -> None:
    engine = broken("docker", image=other_image)
    assert "image: sha256:" in verification_error(lab, lab.targets["sut"], HOST, engine, label)
    assert left() == []


@pytest.mark.parametrize(
    ("argv", "patience", "words"),
    [(("sleep", "60"), 0.2, "nothing listens on the port yet"), (("false",), 20.0, "has ended")],
)
@pytest.mark.parametrize("placement", [CGROUP, NAT], ids=str)
def test_a_server_that_does_not_become_ready(
    lab: Rig,
    label: str,
    left: Left,
    placement: Placement,
    argv: tuple[str, ...],
    patience: float,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait_ready, "__defaults__", (0, patience))
    place = (RUNTIMES[placement.runtime], lab.target(placement), placement, Workload(argv, 11111))
    with pytest.raises(PlacementError) as caught, placed(*place, cpus="1", label=label):
        raise AssertionError("verification passed")
    assert words in str(caught.value) or "ended at once" in str(caught.value)
    assert left() == []


def test_files_written_by_a_container_are_removed(
    lab: Rig, make_trial: Callable[..., Trial], left: Left
) -> None:
    placement = container("lxc", "host")
    if reason := lab.infeasible(placement):  # in CI another test asks for each of them
        pytest.skip(reason)
    trial = make_trial(placement)
    with trial.serve(sockperf.server("block"), placement) as server:
        Path("/proc", str(server.pid), "root", "written").write_text("mine")
    assert not Path(lab.targets["sut"].images["net"].rootfs, "written").exists()
    assert left() == []
