"""SIGKILL in every phase of a campaign: the short form of benchmarks/kills.py."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"
PHASES = ["planning", "placing", "measuring", "recording", "taking down", "restoring"]


@pytest.mark.rig
def test_six_kills_lose_no_trial_and_leave_nothing():
    argv = [sys.executable, str(SCRIPT), "--kills", "6", "--blocks", "2"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    killed = [line[4:16].strip() for line in lines if "killed" in line]
    assert killed == PHASES, result.stdout
    assert lines[-2:] == ["last run: finished", "6 kills: nothing lost, nothing left"]
