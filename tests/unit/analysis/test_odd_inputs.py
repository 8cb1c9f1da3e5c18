"""Whatever comes in: the right verdict or a clear error, never another exception or a warning."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import reduced, run, samples, trials

from labkit.analysis import checks
from labkit.analysis.compare import compare, factor_effect, shift
from labkit.analysis.noise import noise_floor
from labkit.analysis.summary import combined, summarise
from labkit.errors import LabkitError, UsageError

VERDICTS = {"different", "equivalent", "different within margin", "undecided"}
PAIRED = {"condition": "condition", "baseline": "base"}
KEYS = ["trial", "block", "condition"]
QUANTILES = ["median", "q0.9"]


def of_samples(statistic):
    return lambda frame: compare(reduced(frame, statistic), value=statistic, **PAIRED)


#: What is public, each as a function of a frame with every column that it may want.
COMPARISONS = {
    "compare": lambda frame: compare(frame, value="value", **PAIRED),
    "compare, unpaired": lambda frame: compare(frame, value="value", paired=False, **PAIRED),
    "compare, median": of_samples("median"),
    "compare, mean": of_samples("mean"),
    "factor_effect": lambda frame: factor_effect(
        frame, "condition", ["base", "a", "nowhere"], ["replicate"], value="value"
    ),
    "shift": lambda frame: shift(
        frame, value="value", condition="condition", baseline="base", quantiles=QUANTILES
    ),
}
OTHERS = {
    "noise_floor": lambda frame: noise_floor(frame, value="value", condition="condition"),
    "drift": lambda frame: checks.drift(frame, value="value", condition="condition"),
    "outliers": lambda frame: checks.outliers(frame, value="value", condition="condition"),
    "summarise": lambda frame: summarise(frame, by=KEYS, value="value"),
    "combined": lambda frame: combined(frame, by=["condition"], value="value"),
}
PUBLIC = COMPARISONS | OTHERS
#: These describe samples, which may be zero, negative or infinite.
DESCRIBE = {"summarise", "combined"}


def outcome(name, frame):
    """Return the table, or the error that a person would see; anything else fails."""
    before = frame.copy(deep=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = PUBLIC[name](frame)
        except LabkitError as error:
            assert str(error)
            result = error
    pd.testing.assert_frame_equal(frame, before)
    return result


def sound(table):
    """Check what holds of every comparison."""
    assert set(table["verdict"]) <= VERDICTS
    for row in table.to_dict("records"):
        assert (row["verdict"] == "undecided") == (not row["differs"] and not row["equivalent"])
        assert row["n_blocks"] >= 5 or row["verdict"] == "undecided"
        for name in ("p_value", "p_adjusted", "p_equivalence"):
            assert math.isnan(row[name]) or 0 <= row[name] <= 1
        if math.isfinite(row["low"]):
            assert row["low"] <= row["estimate"] * (1 + 1e-9)
            assert row["estimate"] <= row["high"] * (1 + 1e-9)
        if math.isfinite(row["difference_low"]):
            slack = 1e-9 * max(1e-300, abs(row["difference"]))
            assert row["difference_low"] <= row["difference"] + slack
            assert row["difference"] <= row["difference_high"] + slack


ORDINARY = st.floats(1e-6, 1e12)
ODD = st.sampled_from(
    [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1e-300, 1.7e308, 1.0, 5.0]
)
HUGE = st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, -(2**62), 0, 1, -1])
NAMES = [
    lambda numbers: numbers,
    lambda numbers: [f"b{number}" for number in numbers],
    lambda numbers: [number if number % 2 else f"b{number}" for number in numbers],
    lambda numbers: [None if number == 3 else number for number in numbers],
    lambda numbers: [(number, "x") for number in numbers],
    lambda numbers: pd.Categorical(numbers, [4, 3, 2, 1, 0, 9]),
    lambda numbers: pd.array(numbers, dtype="Int64"),
    lambda numbers: pd.to_datetime(np.array(numbers, dtype="int64")),
]
DTYPES = ["float64", "float32", "Float64", "object", "str", "category", "complex128"]


@st.composite
def frames(draw):
    size = draw(st.integers(0, 24))
    whole = draw(st.booleans())
    kind = HUGE if whole else draw(st.sampled_from([ORDINARY, ODD, ODD | ORDINARY]))
    values = draw(st.lists(kind, min_size=size, max_size=size))
    if draw(st.booleans()) and size:
        values = [values[0]] * size
    integers = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    frame = pd.DataFrame({
        "block": draw(st.sampled_from(NAMES))(draw(integers)),
        "condition": [["base", "a", "b"][n % 3] for n in draw(integers)],
        "trial": draw(integers),
        "replicate": [n % 3 for n in draw(integers)],
        "value": np.array(values, dtype="int64" if whole else "float64"),
    }, index=draw(st.sampled_from([range(size), [7] * size])))  # fmt: skip
    if draw(st.booleans()):
        frame["condition"] = pd.Categorical(frame["condition"], ["b", "unused", "base", "a"])
    return frame


@pytest.mark.parametrize("name", PUBLIC)
@given(frame=frames())
def test_a_table_or_a_clear_error(name, frame):
    result = outcome(name, frame)
    if name in COMPARISONS and not isinstance(result, LabkitError):
        sound(result)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PUBLIC)
def test_numbers_in_any_dtype_or_a_clear_error(name, dtype):
    frame = campaign()
    plain, result = outcome(name, frame), outcome(name, frame.astype({"value": dtype}))
    if dtype in ("float64", "Float64"):
        pd.testing.assert_frame_equal(
            plain.drop(columns="value", errors="ignore"),
            result.drop(columns="value", errors="ignore"),
        )
    elif dtype == "float32":
        assert not isinstance(result, LabkitError)
    else:
        assert isinstance(result, UsageError) and "not numbers" in str(result)


def campaign(blocks=6):
    """A row a trial of three conditions, two copies each, for every public function."""
    rng = np.random.default_rng(1)
    frame = trials(rng, blocks, others=("a", "b"), noise=0.005)
    other = frame.assign(value=frame["value"] * np.exp(rng.normal(0, 0.005, len(frame))))
    whole = pd.concat([frame.assign(replicate=1), other.assign(replicate=2)], ignore_index=True)
    return whole.assign(trial=np.arange(len(whole)))


@pytest.mark.parametrize("name", PUBLIC)
def test_clear_errors_for_what_is_not_there(name):
    frame = campaign()
    assert "no rows" in str(outcome(name, frame.iloc[:0]))
    for column in ("value", "condition"):
        assert f"no column '{column}'" in str(outcome(name, frame.drop(columns=column)))
    for column in ("block", "condition"):
        lost = frame.assign(**{column: frame[column].where(frame.index != 3)})
        assert name == "combined" or "missing" in str(outcome(name, lost))
    twice = pd.concat([frame, frame[["value"]]], axis=1)
    assert "two columns 'value'" in str(outcome(name, twice))
    assert "holds bool, not numbers" in str(outcome(name, frame.assign(value=True)))


@pytest.mark.parametrize("bad", [0.0, -3.0, math.inf, -math.inf])
@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - DESCRIBE))
def test_what_has_no_logarithm_is_an_error(name, bad):
    frame = campaign()
    frame.loc[4, "value"] = bad
    result = outcome(name, frame)
    assert isinstance(result, UsageError), result


@pytest.mark.parametrize("name", COMPARISONS)
def test_all_failed_is_inconclusive(name):
    frame = campaign()
    assert set(outcome(name, frame.assign(value=math.nan)).verdict) <= {"undecided"}
    frame.loc[frame["condition"] == "a", "value"] = math.nan
    table = outcome(name, frame)
    if name == "factor_effect":
        assert set(table["n_blocks"]) == {0} and set(table["verdict"]) == {"undecided"}
    elif name != "shift":
        row = table.set_index("condition").loc["a"]
        assert row["n_blocks"] == 0 and row["blocks_missing"] == tuple(range(6))


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_single_block_and_a_missing_one(name):
    frame = campaign()
    alone = outcome(name, frame[frame["block"] == 2])
    assert set(alone["verdict"]) == {"undecided"} and alone["low"].isna().all()
    assert all("at least 5" in note or "nowhere" in note for note in alone["note"])
    without = outcome(name, frame[(frame["block"] != 2) | (frame["condition"] != "base")])
    rows = without[without["n_blocks"] > 0]
    assert set(rows["n_blocks"]) == {5} and set(rows["blocks_missing"]) == {(2,)}


@pytest.mark.parametrize("level", [1e-300, 1e-9, 1.0, 30_000, 1e300])
def test_constants_are_equivalent_and_their_multiples_differ(level):
    frame = campaign().assign(value=level)
    for name in COMPARISONS:
        table = outcome(name, frame)
        assert set(table.query("n_blocks > 0")["verdict"]) == {"equivalent"}
        assert (table.query("n_blocks > 0")["difference"] == 0).all()
    frame.loc[frame["condition"] == "a", "value"] = 1.5 * level
    for name in COMPARISONS:
        assert "different" in set(outcome(name, frame)["verdict"])
    frame = campaign().assign(value=level)
    flags = outcome("outliers", frame)["outlier"], outcome("drift", frame)["drifts"]
    assert not any(flag.any() for flag in flags)
    floor = outcome("noise_floor", frame)
    assert (floor["ratio"] == 1).all() and (floor["decidable_margin"] == 0).all()


def test_outliers_and_drift_of_failed_trials():
    frame = campaign().assign(value=math.nan)
    assert not outcome("outliers", frame)["outlier"].any()
    assert not outcome("drift", frame)["drifts"].any()
    floor = outcome("noise_floor", frame)
    assert set(floor["n_blocks"]) == {0} and set(floor["decidable_margin"]) == {math.inf}
    assert floor["note"].str.startswith("pilot: no block has both copies").all()


@pytest.mark.parametrize("options", [{"margin": -1.0}, {"margin": math.nan}, {"alpha": 0.7}])
def test_unusable_options_are_refused_by_all_of_the_family(options):
    frame = campaign()
    with pytest.raises(UsageError, match="invalid margin or alpha"):
        run(frame, **options)
    with pytest.raises(UsageError, match="invalid margin or alpha"):
        factor_effect(frame, "condition", ["base", "a"], ["replicate"], value="value", **options)
    with pytest.raises(UsageError, match="invalid margin or alpha"):
        shift(frame, value="value", condition="condition", baseline="base",
              quantiles=["median"], **options)  # fmt: skip


@pytest.mark.parametrize("baseline", [["base"], math.nan, pd.NA, None, 3])
def test_a_baseline_that_is_none(baseline):
    with pytest.raises(UsageError, match="unknown baseline"):
        run(campaign(), baseline=baseline)


@pytest.mark.parametrize(
    "named", [{"base": True, "a": False}, {"base": (1, "x"), "a": (2, "y")}, {"base": 1.5, "a": 2}]
)
def test_conditions_of_any_kind(named):
    frame = campaign().query("condition != 'b'")
    renamed = frame.assign(condition=[named[name] for name in frame["condition"]])
    table, plain = run(renamed, baseline=named["base"]), run(frame)
    assert table["condition"].tolist() == [named["a"]]
    assert table["estimate"].tolist() == plain["estimate"].tolist()


@pytest.mark.parametrize("column", ["n", "median"])
def test_a_factor_called_like_what_is_computed_is_refused(column):
    raw = samples(np.random.default_rng(1), blocks=3, n=30).rename(columns={"condition": column})
    with pytest.raises(UsageError, match=f"duplicate columns: '{column}'"):
        reduced(raw, "median", column)


def test_quantiles_beside_infinite_samples():
    frame = pd.DataFrame({"t": 1, "v": [-math.inf, 2.0, 3.0, math.inf]})
    row = summarise(frame, by=["t"], value="v", statistics=["q0.25", "median", "q0.75"]).iloc[0]
    assert (row["q0.25"], row["median"], row["q0.75"]) == (-math.inf, 2.5, math.inf)
    wide = pd.DataFrame({"t": 1, "v": [-1.7e308, 1.7e308]})
    assert summarise(wide, by=["t"], value="v", statistics=["median"])["median"][0] == 0
