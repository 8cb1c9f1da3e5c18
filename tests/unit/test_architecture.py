"""Imports go down only and without cycles, and the public names are few.

`pyproject.toml`, ``[tool.importlinter]``, has the layers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import labkit

ROOT = Path(__file__).resolve().parents[2]
#: Packages that take half a second or more to import.
HEAVY = {"IPython", "distributed", "matplotlib", "scipy.stats", "seaborn", "statsmodels"}


def test_imports_go_down_only_and_have_no_cycles() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_public_names_are_few_and_documented() -> None:
    assert dir(labkit) == sorted(labkit.__all__) and len(labkit.__all__) <= 20
    assert {"compare", "ledger", "load", "results"} < set(labkit.__all__)
    assert all((getattr(labkit, name).__doc__ or "").strip() for name in labkit.__all__)
    assert not hasattr(labkit, "another_name")


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    code = f"import sys, labkit, labkit.studies; labkit.Study\nprint({HEAVY} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
