"""Scenarios for `benchmarks/simulate.py`: every interval over blocks, in what breaks a t test.

One experiment draws the logs of two conditions over the blocks and gives them to every function.
What counts is an interval that misses the truth and has no note: silently wrong.

Run them: .venv/bin/python benchmarks/simulate.py --only "slow trials"
"""

from __future__ import annotations

import itertools
import math
import runpy
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, signal, special

from labkit.analysis import factorial, knee, models, noise, overhead, quantiles
from labkit.analysis.compare import compare, factor_effect, pair_effects, ranking, shift
from labkit.analysis.interference import interference_ratios
from labkit.analysis.robust import SURE_BLOCKS
from labkit.analysis.trials import object_column, sort_trials
from labkit.claims.ledger import ledger
from labkit.claims.schema import CLAIM, Claims
from labkit.dataset import Dataset

_BLOCKS = runpy.run_path(str(Path(__file__).with_name("simulate_blocks.py")))
Rate, Scenario = _BLOCKS["Rate"], _BLOCKS["Scenario"]
Rng = np.random.Generator
#: Logs of the baseline and of the other condition by block; NaN is a failed trial.
Pair = tuple[np.ndarray, np.ndarray]
#: The ends of an interval, and the note.
Interval = tuple[float, float, str]

SD, BLOCK_SD = 0.05, 0.03
EXPERIMENTS = 100
SIZES = (5, 6, 10, 25)


def normal(rng: Rng, n: int) -> Pair:
    """Draw independent normal logs."""
    level = BLOCK_SD * rng.normal(size=n)
    return level, level + SD * rng.normal(size=n)


def wandering(rng: Rng, n: int, lag1: float) -> Pair:
    """Draw log ratios that are an AR(1) series over the blocks."""
    base, _ = normal(rng, n)
    start = lag1 * rng.normal(size=1)
    series = signal.lfilter([math.sqrt(1 - lag1**2)], [1, -lag1], rng.normal(size=n), zi=start)[0]
    return base, base + SD * series


def bimodal(rng: Rng, n: int) -> Pair:
    """Draw trials of which a fifth, in both conditions, take twice as long."""
    base, other = normal(rng, n)
    slow = math.log(2) * (rng.random((2, n)) < 0.2)
    return base + slow[0], other + slow[1]


def pareto(rng: Rng, n: int) -> Pair:
    """Draw trials that are means of 200 samples of a Pareto distribution, index 1.5."""
    logs = np.log1p(rng.pareto(1.5, (2, n, 200)).mean(axis=2))
    return logs[0], logs[1]


def skewed(rng: Rng, n: int) -> Pair:
    """Draw exponential noise in one condition."""
    base, _ = normal(rng, n)
    return base, base + SD * (rng.exponential(size=n) - 1) + 0.2 * SD * rng.normal(size=n)


def slow(rng: Rng, n: int) -> Pair:
    """Draw one condition of which 10 % of the trials take twice as long."""
    base, other = normal(rng, n)
    return base, other + math.log(2) * (rng.random(n) < 0.1)


def outlier(rng: Rng, n: int) -> Pair:
    """Draw one block, three times off in one condition."""
    base, other = normal(rng, n)
    other[rng.integers(n)] += math.log(3) * rng.choice([-1, 1])
    return base, other


def failing(rng: Rng, n: int) -> Pair:
    """Draw the condition of `slow`, whose slow trials fail."""
    base, other = normal(rng, n)
    other[rng.random(n) < 0.1] = math.nan
    return base, other


#: Each with the mean log ratio.
SCENARIOS_OF_LOGS: dict[str, tuple[Callable[[Rng, int], Pair], float]] = {
    "independent, normal": (normal, 0.0),
    "effect wanders, AR .5": (partial(wandering, lag1=0.5), 0.0),
    "effect wanders, AR .8": (partial(wandering, lag1=0.8), 0.0),
    "a fifth of all trials twice as slow": (bimodal, 0.0),
    "means of Pareto samples": (pareto, 0.0),
    "skew in one condition": (skewed, 0.0),
    "10 % slow trials in one condition": (slow, 0.1 * math.log(2)),
    "one outlying block": (outlier, 0.0),
    "10 % slow trials fail": (failing, 0.1 * math.log(2)),
}


#: What happens to a tenth of the trials is not in every campaign.
RARE = ("10 % slow trials in one condition", "10 % slow trials fail")


def tidy(columns: dict[Any, np.ndarray], name: str = "condition") -> pd.DataFrame:
    """Return trials of cells whose values by block are given; NaN is a failed trial."""
    blocks = len(next(iter(columns.values())))
    return pd.DataFrame(
        {
            "block": np.tile(np.arange(blocks), len(columns)),
            name: np.repeat(list(columns), blocks),
            "value": np.concatenate(list(columns.values())),
        }
    )


def pair_of(pair: Pair) -> pd.DataFrame:
    """Return the trials of a pair."""
    return tidy({"base": np.exp(pair[0]), "other": np.exp(pair[1])}).assign(cell="x")


def ends(table: pd.DataFrame, row: int = 0) -> Interval:
    """Return the interval and the note of a row."""
    line = table.iloc[row]
    return float(line["low"]), float(line["high"]), str(line.get("note", ""))


def of(estimate: Any) -> Interval:
    """Return the interval and the note of an estimate."""
    return *estimate.interval(), estimate.note


NAMES = {"value": "value", "condition": "condition", "baseline": "base"}


def ranked(pair: Pair) -> Interval:
    """Return the ratio to the baseline from a ranking, which divides the later by the earlier."""
    table = ranking(pair_of(pair), "condition", ["cell"], value="value")
    low, high, note = ends(table)
    return (low, high, note) if table["later"][0] == "other" else (1 / high, 1 / low, note)


#: Samples of a trial at level 1, whatever the scenario: quantiles of a log-normal distribution.
SAMPLES = np.exp(0.2 * special.ndtri((np.arange(400) + 0.5) / 400))


def samples_of(pair: Pair) -> pd.DataFrame:
    """Return the samples of the trials of a pair; a failed one has none."""
    trials = pair_of(pair).dropna().reset_index(drop=True)
    trials["rtt_ns"] = object_column([value * SAMPLES for value in trials["value"]])
    return sort_trials(trials.assign(trial=range(len(trials))).drop(columns="value"))


def shifted(pair: Pair) -> Interval:
    """Return the ratio of medians."""
    options = {"condition": "condition", "baseline": "base", "quantiles": ["median"]}
    return ends(shift(samples_of(pair), **options))


def floor(pair: Pair) -> Interval:
    """Return the ratio of two replicates."""
    frame = pair_of(pair).rename(columns={"condition": "replicate"})
    frame["replicate"] = frame["replicate"].map({"base": 1, "other": 2})
    return ends(noise.noise_floor(frame, value="value", condition="cell"))


def steps(pair: Pair) -> Interval:
    """Return the ratio of a baseline level to the one below it."""
    levels = ["base", "other"]
    return ends(
        noise.baseline_steps(pair_of(pair), value="value", condition="condition", levels=levels), 1
    )


def beside(pair: Pair) -> Interval:
    """Return the ratio of a service beside a neighbour to the service alone."""
    frame = pair_of(pair).rename(columns={"condition": "neighbour", "cell": "case"})
    return ends(
        interference_ratios(
            frame.assign(service="s"), metrics={"s": ["value"]}, alone=("base", "x"), margin=0.1
        )
    )


def crossed(pair: Pair) -> Interval:
    """Return (other / base) / (a / b), of which the second ratio is 1."""
    cells = dict(zip(("base", "other"), map(np.exp, pair), strict=True))
    cells |= dict.fromkeys(("a", "b"), np.ones(len(pair[0])))
    places = {"condition": "other", "baseline": "base", "condition2": "a", "baseline2": "b"}
    return of(models.interaction(tidy(cells, "by"), value="value", by="by", **places))


def grouped(pair: Pair) -> Interval:
    """Return the ratio of two groups of one cell."""
    groups = {"above": ["other"], "below": ["base"]}
    return of(models.group_contrast(pair_of(pair), value="value", by="condition", **groups))


def successive(pair: Pair) -> Interval:
    """Return the ratio of a level to the one before it."""
    found = models.successive_ratios(pair_of(pair), value="value", over="condition")
    return of(found[0])


def sloped(pair: Pair) -> Interval:
    """Return 1 plus the mean log ratio, as the slope of a line."""
    change = 1 + pair[1] - pair[0]
    frame = tidy({level: 10 + level * change for level in (1.0, 2.0, 4.0)}, "level")
    return of(models.fit_line(frame, value="value", over="level").slope)


def added(pair: Pair, name: str) -> Interval:
    """Return 1 plus the mean log ratio, as a fixed cost or as a growth of 10 % of the baseline."""
    change = 1 + pair[1] - pair[0]
    fixed = name == "intercept"
    frames = []
    for level in (0.0, 1.0, 2.0):
        cost = 5.0 * change + level if fixed else 2.0 + level * change
        cells = {"base": np.full(len(change), 20.0), "other": 20.0 + cost}
        frames.append(tidy(cells).assign(level=level))
    fit = overhead.fit_overhead(pd.concat(frames), over="level", other="other", **NAMES)
    low, high, note = of(getattr(fit, name))
    scale = 5.0 if fixed else 0.1
    return low / scale, high / scale, note


def main_effect(pair: Pair) -> Interval:
    """Return the ratio of a factor's levels, from a model of two factors."""
    frame = pd.concat([pair_of(pair).assign(second=level) for level in (1, 2)])
    names = ["condition", "second"]
    fit = factorial.fit_factorial(frame, value="value", factors=names, order=1)
    row = fit.effects[fit.effects["term"] == "condition"].set_index("levels").loc[[("other",)]]
    low, high, _ = ends(row)
    return low**2, high**2, fit.note


def own_trials(pair: Pair) -> list[np.ndarray]:
    """Return the samples of one condition's trials; a failed one has none."""
    return [np.exp(log) * SAMPLES if log == log else np.empty(0) for log in pair[1] - pair[0]]


def own_quantile(pair: Pair) -> Interval:
    """Return the geometric mean of the medians of one condition's trials."""
    low, high, note = of(quantiles.trial_quantile(own_trials(pair), 0.5))
    return low / np.median(SAMPLES), high / np.median(SAMPLES), note


QUOTAS = np.array([1000.0, 1500, 2000, 2500, 3000, 4000, 5000, 7000, 10000])
AT = 3300.0


def bent(pair: Pair, rng: Rng) -> Interval:
    """Return a knee over the true one, where blocks differ in the step that tests a knee."""
    change = (pair[1] - pair[0])[:, None]
    logs = -np.log(np.minimum(QUOTAS / AT, 1.0)) + change * (QUOTAS < AT)
    logs = logs + 0.02 * rng.standard_normal(logs.shape)
    frame = tidy(dict(zip(QUOTAS, np.exp(logs).T, strict=True)), "level")
    low, high, note = of(knee.fit_knee(frame, value="value", over="level").at)
    return low / AT, high / AT, note


PAIRS = {"value": "value", "factor": "condition", "within": ["cell"]}
#: Each returns the interval of the geometric mean ratio.
FUNCTIONS: dict[str, Callable[[Pair], Interval]] = {
    "compare": lambda pair: ends(compare(pair_of(pair), **NAMES)),
    "compare, unpaired": lambda pair: ends(compare(pair_of(pair), paired=False, **NAMES)),
    "factor_effect": lambda pair: ends(
        factor_effect(pair_of(pair), levels=["base", "other"], **PAIRS)
    ),
    "pair_effects": lambda pair: ends(
        pair_effects(pair_of(pair), pairs=[("other", "base")], **PAIRS)
    ),
    "ranking": ranked,
    "shift": shifted,
    "noise_floor": floor,
    "baseline_steps": steps,
    "interference": beside,
    "interaction": crossed,
    "group_contrast": grouped,
    "successive_ratios": successive,
    "fit_factorial": main_effect,
    "trial_quantile": own_quantile,
}
#: Each returns the interval of 1 plus the mean log ratio.
LINEAR: dict[str, Callable[[Pair], Interval]] = {
    "fit_line: slope": sloped,
    "fit_overhead: intercept": partial(added, name="intercept"),
    "fit_overhead: growth": partial(added, name="relative"),
}


@cache
def pooled_truth(scenario: str) -> float:
    """Return the median of all samples of very many trials."""
    draw, _ = SCENARIOS_OF_LOGS[scenario]
    base, other = draw(np.random.default_rng(1), 20_000)
    logs = other - base
    logs = logs[~np.isnan(logs)]

    def excess(x: float) -> float:
        return float(special.ndtr((x - logs) / 0.2).mean()) - 0.5

    return math.exp(optimize.brentq(excess, -5, 5))


def pooled(pair: Pair) -> Interval:
    """Return the median of all samples of one condition together."""
    found = quantiles.pooled_quantile(own_trials(pair), 0.5, resamples=500)
    return found.low, found.high, found.note


def judged(found: Interval, truth: float) -> tuple[bool, float]:
    """Return whether an interval is silently wrong, and whether it covers; NaN where refused."""
    low, high, note = found
    if math.isnan(low) or math.isnan(high):
        return False, math.nan
    covers = low <= truth <= high
    return not covers and not note, float(covers)


def every(rng: Rng, scenario: str, blocks: int) -> list[tuple[bool, float]]:
    """Give one draw to every function."""
    draw, mean = SCENARIOS_OF_LOGS[scenario]
    pair = draw(rng, blocks)
    found = [judged(function(pair), math.exp(mean)) for function in FUNCTIONS.values()]
    found += [judged(function(pair), 1 + mean) for function in LINEAR.values()]
    return [*found, judged(pooled(pair), pooled_truth(scenario))]


def a_knee(rng: Rng, scenario: str, blocks: int) -> list[tuple[bool, float]]:
    """Give one draw to `fit_knee`; the mean of the blocks' changes is no part of a knee."""
    draw, mean = SCENARIOS_OF_LOGS[scenario]
    base, other = draw(rng, blocks)
    return [judged(bent((base, other - mean), rng), 1.0)]


CLAIMED = 18
ABOUT = {"source": "paper", "place": "section 1", "statement": "something", "study": "study"}
CELLS = ["base", *(f"other {number}" for number in range(CLAIMED))]
RIG = {"name": "rig", "kind": "inventory", "hosts": {}, "capabilities": {}, "shared_kernel": False}


def campaign(rng: Rng, blocks: int, ratios: np.ndarray) -> Dataset:
    """Return a campaign in memory, whose conditions have these ratios to the baseline."""
    logs = BLOCK_SD * rng.normal(size=(blocks, 1)) + SD * rng.normal(size=(blocks, CLAIMED + 1))
    logs[:, 1:] += np.log(ratios)
    fixed = {"attempt": 1, "session": 1, "replicate": 1, "started_ns": 1, "seconds": 1.0}
    fixed |= {"status": "ok", "error": None, "n_samples": 0}
    records = [
        {**fixed, "trial": f"b{block}-p{place}", "block": block, "position": place}
        | {"levels": {"condition": cell}, "metrics": {"rate": math.exp(logs[block - 1, place])}}
        for block in range(1, blocks + 1)
        for place, cell in enumerate(CELLS)
    ]
    plan = {"study": "study", "factors": {"condition": CELLS}, "rig": RIG, "identity": {}}
    dataset = Dataset(Path("campaign"))
    dataset.__dict__.update(plan=plan, records=records, sessions=[])
    return dataset


def claimed(number: int) -> Any:
    """Return a claim: by turns that a ratio is above 1, and that it lies within 10 % of 1."""
    kind = {"kind": "difference", "direction": "higher"}
    if number % 2:
        kind = {"kind": "equivalence", "margin": 0.1}
    cells = {"condition": {"condition": CELLS[number + 1]}, "baseline": {"condition": "base"}}
    return CLAIM.validate_python(
        {**ABOUT, **kind, **cells, "id": f"paper-{number}", "metric": "rate"}
    )


def a_source(rng: Rng, blocks: int) -> list[tuple[bool, float]]:
    """Judge the claims of a source, which are true or false by nothing, at their bounds."""
    ratios = np.where(np.arange(CLAIMED) % 2, 1.1, 1.0)
    claims = Claims(tuple(map(claimed, range(CLAIMED))))
    results = set(ledger(campaign(rng, blocks, ratios), claims=claims)["result"])
    assert results <= {"replicated", "contradicted", "undecided"}, results
    return [(word in results, math.nan) for word in ("replicated", "contradicted")]


def scenarios() -> Iterator[Any]:
    """Yield each scenario with each number of blocks."""
    groups: tuple[tuple[Sequence[str], Callable[..., Any], int], ...] = (
        ((*FUNCTIONS, *LINEAR, "pooled_quantile"), every, EXPERIMENTS),
        (("fit_knee",), a_knee, EXPERIMENTS),
    )
    for (names, draw, experiments), scenario, blocks in itertools.product(
        groups, SCENARIOS_OF_LOGS, SIZES
    ):
        # From so many blocks on no standing note is given, and a campaign without such a trial
        # shows nothing.
        absent = 0.9**blocks if scenario in RARE and blocks >= SURE_BLOCKS else 0.0
        reach = f"no such trial in {absent:.0%} of campaigns" if absent else ""
        most = 0.07 + absent
        rates = tuple(
            Rate(f"{scenario}, {blocks} blocks: {name}", 0.05, 0.0, most, reach) for name in names
        )
        call = partial(draw, scenario=scenario, blocks=blocks)
        yield Scenario("functions", rates, call, experiments)
    for blocks in (5, 10, 25):
        name = f"ledger: {CLAIMED} claims at their bounds, {blocks} blocks: any"
        rates = tuple(
            Rate(f"{name} {word}", 0.05, 0.0, 0.05) for word in ("replicated", "contradicted")
        )
        yield Scenario("ledger", rates, partial(a_source, blocks=blocks), 100)


SCENARIOS = tuple(scenarios())
