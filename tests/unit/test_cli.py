"""The commands: help, wrong use, answers, and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from labkit import cli, data, studies
from labkit.analysis import publish
from labkit.errors import LabkitError, TimeOver, UsageError
from labkit.paths import SHIPPED, project

GROUPS = ("", "dataset")
NAMES = [*GROUPS, *set(cli.app.commands) - {*GROUPS}]
NAMES += [f"dataset {name}" for name in cli.app.commands["dataset"].commands]


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help_and_an_example(command: str) -> None:
    found = CliRunner().invoke(cli.app, [*command.split(), "--help"], prog_name="labkit")
    assert found.exit_code == 0 and found.stderr == ""
    assert found.stdout.startswith(f"Usage: labkit {command}".strip())
    example = re.search(r"Examples?: (labkit .*)", found.stdout)
    assert example or command == "dataset"
    for text in example[1].split(" | ") if example else ():
        assert text.split()[: 1 + len(command.split())] == ["labkit", *command.split()]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("run --profile nope", "one of ask, decide, paper, quick, tiny, why"),
        ("run nosuch", "one of affinity-spinning"),
        ("run -P tiny -p nosuch 1", "one of rig, blocks, messages"),
        ("run -P tiny -p blocks [", "not YAML"),
        ("run -p blocks", "requires 2 arguments"),
        ("run -P none.yaml", "none.yaml"),
        ("run -P tiny --rig virtal", "did you mean 'virtual'"),
        ("run cpu-quota rps -P tiny -p calls 9", "65-rps.ipynb has no"),
        ("run rps -P tiny --scheduler x --new", "--scheduler goes without"),
        ("status none", "does not exist"),
        ("ask nosuch", "one of affinity-spinning"),
        ("nosuch", "No such command"),
        ("doctor --nosuch", "No such option"),
    ],
)
def test_wrong_use_is_exit_code_2_before_anything_runs(
    argv: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(
        "papermill.execute_notebook", lambda *_, **__: pytest.fail("a notebook ran")
    )
    with pytest.raises(SystemExit) as stop:
        cli.main(argv.split())
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_a_rig_file_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rig.toml").write_text("[")
    monkeypatch.chdir(tmp_path)
    for argv in (["doctor"], ["run", "rps"]):
        found = CliRunner().invoke(cli.app, [*argv, "--rig", "rig.toml"])
        assert isinstance(found.exception, UsageError)
        assert str(tmp_path / "rig.toml") in str(found.exception)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([None, None], 0),
        ([LabkitError("broken"), None], 1),
        ([UsageError("in use"), LabkitError("broken")], 1),
        ([UsageError("in use")], 2),
    ],
)
def test_a_run_goes_on_after_a_failed_study(
    outcomes: list[LabkitError | None], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = iter(outcomes)

    def measure(run: studies.Run, **more: Any) -> Path:
        if error := next(todo):
            raise error
        return run.notebook

    monkeypatch.setattr(studies, "measure", measure)
    names = ["cpu-quota", "rps"][: len(outcomes)]
    found = CliRunner().invoke(cli.app, ["run", *names, "-P", "tiny"])
    assert found.exit_code == code and not [*todo]
    assert found.stdout.count(".ipynb\n") == outcomes.count(None)


@pytest.mark.parametrize("over", [False, True])
def test_a_study_is_measured_with_its_profile_and_answered(
    over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, Any]] = []

    def measure(run: studies.Run, **more: Any) -> None:
        measured.append((run.notebook.stem, run.parameters))
        if over:
            raise TimeOver("trials are left")

    monkeypatch.setattr(studies, "measure", measure)
    row = {"verdict": "differs"}
    page = {"page": "p.html", "rows": [row, {"verdict": "not measured"}], "sentences": ["a", "b"]}
    monkeypatch.setattr(data, "load", lambda folder: folder)
    monkeypatch.setattr(publish, "study_pages", lambda folder, campaign: [page])
    found = CliRunner().invoke(cli.app, ["ask", "cpu-quota", "--new"])
    assert found.stdout == f"a\npage: {project('reports/p.html')}\n"
    assert ("trials are left" in found.stderr) == over
    ((name, parameters),) = measured
    assert name == "20-cpu-quota" and parameters["cells"] == "quotas" and parameters["new"]


def test_a_release_lacks_what_only_people_can_give(tmp_path: Path) -> None:
    here = CliRunner().invoke(cli.app, ["cite", "--check"])
    assert here.exit_code == 1 and "zenodo" not in here.stdout, "the two files disagree"
    assert "a person" in here.stdout and "a DOI" in here.stdout
    citation = yaml.safe_load((SHIPPED / "CITATION.cff").read_text())
    deposit = json.loads((SHIPPED / ".zenodo.json").read_text())
    doe = {"family-names": "Doe", "given-names": "Jane"}

    def lacks(orcid: dict[str, str], **more: Any) -> str:
        ours = citation | {"authors": [doe | orcid], "doi": "10.5281/zenodo.1"}
        ours |= {"repository-code": "https://example.org/labkit"}
        (tmp_path / "CITATION.cff").write_text(yaml.safe_dump(ours))
        theirs = deposit | {"doi": "10.5281/zenodo.1", "creators": [{"name": "Doe, Jane"}]} | more
        (tmp_path / ".zenodo.json").write_text(json.dumps(theirs))
        return CliRunner().invoke(cli.app, ["cite", "--check", str(tmp_path)]).stdout

    assert lacks({}) == "CITATION.cff: the ORCID of Doe, Jane\n"
    whole = {"creators": [{"name": "Doe, Jane", "orcid": "0000-0000-0000-0001"}]}
    orcid = {"orcid": "https://orcid.org/0000-0000-0000-0001"}
    assert lacks(orcid, **whole) == "nothing is missing\n"
    assert "version '9'" in lacks(orcid, **whole, version="9")
