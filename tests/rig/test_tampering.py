"""What is changed in mid-window makes a failed trial that names it, or a flag."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
from sshd import wait_for

from labkit.errors import ManipulationError
from labkit.hosts import LocalHost, Settings
from labkit.placement import Placement, bare, container, docker, waiting
from labkit.rig import netns
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
SACK = "/proc/sys/net/ipv4/tcp_sack"
TABLE, MTU = ("table", "inet", "tampering"), ("ip", "link", "set")
#: Flags where something was stopped for a while.
STOPPED = r"pause of \d+\.\d+ s"
#: Sends one message at a time; writes its pid into a file after a while, and ends soon after there
#: is another file. Prints when each message was sent.
STEADY = """
import os, pathlib, socket, struct, sys, time
address, begun, over = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
times, end = [], None
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.settimeout(2.5)
    one.connect((address, 11111))
    while end is None or time.monotonic() < end:
        times.append(time.monotonic_ns())
        one.send(struct.pack(">QHI", len(times), 3, 64).ljust(64, b"\\0"))
        try:
            one.recv(64)
        except TimeoutError:
            pass
        if len(times) == 500:
            begun.write_text(str(os.getpid()))
        if end is None and len(times) % 50 == 0 and over.exists():
            end = time.monotonic() + 0.2
        if end is None and time.monotonic_ns() - times[-1] > 2e9:
            break
        time.sleep(0.0005)
print(times)
"""
#: Computes for a second or two.
COMPUTE = 'i=0; while [ "$i" -lt 1500000 ]; do i=$((i + 1)); done'


def groups(pid):
    """Return the control groups of a process."""
    found = []
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        bases = [names.removeprefix("name=")] if names else ["unified", "."]
        found += [Path("/sys/fs/cgroup") / base / path.lstrip("/") for base in bases]
    return [group for group in found if group.is_dir()]


def quota(scene, us, above=False):
    """Set the quota of a server's control group, in either version."""
    folders = [group.parent if above else group for group in groups(scene.server.pid)]
    values = {"cpu.cfs_quota_us": str(us or -1), "cpu.max": str(us or "max")}
    files = [(one / name, value) for one in folders for name, value in values.items()]
    assert [path.write_text(value) for path, value in files if path.exists()]


def to_root_group(pid):
    roots = [path.parent for path in Path("/sys/fs/cgroup").glob("*/cgroup.procs")]
    for root in roots or [Path("/sys/fs/cgroup")]:
        (root / "cgroup.procs").write_text(str(pid))


def stop(pid, seconds):
    os.kill(pid, signal.SIGSTOP)
    if seconds:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def tool(role, *argv, text=""):
    """Run a command on a host of the rig, or on this machine."""
    inside = ["nsenter", f"--net={netns.namespace(role)}"] if role else []
    return LocalHost().run(*inside, *argv, env={"DOCKER_HOST": netns.SOCKET}, input=text).stdout


def to_cpu(pid, cpu):
    tool("", "taskset", "-apc", cpu, str(pid))


def pause(scene):
    for verb in ("pause", "unpause"):
        tool("", "docker", verb, scene.server.verification["container"])
        time.sleep(1)


def rules_back(scene, stack):
    stack.callback(tool, "sut", "iptables-restore", text=tool("sut", "iptables-save"))


def rate(scene, stack):
    bucket = ("root", "tbf", "rate", "100mbit", "burst", "65536", "latency", "10ms")
    tool("sut", "tc", "qdisc", "add", "dev", "lab0", *bucket)


def sack(value):
    return tool("sut", "sh", "-c", f"echo {value} >{SACK}")


def journalled(scene, stack):
    tuning = stack.enter_context(Settings(scene.lab.hosts["sut"], "trial-tampering"))
    assert tuning.set_file(SACK, 0)
    stack.callback(sack, 0)  # else it would not be restored


class Case(NamedTuple):
    """A placement, what is done in its window to a scene, and what the error or the flag says.

    A scene has the rig, the trial's server and its CPU, the client's process and its CPU.
    """

    name: str
    placement: Placement
    tamper: Callable[[Any], Any]
    found: str
    #: What must be set up before the window; a stack takes it back.
    around: Callable[[Any, ExitStack], Any] = lambda scene, stack: None
    #: Whether the client runs in the placement.
    inside: bool = False


CLEAN, CGROUP, HOST, NAT = bare(), bare("cgroup"), docker("host"), docker("nat")
FEW = CGROUP.limited(quota_us=5_000, period_us=10_000)
QUOTA = r"(quota_us {0}|cpu.max {0})".format
TO_ROOT = r"control group: /"
ELSEWHERE = r"client tool: allowed CPUs were \S+ at its end, not \S+"
CASES = [
    Case("root group, bare", CGROUP, lambda s: to_root_group(s.server.pid), TO_ROOT),
    Case("root group, lxc", container("lxc"), lambda s: to_root_group(s.server.pid), TO_ROOT),
    Case("affinity", NAT, lambda s: to_cpu(s.server.pid, s.other), "allowed CPUs"),
    Case("quota removed", FEW, lambda s: quota(s, None), "(CPU quota: none, not 5000|cpu.max)"),
    Case("quota set", HOST, lambda s: quota(s, 50_000), QUOTA(50_000)),
    Case(
        "quota set in the group above",
        HOST,
        lambda s: quota(s, 90_000, above=True),
        rf"control group \S+/labkit: .*{QUOTA(90_000)}",
        around=lambda s, stack: stack.callback(quota, s, None, above=True),
    ),
    Case(
        "quota set and removed",
        CGROUP,
        lambda s: (quota(s, 50_000), time.sleep(0.6), quota(s, None)),
        r"periods_of_a_quota",
    ),
    Case("renice", HOST, lambda s: os.setpriority(0, s.server.pid, 19), "nice value"),
    Case("server stopped for a while", CGROUP, lambda s: stop(s.server.pid, 1.2), STOPPED),
    Case("server stopped for the rest", CLEAN, lambda s: stop(s.server.pid, 0), "state: stopped"),
    Case("docker pause", HOST, pause, rf"({STOPPED}|frozen_us)"),
    Case("client on the server's CPU", HOST, lambda s: to_cpu(s.client, s.own), ELSEWHERE),
    Case(
        "client elsewhere and back",
        HOST,
        lambda s: (to_cpu(s.client, s.own), time.sleep(0.3), to_cpu(s.client, s.other)),
        r"client tool: it was on another CPU meanwhile",
    ),
    Case(
        "the container's client to the root group",
        HOST,
        lambda s: to_root_group(s.client),
        r"its control group used \S+ s of CPU time, what ran inside",
        inside=True,
    ),
    Case(
        "rules flushed",
        bare("rules"),
        lambda s: tool("sut", "iptables", "-t", "nat", "-F"),
        "rules of the host: ",
        around=rules_back,
    ),
    Case(
        "rules added",
        CLEAN,
        lambda s: tool("clean", "nft", "add", *TABLE),
        "rules of the host: ",
        around=lambda s, stack: stack.callback(tool, "clean", "nft", "delete", *TABLE),
    ),
    Case(
        "MTU of the client's host",
        HOST,
        lambda s: tool("generator", *MTU, "lab0", "mtu", "576"),
        r"the clients' host \w+ did not stay .*lab0 of the host: MTU 576",
        around=lambda s, stack: stack.callback(tool, "generator", *MTU, "lab0", "mtu", "1500"),
    ),
    Case(
        "MTU of the container",
        NAT,
        lambda s: tool("", "nsenter", "-n", f"-t{s.server.pid}", *MTU, "eth0", "mtu", "576"),
        "eth0 inside: MTU 576",
    ),
    Case(
        "rate removed",
        HOST,
        lambda s: tool("sut", "tc", "qdisc", "del", "dev", "lab0", "root"),
        r"lab0 of .*rate 100Mbit",
        around=rate,
    ),
    Case("a journalled setting", HOST, lambda s: sack(2), f"{SACK}: 2, not 0", around=journalled),
]


def steady(stdout, log):
    times = json.loads(stdout or "[0]")
    return Measurement({"start_ns": np.array(times, dtype=np.int64)}, messages=len(times))


def act(case, scene, begun, over):
    """Tamper with a window as soon as its client runs, and then create the file `over`."""

    def client():
        if not case.inside:
            return [int(text)] if begun.exists() and (text := begun.read_text()) else []
        lines = psutil.process_iter(["cmdline"])
        return [one.pid for one in lines if one.info["cmdline"] == ["sh", "-c", COMPUTE]]

    try:
        wait_for(client, 30.0)
        scene.client = client()[0]
        case.tamper(scene)
    finally:
        over.touch()


def tampered(trial, case, lab, folder):
    """Run the trial of a case; return its error or its flags."""
    begun, over = folder / "begun", folder / "over"
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        server = stack.enter_context(trial.serve(sockperf.server("block"), case.placement))
        own, other = lab.cpu_map["sut"], lab.cpu_map["generator"]
        scene = SimpleNamespace(lab=lab, server=server, own=own, other=other)
        case.around(scene, stack)
        argv = (sys.executable, "-c", STEADY, server.address, str(begun), str(over))
        load, inside = Client(argv, server.address, 20.0, steady), None
        if case.inside:
            place = {"name": "client", "cpus": other}
            inside = stack.enter_context(trial.serve(waiting("net"), case.placement, **place))
            load = Client(("sh", "-c", COMPUTE), "", 20.0, steady)
        acting = pool.submit(act, case, scene, begun, over)
        try:
            trial.measure(load, inside=inside)
        except ManipulationError as error:
            return [error.what]
        finally:
            acting.result()
    return list(trial.flags)


def assert_untampered(trial):
    """Assert that nothing is said of a trial that nobody tampered with."""
    assert not [flag for flag in trial.flags if "pause" in flag or "impossible" in flag]
    assert trial.record["verification"]["state"] == "running"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tampering_is_seen(lab, make_trial, tmp_path, case):
    found = tampered(make_trial(case.placement), case, lab, tmp_path)
    assert any(re.search(case.found, text) for text in found), found
