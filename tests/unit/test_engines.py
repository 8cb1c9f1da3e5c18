"""Which engines a host can have, asked of programs that answer as recorded; CPUs inside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labkit import runtimes
from labkit.hosts import LocalHost
from labkit.runtimes import RUNTIMES

OLD = "runsc version 0.0~20221219.0"
BUILT = "runsc version v0.0.0-20250205023644-9414b50a5633"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("printed", "file_everywhere", "known", "why"),
    [
        (BUILT, True, "io.containerd.runc.v2 runc runsc", ""),
        (OLD, False, "runc runsc", ""),
        (OLD, True, "runc runsc", "runsc of 20221219 takes every network namespace"),
        (OLD, True, "runc", "make setup-test builds a current one"),
        (BUILT, True, "runc", "was not told of the runtime runsc"),
    ],
)
def test_a_runsc_that_cannot_be_used_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: str,
    file_everywhere: bool,
    known: str,
    why: str,
) -> None:
    program(tmp_path, "runsc", f"echo '{printed}'; echo 'spec: 1.1.0-rc.1'")
    program(tmp_path, "unshare", "true" if file_everywhere else "false")
    program(tmp_path, "docker", f"echo '{known}'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = runtimes.unavailable(LocalHost(), "unix:///run/docker.sock").get("runtime:gvisor", "")
    assert why in found and bool(found) == bool(why)


def test_without_runsc_its_builder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "sh", 'shift 3; for one in "$@"; do echo "$one"; done')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = runtimes.unavailable(LocalHost(), None)["runtime:gvisor"]
    assert "runsc is not on the host" in found and "make setup-test" in found


def test_a_command_in_gvisor_sees_as_many_cpus_as_it_has_numbered_from_0() -> None:
    # With a cpuset of CPU 1 its kernel has CPU 0 alone, and refuses an affinity to the other.
    assert RUNTIMES["gvisor"]().pinned("1") == ["taskset", "-c", "0-0"]
    assert RUNTIMES["gvisor"]().pinned("1,4-5") == ["taskset", "-c", "0-2"]
    assert RUNTIMES["docker"]().pinned("1,4-5") == ["taskset", "-c", "1,4-5"]
