"""The studies of this clone: campaigns in turn, and the report of what there is."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import committed
import nbformat
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_datasets import plan as small_plan
from small_datasets import record, write_campaign

from labkit import studies
from labkit.campaign.store import Store, write_json
from labkit.chosen import choose
from labkit.errors import LabkitError, Rebooted, TimeOver, UsageError
from labkit.paths import PROGRESS, project
from labkit.process import UNTIL, seconds_left


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_parameters_of_a_profile_and_the_command_line() -> None:
    runs = studies.plan_runs(["10-affinity-spinning", "rps"], "tiny", [], {"blocks": 3})
    assert [(one.study, one.called) for one in runs] == [
        *(("affinity-spinning", "tiny"), ("rps", "tiny"))
    ]
    assert runs[0].parameters["blocks"] == 3 and runs[0].parameters["messages"] == 1000
    assert runs[0].folder == project("data/local/tiny/affinity-spinning")


def test_a_study_is_executed_again_where_a_host_has_rebooted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    said: list[str] = []

    def execute(notebook: Path, output: Path, parameters: dict[str, Any], **more: Any) -> None:
        seen.append(parameters)
        if len(seen) < 3:
            raise Rebooted("host sut has rebooted")

    monkeypatch.setattr(studies.notebooks, "execute", execute)
    given = {"blocks": 2, "new": True}
    studies._execute(tmp_path / "a.ipynb", tmp_path / "b.ipynb", given, 60, said.append)
    # The campaign is resumed, not begun anew.
    assert seen == [given, {"blocks": 2}, {"blocks": 2}]
    assert len(said) == 2 and "host sut has rebooted" in said[0]
    seen.clear()
    monkeypatch.setattr(studies, "_REBOOTS", 2)
    with pytest.raises(Rebooted):
        studies._execute(tmp_path / "a.ipynb", tmp_path / "b.ipynb", given, 60, said.append)


def test_what_is_left_of_a_campaign_has_not_failed(tmp_path: Path) -> None:
    """An attempt that failed before one that did not is no failed trial."""
    path = write_campaign(tmp_path / "echo" / "20260101-000000-0", blocks=3)
    write_json(path / "plan.json", small_plan() | {"order": [[0, 1]] * 3})
    studies.check_complete(tmp_path / "echo")
    write_json(path / "plan.json", small_plan() | {"order": [[0, 1]] * 5})
    error = {"type": "LabkitError", "what": "the CPUs were moved", "why": "", "evidence": {}}
    Store(path).add(record(1, attempt=2, status="failed", error=error), {}, {})
    with pytest.raises(LabkitError) as caught:
        studies.check_complete(tmp_path / "echo")
    assert caught.value.what == "of 10 planned trials 4 are left" and caught.value.why == ""
    Store(path).add(record(4, status="failed", error=error), {}, {})
    with pytest.raises(LabkitError, match="of 10 planned trials 1 failed and 3 are left") as caught:
        studies.check_complete(tmp_path / "echo")
    assert caught.value.why == "the CPUs were moved"


def test_a_file_replaces_parameters_of_the_profile(tmp_path: Path) -> None:
    low = file(tmp_path, "low.yaml", "messages: 7\nseed: 1\n")
    high = file(tmp_path, "high.yaml", "seed: 2\ndata: data/elsewhere\n")
    runs = studies.plan_runs(["affinity-spinning", "cpu-quota"], "tiny", [high], {"seed": 3})
    assert [one.folder for one in runs] == [
        project(f"data/elsewhere/{name}") for name in ("affinity-spinning", "cpu-quota")
    ]
    runs = studies.plan_runs(["affinity-spinning"], "tiny", [low, high], {"size": 9})
    assert [one.called for one in runs] == ["low", "high"]
    assert [one.parameters["messages"] for one in runs] == [7, 1000]
    assert [one.parameters["seed"] for one in runs] == [1, 2]
    assert [one.parameters["size"] for one in runs] == [9, 9]
    assert runs[0].folder == project("data/local/low/affinity-spinning")
    # The profiles are such files, and say themselves where their data go.
    profile = project("notebooks/profiles/65-rps.tiny.yaml")
    assert studies.plan_runs(["rps"], "quick", [profile], {})[0].folder == project(
        "data/local/tiny/rps"
    )


@pytest.mark.parametrize(
    ("files", "given", "words"),
    [
        ({"a.yaml": "seed: 1", "b.yaml": "mesages: 1"}, {}, "no parameter 'mesages'"),
        ({"a.yaml": "seed: 1"}, {"mesages": 1}, "no parameter 'mesages'"),
        ({}, {"seed": "two"}, "seed of 10-affinity-spinning.ipynb cannot be 'two'"),
        ({}, {"rig": "virtal"}, "no rig called 'virtal'.*\n.*did you mean 'virtual'"),
        ({}, {"rig": "nosuch.toml"}, "nosuch.toml"),
        ({"a.yaml": "seed: 1", "b.yaml": "seed: 2"}, {"data": "data/x"}, "go to one folder"),
        ({"a.yaml": "seed: 1", "b.yaml": "data: data/local/a"}, {}, "go to one folder"),
        ({"a.yaml": "- seed"}, {}, "has no parameters"),
        ({"a.yaml": ""}, {}, "has no parameters"),
        ({"a.yaml": "seed: [1"}, {}, "cannot be read"),
    ],
)
def test_wrong_parameters_are_an_error_before_anything_runs(
    tmp_path: Path, files: dict[str, str], given: dict[str, Any], words: str
) -> None:
    paths = [file(tmp_path, name, text) for name, text in files.items()]
    with pytest.raises(UsageError, match=words):
        studies.plan_runs(["affinity-spinning"], "tiny", paths, given)


@pytest.mark.parametrize("text", ["[", "!!timestamp x", "[" * 5000, "!!int x", "{[]: 1}", "\ud800"])
def test_a_value_that_is_not_yaml_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not YAML"):
        studies.parameters([("blocks", text)], new=False)
    (tmp_path / "x.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError, match="cannot be read"):
        studies.read_parameters(tmp_path / "x.yaml")


@given(st.one_of(st.text(max_size=40).map(str.encode), st.binary(max_size=40)))
def test_a_file_of_any_content_has_parameters_or_is_an_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.yaml"
        path.write_bytes(content)
        try:
            found = studies.read_parameters(path)
        except UsageError as error:
            assert str(path) in str(error)
        else:
            assert all(isinstance(name, str) for name in found)


def notebook(folder: Path, name: str, source: str) -> Path:
    cells = [
        nbformat.v4.new_code_cell("data = ''", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(source),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def test_a_failed_run_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "project", lambda path=".": tmp_path / path)
    campaign = write_campaign(tmp_path / "data" / "good" / "1", study="good", blocks=2)
    write_json(campaign / "plan.json", small_plan("good") | {"order": [[0, 1], [1, 0]]})
    progress = {"study": "good", "planned": 4, "done": 4, "failed": 0, "blocks": 2, "whole": 2}
    progress |= {"ended_ns": time.time_ns(), "run": None, "cpus": ""}
    write_json(campaign / PROGRESS, progress)
    data = {"data": str(tmp_path / "data")}
    runs = [
        studies.Run(notebook(tmp_path, "bad", "raise ValueError('on purpose')"), "a", data),
        studies.Run(notebook(tmp_path, "good", "1"), "b", data),
        studies.Run(tmp_path / "never.ipynb", "c", data),
    ]
    said: list[str] = []
    outcomes = list(studies.measure_all(runs[:2], seconds=60, say=said.append))
    assert said == ["measuring bad (a)", "measuring good (b)"]
    assert "on purpose" in str(outcomes[0].error) and outcomes[0].output is None
    assert outcomes[1].error is None and outcomes[1].output is not None
    rows = [line.split() for line in studies.run_table(runs, outcomes)]
    assert [row[:5] for row in rows[1:]] == [
        ["bad", "a", "failed", "-", "-"],
        ["good", "b", "ok", "4/4", "0"],
        ["never", "c", "not", "measured", "-"],
    ]
    assert rows[2][-1] == str(campaign)


@pytest.mark.parametrize("name", ["10", "affinity-spinning", "10-affinity-spinning"])
def test_a_study_has_a_name_and_a_number(name: str) -> None:
    assert [path.stem for path in studies.find([name])] == ["10-affinity-spinning"]


def test_names_that_do_not_exist_are_an_error_that_suggests_one() -> None:
    with pytest.raises(UsageError, match="no study called 'afinity-spinning'") as caught:
        studies.find(["afinity-spinning", "rps"])
    assert caught.value.remedy.startswith("did you mean 'affinity-spinning'? One of affinity")
    with pytest.raises(UsageError, match="no profile 'nope'"):
        studies.check_profile("nope")
    with pytest.raises(UsageError, match="no profile 'quik'") as caught:
        studies.profile_of(studies.find(["rps"])[0], "quik")
    assert "did you mean 'quick'?" in caught.value.remedy
    for profile in (None, "reference", "tiny", "brief"):
        studies.check_profile(profile)


@pytest.fixture
def evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate the claims on the same campaigns once."""

    def evaluated(campaigns: list[Path], **options: Any) -> pd.DataFrame:
        assert not options.keys() - {"claims"}
        return committed.ledger_of(tuple(campaigns))

    monkeypatch.setattr("labkit.claims.ledger.ledger", evaluated)


@pytest.mark.usefixtures("evaluated_once")
def test_a_plan_for_a_time_is_resumed_and_not_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(studies, "BRIEF", str(tmp_path))
    monkeypatch.setattr(studies.time, "monotonic", lambda: 0.0)
    few = [choose(name) for name in ("affinity-spinning", "cpu-quota", "network-isolation")]
    monkeypatch.setattr(studies, "choose_all", lambda names: few)

    def plan(seconds: float = 720, new: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        return studies.budget_runs(seconds, new, said.append)

    def begun(name: str) -> Path:
        folder = tmp_path / name / "20260101T000000.000000Z-0123456789ab"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def measured(name: str) -> None:
        folder = tmp_path / name / "20260101T000001.000000Z-0123456789ab"
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(project("data/reference/rps"))  # a complete one

    first = plan()
    done, parameters = next(first)
    assert parameters["new"]
    measured(done)
    name, parameters = next(first)
    first.close()
    # Interrupted before its campaign had begun, and then within it.
    assert next(plan()) == (name, parameters) and parameters["new"]
    shutil.copy(project("data/reference") / name / "plan.json", begun(name))
    assert next(plan()) == (name, parameters | {"new": False})
    left = [name for name, _ in plan()]
    assert done not in left and left[0] == name and len(left) == len(set(left))
    shutil.rmtree(begun(name))
    for one in left:
        measured(one)
    assert list(plan()) == []
    assert said[-1].startswith("what decides most in 12 min was measured; another budget, or --new")
    assert next(plan(new=True))[1]["new"] and next(plan(600))[1]["new"]


@pytest.mark.usefixtures("evaluated_once")
def test_what_is_left_of_a_budget_goes_to_further_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    now = 0.0
    monkeypatch.setattr(studies, "BRIEF", str(tmp_path))
    monkeypatch.setattr(studies.time, "monotonic", lambda: now)
    runs = []
    for name, parameters in studies.budget_runs(720, False, said.append):
        runs.append(name)
        assert parameters["decide"]["looks"][-1] == parameters["blocks"]
        now += 60  # much less than was planned
    plans = [i for i, text in enumerate(said) if text.startswith("left out of ")]
    assert said[plans[0]].startswith("left out of 12 min") and len(plans) > 1
    # One line for each study of the first plan comes before what it leaves out.
    assert len(runs) > plans[0] and len(runs) == len(set(runs))
    assert list(studies.budget_runs(20, False, said.append)) == []
    del said[:]
    late = studies.budget_runs(100, False, said.append)
    next(late)
    now += 1000
    # Time that is over is not planned.
    list(late)
    assert sum(text.startswith("left out of") for text in said) == 1


def test_where_the_time_is_over_trials_that_are_left_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_campaign(tmp_path / "echo" / "20260101-000000-0", blocks=3)
    write_json(path / "plan.json", small_plan() | {"order": [[0, 1]] * 5})
    monkeypatch.setenv(UNTIL, str(time.monotonic() + 100))
    with pytest.raises(TimeOver, match="of 10 planned trials 4 are left"):
        studies.check_complete(tmp_path / "echo")
    error = {"type": "LabkitError", "what": "the CPUs were moved", "why": "", "evidence": {}}
    Store(path).add(record(4, status="failed", error=error), {}, {})
    with pytest.raises(LabkitError, match="1 failed and 3 are left") as caught:
        studies.check_complete(tmp_path / "echo")
    assert not isinstance(caught.value, TimeOver)
    monkeypatch.setenv(UNTIL, str(time.monotonic() - 1))
    with pytest.raises(TimeOver, match="not begun"):
        studies.measure(Path("65-rps.ipynb"), {}, called="brief", seconds=1, say=print)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that were left as each study of a report was to be measured."""
    left: list[float] = []

    def measure(*of: Any, **more: Any) -> None:
        left.append(seconds_left())
        raise TimeOver("of 72 planned trials 20 are left")

    def find(names: list[str]) -> list[Path]:
        if not names:
            raise KeyboardInterrupt  # the pages would follow
        return [Path(f"{names[0]}.ipynb")]

    monkeypatch.delenv(UNTIL, raising=False)
    monkeypatch.setattr(studies, "rig_here", lambda: ("virtual", ""))
    monkeypatch.setattr(studies, "_measured", measure)
    monkeypatch.setattr(studies, "find", find)
    for plan in ("_profile_runs", "budget_runs"):
        monkeypatch.setattr(studies, plan, lambda *of: iter([("rps", {}), ("cpu-quota", {})]))
    return left


@pytest.mark.parametrize(
    ("profile", "until", "least", "most"),
    [(None, None, 300, 600), ("tiny", None, math.inf, math.inf), (None, 100, 0, 100)],
    ids=["a budget", "a profile", "a budget and --stop-after"],
)
def test_a_report_measures_for_twice_its_budget_at_most(
    profile: str | None,
    until: float | None,
    least: float,
    most: float,
    measured: list[float],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine trials are repeated, and a plan takes longer than it was to."""
    said: list[str] = []
    if until:
        monkeypatch.setenv(UNTIL, str(time.monotonic() + until))
    before = os.environ.get(UNTIL)
    with pytest.raises(KeyboardInterrupt):
        studies.report(profile, tmp_path, measure=True, budget=300, say=said.append)
    # The first study that has too little time is the last one.
    assert len(measured) == 1 and least <= measured[0] <= most
    assert said == ["rps: of 72 planned trials 20 are left"]
    assert os.environ.get(UNTIL) == before
