"""Campaigns that stop early or are repeated, with errors that hold.

Looks are planned as numbers of blocks, and the error of each test is spent over them by a function
of the share of the blocks that was measured (Lan & DeMets 1983; spending like Pocock 1977 or like
O'Brien & Fleming 1979), so that looks need not be where they were planned. The level of each look
is computed for normal statistics by recursive integration (Armitage, McPherson & Rowe 1969) and
applied to the p-values of t tests (significance level approach: Pocock 1977; Jennison & Turnbull
1991, 2000, chapter 11); ``make simulate`` shows that the error holds from 5 blocks on. Intervals
are repeated confidence intervals (Jennison & Turnbull 1989), at the level that a decision rests on.

A claim of a direction is tested on each side at half of alpha, as the two-sided test of `compare`
does (ICH E9 1998, 5.5); that a ratio lies between two bounds is shown by two one-sided tests at
alpha each (Schuirmann 1987). Stopping because nothing would be decided takes no error and need not
be followed: it only loses power.

For a family of m claims give each alpha / m, or correct the p-values of `Looks.adjust` by Holm
(Maurer & Bretz 2013). A campaign that is repeated spends alpha again: `campaign_share`. Where
campaigns differ by more than their blocks explain (Welch 1951), they are the units in place of the
blocks (summary measures: Matthews et al. 1990): `over_campaigns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from labkit.analysis.estimates import Estimate, join_notes, over_blocks
from labkit.analysis.power import estimated_sd
from labkit.analysis.robust import block_mean
from labkit.errors import UsageError

Floats = NDArray[np.float64]
Spending = Literal["pocock", "obrien-fleming"]
Word = Literal["replicated", "contradicted", "equivalent", "go on", "hopeless"]

DECISIONS: tuple[Word, ...] = ("replicated", "contradicted", "equivalent", "go on", "hopeless")
#: Nodes of the integrals over a partial sum and over an uncertain standard deviation.
_NODES, _SD_NODES = 160, 48
#: A look that has no error left to spend decides nothing.
_LEAST_LEVEL = 1e-12
#: Level of the test for campaigns that differ; it finds little, and a false alarm only widens.
CAMPAIGN_LEVEL = 0.1
#: A partial sum further from 0 than so many of its standard deviations does not happen.
_FAR = 8.0


@dataclass(frozen=True)
class Looks:
    """When a campaign is looked at, and how its error is spent.

    Parameters
    ----------
    blocks : tuple of int
        Planned numbers of blocks, rising, at least 3 each; the last one is the most that the
        campaign may measure.
    spending : {"pocock", "obrien-fleming"}
        ``pocock`` spends about evenly, and decides early; ``obrien-fleming`` keeps almost all for
        the last look, whose power is then that of a fixed design.
    futility : float
        Chance of a decision at the last look below which a campaign is called hopeless.
    """

    blocks: tuple[int, ...] = (5, 10, 20, 40, 80)
    spending: Spending = "pocock"
    futility: float = 0.1

    def __post_init__(self) -> None:
        """Refuse looks that cannot be taken.

        Raises
        ------
        UsageError
            For looks that do not rise, fewer than 3 blocks, an unknown spending function, or a
            futility outside [0, 1).
        """
        if not self.blocks or self.blocks[0] < 3 or any(np.diff(self.blocks) <= 0):
            raise UsageError(
                f"invalid looks: {self.blocks}", remedy="rising numbers of blocks, 3 or more"
            )
        if self.spending not in ("pocock", "obrien-fleming") or not 0 <= self.futility < 1:
            raise UsageError(
                f"invalid looks: spending={self.spending!r}, futility={self.futility!r}",
                remedy="spending 'pocock' or 'obrien-fleming', 0 <= futility < 1",
            )

    def levels(self, alpha: float, taken: Sequence[int] = ()) -> tuple[float, ...]:
        """Return the level of a one-sided test at each look, which together have error `alpha`.

        Parameters
        ----------
        alpha : float
            Error of the one-sided test over all looks, below 0.5.
        taken : sequence of int, optional
            Numbers of blocks at the looks that were taken, rising; without it the planned ones.

        Returns
        -------
        tuple of float
            A level a look; 0 where nothing is left to spend.

        Raises
        ------
        UsageError
            For `alpha` out of range, or looks that do not rise.
        """
        sizes = tuple(taken) or self.blocks
        if not 0 < alpha < 0.5 or sizes[0] < 1 or any(np.diff(sizes) <= 0):
            raise UsageError(
                f"invalid alpha or looks: alpha={alpha!r}, looks={sizes}",
                remedy="0 < alpha < 0.5 and rising numbers of blocks",
            )
        return _levels(alpha, sizes, self.blocks[-1], self.spending)

    def taken(self, n_blocks: int) -> tuple[int, ...]:
        """Return the numbers of blocks at the looks until so many, the last of which counts."""
        return *(n for n in self.blocks if n < n_blocks), n_blocks

    def level(self, alpha: float, *ends: int) -> float:
        """Return the level of tests over these looks, which together have error `alpha`.

        It is for two-sided tests, with half of the error on each side, and for tests of
        equivalence: the stricter of both.

        Parameters
        ----------
        alpha : float
            Error of a test over all looks.
        *ends : int
            The numbers of blocks that tests may rest on, such as those at which conditions were
            dropped: the strictest of these looks counts.
        """
        if len(self.blocks) == 1:
            return alpha
        taken = [self.taken(n_blocks) for n_blocks in ends]
        levels = [2 * self.levels(alpha / 2, sizes)[-1] for sizes in taken]
        levels += [self.levels(alpha, sizes)[-1] for sizes in taken]
        return max(_LEAST_LEVEL, min(levels))

    def adjust(self, p_value: float, n_blocks: int, *, sides: int = 1) -> float:
        """Return the p-value of a test at one look, with the looks before it counted.

        A test that stops at the first look that decides has at most the error `alpha` when it is
        called significant where the returned value is below `alpha`.

        Parameters
        ----------
        p_value : float
            P-value on the blocks so far; NaN gives NaN.
        n_blocks : int
            The number of these blocks, a planned look or not.
        sides : int
            2 for a p-value that is twice that of the likelier side.

        Returns
        -------
        float
            The least error of all looks at which this look decides; at most 1.
        """
        if math.isnan(p_value):
            return math.nan
        errors, levels = _scale(self.taken(n_blocks), self.blocks[-1], self.spending)
        if not len(levels):
            return 1.0
        p_side = p_value / sides
        if p_side >= levels[-1]:
            return 1.0
        if p_side <= levels[0]:
            return sides * p_side * float(errors[0] / levels[0])
        logs = np.interp(math.log(p_side), np.log(levels), np.log(errors))
        return min(1.0, sides * math.exp(float(logs)))


@dataclass(frozen=True)
class Decision:
    """What a look decides.

    Parameters
    ----------
    decision : {"replicated", "contradicted", "equivalent", "go on", "hopeless"}
        ``replicated``: the ratio is shown to lie in the claimed region; ``contradicted``: outside
        of it; ``equivalent``: neither, as it is shown to lie within the margin of 1 (claims of a
        direction only); ``hopeless``: the chance of a decision at the last look is too small, or
        the last look was taken.
    n_blocks : int
        Blocks that it rests on.
    estimate, low, high : float
        Ratio and its repeated confidence interval at the level that the decision rests on.
    p_replicated, p_contradicted, p_equivalent : float
        P-values of this look, to be compared with `levels`; NaN where there is no such test.
    levels : tuple of float
        Levels of this look, in the same order.
    chance : float
        Chance of any decision at the last look, given what was seen; NaN at the last look.
    next_look : int or None
        Planned number of blocks at the next look.
    note : str
        What to know about it.
    """

    decision: Word
    n_blocks: int
    estimate: float
    low: float
    high: float
    p_replicated: float
    p_contradicted: float
    p_equivalent: float
    levels: tuple[float, float, float]
    chance: float
    next_look: int | None
    note: str = ""


def look(
    log_ratios: Floats,
    looks: Looks,
    *,
    low: float = 1.0,
    high: float = math.inf,
    margin: float | None = None,
    alpha: float = 0.05,
    earlier: Sequence[int] | None = None,
) -> Decision:
    """Return what one look at a campaign decides, if no earlier look decided.

    Parameters
    ----------
    log_ratios : array of float, shape (blocks,)
        Log ratio of a pair of conditions in every block so far, in the order of the blocks.
    looks : Looks
        The plan.
    low, high : float
        Region of the ratio that is claimed: (1, inf) for slower, (0, 1) for faster,
        (1 / 1.02, 1.02) for the same within 2 %.
    margin : float, optional
        For a direction: the ratio also counts as equivalent to 1 between 1 / (1 + margin) and
        1 + margin.
    alpha : float
        Error of each of the three tests over all looks (a direction: half of it on each side).
    earlier : sequence of int, optional
        Numbers of blocks at earlier looks; without it the planned ones below the present number.

    Returns
    -------
    Decision
        The decision of this look.

    Raises
    ------
    UsageError
        For an impossible region, margin or alpha, fewer than two blocks, or values that are not
        finite.
    """
    figures = np.asarray(log_ratios, dtype=np.float64)
    region = _region(low, high, margin, figures)
    taken = looks.taken(len(figures)) if earlier is None else (*earlier, len(figures))
    return _judge(block_mean(figures, scale="log"), looks, region, alpha, taken)


def campaign_share(number: int) -> float:
    """Return the share of alpha that the evidence of the first `number` campaigns may spend.

    0.8 on the first campaign of a plan on a rig, and half of what is left on each one after it:
    whoever repeats a campaign until it succeeds spends alpha in all, and not alpha each time.

    Raises
    ------
    UsageError
        For less than one campaign.
    """
    if number < 1:
        raise UsageError(f"invalid number of campaigns: {number!r}", remedy="1 or more")
    return 0.8 if number == 1 else 0.2 * 0.5 ** (number - 1)


def over_campaigns(whole: Estimate, campaigns: Sequence[Estimate]) -> Estimate:
    """Return an estimate over the blocks of several campaigns, or over these where they differ.

    Parameters
    ----------
    whole : Estimate
        Over the blocks of all campaigns.
    campaigns : sequence of Estimate
        The same of each campaign.

    Returns
    -------
    Estimate
        `whole`, unless the campaigns differ at `CAMPAIGN_LEVEL`: then the mean of the campaigns,
        with the error of their spread, and a note.
    """
    spread = [one for one in campaigns if one.error > 0 and math.isfinite(one.error)]
    p_value = _differ(spread) if len(spread) > 1 else 1.0
    if p_value >= CAMPAIGN_LEVEL:
        return whole
    centres = np.array([one.centre for one in campaigns if math.isfinite(one.centre)])
    units = over_blocks(centres, scale=whole.scale)
    note = (
        f"{len(centres)} campaigns differ by more than their blocks explain (p {p_value:.2g}): "
        "the campaign is the unit, and it takes more campaigns, not longer ones"
    )
    return replace(
        whole,
        centre=units.centre,
        error=max(units.error, whole.error),
        df=units.df,
        note=join_notes(whole.note, note),
        unit="campaign",
    )


def _differ(campaigns: Sequence[Estimate]) -> float:
    """Return the p-value that not all campaigns estimate one number (Welch 1951)."""
    centres, errors, dfs = (
        np.array([getattr(one, name) for one in campaigns]) for name in ("centre", "error", "df")
    )
    # In units of the largest error, so that no square leaves the floating-point range.
    weights = (errors.max() / errors) ** 2
    shares = weights / weights.sum()
    more = len(campaigns) - 1
    distance = ((centres - shares @ centres) / errors.max()) ** 2
    uneven = float(np.sum((1 - shares) ** 2 / dfs)) / (more * (more + 2))
    statistic = float(weights @ distance) / more / (1 + 2 * (more - 1) * uneven)
    return float(special.fdtrc(more, 1 / (3 * uneven), statistic))


@dataclass(frozen=True)
class _Region:
    """The claimed region and the margin, as logs."""

    low: float
    high: float
    margin: float

    @property
    def closed(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def _region(low: float, high: float, margin: float | None, figures: Floats) -> _Region:
    if not 0 <= low < high or (low == 0 and math.isinf(high)):
        raise UsageError(f"invalid region: {low!r} to {high!r}", remedy="0 <= low < high")
    if margin is not None and not (margin > 0 and math.isfinite(margin)):
        raise UsageError(f"invalid margin: {margin!r}", remedy="0.02 for 2 %")
    if len(figures) < 2 or not np.isfinite(figures).all():
        raise UsageError("a look takes the finite log ratios of two blocks or more")
    lower = math.log(low) if low > 0 else -math.inf
    upper = math.log(high) if math.isfinite(high) else math.inf
    closed = math.isfinite(lower) and math.isfinite(upper)
    return _Region(lower, upper, math.nan if margin is None or closed else math.log1p(margin))


def _judge(
    estimate: Estimate, looks: Looks, region: _Region, alpha: float, taken: Sequence[int]
) -> Decision:
    """Return the decision of the last of the looks that were taken."""
    half, full = (looks.levels(share, taken)[-1] for share in (alpha / 2, alpha))
    levels = (full if region.closed else half, half, full)
    p_values = _p_values(estimate, region)
    shown = [p < level for p, level in zip(p_values, levels, strict=True)]
    last = taken[-1] >= looks.blocks[-1]
    chance = math.nan if last else _chance(estimate, looks, region, alpha, taken)
    if any(shown):
        decision = DECISIONS[shown.index(True)]
    else:
        decision = "hopeless" if last or chance < looks.futility else "go on"
    rests_on = levels[shown.index(True)] if any(shown) else half
    low, high = estimate.interval(2 * rests_on) if rests_on > 0 else (0.0, math.inf)
    later = [n for n in looks.blocks if n > taken[-1]]
    return Decision(
        decision,
        taken[-1],
        estimate.value,
        low,
        high,
        *p_values,
        levels,
        chance,
        later[0] if later and decision == "go on" else None,
        join_notes(estimate.note, "the planned blocks are used up" if last else ""),
    )


def _p_values(estimate: Estimate, region: _Region) -> tuple[float, float, float]:
    """Return the p-values of lying inside the region, outside of it, and within the margin."""
    inside = [
        tail(math.exp(bound))
        for tail, bound in ((estimate.p_above, region.low), (estimate.p_below, region.high))
        if math.isfinite(bound)
    ]
    outside = [
        tail(math.exp(bound))
        for tail, bound in ((estimate.p_below, region.low), (estimate.p_above, region.high))
        if math.isfinite(bound)
    ]
    equivalent = math.nan
    if math.isfinite(region.margin):
        bound = math.exp(region.margin)
        equivalent = max(estimate.p_above(1 / bound), estimate.p_below(bound))
    return max(inside), min(outside), equivalent


def _chance(
    estimate: Estimate, looks: Looks, region: _Region, alpha: float, taken: Sequence[int]
) -> float:
    """Return the chance that the last look decides, given what was seen (predictive power).

    Averaged over the standard deviations that the blocks so far leave possible; looks between are
    not counted.
    """
    if not estimate.error > 0:
        return 1.0
    n, final = taken[-1], looks.blocks[-1]
    every = [*taken, *(size for size in looks.blocks if size > n)]
    half, full = (looks.levels(share, every)[-1] for share in (alpha / 2, alpha))
    ratio, weights = estimated_sd(estimate.df, _SD_NODES)
    sd = estimate.error * math.sqrt(n) / ratio
    spread = sd * math.sqrt(1 / n - 1 / final)
    cut = {
        level: -float(special.stdtrit(final - 1, level)) * sd / math.sqrt(final)
        for level in (half, full)
    }

    def between(low: Floats | float, high: Floats | float) -> Floats:
        tails = [special.ndtr((bound - estimate.centre) / spread) for bound in (high, low)]
        return np.asarray(np.maximum(tails[0] - tails[1], 0.0))

    inner = cut[full] if region.closed else cut[half]
    chance = between(region.low + inner, region.high - inner)
    chance = chance + between(-math.inf, region.low - cut[half])
    chance = chance + between(region.high + cut[half], math.inf)
    if math.isfinite(region.margin):
        chance = chance + between(cut[full] - region.margin, region.margin - cut[full])
    return min(1.0, float(weights @ chance))


@lru_cache(maxsize=1024)
def _levels(
    alpha: float, sizes: tuple[int, ...], most: int, spending: Spending
) -> tuple[float, ...]:
    """Return the levels of looks at partial sums of standard normal blocks."""
    # Imported where it is needed: it takes 0.1 s.
    from scipy import optimize

    places, weights = np.polynomial.legendre.leggauss(_NODES)
    # Before the first look the sum is 0 for certain.
    points, mass = np.zeros(1), np.ones(1)
    before, spent = 0, 0.0
    levels: list[float] = []
    for size in sizes:
        step = math.sqrt(size - before)
        spend = max(0.0, _spent(alpha, min(1.0, size / most), spending) - spent)
        far = _FAR * math.sqrt(size)
        bound = far
        if spend > 1e-9 * alpha:  # less is rounding

            def excess(
                bound: float,
                points: Floats = points,
                mass: Floats = mass,
                step: float = step,
                spend: float = spend,
            ) -> float:
                return float(mass @ special.ndtr((points - bound) / step)) - spend

            if excess(far) < 0:
                bound = float(optimize.brentq(excess, -far, far))
            spent += excess(bound) + spend
        levels.append(float(special.ndtr(-bound / math.sqrt(size))) if bound < far else 0.0)
        half_width = (bound + far) / 2
        new = -far + half_width * (places + 1)
        kernel = np.exp(-(((new[:, None] - points) / step) ** 2) / 2) / step
        mass = weights * half_width * (kernel @ mass) / math.sqrt(2 * math.pi)
        points, before = new, size
    return tuple(levels)


@lru_cache(maxsize=64)
def _scale(taken: tuple[int, ...], most: int, spending: Spending) -> tuple[Floats, Floats]:
    """Return errors of all looks, rising, and the level of the last look for each."""
    errors = np.geomspace(1e-9, 0.499, 60)
    levels = np.array([_levels(float(error), taken, most, spending)[-1] for error in errors])
    spends = levels > 0  # nothing is left beyond the last planned number of blocks
    return errors[spends], levels[spends]


def _spent(alpha: float, share: float, spending: Spending) -> float:
    """Return the error that may be spent when a share of the blocks was measured."""
    if spending == "pocock":
        return alpha * math.log1p(math.expm1(1.0) * share)
    return 2 * float(special.ndtr(special.ndtri(alpha / 2) / math.sqrt(share)))
