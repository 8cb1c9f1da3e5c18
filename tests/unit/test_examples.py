"""The examples in the docstrings of the public names run, on the reference, and none is missing."""

from __future__ import annotations

import doctest
import importlib
import inspect
from typing import Any

import pytest

from labkit import project

MODULES = ("labkit", "labkit.analysis", "labkit.plots", "labkit.tools")
#: Further modules and classes with examples, which public names return or notebooks see.
OTHERS = (
    "labkit.answers",
    "labkit.units",
    "labkit.errors",
    "labkit.dataset",
    "labkit.dataset.collection",
    "labkit.analysis.tables",
)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public() -> dict[str, Any]:
    """Return every public function and class."""
    found = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for one in module.__all__:
            if inspect.isroutine(getattr(module, one)) or inspect.isclass(getattr(module, one)):
                found[f"{name}.{one}"] = getattr(module, one)
    return found


def examples(thing: Any, name: str) -> list[doctest.DocTest]:
    module = thing if inspect.ismodule(thing) else inspect.getmodule(thing)
    return [one for one in doctest.DocTestFinder().find(thing, name, module=module) if one.examples]


@pytest.mark.parametrize("name", sorted({*public(), *OTHERS}))
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project())
    found = examples(public().get(name) or importlib.import_module(name), name)
    assert found, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    said: list[str] = []
    for one in found:
        runner.run(one, out=said.append)
    assert not runner.failures, "".join(said)
