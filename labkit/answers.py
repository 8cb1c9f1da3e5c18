"""Numbers and comparisons as text: scaled units, words with a direction, one sentence.

`scaled` is the only place where a value gets its unit for a reader, and `Answer` the only one where
a comparison becomes words: pages, tables, the command line and the API all use these.
"""

from __future__ import annotations

import html
import math
import numbers
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from labkit.units import metric_of, plural

#: Units of one quantity with their sizes, smallest first; a value is shown in the one that fits.
_FAMILIES: tuple[dict[str, float], ...] = (
    {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0},
    {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9},
    {"B": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3},
    {"B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9},
)
#: From this share of a unit on, three digits round to the unit itself.
_NEARLY = 0.9995
#: Exponents of numbers that are written without one.
_PLAIN = range(-6, 15)
#: Names of statistics that are not words.
_STATISTICS = {"min": "lowest", "max": "highest", "p999": "p99.9", "p9999": "p99.99"}
_STATISTICS |= {"q0.999": "p99.9", "q0.9999": "p99.99", "std": "standard deviation of"}
#: Figures and their tables have a micro sign.
_TIMES = frozenset({*_FAMILIES[0], "µs"})
#: Verdicts of conditions that are the same within the margin.
SAME = ("equivalent", "different within margin")


def scaled(value: float, unit: str = "1", *, signed: bool = False) -> str:
    """Return a value with three significant digits, in a unit of readable size.

    Parameters
    ----------
    value : float
        In `unit`. Integers below 1,000 are written as they are.
    unit : str
        As stored (`labkit.units`); ``share`` is shown as per cent, ``1`` without a unit.
    signed : bool
        For a difference: with its sign, and shares in percentage points.

    Examples
    --------
    >>> scaled(3_243_923, "ns"), scaled(17_300, "ns"), scaled(4_900, "ns", signed=True)
    ('3.24 ms', '17.3 us', '+4.90 us')
    >>> scaled(9412.0, "Mbit/s"), scaled(12_345.6, "1/s"), scaled(0.1534, "share")
    ('9.41 Gbit/s', '12,300/s', '15.3 %')
    """
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "unbounded"
    number, shown = in_unit(value, unit)
    return _digits(number, signed=signed) + _suffix(shown, signed=signed)


def _digits(number: float, *, signed: bool = False) -> str:
    """Return a number without its unit."""
    return f"{'+' if signed and number > 0 else ''}{_three_digits(number)}"


def _suffix(shown: str, *, signed: bool) -> str:
    """Return a unit as it follows its number."""
    if shown == "%" and signed:
        shown = "percentage points"
    return shown if shown.startswith("/") or not shown else f" {shown}"


def in_unit(value: float, unit: str) -> tuple[float, str]:
    """Return a value in the largest unit of its family that it reaches, and that unit."""
    if unit == "share":
        return 100 * float(value), "%"
    if unit in ("", "1"):
        return value, ""
    if unit.startswith("1/"):
        return value, unit[1:]
    for family in _FAMILIES:
        if unit in family:
            sizes = {name: size / family[unit] for name, size in family.items()}
            reached = [name for name in sizes if abs(value) >= _NEARLY * sizes[name]]
            # Zero has no size: it keeps the unit in which it is stored.
            shown = reached[-1] if reached else next(iter(sizes)) if value else unit
            return (value, unit) if shown == unit else (float(value) / sizes[shown], shown)
    return value, unit


def _three_digits(number: float) -> str:
    if number == 0 or (isinstance(number, numbers.Integral) and abs(number) < 1000):
        return f"{int(number)}"
    rounded = float(f"{number:.2e}")
    # The largest floats round to infinity.
    exponent = math.floor(math.log10(abs(rounded))) if math.isfinite(rounded) else math.inf
    if exponent not in _PLAIN:
        return f"{number:.3g}"
    return f"{rounded:,.{max(0, 2 - exponent)}f}"


def ratio_bounds(ratio: float, low: float, high: float) -> tuple[float, float]:
    """Return the bounds of a ratio; 0 and infinity for those over a millionfold away from it.

    A few blocks that are serially correlated have such intervals, which bound nothing.
    """
    return (
        0.0 if 0 <= low < 1e-6 * ratio else low,
        math.inf if high > 1e6 * ratio else high,
    )


def ratio_text(ratio: float, low: float = math.nan, high: float = math.nan) -> str:
    """Return a ratio with its interval, ``1.40x [1.25, 1.56]``; empty without a ratio.

    Numbers near 1 get a third decimal, so that they do not look equal to it.

    Examples
    --------
    >>> ratio_text(1.34, 1.2e-21, 1.4e21)
    '1.34x [0, unbounded]'
    """
    if not math.isfinite(ratio):
        return ""
    low, high = ratio_bounds(ratio, low, high)
    near = any(0 < abs(number - 1) < 0.005 for number in (ratio, low, high))
    texts = [
        f"{number:.3f}" if near and 0 < number < math.inf else scaled(float(number))
        for number in (ratio, low, high)
    ]
    bounds = "" if math.isnan(low) or math.isnan(high) else f" [{texts[1]}, {texts[2]}]"
    return f"{texts[0]}x{bounds}"


def interval_text(
    value: float,
    low: float = math.nan,
    high: float = math.nan,
    unit: str = "1",
    signed: bool = False,
    sd: float = math.nan,
) -> str:
    """Return a value with its interval, all in one unit; empty without a value.

    Parameters
    ----------
    value, low, high : float
        In `unit`; without bounds the text has the value alone.
    unit : str
        As stored; ``1`` is a ratio (`ratio_text`).
    signed : bool
        For a difference.
    sd : float
        A standard deviation, which follows.

    Examples
    --------
    >>> interval_text(13.36e3, unit="MB/s", sd=70.0)
    '13.4 GB/s ± 0.0700'
    >>> interval_text(4_950, 2_230, 7_670, "ns", signed=True), interval_text(1.4, 1.25, 1.56)
    ('+4.95 us [+2.23, +7.67]', '1.40x [1.25, 1.56]')
    """
    if unit == "1" and not signed:
        return ratio_text(value, low, high)
    if not math.isfinite(value):
        return ""
    bounded = not (math.isnan(low) or math.isnan(high))
    # All in the unit of the largest: a bound in another one would be read wrong.
    bounds = (low, high) if bounded else ()
    largest = max((one for one in (value, *bounds) if math.isfinite(one)), key=abs)
    number, shown = in_unit(largest, unit)
    # An integer below 1,000 is written as it is.
    whole = isinstance(value, numbers.Integral) and number == largest
    scale = float(number) / largest if largest else 1.0
    texts = [
        _digits(scale * float(one), signed=signed) if math.isfinite(one) else "unbounded"
        for one in (value, *bounds, sd)
    ]
    first = _digits(value, signed=signed) if whole else texts[0]
    return (
        f"{first}{_suffix(shown, signed=signed)}"
        + (f" [{texts[1]}, {texts[2]}]" if bounded else "")
        + (f" ± {texts[-1]}" if math.isfinite(sd) else "")
    )


def percent(share: float) -> str:
    """Return a share as per cent without needless digits: ``2 %``, ``0.5 %``, ``14 %``."""
    # From 99.5 on, two digits would be 1e+02.
    return f"{100 * share:.2g} %" if share < 0.995 else f"{scaled(100.0 * share)} %"


def confidence_text(confidence: float) -> str:
    """Return the level of an interval with three digits, which is never 100 %.

    Examples
    --------
    >>> confidence_text(0.95), confidence_text(0.9967), confidence_text(0.99996)
    ('95 %', '99.7 %', 'over 99.9 %')
    """
    return f"{100 * confidence:.3g} %" if confidence < 0.9995 else "over 99.9 %"


def quantity(metric: str, statistic: str = "") -> str:
    """Return what a column holds as part of a sentence: ``median round-trip time``.

    Examples
    --------
    >>> quantity("rtt_ns_p99"), quantity("copy_gb_per_s")
    ('p99 round-trip time', 'STREAM (copy, best pass)')
    """
    known, found = metric_of(metric)
    text, _, rest = known.text.partition(", ")
    statistic = statistic or found
    return f"{_STATISTICS.get(statistic, statistic)} {text}".strip() + (
        f" ({rest})" if rest else ""
    )


def word_of(verdict: str, ratio: float, margin: float | None = None, unit: str = "") -> str:
    """Return a verdict of `labkit.compare` in words, with a direction.

    Parameters
    ----------
    verdict : str
        Of `compare`; any other text is returned as it is.
    ratio : float
        Of condition and baseline.
    margin : float, optional
        Relative difference up to which the two count as equal.
    unit : str
        Times and rates are slower or faster, everything else is more or less.

    Examples
    --------
    >>> word_of("different", 1.4, unit="ns"), word_of("different", 1.4, unit="Mbit/s")
    ('slower', 'faster')
    >>> word_of("different", 1.4), word_of("equivalent", 1.01, 0.02)
    ('more', 'same within 2 %')
    """
    if verdict in SAME:
        return f"same within {'the margin' if margin is None else percent(margin)}"
    if verdict == "undecided":
        return "cannot tell yet"
    if verdict != "different":
        return verdict
    if unit in _TIMES:
        return "slower" if ratio > 1 else "faster"
    if unit.endswith("/s"):
        return "faster" if ratio > 1 else "slower"
    return "more" if ratio > 1 else "less"


def unit_of_word(metric: str) -> str:
    """Return the unit by which `word_of` chooses its words for a metric; empty for an amount.

    Examples
    --------
    >>> unit_of_word("rtt_ns_p99"), unit_of_word("operations_per_s"), unit_of_word("sent_per_s")
    ('ns', '1/s', '')
    """
    known = metric_of(metric)[0]
    return _of_word(known.shown, known.better)


def _of_word(unit: str, better: str) -> str:
    """Return a unit where less of a time, or more of a rate, is better; else an empty text."""
    return unit if better == ("lower" if unit in _TIMES else "higher") else ""


@dataclass(frozen=True, repr=False)
class Answer:
    """A comparison of two conditions in words.

    Parameters
    ----------
    condition, baseline : str
        What is compared with what.
    metric : str
        Its column, such as ``rtt_ns``.
    statistic : str
        What each trial's samples are reduced to, such as ``median``; empty for a metric that has
        one number a trial.
    unit : str
        Of `value` and `base`, as stored; ``share`` for shares.
    better : {"lower", "higher", "neither"}
        The desired direction.
    value, base : float
        Typical value of condition and baseline over the blocks compared (geometric mean).
    ratio, low, high : float
        `value` by `base`, with the interval that the verdict rests on; NaN where there is none.
    confidence : float
        Of that interval.
    margin : float
        Relative difference up to which two conditions count as equal.
    n_blocks : int
        Blocks that were compared.
    verdict : str
        As `labkit.compare` gives it: ``different``, ``equivalent``, ``different within margin`` or
        ``undecided``.
    needed : int, optional
        Blocks that decide whether they are equal within the margin; None where too many to plan.
    note : str
        What to know about it.

    Examples
    --------
    >>> Answer(
    ...     "docker bridge", "docker host", "rtt_ns", "median", "ns", "lower",
    ...     value=17_300, base=12_400, ratio=1.40, low=1.25, high=1.56, n_blocks=5,
    ...     verdict="different",
    ... ).sentence
    'docker bridge is slower than docker host: median round-trip time 17.3 us, +4.90 us, 1.40x [1.25, 1.56]'
    """  # noqa: E501

    condition: str
    baseline: str
    metric: str
    statistic: str
    unit: str
    better: str
    value: float
    base: float
    ratio: float
    low: float
    high: float
    n_blocks: int
    verdict: str
    confidence: float = 0.95
    margin: float = 0.02
    needed: int | None = None
    note: str = ""

    @classmethod
    def from_comparison(
        cls,
        row: Mapping[str, Any],
        *,
        metric: str,
        statistic: str = "",
        condition: str | None = None,
        baseline: str,
        margin: float,
    ) -> Answer:
        """Return a row of `labkit.compare` as an answer.

        Parameters
        ----------
        row : mapping
            A row of the table.
        metric, statistic : str
            The column that was compared, with the statistic of a trial's samples if any;
            ``rtt_ns_median`` is the same as ``rtt_ns`` and ``median``.
        condition, baseline : str
            Their names for the reader; the row's ``condition`` when omitted.
        margin : float
            As `compare` was given it.
        """
        known, found = metric_of(metric)
        low, high, confidence = interval_of(row)
        needed = row["needed_blocks"]
        return cls(
            condition=str(row["condition"]) if condition is None else condition,
            baseline=baseline,
            metric=known.name,
            statistic=statistic or found,
            unit=known.shown,
            better=known.better,
            value=float(row["value"]),
            base=float(row["base"]),
            ratio=float(row["estimate"]),
            low=low,
            high=high,
            n_blocks=int(row["n_blocks"]),
            verdict=str(row["verdict"]),
            confidence=confidence,
            margin=margin,
            needed=None if pd.isna(needed) else int(needed),
            note=str(row["note"]),
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Answer:
        """Return the answer of a record, as `as_record` gives it."""
        numbers = ("value", "base", "ratio", "low", "high")
        unknown = {name: math.nan for name in numbers if record[name] is None}
        return cls(**{name: record[name] for name in cls.__dataclass_fields__} | unknown)

    @property
    def difference(self) -> float:
        """`value` minus `base`, in `unit`."""
        return self.value - self.base

    @property
    def quantity(self) -> str:
        """What was measured, with the statistic: ``median round-trip time``."""
        return quantity(self.metric, self.statistic)

    @property
    def word(self) -> str:
        """``slower``, ``faster``, ``more``, ``less``, ``same within 2 %``, ``cannot tell yet``.

        Times of which less is better and rates of which more is better are slower or faster.
        """
        unit = _of_word(self.unit, self.better)
        return word_of(self.verdict, self.ratio, self.margin, unit)

    @property
    def open(self) -> str:
        """What is still possible, and how many blocks would decide; empty where it is decided."""
        if self.word != "cannot tell yet":
            return ""
        if not self.n_blocks:
            return self.note or "no block has a value of both"
        parts = ["too few blocks" if math.isnan(self.low) else self._possible()]
        if self.needed is None:
            parts.append("too noisy for a number of blocks that can be planned")
        elif self.needed > self.n_blocks:
            parts.append(f"about {self.needed:,} blocks would decide")
        else:
            parts.append("more blocks may decide")
        return "; ".join(parts)

    def _possible(self) -> str:
        """Return the interval in words: ``from 2.4 % faster to 14 % slower``."""
        ends = ratio_bounds(self.ratio, self.low, self.high)
        if ends == (0, math.inf):
            return "any difference is possible"
        return f"from {self._change(ends[0])} to {self._change(ends[1])}"

    def _change(self, ratio: float) -> str:
        """Return one end of the interval in words."""
        if ratio == 1:
            return "no difference"
        word = word_of("different", ratio, unit=_of_word(self.unit, self.better))
        if not 0 < ratio < math.inf:
            return f"any factor {word}"
        near = 0.5 < ratio < 1.99
        return f"{percent(abs(ratio - 1))} {word}" if near else f"{ratio_text(ratio)} ({word})"

    @property
    def numbers(self) -> str:
        """Absolute value, difference and ratio: ``17.3 us, +4.90 us, 1.40x [1.25, 1.56]``."""
        cells = self.cells()
        return ", ".join(cells[name] for name in ("value", "difference", "ratio") if cells[name])

    @property
    def sentence(self) -> str:
        """The answer in one sentence, with direction, absolute value, difference and ratio."""
        numbers = f"{self.quantity} {self.numbers}" if self.numbers else ""
        # What both conditions share is said once.
        shared = self.condition.split(", ")
        parts = [part for part in self.baseline.split(", ") if part not in shared]
        baseline = ", ".join(parts) or self.baseline
        if self.word == "cannot tell yet":
            between = f"{self.condition} against {baseline}"
            return "; ".join(filter(None, [f"{between}: {self.word}: {self.open}", numbers]))
        if self.word.startswith("same"):
            how = f"is the same as {baseline} within {percent(self.margin)}"
        else:
            verb = "has" if self.word in ("more", "less") else "is"
            how = f"{verb} {self.word} than {baseline}"
        return f"{self.condition} {how}: {numbers}"

    def cells(self) -> dict[str, str]:
        """Return ``condition``, ``value``, ``difference``, ``ratio`` and ``answer`` for a table."""
        known = math.isfinite(self.value) and math.isfinite(self.base)
        return {
            "condition": self.condition,
            "value": scaled(self.value, self.unit) if math.isfinite(self.value) else "",
            "difference": scaled(self.difference, self.unit, signed=True) if known else "",
            "ratio": ratio_text(self.ratio, self.low, self.high),
            "answer": f"{self.word} ({self.open})" if self.open else self.word,
        }

    def as_record(self) -> dict[str, Any]:
        """Return all fields, the word and the sentence as JSON data; unknown numbers are None."""
        fields = asdict(self) | {"difference": self.difference}
        record = {
            name: None if isinstance(item, float) and not math.isfinite(item) else item
            for name, item in fields.items()
        }
        return record | {"word": self.word, "sentence": self.sentence}

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        """Return the sentence, and below it what it rests on."""
        return f"{self.sentence}\n  {self._basis()}"

    def _basis(self) -> str:
        blocks = plural(self.n_blocks, "block")
        interval = "" if math.isnan(self.low) else f"interval at {confidence_text(self.confidence)}"
        return "; ".join(filter(None, [blocks, interval, self.note if self.n_blocks else ""]))

    def _repr_html_(self) -> str:
        sentence = html.escape(self.sentence).replace(self.word, f"<b>{self.word}</b>", 1)
        return f"<p>{sentence}<br><small>{html.escape(self._basis())}</small></p>"


def interval_of(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return low, high and confidence of the interval that a row's verdict rests on.

    That of the two one-sided tests where the row is the same within the margin, else that of Holm's
    step.
    """
    low, high, confidence = (float(row[column]) for column in interval_columns(row["verdict"]))
    return low, high, confidence


def interval_columns(verdict: str) -> tuple[str, str, str]:
    """Return the columns with low, high and confidence of the interval that a verdict rests on."""
    start = "equal_" if verdict in SAME else ""
    return f"{start}low", f"{start}high", f"{start}confidence"
