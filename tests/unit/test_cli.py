"""The commands: help, wrong use, answers, and exit codes."""

import json
import re
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from labkit import cli, data, studies
from labkit.analysis import publish
from labkit.errors import LabkitError, TimeOver, UsageError
from labkit.paths import project

NAMES = ["", *cli.app.commands, *(f"dataset {name}" for name in cli.dataset.commands)]


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help_and_an_example(command):
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
        ("run -P tiny -p nosuch 1", "one of rig, blocks, messages"),
        ("run -P tiny -p blocks [", "not YAML"),
        ("run -P tiny -p blocks 5 -p blocks 7", "given twice"),
        ("run -P none.yaml", "none.yaml"),
        ("run -P tiny --rig virtal", "did you mean 'virtual'"),
        ("run cpu-quota rps -P tiny -p calls 9", "65-rps.ipynb has no"),
        ("run rps -P tiny --scheduler x --new", "--scheduler goes without"),
        ("ask nosuch", "one of affinity-spinning"),
        ("ledger --paper nosuch", "one of haruna2019"),
    ],
)
def test_wrong_use_is_exit_code_2_before_anything_runs(argv, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(studies, "measure", lambda *_, **__: pytest.fail("a notebook ran"))
    with pytest.raises(SystemExit) as stop:
        cli.main(argv.split())
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_a_rig_file_is_that_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "rig.toml").write_text("[")
    monkeypatch.chdir(tmp_path)
    for argv in (["doctor"], ["run", "rps"]):
        found = CliRunner().invoke(cli.app, [*argv, "--rig", "rig.toml"])
        assert isinstance(found.exception, UsageError)
        assert str(tmp_path / "rig.toml") in str(found.exception)


def page(*answers, **more):
    """Return what a page hands over: verdicts and sentences."""
    rows = [{"verdict": verdict, "sentence": text} for verdict, text in answers]
    return {"page": "p.html", "rows": rows, **more}


@pytest.fixture
def lab(monkeypatch):
    """Runs that were measured, with the outcome of each and the pages that answer it."""
    found = SimpleNamespace(runs=[], outcomes=[], pages=[])

    def measure(run, **more):
        found.runs.append(run)
        if error := found.outcomes.pop(0):
            raise error
        return run.notebook

    monkeypatch.setattr(studies, "measure", measure)
    monkeypatch.setattr(data, "load", lambda folder: SimpleNamespace(path=folder))
    monkeypatch.setattr(publish, "study_pages", lambda folder, campaign: found.pages.pop(0))
    return found


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([None, None], 0),
        ([LabkitError("broken"), None], 1),
        ([UsageError("in use"), LabkitError("broken")], 1),
        ([UsageError("in use")], 2),
    ],
)
def test_a_run_goes_on_after_a_failed_study(outcomes, code, lab):
    lab.outcomes = [*outcomes]
    names = ["cpu-quota", "rps"][: len(outcomes)]
    found = CliRunner().invoke(cli.app, ["run", *names, "-P", "tiny"])
    assert found.exit_code == code and not lab.outcomes
    assert found.stdout.count(".ipynb\n") == outcomes.count(None)


HERE = page(("differs", "a"), ("not measured", "b"))


@pytest.mark.parametrize(
    ("outcome", "pages", "code", "shown"),
    [
        (None, [HERE], 0, f"a\npage: {project('reports/p.html')}\n"),
        (TimeOver("trials are left"), [HERE], 0, "trials are left"),
        (None, [page(("not measured", "not in it"))], 0, "not in it\n"),
        (None, [], 1, "nothing answers cpu-quota"),
        (LabkitError("broken"), [HERE], 1, "broken"),
    ],
)
def test_a_question_is_answered_or_not_with_the_reason(outcome, pages, code, shown, lab):
    lab.outcomes, lab.pages = [outcome], [pages]
    found = CliRunner().invoke(cli.app, ["ask", "cpu-quota", "--new"])
    assert found.exit_code == code and shown in f"{found.output}{found.exception}"
    (run,) = lab.runs
    assert run.notebook.stem == "20-cpu-quota"
    assert run.parameters["cells"] == "quotas" and run.parameters["new"]


def test_a_report_answers_each_study_when_it_was_measured(lab, monkeypatch):
    lab.outcomes = [None, None, TimeOver("trials are left"), LabkitError("broken")]
    lab.pages = [[HERE], [{"page": "q.html", "error": "why"}], [HERE]]
    planned = studies.plan_runs
    monkeypatch.setattr(studies, "plan_runs", lambda *given: planned(*given)[:4])
    monkeypatch.setattr("labkit.rig.opener", lambda spec: None)
    pages = [{**HERE, "source": "here"}, {**HERE, "source": "reference"}]
    given = {}
    monkeypatch.setattr(publish, "report", lambda *_, **more: given.update(more) or pages)
    found = CliRunner().invoke(cli.app, ["report", "--measure"])
    assert [path.name for path in given["done"]] == ["affinity-spinning", "cpu-quota"]
    assert found.exit_code == 1 and not [*lab.outcomes, *lab.pages]
    shown = ["a", "page: /", "a", "page: /", "a (refe", "report:"]
    assert [line[:7] for line in found.stdout.splitlines()] == shown
    for text in ("trials are left", "the page q.html failed", "broken"):
        assert text in found.stderr


def test_a_release_lacks_what_only_people_can_give(tmp_path):
    here = CliRunner().invoke(cli.app, ["cite", "--check"])
    assert here.exit_code == 1 and "zenodo" not in here.stdout, "the two files disagree"
    assert "a person" in here.stdout and "a DOI" in here.stdout
    doe = {"family-names": "Doe", "given-names": "Jane", "orcid": "https://orcid.org/0"}
    citation = {"doi": "10.5281/zenodo.1", "repository-code": "https://example.org/labkit"}
    deposit = {"doi": citation["doi"], "creators": [{"name": "Doe, Jane"}]}

    def lacks():
        (tmp_path / "CITATION.cff").write_text(json.dumps({**citation, "authors": [doe]}))
        (tmp_path / ".zenodo.json").write_text(json.dumps(deposit))
        return CliRunner().invoke(cli.app, ["cite", "--check", str(tmp_path)]).stdout

    assert lacks() == "nothing is missing\n"
    del doe["orcid"]
    assert lacks() == "CITATION.cff: the ORCID of Doe, Jane\n"
    doe["orcid"], deposit["version"] = "https://orcid.org/0", "9"
    assert lacks() == ".zenodo.json: another version than CITATION.cff\n"
