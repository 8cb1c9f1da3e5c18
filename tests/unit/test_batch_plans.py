"""Several campaigns in turn: checked before the first, each told, none in another's folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_datasets import plan as small_plan
from small_datasets import write_campaign

from labkit import batches, studies
from labkit.campaign.store import write_json
from labkit.errors import UsageError
from labkit.paths import project


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_without_files_each_study_has_the_profile_and_what_was_given() -> None:
    runs = batches.plan(["10-affinity-spinning", "rps"], "tiny", [], {"blocks": 3})
    assert [(one.study, one.called) for one in runs] == [
        *(("affinity-spinning", "tiny"), ("rps", "tiny"))
    ]
    assert runs[0].parameters["blocks"] == 3 and runs[0].parameters["messages"] == 1000
    assert runs[0].folder == project("data/local/tiny/affinity-spinning")


def test_a_file_replaces_the_profile_and_what_is_given_replaces_both(tmp_path: Path) -> None:
    low = file(tmp_path, "low.yaml", "messages: 7\nseed: 1\n")
    high = file(tmp_path, "high.yaml", "seed: 2\ndata: data/elsewhere\n")
    runs = batches.plan(["affinity-spinning", "cpu-quota"], "tiny", [high], {"seed": 3})
    assert [one.folder for one in runs] == [
        project(f"data/elsewhere/{name}") for name in ("affinity-spinning", "cpu-quota")
    ]
    runs = batches.plan(["affinity-spinning"], "tiny", [low, high], {"size": 9})
    assert [one.called for one in runs] == ["low", "high"]
    assert [one.parameters["messages"] for one in runs] == [7, 1000]
    assert [one.parameters["seed"] for one in runs] == [1, 2]
    assert [one.parameters["size"] for one in runs] == [9, 9]
    assert runs[0].folder == project("data/local/low/affinity-spinning")
    # The profiles are such files, and say themselves where their data go.
    profile = studies.NOTEBOOKS / "profiles" / "65-rps.tiny.yaml"
    assert batches.plan(["rps"], "quick", [profile], {})[0].folder == project("data/local/tiny/rps")


@pytest.mark.parametrize(
    ("files", "given", "words"),
    [
        ({"a.yaml": "seed: 1", "b.yaml": "mesages: 1"}, {}, "no parameter 'mesages'"),
        ({"a.yaml": "seed: 1"}, {"mesages": 1}, "no parameter 'mesages'"),
        ({"a.yaml": "seed: 1", "b.yaml": "seed: 2"}, {"data": "data/x"}, "go to one folder"),
        ({"a.yaml": "seed: 1", "b.yaml": "data: data/local/a"}, {}, "go to one folder"),
        ({"a.yaml": "- seed"}, {}, "holds no parameters"),
        ({"a.yaml": ""}, {}, "holds no parameters"),
        ({"a.yaml": "seed: [1"}, {}, "cannot be read"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(
    tmp_path: Path, files: dict[str, str], given: dict[str, Any], words: str
) -> None:
    paths = [file(tmp_path, name, text) for name, text in files.items()]
    with pytest.raises(UsageError, match=words):
        batches.plan(["affinity-spinning"], "tiny", paths, given)


@given(st.one_of(st.text(max_size=40).map(str.encode), st.binary(max_size=40)))
def test_whatever_a_file_holds_it_is_parameters_or_refused(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.yaml"
        path.write_bytes(content)
        try:
            found = batches.read(path)
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


def test_a_run_that_fails_does_not_end_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "project", lambda path: tmp_path / path)
    campaign = write_campaign(tmp_path / "data" / "good" / "1", study="good", blocks=2)
    write_json(campaign / "plan.json", small_plan("good") | {"order": [[0, 1], [1, 0]]})
    data = {"data": str(tmp_path / "data")}
    runs = [
        batches.Run(notebook(tmp_path, "bad", "raise ValueError('on purpose')"), "a", data),
        batches.Run(notebook(tmp_path, "good", "1"), "b", data),
        batches.Run(tmp_path / "never.ipynb", "c", data),
    ]
    said: list[str] = []
    outcomes = list(batches.measure(runs[:2], seconds=60, say=said.append))
    assert said == ["measuring bad (a)", "measuring good (b)"]
    assert "on purpose" in str(outcomes[0].error) and outcomes[0].output is None
    assert outcomes[1].error is None and outcomes[1].output is not None
    rows = [line.split() for line in batches.table(runs, outcomes)]
    assert [row[:5] for row in rows[1:]] == [
        ["bad", "a", "failed", "-", "-"],
        ["good", "b", "ok", "4/4", "0"],
        ["never", "c", "not", "measured", "-"],
    ]
    assert rows[2][-1] == str(campaign)
