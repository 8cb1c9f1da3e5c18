"""The page of kills and faults shows the table of the runs that are committed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def chaos() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos", ROOT / "benchmarks" / "chaos.py")
    assert spec and spec.loader
    module = sys.modules["chaos"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_table_of_the_runs() -> None:
    lines = (ROOT / "benchmarks" / "chaos.jsonl").read_text().splitlines()
    assert chaos().table(map(json.loads, lines)) in (ROOT / "docs" / "chaos.md").read_text()


def test_a_run_draws_the_same_of_one_seed() -> None:
    module = chaos()
    kinds = ["kills", "faults", "windows"]
    cards = module.deck(7, kinds)
    assert cards == module.deck(7, kinds) != module.deck(8, kinds)
    assert {*module.FAULTS, *module.WINDOWS} < {*cards}


def test_a_difference_of_a_setting_is_not_a_leftover() -> None:
    module = chaos()
    before = {"sysctls of sut": "a = 1\n", "groups": "", "rules of sut": "x\n"}
    after = {"sysctls of sut": "a = 2\n", "groups": "/g\n", "rules of sut": "x\n"}
    assert module.changed(before, after, settings=True) == ["sysctls of sut: -a = 1; +a = 2"]
    assert module.changed(before, after, settings=False) == ["groups: +/g"]
