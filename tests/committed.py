"""The report of the reference dataset, without the minutes that executing all notebooks takes.

They are committed executed on data/reference, and nbval executes them again: a report made of them
as they are tests all the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit import notebooks, studies
from labkit.claims.ledger import ledger
from labkit.paths import project

_find = studies.find


def published(names: Iterable[str] = ()) -> list[Path]:
    """Return the notebooks of the named studies, or of all that have a reference campaign."""
    notebooks = _find(names)
    reference = project("data/reference")
    return [path for path in notebooks if (reference / studies.name_of(path)).is_dir()]


def campaigns() -> tuple[Path, ...]:
    """Return the reference campaign of each study."""
    return tuple(project("data/reference") / studies.name_of(path) for path in published())


@cache
def _ledger_of(campaigns: tuple[Path, ...]) -> pd.DataFrame:
    return ledger(list(campaigns))


def ledger_of(campaigns: tuple[Path, ...]) -> pd.DataFrame:
    """Return the ledger of campaigns that no test changes, evaluated once."""
    return _ledger_of(campaigns).copy()


def report(folder: Path, *, execute: str) -> None:
    """Write the report into a folder; one of the notebooks is executed, named by its stem."""

    def executed(notebook: Path, output: Path, *more: Any, **options: Any) -> Path:
        if notebook.stem == execute:
            return notebooks.execute(notebook, output, *more, **options)
        return Path(shutil.copy(notebook, output))

    messages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labkit.report.pages.execute", executed)
        patch.setattr(studies, "find", published)
        index, headlines, failures = studies.report(
            "reference", folder, measure=False, new=False, say=messages.append
        )
    assert index == folder / "index.html" and headlines and not failures
    assert "evaluating the claims" in messages
