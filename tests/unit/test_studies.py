"""The studies of this clone: their parameters, and campaigns measured in turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labkit import studies
from labkit.errors import LabkitError, Rebooted, RigInUse, TimeOver, UsageError
from labkit.paths import project
from labkit.rig import lock


def campaign(study: Path, *trials: str, planned: int) -> None:
    """Write a campaign of two conditions; a trial is named as b01-p02-a1, or `failed` after it."""
    folder = study / "20260101-000000-0"
    folder.mkdir(parents=True)
    plan = {"format": 2, "study": study.name, "settings": {}, "factors": {"n": ["a", "b"]}}
    plan["conditions"] = [{"levels": {"n": name}, "repeat": 1} for name in "ab"]
    (folder / "plan.json").write_text(json.dumps(plan | {"order": [[0, 1]] * planned}))
    for name, _, failed in (trial.partition(" ") for trial in trials):
        path = folder / "trials" / name / "trial.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"format": 2, "rows": [{"status": failed or "ok"}]}))


@pytest.mark.parametrize("name", ["10", "affinity-spinning", "10-affinity-spinning"])
def test_a_study_has_a_name_and_a_number(name: str) -> None:
    (run,) = studies.plan_runs([name], "tiny", {})
    assert (run.notebook.stem, run.study) == ("10-affinity-spinning", "affinity-spinning")


def test_parameters_of_a_profile_a_file_and_the_command_line(tmp_path: Path) -> None:
    runs = studies.plan_runs([], "tiny", {"blocks": 3})
    assert len(runs) == len(list(project("notebooks/studies").glob("*.ipynb")))
    assert runs[0].parameters["blocks"] == 3 and runs[0].parameters["messages"] == 1000
    assert runs[0].folder == project("data/local/tiny/affinity-spinning")
    (tmp_path / "low.yaml").write_text("messages: 7\nseed: 1\n")
    (run,) = studies.plan_runs(["affinity-spinning"], str(tmp_path / "low.yaml"), {"seed": 9})
    assert run.parameters == {"messages": 7, "seed": 9, "data": "data/local/low"}


@pytest.mark.parametrize(
    ("study", "profile", "given", "words"),
    [
        ("afinity-spinning", "tiny", {}, "did you mean 'affinity-spinning'? One of affinity"),
        ("rps", "quik", {}, "did you mean 'quick'"),
        ("rps", "tiny", {"sed": 1}, "no parameter 'sed'"),
        ("rps", "tiny", {"seed": "two"}, "seed of 65-rps.ipynb cannot be 'two'"),
        ("rps", "sed: 1", {}, "no parameter 'sed'"),
        ("rps", "- seed", {}, "has no parameters"),
        ("rps", "", {}, "has no parameters"),
        ("rps", "seed: [1", {}, "cannot be read"),
    ],
)
def test_wrong_parameters_are_an_error_before_anything_runs(
    tmp_path: Path, study: str, profile: str, given: dict[str, Any], words: str
) -> None:
    if not profile.isalpha():  # the content of a file
        (tmp_path / "a.yaml").write_text(profile)
        profile = str(tmp_path / "a.yaml")
    with pytest.raises(UsageError) as caught:
        studies.plan_runs([study], profile, given)
    assert words in str(caught.value)


def test_a_study_is_executed_again_where_a_host_has_rebooted_or_the_rig_was_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []
    errors: list[LabkitError] = [RigInUse("in use"), Rebooted("host sut has rebooted")]
    said: list[str] = []

    def execute(notebook: Path, output: Path, parameters: dict[str, Any], **more: Any) -> None:
        seen.append(dict(parameters))
        if len(seen) <= len(errors):
            raise errors[len(seen) - 1]

    holders = iter([7, 7, None, None, None])
    monkeypatch.setattr(lock, "current_holder", lambda: next(holders))
    monkeypatch.setattr(studies.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(studies.notebooks, "execute", execute)
    campaign(tmp_path / "echo", "b01-p01-a1", "b01-p02-a1", planned=1)
    given = {"data": str(tmp_path), "new": True}
    run = studies.Run(Path("10-echo.ipynb"), "tiny", given)
    studies.measure(run, say=said.append, wait=True)
    # The campaign is resumed, not begun anew.
    assert seen == [given, given, {"data": str(tmp_path)}] and not [*holders]
    assert len(said) == 2 and "host sut has rebooted" in said[1]
    errors[:] = [RigInUse("in use")] * 9
    with pytest.raises(RigInUse):
        studies.measure(run, say=said.append)
    seen.clear()
    errors[:] = [Rebooted("again")] * 99
    with pytest.raises(Rebooted):
        studies.measure(run, say=said.append)


LEFT = ("b01-p01-a1", "b01-p02-a1 failed", "b01-p02-a2", "b02-p01-a1")


@pytest.mark.parametrize(
    ("trials", "given", "error"),
    [
        (LEFT, {}, "of 6 planned trials 3 are left"),
        (LEFT, {"only": [1]}, ""),
        (LEFT, {"only": [1, 2]}, "of 4 planned trials 1 are left"),
        ((*LEFT, "b02-p02-a1 failed"), {}, "of 6 planned trials 1 failed and 2 are left"),
        (LEFT, {"minutes": 5}, "of 6 planned trials 3 are left"),
        ((*LEFT, "b02-p02-a1 failed"), {"minutes": 5}, "of 6 planned trials 1 failed and 2"),
    ],
)
def test_planned_trials_that_failed_or_are_left_are_an_error(
    tmp_path: Path, trials: tuple[str, ...], given: dict[str, Any], error: str
) -> None:
    campaign(tmp_path / "echo", *trials, planned=3)
    run = studies.Run(Path("10-echo.ipynb"), "tiny", {"data": str(tmp_path), **given})
    if not error:
        studies.check_complete(run)
        return
    with pytest.raises(LabkitError, match=error) as caught:
        studies.check_complete(run)
    over = "minutes" in given
    assert isinstance(caught.value, TimeOver) == over
