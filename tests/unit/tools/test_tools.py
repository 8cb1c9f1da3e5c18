"""What every tool's module offers, and how its arguments are checked."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import labkit.tools
from labkit.errors import UsageError
from labkit.tools import Tool, base

MODULES = [
    importlib.import_module(f"labkit.tools.{module.name}")
    for module in pkgutil.iter_modules(labkit.tools.__path__)
    if module.name != "programs"
]
PROBED = [module for module in MODULES if hasattr(module, "probe")]


@pytest.mark.parametrize("module", PROBED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_tool_measures_or_serves(module: ModuleType) -> None:
    measures = any(
        getattr(value, "__module__", "") == base.__name__ and name == "Client"
        for name, value in vars(module).items()
    )
    if measures:
        assert isinstance(module, Tool)
    else:
        assert hasattr(module, "server") or hasattr(module, "forwarder")


def test_an_invalid_argument_is_named_with_its_value() -> None:
    for wrong in (0, -1, 1e5, True, "3", None):
        with pytest.raises(UsageError, match=r"tool: count=.*: must be an integer, at least 1"):
            base.whole("tool", count=wrong)
    for wrong in (0, -1.5, float("nan"), float("inf"), "3"):
        with pytest.raises(UsageError, match=r"tool: rate=.*: must be positive"):
            base.above_zero("tool", rate=wrong)
    with pytest.raises(UsageError, match="unknown wait 'maybe'"):
        base.one_of("wait", "maybe", ("block", "spin"))
    base.whole("tool", least=0, count=0)
    base.above_zero("tool", rate=0.5)
    base.one_of("wait", "spin", ("block", "spin"))


def test_a_tool_is_imported_when_it_is_first_used() -> None:
    program = "import labkit.tools; print(labkit.tools.sockperf.PORT, hasattr(labkit.tools, 'nix'))"
    argv = [sys.executable, "-c", program]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["11111", "False"]
