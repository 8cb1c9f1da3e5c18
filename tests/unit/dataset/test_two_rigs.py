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
from labkit.dataset.two_rigs import (
    compare_datasets,
    difference_lines,
    differences,
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
    given = {"value": "rtt_ns_median", "condition": "placement", "block": "block"}
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


def test_pilots_decide_nothing_and_say_so(tmp_path: Path) -> None:
    first = campaign(tmp_path / "a", blocks=1)
    second = campaign(tmp_path / "b", blocks=1, effect=9.0)
    table = compare_datasets(first, second)
    assert set(table["verdict"]) == {"undecided"}
    assert any("pilot" in line for line in table_lines(table))
    assert sum(line.count("one block") for line in table_lines(table)) == 2 * 3


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
    with pytest.raises(UsageError, match="two studies") as caught:
        compare_datasets(first, other)
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="not measured in both: nosuch") as caught:
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
