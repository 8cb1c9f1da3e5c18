"""A sample of benchmarks/chaos.py: kills, and faults of every kind."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "chaos.py"


@pytest.mark.rig
def test_nothing_is_lost_left_or_wrong():
    argv = [sys.executable, str(SCRIPT), "--seed", "2719", "--first", "2", "--count", "6"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=900, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    # Half of the runs have one fault, the others four kills, of which some come too late.
    assert int(result.stdout.splitlines()[-1].split(" | ")[1]) >= 7, result.stdout
