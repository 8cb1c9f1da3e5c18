import re
import shutil
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.claims.schema import load_claims
from labkit.claims.stated import (
    COLUMNS,
    FUNCTIONS,
    KINDS,
    Stated,
    columns_of,
    compute,
    disagreements,
    evaluate,
    load_disagreements,
    load_stated,
    names_in,
    places_in,
    recompute,
    select,
    stated_path,
    with_unit,
)
from labkit.errors import DatasetError, UsageError

KEYS = ("haruna2019", "jha2018", "latency2016", "rohprimardho2015", "struye2017")
DATA = Path(__file__).parent / "data" / "claims"
TEXT = (DATA / "small.stated.toml").read_text()
HEAD, WORDS, ENTRY, ORDER = re.split(r"(?m)(?=^\[\[\w+\]\]$)", TEXT)


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
        ("format = 1", "format = 2", "format: must be 1, not 2"),
        ('source = "small"', "", "source: missing"),
        ('source = "small"', 'source = "big"', "source: is 'big' and not 'small'"),
        ("format = 1", "format = 1\nextra = 2", "extra: unknown key"),
        ("format = 1", "format = ", "is not TOML"),
        ("small-nat-drop", "small-order", "small-order: id: used twice"),
        ("small-nat-drop", "nat-drop", "nat-drop: id: does not start with small-"),
        ('id = "small-nat-drop"', "", "entry 1: id: missing"),
        ('place = "section 2"', "", "small-nat-drop: place: missing"),
        ('place = "section 2"', 'place = "section 9"', "place: the document has no section 9"),
        ('places = "abstract, sections 2 and 3, Table 1"', "", "places: missing"),
        ("stated = 8", "", "small-nat-drop: stated: missing"),
        ("stated = 8", "stated = '8'", "small-nat-drop: stated"),
        ("stated = 8", "stated = false", "small-nat-drop: stated"),
        ("tolerance = 0.5", "", "small-nat-drop: tolerance: missing"),
        ("tolerance = 0.5", "tolerance = -1", "small-nat-drop: tolerance"),
        ('unit = "%"', "", "small-nat-drop: unit: missing"),
        ('unit = "%"', 'unit = "%"\nunits = "%"', "small-nat-drop: units: unknown key"),
        (
            '"percentage"',
            '"percent"',
            "small-nat-drop: kind: must be .*, not 'percent'",
        ),
        ('shown = "many[1] / many[2]"', "", "small-order: shown: missing"),
        ('"many[1] / many[2]"', '"many[1] > many[2]"', "small-order: shown: gives a truth"),
        ('"decreasing(many)"', '"max(many)"', "small-order: stated is True, and compute gives 10"),
        ('"100 * (1 - nat / host)"', '"nat > host"', "stated is 8.0, and compute gives False"),
        ("nat / host", "nat / hos", "'hos' is used and not given in from; 'host' is given"),
        ("nat / host", "nat / (host - host)", "small-nat-drop: .*division by zero"),
        ("nat / host", "nat /", "small-nat-drop: .* is not an expression"),
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


def test_places_that_contradict_each_other(small):
    (one,) = load_disagreements("small", small(TEXT))
    assert one.detail == "the option: --a (section 3), but --b (abstract, Table 1)"
    frame = disagreements(small(TEXT))
    assert frame.to_dict("records") == [{"source": "small", **one.model_dump()}]
    assert disagreements(small(HEAD)).empty


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('but = "--b"', "", "disagreement 1: but: missing"),
        ('but = "--b"', 'but = ""', "disagreement 1: but: "),
        ('but = "--b"', 'but = "--b"\nnote = "x"', "disagreement 1: note: unknown key"),
        ("abstract, Table 1", "abstract, Table 2", "place: the document has no table 2"),
    ],
)
def test_a_wrong_disagreement_is_named(small, old, new, said):
    assert old in WORDS
    with pytest.raises(DatasetError, match=said):
        load_disagreements("small", small(HEAD + WORDS.replace(old, new)))


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("section 4.1, Tables C.1, C.3", ["section 4.1", "table C.1", "table C.3"]),
        ("sections 5.1 to 5.3; abstract", ["section 5.1", "section 5.3", "abstract"]),
        ("appendices C and D, Listing 3.1", ["appendix C", "appendix D", "listing 3.1"]),
    ],
)
def test_places_of_a_phrase(text, places):
    assert places_in(text) == places


def test_all_problems_are_shown_together(small):
    wrong = [
        ENTRY.replace("small-nat-drop", f"small-{i}").replace("nat /", "x /") for i in range(12)
    ]
    with pytest.raises(DatasetError, match=r"small\.stated\.toml has 12 mistakes") as caught:
        load_stated("small", small(HEAD + "".join(wrong)))
    assert len(caught.value.evidence["mistakes"]) == 12
    assert "small-9" in str(caught.value) and "small-10" not in str(caught.value)
    assert "correct these entries" in caught.value.remedy


def test_what_is_missing_is_named(small):
    root = small("")
    (root / "small.stated.toml").unlink()
    with pytest.raises(DatasetError, match=r"small.stated.toml cannot be opened"):
        load_stated("small", root)
    with pytest.raises(DatasetError, match="no published document 'big'"):
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
    # A tolerance is for rounding and for "about": a quarter of the number at most.
    numbers = all_stated[all_stated["difference"].notna()]
    assert (numbers["tolerance"] <= numbers["stated"].astype(float).abs() / 4).all()


@pytest.mark.parametrize("key", KEYS)
def test_every_document_contradicts_itself_in_words(key):
    found = load_disagreements(key)
    assert len({one.about for one in found}) == len(found) >= 5
    assert all(one.says != one.but for one in found)


def test_the_places_of_claims_exist():
    for claim in load_claims():
        text = stated_path(claim.source).read_text()
        known = places_in(tomllib.loads(text)["places"])
        assert set(places_in(claim.place)) <= set(known), claim.id


NAMES = {"a": 1.0, "b": 4.0, "many": [3.0, 1.0, 2.0], "up": [1.0, 2.0, 3.0], "one": [1.0]}


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("100 * (1 - a / b)", 75),
        ("a < 2 < b", True),
        ("a < 2 > b", False),
        ("0.74 <= a <= 0.76 or not b < 3 and a == 1", True),
        ("max(many) / min(many)", 3),
        ("min(a, b, 0.5)", 0.5),
        ("mean(many) + sum(many) + len(many)", 11),
        ("abs(-a) + round(1.26, 1) + sqrt(b) + log(a)", 4.3),
        ("increasing(sorted(many)) and decreasing([b, a])", True),
        ("increasing(many)", False),
        ("increasing([1, 1])", False),
        ("decreasing([a, b])", False),
        ("max([x / y for x, y in zip(many, up)])", 3),
        ("all([x > 0 for x in many]) and not any([x > 3 for x in many])", True),
        ("many[0] - many[-1]", 1),
        ("b if a > 0 else a", 4),
        (" a\n+ b ", 5),
    ],
)
def test_expressions(expression, result):
    found = evaluate(expression, NAMES)
    assert found == pytest.approx(result)
    assert isinstance(found, bool if isinstance(result, bool) else float)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("a / (b - 4)", "division by zero"),
        ("a +", "is not an expression"),
        ("", "is not an expression"),
        ("a = 3", "is not an expression"),
        ("a; b", "is not an expression"),
        ("a + c", "'c' is not defined"),
        ("open('x')", "'open' is not defined"),
        ("list(many)", "'list' is not defined"),
        ("rand()", "is not defined"),
        ("many.append(1)", "cannot compute"),
        ("a.real", "cannot compute"),
        ("(lambda: 1)()", "cannot compute"),
        ("many", "not a finite number"),
        ("'text'", "not a finite number"),
        ("max", "not a finite number"),
        ("(0 - a) ** 0.5", "not a finite number"),
        ("1e999 * a", "not a finite number"),
        ("9 ** 9 ** 9", "9 \\*\\*"),
        ("sqrt(0 - a)", "domain error"),
        ("min(a)", "not iterable"),
        ("mean([])", "at least one"),
        ("increasing([a])", "fewer than two"),
        ("many[9]", "out of range"),
        ("zip(one, many)", "shorter|longer|argument 2"),
        ("a < many", "not supported"),
    ],
)
def test_expressions_that_cannot_be_computed(expression, said):
    with pytest.raises(UsageError, match=said):
        evaluate(expression, NAMES)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8))
def test_orders_are_strict(values):
    up = evaluate("increasing(values)", {"values": values})
    assert up is (sorted(set(values)) == values)
    assert evaluate("decreasing(values)", {"values": values[::-1]}) is up


def test_names_of_an_expression():
    assert names_in("a + max([x * b for x in many])") == {"a", "b", "many"}
    # A name behind an `and` that is never reached is still a name.
    assert names_in("a > 1 and c > 1") == {"a", "c"}
    with pytest.raises(UsageError, match="'c' is not defined"):
        evaluate("a > 1 and c > 1", NAMES)
    assert "sorted" in FUNCTIONS


TABLE = pd.DataFrame(
    {
        "placement": ["bare", "docker host", "docker nat", "docker nat"],
        "run": ["1", "1", "1", ""],
        "size_b": pd.array([64, 64, 64, None], dtype="Int64"),
        "item": ["Table 1", "Table 1", "Table 1", "section 2"],
        "statistic": ["mean", "mean", "mean", "max"],
        "value": [10.0, 10.5, 20.0, 25.0],
    }
)


@pytest.mark.parametrize(
    ("selector", "value"),
    [
        ({"placement": "bare"}, 10),
        ({"placement": "docker nat", "statistic": "mean"}, 20),
        ({"placement": "docker nat", "size_b": 64, "run": 1}, 20),
        ({"size_b": ""}, 25),
        ({"run": ""}, 25),
        ({"item": "Table 1", "rows": "all"}, [10, 10.5, 20]),
        ({"placement": ["bare", "docker nat"], "rows": "all"}, [10, 20, 25]),
        ({"placement": "bare", "rows": "all"}, [10]),
    ],
)
def test_selectors(selector, value):
    assert select(columns_of(TABLE), selector) == value


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ({"placement": "docker"}, "no row has placement = 'docker'"),
        ({"placement": "bare", "statistic": "max"}, "no row has statistic = 'max'.*'mean'"),
        ({"item": "Table 1"}, r"3 rows match.*\['placement', 'value'\]"),
        ({}, "4 rows match"),
        ({"place": "bare"}, "no column 'place'.*'placement'"),
        ({"size_b": "64"}, "size_b is a number and not '64'"),
        ({"size_b": True}, "size_b is a number"),
        ({"placement": "docker", "rows": "all"}, "no row"),
        ({"placement": "bare", "rows": 1}, "rows = 1 is unknown"),
        ({"placement": ["bare"]}, "placement is a list"),
        ("bare", "neither a number nor a selector"),
        (True, "neither a number"),
        ([1, "2"], "neither a number"),
    ],
)
def test_selectors_that_choose_nothing(selector, said):
    with pytest.raises(UsageError) as caught:
        compute(["name"], {"name": selector}, columns_of(TABLE))
    assert caught.value.what.startswith("name: ") and re.search(said, caught.value.what)
