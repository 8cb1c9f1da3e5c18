"""An estimate against regions: what is inside, outside, unknown and exact."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labkit.analysis.estimates import Estimate

FINITE = st.floats(-5, 5)
ERRORS = st.floats(1e-6, 2)


def test_tests_and_interval_are_those_of_t():
    one = Estimate(0.1, 0.05, 9, "log", 10)
    low, high = one.interval()
    assert one.value == pytest.approx(math.exp(0.1))
    assert math.log(high) - 0.1 == pytest.approx(0.05 * stats.t.ppf(0.975, 9))
    assert one.p_within(1, math.inf) == pytest.approx(2 * stats.t.sf(2, 9))
    assert one.p_within(0, math.inf) != one.p_within(0, math.inf)  # no bound: nothing is tested
    margin = math.log(1.3)
    expected = max(stats.t.sf((0.1 + margin) / 0.05, 9), stats.t.cdf((0.1 - margin) / 0.05, 9))
    assert one.p_within(1 / 1.3, 1.3) == pytest.approx(expected)
    assert low < one.value < high


@given(FINITE, ERRORS, st.floats(-4, 0), st.floats(0.01, 4), st.floats(2, 50))
def test_inside_and_outside_cannot_both_be_shown(centre, error, low, width, df):
    one = Estimate(centre, error, df)
    inside, outside = one.p_within(low, low + width), one.p_outside(low, low + width)
    assert 0 <= inside <= 1 and 0 <= outside <= 1
    assert not (inside < 0.05 and outside < 0.05)


@given(FINITE, ERRORS, FINITE)
def test_one_bound_agrees_with_the_interval(centre, error, bound):
    one = Estimate(centre, error, 9)
    low, high = one.interval()
    shown = one.p_within(bound, math.inf) < 0.05
    assert shown == (bound < low) or math.isclose(bound, low, abs_tol=1e-9)
    assert (one.p_outside(bound, math.inf) < 0.05) == (bound > high) or math.isclose(
        bound, high, abs_tol=1e-9
    )


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_without_an_error_nothing_is_shown(error):
    one = Estimate(1.0, error, 9)
    ps = one.p_within(0, 2), one.p_within(0, math.inf), one.p_outside(0, 2)
    assert all(math.isnan(p) for p in (*ps, *one.interval()))


def test_an_exact_value_is_inside_or_outside():
    one = Estimate(1.0, 0.0, 4)
    assert one.p_within(0.5, 1.5) == 0 and one.p_outside(0.5, 1.5) == 1
    assert one.p_within(1.5, 2) == 1 and one.p_outside(1.5, 2) == 0


def test_large_logs_are_infinite_and_not_an_error():
    assert Estimate(800.0, 1.0, 4, "log").value == math.inf
