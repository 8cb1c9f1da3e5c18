"""SIGKILL while storages are in use: they are removed, whether or not the rig stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from labkit.hosts import LocalHost, Tuning
from labkit.hosts.journal import DIRECTORY as JOURNAL
from labkit.rig import clean, engine, lock, netns, teardown, virtual

pytestmark = pytest.mark.rig
PATIENCE = 900.0
USER = """
import os, time
from labkit import Rig, docker
from labkit.campaign.trial import Trial
from labkit.design import Condition
from labkit.placement import waiting
from labkit.rig.layers import LayeredImage

image = LayeredImage("killed", ({"a": 5000},))
with Rig.open("virtual", patience=900) as lab, lab.storage({name: [image] for name in NAMES}):
    contexts = []
    for name in [name for name in NAMES if f"storage:{name}" not in lab.missing]:
        placement, label = docker("host", storage=name), f"trial-{os.getpid()}-killed-{name}"
        trial = Trial(lab, Condition((("placement", placement),)), {}, label, {})
        contexts.append(trial.serve(waiting("killed"), placement))
        contexts[-1].__enter__()
    print("running", flush=True)
    time.sleep(600)
"""
PLACES = ("bind", "unions")
NAMES = ["bind", "volume", "fuse-overlayfs"]


def left() -> list[str]:
    """Return what storages have left on this machine."""
    local = LocalHost()
    found = [f"mount {point}" for point in teardown.mounted((str(engine.STORAGES),))]
    processes = local.run("ps", "-eo", "args").stdout.splitlines()
    found += [line for line in processes if f"{engine.STORAGES}/" in line and "ps -eo" not in line]
    found += [str(path) for path in engine.STORAGES.glob("*/*") if path.parent.name in PLACES]
    found += [str(path) for path in engine.DATA_ROOT.glob("volumes/*/_data")]
    groups = [path for root in teardown.group_roots() for path in root.iterdir() if path.is_dir()]
    return found + [f"control group {path}" for path in groups]


@pytest.mark.parametrize("kept", [True, False], ids=["rig stays", "own rig"])
def test_a_kill_leaves_nothing(kept: bool, tmp_path: Path) -> None:
    with lock.locked(PATIENCE):
        clean(say=print)
        if kept and lock.read_state() is None:
            virtual.up(keep=True, say=print)
    text = f"NAMES = {NAMES!r}\n{USER}"
    with (tmp_path / "out").open("w+") as out:
        user = subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=out, text=True
        )
        assert user.stdout is not None
        try:
            lines = list(iter(user.stdout.readline, "running\n"))
            assert user.poll() is None, f"{lines} {(tmp_path / 'out').read_text()}"
            assert left() != []
        finally:
            os.kill(user.pid, signal.SIGKILL)
            user.wait()
    with lock.locked(PATIENCE):
        clean(say=print)
        assert left() == []
        assert bool(lock.read_state()) == kept
        if kept:
            virtual.down(say=print)
            assert left() == []


def test_a_killed_engine_keeps_no_container_and_a_removed_journal_no_setting() -> None:
    local, said = LocalHost(), list[str]()
    with lock.locked(PATIENCE):
        clean(say=print)
        if lock.read_state() is not None:
            virtual.down(say=print)
        before = local.run("ip", "route", "show", "exact", virtual.LAB).stdout
        virtual.up(keep=True, say=print)
        try:
            assert local.run("ip", "route", "show", "exact", virtual.LAB).stdout != before
            argv = ("docker", "run", "--detach", "--label", "labkit=x", "--network", "none")
            image = lock.read_state()["images"]["net"]["reference"]
            local.run(*argv, image, "sleep", "600", env={"DOCKER_HOST": engine.SOCKET})
            os.kill(int((netns.DIRECTORY / "docker.pid").read_text()), signal.SIGKILL)
            (Path(JOURNAL) / "journal").unlink()
        finally:
            virtual.down(say=said.append)
    assert list(engine.DATA_ROOT.glob("containers/*")) == []
    assert local.run("ip", "route", "show", "exact", virtual.LAB).stdout == before
    assert any(": lost" in line for line in said), said


def test_a_setting_of_a_killed_trial_inside_a_namespace_takes_the_rig_down(
    namespaces: bool,
) -> None:
    """It is restored from this machine's namespace, where it never was."""
    local, state = LocalHost(), (lock.read_state() or {}) | {"keep": True}
    assert virtual._unusable(local, state) == ""
    with closing(netns.connect("sut")) as host, Tuning(host, "trial-killed") as tuning:
        tuning.set_file("/proc/sys/net/ipv4/tcp_fin_timeout", 61)
        assert virtual._unusable(local, state) == "a virtual rig with a setting of a killed trial"
    assert virtual._unusable(local, state) == ""
    other = state | {"images": state["images"] | {"another": {"reference": "labkit/another:1"}}}
    assert "other images" in virtual._unusable(local, other)


def test_what_a_killed_podman_has_mounted_is_unmounted(namespaces: bool) -> None:
    place = netns.DIRECTORY / "jobs-podman/root/overlay"
    place.mkdir(parents=True, exist_ok=True)
    LocalHost().run("mount", "--bind", str(place), str(place))
    assert teardown.mounted((str(place),)) == [str(place)]
    teardown.remove_trial_leftovers()
    assert not teardown.mounted((str(place),))


def test_groups_of_a_container_that_was_being_started_are_removed(namespaces: bool) -> None:
    roots = teardown.group_roots()
    groups = [root / name for root in roots for name in ("0" * 64, "running")]
    for group in groups:
        group.mkdir()
    # Of hierarchies that need no CPU set before they take a process.
    used = [path for path in groups if path.name == "running" and "cpuset" not in path.parts]
    with subprocess.Popen(["sleep", "60"]) as process:
        for group in used:
            (group / "cgroup.procs").write_text(str(process.pid))
        teardown.remove_trial_leftovers()
        assert [path for path in groups if path.exists()] == used
        process.kill()
    teardown.remove_trial_leftovers()
    assert [path for path in groups if path.exists()] == []
