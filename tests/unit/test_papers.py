"""Tables of the papers: transcribed twice, with schemas, next to the numbers of a campaign."""

import re
import tomllib
import unicodedata

import pandas as pd
import pytest
from frictionless import Resource
from made_up import write

from labkit.analysis.papers import side_by_side
from labkit.errors import UsageError
from labkit.paths import project

FOLDER = project("data/published")
PAPERS = pytest.mark.parametrize("paper", [path.stem for path in sorted(FOLDER.glob("*.toml"))])
#: A sign stands at the head of a number, not between two; digits within a word are no number.
NUMBER = re.compile(r"(?:(?<![\w.)\]%])[-+])?(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def plain(text):
    """Return words without markup, kinds of dash, and spaces."""
    text = re.sub(r"</?\w+>|\\(?=_)|\*", "", text.replace(r"\times", "×"))
    text = re.sub("[\N{HYPHEN}-\N{HORIZONTAL BAR}\N{MINUS SIGN}]", "-", text)
    return re.sub(r" ?\+ ?", "+", " ".join(unicodedata.normalize("NFKC", text).split()))


def numbers(text):
    """Return the numbers of a printed cell, one for a range whose ends are equal."""
    found = [float(word.replace(",", "")) for word in NUMBER.findall(plain(text))]
    return str(list(dict.fromkeys(found)) if len(found) == 2 else found)


def cells(name, columns=("label",), text="text"):
    """Return the text of each printed cell; the values of a cell follow each other."""
    frame = pd.read_csv(FOLDER / name, dtype=str, keep_default_na=False)
    frame = frame[~frame["item"].str.match("section|Figure")]
    label = frame[[*columns]].agg(lambda row: plain("; ".join(filter(None, row))), axis=1)
    return frame[text].groupby(frame["item"].map(plain) + ": " + label).agg(" | ".join).map(plain)


@PAPERS
def test_both_transcriptions_are_the_same_and_follow_their_schema(paper):
    first, second = cells(f"{paper}.csv", text="value"), cells(f"second/{paper}.csv")
    if (FOLDER / f"{paper}.words.csv").is_file():
        texts = cells(f"{paper}.words.csv", ("row", "column"))
        pd.testing.assert_series_equal(texts, second[texts.index], check_names=False)
        second = second.drop(texts.index.difference(first.index))
    pd.testing.assert_series_equal(first.map(numbers), second.map(numbers), check_names=False)
    table = Resource(f"{paper}.csv", schema=f"{paper}.schema.json", basepath=str(FOLDER))
    assert table.validate().valid


@PAPERS
def test_every_entry_of_the_mapping_has_printed_numbers(paper):
    printed = pd.read_csv(FOLDER / f"{paper}.csv", keep_default_na=False)
    for entry in tomllib.loads((FOLDER / f"{paper}.toml").read_text())["table"]:
        rows = printed[printed["item"].isin(entry["items"])]
        assert set(entry["items"]) == set(rows["item"])
        assert set(entry["values"]) <= set(rows["metric"])
        for factor, levels in entry.get("levels", {}).items():
            assert set(levels) <= {*rows[factor], *entry.get("baseline", {}).values()}


@pytest.fixture(scope="module")
def affinity(tmp_path_factory):
    """A campaign in which Docker's host network takes 1.5 times as long, without a bridge."""
    factors = {"placement": ["bare clean", "docker host"], "affinity": ["free", "split"]}
    factors |= {"wait": ["block", "spin"], "capture": ["off", "on"]}
    statistics = ("min", "median", "p95", "p99", "std")
    names = [f"{kind}_ns_{name}" for kind in ("rtt", "residence") for name in statistics]
    times = {"bare clean": 1000, "docker host": 1500}
    return write(
        tmp_path_factory.mktemp("affinity"),
        factors,
        lambda levels, _: dict.fromkeys(names, times[levels["placement"]]),
        study="affinity-spinning",
        blocks=6,
        spread=1e-3,
    )


def test_printed_and_measured_numbers_stand_in_one_row_or_a_reason(affinity):
    table = side_by_side(affinity, "rohprimardho2015", ["Table 4.2"])
    assert len(table) == 30 and set(table["table"]) == {"Table 4.2"}
    cell = table["condition"].eq("docker host, split, spin") & table["paper"].eq("4.13 us")
    here, paper, ratio = table[cell].iloc[0, -3:]
    assert paper == "0.995x" and re.match(r"1\.(49|50|51) us \[", here)
    assert re.match(r"1\.(49|50|51)x \[", ratio)
    missing = table["condition"].str.startswith("docker bridge")
    here = table["here [95 % interval]"].str.match("not measured: .*docker bridge.*: not in this")
    assert missing.sum() == 10 and (here == missing).all()
    assert set(table["ratio, here"][missing]) == {""}


def test_a_printed_loss_is_a_ratio_and_a_range_has_a_row_a_condition(tmp_path):
    factors = {"placement": ["bare clean", "lxc nat", "lxc host"], "hosts": [1], "chain": [20]}
    campaign = write(
        tmp_path,
        {**factors, "payload_b": [28]},
        lambda levels, _: {"packets_per_s": 100.0},
        study="forwarding-chains",
        spread=1e-3,
    )
    table = side_by_side(campaign, "struye2017", ["Table II"])
    row = table[table["condition"] == "lxc nat, hosts 1, chain 20, payload 28 B"].iloc[0]
    assert (row["paper"], row["ratio, paper"]) == ("45 to 57 %", "0.430x to 0.550x")
    assert re.match(r"(0\.999|1\.000|1\.001)x \[", row["ratio, here"])


@pytest.mark.parametrize(
    ("paper", "tables"),
    [("nobody1900", []), ("rohprimardho2015", ["Table 9"]), ("jha2018", ["Table III"])],
)
def test_unknown_papers_and_tables_are_refused(affinity, paper, tables):
    with pytest.raises(UsageError):
        side_by_side(affinity, paper, tables)
