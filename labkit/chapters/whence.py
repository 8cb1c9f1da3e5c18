"""What a page's outputs were made of, noted beside each of them as the notebook displays it.

It goes into an output's metadata, which a notebook shows nowhere: the report makes of it what
stands under each cell's tables and figures (`labkit.report.origin`).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import IPython.display
import pandas as pd
from IPython import get_ipython as untyped
from matplotlib.figure import Figure

from labkit.analysis.described import Figure as Described
from labkit.analysis.origin import NAME, Origin, origin_of
from labkit.analysis.summary import STATISTICS
from labkit.dataset import Dataset
from labkit.dataset.selecting import query_for
from labkit.report.origin import metadata
from labkit.report.repeating import command

if TYPE_CHECKING:
    from labkit.chapters.page import Page

#: Functions without types.
running: Any = untyped
markdown: Any = IPython.display.Markdown
#: What a row is found by, beside the factors.
_KEYS = (NAME, "block", "copy")
#: What is known of every attempt; all other columns were measured.
_RECORD = ("attempt", "position", "status", "session", "started_ns", "flags", "problems")


class Whence:
    """Notes what is displayed of one campaign; a notebook's pages of it share one.

    Parameters
    ----------
    data : str
        The campaign, as it is loaded.
    campaign : Dataset
        All of it, whatever part of it a page reads.
    """

    def __init__(self, data: str, campaign: Dataset) -> None:
        self.data, self.plan, self.measured = data, campaign.plan, campaign.ok
        there = (campaign.path / "trials.csv").is_file()
        self.file = "trials.csv" if there else "trials/*/trial.json"
        self.command = command(campaign.plan)
        self.pages: dict[str, pd.DataFrame] = {}
        self.samples: dict[str, str] = {}
        self.noted: dict[str, None] = {}
        self.used: set[str] = set()

    def add(self, page: Page, within: Mapping[str, Any]) -> None:
        """Take a page's trials for what was used where nothing closer is known."""
        self.pages[f"{page.value} {sorted(within.items())}"] = page.trials
        self.usual = page.summary
        self.noted[page.summary] = None
        if page.samples is not None:
            self.samples |= dict.fromkeys(STATISTICS, page.value) | {"n": page.value}
            self.samples |= {name: name for name in page._columns}

    def bundle(self, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return no further form of what is displayed, and where it is from as metadata.

        What a figure says of itself (`labkit.analysis.described`) stays beside it: IPython asks
        this function instead of the figure.
        """
        _, own = value._repr_mimebundle_() if isinstance(value, Described) else ({}, {})
        return {}, own | self._noted(value)

    def _noted(self, value: Any) -> dict[str, Any]:
        origin = origin_of(value) or Origin()
        if origin.stated:
            return metadata({"stated": origin.stated, "dataset": self.data})
        if isinstance(value, markdown) and not any(map(str.isdigit, str(value.data))):
            return {}
        return metadata(self.describe(origin, value))

    def describe(self, origin: Origin, value: Any = None) -> dict[str, Any]:
        """Return which rows and columns something was made of, and how to get and repeat them."""
        every = {str(one) for table in self.pages.values() for one in table[NAME]}
        trials = (origin.trials & every) or every
        self.used |= trials
        columns = self._columns(origin, value)
        self.noted |= dict.fromkeys(columns)
        factors = list(self.plan["factors"])
        raw = [name for name in columns if name in self.measured]
        sampled = dict.fromkeys(self.samples[one] for one in columns if one in self.samples)
        return {
            "dataset": self.data,
            "file": self.file,
            "trials": sorted(trials),
            "of": len(self.measured),
            "query": query_for(self.measured, trials, factors) if len(self.measured) else "",
            "keys": [*_KEYS[:2], *factors],
            "columns": raw,
            "samples": list(sampled),
            "published": _published(value),
            "command": self.command,
        }

    def _columns(self, origin: Origin, value: Any) -> list[str]:
        """Return the measured columns: as asked for, as shown, as the code names them, or usual."""
        known = {*self.measured.columns, *self.samples} - {*_KEYS, *_RECORD, *self.plan["factors"]}
        for names in (origin.columns, _in_code(), _labels(value)):
            if found := [name for name in dict.fromkeys(names) if name in known]:
                return found
        return [self.usual]

    def rows(self) -> dict[str, Any]:
        """Return the trials that were used on the pages, with every column that was noted."""
        factors = list(self.plan["factors"])
        table = self.measured[self.measured[NAME].astype(str).isin(self.used)]
        shown = table[[*_KEYS, *factors]]
        for trials in self.pages.values():
            statistics = [one for one in self.noted if one in STATISTICS and one in trials]
            named = {one: f"{one} of {self.samples.get(one, '')}" for one in statistics}
            fresh = [one for one in statistics if named[one] not in shown]
            reduced = pd.DataFrame(trials[[NAME, *fresh]]).rename(columns=named)
            shown = shown.merge(reduced, on=NAME, how="left") if fresh else shown
        counted = table[[NAME, *(one for one in self.noted if one in table)]]
        shown = shown.merge(counted, on=NAME, how="left")
        texts = [[_text(one) for one in row] for row in shown.itertuples(index=False)]
        return {"columns": list(shown.columns), "factors": factors, "rows": texts}


_KNOWN: dict[str, Whence] = {}


def listen(page: Page, campaign: Dataset, within: Mapping[str, Any]) -> None:
    """Have IPython note, with whatever is displayed from now on, what it was made of."""
    shell = running()
    if shell is None:
        return
    path = Path(page.data)
    data = path.name if path.is_absolute() else page.data
    whence = _KNOWN.get(page.data)
    # In a session a campaign may have grown since its notebook's cells were last run.
    if whence is None or len(whence.measured) != len(campaign.ok):
        whence = _KNOWN[page.data] = Whence(data, campaign)
    whence.add(page, within)
    formatter = shell.display_formatter.mimebundle_formatter
    for kind in (pd.DataFrame, pd.Series, Figure, markdown):
        formatter.for_type(kind, whence.bundle)


def concluded(page: Page, found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metadata of a page's last output: the rows of all trials that were used.

    And of each headline in `found` that knows its trials, how many they are and how to get them.
    """
    whence = _KNOWN.get(page.data)
    if whence is None or not len(whence.measured):
        return {}
    headlines = []
    for line in found:
        origin = getattr(line, "origin", None)
        if origin is not None and origin.trials:
            of = whence.describe(origin)
            headlines.append([line["text"], len(of["trials"]), of["query"]])
    whole = whence.describe(Origin())
    return metadata({**whole, "headlines": headlines, "rows": whence.rows()})


def _labels(value: Any) -> list[str]:
    """Return every label of a table's columns and rows."""
    if isinstance(value, pd.Series):
        value = value.to_frame()
    if not isinstance(value, pd.DataFrame):
        return []
    labels = [*value.columns, *value.index]
    return [str(part) for one in labels for part in (one if isinstance(one, tuple) else (one,))]


def _in_code() -> list[str]:
    """Return the texts in the code of the cell that runs, and those behind its names."""
    space: dict[str, Any] = running().user_ns
    try:
        nodes = list(ast.walk(ast.parse(space.get("In", [""])[-1])))
    except SyntaxError:  # a magic of IPython
        return []
    values: list[Any] = [node.value for node in nodes if isinstance(node, ast.Constant)]
    values += [space.get(node.id) for node in nodes if isinstance(node, ast.Name)]
    lists = [one for one in values if isinstance(one, list | tuple | dict)]
    every = [*values, *(part for one in lists for part in one)]
    return [one for one in every if isinstance(one, str)]


def _published(value: Any) -> list[str]:
    """Return the keys of published tables, where a table has columns or rows of a paper."""
    if not any("paper" in label for label in _labels(value)):
        return []
    frames = [one for one in running().user_ns.values() if isinstance(one, pd.DataFrame)]
    schemas = [one.attrs.get("schema") or {} for one in frames]
    return sorted({str(one["name"]) for one in schemas if "name" in one})


def _text(value: Any) -> str:
    """Return a cell of the table of rows; the file has all digits."""
    if isinstance(value, float):
        digits = ".0f" if 1e5 <= abs(value) < math.inf else ".6g"
        return "" if math.isnan(value) else f"{value:{digits}}"
    return str(value)
