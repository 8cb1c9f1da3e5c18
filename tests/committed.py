"""The report of the reference dataset, without the minutes that executing all notebooks takes.

They are committed executed on data/reference, and nbval executes them again: a report made of them
as they are tests all the rest.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from labkit import studies
from labkit.report import execution


def report(folder: Path, *, execute: str = "", **given: Any) -> None:
    """Write the report into a folder; of the notebooks one may be executed, by its name."""

    def executed(notebook: Path, output: Path, *more: Any, **options: Any) -> Path:
        if notebook.stem == execute:
            return execution.execute(notebook, output, *more, **options)
        return Path(shutil.copy(notebook, output))

    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labkit.report.pages.execute", executed)
        for name, value in given.items():
            patch.setattr(studies, name, value)
        index, headlines, failures = studies.report(
            "no such profile", folder, measure=False, new=False, say=said.append
        )
    assert index == folder / "index.html" and headlines and not failures
    assert "evaluating the claims" in said
