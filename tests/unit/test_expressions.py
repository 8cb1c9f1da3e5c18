import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.claims.expressions import FUNCTIONS, evaluate, names_in, resolve, select
from labkit.errors import UsageError

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
        ("a +", "is no expression"),
        ("", "is no expression"),
        ("a = 3", "is no expression"),
        ("a; b", "is no expression"),
        ("a + c", "'c' is not defined"),
        ("open('x')", "'open' is not defined"),
        ("list(many)", "'list' is not defined"),
        ("rand()", "is not defined"),
        ("many.append(1)", "cannot compute"),
        ("a.real", "cannot compute"),
        ("(lambda: 1)()", "cannot compute"),
        ("many", "not to a finite number"),
        ("'text'", "not to a finite number"),
        ("max", "not to a finite number"),
        ("(0 - a) ** 0.5", "not to a finite number"),
        ("1e999 * a", "not to a finite number"),
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
    assert select(TABLE, selector) == value


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
    found, (problem,) = resolve({"name": selector}, TABLE)
    assert found == {}
    assert problem.startswith("name: ") and re.search(said, problem), problem
