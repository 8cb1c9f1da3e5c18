"""Does each 95 % interval cover what it should, and how wide is it? Simulated experiments.

One entry for every interval of the models around the comparison: a function draws an experiment
whose truth is known and returns the truth and the interval. Ten blocks, 3 % between blocks, and
noise that is not the same everywhere.

`benchmarks/simulate.py` runs them: .venv/bin/python benchmarks/simulate.py --only pooled
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from labkit.analysis import factorial, knee, models, overhead, quantiles
from labkit.analysis.checks import drift

Rng = np.random.Generator
Draw = Callable[[Rng], tuple[float, float, float]]

BLOCKS = 10
#: Standard deviations on logs: between blocks, between trials and between samples of a trial.
BLOCK, BETWEEN, WITHIN = 0.03, 0.05, 0.4
SIZES = np.array([64.0, 1024.0, 4096.0, 16384.0, 32768.0])
LAYERS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
QUOTAS = np.array([1000.0, 1500, 2000, 2500, 3000, 4000, 5000, 7000, 10000])
UNEQUAL = np.where(QUOTAS < 3_300, 0.10, 0.02)


class Coverage(NamedTuple):
    """An interval to be tried: `draw` returns (truth, low, high) of one experiment.

    `discrete` methods may cover more than 97.5 %: the levels that they can attain are steps.
    """

    name: str
    draw: Draw
    discrete: bool = False
    experiments: int = 1000


def of(fit: Callable[[Rng], Any], truth: float, name: str, place: int | None = None) -> Draw:
    """Return the draw of one estimate of what `fit` returns (one of several, with `place`)."""

    def draw(rng: Rng) -> tuple[float, float, float]:
        found = getattr(fit(rng), name)
        low, high = (found if place is None else found[place]).interval()
        return truth, low, high

    return draw


def trials(rng: Rng, means: dict[str, Any], levels: Any, noise: Any) -> pd.DataFrame:
    """Return trials of conditions over levels, with a level of each block of its own."""
    blocks = np.exp(BLOCK * rng.standard_normal((BLOCKS, 1)) - BLOCK**2 / 2)
    spread = np.broadcast_to(np.asarray(noise, dtype=float), len(levels))
    # The means of the lognormals are kept at 1, so that arithmetic truths stay true.
    parts = [
        blocks * mean * np.exp(spread * rng.standard_normal((BLOCKS, len(levels))) - spread**2 / 2)
        for mean in means.values()
    ]
    return pd.DataFrame(
        {
            "value": np.concatenate([part.ravel() for part in parts]),
            "condition": np.repeat(list(means), BLOCKS * len(levels)),
            "level": np.tile(levels, BLOCKS * len(means)),
            "block": np.tile(np.repeat(np.arange(BLOCKS), len(levels)), len(means)),
        }
    )


NAMES = {"value": "value", "over": "level"}
BASE, COST = 20_000 + 0.8 * SIZES, 5_000 + 0.1 * SIZES
#: What the growing part of the cost is of the baseline's mean value.
SHARE = float(0.1 * np.ptp(SIZES) / BASE.mean())


def added(rng: Rng) -> overhead.Overhead:
    """Draw a cost that is partly fixed and partly grows with the size."""
    frame = trials(rng, {"host": BASE, "nat": BASE + COST}, SIZES, 0.02)
    return overhead.fit_overhead(
        frame, condition="condition", baseline="host", other="nat", **NAMES
    )


#: Bent upwards, with noise that grows.
CURVED, RISING = 100 + 20 * LAYERS + 0.3 * LAYERS**2, np.linspace(0.01, 0.04, len(LAYERS))
STRAIGHT = np.polynomial.Polynomial.fit(LAYERS, CURVED, 1)
OFF = (CURVED - STRAIGHT(LAYERS)) / np.ptp(STRAIGHT(LAYERS))
# The ratio is one of geometric means, which lie below the arithmetic ones.
GROWN = float(CURVED[-1] / CURVED[0] * np.exp((RISING[0] ** 2 - RISING[-1] ** 2) / 2))


def line(rng: Rng) -> models.Line:
    """Draw a growth that is not quite straight."""
    return models.fit_line(trials(rng, {"overlay2": CURVED}, LAYERS, RISING), **NAMES)


CHAIN = np.array([100.0, 103.0, 110.0, 112.0])


def step(rng: Rng) -> tuple[float, float, float]:
    """Draw a chain that gets slower with every link."""
    frame = trials(rng, {"chain": CHAIN}, np.arange(1.0, 5), 0.02)
    return CHAIN[2] / CHAIN[1], *models.successive_ratios(frame, **NAMES)[1].interval()


def hinge(at: float, noise: Any, exponent: float | None, own: float = 0.0) -> Draw:
    """Return the draw of a knee; `own` is the spread of the knees of the blocks, on logs."""

    def draw(rng: Rng) -> tuple[float, float, float]:
        spots = at * np.exp(own * rng.standard_normal((BLOCKS, 1)))
        logs = -np.log(np.minimum(QUOTAS / spots, 1.0)) + BLOCK * rng.standard_normal((BLOCKS, 1))
        logs += noise * rng.standard_normal(logs.shape)
        frame = pd.DataFrame(200 * np.exp(logs), columns=QUOTAS).rename_axis("block")
        frame = frame.reset_index().melt("block", var_name="level")
        low, high = knee.fit_knee(frame, exponent=exponent, **NAMES).at.interval()
        return at, low, high

    return draw


CELLS = pd.MultiIndex.from_product(
    [range(BLOCKS), ["host", "nat"], ["block", "spin"], ["free", "split", "same"]],
    names=["block", "placement", "wait", "affinity"],
).to_frame(index=False)
CELLS["cell"] = CELLS["placement"] + CELLS["wait"]
NAT, SPIN = (CELLS[name].eq(level) for name, level in (("placement", "nat"), ("wait", "spin")))


def cells(rng: Rng) -> pd.DataFrame:
    """Draw a factorial experiment, with variances that are not equal."""
    logs = np.log(1.1) * NAT + np.log(0.8) * SPIN + np.log(0.95) * (NAT & SPIN)
    logs += np.repeat(BLOCK * rng.standard_normal(BLOCKS), len(CELLS) // BLOCKS)
    noise = np.where(SPIN, 0.01, 0.03) * rng.standard_normal(len(CELLS))
    return CELLS.assign(value=np.exp(logs + noise))


def effect(truth: float, term: str, row: int) -> Draw:
    """Return the draw of one effect of the factorial model."""
    factors = ["placement", "wait", "affinity"]

    def draw(rng: Rng) -> tuple[float, float, float]:
        frame = cells(rng)
        fit = factorial.fit_factorial(frame, value="value", factors=factors, order=2)
        one = fit.effects[fit.effects["term"] == term].iloc[row]
        return truth, float(one["low"]), float(one["high"])

    return draw


def contrast(rng: Rng) -> tuple[float, float, float]:
    """Draw the ratio of two ratios."""
    places = ("condition", "baseline", "condition2", "baseline2")
    four = dict(zip(places, ("natspin", "hostspin", "natblock", "hostblock"), strict=True))
    found = models.interaction(cells(rng), value="value", by="cell", **four)
    return 0.95, *found.interval()


def groups(rng: Rng) -> tuple[float, float, float]:
    """Draw the geometric mean of two cells over that of two others."""
    ends = {"above": ["natspin", "hostblock"], "below": ["natblock", "hostspin"]}
    found = models.group_contrast(cells(rng), value="value", by="cell", **ends)
    return 0.95**0.5, *found.interval()


def unpaired(rng: Rng) -> tuple[float, float, float]:
    """Draw a loss of 20 % to a neighbour, in blocks that have nothing in common."""
    frame = trials(rng, {"alone": np.ones(1), "beside": np.full(1, 0.8)}, [1], 0.03)
    alone = (frame["condition"] == "alone").to_numpy()
    noise = np.where(alone, 0.03, 0.08) * rng.standard_normal(len(frame))
    frame["value"] = np.where(alone, 1.0, 0.8) * (1 + noise)
    names = {"value": "value", "condition": "condition"}
    ratio = models.unpaired_ratio(frame, baseline="alone", other="beside", **names)
    return 0.8, *ratio.interval()


def samples(rng: Rng, count: int, between: float = BETWEEN, shift: Any = 0.0) -> list[Any]:
    """Draw the sorted samples of a trial a block."""
    effects = np.broadcast_to(shift, (BLOCKS,)) + between * rng.standard_normal(BLOCKS)
    logs = effects[:, None] + WITHIN * rng.standard_normal((BLOCKS, count))
    return list(np.exp(np.sort(logs, axis=1)))


def trial_p99(rng: Rng) -> tuple[float, float, float]:
    """Draw the p99 that a trial has."""
    found = quantiles.trial_quantile(samples(rng, 2_000), 0.99)
    return float(np.exp(WITHIN * stats.norm.ppf(0.99))), *found.interval()


def pooled(level: float, count: int, between: float = BETWEEN) -> Draw:
    """Return the draw of a quantile of all samples together."""
    truth = float(np.exp(np.hypot(between, WITHIN) * stats.norm.ppf(level)))

    def draw(rng: Rng) -> tuple[float, float, float]:
        seed = int(rng.integers(2**31))
        found = quantiles.pooled_quantile(samples(rng, count, between), level, seed=seed)
        return truth, found.low, found.high

    return draw


def drifting(rng: Rng) -> tuple[float, float, float]:
    """Draw a drift over the campaign."""
    logs = 0.01 * np.arange(BLOCKS) + BLOCK * rng.standard_normal(BLOCKS)
    frame = pd.DataFrame({"value": np.exp(logs), "condition": "a", "block": np.arange(BLOCKS)})
    row = drift(frame, value="value", condition="condition").iloc[0]
    return float(np.expm1(0.01)), float(row["low"]), float(row["high"])


COVERAGE: list[Coverage] = [
    Coverage("overhead: intercept", of(added, 5_000.0, "intercept")),
    Coverage("overhead: slope", of(added, 0.1, "slope")),
    Coverage("overhead: growth to the baseline", of(added, SHARE, "relative")),
    Coverage("overhead: ratio", of(added, stats.gmean((BASE + COST) / BASE), "ratio")),
    Coverage("line: intercept", of(line, float(STRAIGHT(0.0)), "intercept")),
    Coverage("line: slope", of(line, float(STRAIGHT.deriv()(0.0)), "slope")),
    Coverage("line: growth", of(line, GROWN, "growth")),
    Coverage("line: curvature", of(line, float(np.abs(OFF).max()), "curvature")),
    Coverage("line: deviation", of(line, float(OFF[1]), "deviations", 1)),
    Coverage("successive ratio", step),
    Coverage("knee: slope unknown", hinge(3_300, 0.05, None), experiments=300),
    Coverage("knee: slope known", hinge(3_300, 0.05, -1.0), experiments=300),
    Coverage("knee: unequal noise", hinge(3_300, UNEQUAL, None), experiments=300),
    Coverage("knee: own knee a block", hinge(3_300, 0.05, None, own=0.05), experiments=300),
    # At a level the contrast that tests a knee changes at once, and the attained level steps.
    Coverage("knee: on a level", hinge(3_000, 0.05, None), discrete=True, experiments=300),
    Coverage("factorial: main effect", effect(1.1**0.5 * 0.95**0.25, "placement", 1)),
    Coverage("factorial: one of three levels", effect(1.0, "affinity", 2)),
    Coverage("factorial: interaction", effect(0.95**0.25, "placement:wait", 3)),
    Coverage("contrast of two ratios", contrast),
    Coverage("contrast of groups of cells", groups),
    Coverage("unpaired ratio, Fieller", unpaired),
    Coverage("trials: p99", trial_p99),
    Coverage("pooled: median", pooled(0.5, 500)),
    Coverage("pooled: p99", pooled(0.99, 2_000)),
    Coverage("pooled: p99, trials far apart", pooled(0.99, 2_000, 0.10)),
    Coverage("pooled: p99, trials alike", pooled(0.99, 2_000, 0.0)),
    Coverage("pooled: p99.9", pooled(0.999, 10_000)),
    Coverage("drift: slope", drifting),
]


def measure(one: Coverage, experiments: int | None = None, seed: int = 1) -> dict[str, Any]:
    """Return coverage, misses on either side, width and time of one interval."""
    rng, count = np.random.default_rng(seed), experiments or one.experiments
    start = time.perf_counter()
    truth, low, high = np.array([one.draw(rng) for _ in range(count)]).T
    return {
        "interval": one.name,
        "coverage": float(((low <= truth) & (truth <= high)).mean()),
        "below": float((high < truth).mean()),
        "above": float((low > truth).mean()),
        "truth": float(np.median(truth)),
        "width": float(np.median(high - low)),
        "experiments": count,
        "ms": 1e3 * (time.perf_counter() - start) / count,
    }
