import io
import re
from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb

from labkit import plots
from labkit.analysis.compare import compare, factor_effect, shift
from labkit.analysis.summary import mechanisms, summarise
from labkit.errors import UsageError
from labkit.plots import stacked_plot
from labkit.plots.distributions import curve_levels
from labkit.plots.figure import alt_text, plain_log_ticks, ratio_ticks, svg


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
    names = {"condition": "placement", "baseline": "bare clean"}
    return compare(medians(cell), value="median", **names, **options)


def medians(samples):
    by = ["trial", "block", "placement", "wait"]
    return summarise(samples, by=by, statistics=["median"])


@pytest.mark.parametrize("tail", [False, True])
def test_ecdf(samples, tail):
    drawn = plots.ecdf(samples, hue="wait", col="placement", tail=tail)
    text = words(drawn)
    assert "round-trip time (µs)" in text and "share of samples" in text
    assert "n = 3 blocks, 18 trials, 54,000 samples" in text
    assert "n = 3 blocks, 6 trials, 18,000 samples" in text
    axis = drawn.axes[0]
    assert axis.get_xscale() == "log" and axis.get_yscale() == ("log" if tail else "linear")
    assert len(axis.lines) == 2 * (3 + 1)
    assert all(len(line.get_xdata()) <= 2000 for line in axis.lines)
    shown = max(line.get_xdata().max() for line in axis.lines)
    part = samples.loc[samples["placement"] == "bare clean", "rtt_ns"]
    assert shown == pytest.approx(part.max() / 1000)
    thin, thick = axis.lines[0], axis.lines[3]
    assert thin.get_linewidth() < thick.get_linewidth()


def test_ecdf_of_few_samples(samples):
    assert words(plots.ecdf(samples.iloc[:1], hue="wait"))
    assert words(plots.ecdf(samples, hue="placement", trials=False))
    with pytest.raises(UsageError, match="no rows"):
        plots.ecdf(samples.iloc[:0], hue="wait")


def test_curve_levels_keep_the_ends():
    for n in (1, 2, 5, 599, 601, 10_000_000):
        levels = curve_levels(n, 600)
        assert levels[0] == 0 and levels[-1] == 1
        assert len(levels) <= 600 and (np.diff(levels) > 0).all()
    assert curve_levels(10**6, 600)[-2] == pytest.approx(1 - 1e-6, rel=1e-9)


def test_interval_plot(samples):
    drawn = plots.interval_plot(compared(samples), margin=0.02, baseline="bare clean")
    text = words(drawn)
    assert "ratio to bare clean" in text and "n = 3 blocks" in text
    assert "docker bridge" in text
    assert any(word in text for word in ("cannot tell yet", "same within 2 %", "lower"))


def test_the_interval_of_a_verdict_is_drawn_and_written(samples):
    table = compared(samples).assign(
        verdict="equivalent", low=0.5, high=2.0, equal_low=0.99, equal_high=1.01
    )
    drawn = plots.interval_plot(table, margin=0.02)
    assert set(drawn.numbers["low"]) == {0.99} and set(drawn.numbers["high"]) == {1.01}
    segments = [one for line in drawn.axes[0].collections[:1] for one in line.get_segments()]
    assert all(x in (0.99, 1.01) for segment in segments for x, _ in segment)
    assert "[0.990, 1.010]" in words(drawn)
    assert "[0.500, 2.000]" in words(plots.interval_plot(table.assign(verdict="x"), margin=0.02))


def test_an_interval_that_bounds_nothing_does_not_widen_the_axis(samples):
    table = compared(samples)
    wide = table.assign(low=[1e-20, *table["low"][1:]], high=[1e20, *table["high"][1:]])
    drawn, usual = (
        plots.interval_plot(one.assign(verdict="x"), margin=0.02) for one in (wide, table)
    )
    assert drawn.axes[0].get_xlim()[1] <= usual.axes[0].get_xlim()[1]
    assert "[0, unbounded]" in words(drawn)


def test_interval_plot_of_a_pilot_and_of_absent_cells(samples):
    assert "cannot tell yet" in words(
        plots.interval_plot(compared(samples[samples["block"] == 0]), margin=0.02)
    )
    part = samples[(samples["placement"] == "bare clean") | (samples["wait"] == "block")]
    levels = ["block", "spin"]
    table = factor_effect(medians(part), "wait", levels, ["placement"], value="median")
    drawn = plots.interval_plot(table, margin=0.02, label="placement", baseline="blocking")
    assert "no trial with wait=spin" in words(drawn)
    assert drawn.axes[0].get_xscale() == "log"
    assert "n = 0 to 3 blocks" in words(drawn)


def test_ladder_plot(samples):
    trials = samples.drop_duplicates("trial").assign(context_switches=2.0, idle_exits=np.nan)
    counters = mechanisms(
        trials, by=["placement", "wait"], columns=["context_switches", "idle_exits"]
    ).rename(columns={"placement": "condition"})
    columns = ["context_switches", "idle_exits", "softirqs"]
    drawn = plots.ladder_plot(
        compared(samples), counters, margin=0.02, columns=columns, level="wait", title="the ladder"
    )
    text = words(drawn)
    assert "(1/operation)" in text and "not recorded" in text and "baseline" in text
    assert len(drawn.axes) == 4
    labels = [text.get_text() for text in drawn.axes[0].get_yticklabels()]
    assert labels[0] == "bare clean"


def test_block_plot(samples):
    trials = samples.groupby(["block", "placement", "wait"], as_index=False)["rtt_ns"].median()
    trials["odd"] = trials.index == 2
    trials.loc[0, "rtt_ns"] = np.nan
    drawn = plots.block_plot(trials, value="rtt_ns", hue="wait", col="placement", flagged="odd")
    text = words(drawn)
    assert "round-trip time (µs)" in text and "block, in order of execution" in text
    assert "1 failed" in text and "n = 3 blocks, 17 trials" in text
    medians = trials.rename(columns={"rtt_ns": "rtt_ns_median"})
    drawn = plots.block_plot(medians, value="rtt_ns_median", hue="wait")
    assert "round-trip time, median (µs)" in words(drawn)


@pytest.mark.parametrize("relative", [False, True])
def test_shift_plot(samples, relative):
    cell = samples[samples["wait"] == "block"]
    table = shift(cell, condition="placement", baseline="bare clean")
    text = words(plots.shift_plot(table, baseline="bare clean", relative=relative))
    assert "quantile of a trial" in text and "n = 3 blocks" in text
    # What is decided about a median is said once, in the table of its family.
    assert not any(word in text for word in ("different", "equivalent", "undecided"))
    assert ("ratio to bare clean" in text) == relative and ("µs" in text) != relative


def grey(colour):
    """How light a colour is on a grey printer, from 0 to 1."""
    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("n", [2, 5, 8, 14])
def test_styles_differ_without_colour(n):
    looks = list(plots.styles(range(n)).values())
    light = [grey(look["color"]) for look in looks]
    assert all(after > before for before, after in pairwise(light)) and light[-1] < 0.8
    for one, other in combinations(looks, 2):
        # A figure may have lines without markers, or markers without lines.
        apart = abs(grey(one["color"]) - grey(other["color"])) > 0.25
        assert apart or str(one["linestyle"]) != str(other["linestyle"])
        assert apart or one["marker"] != other["marker"]


def test_drawn_curves_and_bars_differ_without_colour(samples):
    drawn = plots.ecdf(samples, hue="placement", trials=False)
    curves = drawn.axes[0].get_lines()
    assert len({(str(one.get_linestyle()), one.get_marker()) for one in curves}) == 3
    trials = pd.DataFrame({"block": [1], "at": "x", "row": "y", "a": 0.2, "b": 0.3, "c": 0.4})
    parts = {name: name for name in "abc"}
    bars = stacked_plot(trials, panels={"p": parts}, label="at", row="row", unit="share")
    faces = [one.patches[0] for one in bars.axes[0].containers]
    for one, other in pairwise(faces):
        assert one.get_hatch() != other.get_hatch()
        assert abs(grey(one.get_facecolor()[:3]) - grey(other.get_facecolor()[:3])) > 0.1


def displayed(figure, monkeypatch):
    """Return data and metadata that a figure displays in a notebook."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *one, **more: shown.append((one, more)))
    assert DisplayFormatter().format(figure) == ({}, {})
    ((data,), options) = shown[0]
    return data, options["metadata"]


def test_an_svg_writes_each_style_once_and_defines_it(samples):
    text = svg(plots.interval_plot(compared(samples), margin=0.02))
    assert 'style="' not in text and "<!--" not in text
    used = re.findall(r'class="(\w+)"', text)
    assert len(used) > len(set(used)) > 1
    assert all(text.count(f".{name}{{") == 1 for name in used)


def test_a_displayed_figure_is_an_svg_with_a_text_alternative_and_numbers(samples, monkeypatch):
    table = compared(samples)
    options = {"margin": 0.02, "baseline": "bare clean", "title": "medians"}
    drawn = plots.interval_plot(table, **options)
    images, metadata = displayed(drawn, monkeypatch)
    assert images["image/svg+xml"] == svg(plots.interval_plot(table, **options))
    assert list(pd.read_csv(io.StringIO(images["text/csv"]))["estimate"]) == pytest.approx(
        list(table["estimate"]), rel=1e-5
    )
    alt = metadata["image/svg+xml"]["alt"]
    first = table.iloc[0]
    assert f"Rows: {first['condition']}: {first['estimate']:.3f}x " in alt
    assert "Panels: medians. Across: ratio to bare clean" in alt and "n = 3 blocks" in alt
    many = pd.concat([samples.assign(part=f"part {part}") for part in range(9)])
    assert "Panels: 9, the first part 0 n = 3" in alt_text(
        plots.ecdf(many, hue="wait", col="part", trials=False)
    )


def test_the_ticks_of_a_logarithmic_axis_are_no_rows():
    figure, axes = plots.canvas(1, 1, width=3, height=2)
    axes[0, 0].plot([1, 2, 3], [1e-7, 1e-4, 1])
    axes[0, 0].set_yscale("log")
    figure.draw_without_rendering()
    assert "Rows" not in alt_text(figure)


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (0.8, 1.9, ["0.2", "0.3", "0.5", "0.9"]),
        (0.1, 1.3, ["0.2", "0.5"]),
        (1, 1000, ["0.3"]),
        (1, 1e6, []),
    ],
)
def test_numbers_on_a_logarithmic_axis_have_room(low, high, written):
    axes = plots.canvas(1, 1, width=3, height=2)[1][0, 0]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    plain_log_ticks(axes)
    labels = [axes.xaxis.get_minor_formatter()(number) for number in (0.2, 0.3, 0.5, 0.9)]
    assert [text for text in labels if text] == written


def test_no_figure_stays_open(samples):
    plots.ecdf(samples, hue="wait")
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.7, 1.5, [0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5]),
        (0.4, 6, [0.5, 1, 2, 5]),
        (0.01, 100, [0.01, 0.1, 1, 10, 100]),
        (0.97, 1.03, [0.98, 1, 1.02]),
    ],
)
def test_an_axis_of_ratios_has_labels_where_there_is_room(low, high, wanted):
    ticks = ratio_ticks(low, high, 0.05)
    assert set(ticks) >= set(wanted) and ticks == sorted(ticks)
    steps = np.diff(np.log(ticks)) / np.log(high / low)
    assert (steps >= 0.05).all()


@pytest.mark.parametrize("ratio", [0.004, 0.7, 13.0])
def test_labels_of_ratios_do_not_overlap_on_the_axis_that_long_names_leave(samples, ratio):
    table = compared(samples).head(1).assign(estimate=ratio, verdict="different", name="long " * 12)
    table = table.assign(low=0.9 * ratio, high=1.1 * ratio, metric="context_switches")
    figure = plots.interval_plot(table, margin=0.02, label="name")
    figure.draw_without_rendering()
    labels = [one for one in figure.axes[0].get_xticklabels() if one.get_text()]
    ends = [one.get_window_extent() for one in labels]
    assert len(labels) > 1
    assert all(left.x1 < right.x0 for left, right in pairwise(ends))


def test_ratios_of_quantiles_are_on_a_log_axis_with_ticks_between_decades(samples):
    spin = samples[samples["wait"] == "spin"]
    table = shift(spin, condition="placement", baseline="bare clean")
    table = table.assign(high=17.0, low=0.2)
    axis = plots.shift_plot(table, baseline="bare clean", relative=True).axes[0]
    ticks = {one.get_text() for one in axis.get_yticklabels()}
    assert axis.get_yscale() == "log" and ticks >= {"0.5", "1", "2", "5", "10"}


def test_a_tail_has_as_much_room_for_each_nine(samples):
    drawn = plots.tail_plot(samples, hue="placement", col="wait")
    axis = drawn.axes[0]
    assert [one.get_text() for one in axis.get_xticklabels()] == ["50", "90", "99", "99.9"]
    places = np.log10(axis.get_xticks())
    assert np.allclose(np.diff(places)[1:], 1)
    part = samples.query("placement == 'docker host' and wait == 'spin'")["rtt_ns"] / 1000
    numbers = drawn.numbers.query("placement == 'docker host' and wait == 'spin'")
    expected = np.quantile(part, numbers["%"] / 100)
    assert list(numbers["round-trip time (µs)"]) == pytest.approx(list(expected))


def test_rows_with_a_metric_say_slower_or_faster(samples):
    table = compared(pd.concat([samples.assign(block=samples["block"] + 3 * n) for n in range(3)]))
    table["verdict"], table["estimate"] = "different", [1.5, 0.5]
    text = words(plots.interval_plot(table.assign(metric="rtt_ns_median"), margin=0.02))
    assert "1.500x" in text and "slower" in text and "faster" in text and " us, " in text
