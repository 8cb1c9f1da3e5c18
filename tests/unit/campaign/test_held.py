"""What must hold in a window: read from real processes, compared, and said in words."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.campaign import evidence, held
from labkit.errors import ManipulationError
from labkit.hosts import LocalHost, script
from labkit.rig import lock

HERE = LocalHost()
#: Of tests that are run with `nice`, as of what they start.
NICE = os.getpriority(os.PRIO_PROCESS, 0)
CPUS = sorted(os.sched_getaffinity(0))


def snapshot(*words: str) -> str:
    return HERE.run(*script(evidence.AFTER, " ".join(words), "here=")).stdout


def differences(before: held.Held, after: held.Held) -> list[str]:
    """Leave out the hosts of a rig that other tests use, which come and go."""
    return [one for one in held.differences(before, after) if not one.startswith(str(lock.RUN))]


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_a_process_left_alone_holds(sleeper: int) -> None:
    texts = snapshot(str(sleeper)), snapshot(str(sleeper))
    assert held.complete(texts)
    before, after = map(held.parse, texts)
    assert differences(before, after) == []
    assert before.firm["server"]["state"] == "running"
    assert before.firm["server"]["exe"].endswith("sleep")
    assert any(name.startswith("group for ") for name in before.firm["server"])
    assert before.firm["machine"]["online CPUs"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(
            (
                lambda pid, nice=nice: os.setpriority(os.PRIO_PROCESS, pid, nice),
                f"nice value was {NICE}, is {nice}",
            )
            for nice in range(NICE + 1, 20)[:1]
        ),
        (lambda pid: os.kill(pid, signal.SIGSTOP), "state was running, is stopped"),
        (
            lambda pid: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)),
            "scheduling class was other 0, is batch 0",
        ),
    ],
)
def test_what_is_changed_is_named(sleeper: int, change: Callable[[int], None], said: str) -> None:
    before = held.parse(snapshot(f"peer={sleeper}"))
    change(sleeper)
    assert differences(before, held.parse(snapshot(f"peer={sleeper}"))) == [f"peer: {said}"]


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_an_affinity_is_compared_with_the_verification_too(sleeper: int) -> None:
    before = held.parse(snapshot(str(sleeper)))
    verified = {"allowed CPUs": before.firm["server"]["allowed CPUs"]}
    assert held.since(verified, "server", before) == []
    os.sched_setaffinity(sleeper, {CPUS[0]})
    after = held.parse(snapshot(str(sleeper)))
    (change,) = held.since(verified, "server", after)
    assert change.endswith(f", is {CPUS[0]}")
    assert differences(before, after) == [change]


def test_a_process_that_has_ended_is_named(sleeper: int) -> None:
    before = held.parse(snapshot(str(sleeper)))
    os.kill(sleeper, signal.SIGKILL)
    os.waitpid(sleeper, 0)
    (change,) = differences(before, held.parse(snapshot(str(sleeper))))
    assert change.startswith(f"server is gone ({sleeper}, started at tick ")


def test_a_server_that_ends_with_its_client_is_compared_up_to_its_end(sleeper: int) -> None:
    before = held.parse(snapshot(str(sleeper)))
    before.firm.update(
        {"network server.net": {"rules": ""}, "eth0 of server.net": {"carrier": "yes"}}
    )
    assert held.without_ended(before, before, ["server"]) == before
    os.kill(sleeper, signal.SIGKILL)
    for reap in (lambda: None, lambda: os.waitpid(sleeper, 0)):
        reap()
        text = snapshot(str(sleeper))
        after = held.parse(text)
        assert held.complete([text]) and evidence.parse(text)
        assert differences(held.without_ended(before, after, ["server"]), after) == []
        assert differences(held.without_ended(before, after, ["other"]), after) != []


def test_threads_and_children_may_come_and_go_but_not_change() -> None:
    argv = ["sh", "-c", "sleep 600 & echo $!; read -r line; wait; read -r line"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, text=True, **pipes) as shell:
        try:
            assert shell.stdout is not None
            child = int(shell.stdout.readline())
            while Path(f"/proc/{child}/comm").read_text() != "sleep\n":
                time.sleep(0.01)  # it is another shell at first
            before = held.parse(snapshot(str(shell.pid)))
            os.sched_setscheduler(child, os.SCHED_BATCH, os.sched_param(0))
            (change,) = differences(before, held.parse(snapshot(str(shell.pid))))
            assert change.startswith(f"server, thread {child} started at tick ")
            assert change.endswith(": scheduling class was other 0, is batch 0")
            os.kill(child, signal.SIGKILL)
            assert shell.stdin is not None
            shell.stdin.write("\n")  # the shell reaps its child
            shell.stdin.flush()
            while Path(f"/proc/{child}").exists():
                time.sleep(0.01)
            assert differences(before, held.parse(snapshot(str(shell.pid)))) == []
        finally:
            shell.kill()


LINK = {"ifname": "lab0", "mtu": 1500, "flags": ["UP"], "operstate": "UP", "txqlen": 1000}
RULES = "table ip nat {\n\tchain PREROUTING {\n\t\ttcp dport 80 counter packets 7 bytes 9 accept"
FILES = {
    "/proc/7/task/7/stat": f"7 (a b) c) S {' '.join(map(str, range(1, 50)))}",
    "/proc/7/cgroup": "4:cpu,cpuacct:/labkit/x",
    "/sys/fs/cgroup/cpu,cpuacct/labkit/x/cpu.shares": "512",
    "/sys/fs/cgroup/cpu,cpuacct/labkit/x/cpu.cfs_quota_us": "-1",
    "/sys/fs/cgroup/cpu,cpuacct/labkit/cpu.cfs_quota_us": "-1",
    "/sys/devices/system/cpu/online": "0-1",
}
SETTING = "/proc/sys/net/ipv4/tcp_sack"


def text(
    *,
    files: dict[str, str] | None = None,
    link: dict[str, object] | None = None,
    rules: str = RULES,
    setting: str = "1",
    queue: str = "tbf 8001: dev lab0 root refcnt 2 rate 100Mbit",
    kind: str = "tbf",
) -> str:
    every = "\n".join(f"{path}\0{content}" for path, content in (FILES | (files or {})).items())
    return (
        f"@@ tree 7 \n7\n@@ files\n{every}\n@@ allowed\n"
        "/proc/7/task/7/status\0Cpus_allowed_list:\t1\n"
        "@@ paths\n'/proc/7/ns/net' -> 'net:[1]'\n'/proc/7/root' -> '/'\n"
        f"@@ links sut\n{json.dumps([LINK | {'qdisc': kind} | (link or {})])}\n"
        f"@@ queues sut\nqdisc {queue}\n"
        f"@@ rules sut\n{rules}\n@@ settings sut\n{SETTING}\0{setting}\n@@ end\n"
    )


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (text(files={"/proc/7/cgroup": "4:cpu,cpuacct:/"}), "was /labkit/x, is /"),
        (
            text(files={"/sys/fs/cgroup/cpu,cpuacct/labkit/x/cpu.shares": "2"}),
            "server: cpu.shares was 512, is 2",
        ),
        (
            text(files={"/sys/fs/cgroup/cpu,cpuacct/labkit/cpu.cfs_quota_us": "900"}),
            "control group /sys/fs/cgroup/cpu,cpuacct/labkit: cpu.cfs_quota_us was -1, is 900",
        ),
        (text(files={"/sys/devices/system/cpu/online": "0"}), "online CPUs was 0-1, is 0"),
        (text(link={"mtu": 576}), "lab0 of sut: MTU was 1500, is 576"),
        (text(link={"flags": []}), "lab0 of sut: state was up, is down"),
        (text(link={"ifname": "other"}), "lab0 of sut is gone"),
        (
            text(kind="noqueue", queue=""),
            "queue was tbf; qdisc tbf 8001: dev lab0 root  rate 100Mbit, is noqueue",
        ),
        (text(rules=""), "rules changed: removed 'table ip nat {'"),
        (text(rules=RULES + "\n\t\tdrop"), "network sut: rules changed: added 'drop'"),
        (text(setting="0"), f"{SETTING}: value on sut was 1, is 0"),
    ],
)
def test_each_change_of_a_host_is_said(after: str, said: str) -> None:
    before = held.parse(text(), ["lab0"])
    changes = differences(before, held.parse(after, ["lab0"]))
    assert any(said in change for change in changes), changes
    with pytest.raises(ManipulationError, match="not as set up in the window"):
        held.raise_changed(changes, "host sut")


@given(packets=st.integers(0, 10**12), references=st.integers(0, 99), mtu=st.integers(68, 9000))
def test_counters_and_passing_links_are_no_change(packets: int, references: int, mtu: int) -> None:
    rules = RULES.replace("packets 7", f"packets {packets}")
    queue = f"tbf 8001: dev lab0 root refcnt {references} rate 100Mbit"
    before, after = text(link={"mtu": mtu}), text(link={"mtu": mtu}, rules=rules, queue=queue)
    assert differences(held.parse(before), held.parse(after)) == []
    passing = text(link={"ifname": "veth7"}, kind="noqueue")
    assert differences(held.parse(passing), held.parse(before)) == []


def test_a_quota_that_came_and_went_is_seen_by_its_periods() -> None:
    path = "/sys/fs/cgroup/cpu,cpuacct/labkit/x/cpu.stat"
    before, after = (held.parse(text(files={path: f"nr_periods {n}"})) for n in (4, 9))
    (change,) = differences(before, after)
    assert change.startswith("5 periods under a CPU quota, now gone, of control group ")
    limited = {"/sys/fs/cgroup/cpu,cpuacct/labkit/x/cpu.cfs_quota_us": "900"}
    before, after = (held.parse(text(files=limited | {path: f"nr_periods {n}"})) for n in (4, 9))
    assert differences(before, after) == []


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_parsed(one: str, two: str) -> None:
    for damaged in (
        one,
        text()[: len(one) * 9] + one,
        f"@@ files\n{one}\0{two}\n@@ links x\n{two}",
    ):
        differences(held.parse(damaged), held.parse(text()))


def test_what_a_trial_keeps_names_no_rule() -> None:
    kept = held.parse(text()).record()
    assert kept["network sut"] == {"rules": "3 lines"}
    assert kept["server"]["cpu.shares"] == "512"
    json.dumps(kept)


def ended(*argv: str) -> tuple[str, held.End | None, int | None]:
    result = HERE.run(*held.guarded(argv), check=False)
    stderr, end = held.take_end(result.stderr)
    return stderr, end, result.status


DASH = Path("/bin/sh").resolve().name in ("dash", "busybox")
needs_dash = pytest.mark.skipif(not DASH, reason="this shell reaps its children at once")


def test_a_guarded_client_keeps_its_status_and_streams() -> None:
    stderr, _, status = ended("sh", "-c", "echo no >&2; exit 3")
    assert (stderr, status) == ("no\n", 3)
    assert HERE.run(*held.guarded(["echo", "yes"])).stdout == "yes\n"


@needs_dash
def test_a_client_that_was_left_alone_ended_as_it_began() -> None:
    _, end, _ = ended("sleep", "0.2")
    assert end is not None
    same = ("nice value", "scheduling class")
    assert [end.own[name] for name in same] == [end.inherited[name] for name in same]
    cpus = ",".join(map(str, CPUS))
    assert held.problems_of(end, "tool", cpus) == []


@needs_dash
@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_a_client_that_was_moved_or_has_another_class_is_named() -> None:
    move = f"taskset -pc {CPUS[1]} $$ >&2; chrt --batch --pid 0 $$ >&2"
    _, end, _ = ended("taskset", "-c", str(CPUS[0]), "sh", "-c", move)
    assert end is not None
    problems = held.problems_of(end, "tool", str(CPUS[0]))
    assert re.match("client tool: scheduling class was .* at its end, not ", problems[0])
    assert problems[1] == f"client tool: allowed CPUs were {CPUS[1]} at its end, not {CPUS[0]}"
    back = f"taskset -pc {CPUS[1]} $$; taskset -pc {CPUS[0]} $$"
    _, end, _ = ended("taskset", "-c", str(CPUS[0]), "sh", "-c", back)
    assert end is not None and end.migrations >= 2


@needs_dash
def test_the_time_of_a_client_and_its_children_is_counted() -> None:
    busy = "(ulimit -t 1; while :; do :; done) || true"
    _, end, _ = ended("sh", "-c", busy)
    assert end is not None and end.cpu_ns >= 0.1e9  # the limit counts ticks, and this the time
    assert held.lost_time("server", end.cpu_ns, end.cpu_ns) == []
    assert held.lost_time("server", None, end.cpu_ns) == []
    (problem,) = held.lost_time("server", 0.3e9, 1e9)
    assert problem.startswith("server: its control group used 0.30 s of CPU time")
