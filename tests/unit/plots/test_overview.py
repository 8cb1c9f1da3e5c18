import io
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from labkit.analysis.tables import format_claims
from labkit.errors import UsageError
from labkit.plots import heat_map, ledger_overview, stacked_plot
from labkit.plots.figure import svg
from labkit.plots.overview import FACES

NOTHING = {"estimate": math.nan, "low": math.nan, "high": math.nan, "n_blocks": pd.NA}


def row(name, result="replicated", estimate=1.1, **more):
    """One row of a ledger, measured as a ratio unless told otherwise."""
    measured = {"estimate": estimate, "low": estimate * 0.95, "high": estimate * 1.05}
    about = {"id": f"small-{name}", "source": "small", "statement": f"{name} is slower"}
    about |= {"published": "1.2 from its tables", "published_value": 1.2, "unit": "1"}
    about |= {"arithmetic": "follows", "setting": "analogue", "why": "it lies above 1"}
    return {**about, **measured, "n_blocks": 5, "result": result, **more}


def ledger(*rows):
    return pd.DataFrame(rows).astype({"n_blocks": "Int64"})


def words(drawn):
    """Every text of a figure, and that it can be drawn at all."""
    drawn.savefig(io.BytesIO(), format="png")
    return "\n".join(text.get_text() for text in drawn.findobj(Text) if text.get_visible())


def test_the_overview_has_every_result_and_says_what_it_rests_on():
    rows = [row(name.replace(" ", "-"), name, n_blocks=5 + at) for at, name in enumerate(FACES)]
    text = words(ledger_overview(ledger(*rows)))
    assert all(name in text for name in FACES)
    assert "claims (n = 6)" in text
    assert "n = 5 to 10 blocks; intervals at the level of each result" in text
    assert "small-replicated" in text and "published" in text and "other result" in text


def test_the_legend_of_the_bars_is_drawn_where_it_stands():
    drawn = ledger_overview(ledger(*(row(name, name) for name in FACES)))
    before, legend = svg(drawn).split('id="legend_1"')[:2]
    assert "<image" in before
    assert "<image" not in legend.split('id="axes_2"')[0]


def test_the_bars_add_up_to_the_claims_of_a_source():
    rows = [row("a"), row("b", "undecided"), row("c", "not measured", **NOTHING)]
    rows.append(row("d", source="other"))
    drawn = ledger_overview(ledger(*rows))
    bars = drawn.axes[0].patches
    assert sum(bar.get_width() for bar in bars) == len(rows)
    assert [text.get_text() for text in drawn.axes[0].get_yticklabels()] == ["small", "other"]
    assert "n = 5 blocks" in words(drawn)


def test_ratios_without_interval_or_published_value_are_drawn_and_other_numbers_are_not():
    pilot = row("pilot", "undecided", low=math.nan, high=math.nan, published_value=math.nan)
    absolute = row("absolute", unit="ns", estimate=500.0)
    drawn = ledger_overview(ledger(pilot, absolute, row("negative", estimate=-1.0)))
    text = words(drawn)
    assert "small-pilot" in text and "small-absolute" not in text and "negative" not in text
    assert len(drawn.axes[1].lines) == 2  # the line at 1, and one marker


def test_an_overview_without_measured_ratios_says_so():
    text = words(ledger_overview(ledger(row("a", "not measured", **NOTHING))))
    assert "no ratio was measured" in text and "claims (n = 1)" in text
    with pytest.raises(UsageError, match="no rows"):
        ledger_overview(ledger(row("a")).iloc[:0])
    with pytest.raises(UsageError, match="n_blocks"):
        ledger_overview(ledger(row("a")).drop(columns="n_blocks"))


def test_claims_are_readable():
    rows = [row("a"), row("b", estimate=500.0, unit="us"), row("c", "not measured", **NOTHING)]
    rows.append(row("d", low=math.nan, high=math.nan))
    table = format_claims(ledger(*rows))
    assert list(table.index) == [1, 2, 3, 4]
    measured = ["1.10x [1.04, 1.16]", "500 us [475, 525]", "", "1.10x, no interval"]
    assert list(table["measured [interval]"]) == measured
    assert list(table["blocks"]) == ["5", "5", "", "5"]
    assert table.loc[1, ["setting", "result", "why"]].to_list() == [
        *("analogue", "replicated", "it lies above 1")
    ]
    assert format_claims(ledger(*rows).iloc[1:2]).index.to_list() == [1]
    # An interval with one open end says something.
    open_ended = format_claims(ledger(row("e", estimate=16.0, low=15.9, high=math.inf)))
    assert open_ended.loc[1, "measured [interval]"] == "16.0x [15.9, unbounded]"


CELLS = pd.DataFrame(
    {
        "service": pd.Categorical(["b", "a", "b", "a"], ["a", "b", "c"]),
        "neighbour": ["none", "none", "busy", "busy"],
        "ratio": [1.0, 0.5, math.nan, 1.25],
        "differs": pd.array([False, True, pd.NA, True], dtype="boolean"),
        "n_blocks": [5, 5, 3, 4],
    }
)
NAMES = {"value": "ratio", "rows": "service", "columns": "neighbour"}


def test_a_heat_map_carries_numbers_units_and_n():
    drawn = heat_map(CELLS, **NAMES, label="throughput beside a neighbour (1)", marked="differs")
    text = words(drawn).split("\n")
    assert {"0.5", "1.25", "n = 3 to 5 blocks", "throughput beside a neighbour (1)"} <= set(text)
    # The cell that was not measured, and both of a service that never ran.
    assert text.count("–") == 3
    axis = drawn.axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["a", "b", "c"]
    frames = [patch for patch in axis.patches if isinstance(patch, Rectangle)]
    assert sorted(patch.get_xy() for patch in frames) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("values", "reach"), [([1, 0.5, math.nan, -1.25], 1.25), ([math.nan] * 4, 1), ([0.0] * 4, 1)]
)
def test_the_scale_of_a_heat_map_is_centred_on_no_effect(values, reach):
    drawn = heat_map(CELLS.assign(ratio=values), **NAMES, label="ratio", note="n = 9 trials")
    assert "n = 9 trials" in words(drawn)
    assert drawn.axes[0].collections[0].get_clim() == (-reach, reach)


def test_a_heat_map_raises_for_impossible_values():
    with pytest.raises(UsageError, match="several rows"):
        heat_map(pd.concat([CELLS, CELLS]), **NAMES, label="ratio")
    with pytest.raises(UsageError, match="infinite"):
        heat_map(CELLS.assign(ratio=np.inf), **NAMES, label="ratio")
    with pytest.raises(UsageError, match="no rows"):
        heat_map(CELLS.iloc[:0], **NAMES, label="ratio")


PANELS = {
    "client": {"client_user": "user", "client_kernel": "kernel"},
    "server": {"server_user": "user", "server_kernel": "kernel"},
}


def shares():
    columns = {"client_user": [0.2, 0.4], "client_kernel": [0.3, 0.5]}
    columns |= {"server_user": [0.1, 0.1], "server_kernel": [None, None]}
    names = {"block": [1, 2], "placement": "docker host", "application": "nginx"}
    one = pd.DataFrame({**names, **columns})
    return pd.concat([one, one.assign(placement="docker nat", application="pg")])


def test_parts_of_a_bar_follow_each_other():
    drawn = stacked_plot(
        shares(), panels=PANELS, label="placement", row="application", unit="share of a side's CPUs"
    )
    text = set(words(drawn).split("\n"))
    assert {"nginx, client", "pg, server", "share of a side's CPUs", "user", "kernel"} <= text
    assert "n = 2 blocks, 4 trials; means over trials" in text
    bars = [(bar.get_x(), bar.get_width()) for bar in drawn.axes[0].patches]
    # Docker's published port was not measured with nginx: its bars have no length.
    assert bars == [
        (0.0, pytest.approx(0.3)),
        (0.0, 0.0),
        (pytest.approx(0.3), pytest.approx(0.4)),
        (0.0, 0.0),
    ]


def test_a_share_without_a_column_is_an_error():
    with pytest.raises(UsageError, match="server_kernel"):
        stacked_plot(
            shares().drop(columns="server_kernel"),
            panels=PANELS,
            label="placement",
            row="application",
            unit="",
        )
