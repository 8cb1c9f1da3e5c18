"""Scenarios for `benchmarks/simulate.py`: what breaks tests over blocks, plans, advice, looks.

Run them: .venv/bin/python benchmarks/simulate.py --only "wandering"
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import signal, stats

from labkit.analysis import interference, overhead, power, sequential
from labkit.analysis.compare import compare, contrast, decide
from labkit.analysis.robust import CHECKED_BLOCKS, SERIAL, SURE_BLOCKS, block_mean
from labkit.answers import SAME

Rng = np.random.Generator
#: For each rate of a scenario: did it happen? And a number of blocks, or NaN.
Outcome = Sequence[tuple[bool, float]]


class Rate(NamedTuple):
    """A rate of a scenario: nominal, and the bounds that are asserted.

    `reach` says what a page shows where the nominal rate is out of reach.
    """

    name: str
    nominal: float
    least: float = 0.0
    most: float = 1.0
    reach: str = ""


class Scenario(NamedTuple):
    """Experiments that feed one rate or several."""

    section: str
    rates: tuple[Rate, ...]
    draw: Callable[[Rng], Outcome]
    experiments: int = 1000


#: Standard deviation of log ratios between blocks.
SD = 0.1
FEW = f"below {CHECKED_BLOCKS} blocks pages say that nothing was checked"
SOME = f"below {SURE_BLOCKS} blocks pages say that it is found in some campaigns only"
NOTED = "noted where it is found"


def said(blocks: int) -> str:
    """Return what a page shows of effects that wander, and of shapes that are not normal."""
    return FEW if blocks < CHECKED_BLOCKS else SOME if blocks < SURE_BLOCKS else NOTED


PAIR = {"value": "value", "condition": "condition", "baseline": "base"}


def frame_of(log_ratios: np.ndarray) -> pd.DataFrame:
    """Return trials of two conditions whose log ratios are given; NaN is a failed trial."""
    n = len(log_ratios)
    names = np.repeat(["base", "other"], n)
    values = np.exp(np.concatenate([np.zeros(n), log_ratios]))
    return pd.DataFrame({"block": np.tile(np.arange(n), 2), "condition": names, "value": values})


def answer(log_ratios: np.ndarray, **options: object) -> pd.Series:
    """Return the only row of `compare`."""
    return compare(frame_of(log_ratios), **PAIR, **options).iloc[0]


def yes(*answers: object) -> Outcome:
    """Return outcomes without a number of blocks."""
    return [(bool(one), math.nan) for one in answers]


def wanders(rng: Rng, blocks: int, lag1: float) -> Outcome:
    """Compare equal conditions whose ratio is an AR(1) series over the blocks."""
    start = lag1 * rng.normal(size=1)
    noise = rng.normal(size=blocks)
    series = signal.lfilter([math.sqrt(1 - lag1**2)], [1, -lag1], noise, zi=start)[0]
    row = answer(SD * series)
    return yes(row["differs"], SERIAL in row["note"])


def wandering() -> Iterator[Scenario]:
    """Yield effects that wander slowly."""
    for lag1, blocks in itertools.product((0.0, 0.5, 0.8), (5, 6, 10, 25)):
        name = f"wandering: AR {lag1:g}, {blocks} blocks"
        reach = "" if lag1 == 0 else said(blocks)
        rates = (
            Rate(f"{name}: false difference", 0.05, 0.0, 1.0 if reach else 0.05, reach),
            Rate(f"{name}: noted", math.nan),
        )
        yield Scenario("wandering", rates, partial(wanders, blocks=blocks, lag1=lag1))


def skewed(rng: Rng, blocks: int) -> Outcome:
    """Compare means of logs that are equal, one condition with exponential noise."""
    logs = SD * (rng.exponential(size=blocks) - 1) + 0.2 * SD * rng.normal(size=blocks)
    row = answer(logs)
    return yes(row["differs"], "skewed" in row["note"] or "outlying" in row["note"])


def slow(rng: Rng, blocks: int) -> Outcome:
    """Cover the mean log ratio where 10 % of the trials of a condition are twice as slow."""
    truth = 0.1 * math.log(2)
    logs = 0.03 * rng.normal(size=blocks) + math.log(2) * (rng.random(blocks) < 0.1)
    row = answer(logs)
    low, high = row["low"], row["high"]
    noted = "skewed" in row["note"] or "outlying" in row["note"]
    return yes(low <= math.exp(truth) <= high, noted)


def outlier(rng: Rng, blocks: int) -> Outcome:
    """Find 10 % where one block is three times off: by the mean, and by the trimmed mean."""
    logs = math.log(1.1) + 0.03 * rng.normal(size=blocks)
    logs[rng.integers(blocks)] += math.log(3) * rng.choice([-1, 1])
    rows = [answer(logs, trim=trim) for trim in (0.0, 0.2)]
    return yes(*(row["differs"] for row in rows), "outlying" in rows[0]["note"])


def trimmed(rng: Rng, blocks: int) -> Outcome:
    """Compare equal conditions by the trimmed mean."""
    return yes(answer(SD * rng.normal(size=blocks), trim=0.2)["differs"])


def failing(rng: Rng, blocks: int) -> Outcome:
    """Call equivalent within 5 % what is 7 % slower, as its slow trials fail."""
    logs = 0.02 * rng.normal(size=blocks)
    logs[rng.random(blocks) < 0.1] = math.nan
    if np.isnan(logs).all():
        return yes(False, True)
    row = answer(logs, margin=0.05)
    return yes(row["equivalent"] and np.isnan(logs).any(), np.isnan(logs).any())


def shapes() -> Iterator[Scenario]:
    """Yield distributions that a t test does not expect."""
    for blocks in (5, 6, 10, 25):
        reach = said(blocks)
        name = f"shape: exponential, {blocks} blocks"
        rates = (
            Rate(f"{name}: false difference", 0.05, reach=reach),
            Rate(f"{name}: noted", math.nan),
        )
        yield Scenario("shape", rates, partial(skewed, blocks=blocks))
        name = f"shape: 10 % of trials slow, {blocks} blocks"
        rates = (Rate(f"{name}: coverage", 0.95, reach=reach), Rate(f"{name}: noted", math.nan))
        yield Scenario("shape", rates, partial(slow, blocks=blocks))
        name = f"shape: one outlier, {blocks} blocks"
        rates = (
            Rate(f"{name}: mean finds 10 %", math.nan),
            Rate(f"{name}: trimmed mean finds 10 %", math.nan, 0.9 if blocks >= 10 else 0.0),
            Rate(f"{name}: noted", math.nan, 0.9 if blocks >= 10 else 0.0),
        )
        yield Scenario("shape", rates, partial(outlier, blocks=blocks))
        few = "with 3 or 4 blocks left after trimming, 1 to 2 points too many"
        name = f"shape: trimmed mean, {blocks} blocks: false difference"
        rate = Rate(name, 0.05, 0.0, 0.075 if blocks < 10 else 0.06, few if blocks < 10 else "")
        yield Scenario("shape", (rate,), partial(trimmed, blocks=blocks))
        name = f"shape: slow trials fail, {blocks} blocks"
        rates = (
            Rate(f"{name}: false equivalence", 0.05, 0.0, 0.05),
            Rate(f"{name}: trials failed", math.nan),
        )
        yield Scenario("shape", rates, partial(failing, blocks=blocks))


def planned(rng: Rng, pilot: int, margin: float) -> Outcome:
    """Decide equivalence with the number of blocks that a pilot asks for."""
    spread = SD * math.sqrt(rng.chisquare(pilot - 1) / (pilot - 1))
    blocks = power.blocks_for(margin, spread, pilot=pilot) or power.MOST_BLOCKS
    blocks = max(blocks, power.least_blocks())
    error = SD * math.sqrt(rng.chisquare(blocks - 1) / (blocks - 1) / blocks)
    mean = rng.normal(0, SD / math.sqrt(blocks))
    inside = abs(mean) + stats.t.ppf(0.95, blocks - 1) * error < math.log1p(margin)
    return [(inside, float(blocks))]


def plans() -> Iterator[Scenario]:
    """Yield plans made from pilots."""
    for pilot, margin in itertools.product((5, 10, 25), (0.05, 0.1)):
        rate = Rate(f"plan: {pilot} blocks, margin {margin:.0%}: decides", 0.8, 0.78, 0.86)
        yield Scenario("plan", (rate,), partial(planned, pilot=pilot, margin=margin))


def cost(rng: Rng, blocks: int, share: float) -> Outcome:
    """Call a fixed cost of a share of the baseline none, with a margin of 2 % and 1 % noise."""
    sizes = np.array([1.0, 256.0, 1024.0, 4096.0])
    base = np.full(len(sizes), 20_000.0)
    rows = pd.concat(
        pd.DataFrame(
            {
                "value": level * np.exp(0.01 * rng.normal(size=len(sizes))),
                "size": sizes,
                "block": block,
                "condition": name,
            }
        )
        for block in range(blocks)
        for name, level in (("base", base), ("other", base * (1 + share)))
    )
    table = overhead.overhead_table(
        rows, "condition", "base", ["other"], (), value="value", over="size"
    )
    return yes(table["verdict"][0] == "none")


def shared(rng: Rng, blocks: int) -> Outcome:
    """Advise on four pairs, eight rows, all of which lose exactly what is accepted."""
    pairs = [(a, b) for a in ("a", "b") for b in ("c", "d")]
    rows = [
        {"service": one, "neighbour": other, "case": "x", "metric": "m"} for one, other in pairs
    ]
    rows += [row | {"service": row["neighbour"], "neighbour": row["service"]} for row in rows]
    means = math.log(0.9) + SD / math.sqrt(blocks) * rng.normal(size=len(rows))
    errors = SD * np.sqrt(rng.chisquare(blocks - 1, len(rows)) / (blocks - 1) / blocks)
    table = pd.DataFrame(rows).assign(
        ir=np.expm1(means), error=errors, df=blocks - 1.0, n_blocks=blocks
    )
    advised = set(interference.advice(table, limit=0.1)["advice"])
    return yes("keep apart" in advised, "may share" in advised)


def rules() -> Iterator[Scenario]:
    """Yield verdicts that take an equivalence test, and the level of one-sided claims."""
    for blocks in (5, 10):
        rate = Rate(f"cost of 2 %, margin 2 %, {blocks} blocks: none", 0.05, 0.0, 0.05)
        yield Scenario("rules", (rate,), partial(cost, blocks=blocks, share=0.02), 600)
        name = f"8 rows at the limit, {blocks} blocks"
        rates = tuple(
            Rate(f"{name}: {word}", 0.05, 0.0, 0.05) for word in ("keep apart", "may share")
        )
        yield Scenario("rules", rates, partial(shared, blocks=blocks), 600)
        rate = Rate(f"one-sided claim at its bound, {blocks} blocks", 0.025, 0.0, 0.025)
        yield Scenario("rules", (rate,), partial(claimed, blocks=blocks))


def claimed(rng: Rng, blocks: int) -> Outcome:
    """Show that a ratio is above 1, which it is not."""
    estimate = block_mean(SD * rng.normal(size=blocks), scale="log")
    return yes(estimate.p_within(1.0, math.inf) < 0.05)


def looked(rng: Rng, ratio: float, low: float, high: float, outside: bool) -> Outcome:
    """Return whether a campaign that looks shows a ratio to lie in a region, or outside of it."""
    looks = sequential.Looks()
    logs = math.log(ratio) + SD * rng.normal(size=looks.blocks[-1])
    for blocks in looks.blocks:
        estimate = block_mean(logs[:blocks], scale="log")
        p_value = (estimate.p_outside if outside else estimate.p_within)(low, high)
        if looks.adjust(p_value, blocks) < 0.05:
            return [(True, float(blocks))]
    return [(False, float(looks.blocks[-1]))]


def compared(rng: Rng, ratio: float, verdicts: Sequence[str]) -> Outcome:
    """Return whether a campaign that looks first decides on a condition by one of the verdicts."""
    looks = sequential.Looks()
    logs = pd.Series(math.log(ratio) + SD * rng.normal(size=looks.blocks[-1]))
    for blocks in looks.blocks:
        level = looks.level(0.05, blocks)
        row = contrast(0 * logs[:blocks], logs[:blocks], 0.1, level, paired=True)
        found = decide([row], alpha=level, keys=())["verdict"][0]
        if found != "undecided":
            return [(found in verdicts, float(blocks))]
    return [(False, float(looks.blocks[-1]))]


def fixed(rng: Rng, ratio: float, blocks: int, low: float, high: float) -> Outcome:
    """Return whether a campaign of a fixed number of blocks replicates."""
    estimate = block_mean(math.log(ratio) + SD * rng.normal(size=blocks), scale="log")
    return [(estimate.p_within(low, high) < 0.05, float(blocks))]


def repeated(rng: Rng, ratio: float, between: float, last: bool, **claim: float) -> Outcome:
    """Repeat a campaign of 10 blocks until it replicates, five times at most.

    `last` counts the last campaign alone, as a fixed design; otherwise they are combined.
    """
    campaigns: list[np.ndarray] = []
    for _ in range(5):
        centre = math.log(ratio) + between * rng.normal()
        campaigns.append(centre + SD * rng.normal(size=10))
        used = campaigns[-1:] if last else campaigns
        alone = [block_mean(logs, scale="log") for logs in used]
        whole = block_mean(np.concatenate(used), scale="log")
        estimate = sequential.over_campaigns(whole, alone)
        share = 1.0 if last else sequential.campaign_share(len(campaigns))
        done = estimate.p_within(claim["low"], claim["high"]) < 0.05 * share
        if done:
            break
    return [(done, 10.0 * len(campaigns))]


UP = {"low": 1.0, "high": math.inf}
NEAR = {"low": 1 / 1.1, "high": 1.1}
DIFFERENT = ("different", "different within margin")


def looks() -> Iterator[Scenario]:
    """Yield campaigns that stop early or are repeated, with their mean number of blocks."""
    for kind, ratio, claim, result, nominal in (
        ("direction", 1.0, UP, "replicated", 0.025),
        ("direction", 1.0, UP, "contradicted", 0.025),
        ("within 10 %", 1.1, NEAR, "replicated", 0.05),
        ("within 10 %", 1.1, NEAR, "contradicted", 0.025),
        ("direction", 1.05, UP, "replicated", math.nan),
        ("within 10 %", 1.0, NEAR, "replicated", math.nan),
    ):
        known = nominal if nominal == nominal else 1.0
        rate = Rate(f"looks: {kind}, truth {ratio:g}: {result}", nominal, 0.0, known)
        draw = partial(looked, ratio=ratio, outside=result == "contradicted", **claim)
        yield Scenario("looks", (rate,), draw, 500)
    for ratio, verdicts, nominal in (
        (1.0, DIFFERENT, 0.05),
        (1.1, SAME, 0.05),
        (1.0, SAME, math.nan),
    ):
        known = nominal if nominal == nominal else 1.0
        name = f"looks: against its baseline, margin 10 %, truth {ratio:g}: {verdicts[0]}"
        draw = partial(compared, ratio=ratio, verdicts=verdicts)
        yield Scenario("looks", (Rate(name, nominal, 0.0, known),), draw, 500)
    for blocks, (kind, ratio, claim) in itertools.product(
        (10, 20, 40, 80), (("direction", 1.05, UP), ("within 10 %", 1.0, NEAR))
    ):
        rate = Rate(f"fixed {blocks} blocks: {kind}, truth {ratio:g}: replicated", math.nan)
        yield Scenario("looks", (rate,), partial(fixed, ratio=ratio, blocks=blocks, **claim), 500)
    for (kind, ratio, claim, nominal), between in itertools.product(
        (("direction", 1.0, UP, 0.05), ("within 10 %", 1.1, NEAR, 0.05)), (0.0, 0.05)
    ):
        name = f"5 reruns: {kind}, campaigns {between:.0%} apart"
        reach = "pages say of one campaign: this rig on that day" if between else ""
        for last in (True, False):
            how = "the last counts" if last else "combined"
            rate = Rate(f"{name}: {how}", nominal, 0.0, 1.0 if reach else nominal, reach)
            if last:
                rate = Rate(rate.name, math.nan)
            draw = partial(repeated, ratio=ratio, between=between, last=last, **claim)
            yield Scenario("looks", (rate,), draw, 500)


SCENARIOS = (*wandering(), *shapes(), *plans(), *rules(), *looks())
