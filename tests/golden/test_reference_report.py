"""The report of the reference dataset: which pages there are, and of which campaigns."""

from __future__ import annotations

from pathlib import Path

import committed
import pandas as pd

from labkit import studies
from labkit.claims.schema import load_claims


def test_every_study_has_its_page(reference_report: Path) -> None:
    for notebook in committed.published():
        assert (reference_report / f"{notebook.stem}.html").stat().st_size > 10_000


def test_the_ledger_has_every_claim_and_no_error(reference_report: Path) -> None:
    rows = pd.read_csv(reference_report / "ledger.csv")
    assert rows["id"].to_list() == [claim.id for claim in load_claims()]
    assert not (rows["result"] == "error").any()
    index = (reference_report / "index.html").read_text()
    for source, part in rows.groupby("source"):
        for result, number in part["result"].value_counts().items():
            link = f"ledger.html?source={source}&amp;result={str(result).replace(' ', '%20')}"
            assert f'href="{link}#claims-title" aria-label="{number} {result}"' in index


def test_the_page_of_the_rig_and_those_of_studies_link_each_other(reference_report: Path) -> None:
    rig = (reference_report / "rig.html").read_text()
    for name in ("index", "ledger", *(notebook.stem for notebook in committed.published())):
        assert f'href="{name}.html' in rig
        assert 'href="rig.html"' in (reference_report / f"{name}.html").read_text()


def test_pages_and_ledger_are_of_the_same_campaigns_and_say_why(reference_report: Path) -> None:
    rows = pd.read_csv(reference_report / "ledger.csv")
    assert set(rows["dataset"].dropna()) == {
        f"data/reference/{studies.name_of(notebook)}" for notebook in committed.published()
    }
    assert "<li>rps: reference</li>" in (reference_report / "ledger.html").read_text()
    for notebook in committed.published():
        assert "Campaign: reference" in (reference_report / f"{notebook.stem}.html").read_text()
