"""The studies of this clone: campaigns in turn, and the report of what there is."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import studies
from labkit.campaign.store import Store, write_json
from labkit.errors import LabkitError, Rebooted, TimeOver, UsageError
from labkit.paths import project
from labkit.process import BLOCKS, UNTIL


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


def row(block: int, position: int, attempt: int = 1, problem: str = "") -> dict[str, Any]:
    status = "failed" if problem else "ok"
    keys = {"trial": f"b{block:02d}-p{position:02d}", "attempt": attempt, "block": block}
    keys |= {"position": position, "session": 1, "repeat": 1}
    return keys | {"n": "ab"[position - 1], "status": status, "problem": problem}


def campaign(folder: Path, *, blocks: int, planned: int) -> Store:
    """Write a campaign of two conditions, of whose planned blocks the first are measured."""
    store = Store(folder / "20260101-000000-0")
    plan = {"study": folder.name, "settings": {}, "factors": {"n": ["a", "b"]}}
    plan["conditions"] = [{"levels": {"n": name}, "repeat": 1} for name in "ab"]
    write_json(store.path / "plan.json", plan | {"order": [[0, 1]] * planned})
    for block in range(1, blocks + 1):
        for position in (1, 2):
            store.add({"rows": [row(block, position)]}, {}, {})
    return store


def test_what_is_left_of_a_campaign_has_not_failed(tmp_path: Path) -> None:
    """An attempt that failed before one that did not is no failed trial."""
    campaign(tmp_path / "whole", blocks=3, planned=3)
    studies.check_complete(tmp_path / "whole")
    store = campaign(tmp_path / "echo", blocks=3, planned=5)
    store.add({"rows": [row(1, 1, attempt=2, problem="the CPUs were moved")]}, {}, {})
    with pytest.raises(LabkitError) as caught:
        studies.check_complete(tmp_path / "echo")
    assert caught.value.what == "of 10 planned trials 4 are left" and caught.value.why == ""
    store.add({"rows": [row(4, 1, problem="the CPUs were moved")]}, {}, {})
    with pytest.raises(LabkitError, match="of 10 planned trials 1 failed and 3 are left") as caught:
        studies.check_complete(tmp_path / "echo")
    assert caught.value.why == "the CPUs were moved"


def test_only_the_blocks_that_were_asked_for_have_to_be_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign(tmp_path / "echo", blocks=2, planned=4)
    monkeypatch.setenv(BLOCKS, "1,2")
    studies.check_complete(tmp_path / "echo")
    monkeypatch.setenv(BLOCKS, "2,3")
    with pytest.raises(LabkitError, match="of 4 planned trials 2 are left"):
        studies.check_complete(tmp_path / "echo")


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
    path = campaign(tmp_path / "data" / "good", blocks=2, planned=2).path
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
    assert rows[2][-1] == str(path)


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
    for profile in (None, "tiny", "ask", "why"):
        studies.check_profile(profile)


def test_where_the_time_is_over_trials_that_are_left_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = campaign(tmp_path / "echo", blocks=3, planned=5)
    monkeypatch.setenv(UNTIL, str(time.monotonic() + 100))
    with pytest.raises(TimeOver, match="of 10 planned trials 4 are left"):
        studies.check_complete(tmp_path / "echo")
    store.add({"rows": [row(4, 1, problem="the CPUs were moved")]}, {}, {})
    with pytest.raises(LabkitError, match="1 failed and 3 are left") as caught:
        studies.check_complete(tmp_path / "echo")
    assert not isinstance(caught.value, TimeOver)
    monkeypatch.setenv(UNTIL, str(time.monotonic() - 1))
    with pytest.raises(TimeOver, match="not begun"):
        studies.measure(Path("65-rps.ipynb"), {}, called="ask", seconds=1, say=print)
