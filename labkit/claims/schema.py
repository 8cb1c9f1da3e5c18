"""Claims: published statements as testable hypotheses, read from ``data/claims.toml``.

Loading checks the form of a claim. Which factors, levels and metrics there are is known by the plan
of a campaign: `labkit.claims.cells` checks a claim against the campaign that it is applied to.

=============== ======================================== ======================================
kind            keys (those in brackets may be missing)  what is said
=============== ======================================== ======================================
difference      condition, baseline, direction,          the ratio of the two lies above or
                [at_least]                               below 1 (or beyond ``at_least``)
equivalence     condition, baseline, [margin]            the ratio lies within the margin of 1
ratio           condition, baseline, [low], [high]       the ratio lies in the range
range-of-ratios conditions, baseline, [low], [high]      the same, of several
order           cells, direction                         every neighbouring pair is in that order
monotone        over, direction, [levels]                it grows (falls) all the way
contrast        condition, baseline, condition2,         the ratio of the two ratios lies above
                baseline2, direction                     or below 1
bound           condition, [low], [high], [unit]         the value itself lies in the range
linear          over, direction, [margin], [levels]      it grows (falls) along a straight line
fixed-offset    condition, baseline, over, [margin],     the difference has an intercept above 0
                [levels]                                 and no slope
knee            over, [low], [high], [levels]            the place where the fall or rise ends
=============== ======================================== ======================================

The first four may have ``conditions``, a list, in place of ``condition``: each has to lie there.
Of ``low`` and ``high`` at least one is there. Any kind may have ``each``, levels of factors for all
combinations of which the statement must hold; with ``most`` more than half of all that is compared
has to be as stated, and not all. The last three kinds serve one claim each: each fits
a curve of its own, which no ratio of cells can express.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Strict,
    StringConstraints,
    TypeAdapter,
)

from labkit.analysis.trials import quantile_level
from labkit.claims.published import published
from labkit.claims.stated import (
    Columns,
    Number,
    Stated,
    columns_of,
    compute,
    load_stated,
    standard_error,
    stated_path,
    with_unit,
)
from labkit.claims.toml_file import Mistakes, read_toml
from labkit.errors import DatasetError, UsageError
from labkit.paths import project
from labkit.placement import ENGINES
from labkit.units import level_words

Capability = Literal[
    "separate-kernels",
    "separate-machines",
    "separate-cpu-time",
    "nic-hardware",
    "isolated-cpus",
    "busy-poll",
    "aufs",
    "residence-time",
]
CAPABILITIES = get_args(Capability)
_STATISTICS = ("mean", "median", "min", "max", "std")


def _level(value: object) -> object:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str) and not (number and math.isfinite(float(str(value)))):
        raise ValueError("must be text or a finite number")
    return value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if any(value in values[:place] for place, value in enumerate(values)):
        raise ValueError("must not repeat a value")
    return values


def _range(ends: tuple[float, float] | None) -> tuple[float, float] | None:
    if ends is not None and not ends[0] < ends[1]:
        raise ValueError("must be two numbers, the lower one first")
    return ends


def _engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(f"must be one of {', '.join(ENGINES)}")
    return name


#: A factor's level, as selectors write it.
Level: TypeAlias = Annotated[str | float, BeforeValidator(_level)]
#: One combination of levels, by factor.
Cell: TypeAlias = Mapping[str, Level]
_Cell = Annotated[dict[str, Level], Field(min_length=1)]
_Cells = Annotated[tuple[_Cell, ...], Strict(False), Field(min_length=2), AfterValidator(_distinct)]
_Levels = Annotated[
    tuple[Level, ...], Strict(False), Field(min_length=2), AfterValidator(_distinct)
]
_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
_Names = Annotated[tuple[_Name, ...], Strict(False), AfterValidator(_distinct)]
_Text = Annotated[str, StringConstraints(min_length=1)]
_Positive = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=1)]
#: The bounds between which an estimate is said to lie.
Region: TypeAlias = tuple[float, float]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Needs(_Model):
    """What a claim asks of a rig; zero, or empty, where it asks nothing."""

    capabilities: Annotated[tuple[Capability, ...], Strict(False)] = ()
    #: CPUs of the system under test, at least and at most.
    cores: _Count = 0
    cores_at_most: _Count = 0
    #: CPUs that the host of the server shares with no other host of the rig, at least.
    own_cpus: _Count = 0
    hosts: _Count = 0
    link_gbit_per_s: _Positive = 0.0
    #: Samples a trial, at least.
    samples: _Count = 0
    #: The runtime that must have run.
    engine: Annotated[str, AfterValidator(_engine)] = ""
    #: The range of the most that a called server uses of a CPU, at the claim's `where`.
    cpu_use: Annotated[tuple[_Share, _Share] | None, Strict(False), AfterValidator(_range)] = None
    #: The greatest share of the packets offered that the claim's baseline may lose.
    loss_at_most: _Share | None = None


class Published(_Model):
    """What a paper has for the quantity that is estimated, as the file has it."""

    unit: _Text
    stated: Number | None = None
    compute: _Text | None = None
    names: dict[str, Any] | None = Field(None, alias="from", min_length=1)

    def mistakes(self) -> list[str]:
        """Return what is wrong between the keys."""
        messages = []
        if self.stated is None and self.compute is None:
            messages.append("published: stated or compute is missing; write one")
        if (self.compute is None) != (self.names is None):
            messages.append("published: compute and from need each other; write both")
        return messages


class Instead(_Model):
    """A possible reason why a claim differs, and the conditions of its campaign that test it.

    The levels of `condition` or `baseline` take the place of the claim's. Where `metric` or `where`
    are named, the claim itself is compared at those too.
    """

    why: _Text
    metric: str = ""
    where: dict[str, Level] = {}
    condition: dict[str, Level] = {}
    baseline: dict[str, Level] = {}


class _Claim(_Model):
    """A published statement as a hypothesis about cells of a study."""

    #: The keys of this kind that hold one cell, or several.
    cell_keys: ClassVar[tuple[str, ...]] = ()

    id: _Name
    #: The document's key, where in it, and the statement in our words.
    source: _Name
    place: _Text
    statement: _Text
    #: ``headline``: one of the few results that the source is cited for; ``remark``: said, and not
    #: measured by the source.
    tier: Literal["headline", "result", "remark"] = "result"
    study: _Text
    metric: _Text
    #: Of the samples of a trial; empty for a metric that has one number a trial.
    statistic: _Text = ""
    #: Levels held fixed for every cell.
    where: dict[str, Level] = {}
    #: Levels of factors for all combinations of which the statement must hold.
    each: Annotated[dict[str, _Levels], Field(min_length=1)] = {}
    #: Whether the source says "most": more than half of what is compared has to be as stated.
    most: bool = False
    #: What makes a rig suitable at all, and what makes it the same setting.
    needs: Needs = Needs()
    same: Needs = Needs()
    published: Published | None = None
    #: Identifiers of the statements (`labkit.claims.stated`) that bear on it.
    checks: _Names = ()
    #: Possible reasons why it differs, of claims about the ratio of two conditions.
    reasons: Annotated[tuple[Instead, ...], Strict(False)] = ()
    note: str = ""

    def complete_cells(self) -> dict[str, Cell]:
        """Return the cells that the claim names, complete with `where`, by their key."""
        cells: dict[str, Cell] = {}
        for key in self.cell_keys:
            value = getattr(self, key)
            if isinstance(value, tuple):
                cells |= {f"{key}[{place}]": cell for place, cell in enumerate(value)}
            elif value is not None:
                cells[key] = value
        return {key: {**self.where, **cell} for key, cell in cells.items()}

    def pairs(self) -> list[tuple[str, str]]:
        """Return the keys of the cells that are compared with each other."""
        if "baseline" not in self.cell_keys:
            return []
        return [(key, "baseline") for key in self.complete_cells() if key != "baseline"]

    def at_each(self) -> list[Cell]:
        """Return the combinations of the levels of `each`; one that is empty without any."""
        return [
            dict(zip(self.each, levels, strict=True))
            for levels in itertools.product(*self.each.values())
        ]

    def mistakes(self) -> list[str]:
        """Return what is wrong between the keys of the claim."""
        messages = []
        if not self.id.startswith(f"{self.source}-"):
            messages.append(f"id: does not start with {self.source}-")
        if self.statistic not in ("", *_STATISTICS) and quantile_level(self.statistic) is None:
            known = ", ".join(_STATISTICS)
            messages.append(f"statistic: {self.statistic!r} is unknown; known are {known}, p99 ...")
        if self.published is not None:
            messages += self.published.mistakes()
        if self.needs.loss_at_most is not None and "baseline" not in self.cell_keys:
            messages.append("needs: loss_at_most: only of a claim with a baseline")
        if self.reasons and not isinstance(self, _Compared):
            messages.append("reasons: only of a claim about the ratio to a baseline")
        for reason in self.reasons:
            if not (reason.condition or reason.baseline):
                messages.append("reasons: condition or baseline is missing; write one")
            if reason.condition and not getattr(self, "condition", None):
                messages.append("reasons: condition: the claim has several; write baseline")
        return messages + self._mistakes()

    def _mistakes(self) -> list[str]:
        """Return what is wrong between the cells of the claim; kinds add to it."""
        messages, cells = [], self.complete_cells()
        for key in self.cell_keys:
            written = getattr(self, key) or {}
            for cell in written if isinstance(written, tuple) else [written]:
                messages += [
                    f"{key}: {factor} = {level!r}, and where has {self.where[factor]!r}"
                    for factor, level in cell.items()
                    if self.where.get(factor, level) != level
                ]
        fixed = set(self.where).union(*cells.values())
        messages += [
            f"each: {factor} is fixed in a cell" for factor in self.each if factor in fixed
        ]
        for first, second in self.pairs():
            if odd := sorted(cells[first].keys() ^ cells[second].keys()):
                messages.append(f"{first}: has other factors than {second}: {odd}")
            elif cells[first] == cells[second]:
                messages.append(f"{first}: is compared with itself")
        return messages


class _Ranged(_Claim):
    """A claim whose estimate lies in a range."""

    low: float = -math.inf
    high: float = math.inf

    def region(self) -> Region:
        """Return the range."""
        return self.low, self.high

    def _mistakes(self) -> list[str]:
        messages = super()._mistakes()
        if not {"low", "high"} & self.model_fields_set:
            messages.append("low or high is missing; write one")
        if not self.low <= self.high:
            messages.append(f"low: {self.low} lies above high, {self.high}")
        return messages


class _Curve(_Claim):
    """A claim about the levels of one factor."""

    #: The factor that the curve runs over.
    over: _Text
    #: Its levels, in the order stated; empty for all that were measured.
    levels: _Levels = ()

    def _mistakes(self) -> list[str]:
        messages = super()._mistakes()
        if self.over in set(self.where).union(*self.complete_cells().values()):
            messages.append(f"over: {self.over} is fixed in a cell")
        if self.over in self.each:
            messages.append(f"each: {self.over} is what the curve runs over")
        return messages


class _Compared(_Claim):
    """A claim about the ratio of one cell, or of each of several, to a baseline."""

    cell_keys = ("condition", "conditions", "baseline")
    condition: _Cell | None = None
    conditions: _Cells | None = None
    baseline: _Cell

    def _mistakes(self) -> list[str]:
        unclear = (self.condition is None) == (self.conditions is None)
        said = ["condition or conditions: write one of them"] if unclear else []
        return said + super()._mistakes()


class Difference(_Compared):
    """The ratio lies above or below 1, or beyond `at_least`."""

    kind: Literal["difference"]
    direction: Literal["higher", "lower"]
    #: A ratio: 1.25 is "at least a quarter more", and for lower "at least a fifth less".
    at_least: Annotated[float, Field(ge=1)] = 1.0

    def region(self) -> Region:
        """Return the ratios beyond `at_least`."""
        return beyond(self.direction, self.at_least)


class Equivalence(_Compared):
    """The ratio lies within a margin of 1."""

    kind: Literal["equivalence"]
    margin: _Positive = 0.02

    def region(self) -> Region:
        """Return the ratios within the margin."""
        return 1 / (1 + self.margin), 1 + self.margin


class Ratio(_Ranged, _Compared):
    """The ratio lies in a range."""

    kind: Literal["ratio", "range-of-ratios"]
    #: The range without the paper's own error, where that made it wider (`_Reader._widened`).
    _stated: Region | None = PrivateAttr(None)

    def side(self) -> Region:
        """Return the side of 1 on which the stated range lies; all ratios where 1 is inside."""
        low, high = self._stated or self.region()
        return (1.0 if low >= 1 else -math.inf), (1.0 if high <= 1 else math.inf)


class _Directed(_Claim):
    """A claim that values grow or fall."""

    direction: Literal["increasing", "decreasing"]

    def region(self) -> Region:
        """Return the ratios above or below 1."""
        return beyond(self.direction)


class Order(_Directed):
    """Each cell lies above, or below, the one before it."""

    cell_keys = ("cells",)
    kind: Literal["order"]
    cells: _Cells

    def pairs(self) -> list[tuple[str, str]]:
        """Return the keys of neighbouring cells."""
        return [(above, below) for below, above in itertools.pairwise(self.complete_cells())]


class Monotone(_Directed, _Curve):
    """The value grows or falls from each level to the next."""

    kind: Literal["monotone"]


class Contrast(_Claim):
    """The ratio of one pair of cells lies above or below that of another."""

    cell_keys = ("condition", "baseline", "condition2", "baseline2")
    kind: Literal["contrast"]
    condition: _Cell
    baseline: _Cell
    condition2: _Cell
    baseline2: _Cell
    direction: Literal["higher", "lower"]

    def pairs(self) -> list[tuple[str, str]]:
        """Return the keys of both pairs."""
        return [("condition", "baseline"), ("condition2", "baseline2")]

    def _mistakes(self) -> list[str]:
        cells = self.complete_cells()
        odd = sorted(cells["condition"].keys() ^ cells["condition2"].keys())
        said = f"condition2: has other factors than condition: {odd}"
        return super()._mistakes() + ([said] if odd else [])


class Bound(_Ranged):
    """The value of a cell lies in a range."""

    cell_keys = ("condition",)
    kind: Literal["bound"]
    condition: _Cell
    #: Of the bounds, as the metric is stored.
    unit: _Text = ""


class Linear(_Directed, _Curve):
    """The value grows or falls along a straight line."""

    kind: Literal["linear"]
    #: Of the deviation from the line, as a share of its rise.
    margin: _Positive = 0.05


class FixedOffset(_Curve):
    """What a condition adds to a baseline is the same at every level."""

    cell_keys = ("condition", "baseline")
    kind: Literal["fixed-offset"]
    condition: _Cell
    baseline: _Cell
    #: Of the growth of what is added, as a share of the baseline.
    margin: _Positive = 0.02


class Knee(_Ranged, _Curve):
    """The place where a fall or rise ends lies in a range."""

    kind: Literal["knee"]


Claim: TypeAlias = (
    Difference | Equivalence | Ratio | Order | Monotone | Contrast | Bound
    | Linear | FixedOffset | Knee
)  # fmt: skip
#: Those whose parts are ratios of two conditions.
RatioClaim: TypeAlias = Difference | Equivalence | Order | Ratio
CLAIM: TypeAdapter[Claim] = TypeAdapter(Annotated[Claim, Discriminator("kind")])
KINDS = tuple(
    kind for model in get_args(Claim) for kind in get_args(model.model_fields["kind"].annotation)
)


def beyond(direction: str, factor: float = 1.0) -> Region:
    """Return the ratios above a factor, or below its inverse."""
    up = direction in ("higher", "increasing")
    return (factor, math.inf) if up else (-math.inf, 1 / factor)


@dataclass(frozen=True)
class PublishedValue:
    """What a paper has for the quantity that a claim is about."""

    unit: str
    stated: float | bool | None = None
    computed: float | bool | None = None

    @property
    def number(self) -> float:
        """The number from the paper's tables, or else the stated one; NaN where it is a truth."""
        numbers = [v for v in (self.computed, self.stated) if v is not None]
        return next((float(v) for v in numbers if not isinstance(v, bool)), math.nan)

    @property
    def text(self) -> str:
        """All that the paper has, in a phrase."""
        parts = []
        for word, value in (("stated", self.stated), ("from its tables", self.computed)):
            if isinstance(value, bool):
                parts.append(f"{word}: {'yes' if value else 'no'}")
            elif value is not None:
                parts.append(f"{with_unit(value, self.unit)} {word}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Claims:
    """All claims, in the order of the file, with what the papers have for them."""

    claims: tuple[Claim, ...]
    #: The statements that claims refer to (`checks`), by their id.
    stated: Mapping[str, Stated] = field(default_factory=dict)
    #: By the claim's id.
    published: Mapping[str, PublishedValue] = field(default_factory=dict)
    workloads: tuple[Workload, ...] = ()
    hosts: tuple[PaperHosts, ...] = ()

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __len__(self) -> int:
        return len(self.claims)

    def __getitem__(self, name: str) -> Claim:
        for claim in self.claims:
            if claim.id == name:
                return claim
        raise UsageError(f"no claim {name!r}", remedy="see the ids in data/claims.toml")

    def sizes(self, claim: Claim) -> Mapping[str, float]:
        """Return the sizes of the runs that a claim was published from."""
        published: dict[str, float] = {}
        for workload in self.workloads:
            if workload.concerns(claim):
                published |= workload.sizes
        return published

    def paper_hosts(self, claim: Claim) -> Mapping[str, str]:
        """Return what the paper's hosts had, of what a claim depends on."""
        stated: dict[str, str] = {}
        for hosts in self.hosts:
            if hosts.concerns(claim):
                stated |= hosts.had
        return stated

    @property
    def sources(self) -> tuple[str, ...]:
        """The documents that have claims, in the order of the file."""
        return tuple(dict.fromkeys(claim.source for claim in self.claims))

    @property
    def studies(self) -> tuple[str, ...]:
        """The studies that have claims, in the order of the file."""
        return tuple(dict.fromkeys(claim.study for claim in self.claims))


class _OfClaims(_Model):
    """What a source says of its own runs, for those of its claims on a study that it concerns."""

    source: _Name
    study: _Text
    #: Only claims about one of these levels of a factor; a claim that does not name it counts too.
    where: dict[str, Annotated[tuple[Level, ...], Strict(False)]] = {}

    def concerns(self, claim: Claim) -> bool:
        """Return whether it concerns a claim."""
        if (claim.source, claim.study) != (self.source, self.study):
            return False
        cells = list(claim.complete_cells().values()) or [claim.where]
        for factor, levels in self.where.items():
            named = {cell[factor] for cell in cells if factor in cell}
            named |= set(claim.each.get(factor, ()))
            if named and not named & set(levels):
                return False
        return True


class Workload(_OfClaims):
    """Sizes and durations, by the settings of a study's plan."""

    #: ``a.b`` is the key (or the place in a list) ``b`` of the setting ``a``.
    sizes: Annotated[dict[str, _Positive], Field(min_length=1)]


class PaperHosts(_OfClaims):
    """What the hosts had."""

    congestion_control: str = ""
    disk: Literal["", "hard disk", "SSD", "NVMe", "virtual disk", "not stated"] = ""
    idle: Literal["", "as found"] = ""
    seccomp: Literal["", "none", "default"] = ""
    weave: Literal["", "sleeve", "fastdp"] = ""

    @property
    def had(self) -> dict[str, str]:
        """What is stated, by its name."""
        return self.model_dump(exclude=set(_OfClaims.model_fields), exclude_defaults=True)


class _File(BaseModel):
    """A file of claims; they are checked one by one."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal[1]
    workload: list[Workload] = []
    hosts: list[PaperHosts] = []
    claim: list[dict[str, Any]] = []


def load_claims(path: Path | str | None = None, root: Path | str | None = None) -> Claims:
    """Return the claims."""
    content, mistakes = read_toml(
        project("data/claims.toml") if path is None else Path(path), _File
    )
    reader = _Reader(mistakes, root)
    claims = [
        claim
        for number, entry in enumerate(content.claim, 1)
        if (claim := reader.read(number, entry))
    ]
    mistakes.stop(f"correct these entries of {mistakes.path.name}")
    stated = {
        name: statement for several in reader.stated.values() for name, statement in several.items()
    }
    return Claims(
        tuple(claims), stated, reader.published, tuple(content.workload), tuple(content.hosts)
    )


class _Reader:
    """Reads the claims of one file, with the documents that they refer to."""

    def __init__(self, mistakes: Mistakes, root: Path | str | None) -> None:
        self.mistakes, self.root = mistakes, root
        self.names: set[str] = set()
        self.tables: dict[str, Columns | None] = {}
        self.stated: dict[str, dict[str, Stated]] = {}
        self.published: dict[str, PublishedValue] = {}

    def read(self, number: int, entry: dict[str, Any]) -> Claim | None:
        """Return the claim of an entry, or None when it has not the form of its kind."""
        name = str(entry.get("id", f"claim {number}"))
        if name in self.names:
            self.mistakes.add(name, "id: used twice; choose another")
        self.names.add(name)
        claim = self.mistakes.validate(name, entry, CLAIM)
        if claim is not None:
            of_paper = self._paper(claim)  # reads the tables that the checks need, too
            self.mistakes.add(name, *claim.mistakes(), *self._checks(claim), *of_paper)
            claim = self._widened(claim)
        return claim

    def _checks(self, claim: Claim) -> list[str]:
        """Return what is wrong with the statements that a claim refers to."""
        messages, source = [], claim.source
        if claim.checks and source not in self.stated:
            self.stated[source] = {}
            try:
                self.stated[source] = {
                    statement.id: statement
                    for statement in load_stated(source, self.root, self.tables.get(source))
                }
            except DatasetError as error:
                messages.append(f"checks: {error.what}; {error.why or error.remedy}")
        file = stated_path(source, self.root).name
        unknown = [name for name in claim.checks if name not in self.stated[source]]
        return messages + [f"checks: {file} has no {name!r}" for name in unknown]

    def _paper(self, claim: Claim) -> list[str]:
        """Compute what the paper has; return what is wrong with it."""
        source, paper = claim.source, claim.published
        if source not in self.tables:
            self.tables[source] = None
            try:
                self.tables[source] = columns_of(published(source, self.root))
            except DatasetError as error:
                return [f"source: {error.what}; {error.why or error.remedy}"]
        table_or_none = self.tables[source]
        if paper is None or table_or_none is None:
            return []
        computed = None
        if paper.compute and paper.names:
            try:
                (computed,) = compute([paper.compute], paper.names, table_or_none)
            except UsageError as error:
                return [f"published: {error.what}" + (f": {error.why}" if error.why else "")]
        self.published[claim.id] = PublishedValue(paper.unit, paper.stated, computed)
        return []

    def _widened(self, claim: Claim) -> Claim:
        """Return a claim whose range is no narrower than the paper's own error.

        The range is extended to contain the 95 % interval of the paper's ratio, from the means,
        standard deviations and numbers of runs that it prints. The side of 1 on which the ratio has
        to be shown stays that of the range as stated (`Ratio.side`).
        """
        paper, table = claim.published, self.tables.get(claim.source)
        value = self.published.get(claim.id)
        if (
            not isinstance(claim, Ratio)
            or not (math.isfinite(claim.low) and math.isfinite(claim.high))
            or paper is None
            or not paper.compute
            or not paper.names
            or table is None
            or value is None
            or isinstance(value.computed, bool | None)
            or not all(isinstance(source, dict) for source in paper.names.values())
        ):
            return claim
        half = 1.96 * standard_error(paper.compute, paper.names, table)
        if math.isnan(half):
            return claim
        low, high = min(claim.low, value.computed - half), max(claim.high, value.computed + half)
        wider = claim.model_copy(update={"low": max(low, 0.0), "high": high})
        wider._stated = claim.region()
        return wider


def words(cell: Cell, *, without: Cell | None = None) -> str:
    """Return a cell in words, without the levels that another has too (if any are left)."""
    left = {name: level for name, level in cell.items() if (without or {}).get(name) != level}
    return ", ".join(level_words(name, level) for name, level in (left or cell).items())


def level_text(level: Level) -> str:
    """Return a level as a message names it."""
    return f"{level:g}" if isinstance(level, int | float) else repr(level)
