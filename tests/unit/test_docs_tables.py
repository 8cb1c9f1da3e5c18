"""The tables of the reference pages: whole, with reasons."""

from __future__ import annotations

import runpy
from pathlib import Path

import pandas as pd

from labkit.placement import ENGINES, NETWORKS, container
from labkit.rig.rigfile import Machine
from labkit.runtimes import RUNTIMES
from labkit.units import METRICS, QUANTILES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "docs" / "tables.py"))
pairs, markdown = SCRIPT["pairs"], SCRIPT["markdown"]


def state(table: pd.DataFrame, engine: str, network: str) -> str:
    found = table[(table["engine"] == engine) & (table["network"] == network)]
    assert len(found) == 1
    return str(found["state"].iloc[0])


def test_sizes_of_each_profile_are_beside_the_papers() -> None:
    rows = [line.strip("| ").split(" | ") for line in SCRIPT["sizes"]().splitlines()[2:]]
    found = {(study, name): values for study, name, *values in rows}
    assert found["interference", "`linpack_size.equations`"] == [
        "2,000",
        "6,000",
        "15,000",
        "15,000",
    ]
    assert found["union-filesystem", "`tree.2`"] == ["2,000,000", *["53,900,000"] * 3]
    assert found["forwarding-chains", "`seconds`"][2:] == ["180", "180"]
    # No profile that is to decide measures less than `quick`. memcached's client has one CPU there.
    fewer = {"`loads.memcached.threads`", "`loads.memcached.connections`"}
    for (_, name), values in found.items():
        quick, decide = (float(text.replace(",", "")) for text in values[:2])
        assert quick <= decide or name in fewer


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
    assert state(pairs(["lxc overlay"]), "lxc", "overlay") == "impossible"


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


def test_every_key_of_a_host_is_described_in_the_example() -> None:
    text = SCRIPT["rig_keys"]()
    assert [key for key in Machine.model_fields if f"| `{key}` |" not in text] == []


def test_a_comment_is_for_the_keys_that_follow_it_directly() -> None:
    comments = SCRIPT["comments"]
    toml = "# Of the file.\n\n# Two\n# lines.\na = 1\nb = 2\n\nc = 3\n# For d.\n# d = 4\na = 5\n"
    assert comments(toml) == {"a": "Two lines.", "b": "Two lines.", "d": "For d."}


def test_every_metric_is_in_the_table_or_a_statistic_of_one() -> None:
    text = SCRIPT["metrics"]() + SCRIPT["statistics"]()
    for name in METRICS:
        base, _, ending = name.rpartition("_")
        shown = f"`_{ending}`" if ending in QUANTILES else f"| `{name}` |"
        assert shown in text, name
        assert ending not in QUANTILES or f"| `{base}` |" in text, name
