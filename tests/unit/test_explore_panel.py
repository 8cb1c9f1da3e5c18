"""The explorer's widgets, set as a browser sets them: what they show follows, and errors show."""

from __future__ import annotations

import shutil

import matplotlib
import nbformat
import pytest
from explore_campaigns import FACTORS, FAILED, write

from labkit import load
from labkit.explore import explore, panel
from labkit.explore.views import VIEWS
from labkit.paths import project
from labkit.report.running import execute

matplotlib.use("agg")
IMAGE = 'src="data:image/png;base64,'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore")
    write(folder / "echo")
    write(folder / "pilot", blocks=2, factors={"placement": ["bare clean"]}, samples=50)
    return folder


@pytest.fixture
def explorer(folder):
    return explore(folder)


def page(explorer):
    """Return what the tab in sight shows."""
    return list(explorer.pages.values())[explorer.tabs.selected_index].value


def go_to(explorer, name):
    explorer.tabs.selected_index = list(VIEWS).index(name)
    return page(explorer)


def test_it_opens_on_a_view(explorer):
    assert explorer.study.value == "echo" and explorer.value.value == "rtt_ns"
    assert explorer.tabs.titles == tuple(VIEWS)
    assert IMAGE in page(explorer) and 'alt="Distribution of round-trip time' in page(explorer)
    assert "alert" not in explorer.said.value
    bundle = explorer._repr_mimebundle_()
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in bundle


@pytest.mark.parametrize("name", VIEWS)
def test_every_control_changes_what_is_shown(explorer, name):
    go_to(explorer, name)
    own = {
        "Distribution": [
            (explorer.log, False),
            (explorer.tail, True),
            (explorer.single, False),
            (explorer.value, "close_ns"),
            (explorer.value, "gflops"),
        ],
        "Shift": [(explorer.relative, True), (explorer.baseline, ("docker bridge", "spin"))],
        "Mechanism": [(explorer.counter, "pressure_us")],
    }
    shared = [
        (explorer.levels["placement"], ("docker host", "docker bridge")),
        (explorer.statistic, "p95"),
        (explorer.study, "pilot"),
    ]
    if name == "Distribution":
        shared.insert(0, (explorer.value, "rtt_ns"))
    for control, value in [*own.get(name, []), *shared]:
        before = page(explorer)
        control.value = value
        assert "alert" not in explorer.said.value, explorer.said.value
        assert page(explorer) != before, f"{control.description} to {value}"


def test_a_tab_is_drawn_when_it_is_looked_at(explorer):
    assert explorer.pages["Shift"].value == ""
    assert IMAGE in go_to(explorer, "Shift")
    first = explorer.pages["Distribution"].value
    explorer.statistic.value = "mean"
    assert explorer.pages["Distribution"].value == first, "not in sight"
    assert go_to(explorer, "Distribution") != first


def test_levels_and_baselines_follow_each_other(explorer):
    assert [name for name, _ in explorer.baseline.options][:2] == [
        "bare clean + block",
        "bare clean + spin",
    ]
    explorer.baseline.value = ("docker host", "spin")
    explorer.levels["wait"].value = ("spin",)
    assert explorer.baseline.value == ("docker host", "spin") and explorer.baseline.label == (
        "docker host"
    )
    explorer.levels["wait"].value = ("block",)
    assert explorer.baseline.value == ("bare clean", "block")
    assert not explorer.statistic.disabled
    explorer.value.value = "gflops"
    assert explorer.statistic.disabled, "a trial has one number of it"
    explorer.levels["placement"].value = ("docker bridge",)
    explorer.value.value = "lost"
    assert explorer.levels["placement"].value == ("docker bridge",), "kept where they have it"


def test_what_cannot_be_shown_says_why_and_the_next_choice_works(explorer):
    explorer.statistic.value = "p99.9"
    assert 'role="alert"' in explorer.said.value and "1,000" in explorer.said.value
    assert page(explorer) == "", "nothing that no longer holds stands beside it"
    explorer.statistic.value = "median"
    assert "alert" not in explorer.said.value and IMAGE in page(explorer)
    explorer.value.value = "close_ns"
    explorer.levels["wait"].value = ("block",)
    assert "no trial with these levels has" in explorer.said.value
    assert explorer.baseline.options == ()
    explorer.levels["wait"].value = ()
    assert IMAGE in page(explorer) and explorer.baseline.value is not None
    explorer.value.value = "lost"
    go_to(explorer, "Shift")
    assert "have no ratio" in page(explorer)
    assert IMAGE in go_to(explorer, "Blocks")


def test_one_study_that_cannot_be_read_leaves_the_others(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "pilot" / "plan.json").write_text("{")
    explorer = explore(copy)
    explorer.study.value = "pilot"
    assert "damaged" in explorer.said.value and "plan.json" in explorer.said.value
    assert explorer.value.options == () and page(explorer) == ""
    go_to(explorer, "Shift")
    assert "damaged" in explorer.said.value, "it is still so"
    explorer.study.value = "echo"
    assert IMAGE in page(explorer) and "alert" not in explorer.said.value


def test_an_error_that_nobody_foresaw_is_shown_and_raised(explorer, monkeypatch):
    def broken(part):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setitem(panel.VIEWS, "Distribution", broken)
    with pytest.raises(ZeroDivisionError):
        explorer.statistic.value = "mean"
    assert "on purpose" in explorer.said.value and "please report" in explorer.said.value
    monkeypatch.undo()
    explorer.statistic.value = "max"
    assert IMAGE in page(explorer) and "alert" not in explorer.said.value


def test_rows_list_the_files_of_a_trial(explorer):
    assert FAILED in go_to(explorer, "Rows")
    assert "b01-p01-a1" in explorer.files.value and "samples.parquet" in explorer.files.value
    explorer.trial.value = f"{FAILED}-a1"
    assert "tool.out" in explorer.files.value and "samples.parquet" not in explorer.files.value
    explorer.levels["wait"].value = ("spin",)
    assert explorer.trial.value == f"{FAILED}-a1", "it is still among them"


def test_progress_is_said_while_samples_are_read(folder):
    heard = []
    explorer = explore(load(folder / "echo"))
    explorer.said.observe(lambda change: heard.append(change["new"]), "value")
    explorer.value.value = "zeros_ns"
    assert any("Reading and sorting samples: 0 of 30 trials." in one for one in heard)
    assert "Reading" not in explorer.said.value
    assert list(explorer.levels) == ["placement", "wait"] == list(FACTORS)[:2]


def test_the_notebook_opens_it_on_the_reference(tmp_path):
    done = execute(project("notebooks/explore.ipynb"), tmp_path / "out.ipynb")
    found = nbformat.read(done, as_version=4)
    outputs = [output for cell in found.cells for output in cell.get("outputs", [])]
    assert "application/vnd.jupyter.widget-view+json" in outputs[-1]["data"]
    state = found.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    values = [str(one["state"].get("value", "")) for one in state.values()]
    assert any(IMAGE in one for one in values) and not any("alert" in one for one in values)


def test_every_study_of_the_reference_can_be_explored():
    explorer = explore("data/reference")
    for name in explorer.study.options:
        explorer.study.value = name[1]
        # One of samples, and one whose trials have one number each.
        for tab in VIEWS if name[1] in ("affinity-spinning", "interference") else ["Distribution"]:
            shown = go_to(explorer, tab)
            assert "alert" not in explorer.said.value, explorer.said.value
            assert shown and (tab == "Rows" or IMAGE in shown)
        explorer.tabs.selected_index = 0
