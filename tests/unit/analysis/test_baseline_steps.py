"""Each baseline level against the one below it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from labkit.analysis.compare import compare
from labkit.analysis.noise import baseline_steps

LEVELS = ["clean", "rules", "missing", "cgroup", "host"]
TRUE = {"clean": 1.0, "rules": 1.2, "cgroup": 1.2, "host": 1.5}


@pytest.fixture
def frame() -> pd.DataFrame:
    noise = np.random.default_rng(1)
    rows = [
        {
            "block": block,
            "baseline_level": level,
            "rtt": 20_000 * ratio * np.exp(noise.normal(0, 0.004)),
        }
        for block in range(6)
        for level, ratio in TRUE.items()
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=2)


def test_a_level_is_compared_with_the_next_one_below_that_was_measured(frame: pd.DataFrame) -> None:
    found = baseline_steps(
        frame, value="rtt", condition="baseline_level", levels=LEVELS, margin=0.02
    )
    assert found["condition"].to_list() == ["clean", "rules", "cgroup", "host"]
    assert found["below"].to_list()[1:] == ["clean", "rules", "cgroup"]
    assert found["estimate"].to_list()[1:] == pytest.approx([1.2, 1.0, 1.25], rel=0.02)
    assert found["verdict"].to_list()[1:] == ["different", "equivalent", "different"]
    assert found.loc[0, ["below", "estimate", "verdict"]].isna().all()
    assert found["level"].to_list() == pytest.approx([20_000 * one for one in TRUE.values()], 0.01)
    assert (found["level_low"] < found["level"]).all() and (
        found["level_high"] > found["level"]
    ).all()


def test_a_step_is_what_compare_says_of_two_conditions(frame: pd.DataFrame) -> None:
    found = baseline_steps(
        frame, value="rtt", condition="baseline_level", levels=["cgroup", "host"]
    ).iloc[1]
    options = {
        "value": "rtt",
        "condition": "baseline_level",
        "baseline": "cgroup",
    }
    pair = compare(frame[frame["baseline_level"].isin(["cgroup", "host"])], **options).iloc[0]
    for name in ("estimate", "low", "high", "p_value", "n_blocks", "verdict"):
        assert found[name] == pair[name]


def test_few_blocks_and_few_levels_decide_nothing(frame: pd.DataFrame) -> None:
    one = baseline_steps(
        frame[frame["block"] == 0], value="rtt", condition="baseline_level", levels=LEVELS
    )
    assert set(one["verdict"].dropna()) == {"undecided"} and one["level_low"].isna().all()
    alone = baseline_steps(frame, value="rtt", condition="baseline_level", levels=["clean"])
    assert len(alone) == 1 and np.isnan(alone.loc[0, "estimate"])
