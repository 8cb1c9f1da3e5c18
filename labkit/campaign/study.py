"""A study and its plan: what a notebook declares, shows, and runs; what a plan promises."""

from __future__ import annotations

import html
import inspect
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from labkit import dataset, design
from labkit.analysis.power import decidable_margin
from labkit.campaign.one_trial import OneTrial
from labkit.campaign.runner import Runner, off_the_sut
from labkit.campaign.store import Store
from labkit.campaign.treatments import Treatment
from labkit.campaign.trial import Trial
from labkit.design import Condition
from labkit.errors import DatasetError, UsageError
from labkit.paths import project
from labkit.placement import Placement
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
        What is not, as the protocol reads it.
    baseline : mapping
        Levels of the condition that the others are compared with.
    replicates : sequence of mapping
        Conditions that run twice in each block, for the noise floor.
    keep : callable, optional
        Which combinations of levels belong to the study.
    tools : mapping of str to callable, optional
        Version of each tool on a host: ``{"sockperf": sockperf.probe}``.
    margin : float
        Relative difference up to which two conditions count as equal; fixed with the plan.
    seconds : callable, optional
        Expected duration of a trial's window with these levels, for the plan's estimate.
    treatments : mapping of str to Treatment
        What levels of factors and settings do to a trial, by their names (`labkit.treatments`).
    outcomes : sequence of str
        Columns of trials, such as ``rtt_ns_median``, on whose noise the plan's margin is promised.

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

    def __post_init__(self) -> None:
        names = {*self.factors, *self.settings}
        if unknown := [name for name in self.treatments if name not in names]:
            raise UsageError(
                f"treatments of neither a factor nor a setting: {', '.join(unknown)}",
                where=f"study {self.name}",
                remedy=f"one of {', '.join(sorted(names))}",
            )

    def infeasible(self, rig: Rig, levels: Levels) -> str | None:
        """Return why a rig cannot run a condition, or None.

        It is asked for every placement among the levels, and for every factor with a treatment.
        """
        placements = (one for one in levels.values() if isinstance(one, Placement))
        reasons = itertools.chain(
            (rig.infeasible(one) for one in placements),
            (
                treatment.feasibility(rig, levels[name], levels)
                for name, treatment in self.treatments.items()
                if name in levels
            ),
        )
        return next(filter(None, reasons), None)

    def try_one(self, rig: Rig, **levels: Any) -> OneTrial:
        """Run one trial outside any campaign, and return what it did; display it to see all.

        Parameters
        ----------
        rig : Rig
            Where.
        **levels
            Levels of factors, also such as the study does not plan; the others are the
            baseline's, or the first.

        Raises
        ------
        UsageError
            There is no such factor, or the rig cannot run the condition.
        LabkitError
            Whatever the trial raised.
        """
        if unknown := [name for name in levels if name not in self.factors]:
            raise UsageError(
                f"no factor called {', '.join(unknown)}", remedy=f"one of {', '.join(self.factors)}"
            )
        first = {name: self.baseline.get(name, of[0]) for name, of in self.factors.items()}
        condition = Condition(tuple((first | levels).items()))
        if reason := self.infeasible(rig, dict(condition.levels)):
            raise UsageError(f"{condition.label} is not possible here", why=reason)
        runner = Runner(
            self.name,
            rig,
            design.Design((condition,), ((0,),), ()),
            self.protocol,
            self.settings,
            self.treatments,
        )
        with off_the_sut(rig):
            trial, measurement, error = runner.attempt(condition, f"trial-{os.getpid()}-try")
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
    ) -> Plan:
        """Fix conditions, order and identity on a rig, before anything runs.

        Parameters
        ----------
        rig : Rig
            Where it is to run; it says which conditions it cannot.
        blocks, seed : int
            Number of blocks, and the seed of their order.
        earlier : path, optional
            A campaign that tells the noise, for the smallest decidable margin.
        infeasible : callable, optional
            Returns why the study cannot measure a condition that the rig can run, or None.
        """
        for name, level in self.baseline.items():
            labels = [design.level_label(one) for one in self.factors.get(name, ())]
            if design.level_label(level) not in labels:
                raise UsageError(
                    f"the baseline {name}={level} is not a level of the study",
                    remedy=f"one of {', '.join(labels)}",
                )
        ordered = design.make_design(
            self.factors,
            blocks=blocks,
            seed=seed,
            keep=self.keep,
            replicates=self.replicates,
            infeasible=lambda levels: (
                self.infeasible(rig, levels) or (infeasible and infeasible(levels))
            ),
        )
        return Plan(self, rig, ordered, blocks, seed, earlier)


@dataclass(frozen=True)
class Plan:
    """A study on a rig, fixed; display it to see order, duration and what is infeasible."""

    study: Study
    rig: Rig
    design: design.Design
    blocks: int
    seed: int
    earlier: Path | str | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The study's settings."""
        return self.study.settings

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return self.rig.facts()

    def facts(self) -> dict[str, Any]:
        """Return the facts of every host, read once a plan."""
        return self._facts

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that makes two campaigns the same one; a difference forbids mixing them."""
        stable = {role: facts.get("stable", {}) for role, facts in self.facts().items()}
        return {
            "study": self.study.name,
            "settings": design.canonical(self.settings),
            "margin": self.study.margin,
            "blocks": self.blocks,
            "seed": self.seed,
            "conditions": [one.key for one in self.design.conditions],
            "order": [list(block) for block in self.design.order],
            "protocol": _source(self.study.protocol),
            "measurement_version": MEASUREMENT_VERSION,
            "images": self.rig.images(),
            "tools": self._tools(),
            "rig": self.rig.describe(),
            "hosts": design.canonical(stable),
        }

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
            "study": self.study.name,
            "identity": self.identity,
            "labkit": VERSION,
            "settings": design.canonical(self.settings),
            "factors": {
                name: [design.level_label(level) for level in levels]
                for name, levels in self.study.factors.items()
            },
            "baseline": {name: design.level_label(x) for name, x in self.study.baseline.items()},
            "margin": self.study.margin,
            "blocks": self.blocks,
            "seed": self.seed,
            "conditions": [
                {
                    "levels": {n: design.level_label(x) for n, x in one.levels},
                    "replicate": one.replicate,
                }
                for one in self.design.conditions
            ],
            "order": [list(block) for block in self.design.order],
            "infeasible": [vars(one) for one in self.design.infeasible],
            "rig": self.rig.describe(),
        }

    def run(self, into: Path | str, *, new: bool = False) -> dataset.Dataset:
        """Run what is left of the plan, and return its dataset.

        Parameters
        ----------
        into : path
            Where data is kept; the campaign goes to ``<into>/<study>/<campaign>``.
        new : bool
            Begin another campaign also where one of another identity, or this one, stands.

        Raises
        ------
        PlanMismatch
            The newest campaign there has another plan.
        """
        store = Store.resume_or_begin(project(into) / self.study.name, self.as_record(), new=new)
        study = self.study
        runner = Runner(
            study.name, self.rig, self.design, study.protocol, self.settings, study.treatments
        )
        runner.run(store, self.facts())
        return dataset.load(store.path)

    def estimate(self) -> Estimate:
        """Return duration and smallest decidable margin, from the earlier campaign if any."""
        window = self.study.seconds or (lambda levels: 5.0)
        planned = [window(dict(condition.levels)) for _, _, condition in self.design.trials()]
        seconds = sum(planned) + OVERHEAD * len(planned)
        if self.earlier is None:
            return Estimate(seconds, None, "no earlier campaign was named")
        if not self.study.outcomes:
            return Estimate(seconds, None, "the study declares no outcomes")
        try:
            earlier = dataset.load(project(self.earlier))
        except DatasetError as error:
            return Estimate(seconds, None, error.what)
        found = noise(earlier.ok, list(self.study.factors), self.study.outcomes)
        if found is None:
            return Estimate(seconds, None, "the earlier campaign has too few A/A replicates")
        column, sd = found
        margin = decidable_margin(sd, self.blocks) if self.blocks >= 2 else None
        return Estimate(seconds, margin, f"campaign {earlier.path.name}", column)

    def __str__(self) -> str:
        promised = self.estimate()
        counts = f"{len(self.design.conditions)} conditions x {self.blocks} blocks"
        lines = [
            f"{self.study.name}: {counts} = {len(self.design)} trials on rig {self.rig.name}",
            f"expected duration: {promised.duration_text}",
            f"smallest decidable margin: {promised.margin_text}",
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


#: Placing, checking, collecting and taking down one trial, in seconds; rounded up from what it
#: took on the development machine.
OVERHEAD = 0.8


@dataclass(frozen=True)
class Estimate:
    """Duration in seconds; smallest margin (a ratio minus 1), where from, and of which column."""

    seconds: float
    margin: float | None
    source: str
    outcome: str = ""

    @property
    def duration_text(self) -> str:
        """The duration in words."""
        minutes = self.seconds / 60
        return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"

    @property
    def margin_text(self) -> str:
        """The margin in words."""
        if self.margin is None:
            return f"not known before a pilot ({self.source})"
        return f"{self.margin:.1%} on {self.outcome} (80 % power; from {self.source})"


def noise(
    trials: pd.DataFrame, factors: Sequence[str], outcomes: Sequence[str]
) -> tuple[str, float] | None:
    """Return the noisiest outcome, with the SD of the log ratio of A/A replicates in a block.

    Conditions differ in noise, so the largest of their values is the one that is promised. A
    condition needs 3 pairs of replicates; None where no condition has them.
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


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a protocol, and of what its notebook defines for it to call."""
    return "\n".join(_one_source(one) for one in _called(function))


def _called(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a function and every other of its own module that it names, each once."""
    functions = [function]
    for one in functions:
        inner = inspect.unwrap(one)
        names = getattr(getattr(inner, "__code__", None), "co_names", ())
        known = [getattr(inner, "__globals__", {}).get(name) for name in names]
        functions += [
            other
            for other in known
            if inspect.isfunction(other)
            and inspect.unwrap(other).__module__ == inner.__module__
            and other not in functions
        ]
    return functions


def _one_source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        raise UsageError(
            f"the source of {function!r} cannot be read",
            why="a plan's identity includes the protocol's own code",
            remedy="define it with def, in the notebook or in a file",
        ) from None
