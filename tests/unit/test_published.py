import shutil

import pandas as pd
import pytest
from frictionless import Resource
from transcriptions import WORDS, words

from labkit.claims.published import TAIL, default_root, keys, published
from labkit.errors import DatasetError

KEY = "rohprimardho2015"
KEYS = ("haruna2019", "jha2018", "latency2016", "rohprimardho2015", "struye2017")


def violations(key, folder):
    """Return how a document's table breaks its schema, by frictionless."""
    report = Resource(
        path=f"{key}.csv", basepath=str(folder), schema=f"{key}.schema.json"
    ).validate()
    return report.flatten(["rowNumber", "fieldName", "message"])


@pytest.fixture(scope="module")
def whole():
    return published(KEY)


@pytest.fixture(scope="module")
def table(whole):
    """Return the values of the tables, without what only the text states."""
    return whole[whole["item"].str.startswith("Table")]


def test_every_table_is_there_in_full(table):
    runs = {f"Table {part}.{number}": 40 for part in "CD" for number in (1, 3, 5)}
    pooled = {f"Table {part}.{number}": 4 for part in "CD" for number in (2, 4, 6)}
    expected = {"Table 4.1": 15, "Table 4.2": 15, **runs, **pooled}
    assert table["item"].value_counts().to_dict() == expected
    assert len(table) == 294


@pytest.mark.parametrize(
    ("item", "placement", "run", "statistic", "value"),
    [
        ("Table 4.1", "bare", "combined", "min", 4.92),
        ("Table 4.1", "docker bridge", "combined", "p99", 10.7),
        ("Table 4.2", "docker host", "combined", "min", 3.47),
        ("Table 4.2", "docker bridge", "combined", "std", 0.26),
        ("Table C.1", "docker host", "4", "p99", 17.62),
        ("Table C.1", "docker host", "10", "std", 1.2),
        ("Table C.3", "docker bridge", "3", "median", 6.711),
        ("Table C.3", "docker bridge", "7", "std", 2.90),
        ("Table C.5", "bare", "9", "p99", 19.64),
        ("Table D.1", "docker host", "9", "p99", 4.93),
        ("Table D.2", "docker host", "combined", "median", 4.13),
        ("Table D.3", "docker bridge", "5", "std", 0.40),
        ("Table D.5", "bare", "5", "median", 4.04),
    ],
)
def test_spot_values(table, item, placement, run, statistic, value):
    row = table[(table["item"] == item) & (table["run"] == run)]
    row = row[(row["placement"] == placement) & (row["statistic"] == statistic)]
    assert row["value"].to_list() == [value]


def test_what_is_printed_twice_is_the_same(table):
    pooled = table[(table["run"] == "combined") & (table["statistic"] != "min")]
    printed = pooled.groupby(["affinity", "wait", "placement", "statistic"])["value"]
    assert (printed.size() == 2).all() and (printed.nunique() == 1).all()


def test_order_statistics_are_in_order(table):
    wide = table.pivot(index=["item", "placement", "run"], columns="statistic", values="value")
    assert (wide["median"] < wide["p95"]).all() and (wide["p95"] < wide["p99"]).all()
    assert not (wide["min"] >= wide["median"]).any()


def test_what_only_the_text_states(whole, table):
    text = whole.drop(table.index)
    assert text["item"].str.match("section|Figure").all()
    median = text[(text["item"] == "section 4.1") & (text["statistic"] == "median")]
    assert median["value"].tolist() == [6.17]


def test_factors_and_counts(table):
    baseline = table["item"].str.match(r"Table (4\.1|C)")
    assert set(zip(table["affinity"], table["wait"], baseline, strict=True)) == {
        ("free", "block", True),
        ("split", "spin", False),
    }
    assert (table.loc[table["run"] != "combined", "n"] == 1_000_000).all()
    assert "layer 2" in table.attrs["schema"]["mapping"]["docker bridge"]
    assert set(table.columns) == {field["name"] for field in table.attrs["schema"]["fields"]}


@pytest.mark.parametrize(
    "change",
    [
        {"value": "6,71"},
        {"value": "-1"},
        {"value": ""},
        {"unit": "ms"},
        {"n": "1.5"},
        {"item": "Table 9.1"},
        {"run": "combined", "item": "Table 4.1", "statistic": "median"},
    ],
)
def test_frictionless_finds_a_broken_table(tmp_path, change):
    for suffix in ("csv", "schema.json"):
        shutil.copy(default_root() / f"{KEY}.{suffix}", tmp_path)
    text = pd.read_csv(tmp_path / f"{KEY}.csv", dtype="str")
    text.loc[0, list(change)] = list(change.values())
    text.to_csv(tmp_path / f"{KEY}.csv", index=False)
    assert violations(KEY, tmp_path)


def test_unknown_keys(tmp_path):
    with pytest.raises(DatasetError, match="no published document 'nobody1900'"):
        published("nobody1900")
    with pytest.raises(DatasetError, match="no published document"):
        published(KEY, tmp_path / "nowhere")


def test_all_five_documents_are_published():
    assert keys() == list(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_published_table_has_a_schema_that_holds(key):
    table = published(key)
    schema = table.attrs["schema"]
    assert schema["name"] == key and schema["title"] and schema["source"] and schema["mapping"]
    assert all(field["description"] for field in schema["fields"])
    assert len(table) > 20 and tuple(table.columns[-len(TAIL) :]) == TAIL
    assert table["value"].notna().all()
    # The order of low and high, and no spread below zero, whatever the schema says.
    cell = [name for name in table.columns if name not in ("statistic", "value")]
    wide = table[table["statistic"].isin(["low", "high"])]
    wide = wide.pivot(index=cell, columns="statistic", values="value")
    pairs = wide.reindex(columns=["low", "high"]).dropna()  # the text has bounds of one side
    assert (pairs["low"] <= pairs["high"]).all()
    assert (table.loc[table["statistic"] == "std", "value"] >= 0).all()


@pytest.mark.parametrize("key", KEYS)
def test_every_value_follows_its_schema(key):
    assert violations(key, default_root()) == []


@pytest.mark.parametrize("key", KEYS)
def test_tables_of_text_hold_text(key):
    table = words(key)
    assert tuple(table.columns) == WORDS
    assert (table["item"] != "").all() and (table["text"] != "").all()
    assert not table.duplicated(["item", "row", "column"]).any()
