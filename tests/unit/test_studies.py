"""The studies of this clone: their parameters, and campaigns measured in turn."""

from pathlib import Path

import pytest
from made_up import write

from labkit import studies
from labkit.errors import LabkitError, Rebooted, RigInUse, TimeOver, UsageError
from labkit.paths import project
from labkit.rig import lock


def campaign(folder, *outcomes):
    """Write a campaign of three blocks of two trials, given as those that were attempted."""
    made = dict(zip([(block, n) for block in (1, 2, 3) for n in "ab"], outcomes, strict=False))
    results = {"ok": [{"ns": 1}], "failed": [None], "failed ok": [None, {"ns": 1}]}
    trial = {"n": ["a", "b"]}
    write(folder, trial, lambda at, block: results.get(made.get((block, at["n"])), []), blocks=3)


@pytest.mark.parametrize("name", ["10", "affinity-spinning", "10-affinity-spinning"])
def test_a_study_has_a_name_and_a_number(name):
    (run,) = studies.plan_runs([name], "tiny", {})
    assert (run.notebook.stem, run.study) == ("10-affinity-spinning", "affinity-spinning")


def test_parameters_of_a_profile_a_file_and_the_command_line(tmp_path):
    runs = studies.plan_runs([], "tiny", {"blocks": 3})
    assert len(runs) == len(list(project("notebooks/studies").glob("*.ipynb")))
    assert runs[0].parameters["blocks"] == 3 and runs[0].parameters["messages"] == 1000
    assert runs[0].folder == project("data/local/tiny/affinity-spinning")
    (tmp_path / "low.yaml").write_text("messages: 7\nseed: 1\n")
    (run,) = studies.plan_runs(["affinity-spinning"], str(tmp_path / "low.yaml"), {"seed": 9})
    assert run.parameters == {"messages": 7, "seed": 9, "data": "data/local/low"}


@pytest.mark.parametrize("text", ["sed: 1", "- seed", "", "seed: [1"])
def test_a_file_that_is_no_profile_is_refused(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UsageError):
        studies.plan_runs(["rps"], str(tmp_path / "a.yaml"), {})


def test_a_study_is_executed_again_where_a_host_rebooted_or_the_rig_was_in_use(
    tmp_path, monkeypatch
):
    errors = [RigInUse("in use"), Rebooted("host sut has rebooted")]
    seen, shown, holders = [], [], iter([7, 7, None, None, None])

    def execute(notebook, output, parameters, **more):
        seen.append(dict(parameters))
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(lock, "current_holder", lambda: next(holders))
    monkeypatch.setattr(studies.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(studies.notebooks, "execute", execute)
    campaign(tmp_path / "echo", *["ok"] * 6)
    given = {"data": str(tmp_path), "new": True}
    run = studies.Run(Path("10-echo.ipynb"), "tiny", given)
    studies.measure(run, say=shown.append, wait=True)
    # The campaign is resumed, not begun anew.
    assert seen == [given, given, {"data": str(tmp_path)}] and not [*holders]
    assert len(shown) == 2 and "host sut has rebooted" in shown[1]
    for error in (RigInUse("in use"), Rebooted("again")):
        errors[:] = [error] * 99
        with pytest.raises(type(error)):
            studies.measure(run, say=shown.append)


@pytest.mark.parametrize(
    ("outcomes", "given", "error"),
    [
        ("ok,failed ok,ok", {}, "of 6 planned trials 3 are left"),
        ("ok,failed ok,ok", {"only": [1]}, ""),
        ("ok,failed ok,ok", {"only": [1, 2]}, "of 4 planned trials 1 are left"),
        ("ok,failed ok,ok,failed", {}, "of 6 planned trials 1 failed and 2 are left"),
        ("ok,failed ok,ok,failed", {"minutes": 5}, "of 6 planned trials 1 failed and 2"),
    ],
)
def test_planned_trials_that_failed_or_are_left_are_an_error(tmp_path, outcomes, given, error):
    campaign(tmp_path / "echo", *outcomes.split(","))
    run = studies.Run(Path("10-echo.ipynb"), "tiny", {"data": str(tmp_path), **given})
    if not error:
        studies.check_complete(run)
        return
    with pytest.raises(LabkitError, match=error) as caught:
        studies.check_complete(run)
    assert isinstance(caught.value, TimeOver) == ("minutes" in given)
