"""The examples in docstrings run, on the reference."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from labkit.paths import SHIPPED, project

FILES = sorted(path for path in (SHIPPED / "labkit").rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SHIPPED).as_posix())
def test_examples_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project())
    module = importlib.import_module(".".join(path.relative_to(SHIPPED).with_suffix("").parts))
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, attempted = doctest.testmod(module, optionflags=options)
    assert attempted and not failed
