"""Pairs of levels as one family, and the order that all pairs show."""

import numpy as np
import pandas as pd
import pytest

from labkit.analysis.compare import factor_effect, pair_effects, ranking
from labkit.analysis.estimates import holm
from labkit.analysis.tables import format_ranking, not_compared

LEVELS = {"host": 100.0, "bridge": 100.0, "vxlan": 150.0, "overlay": 180.0}


def trials(blocks=6, lacking=(), noise=0.004):
    rng, rows = np.random.default_rng(7), []
    for block in range(blocks):
        for application in ("tcp", "udp"):
            for place, level in LEVELS.items():
                if (application, place) not in lacking:
                    value = level * np.exp(0.1 * block + rng.normal(0, noise))
                    rows.append((block, application, place, value))
    frame = pd.DataFrame(rows, columns=["block", "application", "placement", "value"])
    frame["placement"] = pd.Categorical(frame["placement"], list(LEVELS))
    return frame


def test_pairs_with_one_baseline_are_factor_effects():
    frame, names = trials(), ["host", "vxlan", "overlay"]
    pairs = [(name, "host") for name in names[1:]]
    found = pair_effects(frame, "placement", pairs, ["application"], value="value")
    known = factor_effect(frame, "placement", names, ["application"], value="value")
    pd.testing.assert_frame_equal(found, known)


def test_a_ladder_is_one_family_and_a_rung_that_was_not_run_says_so():
    pairs = [("bridge", "host"), ("vxlan", "bridge"), ("overlay", "vxlan")]
    frame = trials(lacking={("udp", "bridge")})
    found = pair_effects(frame, "placement", pairs, ["application"], value="value")
    rows = found.set_index(["application", "contrast"])
    assert rows.loc[("tcp", "overlay / vxlan"), "estimate"] == pytest.approx(1.2, 0.01)
    assert rows.loc[("tcp", "vxlan / bridge"), "verdict"] == "different"
    assert rows.loc["udp", "n_blocks"].tolist() == [0, 0, 6]
    assert "udp, vxlan / bridge (no trial with placement=bridge)" in not_compared(found)
    assert np.array_equal(found["p_adjusted"], holm(found["p_value"].to_numpy()), equal_nan=True)


def test_an_order_rests_on_all_pairs_of_all_cells():
    found = ranking(trials(), "placement", ["application"], value="value")
    assert len(found) == 2 * 6 and (found["estimate"] > 0.99).all()
    assert np.array_equal(found["p_adjusted"], holm(found["p_value"].to_numpy()))
    words = format_ranking(found, ["application"])
    assert words["tcp"] in ("host ~ bridge < vxlan < overlay", "bridge ~ host < vxlan < overlay")
    down = ranking(trials(), "placement", ["application"], value="value", lowest_first=False)
    assert format_ranking(down, ["application"], ">")["udp"].startswith("overlay > vxlan > ")


def test_neighbours_are_in_the_order_of_the_blocks_that_they_share():
    # Overlay was dropped after 6 blocks; later ones were slow.
    frame = trials(blocks=12)[lambda frame: frame["placement"].isin(["vxlan", "overlay"])]
    late = frame["block"] >= 6
    frame.loc[late, "value"] *= 3
    frame = frame[~late | (frame["placement"] == "vxlan")]
    found = ranking(frame, "placement", ["application"], value="value")
    assert set(format_ranking(found, ["application"])) == {"vxlan < overlay"}
    assert (found["estimate"] > 1.15).all() and (found["n_blocks"] == 6).all()


def test_a_level_that_failed_more_often_is_not_called_equivalent():
    frame = trials(blocks=20, noise=0.001)
    frame = frame[frame["placement"].isin(["host", "bridge"])]
    lost = (frame["placement"] == "bridge") & (frame["block"] % 2 == 1)
    frame.loc[lost, "value"] = np.nan
    found = ranking(frame, "placement", ["application"], value="value")
    assert (found["p_equivalence"] < 0.05).all() and not found["equivalent"].any()
    assert found["note"].str.contains("what failed may be what was slow").all()


def test_a_pilot_tells_nothing_apart_and_one_level_has_no_order():
    found = ranking(trials(blocks=1), "placement", ["application"], value="value")
    assert " < " not in format_ranking(found, ["application"])["tcp"]
    lacking = {("udp", name) for name in ("bridge", "vxlan", "overlay")}
    found = ranking(trials(lacking=lacking), "placement", ["application"], value="value")
    assert set(found["application"]) == {"tcp"}
    alone = trials()[lambda frame: frame["placement"] == "host"]
    assert format_ranking(ranking(alone, "placement", ["application"], value="value"), []).empty
