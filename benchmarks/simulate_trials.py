"""Scenarios for `benchmarks/simulate.py`: changes inside trials, modes, factorial models, knees.

Run them: .venv/bin/python benchmarks/simulate.py --only "flags:"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pandas as pd
from scipy import optimize, signal, stats

from labkit.analysis import checks, factorial, knee, quantiles

Rng = np.random.Generator
Draw = Callable[[Rng], bool]
#: Section, name, least and most rate, experiments, and what draws one of them.
Scenario = tuple[str, str, float, float, int, Draw]


def autoregressive(rng: Rng, n: int, phi: float) -> np.ndarray:
    """Return standard normal samples with lag-1 correlation `phi`."""
    noise = rng.standard_normal(n + 500)
    return signal.lfilter([math.sqrt(1 - phi**2)], [1, -phi], noise)[500:]


STEADY: dict[str, Callable[[Rng, int], np.ndarray]] = {
    "independent": lambda rng, n: rng.lognormal(sigma=0.2, size=n),
    "AR(1) .5": lambda rng, n: np.exp(0.2 * autoregressive(rng, n, 0.5)),
    "AR(1) .9": lambda rng, n: np.exp(0.2 * autoregressive(rng, n, 0.9)),
    "Cauchy": lambda rng, n: rng.standard_cauchy(n),
    "two modes": lambda rng, n: (1 + (rng.random(n) < 0.3)) * rng.lognormal(sigma=0.1, size=n),
}


def alarm(rng: Rng, kind: str, n: int, share: float = 0.0, change: float = 0.0) -> bool:
    """Tell whether a trial is not called steady whose first `share` is slower by `change`."""
    values = STEADY[kind](rng, n)
    values[: int(share * n)] *= 1 + change
    return bool(checks.inside(values)["state"] != "steady")


def flags() -> list[Scenario]:
    """Return how often trials are flagged that are steady, and that are not."""
    steady: list[Scenario] = [
        ("flags", f"flags: {kind}, {n}", 0.0, 0.01, 1000, partial(alarm, kind=kind, n=n))
        for kind in STEADY
        for n in (5_000, 50_000)
    ]
    changing: list[Scenario] = [
        (
            "flags",
            f"flags: first {share:.0%} slower by {change:.0%}, {kind}, {n}",
            0.99,
            1.0,
            200,
            partial(alarm, kind=kind, n=n, share=share, change=change),
        )
        for share, change in ((0.4, math.expm1(0.1)), (0.4, 0.2), (0.2, 0.5), (0.1, 0.2))
        for kind in ("independent", "AR(1) .5")
        for n in (5_000, 50_000)
    ]
    return steady + changing


LEVELS = {"a": ["a1", "a2"], "b": ["b1", "b2", "b3"]}


def term_differs(rng: Rng, term: str, spread: float, blocks: int) -> bool:
    """Tell whether a term without an effect is found, which varies by block by `spread`.

    `spread` is the standard deviation of its effect to that of a trial, 2 %.
    """
    index = pd.MultiIndex.from_product([range(blocks), *LEVELS.values()], names=["block", *LEVELS])
    frame = index.to_frame(index=False)
    own = rng.standard_normal((blocks, 2, 3))
    own = own.mean(axis=2 if term == "a" else 1, keepdims=True) if term in LEVELS else own
    own /= own.std()
    logs = 0.03 * rng.standard_normal((blocks, 1, 1)) + 0.02 * spread * own
    logs = logs + 0.02 * rng.standard_normal((blocks, 2, 3))
    fit = factorial.fit_factorial(
        frame.assign(value=np.exp(logs).ravel()), value="value", factors=list(LEVELS)
    )
    return bool(fit.terms.set_index("term").loc[term, "p_value"] < 0.05)


def factorials() -> list[Scenario]:
    """Return how often a factor is found whose effect varies by block but is 0 on average."""
    return [
        (
            "factorial",
            f"factorial: {term}, block x term sd {spread:g}, {blocks} blocks",
            0.0,
            0.05,
            300,
            partial(term_differs, term=term, spread=spread, blocks=blocks),
        )
        for term in ("a", "b", "a:b")
        for spread in (0.0, 0.5, 1.0, 2.0)
        for blocks in (5, 10)
    ]


SLOW_SHARE, TRIAL_SD, SAMPLE_SD = 0.2, 0.05, 0.2


@cache
def pooled_truth(level: float) -> float:
    """Return the quantile of all samples where a fifth of the trials is twice as slow."""
    spread = math.hypot(TRIAL_SD, SAMPLE_SD)

    def excess(x: float) -> float:
        modes = stats.norm.cdf(np.array([x, x - math.log(2)]) / spread)
        return float((1 - SLOW_SHARE) * modes[0] + SLOW_SHARE * modes[1]) - level

    return math.exp(optimize.brentq(excess, -3, 5))


def misses_silently(rng: Rng, pooled: bool, level: float, blocks: int) -> bool:
    """Tell whether an interval of bimodal trials misses the truth and has no note."""
    factor = np.where(rng.random((blocks, 1)) < SLOW_SHARE, 2.0, 1.0)
    logs = TRIAL_SD * rng.standard_normal((blocks, 1))
    logs = logs + SAMPLE_SD * rng.standard_normal((blocks, 400))
    trials = list(np.sort(factor * np.exp(logs), axis=1))
    if pooled:
        found = quantiles.pooled_quantile(trials, level, resamples=500)
        return not (found.low <= pooled_truth(level) <= found.high or found.note)
    estimate = quantiles.trial_quantile(trials, level)
    low, high = estimate.interval()
    truth = 2**SLOW_SHARE * math.exp(SAMPLE_SD * stats.norm.ppf(level))
    return not (low <= truth <= high or estimate.note)


def modes() -> list[Scenario]:
    """Return how often intervals of bimodal trials miss without a warning."""
    return [
        (
            "modes",
            f"modes: {'pooled' if pooled else 'trial'} q{level:g}, {blocks} blocks",
            0.0,
            0.05,
            1000,
            partial(misses_silently, pooled=pooled, level=level, blocks=blocks),
        )
        for pooled in (False, True)
        for level in (0.5, 0.99)
        for blocks in (5, 6, 10, 14, 25)
    ]


QUOTAS = np.array([1000.0, 1500, 2000, 2500, 3000, 4000, 5000, 7000, 10000])
CURVES = {
    "line": -np.log(QUOTAS),
    "parabola": 0.35 * np.log(QUOTAS / QUOTAS[-1]) ** 2,
    "a + b / x": np.log1p(3000 / QUOTAS),
    "a + b exp(-x / c)": np.log1p(8 * np.exp(-QUOTAS / 1800)),
    "knee": -np.minimum(np.log(QUOTAS / 3300), 0),
    "flat knee": -0.5 * np.minimum(np.log(QUOTAS / 3300), 0),
}
NOISE = {"5 %": np.full(len(QUOTAS), 0.05), "2 to 10 %": np.linspace(0.02, 0.10, len(QUOTAS))}


def has_knee(rng: Rng, curve: str, noise: str, blocks: int) -> bool:
    """Tell whether a knee is found at 5 %."""
    logs = CURVES[curve] + 0.03 * rng.standard_normal((blocks, 1))
    logs = logs + NOISE[noise] * rng.standard_normal((blocks, len(QUOTAS)))
    frame = pd.DataFrame(np.exp(logs), columns=QUOTAS).rename_axis("block").reset_index()
    frame = frame.melt("block", QUOTAS, "quota")
    return bool(knee.fit_knee(frame, value="value", over="quota").p_knee < 0.05)


def knees() -> list[Scenario]:
    """Return how often a knee is found in curves that have none, and in some that have one."""
    return [
        (
            "knee",
            f"is there a knee: {curve}, noise {noise}, {blocks} blocks",
            0.5 if curve == "knee" else 0.0,
            1.0 if "knee" in curve else 0.05,
            100,
            partial(has_knee, curve=curve, noise=noise, blocks=blocks),
        )
        for curve in CURVES
        for noise in NOISE
        for blocks in (5, 10)
    ]


SCENARIOS: list[Scenario] = [*flags(), *factorials(), *modes(), *knees()]
