"""A campaign of benchmarks/chaos.py: killed twice, and resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.rig
def test_nothing_is_lost_or_left():
    argv = [sys.executable, str(SCRIPT), "--seed", "25", "--kills", "2"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith(" 0 lost, leaked, left or wrong\n")
