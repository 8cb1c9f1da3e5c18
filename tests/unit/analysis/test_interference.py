"""Interference ratios, the contrast of groups, advice, and the model as a file."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit.analysis.interference import (
    MODEL,
    advice,
    interference_ratios,
    iterations,
    timed_seconds,
    write_model,
)
from labkit.analysis.models import group_contrast
from labkit.errors import UsageError
from labkit.tools import bonnie, linpack, netperf, stream

CAPTURED = Path(__file__).parents[2] / "captured"
METRICS = {"linpack": ["gflops"], "netperf": ["mbit_per_s"]}
#: What a service keeps of its rate beside a neighbour.
KEPT = {
    ("linpack", "linpack"): 0.5,
    ("linpack", "netperf"): 0.98,
    ("netperf", "linpack"): 0.97,
    ("netperf", "netperf"): 0.6,
}


def campaign(blocks=6, spread=0.01, seed=1):
    """Return trials of two services alone and beside each other, with blocks that differ."""
    rng = np.random.default_rng(seed)
    rows = []
    for block in range(1, blocks + 1):
        level = rng.normal(0, 0.1)
        for service, (metric,) in METRICS.items():
            base = {"linpack": 40, "netperf": 9000}[service]
            cells = {("none", "1"): 1.0, ("none", "1u"): 1.5}
            cells |= {(n, "3b"): KEPT[service, n] for n in METRICS}
            for (neighbour, case), kept in cells.items():
                value = base * kept * math.exp(level + rng.normal(0, spread))
                names = {"service": service, "neighbour": neighbour, "case": case}
                rows.append({"block": block, **names, metric: value})
    return pd.DataFrame(rows)


def table(frame, **options):
    return interference_ratios(
        frame, **{"metrics": METRICS, "alone": ("none", "1"), "margin": 0.1} | options
    )


def row(found, service, neighbour, case):
    rows = found[(found.service == service) & (found.neighbour == neighbour) & (found.case == case)]
    assert len(rows) == 1
    return rows.iloc[0]


def test_every_cell_has_its_ratio_with_the_uncertainty_of_both_means():
    frame = campaign()
    found = table(frame)
    assert len(found) == 6
    for (service, neighbour), kept in KEPT.items():
        one = row(found, service, neighbour, "3b")
        assert one.ir_low < kept - 1 < one.ir_high and one.ir == pytest.approx(kept - 1, abs=0.02)
        own = frame[frame.service == service].assign(cell=frame.neighbour + frame.case)
        names = {"value": METRICS[service][0], "by": "cell"}
        direct = group_contrast(own, above=[f"{neighbour}3b"], below=["none1"], **names)
        assert one.ir == pytest.approx(direct.value - 1)
        bounds = direct.interval(1 - one.confidence)
        assert (one.ir_low + 1, one.ir_high + 1) == pytest.approx(bounds)
    assert row(found, "linpack", "none", "1u").ir == pytest.approx(0.5, abs=0.02)


def test_levels_are_in_the_metric_s_unit():
    frame = campaign()
    found = row(table(frame), "netperf", "linpack", "3b")
    assert found.beside / found.alone == pytest.approx(found.estimate)
    alone = frame[(frame.service == "netperf") & (frame.case == "1")].mbit_per_s
    assert found.alone == pytest.approx(np.exp(np.log(alone).mean()))


def test_the_correction_is_over_all_rows():
    found = table(campaign(blocks=5, spread=0.05))
    one = interference_ratios(
        campaign(blocks=5, spread=0.05),
        metrics={"linpack": ["gflops"]},
        alone=("none", "1"),
        margin=0.1,
    )
    both = found[found.service == "linpack"]
    assert (both.p_adjusted.to_numpy() >= one.p_adjusted.to_numpy()).all()
    assert (both.ir.to_numpy() == one.ir.to_numpy()).all()


def test_a_cell_without_values_is_a_row_that_says_so():
    frame = campaign()
    frame.loc[(frame.neighbour == "netperf") & (frame.service == "linpack"), "gflops"] = math.nan
    found = row(table(frame), "linpack", "netperf", "3b")
    assert found.n_blocks == 0 and math.isnan(found.ir) and math.isnan(found.beside)


def test_a_metric_that_nobody_measured_has_no_rows():
    found = table(campaign(), metrics={"bonnie": ["seeks_per_s"], "linpack": ["triad", "gflops"]})
    assert set(found.metric) == {"gflops"}


def test_groups_are_contrasted_whatever_their_units():
    frame = campaign()
    frame["rate"] = frame.gflops.fillna(frame.mbit_per_s)
    frame["cell"] = frame.service + " " + frame.neighbour
    paired = frame[frame.case == "3b"]
    cells = {
        "above": ["linpack linpack", "netperf netperf"],
        "below": ["linpack netperf", "netperf linpack"],
    }
    found = group_contrast(paired, value="rate", by="cell", **cells)
    truth = math.sqrt(0.5 * 0.6) / math.sqrt(0.98 * 0.97)
    low, high = found.interval()
    assert low < truth < high and found.value == pytest.approx(truth, rel=0.02)
    # Another unit of one service changes nothing.
    other = paired.assign(rate=paired.rate.where(paired.service == "linpack", paired.rate / 1e3))
    same = group_contrast(other, value="rate", by="cell", **cells)
    assert same.value == pytest.approx(found.value) and same.interval() == pytest.approx(
        (low, high)
    )


@pytest.mark.parametrize("groups", [([], ["a"]), (["a"], [])])
def test_a_group_without_cells_is_refused(groups):
    with pytest.raises(UsageError):
        group_contrast(campaign(), value="gflops", by="case", above=groups[0], below=groups[1])


def test_advice_follows_its_rule():
    found = advice(table(campaign()), limit=0.1).set_index("pair")
    assert set(found.advice) <= {"may share", "keep apart", "open"}
    assert found.loc["linpack + linpack", "advice"] == "keep apart"
    assert found.loc["linpack + netperf", "advice"] == "may share"
    assert found.loc["netperf + netperf", "service"] == "netperf"
    # Both sides were asked, and the pair stands once.
    assert found.loc["linpack + netperf", "rows"] == 2 and found.index.is_unique


def test_no_pair_may_share_without_being_shown_to_lose_less():
    # A loss of 5 % with a limit of 10 %, and noise that hides which it is.
    frame = campaign(blocks=5, spread=0.08, seed=3)
    found = advice(table(frame), limit=0.1).set_index("pair").loc["linpack + netperf"]
    assert found.advice == "open" and found.ir_low < -0.1 and found.p_share > 0.05


def test_the_bounds_of_an_advice_agree_with_it():
    found = advice(table(campaign()), limit=0.1)
    share, apart = (found[found.advice == word] for word in ("may share", "keep apart"))
    assert (share.ir_low > -0.1).all() and (share.p_share < 0.05).all()
    assert (apart.ir_high < -0.1).all() and (apart.p_apart < 0.05).all()
    # At the level of Holm's step over three pairs, shared by the two metrics of a pair.
    assert len(share) == 1 and len(apart) == 2


def test_one_side_that_loses_is_enough():
    frame = campaign()
    frame.loc[(frame.service == "netperf") & (frame.neighbour == "linpack"), "mbit_per_s"] *= 0.5
    found = advice(table(frame), limit=0.1).set_index("pair").loc["linpack + netperf"]
    assert found.advice == "keep apart" and found.service == "netperf"


def test_a_pilot_and_a_side_that_was_not_measured_leave_it_open():
    pilot = advice(table(campaign(blocks=3)), limit=0.1)
    assert set(pilot.advice) == {"open"}
    # None of them was tested, so that none counts in the correction.
    assert pilot.p_apart.isna().all()
    frame = campaign()
    frame.loc[(frame.service == "netperf") & (frame.neighbour == "linpack"), "mbit_per_s"] = (
        math.nan
    )
    found = advice(table(frame), limit=0.1).set_index("pair")
    assert found.loc["linpack + netperf", "advice"] == "open"


def test_a_pair_of_which_every_trial_failed_is_open_and_not_missing():
    frame = campaign()
    beside = frame[(frame.case == "3b") & (frame.neighbour != frame.service)]
    gone = frame.drop(beside.index)
    planned = [("linpack", "none", "1"), ("linpack", "netperf", "3b"), ("netperf", "netperf", "3b")]
    assert "linpack + netperf" not in set(advice(table(gone), limit=0.1).pair)
    found = advice(table(gone), limit=0.1, planned=planned)
    row = found.set_index(["pair", "case"]).loc[("linpack + netperf", "3b")]
    assert row.advice == "open" and row["rows"] == 0 and math.isnan(row.ir)
    # What was measured stands once, and one alone is no pair.
    assert len(found) == 3
    nothing = advice(table(gone).iloc[:0], limit=0.1, planned=planned)
    assert set(nothing.advice) == {"open"} and len(nothing) == 2


def test_a_service_that_was_not_measured_alone_leaves_its_pairs_open():
    frame = campaign()
    alone = (frame.service == "linpack") & (frame.neighbour == "none") & (frame.case == "1")
    found = advice(table(frame[~alone]), limit=0.1).set_index("pair")
    assert found.loc["linpack + netperf", "advice"] == "open"


def captured(name, parse):
    return parse((CAPTURED / name).read_text(), "").metrics


def test_what_the_tools_timed_follows_from_what_they_print():
    found = captured("linpack.txt", linpack.parse)
    assert timed_seconds(found, {}) == found["linpack_seconds"]
    assert timed_seconds(captured("netperf.txt", netperf.parse), {}) == 1
    sizes = {"stream_size": {"elements": 1_000_000, "times": 11}}
    rates = {f"{one}_mean_gb_per_s": 16.0 for one in ("copy", "scale")}
    rates |= {f"{one}_mean_gb_per_s": 24.0 for one in ("add", "triad")}
    # Ten passes of four kernels, a millisecond each.
    assert timed_seconds(rates, sizes) == pytest.approx(0.04)
    assert set(rates) <= set(captured("stream.txt", stream.parse))
    rates = {f"block_{one}_mb_per_s": 100 * 2**20 / 1e6 for one in ("output", "rewrite", "input")}
    assert timed_seconds(rates, {"bonnie_size": {"megabytes": 50}}) == pytest.approx(1.5)
    assert set(rates) <= set(captured("bonnie.txt", bonnie.parse))


@pytest.mark.parametrize(
    ("metrics", "settings"),
    [
        ({}, {}),
        ({"fio_read_requests_per_s": 5.0}, {}),
        ({"copy_mean_gb_per_s": 5.0}, {}),
        ({"block_output_mb_per_s": 5.0}, {"bonnie_size": {"megabytes": 50}}),
    ],
)
def test_a_time_that_cannot_be_computed_is_none(metrics, settings):
    assert math.isnan(timed_seconds(metrics, settings))


def recorded(*sides, case="3a"):
    sides = [{"name": name, "iterations": found} for name, found in sides]
    return {"trial": "b01-p001", "block": 1, "levels": {"case": case}, "details": {"sides": sides}}


def test_iterations_are_read_from_the_records_with_what_was_timed_of_them():
    first = {"start_ns": 0, "end_ns": 2 * 10**9, "cut": False, "late": False, "overlap": 0.95}
    last = first | {"late": True, "cut": True, "overlap": 1.0}
    record = recorded(("linpack", [first | {"linpack_seconds": 0.5}, last]), ("fio", [first]))
    found = iterations([record, {"trial": "b01-p002"}], {})
    assert found.service.tolist() == ["linpack", "linpack", "fio"]
    assert found.neighbour.tolist() == ["fio", "fio", "linpack"] and set(found.case) == {"3a"}
    assert found.late.tolist() == found.cut.tolist() == [False, True, False]
    # A quarter was timed; if all 5 % of absence fell on it, a fifth of it was undisturbed.
    assert found.seconds[0] == 0.5 and set(found.block) == {1}
    assert found.timed[0] == 0.25 and found.beside[0] == pytest.approx(0.8)
    assert found.timed[1:].isna().all() and found.beside[1:].isna().all()
    alone = iterations([recorded(("linpack", [first]), case="1")], {})
    assert alone.neighbour.tolist() == ["none"]
    none = iterations([], {})
    assert len(none) == 0 and none.cut.dtype == bool


def test_a_single_block_gives_rows_without_intervals():
    found = table(campaign(blocks=1))
    assert found.ir.notna().all() and found.ir_low.isna().all()
    assert set(advice(found, limit=0.1).advice) == {"open"}


@pytest.mark.parametrize("limit", [0, 1, -0.1])
def test_a_limit_that_is_no_loss_is_refused(limit):
    with pytest.raises(UsageError):
        advice(table(campaign()), limit=limit)


def test_the_model_is_read_back_as_it_was(tmp_path):
    found = table(campaign())
    path = write_model(found, tmp_path / "new" / "model.csv")
    back = pd.read_csv(path)
    assert tuple(back.columns) == MODEL and len(back) == len(found)
    assert back.case.astype(str).tolist() == found.case.tolist()
    assert back.ir.to_numpy() == pytest.approx(found.ir.to_numpy(), rel=1e-5)
    assert b"\r" not in path.read_bytes()


def test_a_table_without_its_columns_is_no_model(tmp_path):
    with pytest.raises(UsageError):
        write_model(table(campaign()).drop(columns="ir"), tmp_path / "model.csv")
