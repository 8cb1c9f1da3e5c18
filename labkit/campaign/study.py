"""A study, as a notebook declares it, and its plan on a rig."""

import ast
import hashlib
import html
import inspect
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from labkit import __version__, data, design
from labkit.campaign.runner import opened, pinned_to_harness, run
from labkit.campaign.treatments import Treatment
from labkit.campaign.trial import Attempt, Trial
from labkit.design import MEASUREMENT_VERSION, Condition, Levels, call, level_label
from labkit.errors import DryRun, UsageError
from labkit.paths import project
from labkit.placement import Placement
from labkit.rig import Rig
from labkit.rig.networks import NAMES
from labkit.tools.base import Measurement

#: Seconds of one trial outside its window, rounded up from those of the development machine.
OVERHEAD = 0.8


@dataclass(frozen=True)
class Study:
    """One research question, as its notebook declares it.

    Its functions name the levels and settings that they take: ``def ping(trial, placement, wait)``.
    """

    #: Its folder in the data: letters, digits and hyphens.
    name: str
    #: Runs one trial: takes a `labkit.campaign.trial.Trial` and levels, returns a measurement.
    protocol: Callable[..., Measurement]
    #: Levels of what is varied; a treatment (`labkit.treatments`) is applied to each trial.
    factors: Mapping[str, Any]
    #: Data that trials have in common, a treatment with one level, or a function of the rig.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Settings that are factors where they have several levels; the data are then those of a study
    #: of their own, ``name-factor``.
    variants: Mapping[str, Any] = field(default_factory=dict)
    #: Take levels: whether a combination belongs to the study; why a `rig` cannot measure it.
    only: Callable[..., bool] | None = None
    infeasible: Callable[..., str | None] | None = None
    #: Levels of the condition that the others are compared with.
    baseline: Levels = field(default_factory=dict)
    #: Conditions that run twice in each block (A/A), for the noise floor.
    twice: Sequence[Levels] = ()
    #: Factors whose levels stay together within a block, as a machine changes over minutes.
    together: Sequence[str] = ()
    #: Columns of `labkit.data.Campaign.trials` that the study is made to compare.
    outcomes: Sequence[str] = ()
    #: Relative difference up to which two conditions count as equal.
    margin: float = 0.02
    #: Functions that return a tool's version on a host: ``{"sockperf": sockperf.probe}``.
    tools: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    #: Takes levels; returns the expected seconds of a trial's windows.
    seconds: Callable[..., float] = lambda: 5.0

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise UsageError(f"the margin is {self.margin}", remedy="a share, such as 0.02 for 2 %")
        for names in (self.baseline, *self.twice, self.together):
            data.refuse_unknown("factor", names, self.levels)
        for name, level in self.baseline.items():
            labels = map(level_label, self.levels[name])
            data.refuse_unknown(f"level of {name}", [level_label(level)], labels)
        known = ["trial", "rig", *self.factors, *self.variants, *self.settings]
        for function in filter(None, [self.protocol, self.only, self.infeasible, self.seconds]):
            data.refuse_unknown("factor or setting", inspect.signature(function).parameters, known)

    @cached_property
    def levels(self) -> dict[str, list[Any]]:
        """The levels of each factor."""
        every = {name: _levels(one) for name, one in {**self.factors, **self.variants}.items()}
        return {n: found for n, found in every.items() if n in self.factors or len(found) > 1}

    def settings_on(self, rig: Rig) -> dict[str, Any]:
        """Return the settings, each with its one value on a rig."""
        found = {n: _levels(one)[0] for n, one in self.variants.items() if n not in self.levels}
        for name, one in self.settings.items():
            found[name] = one.levels[0] if isinstance(one, Treatment) else one
        return {name: one(rig) if callable(one) else one for name, one in found.items()}

    @cached_property
    def treatments(self) -> dict[str, Treatment]:
        """The treatments by the name of their factor or setting."""
        every = {**self.factors, **self.settings, **self.variants}
        return {name: one for name, one in every.items() if isinstance(one, Treatment)}

    def why_infeasible(self, rig: Rig, settings: Levels, levels: Levels) -> str | None:
        """Return why a rig cannot run a condition, or None."""
        values = {**settings, **levels, "rig": rig}
        reasons = [rig.infeasible(one) for one in levels.values() if isinstance(one, Placement)]
        for name, treatment in self.treatments.items():
            reasons.append(treatment.feasibility(rig, values[name], levels))
        reasons += [call(self.infeasible, values)] if self.infeasible else []
        return next(filter(None, reasons), None)

    def needs(self) -> dict[str, Any]:
        """Return the arguments of `Rig.open`: networks, and what treatments need."""
        kept = [one.levels for one in design.combinations(self.levels, self.only)]
        used = {name: [*dict.fromkeys(one[name] for one in kept)] for name in self.levels}
        every = (one for levels in used.values() for one in levels if isinstance(one, Placement))
        # Docker publishes ports by itself, other engines need a network for it.
        networks = (one.network for one in every if (one.network, one.runtime) != ("nat", "docker"))
        found: dict[str, Any] = {"networks": [n for n in dict.fromkeys(networks) if n in NAMES]}
        for name, treatment in self.treatments.items():
            found |= treatment.needs(used.get(name) or treatment.levels[:1])
        return found

    def opened(self, spec: str | Path) -> AbstractContextManager[Rig]:
        """Open a rig with what the study needs, for a ``with`` block."""
        return Rig.open(spec, **self.needs())

    def run(
        self, rig: str | Path = "auto", *, blocks: int, seed: int, into: Path | str, **limits: Any
    ) -> data.Campaign:
        """Open a rig, show the plan, measure what was not measured yet, and return the campaign.

        `rig` is as for `labkit.Rig.open`, the limits for `Plan.run`; `seed` draws their order.
        """
        from IPython.display import display  # slow to import

        with self.opened(rig) as opened:
            plan = self.plan(opened, blocks=blocks, seed=seed)
            display(plan)  # type: ignore[no-untyped-call]
            return plan.run(into, **limits)

    def try_one(self, rig: Rig, **levels: Any) -> Attempt:
        """Run one trial outside any campaign, and return all that it did, or raise its error.

        A factor that `levels` does not name has the baseline's level, or its first.
        """
        data.refuse_unknown("factor", levels, self.levels)
        first = {name: self.baseline.get(name, of[0]) for name, of in self.levels.items()}
        chosen, settings = first | levels, self.settings_on(rig)
        condition, label = Condition(chosen), f"trial-{os.getpid()}-try"
        if reason := self.why_infeasible(rig, settings, chosen):
            raise UsageError(f"{condition.label} is not possible here", why=reason)
        trial = Trial(rig, settings | chosen, label, treatments=self.treatments)
        with pinned_to_harness(rig):
            one = trial.attempt(self.protocol, condition, {"trial": "try"})
        if one.error:
            raise one.error
        return one

    def plan(self, rig: Rig, *, blocks: int, seed: int) -> "Plan":
        """Fix the conditions that a rig can run, their order and identity, before anything runs."""
        settings = self.settings_on(rig)
        options: dict[str, Any] = {n: getattr(self, n) for n in ("only", "twice", "together")}
        options["infeasible"] = partial(self.why_infeasible, rig, settings)
        ordered = design.make_design(self.levels, blocks=blocks, seed=seed, **options)
        return Plan(self, rig, ordered, blocks, seed, settings)


def _levels(one: Any) -> list[Any]:
    if isinstance(one, Treatment):
        return one.levels
    return list(one) if isinstance(one, list | tuple) else [one]


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
        study, roles = self.study, [one for one in ("generator", "clean") if one in self.rig.hosts]
        varied = [name.replace("_", "-") for name in study.variants if name in study.levels]
        # What a plan needs of capabilities shows in its conditions; caveats only describe the rig.
        rig = self.rig.describe()
        del rig["capabilities"], rig["caveats"]
        return {
            "study": "-".join([study.name, *varied]),
            "settings": design.canonical(self.settings),
            "margin": study.margin,
            "blocks": self.blocks,
            "seed": self.seed,
            "conditions": [condition.key for condition in self.design.conditions],
            "order": [list(block) for block in self.design.order],
            "protocol": code_digest(study.protocol),
            "measurement_version": MEASUREMENT_VERSION,
            "images": self.rig.images(),
            "tools": {
                f"{tool} on {role}": probe(self.rig.hosts[role])
                for tool, probe in study.tools.items()
                for role in roles
            },
            "rig": rig,
            "hosts": design.canonical({n: of.get("stable", {}) for n, of in self.facts.items()}),
        }

    def as_record(self) -> dict[str, Any]:
        """Return the plan as ``plan.json`` holds it."""
        study, shared = self.study, ("study", "settings", "margin", "blocks", "seed", "order")
        conditions, infeasible = self.design.conditions, self.design.infeasible
        return {
            **{name: self.identity[name] for name in shared},
            "identity": self.identity,
            "labkit": __version__,
            "factors": {name: [*map(level_label, of)] for name, of in study.levels.items()},
            "baseline": {name: level_label(level) for name, level in study.baseline.items()},
            # What was to be compared was fixed before measuring; a page may show more.
            "outcomes": list(study.outcomes),
            "conditions": [{"levels": one.texts, "repeat": one.repeat} for one in conditions],
            "infeasible": [{"condition": n, "reason": x} for n, x in infeasible.items()],
            "rig": self.rig.describe(),
        }

    def run(
        self, into: Path | str, *, new: bool = False, minutes: float = 0, only: Collection[int] = ()
    ) -> data.Campaign:
        """Run the trials of the plan that were not measured yet, and return the campaign.

        Its folder is ``<into>/<study>/<campaign>``: the newest there, or a `new` one. No block
        begins that would end after so many `minutes`, and no trial after them (0: no limit).
        Blocks are those of `only`, all of them when it is empty.
        """
        if self.rig.kind == "dry":
            raise DryRun(str(self), why="a dry rig shows plans and runs nothing")
        with opened(project(into) / self.study.name, self.as_record(), new=new) as path:
            run(self, path, only, 60 * minutes)
        return data.load(path)

    @property
    def seconds(self) -> float:
        """The expected duration."""
        every = ({**self.settings, **condition.levels} for _, condition in self.design.trials())
        each = (call(self.study.seconds, values) for values in every)
        return OVERHEAD * len(self.design) + float(sum(each))

    def __str__(self) -> str:
        minutes, conditions = self.seconds / 60, self.design.conditions
        counts = f"{len(conditions)} conditions x {self.blocks} blocks = {len(self.design)} trials"
        duration = f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
        lines = [f"{self.study.name}: {counts} on rig {self.rig.name}"]
        lines += [f"expected duration: {duration}"]
        lines += ["fewer than 5 blocks: this is a pilot"] * (self.blocks < 5)
        lines += [f"infeasible: {label}: {why}" for label, why in self.design.infeasible.items()]
        lines += [f"condition: {' | '.join(dict(conditions[0].levels))}"]
        lines += [f"{number:9}: {one.key}" for number, one in enumerate(conditions, start=1)]
        for number, block in enumerate(self.design.order, start=1):
            lines += [f"block {number}: conditions {' '.join(str(index + 1) for index in block)}"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, _, rest = html.escape(str(self)).partition("\ncondition: ")
        shown, style = head.replace("\n", "<li>"), "white-space:pre-wrap"
        order = f"<summary>conditions and their order</summary><pre style='{style}'>condition: "
        return f"<ul><li>{shown}</ul><details>{order}{rest}</pre></details>"


def code_digest(function: Callable[..., Any]) -> str:
    """Return a digest of the code of a protocol and of the functions of its module it calls."""
    functions = [function]
    try:
        for caller in functions:  # grows while it is iterated
            names = inspect.getclosurevars(inspect.unwrap(caller)).globals.values()
            called = (one for one in names if inspect.isfunction(one) and one not in functions)
            functions += [one for one in called if one.__module__ == function.__module__]
        sources = [textwrap.dedent(inspect.getsource(one)) for one in functions]
        code = "\n".join(ast.dump(ast.parse(source)) for source in sources)
    except (OSError, TypeError, SyntaxError):
        why = "a plan's identity includes the code of the protocol and of what it calls"
        remedy = "define it with def, in the notebook or in a file"
        raise UsageError(f"no source of {function!r}", why=why, remedy=remedy) from None
    return hashlib.sha256(code.encode()).hexdigest()[:16]
