"""The registry of runtimes: every file is an engine, and why an engine cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import runtimes
from labkit.hosts import LocalHost
from labkit.placement import ENGINES, container
from labkit.runtimes import RUNTIMES, engines

FOLDER = Path(engines.__file__).parent
COPY = """
from labkit.runtimes.engines.podman import Podman


class Pilot(Podman):
    program = "pilot"
"""
USE = """
import sys
from labkit.runtimes import engines
engines.__path__.append(sys.argv[1])
from labkit.runtimes import _runtime
print(_runtime("pilot").program, _runtime("pilot").infeasible("overlay"))
"""


def test_every_file_is_an_engine() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert set(RUNTIMES) == names == {"bare", *ENGINES}
    assert all(container(name).runtime == name for name in ENGINES)


def test_an_engine_is_the_class_that_its_file_defines(tmp_path: Path) -> None:
    (tmp_path / "pilot.py").write_text(COPY)
    argv = [sys.executable, "-c", USE, str(tmp_path)]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("pilot Podman has no network between hosts")


def test_a_file_without_an_engine_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing.py").write_text("")
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    with pytest.raises(ImportError, match="must define one class derived from Runtime"):
        runtimes._runtime("nothing")


OLD = "runsc version 0.0~20221219.0"
BUILT = "runsc version v0.0.0-20250205023644-9414b50a5633"


def write_program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("printed", "file_exists", "runtimes_of_docker", "why"),
    [
        (BUILT, True, "io.containerd.runc.v2 runc runsc", ""),
        (OLD, False, "runc runsc", ""),
        (OLD, True, "runc runsc", "runsc of 20221219 takes every network namespace"),
        (OLD, True, "runc", "make setup-test builds a current one"),
        (BUILT, True, "runc", "was not told of the runtime runsc"),
    ],
)
def test_why_a_runsc_cannot_be_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    file_exists: bool,
    runtimes_of_docker: str,
    why: str,
) -> None:
    write_program(tmp_path, "runsc", f"echo '{printed}'; echo 'spec: 1.1.0-rc.1'")
    write_program(tmp_path, "unshare", "true" if file_exists else "false")
    write_program(tmp_path, "docker", f"echo '{runtimes_of_docker}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reason = runtimes.unavailable(LocalHost(), "unix:///run/docker.sock").get("runtime:gvisor", "")
    assert why in reason and bool(reason) == bool(why)


def test_without_runsc_the_build_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path, "sh", 'shift 3; for name in "$@"; do echo "$name"; done')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reason = runtimes.unavailable(LocalHost(), None)["runtime:gvisor"]
    assert "runsc is not on the host" in reason and "make setup-test" in reason


def test_cpus_in_gvisor_count_from_0() -> None:
    # With a cpuset of CPU 1, gVisor's kernel has only CPU 0.
    assert RUNTIMES["gvisor"]().pinned("1") == ["taskset", "-c", "0-0"]
    assert RUNTIMES["gvisor"]().pinned("1,4-5") == ["taskset", "-c", "0-2"]
    assert RUNTIMES["docker"]().pinned("1,4-5") == ["taskset", "-c", "1,4-5"]
