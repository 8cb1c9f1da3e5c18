"""The ledger: every claim beside what was published, what was measured, and a verdict.

Two questions are asked of every claim: is it shown to hold, and is it shown to fail. Each has
p-values of its own, corrected by Holm (1979) over those claims of a source that were measured on a
suitable rig in enough blocks. The setting, what the claim asks of a rig against what the rig has,
is kept apart from the verdict and goes before it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis.estimates import Estimate, holm, join_notes
from labkit.analysis.power import MOST_BLOCKS, blocks_to_detect, least_blocks
from labkit.claims.cells import Measured, NotMeasured
from labkit.claims.estimators import Evaluation, Part, evaluate
from labkit.claims.schema import Claim, Claims, Needs, PublishedValue, load_claims
from labkit.claims.stated import recompute, with_unit
from labkit.dataset import Dataset, load
from labkit.errors import UsageError
from labkit.paths import ROOT

RESULTS = (
    *("replicated", "contradicted", "undecided", "not decidable on this rig"),
    *("not measured", "error"),
)
SETTINGS = ("same", "analogue", "unsuitable")
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
_HEAD = ("claim", "published", "measured [interval]", "setting", "result")
#: What no rig lacks unless it says that it has it.
_OFFERED = ("aufs", "residence-time")
#: A host of this role stands in for another one, so that a trial never uses both.
_STAND_IN = "clean"
Source = Dataset | Path | str


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
        - ``p_replicates``, ``p_contradicts`` (see `labkit.claims.estimators`), and both adjusted
          where something can be decided;
        - ``setting`` (``same``, ``analogue``, ``unsuitable``; empty without a campaign) and
          ``setting_why``;
        - ``result``: ``replicated``, ``contradicted``, ``undecided`` (too few blocks are always
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
    campaigns = _campaigns(
        [source if isinstance(source, Dataset) else load(source) for source in given], known
    )
    entries = [_entry(claim, campaigns.get(claim.study)) for claim in known]
    rows: dict[str, dict[str, Any]] = {}
    for source in known.sources:
        family = [entry for entry in entries if entry.claim.source == source]
        for entry, decided in zip(family, _decided(family, alpha), strict=True):
            rows[entry.claim.id] = (
                _described(entry, alpha) | _published(entry.claim, known) | decided
            )
    table = pd.DataFrame([rows[claim.id] for claim in known], columns=list(COLUMNS))
    counts: dict[str, Any] = dict.fromkeys(("n_blocks", "blocks_needed"), "Int64")
    return table.astype(counts | dict.fromkeys(_NUMBERS, float))


@dataclass(frozen=True)
class _Campaign:
    """The campaign of a study, and which of several it is."""

    measured: Measured
    note: str


@dataclass(frozen=True)
class _Entry:
    """A claim with what was measured: an evaluation, or why there is none."""

    claim: Claim
    campaign: _Campaign | None
    evaluation: Evaluation | None = None
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
            Measured(several[-1], [claim for claim in claims if claim.study == name]),
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
            evaluation = evaluate(claim, campaign.measured)
        except NotMeasured as reason:
            where = setting(claim, dataset, None)
            return _Entry(claim, campaign, absent=str(reason), setting=where)
        return _Entry(
            claim, campaign, evaluation, setting=setting(claim, dataset, evaluation.samples)
        )
    except Exception as error:  # whatever it is, it is this row's result, and the command fails
        return _Entry(claim, campaign, error=_said(error))


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _decided(family: Sequence[_Entry], alpha: float) -> list[dict[str, Any]]:
    """Return p-values, setting and result of the claims of one source."""
    decidable = [entry for entry in family if _decidable(entry, alpha)]
    adjusted = {
        name: holm(
            np.array([getattr(entry.evaluation, name) for entry in decidable], dtype=np.float64)
        )
        for name in ("p_replicates", "p_contradicts")
    }
    pairs = iter(zip(*(map(float, values) for values in adjusted.values()), strict=True))
    rows = []
    for entry in family:
        row: dict[str, Any] = {"setting": entry.setting[0], "setting_why": entry.setting[1]}
        if entry.evaluation is None:
            result = "error" if entry.error else "not measured"
            why = entry.error or entry.absent
        else:
            pair = next(pairs) if _decidable(entry, alpha) else (math.nan, math.nan)
            row |= {name: getattr(entry.evaluation, name) for name in adjusted}
            row |= {f"{name}_adjusted": p for name, p in zip(adjusted, pair, strict=True)}
            size, least = len(decidable), fewest(entry.claim, alpha)
            try:
                needed = blocks_needed(entry.evaluation.parts, alpha / max(1, size), least)
                result, why = decide(
                    entry.claim, entry.evaluation, pair, entry.setting, family=size, alpha=alpha
                )
                row["blocks_needed"] = needed
            except Exception as error:  # as in `_entry`
                result, why = "error", _said(error)
        note = entry.campaign.note if entry.campaign else ""
        rows.append(row | {"result": result, "why": join_notes(why, note)})
    return rows


def _decidable(entry: _Entry, alpha: float) -> bool:
    """Return whether a claim belongs to its source's family: whether anything is decided of it.

    Neither question depends on what came out: the rig and the number of blocks do not.
    """
    evaluation = entry.evaluation
    fit = evaluation is not None and entry.setting[0] != "unsuitable"
    return fit and evaluation is not None and evaluation.n_blocks >= fewest(entry.claim, alpha)


def _described(entry: _Entry, alpha: float) -> dict[str, Any]:
    """Return a claim's own fields, what was measured, and where."""
    claim, evaluation = entry.claim, entry.evaluation
    own = ("id", "source", "place", "statement", "study", "kind", "metric", "statistic")
    row: dict[str, Any] = {name: getattr(claim, name) for name in own}
    row |= dict.fromkeys(_NUMBERS, math.nan) | {"unit": "", "dataset": "", "rig": ""}
    if entry.campaign is not None:
        dataset = entry.campaign.measured.dataset
        row |= {"dataset": _place(dataset.path), "rig": str(dataset.rig.get("name", ""))}
    if evaluation is not None:
        fails = evaluation.p_contradicts < evaluation.p_replicates
        shown = evaluation.shown or (evaluation.worst if fails else evaluation.weakest)
        low, high = shown.estimate.interval(alpha)
        row |= {"estimate": shown.estimate.value, "low": low, "high": high, "unit": shown.unit}
        row["n_blocks"] = evaluation.n_blocks
    return row


def _published(claim: Claim, known: Claims) -> dict[str, Any]:
    """Return what the paper has, and what comes of recomputing it."""
    paper = known.published.get(claim.id, PublishedValue(""))
    checks = [known.stated[name] for name in claim.checks]
    wrong = [statement for statement in checks if not statement.follows]
    word = "nothing to recompute" if not checks else "does not follow" if wrong else "follows"
    return {
        "published": paper.text,
        "published_value": paper.number,
        "arithmetic": word,
        "arithmetic_detail": "; ".join(
            f"{statement.says}: {statement.detail}" for statement in wrong or checks
        ),
    }


def _place(path: Path) -> str:
    """Return where a campaign is, from the project's folder where it is in it."""
    whole = path.resolve()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else whole.name


def setting(claim: Claim, dataset: Dataset, samples: int | None) -> tuple[str, str]:
    """Return the setting of a claim on the rig of a campaign, and what it lacks."""
    for word, needs in (("unsuitable", claim.needs), ("analogue", claim.same)):
        if lacking := list(_lacking(needs, dataset, samples)):
            return word, "; ".join(lacking)
    return "same", ""


def _lacking(needs: Needs, dataset: Dataset, samples: int | None) -> Iterator[str]:
    rig, facts = dataset.rig, dataset.facts
    for name in needs.capabilities:
        if reason := _capability(name, rig):
            yield f"{name}: {reason}"
    for what, wanted, available in (
        ("CPUs of the system under test", needs.cores, _cores(facts)),
        ("hosts", needs.hosts, len(rig.get("hosts", {}).keys() - {_STAND_IN})),
        ("samples a trial", needs.samples if samples is not None else 0, samples),
    ):
        if wanted and not available:
            yield f"{wanted:,} {what}: the campaign does not state them"
        elif available and available < wanted:
            yield f"{wanted:,} {what}: there are {available:,}"
    if needs.cores_at_most and not 0 < (available := _cores(facts)) <= needs.cores_at_most:
        yield f"at most {needs.cores_at_most} CPUs of the system under test: there are {available}"
    if needs.link_gbit_per_s and (reason := _link(needs.link_gbit_per_s, rig, facts)):
        yield f"a link of {needs.link_gbit_per_s:g} Gbit/s: {reason}"
    if needs.engine and not _ran(needs.engine, dataset):
        yield f"{needs.engine}: nothing ran under it"


def _capability(name: str, rig: Mapping[str, Any]) -> str:
    """Return why a rig lacks a capability; empty where it has it."""
    lacking = rig.get("capabilities")
    if lacking is None:
        return "the rig does not state what it lacks"
    if name in lacking:
        return str(lacking[name])
    if name == "separate-machines" and rig.get("shared_kernel", True):
        return "the hosts share one kernel"
    if name in _OFFERED and name not in rig.get("offers", ()):
        return "the rig does not offer it"
    return ""


def _cores(facts: Mapping[str, Any]) -> int:
    return int(_stable(facts, "sut").get("cpu", {}).get("count") or 0)


def _link(wanted: float, rig: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return why the link between both ends is not known to have a rate; empty where it has."""
    # A virtual interface names a rate that no packet ever keeps to.
    if reason := _capability("nic-hardware", rig):
        return reason
    rates = [rate for role in ("generator", "sut") for rate in _rates(_stable(facts, role))]
    if not rates or not all(map(math.isfinite, rates)):
        return "the rig does not state a rate"
    return "" if min(rates) >= wanted else f"there are {min(rates):g} Gbit/s"


def _rates(stable: Mapping[str, Any]) -> list[float]:
    """Return the rate of each lab interface in Gbit/s, NaN where it is not known."""
    speeds = [str(interface.get("speed")) for interface in stable.get("interfaces", {}).values()]
    matches = [re.fullmatch(r"(\d+)Mb/s", speed) for speed in speeds]
    return [int(match[1]) / 1000 if match else math.nan for match in matches] or [math.nan]


def _stable(facts: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    return dict(facts.get(role, {}).get("stable", {}))


def _ran(engine: str, dataset: Dataset) -> bool:
    """Tell whether a runtime ran: by the placements, or else by the engines of the hosts."""
    ok = dataset.ok
    if "placement" in ok.columns:
        return any(str(placement).split()[0] == engine for placement in set(ok["placement"]))
    hosts = dataset.rig.get("hosts", {}).values()
    return engine == "docker" and len(ok) > 0 and any(host.get("engine") for host in hosts)


def decide(
    claim: Claim,
    evaluation: Evaluation,
    adjusted: tuple[float, float],
    setting: tuple[str, str],
    *,
    family: int,
    alpha: float,
) -> tuple[str, str]:
    """Return the result of a measured claim and what decided it."""
    holds, fails = adjusted[0] < alpha, adjusted[1] < alpha
    assert not (holds and fails), f"{claim.id}: shown to hold and to fail"
    note = join_notes(evaluation.note, *(part.estimate.note for part in evaluation.parts))
    if setting[0] == "unsuitable":
        return "not decidable on this rig", join_notes(f"it takes {setting[1]}", note)
    if evaluation.n_blocks < (least := fewest(claim, alpha)):
        pilot = f"pilot: {evaluation.n_blocks} complete blocks of the {least} that it takes"
        return "undecided", join_notes(pilot, note)
    if holds:
        others = len(evaluation.parts) - 1
        also = f", and so {'does the other' if others == 1 else f'do the {others} others'}"
        return "replicated", join_notes(
            f"{_inside(evaluation.weakest)}{also if others else ''} (p {_p(adjusted[0])})", note
        )
    if fails:
        said = f"{_outside(evaluation.worst)} (p {_p(adjusted[1])})"
        return "contradicted", join_notes(said, _absent(evaluation, alpha), note)
    return "undecided", join_notes(_open(claim, evaluation, family, alpha), note)


def fewest(claim: Claim, alpha: float) -> int:
    """Return the fewest blocks for a verdict: those of the claim, or more where alpha is small."""
    return max(claim.blocks, least_blocks(alpha))


def region(part: Part) -> str:
    """Return the region of a part in words."""
    unit = "" if part.unit in ("", "1") else f" {part.unit}"
    if math.isinf(part.low) or math.isinf(part.high):
        low = math.isinf(part.high)
        return f"{'above' if low else 'below'} {part.low if low else part.high:.4g}{unit}"
    return f"from {part.low:.4g} to {part.high:.4g}{unit}"


def blocks_needed(parts: Sequence[Part], alpha: float, least: int) -> int | None:
    """Return how many blocks would decide, if the estimates are what is true.

    With power 0.8, by the paired t test against the nearest bound, allowing for the uncertainty of
    the spread that was seen. Where every estimate lies in its region, enough for all to be shown
    inside; otherwise, for one that does not to be shown outside.
    """
    outside = [part for part in parts if not part.low <= part.estimate.value <= part.high]
    if outside:
        numbers = [_blocks(part, alpha / len(parts)) for part in outside]
        known = [number for number in numbers if number is not None]
        return max(least, min(known)) if known else None
    numbers = [_blocks(part, alpha) for part in parts]
    known = [number for number in numbers if number is not None]
    return max(least, *known) if len(known) == len(parts) else None


def _blocks(part: Part, alpha: float) -> int | None:
    estimate = part.estimate
    if (
        not isinstance(estimate, Estimate)
        or not estimate.error > 0
        or not math.isfinite(estimate.error)
    ):
        return None
    bounds = [bound for bound in (part.low, part.high) if math.isfinite(bound)]
    if estimate.scale == "log":
        bounds = [math.log(bound) for bound in bounds if bound > 0]
    distance = min((abs(estimate.centre - bound) for bound in bounds), default=0.0)
    spread = estimate.error * math.sqrt(estimate.n_blocks)
    # In units of the spread, which is all that matters; far below 30 of them 2 blocks do.
    distance = min(distance / spread, 30.0)
    if distance < 1e-6:
        return MOST_BLOCKS
    blocks = blocks_to_detect(
        math.expm1(distance), 1.0, alpha=alpha, pilot=max(2, estimate.n_blocks)
    )
    return blocks or MOST_BLOCKS


def _inside(part: Part) -> str:
    # Two one-sided tests at 5 % are an interval of 90 %: the one of 95 % may reach over a bound.
    both = math.isfinite(part.low) and math.isfinite(part.high)
    how = ", by two one-sided tests" if both else ""
    return f"{part.label}: {part.estimate.value:.4g} lies {region(part)}{how}"


def _outside(part: Part) -> str:
    return f"{part.label}: {part.estimate.value:.4g} does not lie {region(part)}"


def _absent(evaluation: Evaluation, alpha: float) -> str:
    known = evaluation.also < alpha
    return "" if known else f"that there is one was not shown (p {_p(evaluation.also)})"


def _open(claim: Claim, evaluation: Evaluation, family: int, alpha: float) -> str:
    """Return why a claim is neither shown nor refuted, and what it would take."""
    part = evaluation.weakest
    said = f"{part.label}: whether {part.estimate.value:.4g} lies {region(part)} is open"
    if math.isnan(part.estimate.value):
        said = f"{part.label} has no estimate"
    elif min(evaluation.p_replicates, evaluation.p_contradicts) < alpha:
        said += f" after Holm's correction over {family} claims"
    said = join_notes(said, _absent(evaluation, alpha))
    blocks = blocks_needed(evaluation.parts, alpha / max(1, family), fewest(claim, alpha))
    if blocks is not None:
        more = "more than " if blocks >= MOST_BLOCKS else "about "
        said += f"; {more}{blocks:,} blocks would decide"
    return said


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def select_rows(rows: pd.DataFrame, sources: Sequence[str], results: Sequence[str]) -> pd.DataFrame:
    """Return the rows of some sources and results; all where none is named."""
    known = {"source": list(dict.fromkeys(rows["source"])), "result": list(RESULTS)}
    for name, asked in (("source", sources), ("result", results)):
        if unknown := [value for value in asked if value not in known[name]]:
            raise UsageError(
                f"no {name} called {', '.join(unknown)}", remedy=f"one of {', '.join(known[name])}"
            )
        rows = rows[rows[name].isin(asked)] if asked else rows
    return rows


def format_rows(rows: pd.DataFrame) -> list[str]:
    """Return a line a claim, errors with their message, and how often there is each result."""
    records = rows.to_dict("records")
    cells = [_HEAD, *(_cells(row) for row in records)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    lines += [f"{row['id']}: {row['why']}" for row in records if row["result"] == "error"]
    counts = rows["result"].value_counts()
    totals = [f"{counts[name]} {name}" for name in RESULTS if name in counts]
    return [*lines, "", f"{len(rows)} claims: {', '.join(totals) or 'none'}"]


def format_arithmetic(sources: Iterable[str]) -> list[str]:
    """Return what the papers' words state and their own tables do not give, with both numbers."""
    lines = [""]
    for source in sources:
        table = recompute(source)
        wrong = table[~table["follows"]]
        lines.append(f"{source}: {len(wrong)} of {len(table)} statements do not follow")
        for row in wrong.to_dict("records"):
            stated = row["stated"]
            said = "stated" if stated is True else f"stated {with_unit(stated, row['unit'])}"
            shown = with_unit(row["shown"], row["unit"])
            lines.append(f"  {row['place']}: {row['says']} ({said}; its tables give {shown})")
    return lines


def _cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    published = _number(row["published_value"]) or ("stated" if row["published"] else "")
    measured = _number(row["estimate"])
    if measured:
        unit = "" if row["unit"] in ("", "1") else f" {row['unit']}"
        low, high = _number(row["low"]), _number(row["high"])
        measured += f" [{low}, {high}]{unit}" if low and high else unit
    return str(row["id"]), published, measured, str(row["setting"]), str(row["result"])


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"
