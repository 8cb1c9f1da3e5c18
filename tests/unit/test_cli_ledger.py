"""`labkit ledger`: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from claim_files import claim

import labkit
from labkit import cli
from labkit.chosen import Chosen, NothingMeasured
from labkit.claims.ledger import COLUMNS
from labkit.claims.schema import Claim, Claims
from labkit.errors import DatasetError
from labkit.paths import project

REFERENCE = str(project("data/reference/affinity-spinning"))
WHERE = {"affinity": "split", "wait": "spin", "capture": "off"}
ABOUT: dict[str, Any] = {
    "source": "jha2018",
    "study": "affinity-spinning",
    "metric": "rtt_ns",
    "statistic": "median",
    "where": WHERE,
    "condition": {"placement": "docker bridge"},
    "baseline": {"placement": "bare clean"},
}
SLOWER = claim("difference", "jha2018-slower", direction="higher", **ABOUT)
FASTER = claim("difference", "jha2018-faster", direction="lower", **ABOUT)
OTHER = SLOWER.model_copy(
    update={"id": "struye2017-other", "source": "struye2017", "study": "cpu-quota"}
)
BROKEN = SLOWER.model_copy(update={"id": "jha2018-broken", "metric": "nosuch", "statistic": ""})


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that replaces the claims."""

    def put(*several: Claim) -> None:
        found = Claims(several)
        monkeypatch.setattr("labkit.claims.schema.load_claims", lambda *_: found)

    return put


def run(*argv: str) -> int:
    """Return the exit code of a command."""
    try:
        cli.main(["ledger", *argv])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_a_line_a_claim_and_how_often_there_is_each_result(
    given: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    given(SLOWER, FASTER, OTHER)
    assert run(REFERENCE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["claim", "published", "measured", "[interval]", "setting", "result"]
    assert [line.split()[0] for line in lines[1:4]] == [SLOWER.id, FASTER.id, OTHER.id]
    assert lines[1].endswith("replicated") and "[" in lines[1] and " same " in lines[1]
    assert lines[2].endswith("contradicted") and lines[3].endswith("not measured")
    assert lines[-1] == "3 claims: 1 replicated, 1 contradicted, 1 not measured"


def test_rows_are_chosen_and_written(
    given: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given(SLOWER, FASTER, OTHER)
    path = tmp_path / "ledger.csv"
    assert run(REFERENCE, "--source", "jha2018", "--result", "replicated", "--csv", str(path)) == 0
    assert "1 claim: 1 replicated" in capsys.readouterr().out
    table = pd.read_csv(path)
    assert tuple(table.columns) == COLUMNS and table["id"].tolist() == [SLOWER.id]


def test_the_papers_arithmetic(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given(SLOWER, OTHER)
    assert run(REFERENCE, "--arithmetic", "--source", "jha2018") == 0
    out = capsys.readouterr().out
    assert "jha2018: " in out and "statements do not follow" in out and "struye2017: " not in out
    assert "its tables give" in out
    assert "jha2018: 12 times two places contradict each other in words" in out


@pytest.mark.parametrize(
    "argv",
    [("--source", "nobody"), ("--result", "perhaps"), ("--profile",), ("--unknown",)],
)
def test_wrong_use_is_2(given: Any, capsys: pytest.CaptureFixture[str], argv: Any) -> None:
    given(SLOWER)
    assert run(REFERENCE, *argv) == 2
    assert capsys.readouterr().err


def test_an_error_in_one_claim_is_1_and_is_said(
    given: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    given(SLOWER, BROKEN)
    assert run(REFERENCE, "--result", "error") == 1
    out = capsys.readouterr().out
    assert f"{BROKEN.id}: DatasetError: {BROKEN.id}: metric: unknown metric 'nosuch'" in out
    assert run(REFERENCE, "--result", "replicated") == 1
    assert SLOWER.id in capsys.readouterr().out


def test_a_missing_campaign_is_1(
    given: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given(SLOWER)
    assert run(str(tmp_path)) == 1
    assert "no campaign here" in capsys.readouterr().err


def test_by_default_the_campaigns_that_count_are_taken_and_named(
    given: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given(SLOWER, OTHER)
    asked = []

    def choose(name: str, profile: str) -> Chosen:
        asked.append((name, profile))
        if name != "affinity-spinning":
            raise NothingMeasured("nothing was measured")
        return Chosen(name, (Path(REFERENCE),), Path(REFERENCE), "reference, for a test")

    monkeypatch.setattr("labkit.chosen.choose", choose)
    assert run("--profile", "paper") == 0
    out = capsys.readouterr().out
    assert "1 replicated" in out and "affinity-spinning: reference, for a test" in out
    assert ("cpu-quota", "paper") in asked

    def damaged(name: str, profile: str) -> Chosen:
        raise DatasetError("a file of the dataset is damaged", where="plan.json")

    monkeypatch.setattr("labkit.chosen.choose", damaged)
    assert run() == 1
    assert "damaged" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "Examples: labkit ledger" in capsys.readouterr().out


def test_it_is_public() -> None:
    assert labkit.ledger is not None and "ledger" in labkit.__all__
