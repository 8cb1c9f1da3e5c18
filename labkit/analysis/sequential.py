"""Campaigns that stop early or are repeated, with errors that hold.

Looks are planned as numbers of blocks, and the error of each test is spent over them by a function
of the share of the blocks that was measured (Lan & DeMets 1983; about evenly, like Pocock 1977), so
that looks need not be where they were planned. The level of each look is computed for normal
statistics by recursive integration (Armitage, McPherson & Rowe 1969) and applied to the p-values of
t tests (significance level approach: Pocock 1977; Jennison & Turnbull 1991, 2000, chapter 11);
``make simulate`` shows that the error holds from 5 blocks on. Intervals are repeated confidence
intervals (Jennison & Turnbull 1989), at the level that a decision rests on.

A claim of a direction is tested on each side at half of alpha, as the two-sided test of `compare`
does (ICH E9 1998, 5.5); that a ratio lies between two bounds is shown by two one-sided tests at
alpha each (Schuirmann 1987).

For a family of m claims give each alpha / m, or correct the p-values of `Looks.adjust` by Holm
(Maurer & Bretz 2013). A campaign that is repeated spends alpha again: `campaign_share`. Where
campaigns differ by more than their blocks explain (Welch 1951), they are the units in place of the
blocks (summary measures: Matthews et al. 1990): `over_campaigns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from labkit.analysis.estimates import Estimate, join_notes, mean_over_blocks
from labkit.errors import UsageError

Floats = NDArray[np.float64]

#: Nodes of the integral over a partial sum.
_NODES = 160
#: A look that has no error left to spend decides nothing.
_LEAST_LEVEL = 1e-12
#: Level of the test for campaigns that differ; it finds little, and a false alarm only widens.
CAMPAIGN_LEVEL = 0.1
#: Partial sums are integrated up to so many of their standard deviations from 0.
_FAR = 8.0


@dataclass(frozen=True)
class Looks:
    """When a campaign is looked at.

    Parameters
    ----------
    blocks : tuple of int
        Planned numbers of blocks, rising, at least 3 each; the last one is the most that the
        campaign may measure.
    """

    blocks: tuple[int, ...] = (5, 10, 20, 40, 80)

    def __post_init__(self) -> None:
        """Refuse looks that cannot be taken.

        Raises
        ------
        UsageError
            For looks that do not rise, or fewer than 3 blocks.
        """
        if not self.blocks or self.blocks[0] < 3 or any(np.diff(self.blocks) <= 0):
            raise UsageError(
                f"invalid looks: {self.blocks}", remedy="rising numbers of blocks, 3 or more"
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
        return _levels(alpha, sizes, self.blocks[-1])

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

    def adjust(self, p_value: float, n_blocks: int) -> float:
        """Return the p-value of a two-sided test at one look, with the looks before it counted.

        A test that stops at the first look that decides has at most the error `alpha` when it is
        called significant where the returned value is below `alpha`.

        Parameters
        ----------
        p_value : float
            Two-sided p-value on the blocks so far; NaN gives NaN.
        n_blocks : int
            The number of these blocks, a planned look or not.

        Returns
        -------
        float
            The least error of all looks at which this look decides; at most 1.
        """
        if math.isnan(p_value):
            return math.nan
        errors, levels = _scale(self.taken(n_blocks), self.blocks[-1])
        if not len(levels):
            return 1.0
        p_side = p_value / 2
        if p_side >= levels[-1]:
            return 1.0
        if p_side <= levels[0]:
            return p_value * float(errors[0] / levels[0])
        logs = np.interp(math.log(p_side), np.log(levels), np.log(errors))
        return min(1.0, 2 * math.exp(float(logs)))


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
    units = mean_over_blocks(centres, scale=whole.scale)
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


@cache
def _nodes() -> tuple[Floats, Floats]:
    """Return nodes and weights of the Gauss-Legendre rule: to compute them is the slowest step."""
    places, weights = np.polynomial.legendre.leggauss(_NODES)
    return places, weights


@lru_cache(maxsize=1024)
def _levels(alpha: float, sizes: tuple[int, ...], most: int) -> tuple[float, ...]:
    """Return the levels of looks at partial sums of standard normal blocks."""
    # Imported where it is needed: it takes 0.1 s.
    from scipy import optimize

    places, weights = _nodes()
    # Before the first look the sum is 0 for certain.
    points, mass = np.zeros(1), np.ones(1)
    before, spent = 0, 0.0
    levels: list[float] = []
    for size in sizes:
        step = math.sqrt(size - before)
        spend = max(0.0, _spent(alpha, min(1.0, size / most)) - spent)
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
def _scale(taken: tuple[int, ...], most: int) -> tuple[Floats, Floats]:
    """Return errors of all looks, rising, and the level of the last look for each."""
    errors = np.geomspace(1e-9, 0.499, 60)
    levels = np.array([_levels(float(error), taken, most)[-1] for error in errors])
    spends = levels > 0  # nothing is left beyond the last planned number of blocks
    return errors[spends], levels[spends]


def _spent(alpha: float, share: float) -> float:
    """Return the error that may be spent when a share of the blocks was measured."""
    return alpha * math.log1p(math.expm1(1.0) * share)
