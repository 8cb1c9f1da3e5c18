"""The lock of the rig: who uses it, and waiting for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.errors import RigError
from labkit.process import holder
from labkit.rig import lock

HOLD = """
import sys
from pathlib import Path
from labkit.rig import lock

lock.LOCK = Path(sys.argv[1])
with lock.locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Start another process that uses the rig until its input is closed."""
    monkeypatch.setattr(lock, "LOCK", tmp_path / "run" / "lock")
    argv = [sys.executable, "-c", HOLD, str(lock.LOCK)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_in_use_names_the_command(user: subprocess.Popen[str]) -> None:
    with pytest.raises(RigError, match="in use") as caught, lock.locked():
        pass
    assert caught.value.why.startswith(f"process {user.pid} (-c ")
    assert ", since 20" in caught.value.why and "--wait" in caught.value.remedy
    assert f"{holder(lock.LOCK)} has it" == caught.value.why
    user.kill()
    user.wait()
    assert holder(lock.LOCK) == ""


def test_the_rig_has_one_user_also_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LOCK", tmp_path / "run" / "lock")
    for _ in range(2):
        with lock.locked(), pytest.raises(RigError, match="in use"), lock.locked(0.3):
            pass
