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
from processes import wait_for

from labkit.errors import ManipulationError
from labkit.hosts import Host, Settings
from labkit.hosts.agent import _hierarchies
from labkit.placement import Placement, bare, container, docker, waiting
from labkit.rig import netns
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
#: Flags where something was stopped for a while.
STOPPED = r"pause of \d+\.\d+ s"
#: Sends one message at a time; writes its pid into a file after a while, and ends once there is
#: another file, or no answer. Prints when each message was sent.
STEADY = """
import os, pathlib, socket, struct, sys, time
address, begun, over = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
times, answered = [], True
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.settimeout(2.5)
    one.connect((address, 11111))
    while answered and not over.exists():
        times.append(time.monotonic_ns())
        one.send(struct.pack(">QHI", len(times), 3, 64).ljust(64, b"\\0"))
        try:
            one.recv(64)
        except TimeoutError:
            answered = False
        if len(times) == 500:
            begun.write_text(str(os.getpid()))
        time.sleep(0.0005)
print([*times, time.monotonic_ns()])
"""
#: Computes for a second or two.
COMPUTE = 'i=0; while [ "$i" -lt 1500000 ]; do i=$((i + 1)); done'


def quota(us, above=False):
    """Return what sets the quota of the server's control group, in either version."""

    def write(scene):
        groups = [Path(base + at) for base, at in _hierarchies(str(scene.server.pid)).items()]
        values = {"cpu.cfs_quota_us": str(us or -1), "cpu.max": str(us or "max")}
        folders = [group.parent if above else group for group in groups]
        files = [(one / name, value) for one in folders for name, value in values.items()]
        assert [path.write_text(value) for path, value in files if path.exists()]

    return write


def to_root_group(pid):
    for root in _hierarchies():
        Path(root, "cgroup.procs").write_text(str(pid))


def stop(pid, seconds):
    os.kill(pid, signal.SIGSTOP)
    if seconds:
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def quota_for_a_while(scene):
    quota(50_000)(scene)
    time.sleep(0.6)
    quota(None)(scene)


def to_cpu(pid, cpu):
    Host().run("taskset", "-apc", cpu, str(pid))


def elsewhere_and_back(scene):
    to_cpu(scene.client, scene.own)
    time.sleep(0.3)
    to_cpu(scene.client, scene.other)


def pause(scene):
    for verb in ("pause", "unpause"):
        argv = ("docker", verb, scene.server.verification["container"])
        Host().run(*argv, env={"DOCKER_HOST": netns.socket_of("sut")})
        time.sleep(1)


def journalled(scene):
    assert Settings(scene.lab.hosts["sut"], "trial-tampering").set_files({SACK: 0})


def restored(scene):
    do(f"sut: echo 0 >{SACK}", scene)  # else it would not be restored
    assert scene.lab.hosts["sut"].call("restore", label="trial-tampering")


#: A function of a scene (the rig, the trial's server and its CPU, the client's process and its
#: CPU), or a command line on a host of the rig or in the network of the server.
Action = Callable[[Any], Any] | str


def do(action, scene):
    if callable(action):
        action(scene)
    elif action:
        role, _, line = action.partition(": ")
        inside = f"/proc/{scene.server.pid}/ns/net" if role == "server" else netns.namespace(role)
        Host().run("nsenter", f"--net={inside}", "sh", "-c", line)


class Case(NamedTuple):
    """A placement, what is done in its window, and what the error or the flag says."""

    name: str
    placement: Placement
    tamper: Action
    found: str
    #: What is done before the window, and after it.
    before: Action = ""
    after: Action = ""
    #: Whether the client runs in the placement.
    inside: bool = False


SACK = "/proc/sys/net/ipv4/tcp_sack"
CLEAN, RULED, CGROUP, HOST, NAT = bare(), bare("rules"), bare("cgroup"), docker(), docker("nat")
FEW = CGROUP.limited(quota_us=5_000, period_us=10_000)
QUOTA = r"(quota_us {0}|cpu.max {0})".format
TO_ROOT, RULES = "control group: /", "rules of the host: "
ABOVE, UNLIMITED = rf"control group \S+/labkit: .*{QUOTA(90_000)}", quota(None, above=True)
ELSEWHERE = r"client tool: allowed CPUs were \S+ at its end, not \S+"
BACK = "client tool: it was on another CPU meanwhile"
USED = r"its control group used \S+ s of CPU time, what ran inside"
MTU = r"the clients' host \w+ did not stay .*lab0 of the host: MTU 576"
RATE = "sut: tc qdisc add dev lab0 root tbf rate 100mbit burst 65536 latency 10ms"
SAVE, LOAD = (f"sut: iptables-{one} {netns.DIRECTORY}/rules" for one in ("save -f", "restore"))
ADD, DELETE = (f"clean: nft {verb} table inet tampering" for verb in ("add", "delete"))
SMALL, NORMAL = (f"generator: ip link set lab0 mtu {mtu}" for mtu in (576, 1500))
CASES = [
    Case("root group, bare", CGROUP, lambda s: to_root_group(s.server.pid), TO_ROOT),
    Case("root group, lxc", container("lxc"), lambda s: to_root_group(s.server.pid), TO_ROOT),
    Case("affinity", NAT, lambda s: to_cpu(s.server.pid, s.other), "allowed CPUs"),
    Case("quota removed", FEW, quota(None), "(CPU quota: none, not 5000|cpu.max)"),
    Case("quota set", HOST, quota(50_000), QUOTA(50_000)),
    Case("quota set in the group above", HOST, quota(90_000, True), ABOVE, "", UNLIMITED),
    Case("quota set and removed", CGROUP, quota_for_a_while, "periods_of_a_quota"),
    Case("renice", HOST, lambda s: os.setpriority(0, s.server.pid, 19), "nice value"),
    Case("server stopped for a while", CGROUP, lambda s: stop(s.server.pid, 1.2), STOPPED),
    Case("server stopped for the rest", CLEAN, lambda s: stop(s.server.pid, 0), "state: stopped"),
    Case("docker pause", HOST, pause, rf"({STOPPED}|frozen_us)"),
    Case("client on the server's CPU", HOST, lambda s: to_cpu(s.client, s.own), ELSEWHERE),
    Case("client elsewhere and back", HOST, elsewhere_and_back, BACK),
    Case("client to the root group", HOST, lambda s: to_root_group(s.client), USED, inside=True),
    Case("rules flushed", RULED, "sut: iptables -t nat -F", RULES, SAVE, LOAD),
    Case("rules added", CLEAN, ADD, RULES, "", DELETE),
    Case("MTU of the client's host", HOST, SMALL, MTU, "", NORMAL),
    Case("MTU of the container", NAT, "server: ip link set eth0 mtu 576", "eth0 inside: MTU 576"),
    Case("rate removed", HOST, "sut: tc qdisc del dev lab0 root", "lab0 of .*rate 100M", RATE),
    Case("setting", HOST, f"sut: echo 2 >{SACK}", f"{SACK}: 2, not 0", journalled, restored),
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
        do(case.tamper, scene)
    finally:
        over.touch()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tampering_is_seen(lab, make_trial, tmp_path, case):
    trial, begun, over = make_trial(case.placement), tmp_path / "begun", tmp_path / "over"
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        server = stack.enter_context(trial.serve(sockperf.server("block"), case.placement))
        own, other = lab.cpu_map["sut"], lab.cpu_map["generator"]
        scene = SimpleNamespace(lab=lab, server=server, own=own, other=other)
        do(case.before, scene)
        stack.callback(do, case.after, scene)
        argv = (sys.executable, "-c", STEADY, server.address, str(begun), str(over))
        load, inside = Client(argv, server.address, 20.0, steady), None
        if case.inside:
            place = {"name": "client", "cpus": other}
            inside = stack.enter_context(trial.serve(waiting("net"), case.placement, **place))
            load = Client(("sh", "-c", COMPUTE), "", 20.0, steady)
        acting = pool.submit(act, case, scene, begun, over)
        try:
            trial.measure(load, inside=inside)
            found = list(trial.flags)
        except ManipulationError as error:
            found = [error.what]
        acting.result()
    assert any(re.search(case.found, text) for text in found), found
