"""A study, as a notebook declares it, and its plan on a rig."""

from __future__ import annotations

import ast
import hashlib
import html
import inspect
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit import data, design
from labkit.campaign.runner import Runner, pinned_to_harness
from labkit.campaign.store import Store
from labkit.campaign.treatments import Treatment
from labkit.campaign.trial import Attempt, Trial
from labkit.data import refuse_unknown
from labkit.design import Condition, call, level_label
from labkit.errors import DryRun, UsageError
from labkit.notebooks import check_parameters
from labkit.paths import project
from labkit.placement import Placement
from labkit.rig import Rig
from labkit.rig.networks import NAMES
from labkit.tools.base import Measurement
from labkit.version import MEASUREMENT_VERSION, VERSION

Levels = Mapping[str, Any]
#: Seconds of one trial outside its window, rounded up from those of the development machine.
OVERHEAD = 0.8


@dataclass(frozen=True)
class Study:
    """One research question, as its notebook declares it.

    Its functions name the levels and settings that they take: ``def ping(trial, placement, wait)``.

    Parameters
    ----------
    name : str
        Its folder in the data: letters, digits and hyphens.
    protocol : callable
        Runs one trial: takes a `labkit.campaign.trial.Trial` and levels, returns what ``measure``
        returned.
    factors : mapping of str to sequence or Treatment
        What is varied, with its levels; a treatment (`labkit.treatments`) is applied to each trial.
    settings : mapping
        What all trials have in common: data, a treatment with one level, or a function of the rig.
    variants : mapping
        Settings that are factors where they have several levels; the data are then those of a
        study of their own, ``name-factor``.
    only, infeasible : callable, optional
        Take levels: whether a combination belongs to the study; why a ``rig`` cannot measure it.
    baseline : mapping
        Levels of the condition that the others are compared with.
    twice : sequence of mapping
        Conditions that run twice in each block (A/A), for the noise floor.
    together : sequence of str
        Factors whose levels stay together within a block, as a machine changes over minutes.
    outcomes : sequence of str
        Columns of `labkit.data.Campaign.trials` that the study is made to compare.
    margin : float
        Relative difference up to which two conditions count as equal.
    tools : mapping of str to callable
        Take a host, return a tool's version there: ``{"sockperf": sockperf.probe}``.
    seconds : callable
        Takes levels; returns the expected seconds of a trial's windows.

    Examples
    --------
    >>> from labkit import Study, docker, treatments
    >>> study = Study(
    ...     "waiting",
    ...     lambda trial, placement, wait: ...,
    ...     factors={
    ...         "placement": [docker("host")],
    ...         "wait": treatments.BusyPolling("block", "busy_poll"),
    ...     },
    ... )
    """

    name: str
    protocol: Callable[..., Measurement]
    factors: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Any] = field(default_factory=dict)
    only: Callable[..., bool] | None = None
    infeasible: Callable[..., str | None] | None = None
    baseline: Levels = field(default_factory=dict)
    twice: Sequence[Levels] = ()
    together: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    margin: float = 0.02
    tools: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    seconds: Callable[..., float] = lambda: 5.0

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise UsageError(f"the margin is {self.margin}", remedy="a share, such as 0.02 for 2 %")
        for names in (self.baseline, *self.twice, self.together):
            refuse_unknown("factor", names, self.levels)
        for name, level in self.baseline.items():
            labels = map(level_label, self.levels[name])
            refuse_unknown(f"level of {name}", [level_label(level)], labels)
        known = ["trial", "rig", *self.levels, *self.constants]
        for function in filter(None, [self.protocol, self.only, self.infeasible, self.seconds]):
            refuse_unknown("factor or setting", inspect.signature(function).parameters, known)

    @cached_property
    def levels(self) -> dict[str, list[Any]]:
        """The levels of each factor."""
        varied = {name: one for name, one in self.variants.items() if len(_levels(one)) > 1}
        return {name: _levels(one) for name, one in {**self.factors, **varied}.items()}

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The settings, each with its one value."""
        fixed = {name: one for name, one in self.variants.items() if name not in self.levels}
        found = {name: _levels(one)[0] for name, one in fixed.items()}
        for name, one in self.settings.items():
            found[name] = one.levels[0] if isinstance(one, Treatment) else one
        return found

    @cached_property
    def treatments(self) -> dict[str, Treatment]:
        """The treatments by the name of their factor or setting."""
        every = {**self.factors, **self.settings, **self.variants}
        return {name: one for name, one in every.items() if isinstance(one, Treatment)}

    @property
    def title(self) -> str:
        """The name in the data: that of the study and of its variant."""
        varied = [name.replace("_", "-") for name in self.variants if name in self.levels]
        return "-".join([self.name, *varied])

    def settings_on(self, rig: Rig) -> dict[str, Any]:
        """Return the settings, with those that are functions of the rig."""
        return {name: one(rig) if callable(one) else one for name, one in self.constants.items()}

    def why_infeasible(self, rig: Rig, settings: Levels, levels: Levels) -> str | None:
        """Return why a rig cannot run a condition, or None."""
        values = {**settings, **levels}
        reasons = [rig.infeasible(one) for one in levels.values() if isinstance(one, Placement)]
        for name, treatment in self.treatments.items():
            reasons.append(treatment.feasibility(rig, values[name], levels))
        if self.infeasible:
            reasons.append(call(self.infeasible, {**values, "rig": rig}))
        return next(filter(None, reasons), None)

    def needs(self) -> dict[str, Any]:
        """Return the arguments of `Rig.open`: networks, and what treatments need."""
        kept = [dict(one.levels) for one in design.combinations(self.levels, self.only)]
        used = {name: [*dict.fromkeys(one[name] for one in kept)] for name in self.levels}
        networks = [
            one.network
            for one in itertools.chain(*used.values())
            if isinstance(one, Placement)
            and one.network in NAMES
            # Docker publishes ports by itself, other engines need a network for it.
            and (one.network, one.runtime) != ("nat", "docker")
        ]
        found: dict[str, Any] = {"networks": list(dict.fromkeys(networks))}
        for name, treatment in self.treatments.items():
            found |= treatment.needs(used.get(name) or [self.constants[name]])
        return found

    def opened(self, spec: str | Path) -> AbstractContextManager[Rig]:
        """Open a rig with what the study needs, for a ``with`` block."""
        return Rig.open(spec, **self.needs())

    def run(
        self, rig: str | Path = "auto", *, blocks: int, seed: int, into: Path | str, **limits: Any
    ) -> data.Campaign:
        """Open a rig, show the plan, measure what was not measured yet, and return the campaign.

        Parameters
        ----------
        rig : str or Path
            As for `labkit.Rig.open`.
        blocks, seed : int
            Number of blocks, and the seed of their order.
        into : path
            The campaign's folder is ``<into>/<study>/<campaign>``.
        **limits
            Those of `Plan.run`.
        """
        if shell := _shell():
            check_parameters(shell.user_ns["In"])
        with self.opened(rig) as opened:
            plan = self.plan(opened, blocks=blocks, seed=seed)
            plan.show()
            return plan.run(into, **limits)

    def try_one(self, rig: Rig, **levels: Any) -> Attempt:
        """Run one trial outside any campaign, and return all that it did, or raise its error.

        A factor that `levels` does not name has the baseline's level, or its first.
        """
        refuse_unknown("factor", levels, self.levels)
        first = {name: self.baseline.get(name, of[0]) for name, of in self.levels.items()}
        condition, settings = Condition(tuple((first | levels).items())), self.settings_on(rig)
        if reason := self.why_infeasible(rig, settings, dict(condition.levels)):
            raise UsageError(f"{condition.label} is not possible here", why=reason)
        values = {**settings, **dict(condition.levels)}
        trial = Trial(rig, values, f"trial-{os.getpid()}-try", treatments=self.treatments)
        with pinned_to_harness(rig):
            one = trial.attempt(self.protocol, condition, {"trial": "try"})
        if one.error:
            raise one.error
        return one

    def plan(self, rig: Rig, *, blocks: int, seed: int) -> Plan:
        """Fix conditions, order and identity on an open rig, before anything runs.

        Conditions that it cannot run are left out, with the reason.
        """
        settings = self.settings_on(rig)
        ordered = design.make_design(
            self.levels,
            blocks=blocks,
            seed=seed,
            only=self.only,
            twice=self.twice,
            infeasible=lambda levels: self.why_infeasible(rig, settings, levels),
            together=self.together,
        )
        return Plan(self, rig, ordered, blocks, seed, settings)


def _levels(one: Any) -> list[Any]:
    """Return the levels of a treatment, of a list, or a level by itself."""
    if isinstance(one, Treatment):
        return one.levels
    return list(one) if isinstance(one, list | tuple) else [one]


def _shell() -> Any:
    """Return the shell of the notebook that runs this, or None."""
    python = sys.modules.get("IPython")
    return python.get_ipython() if python else None


@dataclass(frozen=True)
class Plan:
    """A study's fixed plan on a rig; display it to see order, duration, infeasible conditions."""

    study: Study
    rig: Rig
    design: design.Design
    blocks: int
    seed: int
    settings: Levels

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of every host by role, read once."""
        return self.rig.facts()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be equal for a campaign to be resumed."""
        roles = [role for role in ("generator", "clean") if role in self.rig.hosts]
        # What a plan needs of the capabilities shows in its conditions; another engine that is
        # installed meanwhile does not concern it. Caveats only describe the rig.
        rig = {
            name: of
            for name, of in self.rig.describe().items()
            if name not in ("capabilities", "caveats")
        }
        return {
            "study": self.study.title,
            "settings": design.canonical(self.settings),
            "margin": self.study.margin,
            "blocks": self.blocks,
            "seed": self.seed,
            "conditions": [condition.key for condition in self.design.conditions],
            "order": [list(block) for block in self.design.order],
            "protocol": code_digest(self.study.protocol),
            "measurement_version": MEASUREMENT_VERSION,
            "images": self.rig.images(),
            "tools": {
                f"{tool} on {role}": probe(self.rig.hosts[role])
                for tool, probe in self.study.tools.items()
                for role in roles
            },
            "rig": rig,
            "hosts": design.canonical(
                {role: facts.get("stable", {}) for role, facts in self.facts.items()}
            ),
        }

    def as_record(self) -> dict[str, Any]:
        """Return the plan as ``plan.json`` holds it."""
        study = self.study
        return {
            "study": study.title,
            "identity": self.identity,
            "labkit": VERSION,
            "settings": design.canonical(self.settings),
            "factors": {name: [*map(level_label, of)] for name, of in study.levels.items()},
            "baseline": {name: level_label(level) for name, level in study.baseline.items()},
            "margin": study.margin,
            # What was to be compared was fixed before measuring; a page may show more.
            "outcomes": list(study.outcomes),
            "blocks": self.blocks,
            "seed": self.seed,
            "conditions": [
                {
                    "levels": {name: level_label(level) for name, level in condition.levels},
                    "repeat": condition.repeat,
                }
                for condition in self.design.conditions
            ],
            "order": [list(block) for block in self.design.order],
            "infeasible": [vars(one) for one in self.design.infeasible],
            "rig": self.rig.describe(),
        }

    def run(
        self,
        into: Path | str,
        *,
        new: bool = False,
        minutes: float = 0.0,
        only: Collection[int] = (),
    ) -> data.Campaign:
        """Run the trials of the plan that were not measured yet, and return the campaign.

        Parameters
        ----------
        into : path
            The campaign's folder is ``<into>/<study>/<campaign>``.
        new : bool
            Begin another campaign instead of resuming the newest.
        minutes : float
            Begin no block that would end after these, and no trial after them; 0: no limit.
        only : collection of int
            The only blocks to measure; all of them when empty.

        Raises
        ------
        PlanMismatch
            The newest campaign there has another plan, and `new` is false.
        UsageError
            Another process, here or on another machine, measures that campaign.
        DryRun
            The rig is a dry one.
        """
        if self.rig.kind == "dry":
            raise DryRun(str(self), why="a dry rig shows plans and runs nothing")
        store = Store.resume_or_begin(project(into) / self.study.name, self.as_record(), new=new)
        with store.locked():
            Runner(self, store, only, 60 * minutes).run()
        return data.load(store.path)

    def show(self) -> None:
        """Display the plan in a notebook, or print it."""
        if _shell():
            sys.modules["IPython.display"].display(self)
        else:
            print(self)

    @property
    def seconds(self) -> float:
        """The expected duration."""
        every = (dict(condition.levels) for _, _, condition in self.design.trials())
        each = (call(self.study.seconds, {**self.settings, **one}) for one in every)
        return OVERHEAD * len(self.design) + float(sum(each))

    def __str__(self) -> str:
        minutes, conditions = self.seconds / 60, len(self.design.conditions)
        duration = f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
        counts = f"{conditions} conditions x {self.blocks} blocks = {len(self.design)} trials"
        lines = [
            f"{self.study.name}: {counts} on rig {self.rig.name}",
            f"expected duration: {duration}",
            *([] if self.blocks >= 5 else ["fewer than 5 blocks: this is a pilot"]),
            *(f"infeasible: {one.condition}: {one.reason}" for one in self.design.infeasible),
        ]
        for number, block in enumerate(self.design.order, start=1):
            keys = ", ".join(self.design.conditions[index].key for index in block)
            lines.append(f"block {number}: {keys}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, _, order = str(self).partition("\nblock 1: ")
        shown = "".join(f"<li>{html.escape(line)}</li>" for line in head.splitlines())
        return (
            f"<ul>{shown}</ul><details><summary>order of the trials</summary>"
            f"<pre style='white-space:pre-wrap'>block 1: {html.escape(order)}</pre></details>"
        )


def code_digest(function: Callable[..., Any]) -> str:
    """Return a digest of a protocol and of the functions of its module that it calls.

    Comments and layout are no part of it.
    """
    functions = [function]
    for caller in functions:  # grows while it is iterated
        inner = inspect.unwrap(caller)
        names = getattr(getattr(inner, "__code__", None), "co_names", ())
        for called in map(getattr(inner, "__globals__", {}).get, names):
            own = inspect.isfunction(called) and called.__module__ == inner.__module__
            functions += [called] if own and called not in functions else []
    try:
        sources = [textwrap.dedent(inspect.getsource(one)) for one in functions]
        code = "\n".join(ast.dump(ast.parse(source)) for source in sources)
    except (OSError, TypeError, SyntaxError):
        raise UsageError(
            f"the source of {function!r} cannot be read",
            why="a plan's identity includes the code of the protocol and of what it calls",
            remedy="define it with def, in the notebook or in a file",
        ) from None
    return hashlib.sha256(code.encode()).hexdigest()[:16]
