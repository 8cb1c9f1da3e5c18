"""Known truths, many times over: a short form of `make simulate`, with its bounds.

Seeded, so that it says the same on every run. With few experiments a bound is widened by three
standard errors of the simulation; `make simulate` allows that only where the bound is on errors.
"""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic import run, trials

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENTS = {"A/A": 50, "power": 200, "coverage": 40}
#: Of the many scenarios of other sections, whose bounds `make simulate` checks.
FEW = 3


def imported():
    spec = importlib.util.spec_from_file_location("simulate", ROOT / "benchmarks" / "simulate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate"] = module  # its processes look its functions up there
    spec.loader.exec_module(module)
    return module


simulate = imported()


def slack(rate, experiments):
    return 3 * math.sqrt(rate * (1 - rate) / experiments)


SECTION = {name: one.rows[0].section for name, one in simulate.simulations().items()}


@pytest.mark.parametrize("name", [name for name, of in SECTION.items() if of in EXPERIMENTS])
def test_bounds_hold(name):
    rows = simulate.simulations()[name].rows
    count = EXPERIMENTS[SECTION[name]]
    outcomes = simulate.run(name, count, 2015, 0)
    for row, rate in zip(rows, outcomes[:, :, 0].mean(axis=0), strict=True):
        assert row.least - slack(row.least, count) <= rate <= row.most + slack(row.most, count), row


@pytest.mark.parametrize("section", sorted(set(SECTION.values()) - set(EXPERIMENTS)))
def test_every_other_section_runs(section):
    """Its bounds are checked on the recorded simulation, below."""
    name = next(name for name, of in SECTION.items() if of == section)
    outcomes = simulate.run(name, FEW, 2015, 0)
    assert outcomes.shape == (FEW, len(simulate.simulations()[name].rows), 2)


def test_the_bounds_are_those_that_were_asked_for():
    rows = [row for one in simulate.simulations().values() for row in one.rows]
    assert {(row.least, row.most, row.slack) for row in rows if row.section == "A/A"} == {
        (0.0, 0.05, True)
    }
    assert len([row for row in rows if row.section == "A/A"]) == 3 * 3 * 2
    assert {(row.least, row.most) for row in rows if row.section == "coverage"} <= {
        (0.93, 0.975),
        (0.93, 1.0),
    }
    assert rows[0].bounds(2000) == pytest.approx((0, 0.05 + slack(0.05, 2000)))
    assert len({row.name for row in rows}) == len(rows)


def test_experiments_are_the_same_again_and_others_with_another_seed():
    first, again, other = (simulate.run("ratio", 3, seed, 1) for seed in (1, 1, 2))
    assert (first == again).all() and (first[:, :, 1] != other[:, :, 1]).all()


def test_a_broken_bound_is_shown_and_fails(capsys, monkeypatch):
    one = simulate.simulations()["ratio"]
    outcomes = np.array([[[1.0, 0.5], [1.0, math.inf]], [[1.0, 0.25], [0.0, 0.5]]])
    found = simulate.judged(pd.DataFrame(simulate.lines(one, outcomes)))
    assert found["rate"].tolist() == [1.0, 0.5]
    assert found["holds"][0] and found["error"][0] > 0
    assert found["width"][0] == 0.375 and found["open"][1] == 0.5
    assert simulate.main(["--experiments", "20", "--only", "power, 5 %"]) == 0
    monkeypatch.setattr(simulate.Row, "bounds", lambda *_: (2.0, 3.0))
    code = simulate.main(["--experiments", "2", "--only", "coverage: noise_floor", "--seed", "1"])
    shown = capsys.readouterr()
    assert code == int("BROKEN" in shown.out) == 1
    assert "| noise_floor |    2 | 100.00 ± " in shown.out and "simulate:" in shown.err


def test_functions_have_a_table_a_scenario_with_a_column_for_each_number_of_blocks(capsys):
    simulate.main(["--experiments", "1", "--only", "functions: one outlying block"])
    shown = capsys.readouterr().out
    assert "| one outlying block (n = 1) | 5 blocks" in shown
    # Functions with the same numbers share a row.
    assert "fit_knee" in shown and "| compare, " in shown and "| --- | --- |" in shown
    with pytest.raises(SystemExit, match="2"):
        simulate.main(["--only", "nothing of this name"])


def test_the_page_of_the_documentation_is_what_was_recorded(tmp_path, monkeypatch):
    pages = simulate.neighbour("simulate_page")
    kept = pd.read_csv(pages["KEPT"])
    rows = {row.name: row.section for one in simulate.simulations().values() for row in one.rows}
    assert dict(zip(kept["name"], kept["section"], strict=True)) == rows
    assert set(pages["SECTIONS"]) == set(rows.values())
    table = simulate.judged(kept)
    assert pages["PAGE"].read_text() == pages["page"](table, simulate.as_markdown)
    assert table["holds"].all()
    record, names = pages["record"], list(rows)
    monkeypatch.setitem(record.__globals__, "KEPT", tmp_path / "kept.csv")
    assert record(kept, names).equals(kept)
    again = record(kept.iloc[[5]].assign(rate=0.25), names)
    assert again["rate"][5] == 0.25 and again.drop(index=5).equals(kept.drop(index=5))
    assert len(record(kept, names[1:])) == len(kept) - 1


def test_the_family_holds_under_drift():
    runs, rng = 200, np.random.default_rng(7)
    options = {"others": ("a", "b", "c"), "drift": 0.05}
    found = sum(bool(run(trials(rng, **options))["differs"].any()) for _ in range(runs))
    assert found / runs <= 0.05 + slack(0.05, runs)


def test_what_the_signed_rank_test_says_is_rarely_another_thing():
    runs, rng = 150, np.random.default_rng(8)
    tables = [run(trials(rng, ratio=1.01)) for _ in range(runs)]
    said = sum("disagrees" in table["note"][0] for table in tables)
    assert 0 < said < 0.2 * runs
