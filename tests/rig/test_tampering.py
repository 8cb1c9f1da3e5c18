"""What is changed in mid-window makes a failed trial that names it, or a flag."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from echoes import echoes
from tampering import CASES, CGROUP, Case, assert_untampered, run_case

from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError
from labkit.rig.base import Rig
from labkit.tools import sockperf

pytestmark = pytest.mark.rig


def tampered(lab: Rig, trial: Trial, case: Case, tmp_path: Path) -> list[str]:
    """Run the case; return the error or the flags of its trial."""
    try:
        run_case(lab, trial, case, tmp_path / "over")
    except ManipulationError as error:
        return [error.what]
    return list(trial.record["flags"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tampering_is_seen(
    lab: Rig,
    make_trial: Callable[..., Trial],
    left: Callable[[], list[str]],
    tmp_path: Path,
    case: Case,
) -> None:
    if reason := lab.infeasible(case.placement):
        pytest.skip(reason)
    found = tampered(lab, make_trial(case.placement), case, tmp_path)
    assert any(re.search(case.said, text) for text in found), found
    assert left() == []


def test_without_tampering_nothing_is_said_of_a_quota(make_trial: Callable[..., Trial]) -> None:
    """Of other placements, `test_placements.py` and `test_runtimes.py` assert it."""
    placement = CGROUP.limited(quota_us=5_000, period_us=10_000, shares=512)
    trial = make_trial(placement)
    with trial.serve(sockperf.server("block"), placement) as server:
        trial.measure(echoes(server.address, 500))
    assert_untampered(trial)
