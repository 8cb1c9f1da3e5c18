"""A study, as a notebook declares it, and its plan on a rig."""

from __future__ import annotations

import html
import inspect
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from labkit import dataset, design
from labkit.analysis.power import decidable_margin
from labkit.analysis.sequential import Looks
from labkit.campaign.looks import Questions, measured_rows, needs
from labkit.campaign.runner import OneTrial, Runner, off_the_sut, run_protocol
from labkit.campaign.store import Store
from labkit.campaign.treatments import Treatment
from labkit.campaign.trial import Trial
from labkit.claims.schema import load_claims
from labkit.design import Condition
from labkit.errors import DatasetError, UsageError, suggestion
from labkit.paths import project
from labkit.placement import Placement
from labkit.process import chosen_blocks
from labkit.rig import Rig
from labkit.tools.base import Measurement
from labkit.version import MEASUREMENT_VERSION, VERSION

Levels = Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """One research question, as its notebook declares it.

    Parameters
    ----------
    name : str
        Short, of letters, digits and hyphens: its folder in the data.
    protocol : callable
        Runs one trial: takes a `labkit.campaign.trial.Trial`, returns what ``measure`` returned.
    factors : mapping of str to sequence
        What is varied, with its levels.
    settings : mapping
        What all trials have in common.
    baseline : mapping
        Levels of the condition that the others are compared with.
    replicates : sequence of mapping
        Conditions that run twice in each block (A/A), for the noise floor.
    keep : callable, optional
        Takes a combination of levels; returns whether it belongs to the study.
    tools : mapping of str to callable, optional
        Takes a host, returns the version of the tool there: ``{"sockperf": sockperf.probe}``.
    margin : float
        Relative difference up to which two conditions count as equal; fixed with the plan.
    seconds : callable, optional
        Takes a combination of levels; returns the expected seconds of its window.
    treatments : mapping of str to Treatment
        Treatments by the name of their factor or setting (`labkit.treatments`).
    outcomes : sequence of str
        Columns of `Dataset.trials`, such as ``rtt_ns_median``: what the study was made to compare,
        fixed with the plan. Their noise decides which margin a plan expects to decide.
    together : sequence of str
        Factors: conditions with the same levels of them follow each other within a block, so that
        little time passes between what is compared.

    Examples
    --------
    >>> from labkit import Study, docker, treatments
    >>> study = Study(
    ...     "waiting",
    ...     lambda trial: ...,
    ...     factors={"placement": [docker("host")], "wait": ["block", "busy_poll"]},
    ...     treatments={"wait": treatments.BusyPolling()},
    ... )
    """

    name: str
    protocol: Callable[[Trial], Measurement]
    factors: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    baseline: Levels = field(default_factory=dict)
    replicates: Sequence[Levels] = ()
    keep: Callable[[Levels], bool] | None = None
    tools: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    margin: float = 0.02
    seconds: Callable[[Levels], float] | None = None
    treatments: Mapping[str, Treatment] = field(default_factory=dict)
    outcomes: Sequence[str] = ()
    together: Sequence[str] = ()

    def __post_init__(self) -> None:
        names = {*self.factors, *self.settings}
        if unknown := [name for name in self.treatments if name not in names]:
            raise UsageError(
                f"treatments of neither a factor nor a setting: {', '.join(unknown)}",
                where=f"study {self.name}",
                remedy=suggestion(unknown[0], sorted(names)),
            )

    def infeasible(self, rig: Rig, levels: Levels) -> str | None:
        """Return why a rig cannot run these placements and treatments, or None.

        Raises
        ------
        UsageError
            A treatment has no such level.
        """
        placements = (one for one in levels.values() if isinstance(one, Placement))
        values = {**self.settings, **levels}
        for name, treatment in self.treatments.items():
            if treatment.known is not None and values[name] not in treatment.known:
                raise UsageError(
                    f"{name} has no level {values[name]!r}",
                    where=f"study {self.name}",
                    remedy=suggestion(values[name], treatment.known),
                )
        reasons = itertools.chain(
            (rig.infeasible(one) for one in placements),
            (
                treatment.feasibility(rig, values[name], levels)
                for name, treatment in self.treatments.items()
            ),
        )
        return next(filter(None, reasons), None)

    def try_one(self, rig: Rig, **levels: Any) -> OneTrial:
        """Run one trial outside any campaign, and return all that it did.

        Parameters
        ----------
        rig : Rig
            Where it runs.
        **levels
            Levels of factors, planned or not; the baseline's, or the first level, when omitted.

        Raises
        ------
        UsageError
            There is no such factor, or the rig cannot run the condition.
        Exception
            What the protocol raised.
        """
        if unknown := [name for name in levels if name not in self.factors]:
            raise UsageError(
                f"no factor called {', '.join(unknown)}",
                remedy=suggestion(unknown[0], self.factors),
            )
        first = {name: self.baseline.get(name, of[0]) for name, of in self.factors.items()}
        condition = Condition(tuple((first | levels).items()))
        if reason := self.infeasible(rig, dict(condition.levels)):
            raise UsageError(f"{condition.label} is not possible here", why=reason)
        trial = Trial(
            rig,
            condition,
            self.settings,
            f"trial-{os.getpid()}-try",
            {},
            treatments=self.treatments,
        )
        with off_the_sut(rig):
            measurement, error = run_protocol(rig.protocol(self.protocol, condition, 1), trial)
        if measurement is None:
            raise error or UsageError("the trial returned nothing")
        return OneTrial(condition.label, measurement, trial.record, trial.logs)

    def plan(
        self,
        rig: Rig,
        *,
        blocks: int,
        seed: int,
        earlier: Path | str | None = None,
        infeasible: Callable[[Levels], str | None] | None = None,
        decide: Mapping[str, Any] = MappingProxyType({}),
    ) -> Plan:
        """Fix conditions, order and identity on a rig, before anything runs.

        Parameters
        ----------
        rig : Rig
            Where it will run; conditions that it cannot run are left out, with the reason.
        blocks, seed : int
            Number of blocks, and the seed of their order.
        earlier : path, optional
            A campaign from whose noise the smallest decidable margin is estimated.
        infeasible : callable, optional
            Takes a combination of levels; returns why the study cannot measure it, or None.
        decide : mapping
            What the campaign is to decide, and when; it is part of the plan. ``looks``: numbers of
            blocks after which conditions that no open question needs are dropped, the last one
            `blocks`. ``claims``: ids of the published claims that are to be decided, of this study
            and of others (all claims when omitted). ``only``: mappings of levels. Where claims or
            levels are named, only conditions that the claims need, or that have all levels of one
            mapping, are measured. ``baseline`` and ``outcomes``: in place of the study's.
            ``vary``: levels of a setting, which becomes a factor, to test ``reason``: why the
            claims may not come out as published (`labkit.claims.reasons`). Its first level is the
            one that the study otherwise has.
        """
        if unknown := [name for name in decide if name not in DECIDE]:
            raise UsageError(
                f"unknown in decide: {', '.join(unknown)}", remedy=suggestion(unknown[0], DECIDE)
            )
        study, claims = self._narrowed(decide, earlier), decide.get("claims")
        if vary := decide.get("vary"):
            _check_vary(self, decide)
            study = _varying(study, vary)
        looks = decide.get("looks")
        questions = _questions(study, blocks, looks, claims) if looks else None
        for name, level in study.baseline.items():
            labels = [design.level_label(one) for one in study.factors.get(name, ())]
            if design.level_label(level) not in labels:
                raise UsageError(
                    f"the baseline {name}={level} is not a level of the study",
                    remedy=suggestion(design.level_label(level), labels),
                )
        ordered = design.make_design(
            study.factors,
            blocks=blocks,
            seed=seed,
            keep=study.keep,
            replicates=study.replicates,
            infeasible=lambda levels: (
                study.infeasible(rig, levels) or (infeasible and infeasible(levels))
            ),
            together=study.together,
        )
        named = None if claims is None else tuple(claims)
        return Plan(
            study,
            rig,
            ordered,
            blocks,
            seed,
            earlier,
            questions,
            named,
            {"vary": list(vary), "reason": decide["reason"]} if vary else {},
        )

    def _narrowed(self, decide: Mapping[str, Any], earlier: Path | str | None) -> Study:
        """Return the study with a part of its conditions, another baseline, or other outcomes."""
        study = replace(self, outcomes=decide.get("outcomes", self.outcomes))
        if baseline := decide.get("baseline"):
            # Without a condition that runs twice a page would have no noise floor.
            study = replace(study, baseline=baseline, replicates=[baseline])
        only, claims = [_labels(part) for part in decide.get("only", ())], decide.get("claims")
        if not only and not claims:
            return study
        for name, level in {item for part in only for item in part.items()}:
            levels = [design.level_label(one) for one in self.factors.get(name, ())]
            if level not in levels:
                raise UsageError(
                    f"decide: {name} has no level {level!r}",
                    remedy=suggestion(level, levels) if levels else suggestion(name, self.factors),
                )
        keep, needed = self.keep or (lambda levels: True), self._needed(claims or (), earlier)

        def kept(levels: Levels) -> bool:
            own = _labels(levels)
            selected = any(part.items() <= own.items() for part in only)
            return keep(levels) and (selected or design.condition_label(own) in needed)

        return replace(study, keep=kept)

    def _needed(self, claims: Sequence[str], earlier: Path | str | None) -> set[str]:
        """Return the labels of the conditions that claims need."""
        known = load_claims()
        about = [known[name] for name in claims if known[name].study == self.name]
        combinations = [
            dict(zip(self.factors, levels, strict=True))
            for levels in itertools.product(*self.factors.values())
        ]
        kept = [_labels(levels) for levels in combinations if not self.keep or self.keep(levels)]
        rows = measured_rows(kept, _known(earlier))
        return {label for claim in about for label in needs(claim, rows)}


#: What a plan can be told to decide.
DECIDE = ("looks", "claims", "only", "baseline", "outcomes", "vary", "reason")


def _check_vary(study: Study, decide: Mapping[str, Any]) -> None:
    """Raise `UsageError` unless an experiment on a reason is complete."""
    vary = decide["vary"]
    if unknown := [name for name in vary if name not in study.settings]:
        raise UsageError(
            f"decide: {study.name} has no setting {unknown[0]!r} to vary",
            remedy=suggestion(unknown[0], study.settings),
        )
    if len(vary) != 1 or any(len(levels) < 2 for levels in vary.values()):
        raise UsageError(
            "decide: vary takes one setting with two levels or more",
            remedy="write for example vary: {congestion_control: [bbr, cubic]}",
        )
    if not (decide.get("claims") and decide.get("reason")) or decide.get("looks"):
        raise UsageError(
            "decide: vary goes with claims and a reason, and without looks",
            remedy="name the claims, and say in `reason` why they may not come out as published",
        )


def _varying(study: Study, vary: Mapping[str, Sequence[Any]]) -> Study:
    """Return a study of which settings are factors."""
    keep = study.keep or (lambda levels: True)
    return replace(
        study,
        factors={**study.factors, **vary},
        settings={name: value for name, value in study.settings.items() if name not in vary},
        keep=lambda levels: keep({name: levels[name] for name in study.factors}),
    )


def _labels(levels: Levels) -> dict[str, str]:
    return {name: design.level_label(level) for name, level in levels.items()}


def _known(earlier: Path | str | None) -> list[dataset.Dataset]:
    """Return an earlier campaign of the study, if there is one."""
    if earlier is None:
        return []
    try:
        return [dataset.load(project(earlier))]
    except DatasetError:
        return []


@dataclass(frozen=True)
class Plan:
    """A study's fixed plan on a rig; display it to see order, duration, infeasible conditions.

    Examples
    --------
    Conditions without a placement need nothing of a rig, so an empty one shows the order:

    >>> from labkit import Rig, Study
    >>> study = Study("sizes", lambda trial: ..., factors={"size_b": ["0", "1024"]})
    >>> parts = dict.fromkeys(["hosts", "targets", "addresses", "cpu_map"], {})
    >>> plan = study.plan(Rig("empty", "none", shared_kernel=True, **parts), blocks=5, seed=1)
    >>> print(plan)  # doctest: +ELLIPSIS
    sizes: 2 conditions x 5 blocks = 10 trials on rig empty
    expected duration: 1.0 min
    smallest decidable margin: not known before a pilot (no earlier campaign was named)
    block 1: ...
    """

    study: Study
    rig: Rig
    design: design.Design
    blocks: int
    seed: int
    earlier: Path | str | None = None
    questions: Questions | None = None
    #: Ids of the claims that the campaign is to decide; None for all.
    claims: tuple[str, ...] | None = None
    #: Of an experiment on a reason: ``vary``, the settings that are factors, and ``reason``.
    experiment: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of every host by role, read once."""
        return self.rig.facts()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be equal for a campaign to be resumed."""
        stable = {role: facts.get("stable", {}) for role, facts in self.facts.items()}
        return {
            **self._stopping,
            "study": self.study.name,
            "settings": design.canonical(self.study.settings),
            "margin": self.study.margin,
            "blocks": self.blocks,
            "seed": self.seed,
            "conditions": [condition.key for condition in self.design.conditions],
            "order": [list(block) for block in self.design.order],
            "protocol": _source(self.study.protocol),
            "measurement_version": MEASUREMENT_VERSION,
            "images": self.rig.images(),
            "tools": self._tools(),
            # What a plan needs of the capabilities shows in its conditions; another engine that is
            # installed meanwhile does not concern it. Caveats only describe the rig.
            "rig": {
                name: of
                for name, of in self.rig.describe().items()
                if name not in ("capabilities", "caveats")
            },
            "hosts": design.canonical(stable),
        }

    @property
    def _stopping(self) -> dict[str, Any]:
        """When the campaign looks, and which claims it is to decide or test; empty without."""
        looks = {"looks": list(self.questions.looks.blocks)} if self.questions else {}
        claims = {} if self.claims is None else {"claims": list(self.claims)}
        return {**looks, **claims, **self.experiment}

    def _tools(self) -> dict[str, str]:
        roles = [role for role in ("generator", "clean") if role in self.rig.hosts]
        return {
            f"{tool} on {role}": probe(self.rig.hosts[role])
            for tool, probe in self.study.tools.items()
            for role in roles
        }

    def as_record(self) -> dict[str, Any]:
        """Return the plan as ``plan.json`` holds it."""
        return {
            **self._stopping,
            "study": self.study.name,
            "identity": self.identity,
            "labkit": VERSION,
            "settings": design.canonical(self.study.settings),
            "factors": {
                name: [design.level_label(level) for level in levels]
                for name, levels in self.study.factors.items()
            },
            "baseline": {name: design.level_label(x) for name, x in self.study.baseline.items()},
            "margin": self.study.margin,
            # What was to be compared was fixed before measuring; a page may show more.
            "outcomes": list(self.study.outcomes),
            "blocks": self.blocks,
            "seed": self.seed,
            "conditions": [
                {
                    "levels": {name: design.level_label(x) for name, x in condition.levels},
                    "replicate": condition.replicate,
                }
                for condition in self.design.conditions
            ],
            "order": [list(block) for block in self.design.order],
            "infeasible": [vars(one) for one in self.design.infeasible],
            "rig": self.rig.describe(),
        }

    def run(self, into: Path | str, *, new: bool = False) -> dataset.Dataset:
        """Run the trials of the plan that were not measured yet, and return the dataset.

        Parameters
        ----------
        into : path
            The campaign's folder is ``<into>/<study>/<campaign>``.
        new : bool
            Begin another campaign instead of resuming the newest.

        Raises
        ------
        PlanMismatch
            The newest campaign there has another plan, and `new` is false.
        UsageError
            Another process, here or on another machine, measures that campaign.
        """
        store = Store.resume_or_begin(project(into) / self.study.name, self.as_record(), new=new)
        study, only = self.study, chosen_blocks()
        runner = Runner(
            study.name,
            self.rig,
            self.design,
            study.protocol,
            study.settings,
            study.treatments,
            # A part of the blocks is no look at all of them.
            self.questions if only is None else None,
            only,
        )
        with store.held():
            runner.run(store, self.facts)
        return dataset.load(store.path)

    def estimate(self) -> Estimate:
        """Return the expected duration, and the smallest margin that can be decided."""
        window = self.study.seconds or (lambda levels: 5.0)
        windows = [window(dict(condition.levels)) for _, _, condition in self.design.trials()]
        seconds = sum(windows) + OVERHEAD * len(windows)
        if self.earlier is None:
            return Estimate(seconds, None, "no earlier campaign was named")
        if not self.study.outcomes:
            return Estimate(seconds, None, "the study declares no outcomes")
        try:
            earlier = dataset.load(project(self.earlier))
        except DatasetError as error:
            return Estimate(seconds, None, error.what)
        noisiest = noise(earlier.ok, list(self.study.factors), self.study.outcomes)
        if noisiest is None:
            return Estimate(seconds, None, "the earlier campaign has too few A/A replicates")
        outcome, sd = noisiest
        margin = decidable_margin(sd, self.blocks) if self.blocks >= 2 else None
        return Estimate(seconds, margin, f"campaign {earlier.path.name}", outcome)

    def __str__(self) -> str:
        estimate = self.estimate()
        counts = f"{len(self.design.conditions)} conditions x {self.blocks} blocks"
        lines = [
            f"{self.study.name}: {counts} = {len(self.design)} trials on rig {self.rig.name}",
            f"expected duration: {estimate.duration_text}",
            f"smallest decidable margin: {estimate.margin_text}",
            *([] if self.blocks >= 5 else ["fewer than 5 blocks: this is a pilot"]),
            *(f"infeasible: {one.condition}: {one.reason}" for one in self.design.infeasible),
        ]
        for number, block in enumerate(self.design.order, start=1):
            keys = [self.design.conditions[index].key for index in block]
            lines.append(f"block {number}: " + ", ".join(keys))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *blocks = str(self).split("\nblock 1: ", 1)
        order = html.escape("block 1: " + blocks[0]) if blocks else ""
        shown = "".join(f"<li>{html.escape(line)}</li>" for line in head.splitlines())
        return (
            f"<ul>{shown}</ul><details><summary>order of the trials</summary>"
            f"<pre style='white-space:pre-wrap'>{order}</pre></details>"
        )


#: Seconds of one trial outside its window, rounded up from those of the development machine.
OVERHEAD = 0.8


@dataclass(frozen=True)
class Estimate:
    """Duration in seconds; smallest decidable margin (a ratio minus 1), its source and column."""

    seconds: float
    margin: float | None
    source: str
    outcome: str = ""

    @property
    def duration_text(self) -> str:
        """The duration with its unit."""
        minutes = self.seconds / 60
        return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"

    @property
    def margin_text(self) -> str:
        """The margin with its power and source."""
        if self.margin is None:
            return f"not known before a pilot ({self.source})"
        return f"{self.margin:.1%} on {self.outcome} (80 % power; from {self.source})"


def noise(
    trials: pd.DataFrame, factors: Sequence[str], outcomes: Sequence[str]
) -> tuple[str, float] | None:
    """Return the noisiest outcome and its noise: the SD of the log ratio of A/A replicates.

    The noise of an outcome is that of its noisiest condition. A condition needs 3 pairs of
    replicates; None where no condition has them.
    """
    if not {"replicate", "block", *factors} <= set(trials.columns):
        return None
    spreads: dict[str, float] = {}
    for column in [name for name in outcomes if name in trials.columns]:
        wide = trials.pivot_table(index=[*factors, "block"], columns="replicate", values=column)
        if {1, 2} <= set(wide.columns):
            ratios = (wide[1] / wide[2]).dropna()
            ratios = ratios[(ratios > 0) & (ratios < math.inf)].map(math.log)
            groups = [group for _, group in ratios.groupby(level=list(factors)) if len(group) >= 3]
            spreads |= {column: float(max(group.std(ddof=1) for group in groups))} if groups else {}
    return max(spreads.items(), key=lambda item: item[1], default=None)


def _questions(
    study: Study, blocks: int, looks: Sequence[int], claims: Sequence[str] | None
) -> Questions:
    """Return what a campaign is to decide."""
    if looks[-1] != blocks:
        raise UsageError(
            f"the last look is after {looks[-1]} blocks, and {blocks} are planned",
            remedy=f"end looks with {blocks}",
        )
    known = load_claims()
    chosen = list(known) if claims is None else [known[name] for name in claims]
    hosts = {claim.id: known.paper_hosts(claim) for claim in chosen}
    return Questions(Looks(tuple(looks)), chosen, study.outcomes, hosts)


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a protocol and of the functions of its module that it calls."""
    functions = [function]
    for caller in functions:  # grows while it is iterated
        inner = inspect.unwrap(caller)
        names = getattr(getattr(inner, "__code__", None), "co_names", ())
        functions += [
            called
            for called in (getattr(inner, "__globals__", {}).get(name) for name in names)
            if inspect.isfunction(called)
            and inspect.unwrap(called).__module__ == inner.__module__
            and called not in functions
        ]
    try:
        return "\n".join(map(inspect.getsource, functions))
    except (OSError, TypeError):
        raise UsageError(
            f"the source of {function!r} cannot be read",
            why="a plan's identity includes the code of the protocol and of what it calls",
            remedy="define it with def, in the notebook or in a file",
        ) from None
