"""What may be done in the middle of a window, by `test_tampering.py`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.campaign.trial import Trial
from labkit.hosts import LocalHost, Settings
from labkit.placement import Limits, Placement, Workload, bare, container, docker, waiting
from labkit.rig import engine, netns
from labkit.rig.base import Rig
from labkit.runtimes import Server
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

HERE = LocalHost()
SACK = "/proc/sys/net/ipv4/tcp_sack"
#: Waits for the file that says that the tampering is over.
UNTIL = 'until [ -e "$1" ]; do sleep 0.02; done'
#: Said where something was stopped for a while; no message may follow a pause at the end.
STOPPED = r"(pause of \d+\.\d+ s|^short: )"
BUSY = Workload(("sh", "-c", "while :; do :; done"), 0)


@dataclass(frozen=True)
class Scene:
    """A window in which somebody tampers: the rig, the trial's server, and the client's process."""

    lab: Rig
    server: Server
    client: int


def groups(pid: int) -> list[Path]:
    """Return the control groups of a process."""
    found = []
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        bases = [names.removeprefix("name=")] if names else ["unified", "."]
        found += [Path("/sys/fs/cgroup") / base / path.lstrip("/") for base in bases]
    return [group for group in found if group.is_dir()]


def write(pid: int, **values: str) -> None:
    """Write limits of a process's control groups: those of either version that exist."""
    written = [
        (group / name.replace("__", ".")).write_text(value)
        for group in groups(pid)
        for name, value in values.items()
        if (group / name.replace("__", ".")).exists()
    ]
    assert written


def to_root_group(pid: int) -> None:
    roots = [path.parent for path in Path("/sys/fs/cgroup").glob("*/cgroup.procs")]
    for root in roots or [Path("/sys/fs/cgroup")]:
        (root / "cgroup.procs").write_text(str(pid))


def stop(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    if seconds:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def tool(*argv: str, role: str = "") -> None:
    inside = ["nsenter", f"--net={netns.namespace(role)}"] if role else []
    HERE.run(*inside, *argv, env={"DOCKER_HOST": engine.SOCKET})


def on_docker(scene: Scene, *argv: str) -> None:
    container_id = scene.server.verification["container"]
    tool("docker", *argv, container_id)


def other_cpu(scene: Scene) -> str:
    return scene.lab.cpu_map["generator"]


@contextmanager
def rules_back(scene: Scene) -> Iterator[None]:
    save = HERE.run("nsenter", f"--net={netns.namespace('sut')}", "iptables-save").stdout
    try:
        yield
    finally:
        inside = ("nsenter", f"--net={netns.namespace('sut')}")
        HERE.run(*inside, "iptables-restore", input=save)


@contextmanager
def rate(scene: Scene) -> Iterator[None]:
    bucket = ("root", "tbf", "rate", "100mbit", "burst", "65536", "latency", "10ms")
    tool("tc", "qdisc", "add", "dev", "lab0", *bucket, role="sut")
    with undone("tc", "qdisc", "del", "dev", "lab0", "root", role="sut"):
        yield


@contextmanager
def undone(*argv: str, role: str) -> Iterator[None]:
    try:
        yield
    finally:
        # There is nothing to undo in a second attempt, in which nothing is done.
        HERE.run(*netns.inside(role), *argv, check=False)


@contextmanager
def journalled(scene: Scene) -> Iterator[None]:
    with Settings(scene.lab.hosts["sut"], "trial-tampering") as tuning:
        assert tuning.set_file(SACK, 0)
        try:
            yield
        finally:
            tool("sh", "-c", f"echo 0 >{SACK}", role="sut")  # else it would not be restored


@dataclass(frozen=True)
class Case:
    """A placement, what is done in its window, and what the error or the flag says."""

    name: str
    placement: Placement
    tamper: Callable[[Scene], Any]
    said: str
    #: What must be set up before the window, and is taken back after it.
    around: Callable[[Scene], Any] = lambda scene: nullcontext()
    #: Whether messages are exchanged meanwhile, or the client only waits for the tampering.
    exchange: bool = False
    #: Whether the client runs in the placement.
    inside: bool = False
    workload: Workload | None = None


CGROUP = bare("cgroup")
CASES = [
    *(
        Case(
            f"server to the root group, {place.label}",
            place,
            lambda scene: to_root_group(scene.server.pid),
            r"(group for .*cpu.* was /\S+, is /|control group: /)",
        )
        for place in (CGROUP, docker("host"), container("lxc"))
    ),
    *(
        Case(
            f"affinity, {place.label}",
            place,
            lambda scene: tool("taskset", "-apc", other_cpu(scene), str(scene.server.pid)),
            r"allowed CPUs",
        )
        for place in (bare(), CGROUP, docker("host"), docker("nat"))
    ),
    Case(
        "quota removed",
        CGROUP.limited(quota_us=5_000, period_us=10_000),
        lambda scene: write(scene.server.pid, cpu__cfs_quota_us="-1", cpu__max="max"),
        r"(quota_us was 5000, is -1|CPU quota: none, not 5000|cpu.max)",
    ),
    Case(
        "quota set",
        docker("host"),
        lambda scene: write(scene.server.pid, cpu__cfs_quota_us="50000", cpu__max="50000"),
        r"(quota_us was -1, is 50000|quota_us 50000|cpu.max)",
    ),
    Case(
        "quota set in the group above",
        docker("host"),
        lambda scene: above(scene, "90000"),
        r"control group \S+/labkit: .*(quota_us was -1, is 90000|quota_us 90000|cpu.max)",
        around=lambda scene: above_back(scene),
    ),
    Case(
        "quota set and removed",
        CGROUP,
        lambda scene: (
            write(scene.server.pid, cpu__cfs_quota_us="50000", cpu__max="50000"),
            time.sleep(0.6),
            write(scene.server.pid, cpu__cfs_quota_us="-1", cpu__max="max"),
        ),
        r"periods under a CPU quota",
        workload=BUSY,
    ),
    Case(
        "docker update",
        docker("host"),
        lambda scene: on_docker(scene, "update", "--cpu-quota", "50000"),
        r"(quota_us was -1, is 50000|quota_us 50000|cpu.max)",
    ),
    Case(
        "shares",
        CGROUP.limited(shares=512),
        lambda scene: write(scene.server.pid, cpu__shares="2", cpu__weight="1"),
        r"(cpu.shares was 512, is 2|cpu.shares 2|weight)",
    ),
    Case(
        "memory",
        docker("host", Limits(memory=1 << 28)),
        lambda scene: write(
            scene.server.pid, memory__limit_in_bytes=str(1 << 27), memory__max=str(1 << 27)
        ),
        r"(memory\S+ was 268435456, is 134217728|memory limit: 134217728, not 268435456)",
    ),
    Case(
        "renice",
        docker("host"),
        lambda scene: os.setpriority(os.PRIO_PROCESS, scene.server.pid, 19),
        r"nice value",
    ),
    Case(
        "stopped for a while, bare",
        CGROUP,
        lambda scene: stop(scene.server.pid, 1.5),
        STOPPED,
        exchange=True,
    ),
    Case(
        "stopped for the rest",
        bare(),
        lambda scene: stop(scene.server.pid, 0),
        r"state(: stopped, not running| was running, is stopped)",
        exchange=True,
    ),
    Case(
        "client stopped for a while",
        bare(),
        lambda scene: stop(scene.client, 1.5),
        STOPPED,
        exchange=True,
    ),
    Case(
        "docker pause",
        docker("host"),
        lambda scene: (
            on_docker(scene, "pause"),
            time.sleep(1),
            on_docker(scene, "unpause"),
        ),
        rf"({STOPPED}|us for which it was frozen)",
        exchange=True,
    ),
    Case(
        "client on the server's CPU",
        docker("host"),
        lambda scene: tool("taskset", "-pc", scene.lab.cpu_map["sut"], str(scene.client)),
        r"client tool: allowed CPUs were \S+ at its end, not \S+",
        exchange=True,
    ),
    Case(
        "client elsewhere and back",
        docker("host"),
        lambda scene: (
            tool("taskset", "-pc", scene.lab.cpu_map["sut"], str(scene.client)),
            time.sleep(0.3),
            tool("taskset", "-pc", other_cpu(scene), str(scene.client)),
        ),
        r"client tool: it was on another CPU meanwhile",
        exchange=True,
    ),
    Case(
        "the container's client to the root group",
        docker("host"),
        lambda scene: to_root_group(scene.client),
        r"its control group used \S+ s of CPU time, what ran inside",
        exchange=True,
        inside=True,
    ),
    Case(
        "rules flushed",
        bare("rules"),
        lambda scene: tool("iptables", "-t", "nat", "-F", role="sut"),
        r"rules (of the host: |changed: removed ')",
        around=rules_back,
    ),
    Case(
        "rules added",
        bare(),
        lambda scene: tool("nft", "add", "table", "inet", "tampering", role="clean"),
        r"rules (of the host: |changed: added 'table inet tampering)",
        around=lambda scene: undone("nft", "delete", "table", "inet", "tampering", role="clean"),
    ),
    Case(
        "MTU",
        bare(),
        lambda scene: tool("ip", "link", "set", "lab0", "mtu", "576", role="clean"),
        r"lab0 of .*MTU (was 1500, is )?576",
        around=lambda scene: undone("ip", "link", "set", "lab0", "mtu", "1500", role="clean"),
    ),
    Case(
        "MTU of the client's host",
        docker("host"),
        lambda scene: tool("ip", "link", "set", "lab0", "mtu", "576", role="generator"),
        r"the clients' host did not stay .*lab0 of the host: MTU 576",
        around=lambda scene: undone("ip", "link", "set", "lab0", "mtu", "1500", role="generator"),
    ),
    Case(
        "MTU of the container",
        docker("nat"),
        lambda scene: tool(
            "nsenter",
            f"--net=/proc/{scene.server.pid}/ns/net",
            "ip",
            "link",
            "set",
            "eth0",
            "mtu",
            "576",
        ),
        r"eth0 .*MTU (was 1500, is )?576",
    ),
    Case(
        "rate removed",
        docker("host"),
        lambda scene: tool("tc", "qdisc", "del", "dev", "lab0", "root", role="sut"),
        r"lab0 of .*rate 100Mbit",
        around=rate,
    ),
    Case(
        "a journalled setting",
        docker("host"),
        lambda scene: tool("sh", "-c", f"echo 2 >{SACK}", role="sut"),
        rf"{SACK}: (value on sut was 0, is 2|2, not 0)",
        around=journalled,
    ),
]


def above(scene: Scene, quota: str) -> None:
    for group in groups(scene.server.pid):
        for file in ("cpu.cfs_quota_us", "cpu.max"):
            if (group.parent / file).exists():
                (group.parent / file).write_text(quota)


@contextmanager
def above_back(scene: Scene) -> Iterator[None]:
    files = [
        (group.parent / file, value)
        for group in groups(scene.server.pid)
        for file, value in (("cpu.cfs_quota_us", "-1"), ("cpu.max", "max"))
    ]
    try:
        yield
    finally:
        for path, value in files:
            if path.exists():
                path.write_text(value)


def find(*words: str) -> int:
    """Return the process whose command line has these words in a row, as soon as there is one."""
    wanted = "\0".join(words).encode()
    for _ in range(3000):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes().startswith(wanted):
                    return int(path.parent.name)
            except OSError:
                continue
        time.sleep(0.01)
    raise AssertionError(f"no process {words}")


def until_sending(pid: int) -> None:
    """Wait until messages leave the network namespace of a client, which sleeps before them."""

    def sent() -> int:
        lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        return sum(int(line.partition(":")[2].split()[9]) for line in lines)

    first = sent()
    for _ in range(3000):
        if sent() > first + 1000:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} sent nothing")


def counted(stdout: str, log: str) -> Measurement:
    return Measurement({}, messages=1)


@contextmanager
def acting(case: Case, scene: Scene, over: Path, delay: float = 0.0) -> Iterator[None]:
    """Do it in a window that begins within the ``with`` block, and then create `over`."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            if case.exchange:
                client = find("sockperf", "ping-pong")
                until_sending(client)
                time.sleep(sockperf.WARM_UP_NS / 1e9 + 0.2)  # its first messages do not count
            else:
                client = find("sh", "-c", UNTIL)
            time.sleep(delay)
            case.tamper(replace(scene, client=client))
        except BaseException as error:
            failures.append(error)
        finally:
            over.touch()

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        assert not failures, failures


def assert_untampered(trial: Trial) -> None:
    """Assert that nothing is said of a trial with one server that nobody tampered with."""
    assert not [flag for flag in trial.record["flags"] if "pause" in flag or "impossible" in flag]
    assert trial.record["verification"]["state"] == "running"


def run_case(lab: Rig, trial: Trial, case: Case, over: Path, delay: float = 0.0) -> Measurement:
    """Run the trial of a case; nothing is done if `over` exists."""
    workload = case.workload or (sockperf.server("block") if case.exchange else waiting("net"))
    with trial.serve(workload, case.placement) as server, ExitStack() as stack:
        scene = Scene(lab, server, 0)
        stack.enter_context(case.around(scene))
        inside = None
        if case.inside:
            cpus = other_cpu(scene)
            place = trial.serve(waiting("net"), docker("host"), name="client", cpus=cpus)
            inside = stack.enter_context(place)
        if not over.exists():
            stack.enter_context(acting(case, scene, over, delay))
        if case.inside:
            load = sockperf.ping_pong("127.0.0.1", messages=40_000, size=64, wait="spin")
            load = Client(load.argv[: load.argv.index("--full-log")], "", 6.0, counted)
        elif case.exchange:
            load = sockperf.ping_pong(server.address, messages=35_000, size=64, wait="block")
        else:
            load = Client(("sh", "-c", UNTIL, "wait", str(over)), server.address, 20.0, counted)
        return trial.measure(load, inside=inside)
