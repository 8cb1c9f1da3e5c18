"""Costs over a size: several lines as one family, their verdicts and their figure."""

import math

import numpy as np
import pandas as pd
import pytest

from labkit.analysis.compare import factor_effect
from labkit.analysis.overhead import COST_COLUMNS, fit_overhead, overhead_table
from labkit.analysis.tables import format_overhead
from labkit.errors import UsageError
from labkit.plots import overhead_plot

SIZES = (1024, 10240, 51200, 102400)
#: What each placement adds to 100 us and 2 ns a byte, in ns: a constant, and a share of the bytes.
COSTS = {"host": (0, 0), "fixed": (10_000, 0), "growing": (0, 1), "both": (10_000, 1)}
LINE = {"value": "mean", "over": "size"}


def trials(blocks=8, noise=0.001, sizes=SIZES, directions=("receive",), seed=4):
    rng, rows = np.random.default_rng(seed), []
    for block in range(1, blocks + 1):
        level = np.exp(rng.normal(0, 0.05))
        for direction in directions:
            for size in sizes:
                for name, (fixed, share) in COSTS.items():
                    mean = level * (100_000 + 2 * size + fixed + share * size)
                    mean *= np.exp(rng.normal(0, noise))
                    rows.append((block, direction, str(size), name, mean))
    return pd.DataFrame(rows, columns=["block", "direction", "size", "placement", "mean"])


def fitted(frame, others=("fixed", "growing", "both"), within=("direction",), **options):
    return overhead_table(frame, "placement", "host", others, within, **LINE, **options)


def test_each_kind_of_cost_has_its_verdict():
    table = fitted(trials()).set_index("contrast")
    assert list(table.columns) == ["direction", *COST_COLUMNS]
    assert table["verdict"].to_dict() == {
        "fixed / host": "fixed",
        "growing / host": "growing",
        "both / host": "fixed and growing",
    }
    fixed, growing = table.loc["fixed / host"], table.loc["growing / host"]
    assert fixed["intercept_low"] < 10_000 < fixed["intercept_high"]
    assert fixed["growth_low"] < 0 < fixed["growth_high"]
    assert growing["slope_low"] < 1 < growing["slope_high"]
    # 1 ns a byte over 101,376 bytes, beside a baseline of 100 us and 2 ns a byte
    share = (SIZES[-1] - SIZES[0]) / (100_000 + 2 * np.mean(SIZES))
    assert growing["growth"] == pytest.approx(share, rel=0.02)
    assert (table["n_blocks"] == 8).all() and (table["n_levels"] == 4).all()


def test_a_row_is_the_overhead_of_its_cell():
    frame = trials(directions=("receive", "send"))
    table = fitted(frame, others=["both"])
    assert list(table["direction"]) == ["receive", "send"]
    part = frame[frame["direction"] == "send"]
    pair = {"condition": "placement", "baseline": "host", "other": "both"}
    alone = fit_overhead(part, **LINE, **pair)
    row = table.iloc[1]
    assert row["slope"] == alone.slope.value
    # Two rows, of which this one has the smaller p: Holm's first step has half the level.
    assert (row["growth_low"], row["growth_high"]) == alone.relative.interval(0.025)
    assert row["p_fixed"] == alone.relative.p_within(-0.02, 0.02)
    # two rows: Holm doubles the smaller p
    assert table["p_growth"].min() >= 2 * alone.slope.p_outside(0, 0) or math.isclose(
        table["p_growth"].max(), alone.slope.p_outside(0, 0)
    )


def test_equal_conditions_cost_nothing():
    frame = trials()
    same = frame[frame["placement"] == "host"].assign(placement="same")
    rng = np.random.default_rng(1)
    same["mean"] *= np.exp(rng.normal(0, 1e-3, len(same)))
    table = fitted(pd.concat([frame, same]), others=["same"], within=())
    assert table["verdict"].to_list() == ["none"]
    # The intervals are those of the equivalence tests: inside the margin.
    base = frame.loc[frame["placement"] == "host", "mean"].mean()
    assert -0.02 < table["growth_low"][0] < table["growth_high"][0] < 0.02
    assert -0.02 * base < table["intercept_low"][0] < table["intercept_high"][0] < 0.02 * base


def test_a_cost_that_was_not_found_is_not_called_none():
    frame = trials()
    same = frame[frame["placement"] == "host"].assign(placement="same")
    rng = np.random.default_rng(1)
    # Each block has its own cost at size 0: the growth is known, the intercept is not.
    own = dict(zip(range(100), rng.normal(0, 20_000, 100), strict=True))
    same["mean"] += same["block"].map(own)
    table = fitted(pd.concat([frame, same]), others=["same"], within=())
    assert table["p_fixed"][0] < 0.05 < min(table["p_intercept"][0], table["p_none"][0])
    assert table["verdict"].to_list() == ["undecided"]


@pytest.mark.parametrize(("blocks", "sizes"), [(1, SIZES), (4, SIZES), (8, SIZES[:2])])
def test_too_little_decides_nothing(blocks, sizes):
    table = fitted(trials(blocks=blocks, sizes=sizes))
    assert set(table["verdict"]) == {"undecided"}
    assert table["intercept"].notna().all()


def test_what_was_not_measured_has_a_row_that_says_so():
    frame = trials()
    frame = frame[(frame["placement"] != "both") & (frame["placement"] != "growing")]
    lone = trials(sizes=SIZES[:1])
    frame = pd.concat([frame, lone[lone["placement"] == "growing"]])
    table = fitted(frame).set_index("contrast")
    assert table.loc["both / host", "n_blocks"] == table.loc["growing / host", "n_blocks"] == 0
    assert "'both'" in table.loc["both / host", "note"]
    assert "1 usable levels" in table.loc["growing / host", "note"]
    assert table.loc["fixed / host", "verdict"] == "fixed"
    shown = format_overhead(table.reset_index())
    assert shown.iloc[2]["at size 0, µs [interval]"] == ""


def test_numbers_are_shown_in_their_units():
    table = fitted(trials(), others=["both"])
    shown = format_overhead(table).iloc[0]
    row = table.iloc[0]
    middle, low, high = (row[f"intercept{end}"] / 1000 for end in ("", "_low", "_high"))
    assert shown["at size 0, µs [interval]"] == f"{middle:.2f} [{low:.2f}, {high:.2f}]"
    assert shown["for each KiB, µs [interval]"].startswith(f"{row['slope'] * 1.024:.4f} [")
    assert shown["p of growth"] == "<0.0001" and shown["blocks"] == "8"
    pilot = format_overhead(fitted(trials(blocks=1), others=["both"])).iloc[0]
    assert "[" not in pilot["at size 0, µs [interval]"] and pilot["p of fixed"] == ""


def test_the_figure_has_points_and_lines_for_each_panel():
    frame = trials(directions=("receive", "send"))
    names = ["host", "fixed", "growing"]
    effects = factor_effect(frame, "placement", names, ["direction", "size"], value="mean")
    lines = fitted(frame, others=names[1:])
    figure = overhead_plot(
        effects, lines, over="size", label="size (B)", col="direction", margin=0.02
    )
    figure.canvas.draw()
    assert len(figure.axes) == 4
    above = figure.axes[0]
    drawn = [
        line for line in above.lines if len(line.get_xdata()) == 2 and line.get_xdata()[0] == 0
    ]
    slopes = [np.diff(one.get_ydata())[0] / SIZES[-1] * 1000 for one in drawn if one.get_ydata()[1]]
    receive = lines[lines["direction"] == "receive"]["slope"].to_list()
    assert slopes == pytest.approx(receive)
    figure = overhead_plot(effects, lines.iloc[:0], over="size", label="size (B)")
    assert len(figure.axes) == 2


def test_impossible_requests_are_refused():
    with pytest.raises(UsageError, match="margin"):
        fitted(trials(), margin=0)
    with pytest.raises(UsageError, match="no column"):
        overhead_table(trials(), "place", "host", ["fixed"], (), **LINE)


def test_a_cost_that_falls_is_not_called_growing():
    frame = trials()
    falling = overhead_table(
        frame, "placement", "growing", ["host", "fixed"], ["direction"], **LINE
    )
    found = falling.set_index("contrast")
    assert found["verdict"].to_dict() == {
        "host / growing": "falling",
        "fixed / growing": "fixed and falling",
    }
    assert (found["slope_high"] < 0).all() and (found["growth_high"] < 0).all()
    assert (found["p_growth"] < 0.05).all()
