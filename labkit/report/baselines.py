"""The ladder of baselines, measured: what each rung costs over the one below it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from labkit.analysis.checks import spanning
from labkit.analysis.compare import compare
from labkit.analysis.forest import interval_plot
from labkit.analysis.headlines import headline
from labkit.analysis.reduce import sort_trials
from labkit.analysis.rungs import steps
from labkit.analysis.summary import summarise
from labkit.dataset import Dataset

#: What a round trip is called among the samples.
VALUE = "rtt_ns"
#: The rungs from the lowest up, each with what it has that the one below has not.
LADDER = {
    "bare clean": "a process on a host without an engine",
    "bare rules": "the firewall rules of the engine, which runs on the same host",
    "bare chroot": "the image's own root file system (a chroot)",
    "bare cgroup": "a control group like the container's: its nearest twin",
    "docker host": "the container itself: namespaces, seccomp, capabilities; the host's network",
    "docker bridge": "a network of its own: a veth pair to a bridge",
}
#: Fewer rungs than this are no ladder.
_LEAST = 3
#: So many of the equally full ladders of a campaign are shown.
_FEW = 2


@dataclass(frozen=True)
class Ladder:
    """One ladder: everything else is equal on its rungs.

    Attributes
    ----------
    within : dict
        The levels of the other factors.
    rungs : DataFrame
        What `labkit.analysis.rungs.steps` returns, in µs; ``lowest, lowest_low, lowest_high`` are
        the ratio to the lowest rung.
    margin : float
        The plan's.
    """

    within: dict[str, Any]
    rungs: pd.DataFrame
    margin: float

    @property
    def query(self) -> str:
        """What picks the ladder's rows from `Dataset.ok`, as `DataFrame.query` takes it."""
        levels = {**self.within, "placement": self.rungs["condition"].to_list()}
        return " and ".join(f"{name} == {level!r}" for name, level in levels.items())

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rungs as a page shows them, None for what is missing."""
        table = self.rungs.astype(object).where(self.rungs.notna(), None)
        found = []
        for row in table.to_dict("records"):
            named = {str(name): value for name, value in row.items()}
            verdict = headline(named, "")["verdict"] if named["below"] else None
            found.append({**named, "adds": LADDER[named["condition"]], "verdict": verdict})
        return found

    def figure(self) -> Figure:
        """Return each rung's ratio to the one below, with intervals and verdicts."""
        table = self.rungs[self.rungs["below"].notna()]
        table = table.assign(step=table["condition"] + " / " + table["below"])
        return interval_plot(table, margin=self.margin, label="step", baseline="the rung below")


def found_in(campaign: Dataset) -> list[Ladder]:
    """Return the fullest ladders of a campaign, at most two; none where it measured none.

    Parameters
    ----------
    campaign : Dataset
        Any; one without placements, or without round trips, has no ladder.
    """
    factors = dict(campaign.plan["factors"])
    placements = set(map(str, factors.pop("placement", [])))
    known = [name for name in LADDER if name in placements]
    if len(known) < _LEAST or not any(VALUE in names for names in campaign.sampled.values()):
        return []
    trials, margin = _trials(campaign), float(campaign.plan.get("margin", 0.02))
    found = []
    for levels in itertools.product(*factors.values()):
        within = dict(zip(factors, levels, strict=True))
        part = trials[
            (trials[list(within)].astype("str") == pd.Series(within).astype("str")).all(axis=1)
        ]
        there = [name for name in known if name in set(part["placement"])]
        if len(there) >= _LEAST:
            found.append(Ladder(within, _rungs(part, there, margin), margin))
    most = max((len(one.rungs) for one in found), default=0)
    return [one for one in found if len(one.rungs) == most][:_FEW]


def _trials(campaign: Dataset) -> pd.DataFrame:
    """Return a row a trial with its median round trip in µs; none of blocks that span sessions."""
    ordered = sort_trials(campaign.series([VALUE]), value=VALUE)
    medians = summarise(ordered, by=["trial"], value=VALUE, statistics=["median"])
    trials = campaign.ok.merge(medians.astype({"trial": "str"})[["trial", "median"]], on="trial")
    trials["median"] /= 1000
    return trials[~trials["block"].isin(spanning(trials))]


def _rungs(trials: pd.DataFrame, rungs: Sequence[str], margin: float) -> pd.DataFrame:
    options: dict[str, Any] = {"value": "median", "condition": "placement", "margin": margin}
    trials = trials[trials["placement"].isin(rungs)]
    found = steps(trials, rungs=rungs, **options)
    lowest = compare(trials, baseline=rungs[0], block="block", **options)
    ends = {name: f"lowest_{name}" for name in ("low", "high")} | {"estimate": "lowest"}
    lowest = lowest[["condition", *ends]].rename(columns=ends)
    return found.merge(lowest, on="condition", how="left")
