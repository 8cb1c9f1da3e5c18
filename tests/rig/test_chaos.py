"""A sample of benchmarks/chaos.py: kills and faults; test_tampering.py has every window."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.rig
def test_nothing_is_lost_left_or_wrong():
    argv = [sys.executable, str(SCRIPT), "--seed", "25", "--count", "4", "--kills", "1"]
    argv += ["--kinds", "kills,faults"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "| labkit killed" in result.stdout and "| fault: " in result.stdout
    # Of 4, those that came too late do not count.
    assert int(result.stdout.splitlines()[-1].split(" | ")[1]) >= 2, result.stdout
