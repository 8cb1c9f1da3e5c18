"""Which campaigns of a study count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_datasets import plan, write_campaign

from labkit import chosen
from labkit.campaign.store import write_json
from labkit.chosen import NothingMeasured, choose, choose_all
from labkit.dataset import load
from labkit.dataset.files import LOOKS


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(chosen, "project", lambda path=".": tmp_path / path)
    return tmp_path / "data"


def campaign(folder: Path, blocks: int, *, failed: int = 0, messages: int = 4) -> Path:
    """Write a campaign, of which the last `failed` blocks lack a trial."""
    write_campaign(folder, blocks=blocks)
    settings = {"messages": messages}
    write_json(folder / "plan.json", plan() | {"order": [[0, 1]] * blocks, "settings": settings})
    for block in range(blocks - failed + 1, blocks + 1):
        path = folder / "trials" / f"b{block:02d}-p02-a1" / "trial.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "failed"}))
    return folder


def test_nothing_measured(data: Path) -> None:
    with pytest.raises(NothingMeasured) as caught:
        choose("echo", "quick")
    assert caught.value.remedy == "labkit run echo --profile quick"
    assert choose_all(["echo"]) == []
    reference = campaign(data / "reference/echo", 6)
    found = choose("echo")
    assert found.campaigns == (reference,) and found.shown == reference
    assert str(found) == "echo: reference, because nothing was measured here"
    assert choose_all(["other", "echo"], "reference")[0].why == "reference"


@pytest.mark.parametrize(
    ("blocks", "failed", "profile", "why"),
    [
        (1, 0, None, "reference, because the local campaign has 1 block, and verdicts need 5"),
        (6, 2, None, "reference, because the local campaign has 4 blocks, and verdicts need 5"),
        (2, 2, "tiny", "reference, because the local campaign has no complete block"),
        (1, 0, "quick", "reference, because nothing was measured here with profile quick"),
        (1, 0, "tiny", "measured here, data/local/tiny/echo/1, with 1 block"),
        (6, 1, None, "measured here, data/local/tiny/echo/1, with 5 blocks"),
        (9, 0, "reference", "reference"),
    ],
)
def test_a_small_or_failed_campaign_replaces_the_reference_only_when_asked_for(
    data: Path, blocks: int, failed: int, profile: str | None, why: str
) -> None:
    reference = campaign(data / "reference/echo", 6)
    local = campaign(data / "local/tiny/echo/1", blocks, failed=failed)
    found = choose("echo", profile)
    assert found.why == why
    assert found.campaigns == ((reference,) if why.startswith("reference") else (local,))


def test_of_the_plans_the_one_with_most_complete_blocks_counts_with_all_its_campaigns(
    data: Path,
) -> None:
    first = campaign(data / "local/quick/echo/1", 5)
    campaign(data / "local/quick/echo/2", 8, messages=9, failed=7)
    second = campaign(data / "local/quick/echo/3", 5)
    empty = data / "local/quick/echo/4"
    write_json(empty / "plan.json", plan() | {"order": [[0, 1]] * 5})
    found = choose("echo")
    assert found.campaigns == (first, second) and found.shown == second
    assert found.why == (
        "measured here, data/local/quick/echo/3 and 1 more of its plan, with 10 blocks"
    )
    newest = campaign(data / "local/tiny/echo/5", 10, messages=7)
    assert choose("echo").campaigns == (newest,)
    assert choose("echo", "quick").campaigns == (first, second)


def test_a_condition_that_a_look_dropped_is_not_missing(data: Path) -> None:
    local = campaign(data / "local/echo/1", 6, failed=4)
    assert len(load(local).complete_blocks) == 2
    looks = [{"blocks": 2, "dropped": ["docker bridge | block"]}]
    write_json(local / LOOKS, {"looks": looks})
    assert len(load(local).complete_blocks) == 6


def test_without_a_reference_any_campaign_counts(data: Path) -> None:
    local = campaign(data / "local/echo/1", 1, failed=1)
    assert choose("echo").campaigns == (local,)
    assert choose("echo").why.endswith("with no complete block")
