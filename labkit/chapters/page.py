"""A campaign, loaded and prepared for the tables and figures of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import dataset
from labkit.analysis import checks
from labkit.analysis.compare import PILOT_BLOCKS
from labkit.analysis.origin import track
from labkit.analysis.reduce import sort_trials
from labkit.analysis.summary import STATISTICS, joint, summarise
from labkit.chapters import concluding, ran, validity, whence
from labkit.paths import project

#: Numeric columns of trials that name or describe a trial; every other number was measured.
_KEYS = ("trial", "attempt", "block", "position", "copy", "session", "started_ns", "n", "n_samples")


class Page:
    """One campaign as an analysis notebook reads it, and the chapters that all of them share.

    Parameters
    ----------
    data : str or Path
        A campaign, or the folder of a study, whose newest campaign is read; from the project's
        folder when relative.
    factors : sequence of str, optional
        Factors that name a condition, in the order of tables; the plan's by default.
    value : str
        What the study is about: a column of samples (``rtt_ns``), or a metric that each trial has
        one number of.
    margin : float, optional
        Relative difference up to which two conditions count as equal; the plan's by default.
    columns : sequence of str, optional
        Columns of samples that `series` has beside `value`.
    within : mapping, optional
        Only conditions with these levels (one level, or a list); a factor that the plan does not
        have leaves all of them.

    Attributes
    ----------
    campaign : Dataset
        The campaign; ``plan`` and ``rig`` are its own.
    attempts : DataFrame
        Every attempt, failed ones too.
    trials : DataFrame
        One row a successful trial: ``trial, block``, the factors in the order of the plan,
        ``copy``; of a sample column ``n`` and the statistics of `labkit.analysis.summary`; every
        metric and counter.
    paired : DataFrame
        `trials`, with NaN for what was measured in blocks that span sessions.
    samples : DataFrame or None
        The samples of each trial, sorted once for all tables and figures; None without samples.
    summary : str
        The column of `trials` that stands for a trial: ``median``, or `value` itself.
    margin, planned_margin : float
        The margin of this page, and the plan's.
    n_blocks, failed : int
        Blocks with a successful trial; attempts that failed.
    pilot : bool
        Whether there are fewer than 5 blocks.
    spanned : list
        Blocks that span sessions.
    """

    def __init__(
        self,
        data: str | Path,
        factors: Sequence[str] | None = None,
        value: str = "rtt_ns",
        margin: float | None = None,
        columns: Sequence[str] | None = None,
        within: Mapping[str, Any] | None = None,
    ) -> None:
        self.data = str(data)
        whole = dataset.load(project(data))
        self.campaign = _part(whole, within or {})
        self.plan, self.rig = self.campaign.plan, self.campaign.rig
        self.factors = list(self.plan["factors"] if factors is None else factors)
        self.value, self._columns = value, [value, *(columns or [])]
        self.attempts = self._attempts()
        self.planned_margin = float(self.plan.get("margin", 0.02))
        self.margin = self.planned_margin if margin is None else float(margin)
        self._joined: dict[str, list[str]] = {}
        self.samples = self._sorted()
        self.summary = value if self.samples is None else "median"
        self.trials = track(self._trials())
        self.failed = sum(one["status"] != "ok" for one in self.campaign.records)
        self.n_blocks = int(self.trials["block"].nunique())
        self.pilot = self.n_blocks < PILOT_BLOCKS
        self.spanned = checks.spanning(self.trials) if len(self.trials) else []
        self.paired = self._paired()
        #: What the chapters found so far, for the conclusions.
        self.floors: list[pd.DataFrame] = []
        self.margins: dict[str, float] = {}
        self.entries: pd.DataFrame | None = None
        self.shown: set[str] = set()
        whence.listen(self, whole, within or {})

    @cached_property
    def series(self) -> pd.DataFrame:
        """The samples of each trial in the order in which they were taken, a row a trial.

        Read when it is asked for; the chapters let go of it, as it is as large as `samples`.
        """
        found = self._ordered(self.campaign.series(self._columns))
        return track(found.assign(**{name: joint(found, of) for name, of in self._joined.items()}))

    def _sorted(self) -> pd.DataFrame | None:
        measured = [one for one in self.campaign.records if one["status"] == "ok"]
        if not any(one["n_samples"] for one in measured) or self.value in self.attempts.columns:
            return None
        found = track(sort_trials(self.series, value=self.value))
        self.__dict__.pop("series")
        return found

    def _ordered(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table whose factors have the levels of the plan, in its order."""
        for name in self.factors:
            known = list(self.plan["factors"].get(name, []))
            there = table[name] if name in table else pd.Series(dtype=object)
            known += [level for level in pd.unique(there.dropna()) if level not in known]
            table[name] = pd.Categorical(there, known)
        return table

    def _attempts(self) -> pd.DataFrame:
        """Return every attempt; of a campaign without any, the columns that are asked for."""
        names = [*_KEYS, *self.factors, "status", "flags", "problems"]
        there = self.campaign.trials
        return there if len(there) else pd.DataFrame(columns=names, dtype=object)

    def _trials(self) -> pd.DataFrame:
        ok = self.attempts[self.attempts["status"] == "ok"].reset_index(drop=True)
        ok = self._ordered(ok)
        if self.samples is None:
            return ok if self.value in ok else ok.assign(**{self.value: math.nan})
        each = summarise(self.samples, by=["trial"], value=self.value).astype({"trial": "str"})
        found = each[["trial", "n", *STATISTICS, "note"]]
        return ok.merge(found, on="trial", how="left", validate="one_to_one")

    def _paired(self) -> pd.DataFrame:
        paired = self.trials.copy()
        numbers = paired.select_dtypes("number").columns.difference([*_KEYS, *self.factors])
        paired[list(numbers)] = paired[list(numbers)].mask(
            paired["block"].isin(self.spanned), math.nan
        )
        return paired

    def join(self, name: str, factors: Sequence[str]) -> None:
        """Add several factors as one column, such as ``free + block``, to every table."""
        self._joined[name] = list(factors)
        for table in (self.trials, self.paired, self.samples, self.__dict__.get("series")):
            if table is not None and len(table):
                table[name] = joint(table, factors)

    def part(self, table: pd.DataFrame, within: Mapping[str, Any] | None) -> pd.DataFrame:
        """Return the rows of a table that have the levels of `within` (one level, or a list)."""
        for name, level in (within or {}).items():
            levels = level if isinstance(level, list | tuple | set) else [level]
            table = table[table[name].astype("str").isin([str(one) for one in levels])]
        return table

    def what_was_run(self, by: Sequence[str] | None = None) -> None:
        """Show counts, settings, trials of each condition, the margin and what was refused.

        Parameters
        ----------
        by : sequence of str, optional
            Columns of the table of trials, the last one across; the factors by default.
        """
        ran.what_was_run(self, list(by or self.factors))

    def the_rig(self) -> None:
        """Show the rig's caveats, what it lacks, its CPUs and its hosts."""
        ran.the_rig(self)

    def validity(
        self,
        value: str | None = None,
        within: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> None:
        """Show sessions, noise floor, drift, dependence, odd trials and flags.

        For a study whose conditions have different metrics it is asked once a metric; sessions and
        flags, which are everybody's, are shown the first time.

        Parameters
        ----------
        value : str, optional
            Column of `trials`; `summary` by default.
        within : mapping, optional
            Only trials with these levels: ``{"service": "linpack"}``; a list names several levels.
        by : str, optional
            Column (a factor or one that `join` made) whose groups may differ in noise.
        """
        validity.validity(self, value or self.summary, within, by)
        self.__dict__.pop("series", None)

    def block_plot(
        self,
        value: str | None = None,
        within: Mapping[str, Any] | None = None,
        *,
        hue: str | None = None,
        col: str | None = None,
        unit: str | None = None,
    ) -> None:
        """Draw every trial over the blocks, odd ones ringed.

        Parameters
        ----------
        value, within
            As in `validity`.
        hue, col : str, optional
            Columns for markers and panels; the first factor, and no panels, by default.
        unit : str, optional
            Unit of `value` as stored; by default what `value` of the page or its name says.
        """
        validity.block_plot(self, value or self.summary, within, hue or self.factors[0], col, unit)

    def claims(self, source: str, study: str | None = None) -> pd.DataFrame:
        """Show the claims of a paper beside what was measured; return their rows of the ledger.

        Parameters
        ----------
        source : str
            Name of the paper in ``data/claims.toml``.
        study : str, optional
            The claims' study; the campaign's by default.
        """
        return concluding.claims(self, source, study or str(self.plan["study"]))

    def conclusions(self, found: Sequence[Mapping[str, Any]], *, title: str) -> None:
        """List headlines and what became of the claims, and hand both to the report's index.

        Parameters
        ----------
        found : sequence of mapping
            Headlines (`labkit.analysis.headlines.headline`) in the order of the questions.
        title : str
            The study, as the index names it.
        """
        concluding.conclusions(self, list(found), title)


def _part(campaign: dataset.Dataset, within: Mapping[str, Any]) -> dataset.Dataset:
    """Return the part of a campaign whose conditions have some levels."""
    wanted = {
        name: set(map(str, level)) if isinstance(level, list | tuple | set) else {str(level)}
        for name, level in within.items()
        if name in campaign.plan["factors"]
    }
    if not wanted:
        return campaign

    def there(one: Mapping[str, Any]) -> bool:
        return all(str(one["levels"][name]) in levels for name, levels in wanted.items())

    plan = campaign.plan | {"conditions": list(filter(there, campaign.plan["conditions"]))}
    part = campaign.part(there)
    part.__dict__["plan"] = plan
    return part
