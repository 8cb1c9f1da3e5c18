"""P-values of claims of which all parts have to hold, or most."""

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.claims.estimators import Evaluation


@dataclass(frozen=True)
class Known:
    """A part with known p-values."""

    p_within: float
    p_outside: float


PARTS = st.lists(st.builds(Known, st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6)


@given(PARTS, st.data())
def test_p_values_are_those_of_the_partial_conjunction(parts, data):
    held = data.draw(st.integers(1, len(parts)))
    found = Evaluation(tuple(parts), required=held)

    def largest(p_values, size):
        """Return the largest Bonferroni p-value over all subsets of a size."""
        return max(min(1, size * min(one)) for one in itertools.combinations(p_values, size))

    # That many hold is that there is one among any len - held + 1; that too many fail, likewise.
    spare = len(parts) - held
    assert found.p_replicates == pytest.approx(largest([p.p_within for p in parts], spare + 1))
    assert found.p_contradicts == pytest.approx(largest([p.p_outside for p in parts], held))
    assert found.weakest.p_within == max(p.p_within for p in found.deciding)
    assert len(found.deciding) == held


@given(PARTS)
def test_without_a_number_all_have_to_hold(parts):
    found = Evaluation(tuple(parts))
    assert found.p_replicates == max(part.p_within for part in parts)
    assert found.p_contradicts == min(1, len(parts) * min(part.p_outside for part in parts))


def test_an_unknown_part_may_be_spared():
    parts = (Known(0.01, 0.9), Known(0.02, 0.8), Known(math.nan, math.nan))
    assert Evaluation(parts, required=2).p_replicates == pytest.approx(0.04)
    assert math.isnan(Evaluation(parts).p_replicates)
    assert Evaluation(parts).p_contradicts == 1
