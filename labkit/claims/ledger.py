"""The ledger: every claim beside what was published, what was measured, and a verdict.

Two questions are asked of every claim: is it shown to hold, and is it shown to fail. Each has
p-values of its own, corrected by Holm (1979) over those claims of a source that were measured on a
suitable rig in enough blocks. The setting, what the claim asks of a rig against what the rig has,
is kept apart from the verdict and goes before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import special

from labkit.analysis.estimates import Estimate, benjamini_hochberg, holm, join_notes
from labkit.analysis.power import MOST_BLOCKS, POWER, blocks_to_detect, least_blocks
from labkit.analysis.robust import without_unchecked
from labkit.analysis.sequential import Looks, campaign_share
from labkit.answers import interval_text, scaled, unit_of_word, word_of
from labkit.claims.cells import Combined, Measured, NotMeasured
from labkit.claims.estimators import Evaluation, Part, evaluate
from labkit.claims.schema import Claim, Claims, PublishedValue, Region, load_claims
from labkit.claims.setting import SETTINGS, setting
from labkit.claims.stated import load_disagreements, recompute, with_unit
from labkit.dataset import Dataset, load
from labkit.dataset.files import campaigns_within
from labkit.errors import UsageError, suggestion
from labkit.paths import project
from labkit.status import aligned
from labkit.units import plural

RESULTS = (
    *("replicated", "contradicted", "undecided", "not decidable on this rig"),
    *("not measured", "error"),
)
#: The tiers of claims, each with what it is called where its results are counted.
TIERS = {
    "headline": "headlines",
    "result": "other results",
    "remark": "remarks that their papers did not measure",
}
COLUMNS = (
    *("id", "source", "tier", "place", "statement", "study", "kind", "metric", "statistic"),
    *("published", "published_value", "arithmetic", "arithmetic_detail"),
    *("estimate", "low", "high", "confidence", "unit", "part", "n_blocks", "blocks_needed"),
    *("p_replicates", "p_contradicts", "p_replicates_adjusted", "p_contradicts_adjusted"),
    *("setting", "setting_why", "result", "direction", "exploratory", "why", "dataset", "rig"),
)
_NUMBERS = (
    *("published_value", "estimate", "low", "high", "confidence"),
    *("p_replicates", "p_contradicts", "p_replicates_adjusted", "p_contradicts_adjusted"),
)
_HEAD = ("claim", "published", "measured [interval]", "setting", "result")
Source = Dataset | Path | str


def ledger(
    datasets: Source | Sequence[Source] = (),
    *,
    claims: Claims | None = None,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Evaluate every claim on what was measured.

    Parameters
    ----------
    datasets : Dataset or path, or a sequence of them
        Campaigns, or folders with campaigns. Several campaigns of one plan on one rig are one
        body of evidence: the blocks of all of them count. Campaigns of a study with another plan
        than its last one are left out, and its rows say so.
    claims : Claims, optional
        By default those of ``data/claims.toml``.
    alpha : float
        Level of each of the two corrected families of a source.

    Returns
    -------
    DataFrame
        A row a claim, in the order of the file:

        - ``id, source, place, statement, study, kind, metric, statistic``; ``tier``: ``headline``,
          ``result``, or ``remark`` for what the source says and did not measure;
        - ``published``, in words, and ``published_value``; ``arithmetic``: ``follows``, ``does not
          follow`` or ``nothing to recompute``, with both numbers in ``arithmetic_detail``;
        - ``estimate, low, high`` in ``unit`` (``1`` for a ratio, ``share``); ``part``: the part
          of the claim that these are of, the one that decides, empty where it has one only;
          ``confidence``, the level of the interval: the one that the verdict rests on, with the
          correction for several claims and parts in it;
          ``n_blocks``, those that every part rests on; ``blocks_needed``, those that would decide
          if the estimates are what is true;
        - ``p_replicates``, ``p_contradicts`` (see `labkit.claims.estimators`), and both adjusted
          where something can be decided;
        - ``setting`` (``same``, ``analogue``, ``unsuitable``; empty without a campaign) and
          ``setting_why``;
        - ``result``: ``replicated``, ``contradicted``, ``undecided`` (too few blocks are always
          that), ``not decidable on this rig``, ``not measured`` or ``error``; ``why``;
        - ``direction``: ``same`` or ``opposite`` where that is shown, ``open`` where it is not,
          empty for a claim without one; ``exploratory``: the result by Benjamini and Hochberg
          (1995) in place of Holm, which finds more and errs more often;
        - ``dataset``, ``rig``.

        What stops one claim is the ``error`` of its row, and no other row's.

    Raises
    ------
    UsageError
        For a campaign of a study without claims, or `alpha` out of range.
    DatasetError
        If the claims, what they refer to, or a campaign's plan cannot be read.

    Examples
    --------
    >>> from labkit import ledger
    >>> rows = ledger("data/reference/rps")
    >>> rows.set_index("id").loc["haruna2019-rps-lowers", ["setting", "result"]].tolist()
    ['unsuitable', 'not decidable on this rig']
    """
    if not 0 < alpha < 0.5:
        raise UsageError(f"alpha={alpha!r} is not usable", remedy="0 < alpha < 0.5")
    known = load_claims() if claims is None else claims
    given = [datasets] if isinstance(datasets, Dataset | Path | str) else datasets
    loaded: list[Dataset] = []
    for one in given:
        loaded += [one] if isinstance(one, Dataset) else map(load, campaigns_within(Path(one)))
    campaigns = evidence(loaded, known)
    entries = [_entry(claim, campaigns.get(claim.study), known) for claim in known]
    rows: dict[str, dict[str, Any]] = {}
    for source in known.sources:
        family = [entry for entry in entries if entry.claim.source == source]
        for entry, decided in zip(family, _decided(family, alpha), strict=True):
            rows[entry.claim.id] = _described(entry) | _published(entry.claim, known) | decided
    table = pd.DataFrame([rows[claim.id] for claim in known], columns=list(COLUMNS))
    counts: dict[str, Any] = dict.fromkeys(("n_blocks", "blocks_needed"), "Int64")
    return table.astype(counts | dict.fromkeys(_NUMBERS, float))


@dataclass(frozen=True)
class Evidence:
    """The campaigns of a study that count, and what is left out."""

    measured: Measured | Combined
    note: str

    @property
    def datasets(self) -> list[Dataset]:
        """The campaigns, the last one last."""
        return self.measured.datasets

    @property
    def planned(self) -> int:
        """The blocks that all of them planned."""
        return sum(int(one.plan.get("blocks", 0)) for one in self.datasets)

    def chooses(self, claim: Claim) -> bool:
        """Return whether a plan names a claim as one to decide; without a list it decides all."""
        chosen = [one.plan.get("claims") for one in self.datasets]
        return any(names is None or claim.id in names for names in chosen)

    def setting(self, claim: Claim, samples: int | None, known: Claims) -> tuple[str, str]:
        """Return the setting of a claim: of several campaigns, the furthest from the paper's."""
        paper = known.sizes(claim), known.paper_hosts(claim)
        found = [setting(claim, one, samples, *paper) for one in self.datasets]
        return max(found, key=lambda one: SETTINGS.index(one[0]))

    @property
    def _plans(self) -> set[tuple[int, ...]]:
        """The planned looks of the campaigns that have any."""
        return {tuple(one.plan["looks"]) for one in self.datasets if one.plan.get("looks")}

    def level(self, alpha: float) -> float:
        """Return the level of a test at the last look, of which all together spend `alpha`."""
        share = campaign_share(len(self.datasets)) * alpha
        return min((Looks(plan).level(share, plan[-1]) for plan in self._plans), default=share)

    def spent(self, evaluation: Evaluation) -> dict[str, float]:
        """Return p-values with the error that looks and earlier campaigns have spent in them."""
        share = campaign_share(len(self.datasets))
        # After earlier campaigns the look of a claim is not its number of blocks: any of them.
        looks = [
            p_values(evaluation, Looks(blocks), n)
            for blocks in self._plans
            for n in (blocks if len(self.datasets) > 1 else [evaluation.n_blocks])
        ] or [p_values(evaluation)]
        return {
            name: max(min(at[name] / share, 1.0) for at in looks)  # NaN stays NaN
            for name in looks[0]
        }


@dataclass(frozen=True)
class _Entry:
    """A claim with what was measured: an evaluation, or why there is none."""

    claim: Claim
    campaign: Evidence | None
    evaluation: Evaluation | None = None
    absent: str = ""
    error: str = ""
    setting: tuple[str, str] = ("", "")


def evidence(datasets: Iterable[Dataset], claims: Claims) -> dict[str, Evidence]:
    """Return the campaigns of each study that have the plan and the rig of its last one.

    Experiments on reasons (`labkit.claims.reasons`) are no evidence for a claim.
    """
    grouped: dict[str, list[Dataset]] = {}
    for dataset in datasets:
        if "vary" not in dataset.plan:
            grouped.setdefault(str(dataset.plan["study"]), []).append(dataset)
    if unknown := [name for name in grouped if name not in claims.studies]:
        raise UsageError(
            f"no claim is about {', '.join(unknown)}", remedy=suggestion(unknown[0], claims.studies)
        )
    campaigns = {}
    for name, several in grouped.items():
        about = [claim for claim in claims if claim.study == name]
        # One without a successful trial has spent no error.
        measured = [dataset for dataset in several if len(dataset.ok)] or several[-1:]
        alike = [dataset for dataset in measured if plan_key(dataset) == plan_key(measured[-1])]
        parts = [Measured(dataset, about) for dataset in alike]
        other = len(measured) - len(alike)
        campaigns[name] = Evidence(
            Combined(parts) if len(parts) > 1 else parts[0],
            join_notes(
                f"{len(parts)} campaigns of one plan" if len(parts) > 1 else "",
                f"left out: {plural(other, 'campaign')} of another plan or rig" if other else "",
            ),
        )
    return campaigns


def plan_key(dataset: Dataset) -> tuple[Any, ...]:
    """Return what campaigns have to share for their blocks to count as one body of evidence."""
    plan, identity, rig = dataset.plan, dataset.plan.get("identity", {}), dataset.rig
    code = identity.get("protocol"), identity.get("measurement_version")
    # Virtual rigs of all machines have one name.
    cpus = {
        role: (cpu.get("model"), cpu.get("count"))
        for role, facts in dataset.facts.items()
        if (cpu := facts.get("stable", {}).get("cpu", {}))
    }
    return plan["factors"], plan.get("settings"), code, rig.get("name"), rig.get("kind"), cpus


def _entry(claim: Claim, campaign: Evidence | None, known: Claims) -> _Entry:
    if campaign is None:
        return _Entry(claim, None, absent=f"no campaign of {claim.study}")
    try:
        try:
            evaluation = evaluate(claim, campaign.measured)
        except NotMeasured as reason:
            where = campaign.setting(claim, None, known)
            return _Entry(claim, campaign, absent=str(reason), setting=where)
        where = campaign.setting(claim, evaluation.samples, known)
        return _Entry(claim, campaign, evaluation, setting=where)
    except Exception as error:  # whatever it is, it is this row's result, and the command fails
        return _Entry(claim, campaign, error=_said(error))


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _decided(family: Sequence[_Entry], alpha: float) -> list[dict[str, Any]]:
    """Return p-values, setting and result of the claims of one source."""
    tests = _adjusted(family, alpha)
    size, least = len(tests), least_blocks(alpha)
    rows = []
    for entry in family:
        row: dict[str, Any] = {"setting": entry.setting[0], "setting_why": entry.setting[1]}
        row.update(part="", direction="", exploratory="")
        evaluation, campaign = entry.evaluation, entry.campaign
        if evaluation is None or campaign is None:
            result = "error" if entry.error else "not measured"
            why = entry.error or entry.absent
        else:
            adjusted = tests.get(entry.claim.id, {})
            pair = adjusted.get("p_replicates", math.nan), adjusted.get("p_contradicts", math.nan)
            row |= {name: getattr(evaluation, name) for name in ("p_replicates", "p_contradicts")}
            row["p_replicates_adjusted"] = min(pair[0], 1.0)  # NaN stays NaN
            row["p_contradicts_adjusted"] = min(pair[1], 1.0)
            try:
                level = campaign.level(alpha / max(1, size))
                needed = blocks_needed(evaluation.deciding, level, least)
                result, why = _decide(entry, evaluation, pair, alpha=alpha, needed=needed)
                row["blocks_needed"] = None if evaluation.limited else needed
            except Exception as error:  # as in `_entry`
                result, why = "error", _said(error)
            row |= _interval(evaluation, pair, result, alpha)
            if adjusted:
                row["direction"] = _direction(evaluation, adjusted, alpha)
                row["exploratory"] = _exploratory(adjusted, alpha)
            if result == "undecided" and not campaign.chooses(entry.claim):
                why = join_notes("the campaign was not planned to decide it", why)
            if result == "contradicted" and row["direction"] == "same":
                why = join_notes(why, "the published direction holds, its size does not")
        note = campaign.note if campaign else ""
        rows.append(row | {"result": result, "why": join_notes(why, note)})
    return rows


def _adjusted(family: Sequence[_Entry], alpha: float) -> dict[str, dict[str, float]]:
    """Return the adjusted p-values of the claims of one source that can be decided, by claim.

    Those by Holm are not capped at 1, since intervals have the levels that come of them.
    """
    decidable = [entry for entry in family if _decidable(entry, alpha)]
    single = pd.DataFrame.from_dict(
        {
            entry.claim.id: entry.campaign.spent(entry.evaluation)
            for entry in decidable
            if entry.campaign and entry.evaluation
        },
        orient="index",
        dtype=float,
    )
    tests = {str(name): holm(single[name].to_numpy(), cap=math.inf) for name in single}
    for name in ("p_replicates", "p_contradicts") if decidable else ():
        tests[f"{name}_bh"] = benjamini_hochberg(single[name].to_numpy())
    return {
        entry.claim.id: {name: float(values[place]) for name, values in tests.items()}
        for place, entry in enumerate(decidable)
    }


def p_values(
    evaluation: Evaluation, looks: Looks | None = None, n_blocks: int = 0
) -> dict[str, float]:
    """Return the p-values of an evaluation, at a look with those before it counted.

    Where it is a multiple of a part's p-value (Bonferroni), that of the part is adjusted for the
    looks, and then multiplied.
    """
    shown, refuted = evaluation.may_fail + 1, evaluation.must_hold
    found = {
        "p_replicates": (evaluation.p_replicates, shown),
        "p_contradicts": (evaluation.p_contradicts, refuted),
        "p_direction": (evaluation.p_direction(), shown),
        "p_opposite": (evaluation.p_direction(opposite=True), refuted),
    }
    if looks is None:
        return {name: p for name, (p, _) in found.items()}
    return {name: times * looks.adjust(p / times, n_blocks) for name, (p, times) in found.items()}


def _exploratory(adjusted: Mapping[str, float], alpha: float) -> str:
    """Return the result by the false discovery rate."""
    if adjusted["p_replicates_bh"] < alpha:
        return "replicated"
    return "contradicted" if adjusted["p_contradicts_bh"] < alpha else "undecided"


def _direction(evaluation: Evaluation, adjusted: Mapping[str, float], alpha: float) -> str:
    """Return whether the direction of a claim is shown, apart from its size."""
    if math.isnan(evaluation.p_direction()):
        return ""
    if adjusted["p_direction"] < alpha:
        return "same"
    return "opposite" if adjusted["p_opposite"] < alpha else "open"


def _interval(
    evaluation: Evaluation, adjusted: tuple[float, float], result: str, alpha: float
) -> dict[str, Any]:
    """Return the estimate to show, with the interval that its result rests on.

    Holm's correction tests a claim at `alpha` times its p-value over its adjusted one. That a ratio
    lies in a closed region is shown by two one-sided tests, which is an interval of twice that.
    """
    fails = evaluation.p_contradicts < evaluation.p_replicates
    shown = evaluation.worst if fails else evaluation.weakest
    levels = {
        name: alpha * raw / corrected if corrected > 0 and raw > 0 else alpha
        for name, raw, corrected in (
            ("replicates", evaluation.p_replicates, adjusted[0]),
            ("contradicts", evaluation.p_contradicts, adjusted[1]),
        )
    }
    closed = math.isfinite(shown.low) and math.isfinite(shown.high)
    within = levels["replicates"] * (2 if closed else 1) / (evaluation.may_fail + 1)
    outside = levels["contradicts"] / evaluation.must_hold
    level = {"replicated": within, "contradicted": outside}.get(result, min(within, outside))
    low, high = shown.estimate.interval(level)
    return {
        "estimate": shown.estimate.value,
        "low": low,
        "high": high,
        "confidence": 1 - level,
        "unit": shown.unit,
        "part": shown.label if len(evaluation.parts) > 1 else "",
    }


def _decidable(entry: _Entry, alpha: float) -> bool:
    """Return whether a claim is tested, and so belongs to the family of its source.

    That depends on the plan, the rig, the load generator and the number of blocks, and not on the
    estimate.
    """
    evaluation, campaign = entry.evaluation, entry.campaign
    return (
        evaluation is not None
        and campaign is not None
        and campaign.chooses(entry.claim)
        and not evaluation.limited
        and entry.setting[0] != "unsuitable"
        and evaluation.n_blocks >= least_blocks(alpha)
    )


def _described(entry: _Entry) -> dict[str, Any]:
    """Return a claim's own fields, what was measured, and where."""
    claim, evaluation = entry.claim, entry.evaluation
    own = ("id", "source", "tier", "place", "statement", "study", "kind", "metric", "statistic")
    row: dict[str, Any] = {name: getattr(claim, name) for name in own}
    row |= {"unit": "", "dataset": "", "rig": ""}
    if entry.campaign is not None:
        dataset = entry.campaign.measured.dataset
        row |= {"dataset": _place(dataset.path), "rig": str(dataset.rig.get("name", ""))}
    if evaluation is not None:
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
    whole, home = path.resolve(), project()
    return str(whole.relative_to(home)) if whole.is_relative_to(home) else whole.name


def _decide(
    entry: _Entry,
    evaluation: Evaluation,
    adjusted: tuple[float, float],
    *,
    alpha: float,
    needed: int | None,
) -> tuple[str, str]:
    """Return the result of a measured claim and what decided it."""
    claim, setting = entry.claim, entry.setting
    holds, fails = adjusted[0] < alpha, adjusted[1] < alpha
    assert not (holds and fails), f"{claim.id}: shown to hold and to fail"
    # That few blocks cannot be checked is said once, above the table.
    notes = (without_unchecked(part.estimate.note) for part in evaluation.parts)
    note = join_notes(evaluation.note, *notes)
    if setting[0] == "unsuitable":
        return "not decidable on this rig", join_notes(f"it takes {setting[1]}", note)
    if evaluation.limited:
        return "undecided", join_notes(f"no claim about the server: {evaluation.limited}", note)
    if evaluation.n_blocks < (least := least_blocks(alpha)):
        pilot = f"pilot: {evaluation.n_blocks} complete blocks of the {least} that it takes"
        return "undecided", join_notes(pilot, note)
    if holds:
        others = evaluation.must_hold - 1
        what = "the other" if others == 1 else f"the {others} others"
        what = f"{others} more" if evaluation.may_fail else what
        also = f", and so {'does' if others == 1 else 'do'} {what}"
        return "replicated", join_notes(
            f"{_inside(claim, evaluation.weakest)}{also if others else ''} (p {_p(adjusted[0])})",
            note,
        )
    planned = max(entry.campaign.planned if entry.campaign else 0, evaluation.n_blocks)
    if narrow := [part for part in evaluation.deciding if not reachable(part, planned, alpha)]:
        said = _too_noisy(narrow[0], needed, planned)
        return "undecided", join_notes(said, note)
    if fails:
        said = f"{_outside(claim, evaluation.worst)} (p {_p(adjusted[1])})"
        if more := evaluation.may_fail:
            said += f", nor {'does' if more == 1 else 'do'} {more} more"
        return "contradicted", join_notes(said, _absent(evaluation, alpha), note)
    return "undecided", join_notes(_open(evaluation, adjusted, needed, alpha), note)


def region(part: Part, *, inner: bool = False) -> str:
    """Return the region of a part in words, or that in which it has to be to hold."""
    ends = part.inner if inner else (part.low, part.high)
    low, high = (_bound(bound, part.unit) for bound in ends)
    if math.isinf(ends[0]) or math.isinf(ends[1]):
        return f"above {low}" if math.isinf(ends[1]) else f"below {high}"
    return f"from {low} to {high}"


def _bound(value: float, unit: str) -> str:
    """Return the bound of a region; whole ratios without decimals."""
    if unit == "share":
        return f"{100 * value:.3g} %"
    return f"{value:.3g}" if unit in ("", "1") else scaled(value, unit)


def _value(part: Part) -> str:
    return interval_text(part.estimate.value, unit=part.unit)


def _directed(claim: Claim, part: Part) -> str:
    """Return the estimate of a part, with its direction where two conditions are compared."""
    word = word_of("different", part.estimate.value, unit=unit_of_word(claim.metric))
    return f"{_value(part)} ({word})" if part.compared else _value(part)


def reachable(part: Part, blocks: int, alpha: float) -> bool:
    """Return whether so many blocks can show a part inside its region, wherever its value is.

    They cannot where the interval of two one-sided tests, at the spread that was seen, is wider
    than the region: the part could then only be shown outside.
    """
    width, estimate = _width(part), part.estimate
    if math.isinf(width) or not isinstance(estimate, Estimate) or not estimate.error > 0:
        return True
    if _over_campaigns(part):  # longer ones would not narrow it
        return 2 * float(special.stdtrit(estimate.df, 1 - alpha)) * estimate.error <= width
    if blocks < 2:
        return False
    spread = estimate.error * math.sqrt(estimate.n_blocks)
    return 2 * float(special.stdtrit(blocks - 1, 1 - alpha)) * spread / math.sqrt(blocks) <= width


def _width(part: Part) -> float:
    """Return how wide a region is on the scale of its estimate; infinite for one without an end."""
    low, high = part.inner
    if getattr(part.estimate, "scale", "") != "log":
        return high - low
    return math.log(high / low) if low > 0 else math.inf


def blocks_needed(parts: Sequence[Part], alpha: float, least: int) -> int | None:
    """Return how many blocks would decide, if the estimates are what is true.

    With power 0.8, by the paired t test against the nearest bound, allowing for the uncertainty of
    the spread that was seen. Where every estimate lies in its region, enough for all to be shown
    inside (with 0.8 for all together); otherwise, for one that does not to be shown outside. At
    least those for which every region is `reachable`. None where no number would, or where it takes
    further campaigns.
    """
    if any(_over_campaigns(part) for part in parts):
        return None
    least = max([least, *(_blocks_to_reach(part, alpha) for part in parts)])
    outside = [part for part in parts if not part.low <= part.estimate.value <= part.high]
    if outside:
        numbers = [_blocks(part, alpha / len(parts), (part.low, part.high)) for part in outside]
        known = [number for number in numbers if number is not None]
        return max(least, min(known)) if known else None
    if any(not part.inner[0] <= part.estimate.value <= part.inner[1] for part in parts):
        return None  # neither could be shown
    power = 1 - (1 - POWER) / len(parts)
    numbers = [_blocks(part, alpha, part.inner, power) for part in parts]
    known = [number for number in numbers if number is not None]
    return max(least, *known) if len(known) == len(parts) else None


def blocks_text(blocks: int) -> str:
    """Return in words how many blocks would decide."""
    return f"{'more than' if blocks >= MOST_BLOCKS else 'about'} {blocks:,} blocks"


def _over_campaigns(part: Part) -> bool:
    """Tell whether campaigns were averaged, in place of their blocks."""
    return isinstance(part.estimate, Estimate) and part.estimate.unit == "campaign"


def _blocks_to_reach(part: Part, alpha: float) -> int:
    """Return the fewest blocks for which a part's region is `reachable`."""
    return 1 + bisect_left(
        range(1, MOST_BLOCKS), True, key=lambda blocks: reachable(part, blocks, alpha)
    )


def _blocks(part: Part, alpha: float, ends: Region, power: float = POWER) -> int | None:
    """Return how many blocks show on which side of the nearest end an estimate is."""
    estimate = part.estimate
    if (
        not isinstance(estimate, Estimate)
        or not estimate.error > 0
        or not math.isfinite(estimate.error)
    ):
        return None
    bounds = [bound for bound in ends if math.isfinite(bound)]
    if estimate.scale == "log":
        bounds = [math.log(bound) for bound in bounds if bound > 0]
    distance = min((abs(estimate.centre - bound) for bound in bounds), default=0.0)
    spread = estimate.error * math.sqrt(estimate.n_blocks)
    # In units of the spread, which is all that matters; far below 30 of them 2 blocks do.
    distance = min(distance / spread, 30.0)
    if distance < 1e-6:
        return MOST_BLOCKS
    blocks = blocks_to_detect(
        math.expm1(distance), 1.0, alpha=alpha, pilot=max(2, estimate.n_blocks), power=power
    )
    return blocks or MOST_BLOCKS


def _inside(claim: Claim, part: Part) -> str:
    # Two one-sided tests at 5 % are an interval of 90 %: the one of 95 % may reach over a bound.
    both = math.isfinite(part.low) and math.isfinite(part.high)
    how = ", by two one-sided tests" if both else ""
    return f"{part.label}: {_directed(claim, part)} lies {region(part, inner=True)}{how}"


def _outside(claim: Claim, part: Part) -> str:
    return f"{part.label}: {_directed(claim, part)} does not lie {region(part)}"


def _absent(evaluation: Evaluation, alpha: float) -> str:
    known = evaluation.also < alpha
    return "" if known else f"that there is a knee was not shown (p {_p(evaluation.also)})"


def _open(
    evaluation: Evaluation, adjusted: tuple[float, float], needed: int | None, alpha: float
) -> str:
    """Return why a claim is neither shown nor refuted, and what it would take."""
    part = evaluation.weakest
    said = f"{part.label}: whether {_value(part)} lies {region(part, inner=True)} is open"
    if math.isnan(part.estimate.value):
        said = f"{part.label} has no estimate"
    elif not math.isnan(adjusted[0]) and alpha > min(
        evaluation.p_replicates, evaluation.p_contradicts
    ):
        said += " after the corrections for several claims, looks and campaigns"
    said = join_notes(said, _absent(evaluation, alpha))
    if needed is not None:
        said += f"; {blocks_text(needed)} would decide"
    return said


def _too_noisy(part: Part, needed: int | None, planned: int) -> str:
    """Return why no verdict on a claim is possible in the blocks that were planned."""
    takes = f"{blocks_text(needed or MOST_BLOCKS)}, {planned:,} planned"
    if _over_campaigns(part):
        takes = "it takes more campaigns"
    return (
        f"not decidable at this noise: {takes}; {part.label}: the interval of {_value(part)} is "
        f"wider than the region {region(part, inner=True)}"
    )


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def select_rows(rows: pd.DataFrame, sources: Sequence[str], results: Sequence[str]) -> pd.DataFrame:
    """Return the rows of some sources and results; all where none is named."""
    known = {"source": list(dict.fromkeys(rows["source"])), "result": list(RESULTS)}
    for name, asked in (("source", sources), ("result", results)):
        if unknown := [value for value in asked if value not in known[name]]:
            raise UsageError(
                f"no {name} called {', '.join(unknown)}", remedy=suggestion(unknown[0], known[name])
            )
        rows = rows[rows[name].isin(asked)] if asked else rows
    return rows


def format_rows(rows: pd.DataFrame) -> list[str]:
    """Return a line a claim, errors with their message, and how often there is each result."""
    records = rows.to_dict("records")
    lines = aligned([_HEAD, *map(_cells, records)])
    lines += [f"{row['id']}: {row['why']}" for row in records if row["result"] == "error"]
    return [*lines, "", *totals(rows)]


def counts_text(rows: pd.DataFrame) -> str:
    """Return how many claims have which result, in words."""
    counts = rows["result"].value_counts()
    return ", ".join(f"{counts[name]} {name}" for name in RESULTS if name in counts)


def totals(rows: pd.DataFrame) -> list[str]:
    """Return how often there is each result: of headlines, of other results, and of remarks."""
    lines, alone = [], rows["tier"].nunique() == 1
    for tier, what in TIERS.items():
        part = rows[rows["tier"] == tier]
        if text := counts_text(part):
            number = plural(len(part), "claim") if alone else f"{len(part)} {what}"
            lines.append(f"{number}: {text}")
    return lines or ["0 claims"]


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
        contrary = load_disagreements(source)
        lines.append(f"{source}: {len(contrary)} times two places contradict each other in words")
        lines += [f"  {one.detail}" for one in contrary]
    return lines


def _cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    published = _number(row["published_value"]) or ("stated" if row["published"] else "")
    measured = interval_text(row["estimate"], row["low"], row["high"], row["unit"])
    return str(row["id"]), published, measured, str(row["setting"]), str(row["result"])


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"
