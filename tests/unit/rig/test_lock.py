"""The lock of the rig: who uses it, and waiting for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.errors import RigError
from labkit.process import WAIT
from labkit.rig import lock

HOLD = "import fcntl, os, sys, time; f = open(sys.argv[1], 'a+'); fcntl.flock(f, fcntl.LOCK_EX); "
HOLD += "f.write(str(os.getpid())); f.flush(); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Start another process that uses the rig until its input is closed."""
    for name in ("LOCK", "MACHINE"):
        monkeypatch.setattr(lock, name, tmp_path / "lock")
    argv = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_in_use_names_the_command(
    user: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RigError, match="in use") as caught, lock.locked():
        pass
    assert caught.value.why.startswith(f"process {user.pid} (-c import fcntl, os")
    assert ", since 20" in caught.value.why and "--wait" in caught.value.remedy
    # As where a user who may not write root's lock holds it.
    (tmp_path / "lock").write_text("1")
    monkeypatch.setattr(lock, "current_holder", lambda: user.pid)
    with pytest.raises(RigError) as caught, lock.locked():
        pass
    assert caught.value.why.startswith(f"process {user.pid} (")
    assert lock.describe_process(None) == "an unknown process"
    assert lock.describe_process(2**22 + 1) == f"process {2**22 + 1}"


def test_opening_waits_where_the_environment_says_so(
    user: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WAIT, "1")
    assert user.stdin is not None
    user.stdin.close()  # it ends at any time from now on
    with lock.locked():
        assert lock.current_holder() is not None


def test_a_rig_stays_in_use_when_its_lock_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCK", "MACHINE"):
        monkeypatch.setattr(lock, name, tmp_path / "run" / "lock")
    with lock.locked():
        (tmp_path / "run" / "lock").unlink()
        with pytest.raises(RigError, match="in use"), lock.locked():
            pass
        (tmp_path / "run" / "lock").unlink()
        (tmp_path / "run").rmdir()
        with pytest.raises(RigError, match="in use"), lock.locked():
            pass
    with lock.locked():
        pass
