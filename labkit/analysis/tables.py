"""Results as text for readers: numbers with intervals in one cell, verdicts, plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.compare import COLUMNS, NO_TRIAL
from labkit.analysis.overhead import COST_COLUMNS
from labkit.analysis.robust import CHECKED_BLOCKS, HALF_CHECKED, SURE_BLOCKS, UNCHECKED
from labkit.analysis.trials import require_columns
from labkit.answers import (
    confidence_text,
    interval_columns,
    interval_of,
    interval_text,
    ratio_text,
    scaled,
    unit_of_word,
    word_of,
)
from labkit.units import heading, metric_of

#: Notes that a page states once, not in every row.
_STATED_ONCE = ("averaged on the log scale", UNCHECKED, HALF_CHECKED)


#: A space at which a browser does not break the line.
_NO_BREAK = "\N{NO-BREAK SPACE}"


_HEADINGS = {
    "blocks": "blocks",
    "ratio": "ratio{base} [interval]",
    "confidence": "level",
    "verdict": "answer",
    "difference": "difference [interval]",
    "p": "p",
    "equal": "p of equivalence",
    "needed": "needed",
    "note": "note",
}


def format_comparison(
    table: pd.DataFrame,
    *,
    metric: str = "",
    margin: float | None = None,
) -> pd.DataFrame:
    """Return a comparison as text, indexed by what names its rows.

    Parameters
    ----------
    table : DataFrame
        What `compare`, `factor_effect` or `shift` returns.
    metric : str
        The column that was compared, such as ``rtt_ns_median``: it has the unit of the differences.
        Times and rates are slower or faster, everything else is more or less.
    margin : float
        As `compare` was given it.

    Returns
    -------
    DataFrame
        Strings: ``blocks``; the ratio with the interval that its verdict rests on (of the two
        one-sided tests where it is ``equivalent``, else of Holm's step) and that interval's
        ``level``; the ``answer`` in the words of `labkit.Answer`; the difference; ``p`` (Holm),
        ``p of equivalence``, ``needed`` blocks and ``note``.

    Examples
    --------
    >>> from labkit import analysis, compare, load
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> names = {"condition": "placement", "baseline": "docker host"}
    >>> table = compare(trials, value="rtt_ns_median", **names)
    >>> shown = analysis.format_comparison(table, metric="rtt_ns_median")
    >>> shown.loc["docker bridge", "answer"]
    'slower'
    >>> shown.loc["docker bridge", "difference [interval]"].replace(chr(160), " ")
    '+2.53 us [+2.22, +2.85]'
    """
    keys = _keys(table)
    names = {name: [str(value) for value in table[name]] for name in keys}
    base = ""
    if len({value.partition(" / ")[2] for value in names.get("contrast", [])}) == 1:
        # One baseline for all: it belongs in the heading, not in every row.
        base = f" to {names['contrast'][0].partition(' / ')[2]}"
        names["contrast"] = [value.partition(" / ")[0] for value in names["contrast"]]
    shown_in, unit = metric_of(metric)[0].shown, unit_of_word(metric)
    rows = [
        _row(row, shown_in) | {"verdict": word_of(row["verdict"], row["estimate"], margin, unit)}
        for row in table.to_dict("records")
    ]
    shown = pd.DataFrame(rows, columns=list(_HEADINGS)).assign(**names)
    headings = {name: text.format(base=base) for name, text in _HEADINGS.items()}
    shown = shown.set_index(keys) if keys else shown
    unbroken = [name for name in _HEADINGS if name not in ("note", "verdict")]
    shown[unbroken] = shown[unbroken].map(lambda text: text.replace(" ", _NO_BREAK))
    return in_words(shown.rename(columns=headings))


def _keys(table: pd.DataFrame) -> list[str]:
    """Return the columns that name the rows of a comparison."""
    return [name for name in table.columns if name not in COLUMNS or name == "condition"]


def in_words(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose headings are words with units instead of keys.

    Examples
    --------
    >>> import pandas as pd
    >>> in_words(pd.DataFrame({"n_blocks": [5]}, index=pd.Index(["1000"], name="quota_us")))
               blocks
    quota, us
    1000            5
    """
    return table.set_axis(_words(table.index)).set_axis(_words(table.columns), axis=1)


def _words(axis: pd.Index[Any]) -> pd.Index[Any]:
    """Return the labels and names of an axis with words instead of keys."""

    def words(label: Any) -> Any:
        if isinstance(label, tuple):
            return tuple(map(words, label))
        return heading(label) if isinstance(label, str) else label

    labels = list(map(words, axis))
    if labels != list(axis):
        several = isinstance(axis, pd.MultiIndex)
        names = axis.names
        axis = (
            pd.MultiIndex.from_tuples(labels) if several else pd.Index(labels, tupleize_cols=False)
        )
        axis.names = names
    return axis.set_names(list(map(words, axis.names)))


#: So many pairs that were not measured are named at most.
_NAMED = 5


def not_compared(table: pd.DataFrame) -> str:
    """Return in words which rows were not compared, and why, and whether some were not checked."""
    keys = _keys(table)
    rows = table[table["n_blocks"] == 0].to_dict("records")
    # What was not measured is counted: it may be most of what factors can be combined to.
    absent = [str(row["note"]).startswith(NO_TRIAL) for row in rows]
    texts = []
    if sum(absent) > _NAMED:
        texts = [f"{sum(absent)} pairs of which one or both were not measured"]
        rows = [row for row, lacks in zip(rows, absent, strict=True) if not lacks]
    texts += [f"{', '.join(str(row[name]) for name in keys)} ({row['note']})" for row in rows]
    sentences = [f"Not compared: {'; '.join(texts)}."] if texts else []
    notes = table["note"].astype(str).str
    if notes.contains(UNCHECKED, regex=False).any():
        sentences.append(
            f"With fewer than {CHECKED_BLOCKS} blocks nothing can show whether they are "
            "serially correlated or one is an outlier; if so, p is too small."
        )
    elif notes.contains(HALF_CHECKED, regex=False).any():
        sentences.append(
            f"With fewer than {SURE_BLOCKS} blocks serial correlation and rare slow trials "
            "are found in some campaigns only; where they are not, p is too small."
        )
    return " ".join(sentences)


def format_numbers(
    table: pd.DataFrame, digits: int = 2, *, unit: str | Mapping[Any, str] = ""
) -> pd.DataFrame:
    """Return numbers as text, with `digits` decimals unless a whole column has none; gaps empty.

    Headings are words with units (`in_words`).

    Parameters
    ----------
    table : DataFrame
        Numbers, and text that stays.
    digits : int
        Decimals.
    unit : str or mapping
        Unit of all columns, or of some by name, as stored (``ns``): their numbers get three digits
        and a unit of readable size instead of decimals.

    Examples
    --------
    >>> import pandas as pd
    >>> from labkit import analysis
    >>> analysis.format_numbers(pd.DataFrame({"median": [3_243_923, 812.4]}), unit="ns")
        median
    0  3.24 ms
    1   812 ns

    >>> analysis.format_numbers(pd.DataFrame({"blocks": [5, 10], "sd": [0.5, float("nan")]}))
      blocks    sd
    0      5  0.50
    1     10
    """
    units = unit if isinstance(unit, Mapping) else dict.fromkeys(table.columns, unit)

    def column(values: pd.Series[Any], stored: str) -> list[str]:
        if stored:
            return ["" if pd.isna(one) else scaled(float(one), stored) for one in values]
        known = [value for value in values if isinstance(value, int | float | np.number)]
        integers = all(math.isnan(value) or float(value).is_integer() for value in known)
        return [_number(value, 0 if integers else digits) for value in values]

    texts = [
        column(table.iloc[:, number], units.get(name, ""))
        for number, name in enumerate(table.columns)
    ]
    shown = pd.DataFrame(dict(enumerate(texts)), index=table.index)
    return in_words(shown.set_axis(table.columns, axis=1))


def _row(row: Mapping[Any, Any], unit: str) -> dict[str, str]:
    low, high, confidence = interval_of(row)
    ends = row["difference_low"], row["difference_high"]
    notes = [
        note for note in str(row["note"]).split("; ") if note and not note.endswith(_STATED_ONCE)
    ]
    if row["blocks_missing"]:
        notes.append(f"missing: {_runs(row['blocks_missing'])}")
    return {
        "blocks": str(row["n_blocks"]),
        "ratio": ratio_text(row["estimate"], low, high),
        "confidence": confidence_text(confidence) if math.isfinite(low) else "",
        "difference": interval_text(row["difference"], *ends, unit=unit, signed=True),
        "p": p_text(row["p_adjusted"]),
        "equal": p_text(row["p_equivalence"]),
        "needed": "" if pd.isna(row["needed_blocks"]) else str(row["needed_blocks"]),
        "note": "; ".join(notes),
    }


def _runs(blocks: Iterable[Any]) -> str:
    """Return blocks in increasing order, with the runs of numbers among them: ``2, 9 to 40``."""
    runs: list[list[Any]] = []
    for block in blocks:
        last = runs[-1][-1] if runs else None
        # Blocks may have names or dates instead.
        if isinstance(block, int | np.integer) and last == block - 1:
            runs[-1][1:] = [block]
        else:
            runs.append([block])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def _with_interval(values: Sequence[float], digits: int) -> str:
    middle, low, high = values
    if not math.isfinite(middle):
        return ""
    bounds = f" [{low:.{digits}f}, {high:.{digits}f}]" if math.isfinite(low) else ""
    return f"{middle:.{digits}f}{bounds}"


def p_text(value: float) -> str:
    """Return a p-value as text; empty where there is none.

    Examples
    --------
    >>> from labkit import analysis
    >>> analysis.p_text(0.01234), analysis.p_text(1e-9)
    ('0.0123', '<0.0001')
    """
    if not math.isfinite(value):
        return ""
    return "<0.0001" if value < 1e-4 else f"{value:.4f}"


def _number(value: Any, digits: int) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    number = isinstance(value, int | float | np.number)
    return f"{value:,.{digits}f}" if number else str(value)


def format_overhead(
    table: pd.DataFrame,
    *,
    per: float = 1024,
    per_unit: str = "KiB",
) -> pd.DataFrame:
    """Return costs in ns that `overhead_table` found as text in µs, indexed by what names a row.

    Parameters
    ----------
    table : DataFrame
        What `overhead_table` returns.
    per, per_unit : float, str
        The slope is shown for so much of the size; bytes to KiB.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/network-isolation").ok
    >>> trials = trials.query("sides == 'server' and direction == 'receive'")
    >>> options = {"value": "latency_ns_median", "over": "size_b"}
    >>> names = ["placement", "docker host", ["docker nat"], []]
    >>> table = analysis.overhead_table(trials, *names, **options)
    >>> list(analysis.format_overhead(table).columns[:3])
    ['blocks', 'at size 0, µs [interval]', 'for each KiB, µs [interval]']
    """
    keys = [name for name in table.columns if name not in COST_COLUMNS]
    shown = table[keys].astype(str)
    shown["blocks"] = table["n_blocks"].astype(str)
    columns = {
        "at size 0, µs [interval]": ("intercept", 1e-3, 2),
        f"for each {per_unit}, µs [interval]": ("slope", 1e-3 * per, 4),
        "growth, % of the baseline [interval]": ("growth", 100, 2),
        "ratio, mean over sizes [interval]": ("ratio", 1, 3),
    }
    for title, (name, factor, digits) in columns.items():
        parts = table[[name, f"{name}_low", f"{name}_high"]] * factor
        shown[title] = [_with_interval(row, digits) for row in parts.to_numpy().tolist()]
    for name, title in (
        ("p_growth", "p of growth"),
        ("p_fixed", "p of fixed"),
        ("p_none", "p of none"),
    ):
        shown[title] = [p_text(value) for value in table[name]]
    shown["verdict"], shown["note"] = table["verdict"], table["note"]
    return in_words(shown.set_index(keys))


_NUMBERS = ("estimate", "low", "high", "published_value")


def format_claims(rows: pd.DataFrame) -> pd.DataFrame:
    """Return claims as a person reads them.

    Parameters
    ----------
    rows : DataFrame
        Rows of what `labkit.ledger` returns.

    Returns
    -------
    DataFrame
        Text, a row a claim, indexed by its number in the table: the statement; the published
        value; what the paper's own arithmetic does; the estimate with its interval (ratios without
        a unit); blocks; setting and result; why.

    Examples
    --------
    >>> from labkit import analysis, ledger
    >>> rows = ledger("data/reference/rps")
    >>> list(analysis.format_claims(rows).columns)[:4]
    ['claim', 'published', 'own arithmetic', 'measured [interval]']
    """
    require_columns(rows, ["statement", "published", "arithmetic", "unit", "n_blocks", *_NUMBERS])
    shown = {
        "claim": rows["statement"],
        "published": rows["published"],
        "own arithmetic": rows["arithmetic"],
        "measured [interval]": [_measured(row) for row in rows.to_dict("records")],
        "blocks": ["" if pd.isna(number) else str(number) for number in rows["n_blocks"]],
        **{name: rows[name] for name in ("setting", "result", "why")},
    }
    return pd.DataFrame(shown).set_axis(range(1, len(rows) + 1))


def _measured(row: Mapping[Any, Any]) -> str:
    """Return an estimate with its interval and unit; empty where there is none."""
    text = interval_text(row["estimate"], row["low"], row["high"], row["unit"])
    return f"{text}, no interval" if text and "[" not in text else text


def format_ranking(table: pd.DataFrame, within: Sequence[str], sign: str = "<") -> pd.Series[str]:
    """Return the order of each cell of a `ranking`, such as ``a < b ~ c``.

    Parameters
    ----------
    table : DataFrame
        What `ranking` returned.
    within : sequence of str
        As it was asked for.
    sign : str
        Between neighbours that differ; ``~`` stands between those that were not told apart, or
        that differ by no more than the margin.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> table = analysis.ranking(trials, "placement", ["wait"], value="rtt_ns_median")
    >>> analysis.format_ranking(table, ["wait"]).iloc[0]
    'bare clean < bare rules ~ docker host ~ bare cgroup ~ bare chroot < docker bridge'
    """
    orders: dict[Any, str] = {}
    for row in table[table["steps"] == 1].to_dict("records"):
        cell = tuple(str(row[name]) for name in within)
        mark = sign if row["verdict"] == "different" else "~"
        orders[cell] = f"{orders.get(cell, row['earlier'])} {mark} {row['later']}"
    names = pd.MultiIndex.from_tuples(list(orders), names=list(within)) if orders else None
    return pd.Series(list(orders.values()), index=names, dtype="object")


def headline(
    row: Mapping[str, Any] | pd.Series[Any], text: str, metric: str = ""
) -> dict[str, Any]:
    """Return a row of `compare` as a headline.

    It has ``text, verdict, estimate, low, high``, with the interval that the verdict rests on, and
    ``unit`` (``1``: a ratio). By the ``metric``, the column that was compared, it is slower and
    faster, or more and less.

    Examples
    --------
    >>> from labkit import analysis, compare, load
    >>> trials = load("data/reference/affinity-spinning").ok
    >>> trials = trials.query("affinity == 'split' and wait == 'spin' and capture == 'off'")
    >>> names = {"condition": "placement", "baseline": "docker host"}
    >>> table = compare(trials, value="rtt_ns_median", **names).set_index("condition")
    >>> row = table.loc["docker bridge"]
    >>> analysis.headline(row, "a bridge")["verdict"]
    'different'
    """
    low, high, _ = interval_columns(row["verdict"])
    columns = {"estimate": "estimate", "low": low, "high": high}
    numbers = {name: json_value(row[column]) for name, column in columns.items()}
    pilot = str(row["note"]).startswith("pilot")
    verdict = f"{row['verdict']} (pilot)" if pilot else str(row["verdict"])
    return {"text": text, "verdict": verdict, **numbers, "unit": "1", "metric": metric}


def json_value(value: Any) -> Any:
    """Return a value as JSON data; NaN, infinite and missing numbers become None.

    Numbers are rounded to 10 digits: what comes after depends on the processor, whose libraries add
    up in another order, and the same data are to give the same pages on every machine.

    Examples
    --------
    >>> from labkit import analysis
    >>> analysis.json_value({"ratio": float("nan"), "blocks": (5, 10)})
    {'ratio': None, 'blocks': [5, 10]}
    """
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return float(f"{value:.10g}") if isinstance(value, float) else value
