"""SIGKILL while storages are in use: they are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.hosts import LocalHost
from labkit.rig import Rig, clean, engine, lock, teardown

pytestmark = pytest.mark.rig
PATIENCE = 900.0
USER = """
import os, time
from labkit import Rig, docker
from labkit.campaign.trial import Trial
from labkit.placement import waiting
from labkit.rig.layers import LayeredImage

image = LayeredImage("killed", ({"a": 5000},))
with Rig.open("virtual", patience=900, layers=[image]) as lab:
    contexts = []
    for name in [name for name in NAMES if f"storage:{name}" not in lab.missing]:
        placement, label = docker("host", storage=name), f"trial-{os.getpid()}-killed-{name}"
        trial = Trial(lab, {"placement": placement}, label)
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
    groups = [path for root in teardown.group_roots() for path in root.iterdir() if path.is_dir()]
    return found + [f"control group {path}" for path in groups]


def test_a_kill_leaves_nothing(tmp_path: Path) -> None:
    with lock.locked(PATIENCE):
        clean()
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
            user.communicate()
    with lock.locked(PATIENCE):
        clean()
        assert left() == []
    # The next engine removes the containers on its disk, and their volumes with them.
    with Rig.open("virtual", patience=PATIENCE, say=print):
        assert list(engine.DATA_ROOT.glob("volumes/*/_data")) == []
