"""The ledger: every claim beside what was published, what was measured, and a result.

Two questions are asked of every claim: is it shown to hold, and is it shown to fail. Each has
p-values of its own, corrected by Holm (1979) over those claims of a source that were measured on a
suitable rig in enough blocks. The setting, what the claim asks of a rig against what the rig has,
is kept apart from the result and goes before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.blockwise import joined
from labkit.analysis.intervals import holm
from labkit.analysis.origin import Origin
from labkit.claims.kinds import evaluate
from labkit.claims.measured import Measured, NotMeasured
from labkit.claims.parts import Evaluation
from labkit.claims.reading import Claim, Claims, load_claims
from labkit.claims.settings import setting
from labkit.claims.stated import Stated, published_value
from labkit.claims.verdicts import blocks_needed, decide, fewest
from labkit.dataset import Dataset, load
from labkit.errors import UsageError
from labkit.paths import ROOT

COLUMNS = (
    *("id", "source", "place", "statement", "study", "kind", "metric", "statistic"),
    *("published", "published_value", "arithmetic", "arithmetic_detail"),
    *("estimate", "low", "high", "unit", "n_blocks", "blocks_needed"),
    *("p_replicates", "p_contradicts", "p_replicates_adjusted", "p_contradicts_adjusted"),
    *("setting", "setting_why", "result", "why", "dataset", "rig"),
)
_NUMBERS = (
    *("published_value", "estimate", "low", "high"),
    *("p_replicates", "p_contradicts", "p_replicates_adjusted", "p_contradicts_adjusted"),
)
Source = Dataset | Path | str
#: Where `attrs` of a ledger has the trials of each claim.
_TRIALS = "labkit_trials"


def ledger(
    datasets: Source | Sequence[Source] = (),
    *,
    claims: Claims | Path | str | None = None,
    alpha: float = 0.05,
    root: Path | str | None = None,
) -> pd.DataFrame:
    """Hold every claim against what was measured.

    Parameters
    ----------
    datasets : Dataset or path, or a sequence of them
        A campaign a study; of several of one study the last one counts, and its rows say so.
        Claims on other studies are not measured.
    claims : Claims or path, optional
        By default those of ``data/claims.toml``.
    alpha : float
        Level of each of the two corrected families of a source; intervals, which are not
        adjusted, have 1 - `alpha`.
    root : path, optional
        Folder of the published tables; by default ``data/published``.

    Returns
    -------
    DataFrame
        A row a claim, in the order of the file:

        - ``id, source, place, statement, study, kind, metric, statistic``;
        - ``published``, in words, and ``published_value``; ``arithmetic``: ``follows``, ``does not
          follow`` or ``nothing to recompute``, with both numbers in ``arithmetic_detail``;
        - ``estimate, low, high`` in ``unit`` (``1`` for a ratio), of the part that decides where a
          claim has several; ``n_blocks``, those that every part rests on; ``blocks_needed``, those
          that would decide if the estimates are what is true;
        - ``p_replicates``, ``p_contradicts`` (see `labkit.claims.parts`), and both adjusted
          where something can be decided;
        - ``setting`` (``same``, ``analogue``, ``unsuitable``; empty without a campaign) and
          ``setting_why``;
        - ``result``: ``replicated``, ``contradicted``, ``inconclusive`` (too few blocks are always
          that), ``not decidable on this rig``, ``not measured`` or ``error``; ``why``;
        - ``dataset``, ``rig``.

        What stops one claim is the ``error`` of its row, and no other row's.

    Raises
    ------
    UsageError
        For a campaign of a study without claims, or `alpha` out of range.
    DatasetError
        If the claims, what they refer to, or a campaign's plan cannot be read.
    """
    if not 0 < alpha < 0.5:
        raise UsageError(f"alpha={alpha!r} is not usable", remedy="0 < alpha < 0.5")
    known = claims if isinstance(claims, Claims) else load_claims(claims, root)
    given = [datasets] if isinstance(datasets, Dataset | Path | str) else datasets
    campaigns = _campaigns([one if isinstance(one, Dataset) else load(one) for one in given], known)
    entries = [_entry(claim, campaigns.get(claim.study)) for claim in known]
    rows: dict[str, dict[str, Any]] = {}
    for source in known.sources:
        family = [entry for entry in entries if entry.claim.source == source]
        for entry, decided in zip(family, _decided(family, alpha), strict=True):
            published = _published(entry.claim, known.stated)
            rows[entry.claim.id] = _described(entry, alpha) | published | decided
    table = pd.DataFrame([rows[claim.id] for claim in known], columns=list(COLUMNS))
    counts: dict[str, Any] = dict.fromkeys(("n_blocks", "blocks_needed"), "Int64")
    table = table.astype(counts | dict.fromkeys(_NUMBERS, float))
    table.attrs[_TRIALS] = {one.claim.id: _origin(one) for one in entries if one.found is not None}
    return table


def origin(rows: pd.DataFrame) -> Origin:
    """Return the trials that rows of `ledger` were held against, and the metrics."""
    every: Mapping[str, Origin] = rows.attrs.get(_TRIALS, {})
    found = [every[name] for name in rows["id"] if name in every]
    columns = dict.fromkeys(name for one in found for name in one.columns)
    return Origin(frozenset[str]().union(*(one.trials for one in found)), tuple(columns))


def _origin(entry: _Entry) -> Origin:
    used = entry.campaign.measured.used if entry.campaign else {}
    return Origin(frozenset(used.get(entry.claim.id, ())), (entry.claim.metric,))


@dataclass(frozen=True)
class _Campaign:
    """The campaign of a study, and which of several it is."""

    measured: Measured
    note: str


@dataclass(frozen=True)
class _Entry:
    """A claim with what was found: an evaluation, or why there is none."""

    claim: Claim
    campaign: _Campaign | None
    found: Evaluation | None = None
    absent: str = ""
    error: str = ""
    setting: tuple[str, str] = ("", "")


def _campaigns(datasets: Iterable[Dataset], claims: Claims) -> dict[str, _Campaign]:
    """Return the last campaign of each study."""
    grouped: dict[str, list[Dataset]] = {}
    for dataset in datasets:
        grouped.setdefault(str(dataset.plan["study"]), []).append(dataset)
    if unknown := [name for name in grouped if name not in claims.studies]:
        raise UsageError(
            f"no claim is about {', '.join(unknown)}", remedy=f"one of {', '.join(claims.studies)}"
        )
    return {
        name: _Campaign(
            Measured(
                several[-1], claims.studies[name], [one for one in claims if one.study == name]
            ),
            f"the last of {len(several)} campaigns given" if len(several) > 1 else "",
        )
        for name, several in grouped.items()
    }


def _entry(claim: Claim, campaign: _Campaign | None) -> _Entry:
    if campaign is None:
        return _Entry(claim, None, absent=f"no campaign of {claim.study}")
    try:
        dataset = campaign.measured.dataset
        try:
            found = evaluate(claim, campaign.measured)
        except NotMeasured as reason:
            where = setting(claim, dataset, None)
            return _Entry(claim, campaign, absent=str(reason), setting=where)
        return _Entry(claim, campaign, found, setting=setting(claim, dataset, found.samples))
    except Exception as error:  # whatever it is, it is this row's result, and the command fails
        return _Entry(claim, campaign, error=_said(error))


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _decided(family: Sequence[_Entry], alpha: float) -> list[dict[str, Any]]:
    """Return p-values, setting and result of the claims of one source."""
    decidable = [entry for entry in family if _decidable(entry, alpha)]
    adjusted = {
        name: holm(np.array([getattr(one.found, name) for one in decidable], dtype=np.float64))
        for name in ("p_replicates", "p_contradicts")
    }
    pairs = iter(zip(*(map(float, values) for values in adjusted.values()), strict=True))
    rows = []
    for entry in family:
        row: dict[str, Any] = {"setting": entry.setting[0], "setting_why": entry.setting[1]}
        if entry.found is None:
            result = "error" if entry.error else "not measured"
            why = entry.error or entry.absent
        else:
            pair = next(pairs) if _decidable(entry, alpha) else (math.nan, math.nan)
            row |= {name: getattr(entry.found, name) for name in adjusted}
            row |= {f"{name}_adjusted": p for name, p in zip(adjusted, pair, strict=True)}
            size, least = len(decidable), fewest(entry.claim, alpha)
            try:
                needed = blocks_needed(entry.found.parts, alpha / max(1, size), least)
                result, why = decide(
                    entry.claim, entry.found, pair, entry.setting, family=size, alpha=alpha
                )
                row["blocks_needed"] = needed
            except Exception as error:  # as in `_entry`
                result, why = "error", _said(error)
        note = entry.campaign.note if entry.campaign else ""
        rows.append(row | {"result": result, "why": joined(why, note)})
    return rows


def _decidable(entry: _Entry, alpha: float) -> bool:
    """Return whether a claim belongs to its source's family: whether anything is decided of it.

    Neither question depends on what came out: the rig and the number of blocks do not.
    """
    found = entry.found
    fit = found is not None and entry.setting[0] != "unsuitable"
    return fit and found is not None and found.n_blocks >= fewest(entry.claim, alpha)


def _described(entry: _Entry, alpha: float) -> dict[str, Any]:
    """Return a claim's own fields, what was measured, and where."""
    claim, found = entry.claim, entry.found
    own = ("id", "source", "place", "statement", "study", "kind", "metric", "statistic")
    row: dict[str, Any] = {name: getattr(claim, name) for name in own}
    row |= dict.fromkeys(_NUMBERS, math.nan) | {"unit": "", "dataset": "", "rig": ""}
    if entry.campaign is not None:
        dataset = entry.campaign.measured.dataset
        row |= {"dataset": _place(dataset.path), "rig": str(dataset.rig.get("name", ""))}
    if found is not None:
        fails = found.p_contradicts < found.p_replicates
        shown = found.shown or (found.worst if fails else found.weakest)
        low, high = shown.estimate.interval(alpha)
        row |= {"estimate": shown.estimate.value, "low": low, "high": high, "unit": shown.unit}
        row["n_blocks"] = found.n_blocks
    return row


def _published(claim: Claim, stated: Mapping[str, Stated]) -> dict[str, Any]:
    """Return what the paper has, and what comes of recomputing it."""
    value, text = published_value(claim)
    checks = [stated[name] for name in claim.checks]
    wrong = [one for one in checks if not one.follows]
    word = "nothing to recompute" if not checks else "does not follow" if wrong else "follows"
    return {
        "published": text,
        "published_value": math.nan if value is None else value,
        "arithmetic": word,
        "arithmetic_detail": "; ".join(f"{one.says}: {one.detail}" for one in wrong or checks),
    }


def _place(path: Path) -> str:
    """Return where a campaign is, from the project's folder where it is in it."""
    whole = path.resolve()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else whole.name
