"""What changes a comparison in no way, or in a way that is known beforehand."""

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import reduced, run, samples, trials

NUMBERS = ["estimate", "low", "high", "p_value", "p_adjusted", "p_equivalence", "sd"]
DIFFERENCES = ["difference", "difference_low", "difference_high"]
WORDS = ["condition", "n_blocks", "verdict", "blocks_missing", "note"]
seeds = st.integers(0, 2**32 - 1)


def drawn(seed, blocks=7):
    rng = np.random.default_rng(seed)
    return trials(rng, blocks, ratio=rng.choice([1.0, 1.005, 1.03]), others=("a", "b"))


def same(table, other):
    """Check that two comparisons agree; levels of proof that are only rounding count as equal."""
    pd.testing.assert_frame_equal(table[WORDS], other[WORDS])
    np.testing.assert_allclose(table[NUMBERS], other[NUMBERS], rtol=1e-6, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(-300, 290), st.booleans())
def test_the_unit_changes_differences_alone(seed, power, paired):
    frame, unit = drawn(seed), 10.0**power
    table = run(frame, paired=paired)
    other = run(frame.assign(value=frame["value"] * unit), paired=paired)
    same(table, other)
    np.testing.assert_allclose(table[DIFFERENCES] * unit, other[DIFFERENCES], rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(seeds, st.booleans())
def test_the_order_of_rows_changes_nothing(seed, paired):
    frame = drawn(seed)
    names = pd.Categorical(frame["condition"], ["base", "a", "b"])
    shuffled = frame.assign(condition=names).sample(frac=1, random_state=seed % 1000)
    table, other = run(frame, paired=paired), run(shuffled, paired=paired)
    same(table, other.assign(condition=other["condition"].astype(table["condition"].dtype)))


@settings(max_examples=40, deadline=None)
@given(seeds, st.booleans())
def test_the_other_baseline_inverts_the_ratio(seed, paired):
    frame = drawn(seed).query("condition != 'b'")
    table, other = run(frame, paired=paired), run(frame, baseline="a", paired=paired)
    inverted = 1 / other[["estimate", "high", "low"]].to_numpy()
    np.testing.assert_allclose(table[["estimate", "low", "high"]], inverted, rtol=1e-9)
    opposite = -other[["difference", "difference_high", "difference_low"]].to_numpy()
    np.testing.assert_allclose(table[DIFFERENCES], opposite, rtol=1e-6, atol=1e-6)
    proofs = ["p_value", "p_equivalence", "sd"]
    np.testing.assert_allclose(table[proofs], other[proofs], rtol=1e-6, atol=1e-12)
    assert table["verdict"].tolist() == other["verdict"].tolist()


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(-1, 1))
def test_what_a_whole_block_has_in_common_changes_no_paired_ratio(seed, drift):
    frame = drawn(seed)
    drifting = frame.assign(value=frame["value"] * np.exp(drift * frame["block"]))
    same(run(frame), run(drifting))


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_samples_of_a_trial_count_once(seed):
    raw = samples(np.random.default_rng(seed), blocks=6, n=30)
    once, thrice = (reduced(frame, "median") for frame in (raw, pd.concat([raw] * 3)))
    same(run(once, value="median"), run(thrice, value="median"))


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(0, 6), st.sampled_from(["base", "a", "b"]))
def test_a_failed_trial_is_as_one_that_never_ran(seed, block, name):
    frame = drawn(seed)
    hit = (frame["block"] == block) & (frame["condition"] == name)
    failed = frame.assign(value=frame["value"].mask(hit))
    table, other = run(failed), run(frame[~hit])
    table, other = (one.set_index("condition").loc[["a", "b"]] for one in (table, other))
    np.testing.assert_allclose(table[NUMBERS], other[NUMBERS])
    assert table["blocks_missing"].tolist() == other["blocks_missing"].tolist()
