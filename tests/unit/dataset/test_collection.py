"""A folder of studies: its campaigns by name, and comparisons in the study that has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_datasets import write_campaign

import labkit
from labkit.dataset import Dataset
from labkit.dataset.collection import Studies
from labkit.errors import UsageError


@pytest.fixture
def studies(tmp_path: Path) -> Studies:
    """Two studies as they are measured: a folder each, with the newest campaign last."""
    for study, campaign, effect in (
        ("echo-test", "20250101-a", 3.0),
        ("echo-test", "20250102-b", 1.5),
        ("other", "20250101-a", 0.5),
    ):
        write_campaign(tmp_path / study / campaign, study=study, blocks=5, effect=effect)
    found = labkit.load(tmp_path)
    assert isinstance(found, Studies)
    return found


def test_studies_are_found_by_name(studies: Studies) -> None:
    assert [*studies] == ["echo-test", "other"] and len(studies) == 2
    assert studies["echo-test"] is studies["echo_test"] is studies.echo_test
    assert studies.echo_test.path.name == "20250102-b"
    assert "echo_test" in dir(studies) and "compare" in dir(studies)
    assert studies._ipython_key_completions_() == ["echo-test", "other"]
    assert "echo-test  2 conditions (placement), rig virtual" in repr(studies)
    assert "<th>echo-test</th>" in studies._repr_html_()
    with pytest.raises(UsageError, match="did you mean 'echo-test'"):
        _ = studies["echo-tst"]
    with pytest.raises(AttributeError, match="did you mean 'other'"):
        _ = studies.othr
    assert not hasattr(studies, "_repr_png_")


def test_the_study_that_has_the_conditions_answers(studies: Studies) -> None:
    with pytest.raises(UsageError, match="several studies") as caught:
        studies.compare("docker bridge", wait="block")
    assert caught.value.remedy == "name one: study='echo-test', study='other'"
    assert studies.compare("docker bridge", study="other").word == "faster"
    assert studies.compare("docker bridge", "bare clean", study="echo_test").word == "slower"
    with pytest.raises(UsageError, match="no study has 'docker brige'") as caught:
        studies.compare("docker brige")
    assert "did you mean 'docker bridge'?" in caught.value.remedy
    with pytest.raises(UsageError, match="no study has 'docker bridge' and 'wait=spin'"):
        studies.compare("docker bridge", wait="spin")


def test_an_experiment_does_not_take_the_place_of_its_study(studies: Studies) -> None:
    for folder in ("echo-test/20250103-c", "echo-test-wait"):
        plan = write_campaign(studies.path / folder, study="echo-test", blocks=5) / "plan.json"
        plan.write_text(json.dumps(json.loads(plan.read_text()) | {"vary": ["wait"]}))
    found = labkit.load(studies.path)
    assert isinstance(found, Studies)
    assert found["echo-test"].path.name == "20250102-b" and len(found) == 2
    assert labkit.load(studies.path / "echo-test-wait").plan["vary"] == ["wait"]


@pytest.mark.parametrize("packed", ["echo-test", "echo-test/20250101-a"])
def test_a_study_or_campaign_is_a_dataset(studies: Studies, packed: str) -> None:
    found = labkit.load(studies.path / packed)
    assert isinstance(found, Dataset)
    assert found.plan["study"] == "echo-test"


def test_the_reference_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "cpu-quota" in labkit.load("data/reference")
