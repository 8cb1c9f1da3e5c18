import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats
from statsmodels.stats.multitest import multipletests
from synthetic import reduced, run, samples, trials

from labkit.analysis import checks
from labkit.analysis.compare import COLUMNS, adjust_family
from labkit.analysis.estimates import holm
from labkit.analysis.robust import HALF_CHECKED, UNCHECKED
from labkit.analysis.trials import SortedSamples, quantile_level, reduce_trials
from labkit.errors import UsageError

VERDICTS = {"different", "equivalent", "different within margin", "undecided"}


def test_a_paired_t_test_on_logs():
    frame = trials(np.random.default_rng(1), ratio=1.1)
    row = run(frame).iloc[0]
    logs = np.log(frame.pivot(index="block", columns="condition", values="value"))
    change = logs["other"] - logs["base"]
    test = stats.ttest_1samp(change, 0)
    low, high = test.confidence_interval()
    assert row["estimate"] == pytest.approx(math.exp(change.mean()))
    assert (row["low"], row["high"]) == pytest.approx((math.exp(low), math.exp(high)))
    assert row["p_value"] == pytest.approx(test.pvalue)
    difference = np.exp(logs["other"]) - np.exp(logs["base"])
    assert row["difference"] == pytest.approx(difference.mean())
    bounds = stats.ttest_1samp(difference, 0).confidence_interval()
    assert (row["difference_low"], row["difference_high"]) == pytest.approx(tuple(bounds))
    assert row["verdict"] == "different"
    assert row["blocks_missing"] == ()


def test_the_columns_are_as_promised():
    assert tuple(run(trials(np.random.default_rng(1))).columns) == COLUMNS


def test_unpaired_is_welch():
    frame = trials(np.random.default_rng(2), ratio=1.02)
    row = run(frame, paired=False).iloc[0]
    logs = np.log(frame.pivot(index="block", columns="condition", values="value"))
    test = stats.ttest_ind(logs["other"], logs["base"], equal_var=False)
    assert row["p_value"] == pytest.approx(test.pvalue)
    assert math.log(row["high"]) == pytest.approx(test.confidence_interval().high)
    paired = run(frame).iloc[0]
    assert row["high"] - row["low"] > 1.5 * (paired["high"] - paired["low"])


def test_intervals_of_undecided_rows_have_the_level_of_holms_step():
    p_values = np.full(20, 0.6)
    family = adjust_family(p_values, np.zeros(20, dtype=bool), 0.05)
    assert (family.adjusted == 1).all()
    assert family.levels == pytest.approx(0.05 / 20)


def test_holm_is_statsmodels_holm():
    p_values = np.random.default_rng(3).uniform(0, 0.1, 12)
    p_values[[2, 7]] = np.nan
    known = np.isfinite(p_values)
    expected = multipletests(p_values[known], method="holm")[1]
    assert holm(p_values)[known] == pytest.approx(expected)
    assert np.isnan(holm(p_values)[~known]).all()


def test_every_verdict():
    rng = np.random.default_rng(4)
    seen = {
        run(trials(rng, ratio=1.2)).verdict[0],
        run(trials(rng, ratio=1.0, noise=0.003)).verdict[0],
        run(trials(rng, ratio=1.008, noise=0.002)).verdict[0],
        run(trials(rng, ratio=1.02, noise=0.05)).verdict[0],
    }
    assert seen == VERDICTS


def test_copies_are_averaged_on_the_log_scale_and_said():
    frame = trials(np.random.default_rng(5))
    replicates = pd.concat([frame, frame.assign(value=frame["value"] * 1.21)])
    replicates = replicates[(replicates["condition"] == "base") | (replicates.index < 0)]
    replicates = pd.concat([replicates, frame[frame["condition"] == "other"]])
    row, plain = run(replicates).iloc[0], run(frame).iloc[0]
    assert row["estimate"] == pytest.approx(plain["estimate"] / 1.1)
    assert "base: up to 2 trials a block, averaged on the log scale" in row["note"]


def test_missing_blocks_are_reported():
    frame = trials(np.random.default_rng(6), others=("a", "b"))
    frame.loc[(frame["block"] == 3) & (frame["condition"] == "a"), "value"] = np.nan
    frame = frame[~((frame["block"] == 7) & (frame["condition"] == "base"))]
    table = run(frame).set_index("condition")
    assert table.loc["a", "blocks_missing"] == (3, 7)
    assert table.loc["b", "blocks_missing"] == (7,)
    assert list(table["n_blocks"]) == [8, 9]
    assert "a: 1 of 10 trials without a value" in table.loc["a", "note"]
    assert "2 blocks without a value of both" in table.loc["a", "note"]


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_too_few_blocks_are_inconclusive(blocks):
    row = run(trials(np.random.default_rng(7), blocks, ratio=3.0, noise=1e-4)).iloc[0]
    assert row["verdict"] == "undecided"
    assert not row["differs"] and not row["equivalent"]
    assert row["note"].startswith("pilot") and "at least 5" in row["note"]
    assert row["estimate"] == pytest.approx(3.0, rel=0.01)
    # No verdict rests on so few blocks, and so no interval is shown.
    assert np.isnan(row["low"]) and np.isnan(row["difference_low"])
    # Where no spread was seen, all that is known is how many any verdict takes.
    assert row["needed_blocks"] == 5


def test_fewer_blocks_than_the_alpha_takes_are_inconclusive_however_small_p():
    frame = trials(np.random.default_rng(7), 5, ratio=3.0, noise=1e-4)
    assert run(frame).verdict[0] == "different"
    row = run(frame, alpha=1e-6).iloc[0]
    assert row["p_value"] < 1e-6 and row["verdict"] == "undecided"
    assert row["note"] == "too few: 5 blocks; a verdict at alpha=1e-06 takes at least 20"
    assert row["needed_blocks"] >= 20
    enough = trials(np.random.default_rng(7), 20, ratio=3.0, noise=1e-4)
    assert run(enough, alpha=1e-6).verdict[0] == "different"
    assert run(frame.query("block < 4"), alpha=0.1).verdict[0] == "different"


def test_below_five_blocks_is_a_pilot_with_the_number_it_takes():
    row = run(trials(np.random.default_rng(8), 4, noise=0.02)).iloc[0]
    assert "pilot: 4 blocks" in row["note"]
    assert f"about {row['needed_blocks']} blocks decide the margin" in row["note"]
    assert "pilot" not in run(trials(np.random.default_rng(8), 5)).note[0]


def with_changes(changes):
    """A frame whose log ratios are the given numbers."""
    blocks = np.repeat(np.arange(len(changes)), 2)
    values = np.exp(np.ravel([[0.0, change] for change in changes]))
    names = ["base", "other"] * len(changes)
    return pd.DataFrame({"block": blocks, "condition": names, "value": values})


def test_the_signed_rank_test_stands_beside_the_t_test():
    # One wild block hides from t what nine others show.
    changes = [0.01, 0.011, 0.012, 0.013, 0.014, 0.015, 0.016, 0.017, 0.018, 0.5]
    row = run(with_changes(changes)).iloc[0]
    assert row["p_value"] > 0.05 and row["verdict"] == "undecided"
    assert row["note"].endswith("the signed-rank test disagrees (p = 0.002)")
    assert stats.wilcoxon(changes).pvalue == pytest.approx(0.002, abs=1e-4)
    # With five blocks it never reaches 5 %, so its silence says nothing.
    assert run(with_changes(changes[:5])).note[0] == UNCHECKED
    assert "signed-rank" not in run(with_changes(changes), paired=False).note[0]
    assert run(with_changes([0.0] * 4 + [0.3, -0.1, 0.1, 0.2])).note[0] == UNCHECKED


def test_constants():
    frame = trials(np.random.default_rng(9)).assign(value=5.0)
    row = run(frame).iloc[0]
    assert (row["verdict"], row["estimate"], row["low"], row["high"]) == ("equivalent", 1, 1, 1)
    assert "no variance" in row["note"]
    frame.loc[frame["condition"] == "other", "value"] = 5.5
    row = run(frame).iloc[0]
    assert row["verdict"] == "different"
    assert row["estimate"] == pytest.approx(1.1)
    assert run(frame, paired=False).verdict[0] == "different"


@pytest.mark.parametrize("bad", [0.0, -3.0, math.inf, -math.inf])
def test_values_without_a_logarithm_are_an_error(bad):
    frame = trials(np.random.default_rng(10))
    frame.loc[4, "value"] = bad
    with pytest.raises(UsageError, match="zero, negative or infinite"):
        run(frame)


def test_clear_errors():
    frame = trials(np.random.default_rng(11))
    with pytest.raises(UsageError, match="no rows"):
        run(frame.iloc[:0])
    with pytest.raises(UsageError, match="no column 'rtt'"):
        run(frame, value="rtt")
    with pytest.raises(UsageError, match="unknown baseline: 'bare'"):
        run(frame, baseline="bare")
    with pytest.raises(UsageError, match="invalid margin or alpha"):
        run(frame, margin=0.0)
    with pytest.raises(UsageError, match="not numbers"):
        run(frame, value="condition")
    with pytest.raises(UsageError, match="is missing in some rows"):
        run(frame.assign(condition=frame["condition"].where(frame["block"] > 0)))


def test_a_condition_that_always_failed_is_a_row():
    frame = trials(np.random.default_rng(12), others=("a", "b"))
    frame.loc[frame["condition"] == "a", "value"] = np.nan
    row = run(frame).set_index("condition").loc["a"]
    assert row["n_blocks"] == 0 and row["verdict"] == "undecided"
    assert len(row["blocks_missing"]) == 10
    assert np.isnan(row["p_adjusted"])


def test_only_a_baseline_gives_no_rows():
    frame = trials(np.random.default_rng(13), others=())
    assert tuple(run(frame).columns) == COLUMNS and run(frame).empty


def test_categories_give_the_order():
    frame = trials(np.random.default_rng(14), others=("b", "a", "c"))
    assert list(run(frame)["condition"]) == ["b", "a", "c"]
    frame["condition"] = pd.Categorical(frame["condition"], ["c", "b", "a", "base", "unused"])
    assert list(run(frame)["condition"]) == ["c", "b", "a"]


@pytest.mark.parametrize("statistic", ["mean", "median", "min", "max", "std", "p95", "q0.9"])
def test_samples_are_reduced_to_the_usual_statistics(statistic):
    raw = samples(np.random.default_rng(15), ratio=1.1)
    table = run(reduced(raw, statistic), value=statistic)
    level = quantile_level(statistic)
    grouped = raw.groupby(["trial", "block", "condition"])["value"]
    by_hand = (grouped.quantile(level) if level else getattr(grouped, statistic)()).reset_index()
    pd.testing.assert_frame_equal(table, run(by_hand), check_exact=False)
    shuffled = raw.sample(frac=1, random_state=1)
    again = run(reduced(shuffled, statistic), value=statistic)
    assert again["estimate"][0] == pytest.approx(table["estimate"][0])


def test_quantiles_need_samples():
    raw = samples(np.random.default_rng(16), blocks=3, n=99)
    with pytest.raises(UsageError, match=r"6 trials have no p99"):
        reduced(raw, "p99")
    assert run(reduced(raw, "p95"), value="p95")["n_blocks"][0] == 3
    with pytest.raises(UsageError, match="unknown statistic 'p100'"):
        reduced(raw, "p100")


def test_partly_missing_trials_are_an_error_and_wholly_missing_ones_failed():
    raw = samples(np.random.default_rng(17), blocks=4).astype({"value": "float64"})
    raw.loc[5, "value"] = np.nan
    with pytest.raises(UsageError, match="samples are missing in"):
        reduced(raw, "median")
    raw.loc[raw["trial"] == 0, "value"] = np.nan
    assert run(reduced(raw, "median"), value="median")["blocks_missing"][0] == (0,)


@given(
    st.lists(st.integers(1, 10**12), min_size=1, max_size=50),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
)
def test_quantiles_are_numpys(values, levels):
    ordered = np.sort(np.array(values))
    made = SortedSamples(ordered).quantiles(levels)
    assert made == pytest.approx(np.quantile(ordered, levels), rel=1e-9)


def test_infinite_samples_beyond_the_quantile_do_no_harm():
    frame = pd.DataFrame({"t": [1, 1, 1], "v": [1.0, 2.0, math.inf]})
    table = reduce_trials(frame, value="v", by=["t"], statistics=["median", "max"])
    assert table.loc[0, "median"] == 2.0 and table.loc[0, "max"] == math.inf


odd = st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e-300, 1e300, 5.0])
values_ = st.one_of(odd, st.floats(1e-6, 1e12), st.integers(1, 100).map(float))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["base", "a", "b"]), values_), max_size=30
    ),
    st.booleans(),
)
def test_any_input_gives_a_verdict_or_a_clear_error(rows, paired):
    frame = pd.DataFrame(rows, columns=["block", "condition", "value"])
    frame = frame.astype({"block": "int64", "value": "float64"})
    try:
        table = run(frame, paired=paired)
    except UsageError as error:
        assert str(error)
        return
    assert set(table["verdict"]) <= VERDICTS
    assert set(table["condition"]) == set(frame["condition"]) - {"base"}
    for row in table.to_dict("records"):
        if np.isfinite(row["low"]):
            assert row["low"] <= row["estimate"] * (1 + 1e-9)
            assert row["estimate"] <= row["high"] * (1 + 1e-9)
        assert (row["verdict"] == "undecided") == (not row["differs"] and not row["equivalent"])
        assert row["n_blocks"] >= 5 or row["verdict"] == "undecided"
        if paired:
            assert row["n_blocks"] + len(row["blocks_missing"]) == frame["block"].nunique()


def test_independent_groups_need_no_block_in_common():
    frame = trials(np.random.default_rng(3))
    frame.loc[frame["condition"] == "other", "block"] += 100
    row = run(frame, paired=False).iloc[0]
    assert row["n_blocks"] == 10 and len(row["blocks_missing"]) == 20
    assert row["note"] == HALF_CHECKED


def test_samples_of_a_trial_depend_on_each_other():
    raw = samples(np.random.default_rng(1), blocks=2)
    lags = [checks.autocorrelation(part["value"].to_numpy()) for _, part in raw.groupby("trial")]
    assert min(lags) > 0.7
    assert (trials(np.random.default_rng(1))["value"] > 0).all()


@given(st.integers(0, 10_000), st.integers(5, 12), st.floats(1.0, 1.2))
@settings(max_examples=40, deadline=None)
def test_an_interval_excludes_1_exactly_where_the_row_differs(seed, blocks, ratio):
    rng = np.random.default_rng(seed)
    frame = trials(rng, blocks, ratio=ratio, noise=0.05, others=("a", "b", "c", "d"))
    table = run(frame)
    excluded = (table["low"] > 1) | (table["high"] < 1)
    assert (excluded == table["differs"]).all()
    inside = (table["equal_low"] > 1 / 1.02) & (table["equal_high"] < 1.02)
    assert (inside == table["equivalent"]).all()


def test_a_constant_is_not_in_the_family():
    frame = trials(np.random.default_rng(3), 8, ratio=1.05, noise=0.02)
    alone = run(frame).iloc[0]
    constant = frame[frame["condition"] == "base"].assign(condition="constant")
    constant["value"] *= 2
    table = run(pd.concat([frame, constant])).set_index("condition")
    assert table.loc["other", "p_adjusted"] == alone["p_adjusted"]
    assert table.loc["constant", "verdict"] == "different"
    assert "no variance" in table.loc["constant", "note"]


def test_blocks_that_are_serially_correlated_have_wider_errors_and_say_so():
    rng = np.random.default_rng(5)
    changes = signal.lfilter([1], [1, -0.8], rng.normal(0, 0.01, 30)) + 0.01
    row, plain = run(with_changes(changes)).iloc[0], stats.ttest_1samp(changes, 0)
    assert "blocks are serially correlated" in row["note"]
    assert row["p_value"] > plain.pvalue and row["sd"] > changes.std(ddof=1)
    shuffled = run(with_changes(np.sort(changes).reshape(2, 15).T.ravel())).iloc[0]
    assert "serially" not in shuffled["note"]
    assert shuffled["p_value"] == pytest.approx(plain.pvalue)


def test_the_trimmed_mean_withstands_an_outlying_block():
    changes = [0.014, 0.01, 0.017, 0.012, 0.5, 0.013, 0.018, 0.011, 0.016, 0.015]
    plain, row = (run(with_changes(changes), trim=trim).iloc[0] for trim in (0.0, 0.2))
    assert "block 5 of 10 is an outlier" in plain["note"] and plain["verdict"] == "undecided"
    assert row["verdict"].startswith("different") and "20%" in row["note"]
    assert np.log(row["estimate"]) == pytest.approx(stats.trim_mean(changes, 0.2))
    expected = stats.ttest_ind(changes, np.zeros(10), trim=0.2, equal_var=False)
    assert row["p_value"] == pytest.approx(expected.pvalue, rel=1e-6)


def test_the_trimmed_mean_allows_for_blocks_that_depend_on_each_other():
    rng = np.random.default_rng(3)
    changes = np.repeat([0.0, 0.02], 12) + rng.normal(0, 0.001, 24)
    together, apart = (
        run(with_changes(order), trim=0.2).iloc[0] for order in (changes, rng.permutation(changes))
    )
    assert together["estimate"] == pytest.approx(apart["estimate"])
    assert together["p_value"] > 5 * apart["p_value"]
    assert "errors allow for it" in together["note"]


@pytest.mark.parametrize("options", [{"trim": 0.5}, {"trim": -0.1}, {"trim": 0.2, "paired": False}])
def test_an_impossible_trim_is_refused(options):
    with pytest.raises(UsageError, match="trim"):
        run(with_changes([0.1] * 10), **options)


@pytest.mark.parametrize(("failed", "verdict"), [("other", "undecided"), ("both", "equivalent")])
def test_a_condition_that_fails_more_often_is_not_called_equivalent(failed, verdict):
    frame = trials(np.random.default_rng(8), 12, noise=0.005)
    lost = frame["block"].isin([2, 9]) & ((frame["condition"] == "other") | (failed == "both"))
    row = run(frame.assign(value=frame["value"].mask(lost))).iloc[0]
    assert row["p_equivalence"] < 0.05 and row["verdict"] == verdict
    assert ("no equivalence is claimed" in row["note"]) == (failed == "other")
    # Over many blocks a failure changes little, however slow it was.
    many = trials(np.random.default_rng(8), 200, noise=0.005)
    many.loc[1, "value"] = np.nan
    assert run(many).verdict[0] == "equivalent"
    # A block that was not run yet is no failure.
    assert run(frame[~lost]).verdict[0] == "equivalent"
