import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from labkit.claims.stated import COLUMNS, KINDS, Stated, load_stated, recompute, with_unit
from labkit.errors import DatasetError

KEYS = ("haruna2019", "jha2018", "latency2016", "rohprimardho2015", "struye2017")
DATA = Path(__file__).parent / "data" / "claims"
TEXT = (DATA / "small.stated.toml").read_text()
HEAD, ENTRY, ORDER = re.split(r"(?m)(?=^\[\[stated\]\]$)", TEXT)


@pytest.fixture
def small(tmp_path):
    """Return a writer of a small document's statements."""
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)

    def write(text):
        (tmp_path / "small.stated.toml").write_text(text)
        return tmp_path

    return write


def test_statements_are_recomputed(small):
    root = small(TEXT)
    number, order = load_stated("small", root)
    assert number.computed == number.shown == pytest.approx(7.368, abs=0.001)
    assert number.difference == pytest.approx(-0.632, abs=0.001) and not number.follows
    assert number.detail == "stated 8 %; its tables give 7.368 %"
    assert order.stated is True and order.computed is True and order.follows
    assert order.detail == "stated; its tables have 1.08"
    frame = recompute(root=root)
    assert tuple(frame.columns) == COLUMNS
    assert frame["follows"].tolist() == [False, True]
    assert frame["follows"].dtype == bool and frame["shown"].dtype == float
    assert frame["stated"].tolist() == [8, True] and frame["difference"].isna().tolist() == [0, 1]
    pd.testing.assert_frame_equal(frame, recompute("small", root))
    assert recompute("small", small(HEAD)).empty


def test_the_tolerance_includes_its_end():
    def one(stated, computed, tolerance):
        texts = dict.fromkeys(("id", "source", "place", "says", "unit"), "x")
        return Stated(
            **texts,
            kind="ratio",
            stated=stated,
            computed=computed,
            shown=0,
            tolerance=tolerance,
        )

    assert one(0.3, 0.2, 0.1).follows and one(0.2, 0.3, 0.1).follows
    assert not one(0.3, 0.19, 0.1).follows
    assert one(True, True, 0).follows and not one(True, False, 0).follows
    assert one(1.0, 1.0, 0).follows and not one(1.0, 1.001, 0).follows


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "format = 2", "format: 1 was expected"),
        ('source = "small"', "", "source missing"),
        ('source = "small"', 'source = "big"', "source: is 'big' and not 'small'"),
        ("format = 1", "format = 1\nextra = 2", "unknown extra"),
        ("format = 1", "format = ", "is not TOML"),
        ("small-nat-drop", "small-order", "small-order: the id is used twice"),
        ("small-nat-drop", "nat-drop", "nat-drop: the id does not start with small-"),
        ('id = "small-nat-drop"', "", "entry 1: id missing"),
        ('place = "section 2"', "", "small-nat-drop: place missing"),
        ("stated = 8", "", "small-nat-drop: stated missing"),
        ("stated = 8", "stated = '8'", "small-nat-drop: stated"),
        ("stated = 8", "stated = false", "small-nat-drop: stated"),
        ("tolerance = 0.5", "", "small-nat-drop: tolerance missing"),
        ("tolerance = 0.5", "tolerance = -1", "small-nat-drop: tolerance"),
        ('unit = "%"', "", "small-nat-drop: unit missing"),
        ('unit = "%"', 'unit = "%"\nunits = "%"', "small-nat-drop: unknown units; known are"),
        ('"percentage"', '"percent"', "small-nat-drop: kind: 'percent' is not one of"),
        ('shown = "many[1] / many[2]"', "", "small-order: shown missing"),
        ('"many[1] / many[2]"', '"many[1] > many[2]"', "small-order: shown is a truth"),
        ('"decreasing(many)"', '"max(many)"', "small-order: states True and computes 10"),
        ('"100 * (1 - nat / host)"', '"nat > host"', "states 8 and computes False: two kinds"),
        ("nat / host", "nat / hos", "'hos' is used and not given in from; 'host' is given"),
        ("nat / host", "nat / (host - host)", "small-nat-drop: .*division by zero"),
        ("nat / host", "nat /", "small-nat-drop: .* is no expression"),
        ("[stated.from]\nnat", "[stated.from]\nmax = 1\nnat", "'max' is the name of a function"),
        ('"nat"', '"weave"', "small-nat-drop: nat: no row has placement"),
        ('nat = {placement = "nat"}', 'nat = {unit = "Mbit/s"}', "nat: 3 rows match"),
        ('rows = "all"', 'rows = "most"', "small-order: many: rows = 'most' is unknown"),
    ],
)
def test_a_wrong_entry_is_named(small, old, new, said):
    assert old in TEXT
    root = small(TEXT.replace(old, new, 1))
    with pytest.raises(DatasetError, match=said) as caught:
        load_stated("small", root)
    assert str(root / "small.stated.toml") in str(caught.value)


def test_all_problems_are_shown_together(small):
    wrong = [
        ENTRY.replace("small-nat-drop", f"small-{i}").replace("nat /", "x /") for i in range(12)
    ]
    with pytest.raises(DatasetError, match=r"small\.stated\.toml has 12 problems") as caught:
        load_stated("small", small(HEAD + "".join(wrong)))
    assert len(caught.value.evidence["problems"]) == 12
    assert "small-9" in str(caught.value) and "small-10" not in str(caught.value)
    assert "correct these entries" in caught.value.remedy


def test_what_is_missing_is_named(small):
    root = small("")
    (root / "small.stated.toml").unlink()
    with pytest.raises(DatasetError, match=r"small.stated.toml cannot be opened"):
        load_stated("small", root)
    with pytest.raises(DatasetError, match="nothing published is known as 'big'"):
        recompute("big", root)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(7.36842, "%", "7.368 %"), (1.5, "1", "1.5"), (13849.866, "Mbit/s", "13850 Mbit/s")],
)
def test_numbers_with_units(value, unit, text):
    assert with_unit(value, unit) == text


@pytest.fixture(scope="module")
def all_stated():
    return recompute()


@pytest.mark.parametrize("key", KEYS)
def test_every_document_is_recomputed(key):
    found = load_stated(key)
    assert len(found) >= 5
    assert all(one.source == key and one.kind in KINDS for one in found)


def test_the_papers_words_against_their_tables(all_stated):
    assert set(all_stated["source"]) == set(KEYS)
    assert all_stated["id"].is_unique and all_stated["says"].is_unique
    assert len(all_stated) >= 40
    assert all_stated["shown"].notna().all()
    # Both outcomes occur, and each number that does not follow lies beyond its tolerance.
    assert all_stated["follows"].any() and not all_stated["follows"].all()
    odd = all_stated[~all_stated["follows"] & all_stated["difference"].notna()]
    assert (odd["difference"].abs() > odd["tolerance"]).all()
