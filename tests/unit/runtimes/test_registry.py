"""The registry of runtimes: every file is an engine, and why an engine cannot be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labkit import runtimes
from labkit.placement import ENGINES, container
from labkit.runtimes import RUNTIMES, engines

FOLDER = Path(engines.__file__).parent
COPY = """
from labkit.runtimes.engines.podman import Podman


class Pilot(Podman):
    program = "pilot"
"""
USE = """
import sys
from labkit.runtimes import engines
engines.__path__.append(sys.argv[1])
from labkit.runtimes import _runtime
print(_runtime("pilot").program, _runtime("pilot").infeasible("overlay"))
"""


def test_every_file_is_an_engine() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert set(RUNTIMES) == names == {"bare", *ENGINES}
    assert all(container(name).runtime == name for name in ENGINES)


def test_an_engine_is_the_class_that_its_file_defines(tmp_path: Path) -> None:
    (tmp_path / "pilot.py").write_text(COPY)
    argv = [sys.executable, "-c", USE, str(tmp_path)]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("pilot Podman has no network between hosts")


def test_a_file_without_an_engine_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nothing.py").write_text("")
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    with pytest.raises(ImportError, match="must define one class derived from Runtime"):
        runtimes._runtime("nothing")
