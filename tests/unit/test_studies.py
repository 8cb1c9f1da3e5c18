"""The studies of this clone: their parameters, and campaigns measured in turn."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit import studies
from labkit.errors import LabkitError, Rebooted, TimeOver, UsageError
from labkit.paths import project
from labkit.process import BLOCKS, UNTIL


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def notebook(folder: Path, name: str, source: str) -> Path:
    cells = [
        nbformat.v4.new_code_cell("data = ''\nnew = False", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(source),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def add(folder: Path, block: int, position: int, attempt: int = 1, problem: str = "") -> None:
    row = {"trial": f"b{block:02d}-p{position:02d}", "attempt": attempt, "block": block}
    row |= {"position": position, "session": 1, "repeat": 1, "n": "ab"[position - 1]}
    row |= {"status": "failed" if problem else "ok", "problem": problem}
    path = folder / "trials" / f"{row['trial']}-a{attempt}" / "trial.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"format": 2, "rows": [row]}))


def campaign(study: Path, *, blocks: int, planned: int) -> Path:
    """Write a campaign of two conditions, of whose planned blocks the first are measured."""
    folder = study / "20260101-000000-0"
    folder.mkdir(parents=True)
    plan = {"format": 2, "study": study.name, "settings": {}, "factors": {"n": ["a", "b"]}}
    plan["conditions"] = [{"levels": {"n": name}, "repeat": 1} for name in "ab"]
    (folder / "plan.json").write_text(json.dumps(plan | {"order": [[0, 1]] * planned}))
    for block in range(1, blocks + 1):
        for position in (1, 2):
            add(folder, block, position)
    return folder


@pytest.mark.parametrize("name", ["10", "affinity-spinning", "10-affinity-spinning"])
def test_a_study_has_a_name_and_a_number(name: str) -> None:
    assert [path.stem for path in studies.find([name])] == ["10-affinity-spinning"]


def test_names_that_do_not_exist_are_an_error_that_suggests_one() -> None:
    with pytest.raises(UsageError, match="no study called 'afinity-spinning'") as caught:
        studies.find(["afinity-spinning", "rps"])
    assert caught.value.remedy.startswith("did you mean 'affinity-spinning'? One of affinity")
    with pytest.raises(UsageError, match="no profile 'quik'") as caught:
        studies.profile_of(studies.find(["rps"])[0], "quik")
    assert "did you mean 'quick'?" in caught.value.remedy


def test_parameters_of_a_profile_a_file_and_the_command_line(tmp_path: Path) -> None:
    runs = studies.plan_runs(["10-affinity-spinning", "rps"], "tiny", [], {"blocks": 3})
    assert [(one.study, one.called) for one in runs] == [
        *(("affinity-spinning", "tiny"), ("rps", "tiny"))
    ]
    assert runs[0].parameters["blocks"] == 3 and runs[0].parameters["messages"] == 1000
    assert runs[0].folder == project("data/local/tiny/affinity-spinning")
    low = file(tmp_path, "low.yaml", "messages: 7\nseed: 1\n")
    high = file(tmp_path, "high.yaml", "seed: 2\ndata: data/elsewhere\n")
    runs = studies.plan_runs(["affinity-spinning"], "tiny", [low, high], {"size": 9})
    assert [one.called for one in runs] == ["low", "high"]
    assert [one.parameters["messages"] for one in runs] == [7, 1000]
    assert [one.parameters["seed"] for one in runs] == [1, 2]
    assert [one.parameters["size"] for one in runs] == [9, 9]
    folders = [project(f"data/{name}/affinity-spinning") for name in ("local/low", "elsewhere")]
    assert [one.folder for one in runs] == folders


@pytest.mark.parametrize(
    ("files", "given", "words"),
    [
        ({"a.yaml": "seed: 1", "b.yaml": "mesages: 1"}, {}, "no parameter 'mesages'"),
        ({"a.yaml": "seed: 1"}, {"mesages": 1}, "no parameter 'mesages'"),
        ({}, {"seed": "two"}, "seed of 10-affinity-spinning.ipynb cannot be 'two'"),
        ({}, {"rig": "virtal"}, "no rig called 'virtal'.*\n.*did you mean 'virtual'"),
        ({}, {"rig": "nosuch.toml"}, "nosuch.toml"),
        ({"a.yaml": "seed: 1", "b.yaml": "seed: 2"}, {"data": "data/x"}, "go to one folder"),
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


def test_a_value_of_the_command_line_is_yaml() -> None:
    assert studies.parameters([("a", "[x, 2]"), ("b", "5")], new=True) == {
        "new": True,
        "a": ["x", 2],
        "b": 5,
    }
    with pytest.raises(UsageError, match="not YAML"):
        studies.parameters([("blocks", "[")], new=False)


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
    campaign(tmp_path / "echo", blocks=1, planned=1)
    run = studies.Run(Path("10-echo.ipynb"), "tiny", {"data": str(tmp_path), "new": True})
    studies.measure(run, seconds=60, say=said.append)
    # The campaign is resumed, not begun anew.
    assert seen == [run.parameters, {"data": str(tmp_path)}, {"data": str(tmp_path)}]
    assert len(said) == 3 and "host sut has rebooted" in said[1]
    seen.clear()
    monkeypatch.setattr(studies, "_REBOOTS", 2)
    with pytest.raises(Rebooted):
        studies.measure(run, seconds=60, say=said.append)


def test_trials_that_are_left_have_not_failed(tmp_path: Path) -> None:
    """An attempt that failed before one that did not is no failed trial."""
    campaign(tmp_path / "whole", blocks=3, planned=3)
    studies.check_complete(tmp_path / "whole")
    folder = campaign(tmp_path / "echo", blocks=3, planned=5)
    add(folder, 1, 1, attempt=2, problem="the CPUs were moved")
    with pytest.raises(LabkitError) as caught:
        studies.check_complete(tmp_path / "echo")
    assert caught.value.what == "of 10 planned trials 4 are left" and caught.value.why == ""
    add(folder, 4, 1, problem="the CPUs were moved")
    with pytest.raises(LabkitError, match="of 10 planned trials 1 failed and 3 are left") as caught:
        studies.check_complete(tmp_path / "echo")
    assert caught.value.why == "the CPUs were moved"


def test_only_the_selected_blocks_have_to_be_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign(tmp_path / "echo", blocks=2, planned=4)
    monkeypatch.setenv(BLOCKS, "1,2")
    studies.check_complete(tmp_path / "echo")
    monkeypatch.setenv(BLOCKS, "2,3")
    with pytest.raises(LabkitError, match="of 4 planned trials 2 are left"):
        studies.check_complete(tmp_path / "echo")


def test_where_the_time_is_over_trials_that_are_left_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = campaign(tmp_path / "echo", blocks=3, planned=5)
    monkeypatch.setenv(UNTIL, str(time.monotonic() + 100))
    with pytest.raises(TimeOver, match="of 10 planned trials 4 are left"):
        studies.check_complete(tmp_path / "echo")
    add(folder, 4, 1, problem="the CPUs were moved")
    with pytest.raises(LabkitError, match="1 failed and 3 are left") as caught:
        studies.check_complete(tmp_path / "echo")
    assert not isinstance(caught.value, TimeOver)
    monkeypatch.setenv(UNTIL, str(time.monotonic() - 1))
    with pytest.raises(TimeOver, match="not begun"):
        studies.measure(studies.Run(Path("65-rps.ipynb"), "ask", {}), seconds=1, say=print)


def test_a_failed_run_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "project", lambda path=".": tmp_path / path)
    campaign(tmp_path / "data" / "good", blocks=2, planned=2)
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
    _, bad, good, never = studies.run_table(runs, outcomes).splitlines()
    assert "a notebook failed" in bad and " ok " in good and "not measured" in never
