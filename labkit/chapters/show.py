"""How a page shows a sentence, a comparison and its headline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from IPython import display as untyped

from labkit.analysis.headlines import headline
from labkit.analysis.origin import Origin, origin_of, stated
from labkit.analysis.readable import absent, blank, readable
from labkit.analysis.summary import mechanisms
from labkit.report.text import number

#: Functions without types, looked up when they are called.
notebook: Any = untyped


class Headline(dict[str, Any]):
    """A headline that knows what the comparison was made of from which it was taken."""

    def __init__(self, line: Mapping[str, Any], origin: Origin | None) -> None:
        super().__init__(line)
        self.origin = origin


def say(text: str) -> None:
    """Display a text in Markdown."""
    notebook.display(notebook.Markdown(text))


def put(table: Any, instead: str = "", *, source: str = "") -> None:
    """Display a table or a figure; the text instead of a table without rows.

    `source` says where a table is from that was not made of trials.
    """
    if instead and not len(table):
        say(instead)
    else:
        notebook.display(stated(table, source) if source else table)


def show(table: pd.DataFrame, *, scale: float = 1e-3, unit: str = "µs") -> None:
    """Display a comparison: what was measured as a table, what was not in words.

    Parameters
    ----------
    table : DataFrame
        What `compare`, `factor_effect` or `shift` returns.
    scale, unit : float, str
        From the stored unit of the differences to the one shown; nanoseconds to microseconds.
    """
    put(readable(measured(table), scale=scale, unit=unit))
    if absent(table):
        say(absent(table))


def measured(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a comparison that were measured, or all of them where none was."""
    there = table["n_blocks"] > 0
    return table[there] if there.any() else table


def headlines_of(table: pd.DataFrame, text: str, **levels: Any) -> list[dict[str, Any]]:
    """Return the headline of one row of a comparison, or none where it was not measured.

    Parameters
    ----------
    table : DataFrame
        What `compare` or `factor_effect` returns.
    text : str
        What the row is about, in words.
    **levels
        Column and level of the row, such as ``contrast="docker host / bare clean"``.
    """
    rows = table[table["n_blocks"] > 0]
    for name, level in levels.items():
        rows = rows[rows[name].astype("str") == str(level)]
    return [Headline(headline(row, text), origin_of(table)) for _, row in rows.head(1).iterrows()]


def told(line: Mapping[str, Any]) -> str:
    """Return a headline as a line of a list: text, number with interval, verdict."""
    known = line.get("estimate") is not None
    found = f" {_number(line['estimate'], line)} {line['unit']}" if known else ""
    if known and line.get("low") is not None and line.get("high") is not None:
        found += f" [{_number(line['low'], line)}, {_number(line['high'], line)}]"
    return f"- {line['text']}:{found} **{line['verdict']}**"


def _number(value: float, line: Mapping[str, Any]) -> str:
    """Return a ratio with three decimals, another number as the report's index writes it."""
    return f"{value:.3f}" if line["unit"] == "times" else number(value)


def beside(
    trials: pd.DataFrame, *, by: Sequence[str], columns: Sequence[str], digits: int = 3
) -> None:
    """Display the counters of the trials of each condition, averaged over trials.

    Parameters
    ----------
    trials : DataFrame
        `Page.trials`, or part of it.
    by, columns : sequence of str
        Factors, and counters; one that this rig does not have is said in words.
    digits : int
        Decimals.
    """
    there = [name for name in columns if name in trials and trials[name].notna().any()]
    if there and len(trials):
        table = mechanisms(trials, by=by, columns=there)
        put(blank(table.set_index(list(by)), digits))
    if lacking := [f"`{name}`" for name in columns if name not in there]:
        say(f"Not recorded here: {', '.join(lacking)}.")
