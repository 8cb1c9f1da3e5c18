import io
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from labkit.analysis import figure, plots
from labkit.analysis.compare import compare
from labkit.analysis.shift import shift
from labkit.analysis.summary import factor_effect, mechanisms
from labkit.errors import UsageError


@pytest.fixture(scope="module")
def samples():
    rng, frames = np.random.default_rng(1), []
    for block in range(3):
        for place in ("bare clean", "docker host", "docker bridge"):
            for wait in ("block", "spin"):
                level = 30_000 if wait == "block" else 9_000
                values = (level * rng.lognormal(0, 0.1, 3000)).astype("int64")
                frame = pd.DataFrame({"rtt_ns": values, "block": block})
                names = {"trial": f"t{len(frames)}", "placement": place, "wait": wait}
                frames.append(frame.assign(**names))
    return pd.concat(frames, ignore_index=True)


def words(drawn):
    """Every text of a figure, and that it can be drawn at all."""
    drawn.savefig(io.BytesIO(), format="png")
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in drawn.findobj(Text) if text.get_visible())


def compared(samples, **options):
    cell = samples[samples["wait"] == "block"]
    names = {"condition": "placement", "baseline": "bare clean", "block": "block"}
    return compare(cell, value="rtt_ns", statistic="median", trial="trial", **names, **options)


@pytest.mark.parametrize("tail", [False, True])
def test_ecdf(samples, tail):
    drawn = plots.ecdf(samples, hue="wait", col="placement", tail=tail)
    said = words(drawn)
    assert "round-trip time (µs)" in said and "share of samples" in said
    assert "n = 3 blocks, 18 trials, 54,000 samples" in said
    assert "n = 3 blocks, 6 trials, 18,000 samples" in said
    axis = drawn.axes[0]
    assert axis.get_xscale() == "log" and axis.get_yscale() == ("log" if tail else "linear")
    assert len(axis.lines) == 2 * (3 + 1)
    assert all(len(line.get_xdata()) <= 2000 for line in axis.lines)
    shown = max(line.get_xdata().max() for line in axis.lines)
    part = samples.loc[samples["placement"] == "bare clean", "rtt_ns"]
    assert shown == pytest.approx(part.max() / 1000)
    thin, thick = axis.lines[0], axis.lines[3]
    assert thin.get_linewidth() < thick.get_linewidth()


def test_ecdf_of_little(samples):
    assert words(plots.ecdf(samples.iloc[:1], hue="wait"))
    assert words(plots.ecdf(samples, hue="placement", trials=False))
    with pytest.raises(UsageError, match="neither"):
        plots.ecdf(samples, hue="wait", trials=False, combined=False)
    with pytest.raises(UsageError, match="no rows"):
        plots.ecdf(samples.iloc[:0], hue="wait")


def test_curve_levels_keep_the_ends():
    for n in (1, 2, 5, 599, 601, 10_000_000):
        levels = figure.curve_levels(n, 600)
        assert levels[0] == 0 and levels[-1] == 1
        assert len(levels) <= 600 and (np.diff(levels) > 0).all()
    assert figure.curve_levels(10**6, 600)[-2] == pytest.approx(1 - 1e-6, rel=1e-9)


def test_interval_plot(samples):
    drawn = plots.interval_plot(compared(samples), margin=0.02, baseline="bare clean")
    said = words(drawn)
    assert "ratio to bare clean" in said and "n = 3 blocks" in said
    assert "docker bridge" in said
    assert any(word in said for word in ("inconclusive", "equivalent", "different"))


def test_interval_plot_of_a_pilot_and_of_absent_cells(samples):
    assert "inconclusive" in words(
        plots.interval_plot(compared(samples[samples["block"] == 0]), margin=0.02)
    )
    part = samples[(samples["placement"] == "bare clean") | (samples["wait"] == "block")]
    options = {"value": "rtt_ns", "statistic": "median", "trial": "trial"}
    table = factor_effect(part, "wait", ["block", "spin"], ["placement"], **options)
    drawn = plots.interval_plot(table, margin=0.02, label="placement", baseline="blocking")
    assert "no trial with wait=spin" in words(drawn)
    assert drawn.axes[0].get_xscale() == "log"
    assert "n = 0 to 3 blocks" in words(drawn)


def test_ladder_plot(samples):
    trials = samples.drop_duplicates("trial").assign(context_switches=2.0, idle_exits=np.nan)
    beside = mechanisms(
        trials, by=["placement", "wait"], columns=["context_switches", "idle_exits"]
    ).rename(columns={"placement": "condition"})
    columns = ["context_switches", "idle_exits", "softirqs"]
    drawn = plots.ladder_plot(
        compared(samples), beside, margin=0.02, columns=columns, level="wait", title="the ladder"
    )
    said = words(drawn)
    assert "(1/message)" in said and "not recorded" in said and "baseline" in said
    assert len(drawn.axes) == 4
    labels = [text.get_text() for text in drawn.axes[0].get_yticklabels()]
    assert labels[0] == "bare clean"


def test_block_plot(samples):
    trials = samples.groupby(["block", "placement", "wait"], as_index=False)["rtt_ns"].median()
    trials["odd"] = trials.index == 2
    trials.loc[0, "rtt_ns"] = np.nan
    drawn = plots.block_plot(trials, value="rtt_ns", hue="wait", col="placement", flagged="odd")
    said = words(drawn)
    assert "round-trip time (µs)" in said and "block, in order of execution" in said
    assert "1 failed" in said and "n = 3 blocks, 17 trials" in said
    renamed = trials.rename(columns={"rtt_ns": "median"})
    assert "median (µs)" in words(plots.block_plot(renamed, value="median", hue="wait", unit="ns"))


@pytest.mark.parametrize("relative", [False, True])
def test_shift_plot(samples, relative):
    cell = samples[samples["wait"] == "block"]
    table = shift(cell, condition="placement", baseline="bare clean")
    said = words(plots.shift_plot(table, baseline="bare clean", relative=relative))
    assert "quantile of a trial" in said and "n = 3 blocks" in said
    # What is decided about a median is said once, in the table of its family.
    assert not any(word in said for word in ("different", "equivalent", "inconclusive"))
    assert ("ratio to bare clean" in said) == relative and ("µs" in said) != relative


def test_figures_are_told_apart_without_colour():
    looks = figure.styles(list("abcde")).values()
    assert len({str(look["linestyle"]) for look in looks}) == 5
    light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (x["color"] for x in looks)]
    assert all(after > before for before, after in pairwise(light))


def test_no_figure_stays_open(samples):
    plots.ecdf(samples, hue="wait")
    assert plt.get_fignums() == []
