"""The table of engines and networks: whole, with reasons, and the README's is current."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pandas as pd
import pytest

from labkit.errors import UsageError
from labkit.placement import ENGINES, NETWORKS, container
from labkit.runtimes import RUNTIMES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "readme_table.py"))
pairs, markdown = SCRIPT["pairs"], SCRIPT["markdown"]


def state(table: pd.DataFrame, engine: str, network: str) -> str:
    found = table[(table["engine"] == engine) & (table["network"] == network)]
    assert len(found) == 1
    return str(found["state"].iloc[0])


def test_every_pair_has_exactly_one_state() -> None:
    table = pairs([])
    assert len(table) == len(ENGINES) * len(NETWORKS)
    assert not table.duplicated(["engine", "network"]).any()
    assert set(table["state"]) <= {"possible", "impossible"}


def test_every_impossible_pair_has_a_reason() -> None:
    table = pairs([])
    never = table[table["state"] == "impossible"]
    assert len(never) and (never["reason"].str.len() > 10).all()
    for row in never.itertuples():
        assert RUNTIMES[row.engine].infeasible(row.network) == row.reason


def test_what_a_dataset_holds_is_measured_whatever_its_limits() -> None:
    limited = container("lxc", "nat").limited(cpuset="1").label
    table = pairs(["docker host", limited, "bare clean"])
    held = table[table["state"] == "measured"]
    assert set(zip(held["engine"], held["network"], strict=True)) == {
        ("docker", "host"),
        ("lxc", "nat"),
    }
    assert (held["reason"] == "").all()
    assert state(table, "lxc", "bridge") == "possible"


def test_what_cannot_be_is_not_measured() -> None:
    assert state(pairs(["gvisor host"]), "gvisor", "host") == "impossible"


def test_the_text_shows_every_pair_and_every_reason() -> None:
    table = pairs(["docker host"])
    text, _, notes = markdown(table).partition("\n\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert rows[0] == ["network", *ENGINES] and [row[0] for row in rows[2:]] == list(NETWORKS)
    numbered = dict(line.split(". ", 1) for line in notes.splitlines())
    words = {"measured": "measured", "possible": "possible", "impossible": "no"}
    for row in table.itertuples():
        shown = rows[2 + NETWORKS.index(row.network)][1 + ENGINES.index(row.engine)]
        word, _, note = shown.partition(" ")
        assert word == words[row.state]
        assert (numbered[note.strip("()")] if note else "") == (row.reason and f"{row.reason}.")
    assert list(numbered) == [str(number + 1) for number in range(len(numbered))]


def test_the_table_is_written_between_its_marks_and_nowhere_else() -> None:
    begin, end = SCRIPT["BEGIN"], SCRIPT["END"]
    written = SCRIPT["written"](f"above\n{begin}\nold\n{end}\nbelow\n", "new")
    assert written == f"above\n{begin}\n\nnew\n\n{end}\nbelow\n"
    assert SCRIPT["written"](written, "new") == written
    for wrong in ("", begin, f"{end}{begin}", f"{begin}{end}{end}", f"{begin}{begin}{end}"):
        with pytest.raises(UsageError, match="the README needs"):
            SCRIPT["written"](wrong, "new")


def test_the_table_of_the_readme_is_the_current_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = markdown(pairs(SCRIPT["measured"](ROOT / "data" / "reference")))
    assert SCRIPT["written"](readme, table) == readme, "run scripts/readme_table.py"
    assert re.search(r"\| host \| measured ", table)
