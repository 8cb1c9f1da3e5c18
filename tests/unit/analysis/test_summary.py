import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.analysis import checks, power, tables
from labkit.analysis.compare import compare, factor_effect, shift
from labkit.analysis.noise import noise_floor
from labkit.analysis.summary import combined, mechanisms, summarise
from labkit.analysis.trials import groups, join_factors
from labkit.errors import UsageError

CELL = ["placement", "wait"]


def study(blocks=6, n=400, noise=0.01, seed=1, copies=2):
    """Samples of two placements by two waits; the baseline cell runs twice a block."""
    rng, frames = np.random.default_rng(seed), []
    for block in range(blocks):
        for placement, wait in [("bare", "block"), ("bare", "spin"), ("docker", "block")]:
            for replicate in range(
                1, (copies if placement == "bare" and wait == "block" else 1) + 1
            ):
                level = (
                    30_000 * (0.3 if wait == "spin" else 1) * (1.1 if placement == "docker" else 1)
                )
                values = level * math.exp(rng.normal(0, noise)) * (0.9 + rng.gamma(2, 0.05, n))
                frame = pd.DataFrame({"rtt_ns": values.astype("int64")})
                names = {"placement": placement, "wait": wait, "replicate": replicate}
                frames.append(frame.assign(trial=f"t{len(frames):03d}", block=block, **names))
    return pd.concat(frames, ignore_index=True)


def medians(samples):
    return summarise(samples, by=["trial", "block", "replicate", *CELL], statistics=["median"])


def test_summaries_are_the_usual_ones():
    samples = study()
    table = summarise(samples, by=["trial", "block", *CELL])
    first = samples.loc[samples["trial"] == "t000", "rtt_ns"]
    row = table.set_index("trial").loc["t000"]
    assert row["n"] == 400 and len(table) == 24
    assert row["mean"] == pytest.approx(first.mean())
    assert row["std"] == pytest.approx(first.std())
    assert row["min"] == first.min()
    assert row["p99"] == pytest.approx(first.quantile(0.99))
    assert (table["note"] == "").all()


def test_quantiles_of_too_few_samples_are_refused_with_a_note():
    row = summarise(study(n=50), by=["trial"]).iloc[0]
    assert np.isnan(row["p99"]) and row["note"] == "p99 takes 100 samples"
    assert np.isfinite(row["p95"])
    row = summarise(study(n=1), by=["trial"]).iloc[0]
    assert np.isnan(row["std"]) and np.isnan(row["p95"]) and np.isfinite(row["median"])


def test_combined_pools_trials_and_counts_them():
    samples = study()
    table = combined(samples, by=CELL).set_index(CELL)
    row = table.loc[("bare", "block")]
    assert (row["n_trials"], row["n_blocks"], row["n"]) == (12, 6, 4800)
    mask = (samples["placement"] == "bare") & (samples["wait"] == "block")
    assert row["p95"] == pytest.approx(samples.loc[mask, "rtt_ns"].quantile(0.95))


def test_factor_effect_is_compare_in_each_cell_with_one_correction():
    trials = medians(study())
    table = factor_effect(trials, "wait", ["block", "spin"], ["placement"], value="median")
    assert list(table["contrast"]) == ["spin / block"] * 2
    row, absent = table.iloc[0], table.iloc[1]
    cell = trials[trials["placement"] == "bare"]
    names = {"condition": "wait", "baseline": "block"}
    alone = compare(cell, value="median", **names).iloc[0]
    assert row["estimate"] == alone["estimate"] and row["low"] == alone["low"]
    assert row["verdict"] == "different"
    assert absent["n_blocks"] == 0 and absent["note"] == "no trial with wait=spin"
    assert absent["verdict"] == "undecided"


def test_factor_effect_without_other_factors_and_its_errors():
    trials = medians(study())
    assert len(factor_effect(trials, "wait", ["block", "spin"], [], value="median")) == 1
    with pytest.raises(UsageError, match="two levels"):
        factor_effect(trials, "wait", ["block"], [], value="median")
    with pytest.raises(UsageError, match="no column 'affinity'"):
        factor_effect(trials, "affinity", ["free", "split"], [], value="median")


def test_mechanisms_are_means_and_absent_counters_are_nan():
    rows = {"placement": ["a", "a", "b"], "switches": [1.0, 3.0, None]}
    table = mechanisms(pd.DataFrame(rows), by=["placement"], columns=["switches", "idle_exits"])
    assert table["n_trials"].to_list() == [2, 1]
    assert table["switches"][0] == 2.0 and np.isnan(table["switches"][1])
    assert table["idle_exits"].isna().all()


def test_noise_floor_recovers_the_spread():
    trials = summarise(study(400, n=2, noise=0.02), by=["trial", "block", "replicate", *CELL])
    trials["median"] = np.exp(np.random.default_rng(3).normal(10, 0.02, len(trials)))
    floor = noise_floor(trials, value="median", condition=CELL)
    assert len(floor) == 1 and floor["n_blocks"][0] == 400
    assert floor["sd"][0] == pytest.approx(0.02 * math.sqrt(2), rel=0.15)
    assert floor["low"][0] < 1 < floor["high"][0]
    margin = power.decidable_margin(floor["sd"][0], 400)
    assert floor["decidable_margin"][0] == pytest.approx(margin)


def test_noise_floor_of_a_pilot_and_without_copies():
    floor = noise_floor(medians(study(1)), value="median", condition=CELL)
    assert floor["note"][0].startswith("pilot") and floor["decidable_margin"][0] == math.inf
    assert noise_floor(medians(study(copies=1)), value="median", condition=CELL).empty


def test_drift_is_found_and_said_as_a_share():
    blocks = np.tile(np.arange(10), 2)
    names = np.repeat(["steady", "drifting"], 10)
    noise = np.random.default_rng(4).normal(0, 0.002, 20)
    value = np.exp(np.where(names == "drifting", 0.01 * blocks, 0) + noise)
    frame = pd.DataFrame({"block": blocks, "c": names, "v": value})
    table = checks.drift(frame, value="v", condition="c").set_index("c")
    assert table["drifts"].to_dict() == {"steady": False, "drifting": True}
    assert table.loc["drifting", "slope"] == pytest.approx(0.01, abs=0.001)
    assert table.loc["drifting", "total"] == pytest.approx(math.expm1(0.09), abs=0.01)
    pilot = checks.drift(frame[frame["block"] < 2], value="v", condition="c")
    assert pilot["p_value"].isna().all() and not pilot["drifts"].any()
    with pytest.raises(UsageError, match="logarithm"):
        checks.drift(frame.assign(v=0.0), value="v", condition="c")


def test_copies_in_a_block_are_no_further_blocks():
    found = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        blocks = np.repeat(np.arange(10), 4)
        value = np.exp(rng.normal(0, 0.05, 10)[blocks] + rng.normal(0, 0.005, 40))
        frame = pd.DataFrame({"block": blocks, "c": "a", "v": value})
        table = checks.drift(frame, value="v", condition="c")
        assert table["n"][0] == 10
        found += bool(table["drifts"][0])
    assert found <= 20


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_dependence_of_an_ar1_series(phi):
    rng, n = np.random.default_rng(5), 50_000
    series = rng.normal(size=n)
    for number in range(1, n):
        series[number] += phi * series[number - 1]
    assert checks.autocorrelation(series) == pytest.approx(phi, abs=0.02)
    assert checks.effective_size(series) == pytest.approx(n * (1 - phi) / (1 + phi), rel=0.2)


@given(st.lists(st.floats(-1e9, 1e9), max_size=200))
def test_effective_size_is_between_one_and_n(values):
    size = checks.effective_size(np.array(values))
    assert min(1, len(values)) <= size <= len(values)
    lag = checks.autocorrelation(np.array(values))
    assert np.isnan(lag) or -1 <= lag <= 1


def test_outliers_are_flagged_and_nothing_is_deleted():
    trials = summarise(study(8), by=["trial", "block", *CELL])
    trials.loc[5, "median"] *= 1.5
    flagged = checks.outliers(trials, value="median", condition=CELL)
    assert len(flagged) == len(trials) and flagged.loc[5, "outlier"]
    # A slow block shifts all its trials: that is the block's, not the trials'.
    trials = summarise(study(8), by=["trial", "block", *CELL])
    before = checks.outliers(trials, value="median", condition=CELL)["outlier"].sum()
    trials.loc[trials["block"] == 2, "median"] *= 1.5
    assert checks.outliers(trials, value="median", condition=CELL)["outlier"].sum() <= before + 1
    constant = checks.outliers(trials.assign(median=7.0), value="median", condition=CELL)
    assert not constant["outlier"].any()
    failed = checks.outliers(trials.assign(median=np.nan), value="median", condition=CELL)
    assert not failed["outlier"].any()


def test_shift_is_compare_at_each_quantile():
    samples = study().query("wait == 'block'")
    table = shift(samples, condition="placement", baseline="bare")
    assert "q0.999" not in set(table["quantile"]) and "p99" in set(table["quantile"])
    row = table.set_index("quantile").loc["median"]
    options = {"condition": "placement", "baseline": "bare"}
    alone = compare(medians(samples), value="median", **options)
    assert row["difference"] == pytest.approx(alone["difference"][0])


def test_missing_keys_are_an_error():
    samples = study(1).astype({"trial": "object"})
    samples.loc[3, "trial"] = None
    with pytest.raises(UsageError, match="'trial' has missing values"):
        summarise(samples, by=["trial"])


def test_joint_is_one_factor_of_several():
    frame = pd.DataFrame({"a": ["x", "y", "x"], "b": pd.Categorical(["s", "t", "t"], ["t", "s"])})
    made = join_factors(frame, ["a", "b"])
    assert list(made) == ["x + s", "y + t", "x + t"]
    assert list(made.categories) == ["x + t", "x + s", "y + t"]
    assert made.codes.dtype == np.int8
    many = pd.concat([frame] * 400_000, ignore_index=True)  # more than one piece
    assert list(join_factors(many, ["a", "b"])[-3:]) == list(made)
    with pytest.raises(UsageError, match="missing"):
        join_factors(frame.assign(a=[None, "y", "x"]), ["a", "b"])


def test_headlines_are_plain_json():
    names = ["block", "spin"], ["placement"]
    row = factor_effect(medians(study(1)), "wait", *names, value="median").iloc[0]
    made = tables.headline(row, "spinning")
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["verdict"] == "undecided (pilot)" and made["low"] is None
    values = {"a": np.float64(1), "b": [np.int64(2), math.inf, pd.NA], 3: (math.nan, "x")}
    assert tables.json_value(values) == {"a": 1.0, "b": [2, None, None], "3": [None, "x"]}


def test_headlines_do_not_depend_on_the_last_bits_of_a_processor():
    assert tables.json_value([0.23932009900693307]) == tables.json_value([0.2393200990069331])
    assert tables.json_value([1.2345678901e-9, True, 10**12]) == [1.23456789e-09, True, 10**12]


def test_blocks_over_several_sessions_are_named():
    rows = {"block": [1, 1, 2, 2, 3, 3], "session": [1, 1, 1, 2, 2, 2]}
    assert checks.blocks_across_sessions(pd.DataFrame(rows)) == [2]
    # A trial repeated in the same session is no span; one of an earlier session is, if given.
    again = pd.DataFrame({"block": [1, 1, 1, 2], "session": [1, 1, 1, 2]})
    assert checks.blocks_across_sessions(again) == []
    assert checks.blocks_across_sessions(again.assign(block=1)) == [1]
    with pytest.raises(UsageError, match="no column 'session'"):
        checks.blocks_across_sessions(again[["block"]])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), min_size=1))
def test_groups_are_those_of_pandas(rows):
    frame = pd.DataFrame(rows, columns=["one", "two"])
    frame["two"] = pd.Categorical(frame["two"], ["z", "x", "y", "unused"])
    found = {
        tuple(key.values()): frame.index[index].tolist() for key, index in groups(frame, CELLS)
    }
    wanted = frame.groupby(CELLS, observed=True).groups
    assert found == {key: list(index) for key, index in wanted.items()}


CELLS = ["one", "two"]
