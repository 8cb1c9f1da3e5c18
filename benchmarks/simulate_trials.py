"""Scenarios for `benchmarks/simulate.py`: changes inside trials, modes, factorial models, knees.

Run them: .venv/bin/python benchmarks/simulate.py --only "flags:"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd
from scipy import signal

from labkit.analysis import checks

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
    frame = pd.DataFrame({"trial": 0, "rtt_ns": values})
    return bool(checks.stationarity(frame, by=["trial"])["state"][0] != "steady")


def flags() -> list[Scenario]:
    """Return how often trials are flagged that are steady, and that are not."""
    steady: list[Scenario] = [
        ("flags", f"flags: {kind}, {n}", 0.0, 0.01, 2000, partial(alarm, kind=kind, n=n))
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


SCENARIOS: list[Scenario] = [*flags()]
