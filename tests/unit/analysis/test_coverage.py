"""The short form of benchmarks/coverage.py: no interval is grossly wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from scipy import stats

PATH = Path(__file__).resolve().parents[3] / "benchmarks" / "coverage.py"
SPEC = importlib.util.spec_from_file_location("labkit_coverage_bench", PATH)
assert SPEC is not None and SPEC.loader is not None
BENCH = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = BENCH
SPEC.loader.exec_module(BENCH)


@pytest.mark.parametrize("one", BENCH.COVERAGE, ids=lambda one: one.name)
def test_an_interval_covers_roughly_what_it_says(one) -> None:
    row = BENCH.measure(one, experiments=25)
    inside = round(row["coverage"] * 25)
    assert stats.binomtest(inside, 25, 0.95, alternative="less").pvalue > 1e-4
    assert row["width"] > 0


def test_names_are_different() -> None:
    names = [one.name for one in BENCH.COVERAGE]
    assert len(set(names)) == len(names)
