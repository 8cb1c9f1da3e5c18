"""Published tables, transcribed twice in different ways, and their schemas."""

import re
import unicodedata

import pandas as pd
import pytest
from frictionless import Resource

from labkit.paths import project

FOLDER = project("data/published")
PAPERS = ("haruna2019", "jha2018", "latency2016", "rohprimardho2015", "struye2017")
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
    label = ["; ".join(filter(None, row)) for row in frame[[*columns]].to_numpy()]
    name = frame["item"].map(plain) + ": " + pd.Series(label, frame.index).map(plain)
    return frame[text].groupby(name).agg(" | ".join).map(plain)


@pytest.mark.parametrize("paper", PAPERS)
def test_both_transcriptions_are_the_same(paper):
    first, second = cells(f"{paper}.csv", text="value"), cells(f"second/{paper}.csv")
    if (FOLDER / f"{paper}.words.csv").is_file():
        texts = cells(f"{paper}.words.csv", ("row", "column"))
        pd.testing.assert_series_equal(texts, second[texts.index], check_names=False)
        second = second.drop(texts.index.difference(first.index))
    pd.testing.assert_series_equal(first.map(numbers), second.map(numbers), check_names=False)


@pytest.mark.parametrize("paper", PAPERS)
def test_values_follow_their_schema(paper):
    table = Resource(f"{paper}.csv", schema=f"{paper}.schema.json", basepath=str(FOLDER))
    assert table.validate().valid


def test_what_does_not_follow_from_a_papers_own_tables_can_be_cited():
    checks = pd.read_csv(FOLDER / "checks.csv", keep_default_na=False)
    assert checks["follows"].value_counts().to_dict() == {"yes": 336, "no": 155, "": 53}
    assert set(checks["paper"]) == set(PAPERS)
