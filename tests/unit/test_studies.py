"""The report of what there is, without measuring: pages, index and ledger."""

from __future__ import annotations

from pathlib import Path

import committed
import pandas as pd
import pytest

from labkit import studies
from labkit.claims.reading import load_claims


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a report that was made without measuring."""
    folder = tmp_path_factory.mktemp("reports")
    committed.report(folder, execute="65-rps")
    return folder


def test_every_study_has_its_page(report: Path) -> None:
    for notebook in studies.find([]):
        assert (report / f"{notebook.stem}.html").stat().st_size > 10_000


def test_the_ledger_has_every_claim_and_no_error(report: Path) -> None:
    rows = pd.read_csv(report / "ledger.csv")
    assert rows["id"].to_list() == [claim.id for claim in load_claims()]
    assert not (rows["result"] == "error").any()
    index = (report / "index.html").read_text()
    for source, part in rows.groupby("source"):
        for result, number in part["result"].value_counts().items():
            link = f"ledger.html?source={source}&amp;result={str(result).replace(' ', '%20')}"
            assert f'<a href="{link}#claims-title">{number}</a>' in index


def test_the_page_of_the_rig_leads_to_every_study_and_back(report: Path) -> None:
    rig = (report / "rig.html").read_text()
    for name in ("index", "ledger", *(notebook.stem for notebook in studies.find([]))):
        assert f'href="{name}.html' in rig
        assert 'href="rig.html"' in (report / f"{name}.html").read_text()


def test_nothing_measured_is_told_from_damage(tmp_path: Path) -> None:
    assert studies.measured_here("quick", ["no-such-study"]) == []
    with pytest.raises(studies.NothingMeasured):
        studies.dataset_of("no-such-study", "quick")
