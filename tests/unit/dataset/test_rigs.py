"""The same study of two rigs: what differs, each effect in both, and their ratio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from small_datasets import edit, write_campaign

import labkit
from labkit.analysis.compare import compare
from labkit.dataset import Dataset
from labkit.dataset.rigs import (
    _over,
    compare_datasets,
    difference_lines,
    differences,
    over_lines,
    over_rigs,
    table_lines,
    without_ratio,
)
from labkit.errors import LabkitError, UsageError


def campaign(path: Path, **more: Any) -> Dataset:
    return labkit.load(write_campaign(path, **{"blocks": 6, **more}))


def rows(table: pd.DataFrame, kind: str) -> dict[str, Any]:
    return table[table["kind"] == kind].iloc[0].to_dict()


def test_effects_and_levels_of_two_rigs(tmp_path: Path) -> None:
    first = campaign(tmp_path / "a")
    second = campaign(tmp_path / "b", effect=1.8, times=3.0, blocks=8)
    table = compare_datasets(first, second)
    level, effect = rows(table, "level"), rows(table, "effect")
    assert (level["condition"], level["unit"]) == ("bare clean | block", "ns")
    assert level["ratio"] == pytest.approx(3, rel=0.01) and level["verdict"] == "different"
    assert effect["condition"] == "docker bridge | block"
    assert effect["baseline"] == "bare clean | block" and effect["unit"] == "1"
    assert effect["ratio"] == pytest.approx(1.2, rel=0.01)
    assert effect["ratio_low"] < 1.2 < effect["ratio_high"]
    assert effect["verdict"] == "different"
    assert (effect["first_n_blocks"], effect["second_n_blocks"]) == (6, 8)
    given = {"value": "rtt_ns_median", "condition": "placement"}
    alone = compare(second.ok, baseline="bare clean", **given).iloc[0]
    for name in ("estimate", "low", "high"):
        assert effect[f"second_{name}"] == pytest.approx(alone[name])


def test_the_other_way_round_is_the_inverse(tmp_path: Path) -> None:
    data = [campaign(tmp_path / name, effect=x) for name, x in (("a", 1.5), ("b", 1.6))]
    there, back = (rows(compare_datasets(*pair), "effect") for pair in (data, data[::-1]))
    assert there["ratio"] == pytest.approx(1 / back["ratio"])
    assert there["ratio_low"] == pytest.approx(1 / back["ratio_high"])
    assert there["first_low"] == pytest.approx(back["second_low"])
    assert there["p_value"] == pytest.approx(back["p_value"])


def test_a_dataset_and_itself_do_not_differ(tmp_path: Path) -> None:
    data = campaign(tmp_path / "a")
    table = compare_datasets(data, data)
    assert table["ratio"].tolist() == pytest.approx([1, 1])
    assert not table["verdict"].str.startswith("different").any()
    assert difference_lines(differences(data, data)) == ["rig, settings and versions are the same"]


def test_a_condition_of_one_alone_is_said_to_be_so(tmp_path: Path) -> None:
    first, second = campaign(tmp_path / "a"), campaign(tmp_path / "b")
    for path in (second.path / "trials").glob("*-p02-*/trial.json"):
        edit(path, "docker bridge", "docker host")
    table = compare_datasets(first, labkit.load(second.path))
    effects = table[table["kind"] == "effect"].set_index("condition")
    assert effects["verdict"].tolist() == ["not in both"] * 2
    assert np.isfinite(effects.loc["docker bridge | block", "first_estimate"])
    assert np.isfinite(effects.loc["docker host | block", "second_estimate"])
    assert effects["ratio"].isna().all()
    assert sum("not measured" in line for line in table_lines(table)) == 2


@pytest.mark.parametrize("last", [False, True], ids=["the first lacks it", "the last lacks it"])
def test_a_baseline_that_one_lacks_is_that_of_the_others(tmp_path: Path, last: bool) -> None:
    whole, lacking = campaign(tmp_path / "a"), campaign(tmp_path / "b")
    for path in (lacking.path / "trials").glob("*-p01-*/trial.json"):
        edit(path, '"status": "ok"', '"status": "failed"')
    lacking = labkit.load(lacking.path)
    data = [whole, whole, lacking] if last else [lacking, whole, whole]
    over, _ = over_rigs(data, values=["rtt_ns_median"])
    assert len(over) == 1 and over["n_rigs"].tolist() == [2]
    table = compare_datasets(*data[1:] if last else data[:2], values=["rtt_ns_median"])
    assert table["kind"].tolist() == ["level", "effect"]


def test_without_a_baseline_in_its_cell_a_condition_is_a_level(tmp_path: Path) -> None:
    data = []
    for name in ("a", "b"):
        write_campaign(tmp_path / name, blocks=6)
        for path in (tmp_path / name / "trials").glob("*-p02-*/trial.json"):
            edit(path, '"wait": "block"', '"wait": "spin"')
        data.append(labkit.load(tmp_path / name))
    table = compare_datasets(*data)
    assert table["kind"].tolist() == ["level", "level"]
    assert table["condition"].tolist()[1] == "docker bridge | spin"


def test_a_campaign_whose_blocks_all_span_sessions_has_nothing_to_compare(tmp_path: Path) -> None:
    first, second = campaign(tmp_path / "a"), campaign(tmp_path / "b")
    for path in (second.path / "trials").glob("*-p02-*/trial.json"):
        edit(path, '"session": 1', '"session": 2')
    table = compare_datasets(first, labkit.load(second.path))
    assert set(table["verdict"]) == {"not in both"} and set(table["second_n_blocks"]) == {0}
    assert set(table["first_n_blocks"]) == {6}


def test_pilots_decide_nothing_and_say_so(tmp_path: Path) -> None:
    first = campaign(tmp_path / "a", blocks=1)
    second = campaign(tmp_path / "b", blocks=1, effect=9.0)
    table = compare_datasets(first, second)
    assert set(table["verdict"]) == {"undecided"}
    assert any("pilot" in line for line in table_lines(table))
    assert sum(line.count("no interval") for line in table_lines(table)) == 2 * 3


def test_what_differs_comes_in_the_order_in_which_it_matters(tmp_path: Path) -> None:
    hosts = {"sut": {"aaa": 1, "cpu": {"count": 64}, "kernel": {"release": "6.12"}}}
    other = {"hosts": hosts, "labkit": "9", "settings": {"messages": 5}, "order": [[1]]}
    first = campaign(tmp_path / "a")
    second = campaign(tmp_path / "b", identity=other)
    found = differences(first, second)
    assert found["what"].tolist() == [
        "settings.messages",
        "labkit",
        "hosts.sut.cpu.count",
        "hosts.sut.cpu.model",
        "hosts.sut.kernel.release",
        "hosts.sut.aaa",
    ]
    assert difference_lines(found, 1)[1:] == [
        "  settings.messages: 4 | 5",
        "  ... and 5 more differences (--all)",
    ]
    assert len(difference_lines(found)) == 7


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    first, other = campaign(tmp_path / "a"), campaign(tmp_path / "b", study="other")
    with pytest.raises(UsageError, match="different studies") as caught:
        compare_datasets(first, other)
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="not measured in all: nosuch") as caught:
        compare_datasets(first, first, values=["nosuch"])
    assert "rtt_ns_median" in caught.value.remedy
    for path in (other.path / "trials").glob("*/trial.json"):
        edit(path, "rtt_ns_median", "gflops")
    rates = labkit.load(other.path)
    with pytest.raises(UsageError, match="no median of samples") as caught:
        compare_datasets(rates, rates)
    assert "gflops" in caught.value.remedy
    assert set(compare_datasets(rates, rates, values=["gflops"])["value"]) == {"gflops"}


def test_medians_that_may_be_zero_are_left_out_and_named(tmp_path: Path) -> None:
    both = [campaign(tmp_path / name) for name in ("a", "b")]
    for one, late in zip(both, (5.0, 0.0), strict=True):
        more = f'"late_ns_median": {late}, "rtt_ns_median"'
        for path in (one.path / "trials").glob("*/trial.json"):
            edit(path, '"rtt_ns_median"', more)
    both = [labkit.load(one.path) for one in both]
    assert without_ratio(*both) == ["late_ns_median"] and without_ratio(both[0]) == []
    assert set(compare_datasets(*both)["value"]) == {"rtt_ns_median"}
    with pytest.raises(LabkitError, match="no ratio"):
        compare_datasets(*both, values=["late_ns_median"])


def rigs(folder: Path, effects: list[float], blocks: int = 6) -> list[Dataset]:
    return [
        campaign(folder / str(number), effect=effect, blocks=blocks)
        for number, effect in enumerate(effects)
    ]


def test_an_effect_over_rigs_has_the_rig_as_its_unit(tmp_path: Path) -> None:
    effects = [1.4, 1.5, 1.6, 1.7]
    over, each = over_rigs(rigs(tmp_path, effects))
    (row,) = over.to_dict("records")
    assert row["n_rigs"] == 4 and row["baseline"] == "bare clean | block"
    assert row["estimate"] == pytest.approx(np.exp(np.mean(np.log(effects))), rel=0.01)
    # A t interval of four means, whatever the number of blocks.
    half = 3.182 * np.std(np.log(effects), ddof=1) / 2
    assert np.log(row["high"] / row["estimate"]) == pytest.approx(half, rel=0.05)
    assert row["prediction_low"] < 1.4 and row["prediction_high"] > 1.7
    assert row["p_heterogeneity"] < 1e-6 and row["i2"] > 0.9 and row["q"] > 3
    assert each["estimate"].tolist() == pytest.approx(effects, rel=0.01)
    assert each["n_blocks"].tolist() == [6] * 4
    assert row["verdict"] == "different"
    text = "\n".join(over_lines(over))
    assert "yes, Q" in text and "I2 100%" in text


def test_blocks_of_one_rig_are_not_rigs(tmp_path: Path) -> None:
    over, _ = over_rigs(rigs(tmp_path, [1.5, 1.1], blocks=20))
    (row,) = over.to_dict("records")
    # 40 blocks that agree within each rig, and still two rigs only.
    assert row["verdict"] == "undecided" and row["low"] < 0.5
    # Nor where they happen to agree.
    (row,) = over_rigs(rigs(tmp_path / "alike", [1.5, 1.501]))[0].to_dict("records")
    assert row["verdict"] == "undecided"
    assert np.isnan(row["prediction_low"])
    assert "needs 3 rigs" in "\n".join(over_lines(over))


def test_a_rig_with_one_block_is_left_out_with_a_note(tmp_path: Path) -> None:
    data = [*rigs(tmp_path, [1.5, 1.5, 1.5]), campaign(tmp_path / "pilot", blocks=1, effect=9.0)]
    (row,) = over_rigs(data)[0].to_dict("records")
    assert row["n_rigs"] == 3 and "left out" in row["note"]
    assert "1 of these: left out: 1 rig with fewer than 2 blocks" in "\n".join(
        over_lines(over_rigs(data)[0])
    )
    assert row["estimate"] == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("tau", [0.0, 0.05])
def test_intervals_over_rigs_cover_what_they_say(tau: float) -> None:
    """With 8 rigs of 6 blocks each; the bounds are four standard errors of 1,500 experiments."""
    rng = np.random.default_rng(7)
    covered = predicted = alarms = 0
    for _ in range(1500):
        truths = rng.normal(0.1, tau, 9)
        logs = [rng.normal(truth, 0.04, 6) for truth in truths[:8]]
        row = _over(logs, 0.02)
        half = 2.365 * row["error"]
        covered += abs(np.log(row["estimate"]) - 0.1) < half
        predicted += row["prediction_low"] < np.exp(truths[8]) < row["prediction_high"]
        alarms += row["p_heterogeneity"] < 0.05
    assert abs(covered / 1500 - 0.95) < 0.0225
    assert predicted / 1500 > 0.9
    assert (alarms / 1500 < 0.075) if tau == 0 else (alarms / 1500 > 0.9)


def test_effects_over_rigs_are_drawn_for_few_rigs_and_for_many(tmp_path: Path) -> None:
    from labkit.plots import rig_plot

    over, each = over_rigs(rigs(tmp_path, [1.4, 1.5, 1.6]))
    axis = rig_plot(over, each).axes[0]
    labels = [text.get_text() for text in axis.get_yticklabels()]
    assert labels[0].endswith("3 rigs") and len(labels) == 4
    many = pd.concat([each.assign(rig=f"{n} {m}") for n in range(20) for m in ("a", "b")])
    labels = rig_plot(over, many).axes[0].get_yticklabels()
    assert len(labels) == 1
