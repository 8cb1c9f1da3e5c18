"""What the explorer finds and shows, without its widgets: choice in, figure, words, tables out."""

from __future__ import annotations

import shutil

import matplotlib
import numpy as np
import pandas as pd
import pytest
from explore_campaigns import COSTS, FACTORS, FAILED, ODD, write
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import DatasetError, UsageError
from labkit.explore import html
from labkit.explore.finding import Source, find
from labkit.explore.part import STATISTICS, Choice, part_of
from labkit.explore.rows import files
from labkit.explore.study import MOST, Explored
from labkit.explore.views import VIEWS, against_baseline, distribution, evidence, over_blocks

matplotlib.use("agg")
#: What numpy calls a statistic of a trial.
PLAIN = {
    "median": np.median,
    "mean": np.mean,
    "min": np.min,
    "max": np.max,
    "std": lambda values: np.std(values, ddof=1),
}
PERCENT = {"p90": 90, "p95": 95, "p99": 99}


def explored(path):
    return Explored(find(path)[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("explore") / "echo")


@pytest.fixture(scope="module")
def study(folder):
    return explored(folder)


@pytest.fixture(scope="module")
def raw(study):
    """Return the samples of every successful trial, as pandas reads them."""
    home = study.dataset.path / "trials"
    done = [one for one in study.dataset.records if one["status"] == "ok"]
    return [(one, pd.read_parquet(home / one["directory"] / "samples.parquet")) for one in done]


def lines(figure):
    """Return the thick curves and the thin ones of a figure."""
    found = figure.axes[0].get_lines()
    return [one for one in found if one.get_lw() > 1], [one for one in found if one.get_lw() <= 1]


def test_quantities_have_units_and_those_that_matter_come_first(study):
    found = study.quantities
    assert list(found) == ["rtt_ns", "zeros_ns", "close_ns", "lost", "gflops"]
    assert found["rtt_ns"].title == "round-trip time (µs), samples"
    assert found["gflops"].title == "speed of Linpack (Gflop/s)" and not found["gflops"].sampled
    assert "rtt_ns_p99" not in found, "the samples have it"
    assert list(study.counters) == ["context_switches", "pressure_us"], (
        "migrations are 0 in all of them"
    )
    assert study.varying == ["placement", "wait"] and study.fixed == {"size_b": "64"}


@given(
    st.sampled_from(["rtt_ns", "close_ns", "zeros_ns"]),
    st.sampled_from([*PLAIN, *PERCENT]),
    st.sets(st.sampled_from(FACTORS["placement"])),
    st.sets(st.sampled_from(FACTORS["wait"])),
)
def test_every_choice_has_the_numbers_of_its_trials(
    study, raw, value, statistic, placements, waits
):
    choice = Choice(value, statistic, {"placement": tuple(placements), "wait": tuple(waits)})
    due = {}
    for record, frame in raw:
        levels = record["levels"]
        inside = levels["placement"] in (placements or levels["placement"])
        inside &= levels["wait"] in (waits or levels["wait"])
        if inside and value in frame:
            plain = PLAIN.get(statistic)
            values = frame[value].to_numpy()
            due[record["trial"]] = (
                plain(values) if plain else np.percentile(values, PERCENT[statistic])
            )
    if not due:
        with pytest.raises(UsageError, match="no trial with these levels has"):
            part_of(study, choice)
        return
    part = part_of(study, choice)
    found = dict(zip(part.trials["trial"], part.trials[part.number], strict=True))
    assert found == pytest.approx(due)
    assert part.baseline in part.names and len(part.names) == len(set(part.names))


def test_samples_are_read_once_whatever_is_asked_of_them(folder, tmp_path):
    study = explored(shutil.copytree(folder, tmp_path / "echo"))
    told = []
    part_of(study, Choice("rtt_ns"), lambda done, total: told.append((done, total)))
    assert told[0] == (0, 30)
    for path in study.dataset.path.rglob("samples.parquet"):
        path.unlink()
    for statistic in STATISTICS:
        if statistic != "p99.9":
            part = part_of(study, Choice("rtt_ns", statistic), lambda *_: pytest.fail("read again"))
            assert len(part.trials) == 30
    for view in VIEWS.values():
        assert view(part).text
    with pytest.raises(DatasetError, match="lost its samples"):
        part_of(study, Choice("zeros_ns"))


def test_a_distribution_has_a_curve_a_condition_and_one_a_trial(study):
    part = part_of(study, Choice("rtt_ns", levels={"wait": ("spin",)}))
    view = distribution(part)
    thick, thin = lines(view.figure)
    assert [one.get_label() for one in thick] == FACTORS["placement"] and len(thin) == 15
    axis = view.figure.axes[0]
    assert axis.get_xscale() == "log" and axis.get_xlabel() == "round-trip time (µs)"
    assert "3 conditions" in view.text and "n = 5 blocks, 15 trials, 6,000 samples." in view.text
    assert "In all of them: wait spin." in view.text and "pilot" not in view.text
    clean = part.trials[part.trials["placement"] == "bare clean"]
    whole = np.concatenate([one.values for one in clean["rtt_ns"]]) / 1e3
    where = {round(y, 3): x for x, y in zip(*thick[0].get_data(), strict=True)}
    assert where[0.0] == pytest.approx(whole.min()) and where[1.0] == pytest.approx(whole.max())
    options = {"levels": {"wait": ("spin",)}, "log": False, "single": False, "tail": True}
    view = distribution(part_of(study, Choice("rtt_ns", **options)))
    assert not lines(view.figure)[1] and view.figure.axes[0].get_xscale() == "linear"
    assert view.figure.axes[0].get_yscale() == "log"
    view = distribution(part_of(study, Choice("zeros_ns")))
    assert view.figure.axes[0].get_xscale() == "linear" and "0 or below" in view.text


def test_a_metric_is_distributed_over_trials_and_gaps_are_said(study):
    part = part_of(study, Choice("gflops"))
    assert part.names == ["block", "spin"] and len(part.trials) == 10
    view = distribution(part)
    assert "20 of 30 trials with these levels have no speed of Linpack" in view.text
    assert "over trials" in view.text and "trials" in view.figure.axes[0].get_ylabel()
    title, table = view.tables[0]
    assert table.loc["spin", "middle trial, Gflop/s"] == "2.30" and "over the trials" in title
    part = part_of(study, Choice("close_ns"))
    assert part.names == FACTORS["placement"] and part.without


def test_too_few_samples_for_a_quantile_are_said(study):
    with pytest.raises(UsageError, match=r"no chosen trial has round-trip time, 99.9 %") as caught:
        part_of(study, Choice("rtt_ns", "p99.9"))
    assert "1,000" in caught.value.why


def test_the_shift_has_ratios_with_intervals_and_a_family(study):
    part = part_of(study, Choice("rtt_ns", levels={"wait": ("spin",)}))
    assert part.baseline == "bare clean"
    view = against_baseline(part)
    _, table = view.tables[0]
    assert list(table.index) == ["docker host", "docker bridge"]
    ratio = table.loc["docker bridge", table.columns[1]]
    middle, interval = ratio.replace("\N{NO-BREAK SPACE}", " ").split(" ", 1)
    assert float(middle) == pytest.approx(COSTS["docker bridge"], rel=0.05) and interval[0] == "["
    assert table.loc["docker bridge", "verdict"] == "different"
    assert "paired by block" in view.text and "decides nothing" in view.text
    labels = [text.get_text() for text in view.figure.legends[0].get_texts()]
    assert labels == ["docker host", "docker bridge"]
    ratios = against_baseline(part_of(study, Choice("rtt_ns", relative=True)))
    assert ratios.figure.axes[0].get_ylabel().startswith("ratio to bare clean")


def test_a_baseline_can_be_chosen_and_is_kept_where_it_is(study):
    key = ("docker bridge", "spin")
    assert part_of(study, Choice("rtt_ns", baseline=key)).baseline == "docker bridge + spin"
    spin = Choice("rtt_ns", levels={"wait": ("spin",)}, baseline=key)
    assert part_of(study, spin).baseline == "docker bridge"
    block = Choice("rtt_ns", levels={"wait": ("block",)}, baseline=key)
    assert part_of(study, block).baseline == "bare clean", "the plan's, as it is not there"


def test_one_condition_alone_is_shown_and_not_compared(study):
    levels = {"placement": ("docker host",), "wait": ("spin",)}
    part = part_of(study, Choice("rtt_ns", levels=levels, counter="context_switches"))
    view = against_baseline(part)
    assert view.figure is None and "nothing to compare it with" in view.text
    for name in ("Distribution", "Blocks", "Mechanism"):
        assert VIEWS[name](part).figure is not None


def test_a_metric_is_compared_where_it_has_a_logarithm(study):
    view = against_baseline(part_of(study, Choice("gflops")))
    assert view.tables[0][1].index[0] == "spin" and "over blocks" in view.text
    part = part_of(study, Choice("lost"))
    view = against_baseline(part)
    assert "have no ratio" in view.text and view.figure is None and len(view.tables[0][1]) == 6
    assert "neither drift nor odd trials" in over_blocks(part).text


def test_fewer_than_five_blocks_are_a_pilot(tmp_path):
    part = part_of(explored(write(tmp_path / "echo", blocks=1)), Choice("rtt_ns"))
    for name, view in VIEWS.items():
        assert name == "Mechanism" or "Fewer than 5 blocks: a pilot." in view(part).text
    verdicts = against_baseline(part).tables[0][1]["verdict"]
    assert set(verdicts) == {"inconclusive"}


def test_blocks_that_span_sessions_are_shown_and_not_compared(tmp_path):
    study = explored(write(tmp_path / "echo", blocks=6, sessions=2))
    part = part_of(study, Choice("rtt_ns"))
    assert study.spanned == [6] and len(part.trials) == 36
    view = against_baseline(part)
    assert "Not compared: block 6" in view.text and set(view.tables[0][1]["blocks"]) == {"5"}


def test_blocks_show_the_odd_trial_and_drift_with_its_interval(study):
    view = over_blocks(part_of(study, Choice("rtt_ns", levels={"wait": ("block",)})))
    assert "1 of 15 trials are unlike" in view.text and ODD in view.text
    title, drift = view.tables[1]
    assert title == "Drift over the blocks" and len(drift) == 3
    assert all("[" in one for one in drift["change a block [95 %]"])
    assert view.figure.axes[0].get_ylabel() == "round-trip time, median (µs)"


def test_evidence_stands_beside_the_number_of_its_trial(study):
    part = part_of(study, Choice("rtt_ns", "mean", counter="context_switches"))
    view = evidence(part)
    points = np.concatenate([one.get_offsets().data for one in view.figure.axes[0].collections])
    due = np.column_stack([study.trials["context_switches"], part.trials[part.number] / 1e3])
    assert points[np.lexsort(points.T)] == pytest.approx(due[np.lexsort(due.T)])
    title, table = view.tables[0]
    assert table.shape == (3, 6) and "need not be the cause" in view.text
    assert table.index[0] == "round-trip time, mean, µs" and "Means" in title
    assert "no mechanism evidence" in evidence(part_of(study, Choice("rtt_ns"))).text


def test_rows_lead_from_a_number_to_its_trial_and_files(study):
    part = part_of(study, Choice("rtt_ns", counter="context_switches"))
    view = VIEWS["Rows"](part)
    table = view.tables[0][1]
    assert "31 attempts, 1 failed" in view.text
    failed = table.loc[f"{FAILED}-a1"]
    number = "round-trip time, median, µs"
    assert (
        failed["status"] == "failed" and failed[number] == "" and table.loc[f"{FAILED}-a2", number]
    )
    assert "<b>" not in html.shown(view.text, view.figure, view.tables)
    assert (table["flags"] != "").sum() == 5
    for directory in table.index:
        found, text = files(study, directory)
        assert "trial.json" in found.index and "sockperf ping-pong" in text
    assert "samples.parquet" in found.index
    with pytest.raises(DatasetError, match="no directory"):
        files(study, "b99-p99-a1")


def test_of_many_conditions_a_comparison_is_chosen_and_a_figure_holds_some(tmp_path):
    sizes = [str(2**power) for power in range(8)]
    factors = {"placement": [*COSTS], "size_b": sizes}
    study = explored(write(tmp_path / "echo", blocks=2, samples=20, factors=factors))
    assert study.first_levels("rtt_ns") == {"size_b": ("1",)}
    assert part_of(study, Choice("rtt_ns", levels={"size_b": ("1",)})).names == [*COSTS]
    part = part_of(study, Choice("rtt_ns", baseline=("docker bridge", "128")))
    assert len(part.names) == 24 and len(part.drawn) == MOST
    assert part.baseline == "docker bridge + 128" in part.drawn
    view = distribution(part)
    assert len(lines(view.figure)[0]) == MOST and "12 of 24 conditions" in view.text
    assert len(view.tables[0][1]) == 24, "a table has all of them"
    assert len(against_baseline(part).tables[0][1]) == 23


def test_factors_whose_names_labkit_uses_itself(tmp_path):
    factors = {"placement": ["bare clean", "docker host"], "condition": ["a", "b"]}
    study = explored(write(tmp_path / "echo", blocks=2, factors=factors))
    part = part_of(study, Choice("rtt_ns", levels={"condition": ("b",)}))
    assert part.names == ["bare clean", "docker host"]
    only = part_of(study, Choice("rtt_ns", levels={"placement": ("docker host",)}))
    for view in VIEWS.values():
        assert view(part).text and view(only).text


def test_what_is_text_stays_text():
    table = pd.DataFrame({"<i>": ["<script>x</script>"]}, index=['"&'])
    made = html.shown("<b>", None, [("<u>", table)]) + html.alert("<s>") + html.status("<em>")
    for tag in ("<b>", "<i>", "<script>", "<u>", "<s>", "<em>"):
        assert tag not in made
    assert Source("a", "b", None).home == "b"
