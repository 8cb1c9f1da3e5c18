"""The documentation's page about simulated error rates, from what `simulate.py --record` kept."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "simulation.csv"
PAGE = ROOT / "docs" / "simulation.md"

#: Title of each section, in the order of the page, and what it is about.
SECTIONS: dict[str, tuple[str, str]] = {
    "A/A": (
        "Equal conditions",
        "Two equal conditions are compared, in 10 blocks. The rate is that of a false difference.",
    ),
    "power": (
        "Differences that are there",
        "The rate is that of the verdict that the name ends with. The last row is equivalence at "
        "the edge of the margin, where it is wrong.",
    ),
    "plan": (
        "Planned numbers of blocks",
        "A pilot says how many blocks show equality within a margin. The rate is how often a "
        "campaign of so many blocks then decides.",
    ),
    "coverage": (
        "Intervals of 95 %",
        "The rate is how often an interval holds the truth. Its width is relative to the truth.",
    ),
    "wandering": (
        "Serial correlation",
        "The log ratio is a series over the blocks in which neighbours are alike: AR is the "
        "correlation of a block with the next one, 0 of independent blocks. The truth is a ratio "
        "of 1. Where the check finds it, a note says so and the interval is wider.",
    ),
    "shape": (
        "Skew, outliers and failed trials",
        "One condition has exponential noise, a tenth of slow trials, one outlying block, or slow "
        "trials that fail.",
    ),
    "modes": (
        "Trials in two modes",
        "A fifth of the trials take twice as long. The rate is that of an interval of a quantile "
        "that misses the truth without a note.",
    ),
    "factorial": (
        "Factorial models",
        "A factor without an effect on average, whose effect differs from block to block by so "
        "many times the spread of a trial. The rate is that of a false effect.",
    ),
    "knee": (
        "Knees",
        "The rate is how often a knee is found. Only the curves called knee have one.",
    ),
    "rules": (
        "Rules of verdicts",
        "True values lie exactly at the limit, where a rule errs most.",
    ),
    "looks": (
        "Campaigns with looks, and campaigns that are repeated",
        "Looks after 5, 10, 20, 40 and 80 blocks, and campaigns of 10 blocks that are run again "
        "until they succeed, five times at most. The spread of the log ratio between blocks is "
        "10 %. Rates without a nominal one are those of true results, and of reruns of which the "
        "last counts alone, as nothing here does. `blocks` is the mean number.",
    ),
    "flags": (
        "Changes inside a trial",
        "The rate is how often a trial of so many samples is not called steady. The first rows "
        "are steady, the others begin slower.",
    ),
    "functions": (
        "Every function over blocks",
        "One draw goes to every function that gives an interval over blocks. Below 10 blocks each "
        "result says that nothing was checked, and below 25 blocks that the checks do not find "
        "everything; with 25 blocks a note is only given where something is found.",
    ),
    "ledger": (
        "The ledger",
        "Claims of one source whose truth lies exactly at the bound. The rate is that of any "
        "wrong verdict among them.",
    ),
}


def record(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Keep the rates of these rows in place of older ones, and return all that are kept.

    `names` are those of all rows that there are, in their order; others are dropped.
    """
    columns = list(table.columns)
    if KEPT.exists():
        kept = pd.read_csv(KEPT)
        table = pd.concat([kept[~kept["name"].isin(table["name"])], table])
    table = table.set_index("name")
    table = table.loc[[name for name in names if name in table.index]].reset_index()[columns]
    table.to_csv(KEPT, index=False, float_format="%.6g", lineterminator="\n")
    return pd.read_csv(KEPT)


def page(table: pd.DataFrame, tables_of: Callable[[pd.DataFrame], Iterable[str]]) -> str:
    """Return the page; `tables_of` returns the lines of a section's tables."""
    broken = int((~table["holds"]).sum())
    state = "all within their bounds" if not broken else f"{broken} outside of their bounds"
    parts = [_INTRODUCTION.format(rows=len(table), state=state), *_reached(table), *_out(table)]
    for section, (title, about) in SECTIONS.items():
        rows = table[table["section"] == section]
        if len(rows):
            parts += [f"\n## {title}\n\n{textwrap.fill(about, 100)}", *tables_of(rows)]
    return "\n".join(line.rstrip() for line in "\n".join(parts).splitlines()) + "\n"


_INTRODUCTION = """\
# Simulated error rates

`make simulate` draws experiments whose truth is known, 100 to 1,000 for each rate, gives them to
the functions that pages and the ledger call, and counts how often these are wrong. It exits with 1
where a rate leaves its bounds. It takes about an hour on two free cores, and
`make simulate ARGS=--quick` a tenth of that. This page is what it found: {rows} rates,
{state}. It is written by `make simulate ARGS=--record`.

How to read the tables: `n` experiments gave the rate, which is followed by its standard error.
*Nominal* is the rate that the method promises. A rate is within its bounds if it is at most three
standard errors worse than nominal. Intervals of 95 % may hold the truth in 93 % to 97.5 % of the
experiments, and planned numbers of blocks may decide in 78 % to 86 %, with three standard errors on
either side.
Where the nominal rate is out of reach, the remark says what a page shows instead."""


def _reached(table: pd.DataFrame) -> Iterator[str]:
    """Yield the table of nominal rates beside the ones that were reached, a section a row."""
    yield "\n## What is promised and what is reached\n"
    yield "Without the rates that are out of reach, which follow below.\n"
    yield "| | what is counted | nominal | reached | rates |\n| --- | --- | --- | --- | --- |"
    for section, (title, _) in SECTIONS.items():
        rows = table[(table["section"] == section) & (table["reach"] == "")]
        for nominal, part in rows.dropna(subset="nominal").groupby("nominal"):
            counted = {"coverage": "truth held", "plan": "decided", "flags": "alarm"}
            what = counted.get(section, "wrong" if nominal <= 0.05 else "truth held")
            if section == "functions":
                what = "wrong without a note"
            yield (
                f"| {title} | {what} | {nominal:.1%} | {part['rate'].min():.1%} to "
                f"{part['rate'].max():.1%} | {len(part)} |"
            )


def _out(table: pd.DataFrame) -> Iterator[str]:
    """Yield the table of what is out of reach and what a page shows then."""
    rows = table[(table["reach"] != "") & (table["section"] != "functions")]
    yield "\n## What is out of reach, and what a page then shows\n"
    yield "| experiment | nominal | rate | what a page shows |\n| --- | --- | --- | --- |"
    for row in rows.itertuples():
        yield f"| {row.name} | {row.nominal:.0%} | {row.rate:.1%} | {row.reach} |"
    yield (
        "\nThe rates of *Every function over blocks* that are out of reach are in the tables of "
        "that section.\nThe largest: where the slow trials of a condition fail, intervals describe "
        "the trials that succeeded,\nand most miss the ratio of all trials.\n"
        "Pages say how many trials failed."
    )
