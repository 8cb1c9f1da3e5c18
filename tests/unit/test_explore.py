"""The explorer on the reference and on small campaigns: choice in; words, figure and tables out."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explore_campaigns import COSTS, FACTORS, FAILED, ODD, write

from labkit import load
from labkit.errors import DatasetError, UsageError
from labkit.explore import (
    MOST_CONDITIONS,
    STATISTICS,
    VIEWS,
    Choice,
    Selection,
    Study,
    attempts,
    distribution,
    explore,
    mechanism,
    over_blocks,
    quantile_shift,
    render,
    text_of,
)
from labkit.paths import project

IMAGE = 'src="data:image/svg+xml,'
REFERENCE = sorted(path.parent.name for path in project("data/reference").glob("*/plan.json"))
#: What numpy calls a statistic of a trial.
NUMPY = {"median": np.median, "mean": np.mean, "min": np.min, "max": np.max}


def _study(path: Path) -> Study:
    return Study(load(path))


def _select(study: Study, quantity: str, statistic: str = "median", **options: Any) -> Selection:
    return study.select(Choice(quantity, statistic, **options))


def _text(view: Any) -> str:
    return " ".join(view.sentences)


def _tables(view: Any) -> list[Any]:
    return list(view.tables.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("explore") / "echo")


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return _study(folder)


@pytest.fixture(scope="module")
def affinity() -> Study:
    return _study(project("data/reference/affinity-spinning"))


@pytest.mark.parametrize("name", REFERENCE)
def test_every_study_of_the_reference_can_be_explored(name: str) -> None:
    study = _study(project("data/reference") / name)
    quantity = next(iter(study.quantities))
    levels = study.first_levels(quantity)
    for view in VIEWS if name in ("affinity-spinning", "interference") else ["Distribution"]:
        shown = render(study, view, Choice(quantity, levels=levels))
        assert "alert" not in shown and (view == "Rows" or IMAGE in shown)


@pytest.mark.parametrize("statistic", [*NUMPY, "p99"])
def test_a_number_is_a_statistic_of_the_samples(affinity: Study, statistic: str) -> None:
    levels = {"wait": ("spin",), "affinity": ("split",), "capture": ("off",)}
    selection = _select(affinity, "rtt_ns", statistic, levels=levels)
    ok = [one for one in affinity.campaign.records if one["status"] == "ok"]
    fixed = {name: of[0] for name, of in levels.items()}
    trials = {one["trial"] for one in ok if fixed.items() <= one["levels"].items()}
    assert set(selection.trials["trial"]) == trials
    samples = affinity.campaign.samples(["rtt_ns"]).groupby("trial", observed=True)["rtt_ns"]
    due = samples.agg(NUMPY[statistic]) if statistic in NUMPY else samples.quantile(0.99)
    numbers = selection.trials.set_index("trial")[selection.label]
    assert numbers.to_numpy() == pytest.approx(due[numbers.index].to_numpy() / 1000)


def test_campaigns_are_found_in_folders_and_loaded(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "all" / "echo" / "one")
    shutil.copytree(folder, tmp_path / "all" / "other")
    studies = {
        tmp_path / "all": ("all/echo/one", "all/other"),
        tmp_path / "all" / "other": ("other",),
        load(folder): ("echo",),
        "data/reference": tuple(f"reference/{name}" for name in REFERENCE),
    }
    for where, names in studies.items():
        assert explore(where).children[0].options == names


def test_an_error_where_there_is_no_campaign(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no campaign here"):
        explore(tmp_path)


def test_a_campaign_without_a_successful_trial_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "echo", blocks=2)
    for trial in (path / "trials").iterdir():
        if trial.name != f"{FAILED}-a1":
            shutil.rmtree(trial)
    with pytest.raises(DatasetError, match="no trial of this campaign succeeded") as caught:
        _study(path)
    assert "it <b>broke</b>" in caught.value.why
    shutil.rmtree(path / "trials")
    with pytest.raises(DatasetError, match="nothing was measured"):
        _study(path)


def test_quantities_have_units_and_those_that_matter_come_first(study: Study) -> None:
    samples, metrics = ["rtt_ns", "close_ns", "zeros_ns"], ["gflops", "lost"]
    assert study.quantities[:5] == [*samples, *metrics]
    assert text_of("rtt_ns", "p99") == "round-trip time, p99 (µs)"
    assert text_of("gflops") == "speed of Linpack (Gflop/s)"
    assert study.counters == ["context_switches", "pressure_us", "lost", "gflops"], (
        "migrations are all 0"
    )
    assert list(study.factors) == ["placement", "wait"]


def test_samples_are_read_once(folder: Path, tmp_path: Path) -> None:
    study = _study(Path(shutil.copytree(folder, tmp_path / "echo")))
    _select(study, "rtt_ns")
    for path in study.campaign.path.rglob("samples.parquet"):
        path.unlink()
    for statistic in STATISTICS:
        if statistic != "p99.9":
            selection = _select(study, "rtt_ns", statistic)
            assert len(selection.trials) == 30
    for view in VIEWS.values():
        assert view(selection).sentences
    with pytest.raises(DatasetError, match="lost its samples"):
        _select(study, "zeros_ns")


def test_a_distribution_has_curves_of_conditions_and_trials(study: Study) -> None:
    levels = {"wait": ("spin",)}
    view = distribution(_select(study, "rtt_ns", levels=levels))
    assert view.figure is not None
    axis = view.figure.axes[0]
    thick = [line for line in axis.get_lines() if line.get_lw() > 1]
    assert [line.get_label() for line in thick] == FACTORS["placement"]
    assert len(axis.get_lines()) - len(thick) == 15
    assert axis.get_xscale() == "log" and axis.get_xlabel() == "round-trip time (µs)"
    assert "n = 5 blocks, 15 trials, 6,000 samples." in _text(view)
    assert "In all of them: wait spin." in _text(view) and "pilot" not in _text(view)
    options = {"levels": levels, "log": False, "tail": True}
    view = distribution(_select(study, "rtt_ns", **options))
    assert view.figure is not None
    axis = view.figure.axes[0]
    assert (axis.get_xscale(), axis.get_yscale()) == ("linear", "log")
    assert "0 or below" in _text(distribution(_select(study, "zeros_ns")))


def test_a_metric_is_distributed_over_trials_and_gaps_are_counted(study: Study) -> None:
    selection = _select(study, "gflops")
    assert selection.names == ["block", "spin"] and len(selection.trials) == 10
    view = distribution(selection)
    assert "20 of 30 trials with these levels have no speed of Linpack" in _text(view)
    assert view.figure is not None and "over trials" in _text(view)
    assert _tables(view)[0].loc["spin", "middle trial"] == "2.30"


def test_errors_say_why_nothing_can_be_shown(study: Study) -> None:
    with pytest.raises(
        UsageError, match=r"round-trip time, p99.9 \(µs\), which takes 1,000 samples"
    ):
        _select(study, "rtt_ns", "p99.9")
    levels = {"wait": ("block",)}
    assert "no trial with these levels has" in render(
        study, "Blocks", Choice("close_ns", levels=levels)
    )
    assert 'role="alert"' in render(study, "Shift", Choice("rtt_ns", "p99.9"))


def test_the_shift_has_ratios_with_intervals(study: Study) -> None:
    selection = _select(study, "rtt_ns", levels={"wait": ("spin",)})
    assert selection.baseline == "bare clean"
    view = quantile_shift(selection)
    table = _tables(view)[0]
    assert list(table.index) == ["docker host", "docker bridge"]
    ratio = table.loc["docker bridge", table.columns[1]].replace("\N{NO-BREAK SPACE}", " ")
    assert float(ratio.partition("x")[0]) == pytest.approx(COSTS["docker bridge"], rel=0.05)
    assert "[" in ratio and table.loc["docker bridge", "answer"] == "slower"
    assert "paired by block" in _text(view) and "decides nothing" in _text(view)
    assert view.figure is not None
    labels = [text.get_text() for text in view.figure.legends[0].get_texts()]
    assert labels == ["docker host", "docker bridge"]


def test_a_chosen_baseline_is_kept_if_it_is_selected(study: Study) -> None:
    chosen = "docker bridge + spin"
    assert _select(study, "rtt_ns", baseline=chosen).baseline == chosen
    spin = _select(study, "rtt_ns", levels={"wait": ("spin",)}, baseline=chosen)
    assert spin.baseline == "docker bridge"
    block = _select(study, "rtt_ns", levels={"wait": ("block",)}, baseline=chosen)
    assert block.baseline == "bare clean", "the plan's, as the chosen one is not there"


def test_numbers_without_a_ratio_are_shown_and_not_compared(study: Study) -> None:
    levels = {"placement": ("docker host",), "wait": ("spin",)}
    selection = _select(study, "rtt_ns", levels=levels)
    view = quantile_shift(selection)
    assert view.figure is None and "nothing to compare it with" in _text(view)
    for name in ("Distribution", "Blocks", "Mechanism"):
        assert VIEWS[name](selection).figure is not None
    view = quantile_shift(_select(study, "lost"))
    assert "have no ratio" in _text(view) and view.figure is None and len(_tables(view)[0]) == 6
    assert "neither drift nor odd trials" in _text(over_blocks(_select(study, "lost")))
    assert _tables(quantile_shift(_select(study, "gflops")))[0].index[0] == "spin"


def test_fewer_than_five_blocks_are_a_pilot(tmp_path: Path) -> None:
    selection = _select(_study(write(tmp_path / "echo", blocks=1)), "rtt_ns")
    for name, view in VIEWS.items():
        assert name == "Rows" or "Fewer than 5 blocks: a pilot." in _text(view(selection))
    assert set(_tables(quantile_shift(selection))[0]["answer"]) == {"cannot tell yet"}


def test_blocks_that_span_sessions_are_shown_and_not_compared(tmp_path: Path) -> None:
    study = _study(write(tmp_path / "echo", blocks=6, sessions=2))
    selection = _select(study, "rtt_ns")
    assert study.spanned == [6] and len(selection.trials) == 36
    view = quantile_shift(selection)
    assert "Block 6 spans sessions" in _text(view) and set(_tables(view)[0]["blocks"]) == {"5"}


def test_blocks_show_the_odd_trial_and_drift_with_its_interval(study: Study) -> None:
    view = over_blocks(_select(study, "rtt_ns", levels={"wait": ("block",)}))
    assert "1 of 15 trials are unlike" in _text(view) and ODD in _text(view)
    title, drift = list(view.tables.items())[1]
    assert title == "Drift over the blocks" and len(drift) == 3
    assert all("[" in one for one in drift["change a block [95 %]"])
    assert view.figure is not None
    assert view.figure.axes[0].get_ylabel() == "round-trip time, median (µs)"


def test_a_counter_is_plotted_for_each_trial(study: Study) -> None:
    selection = _select(study, "rtt_ns", "mean", counter="context_switches")
    view = mechanism(selection)
    assert view.figure is not None
    points = np.concatenate([one.get_offsets().data for one in view.figure.axes[0].collections])
    due = np.column_stack([study.trials["context_switches"], selection.trials[selection.label]])
    assert points[np.lexsort(points.T)] == pytest.approx(due[np.lexsort(due.T)])
    title, table = next(iter(view.tables.items()))
    assert table.shape == (5, 6) and "Means" in title
    assert table.index[0] == "round-trip time, mean (µs)" and "need not be the cause" in _text(view)


def test_rows_lead_from_a_number_to_its_trial(study: Study) -> None:
    view = attempts(_select(study, "rtt_ns", counter="context_switches"))
    table = _tables(view)[0]
    assert "31 attempts, 1 failed" in _text(view) and str(study.campaign.path) in _text(view)
    failed, number = table.loc[f"{FAILED}-a1"], "round-trip time, median (µs)"
    assert failed["status"] == "failed" and failed[number] == ""
    assert table.loc[f"{FAILED}-a2", number] and (table["flags"] != "").sum() == 5
    assert all((study.campaign.path / "trials" / name).is_dir() for name in table.index)
    shown = render(study, "Rows", Choice("rtt_ns"))
    assert "<b>broke" not in shown and "&lt;b&gt;broke" in shown


def test_many_conditions_are_limited_at_first_and_in_figures(tmp_path: Path) -> None:
    factors = {"placement": [*COSTS], "size_b": [str(2**power) for power in range(8)]}
    study = _study(write(tmp_path / "echo", blocks=2, samples=20, factors=factors))
    assert study.first_levels("rtt_ns") == {"size_b": ("1",)}
    selection = _select(study, "rtt_ns", baseline="docker bridge + 128")
    assert len(selection.names) == 24 and len(selection.drawn) == MOST_CONDITIONS
    assert selection.baseline == "docker bridge + 128" in selection.drawn
    view = distribution(selection)
    assert "12 of 24 conditions" in _text(view)
    assert len(_tables(view)[0]) == 24, "a table has all of them"
    assert len(_tables(quantile_shift(selection))[0]) == 23


def test_factors_with_names_that_labkit_uses_itself(tmp_path: Path) -> None:
    factors = {"placement": ["bare clean", "docker host"], "condition": ["a", "b"]}
    study = _study(write(tmp_path / "echo", blocks=2, factors=factors))
    for levels in ({"condition": ("b",)}, {"placement": ("docker host",)}):
        selection = _select(study, "rtt_ns", levels=levels)
        assert len(selection.names) == 2
        for view in VIEWS.values():
            assert view(selection).sentences


def test_figures_and_tables_are_accessible(study: Study) -> None:
    shown = render(study, "Blocks", Choice("rtt_ns"))
    text = re.search("<p>(.*?)</p>", shown)
    assert text and f'alt="Figure 1: {text[1]}' in shown.replace(
        'alt="Figure 1. ', 'alt="Figure 1: '
    )
    assert shown.count("<caption>") == shown.count("<table") == 2
    assert re.findall("<th(?![^>]*scope=)[^e>]*>", shown) == []


def _controls(box: Any) -> dict[str, Any]:
    controls = {} if not hasattr(box, "description") else {box.description: box}
    for child in getattr(box, "children", ()):
        controls |= _controls(child)
    return controls


def test_the_widgets_follow_the_study_and_an_unreadable_one_leaves_the_others(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "a")
    write(tmp_path / "b", blocks=2, factors={"placement": ["bare clean"]}, samples=50)
    (Path(shutil.copytree(folder, tmp_path / "c")) / "plan.json").write_text("{")
    box = explore(tmp_path)
    names = ["study", "view", "quantity", "statistic", "baseline", "counter"]
    controls = _controls(box)
    assert [*controls][:6] == names and {"placement", "wait"} <= set(controls)
    assert controls["view"].options == tuple(VIEWS)
    controls["study"].value = f"{tmp_path.name}/b"
    assert "placement" not in _controls(box)
    controls["study"].value = f"{tmp_path.name}/c"
    assert "damaged" in box.children[1].children[0].value
    controls["study"].value = f"{tmp_path.name}/a"
    assert "placement" in _controls(box)
