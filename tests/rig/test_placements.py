"""Every baseline level and Docker placement on the real rig, and placements broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echoes import echoes
from tampering import assert_untampered

from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError, PlacementError
from labkit.hosts import script
from labkit.hosts.target import Image, Target
from labkit.placement import BASELINE_LEVELS, Limits, Placement, Workload, bare, container, docker
from labkit.rig.base import Rig
from labkit.runtimes import RUNTIMES, Instance, placed
from labkit.runtimes.bare import Bare
from labkit.runtimes.base import Started, wait_ready
from labkit.runtimes.docker import Docker
from labkit.tools import sockperf

pytestmark = pytest.mark.rig
MESSAGES = 500
PLACEMENTS = [
    *(bare(level) for level in BASELINE_LEVELS),
    *(docker(network) for network in ("host", "bridge", "nat")),
    docker("host").with_seccomp("unconfined"),
]
#: 100,000,000 bytes are not a multiple of the page size.
LIMITS = Limits("1", 512, 10_000, 2_000, 100_000_000)
LIMITED_DISK = docker("host", Limits(reads_per_s=100))
Left = Callable[[], list[str]]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").is_dir()


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_trial_from_start_to_stop(
    lab: Rig, make_trial: Callable[..., Trial], left: Left, placement: Placement
) -> None:
    assert lab.infeasible(placement) is None
    trial = make_trial(placement)
    with trial.serve(sockperf.server("block"), placement) as server:
        assert alive(server.pid)
        assert lab.owns(server.address)
        route = lab.hosts["generator"].run("ip", "route", "get", server.address).stdout
        assert " dev lab0 " in route
        load = echoes(server.address, MESSAGES)
        # What the tool writes does not depend on the placement, and it sleeps before it sends.
        by_tool = placement in (bare("clean"), docker("bridge"))
        if by_tool:
            load = sockperf.ping_pong(server.address, messages=MESSAGES, size=64, wait="block")
        measurement = trial.measure(load)
        assert left() != []  # `left` finds the running placement
    assert measurement.messages > 0
    assert_untampered(trial)
    if by_tool:
        rtt = measurement.samples["rtt_ns"]
        assert 0 < len(rtt) <= MESSAGES and rtt.dtype == np.int64 and rtt.min() > 0
        assert measurement.messages >= len(rtt)
        assert "Summary: Latency" in trial.logs["tool.out"]
    assert trial.record["verification"]["command"].startswith("sockperf server -i 0.0.0.0")
    assert trial.record["mechanisms"]["server_last_cpu"] == float(lab.cpu_map["sut"])
    assert len(trial.record["commands"]) == 2
    assert "sockperf" in trial.logs["server.log"]
    assert not alive(server.pid)
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
        assert group_file(pid, "cpu.shares", "cpu.weight") in ("512", "20")
        quota = group_file(pid, "cpu.cfs_quota_us", "cpu.max")
        assert quota in ("2000", "2000 10000")
        if quota == "2000":
            assert group_file(pid, "cpu.cfs_period_us") == "10000"
        memory = int(group_file(pid, "memory.limit_in_bytes", "memory.max"))
        assert LIMITS.memory and LIMITS.memory - 65536 < memory <= LIMITS.memory
        load = sockperf.ping_pong(server.address, messages=MESSAGES, size=64, wait="spin")
        trial.measure(load)
    found = trial.record["mechanisms"]
    assert 0 < found["nr_throttled"] <= found["nr_periods"]
    assert left() == []


def test_read_requests_are_limited(make_trial: Callable[..., Trial], left: Left) -> None:
    trial = make_trial(LIMITED_DISK)
    with trial.serve(sockperf.server("block"), LIMITED_DISK) as server:
        text = group_file(server.pid, "blkio.throttle.read_iops_device", "io.max")
        assert re.search(r"^\d+:\d+ (100$|.*riops=100 )", text)
    assert left() == []


@dataclass
class WrongRuntime:
    """Creates a runtime that starts something else than the placement says.

    Parameters
    ----------
    really : Placement, optional
        The placement that it starts instead, if any.
    options : tuple of str
        Options of ``docker run``, in place of those for the network.
    image : str
        Another image.
    after : callable, optional
        Called with the target and what was started, before anything is checked.
    """

    really: Placement | None = None
    options: tuple[str, ...] = ()
    image: str = ""
    after: Callable[[Target, Started], Any] | None = None

    def __call__(self, placement: Placement) -> Any:
        spec, kind = self, type(RUNTIMES[placement.runtime])

        class Wrong(kind):  # type: ignore[misc, valid-type]
            def start(self, instance: Instance) -> Started:
                target = replace(instance.target, images=spec.images(instance.target))
                placement = spec.really or instance.placement
                started = super().start(replace(instance, target=target, placement=placement))
                if spec.after:
                    spec.after(instance.target, started)
                return Started(started.pid, started.container)

            def network(self, instance: Instance) -> list[str]:
                return list(spec.options) or Docker().network(instance)

        return Wrong()

    def images(self, target: Target) -> dict[str, Image]:
        if not self.image:
            return dict(target.images)
        right = target.images["net"]
        return {"net": Image(right.name, self.image, right.digest, right.rootfs)}


def unpublish(target: Target, started: Started) -> None:
    """Delete the one rule that leads to the container; the engine's proxy still answers then."""
    text = """iptables -t nat -S DOCKER | sed -n 's/^-A \\(.*--dport 11111 .*\\)/-D \\1/p' |
    while read -r rule; do iptables -t nat $rule; done"""
    target.host.run(*script(text))


def to_cpu_0(target: Target, started: Started) -> None:
    target.host.run("taskset", "-acp", "0", str(started.pid))


MEMORY, QUOTA = Limits(memory=64 << 20), Limits(period_us=10_000, quota_us=2_000)
LAYER2, NAT, HOST, CGROUP = docker("bridge"), docker("nat"), docker("host"), bare("cgroup")
UNCONFINED = HOST.with_seccomp("unconfined")
CASES: dict[str, tuple[Placement, WrongRuntime, str]] = {
    "host mode": (LAYER2, WrongRuntime(HOST), "network: the host's, not its own"),
    "default bridge": (
        LAYER2,
        WrongRuntime(options=("--network", "bridge")),
        "bridge labbr0: none, not yes",
    ),
    "another address": (
        LAYER2,
        WrongRuntime(options=("--network", "labkit-layer2", "--ip", "198.18.1.11")),
        "address 198.18.1.10: none, not yes",
    ),
    "published": (HOST, WrongRuntime(NAT), "network: its own, not the host's"),
    "no rule": (
        NAT,
        WrongRuntime(after=unpublish),
        "NAT from 198.18.0.3 udp: none, not to it",
    ),
    "no limit": (
        docker("host", MEMORY),
        WrongRuntime(HOST),
        "memory limit: none, not 67108864",
    ),
    "no limit of the disk": (
        LIMITED_DISK,
        WrongRuntime(HOST),
        "limit of read requests: none, not 100",
    ),
    "no quota": (bare("cgroup", QUOTA), WrongRuntime(CGROUP), "CPU quota: none, not 2000/10000 us"),
    "hidden quota": (
        HOST,
        WrongRuntime(docker("host", QUOTA)),
        "2000/10000 us, not none",
    ),
    "hidden shares": (CGROUP, WrongRuntime(bare("cgroup", Limits(shares=2))), "CPU weight: "),
    "outside its group": (
        CGROUP,
        WrongRuntime(bare("chroot")),
        "control group: / of /sys/fs",
    ),
    "inside a group": (bare("chroot"), WrongRuntime(CGROUP), "control group: /labkit/"),
    "not in the chroot": (bare("chroot"), WrongRuntime(bare("rules")), "root: /, not"),
    "wrong CPU": (bare("clean"), WrongRuntime(after=to_cpu_0), "allowed CPUs: 0, not 1"),
    "container's wrong CPU": (HOST, WrongRuntime(after=to_cpu_0), "allowed CPUs: 0, not 1"),
    "unconfined": (HOST, WrongRuntime(UNCONFINED), "seccomp filter: none, not yes"),
    "filtered": (UNCONFINED, WrongRuntime(HOST), "seccomp filter: yes, not none"),
}


def verification_error(
    lab: Rig, target: Target, placement: Placement, runtime: Any, label: str
) -> str:
    """Place a server, and return the message of the verification error."""
    logs: dict[str, str] = {}
    server = sockperf.server("block")
    cpus = lab.cpu_map["sut"]
    with (
        pytest.raises(ManipulationError) as caught,
        placed(runtime, target, placement, server, cpus=cpus, label=label, logs=logs),
    ):
        raise AssertionError("verification passed")
    error = caught.value
    assert error.what.startswith(f"this is not {placement.label}: ")
    assert error.evidence["verification"]["command"].startswith("sockperf server")
    assert error.evidence["problems"][0] in error.what
    assert "server.log" in logs
    return error.what


@pytest.mark.parametrize("case", CASES)
def test_wrong_placements_are_rejected(lab: Rig, label: str, left: Left, case: str) -> None:
    placement, wrong, words = CASES[case]
    target = lab.target(placement)
    assert words in verification_error(lab, target, placement, wrong(placement), label)
    assert left() == []


@pytest.mark.parametrize(
    ("placement", "role", "words"),
    [
        (bare("clean"), "sut", "rules of the host: "),
        (bare("rules"), "clean", "engine rules: none, not yes"),
    ],
    ids=str,
)
def test_a_baseline_level_on_the_wrong_host_is_rejected(
    lab: Rig, label: str, left: Left, placement: Placement, role: str, words: str
) -> None:
    assert words in verification_error(lab, lab.targets[role], placement, Bare(), label)
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
    runtime = WrongRuntime(image=other_image)(HOST)
    assert "image: sha256:" in verification_error(lab, lab.targets["sut"], HOST, runtime, label)
    assert left() == []


@pytest.mark.parametrize(
    ("argv", "patience", "words"),
    [(("sleep", "60"), 0.2, "nothing listens on the port yet"), (("false",), 20.0, "has ended")],
)
@pytest.mark.parametrize("placement", [bare("clean"), bare("cgroup"), docker("nat")], ids=str)
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
    monkeypatch.setattr(wait_ready, "__defaults__", (patience,))
    runtime = RUNTIMES[placement.runtime]
    workload = Workload(argv, 11111)
    with (
        pytest.raises(PlacementError) as caught,
        placed(runtime, lab.target(placement), placement, workload, cpus="1", label=label),
    ):
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
    for _ in range(2):
        with trial.serve(sockperf.server("block"), placement) as server:
            written = Path("/proc", str(server.pid), "root", "written")
            assert not written.exists()
            written.write_text("mine")
    image = lab.targets["sut"].images["net"]
    assert image.rootfs and not Path(image.rootfs, "written").exists()
    assert left() == []
