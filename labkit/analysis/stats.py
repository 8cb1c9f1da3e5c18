"""Statistics of trials: one number a block, paired log ratios, intervals and tests.

The number of a condition is the mean logarithm over its repeats, and over the levels of factors
that a comparison does not name. A ratio is the mean difference of two over the blocks that have
both, with Student's interval. Equivalence is shown by two one-sided tests (Schuirmann 1987).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import special

from labkit.data import refuse_unknown
from labkit.errors import UsageError

Floats = NDArray[np.float64]
Cell = Mapping[str, Any]
#: Blocks that a verdict takes: the one-sided sign test of fewer cannot reach 5 % (1 / 2**4 is 6 %).
LEAST_BLOCKS = 5


class NotMeasured(Exception):
    """A condition that has no value in a campaign; the message says why."""


@dataclass(frozen=True)
class Mean:
    """Mean over `n` blocks, with its standard error and degrees of freedom; NaN of too few."""

    n: int
    #: A logarithm with `log`: values and bounds are ratios then.
    centre: float
    error: float
    df: float
    log: bool = True

    @classmethod
    def of(cls, numbers: ArrayLike, *, log: bool = True) -> Mean:
        """Return the mean of one number a block, in the order of the blocks; NaN are left out."""
        values = np.asarray(numbers, dtype=np.float64)
        values = values[~np.isnan(values)]
        n = len(values)
        if n < 2:
            return cls(n, float(values.mean()) if n else math.nan, math.nan, math.nan, log)
        centre, error, df = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(n), n - 1.0
        if error * math.sqrt(n) < 1e-12 * max(1.0, abs(centre)):
            return cls(n, centre, 0.0, df, log)
        if n >= 10:  # The larger error counts, with its degrees of freedom.
            error, df = max((error, df), _serial(values), key=lambda one: one[0])
        return cls(n, centre, error, df, log)

    @property
    def value(self) -> float:
        """Estimate: a ratio or geometric mean on the log scale."""
        return _exp(self.centre) if self.log else self.centre

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of `value`."""
        half = float(special.stdtrit(self.df, (1 + level) / 2)) * self.error
        low, high = self.centre - half, self.centre + half
        return (_exp(low), _exp(high)) if self.log else (low, high)

    def _distance(self, bound: float) -> float:
        """Return how far a bound lies above the mean, on its scale."""
        if self.log:
            bound = math.log(bound) if bound > 0 else -math.inf
        return bound - self.centre

    def p_above(self, bound: float) -> float:
        """Return the one-sided p-value that shows `value` to lie above a bound."""
        return self._p(self._distance(bound))

    def p_below(self, bound: float) -> float:
        """Return the one-sided p-value that shows `value` to lie below a bound."""
        return self._p(-self._distance(bound))

    def _p(self, distance: float) -> float:
        if self.error == 0:
            return float(distance >= 0)
        return float(special.stdtr(self.df, distance / self.error))

    def p_inside(self, low: float, high: float) -> float:
        """Return the p-value of two one-sided tests that `value` lies between two bounds."""
        return float(np.maximum(self.p_above(low), self.p_below(high)))

    def blocks_needed(self, bound: float, alpha: float = 0.05) -> float:
        """Return how many blocks would tell `value` from a bound, with a power of 80 %."""
        distance = abs(self._distance(bound))
        if not self.error > 0 or not distance:
            return math.nan
        normal = float(special.ndtri(1 - alpha / 2))
        effect = distance / (self.error * math.sqrt(self.n))
        # Guenther's correction (1981) for Student's quantile.
        needed = ((normal + float(special.ndtri(0.8))) / effect) ** 2 + normal**2 / 2
        return float(max(LEAST_BLOCKS, math.ceil(needed)))

    def decidable_margin(self, alpha: float = 0.05) -> float:
        """Return the smallest margin that two equal conditions pass with a power of 80 %."""
        tests = special.stdtrit(self.df, [1 - alpha, 0.9])
        error = float(tests.sum()) * self.error
        return _exp(error) - 1 if self.log else error

    def blocks_to_equate(self, margin: float, alpha: float = 0.05) -> float:
        """Return how many blocks would make a margin decidable, with that power."""
        tests = special.ndtri([1 - alpha, 0.9])
        spread = self.error * math.sqrt(self.n)
        return float(np.ceil((float(tests.sum()) * spread / math.log1p(margin)) ** 2))


def _exp(number: float) -> float:
    """Return the exponential, infinite where a float cannot hold it."""
    return math.inf if number > 709 else math.exp(number)


def _serial(values: Floats) -> tuple[float, float]:
    """Return standard error and degrees of freedom where neighbouring blocks correlate, or 0, 0."""
    n = len(values)
    centred = values - values.mean()
    square = float(centred @ centred)
    # Von Neumann's (1941) lies between 0 and 4: near enough a beta variable. The test is at 10 %.
    ratio = float(np.sum(np.diff(values) ** 2)) / square
    shape = ((n * n - 1) / (n - 2) - 1) / 2
    if special.betainc(shape, shape, min(ratio / 4, 1.0)) >= 0.1:
        return 0.0, 0.0
    raw = float(centred[1:] @ centred[:-1]) / square
    lag1 = float(np.clip(raw + (1 + 4 * max(raw, 0.0)) / n, 0.0, 0.95))
    # The effective number of blocks of an autoregression (Bayley and Hammersley 1946).
    lags = np.arange(1, n)
    inflation = 1 + 2 * float(np.sum((1 - lags / n) * lag1**lags))
    variance = square / max(n - inflation, (n - 1) / n)
    # An estimate from a dozen blocks is too noisy for fewer degrees of freedom.
    return math.sqrt(variance * inflation / n), max(n / inflation - 1, 4.0)


@dataclass(frozen=True)
class Numbers:
    """Numbers of some cells in the blocks that have all of them."""

    #: Of the shape (blocks, cells): logarithms, or the values themselves where one is 0.
    values: Floats
    log: bool
    #: Number of blocks in which each cell was tried and never succeeded.
    lost: tuple[int, ...]

    def estimate(self) -> Mean:
        """Return the value of one cell, the ratio of two, or that of four as a ratio of ratios."""
        count = self.values.shape[1]
        if self.log or count != 2:
            return Mean.of(self.values @ np.array([1.0, -1.0, -1.0, 1.0])[:count], log=self.log)
        # The ratio of the means, with the error of the linearised quotient (Fieller 1954, for
        # denominators far from 0).
        own, base = self.values.T
        if not len(own) or not base.mean():
            return Mean(len(own), math.nan, math.nan, math.nan, log=False)
        quotient = float(own.mean() / base.mean())
        residual = Mean.of((own - quotient * base) / base.mean(), log=False)
        return replace(residual, centre=quotient)

    def p_inside(self, low: float, high: float) -> float:
        """Return the p-value that a ratio lies within bounds, allowing for trials that failed."""
        estimate = self.estimate()
        shown, extra = estimate.p_inside(low, high), abs(self.lost[0] - self.lost[-1])
        if not extra or not self.log or not shown < 0.5 or math.isinf(low) or math.isinf(high):
            return shown
        # What fails may be what is slow: blocks that one side lost more often than the other count
        # as lying at twice the distance of the upper bound.
        logs = self.values[:, 0] - self.values[:, -1]
        missing = [math.copysign(2 * math.log(high), estimate.centre)] * extra
        return max(shown, Mean.of([*logs, *missing]).p_inside(low, high))

    def plain(self) -> Floats:
        """Return the values, not their logarithms."""
        return np.exp(self.values) if self.log else self.values


class BlockTable:
    """Trials, a row an attempt, as one number a block and condition, of any column."""

    def __init__(self, trials: pd.DataFrame, factors: Sequence[str]) -> None:
        refuse_unknown("column", ("block", *factors), trials)
        optional: dict[str, Any] = {"status": "ok", "session": 1}
        self.trials = trials.assign(**{n: trials.get(n, one) for n, one in optional.items()})
        self.factors = tuple(factors)
        #: Number of the condition of each attempt: its row in `conditions`.
        self.condition = trials.groupby(list(factors), dropna=False, sort=False).ngroup().to_numpy()
        first = np.unique(self.condition, return_index=True)[1]
        self.conditions = trials[[*factors]].iloc[first].astype(object)
        self.ok = (self.trials["status"] == "ok").to_numpy()
        self._columns: dict[str, dict[str, Floats]] = {}

    def _column(self, value: str) -> dict[str, Floats]:
        """Return tables of a column, of blocks and conditions, without values where none is."""
        if value not in self._columns:
            place = [self.trials["block"].to_numpy(), self.condition]
            try:
                number = pd.to_numeric(self.trials[value]).where(self.ok)
            except (ValueError, TypeError) as error:
                remedy = "numbers have a point, and what is missing is NaN"
                raise UsageError(f"{value} has a text", why=str(error), remedy=remedy) from None
            sessions = self.trials["session"].where(number.notna()).groupby(place)
            with np.errstate(invalid="ignore", divide="ignore"):
                columns = {"plain": number, "logs": np.log(number), "zeros": number <= 0}
            found = pd.DataFrame(columns).groupby(place).mean()
            found = found.assign(first=sessions.min(), last=sessions.max())
            found = found.assign(lost=found["plain"].isna()).astype(np.float64)
            # The same blocks and conditions for all: every attempt has its place.
            self._columns[value] = {str(n): one.unstack().to_numpy() for n, one in found.items()}
        return self._columns[value]

    def of(self, *cells: Cell) -> NDArray[np.bool_]:
        """Return which conditions are of some cells; ``all`` is any level, unless it is one."""
        mask = np.zeros(len(self.conditions), dtype=bool)
        for cell in cells:
            named = {
                name: level
                for name, level in cell.items()
                if level != "all" or "all" in {*self.conditions.get(name, ())}
            }
            refuse_unknown("factor", named, self.conditions)
            mask |= np.logical_and.reduce([self.conditions[n] == one for n, one in named.items()])
        return mask

    def cells(self, value: str, *cells: Cell) -> Numbers:
        """Return the numbers of a column in some cells, by block, or raise `NotMeasured`.

        Factors that no cell names are averaged over the levels at which all cells were measured. A
        block that lacks one has no number, nor has one that was measured in several sessions.
        """
        if value not in self.trials:
            raise NotMeasured(f"no trial has {value}")
        column = self._column(value)
        masks = [self.of(cell) for cell in cells]
        valued = ~np.isnan(column["plain"]).all(axis=0)
        for cell, mask in zip(cells, masks, strict=True):
            if not (mask & valued).any():
                label = ", ".join(str(level) for level in cell.values())
                reason = "no trial has a value" if mask.any() else "not in this campaign"
                raise NotMeasured(f"{label}: {reason}")
            mask &= valued
        free = [name for name in self.factors if not any(name in cell for cell in cells)]
        if free:
            levels = self.conditions.groupby(free, dropna=False).ngroup().to_numpy()
            shared = set.intersection(*(set(levels[mask]) for mask in masks))
            if not shared:
                raise NotMeasured(f"no level of {', '.join(free)} is shared by the conditions")
            masks = [mask & np.isin(levels, [*shared]) for mask in masks]
        used = np.logical_or.reduce(masks)
        log = not (column["zeros"][:, used] > 0).any()
        table = column["logs" if log else "plain"]
        values = np.column_stack([table[:, mask].mean(axis=1) for mask in masks])
        first, last = column["first"][:, used], column["last"][:, used]
        values[np.fmin.reduce(first, axis=1) < np.fmax.reduce(last, axis=1)] = np.nan
        lost = tuple(int((column["lost"][:, mask] == 1).any(axis=1).sum()) for mask in masks)
        return Numbers(values[~np.isnan(values).any(axis=1)], log, lost)


def holm(p_values: ArrayLike) -> Floats:
    """Return p-values adjusted for their family (Holm 1979); NaN are not in the family."""
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(len(p), np.nan)
    order = np.argsort(p)[: int((~np.isnan(p)).sum())]
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def row(numbers: Numbers, margin: float, alpha: float) -> dict[str, Any]:
    """Return the comparison of a cell with a baseline, as a row of `compare`."""
    estimate = numbers.estimate()
    # Over the same blocks as the ratio, so that there is one difference.
    value, baseline = (Mean.of(cell, log=numbers.log).value for cell in numbers.values.T)
    low, high = estimate.interval(1 - alpha)
    p_value = min(1.0, 2 * min(estimate.p_above(1.0), estimate.p_below(1.0)))
    p_equivalence = numbers.p_inside(1 / (1 + margin), 1 + margin)
    tests = (p_value, p_equivalence)
    verdicts = [["cannot tell", "equivalent"], ["differs", "differs within margin"]]
    differs, equivalent = (estimate.n >= LEAST_BLOCKS and bool(p < alpha) for p in tests)
    needed = min(estimate.blocks_needed(1.0, alpha), estimate.blocks_to_equate(margin, alpha))
    return {
        "n_blocks": estimate.n,
        "value": value,
        "baseline": baseline,
        "difference": value - baseline,
        "estimate": estimate.value,
        "low": low,
        "high": high,
        "differs": differs,
        "equivalent": equivalent,
        "verdict": verdicts[differs][equivalent],
        "p_value": p_value,
        "p_equivalence": p_equivalence,
        "blocks_needed": math.nan if differs or equivalent else needed,
        "margin_decidable": estimate.decidable_margin(alpha),
        "reason": "",
    }


def unmeasured(reason: str) -> dict[str, Any]:
    """Return the row of a cell without a number."""
    nothing = row(Numbers(np.empty((0, 2)), log=True, lost=(0, 0)), margin=0.02, alpha=0.05)
    return nothing | {"verdict": "not measured", "p_value": math.nan, "reason": reason}


def compare(
    frame: pd.DataFrame,
    *,
    value: str,
    condition: str,
    baseline: Hashable,
    margin: float = 0.02,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Compare each condition with a baseline, inside blocks.

    Parameters
    ----------
    frame : DataFrame
        A row a trial: ``block``, the condition and the value, and optionally ``status`` (rows that
        are not ``ok`` are failed trials) and ``session``.
    value, condition : str
        Columns.
    baseline : hashable
        The level of `condition` to compare with.
    margin : float
        Relative difference up to which two conditions count as equal.
    alpha : float
        Level of the tests; the interval has 1 - `alpha`.

    Returns
    -------
    DataFrame
        A row a condition: ``condition``, ``n_blocks``, ``value`` and ``baseline`` (geometric means
        in the unit of the value), ``difference``, ``estimate`` (the ratio) with ``low`` and
        ``high``, ``differs``, ``equivalent``, ``verdict``, ``p_value``, ``p_adjusted`` (Holm, over
        the rows), ``p_equivalence`` (two one-sided tests), ``blocks_needed``, ``margin_decidable``
        and ``reason``, why a condition was not measured.

    Raises
    ------
    UsageError
        A column or the baseline is unknown, or `margin` or `alpha` is not a share.
    """
    if not 0 < margin < 1 or not 0 < alpha < 0.5:
        what = f"invalid margin or alpha: margin={margin!r}, alpha={alpha!r}"
        raise UsageError(what, remedy="0 < margin < 1 (0.02 for 2 %) and 0 < alpha < 0.5")
    refuse_unknown("column", [value], frame)
    table = BlockTable(frame, [condition])
    refuse_unknown("baseline", [baseline], table.conditions[condition])
    rows = []
    for level in table.conditions[condition]:
        if level == baseline:
            continue
        try:
            numbers = table.cells(value, {condition: level}, {condition: baseline})
            found = row(numbers, margin, alpha)
        except NotMeasured as error:
            found = unmeasured(str(error))
        rows.append({"condition": level, **found})
    result = pd.DataFrame(rows, columns=["condition", *unmeasured("")])
    return result.assign(p_adjusted=holm(result["p_value"]))
