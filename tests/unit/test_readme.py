"""The README is short, and what it says of the reference dataset is true."""

from __future__ import annotations

import runpy

import committed

from labkit import project

README = project("README.md").read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_the_outcomes_are_those_of_the_ledger() -> None:
    rows = committed.ledger_of(committed.campaigns())
    found = runpy.run_path(str(project("docs/tables.py")))["outcomes"](rows)
    assert found in README, f"write this table into README.md:\n{found}"


def test_the_findings_are_those_of_the_reference_dataset() -> None:
    found = runpy.run_path(str(project("docs/tables.py")))["findings"]()
    assert found in README, f"write this table into README.md:\n{found}"
