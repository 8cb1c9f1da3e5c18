"""A study, as a notebook declares it, and its plan on a rig."""

from __future__ import annotations

import ast
import hashlib
import html
import inspect
import os
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit import data, design
from labkit.campaign.runner import Runner, pinned_to_harness
from labkit.campaign.store import Store
from labkit.campaign.treatments import Treatment
from labkit.campaign.trial import Attempt, Trial
from labkit.design import Condition
from labkit.errors import UsageError, suggestion
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
        What all trials have in common.
    baseline : mapping
        Levels of the condition that the others are compared with.
    twice : sequence of mapping
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
        Columns of `labkit.data.Campaign.trials`, such as ``rtt_ns_median``: what the study was made
        to compare, fixed with the plan.
    together : sequence of str
        Factors: conditions with the same levels of them follow each other within a block, so that
        little time passes between what is compared.
    variant : str
        Set when a further factor makes other data of it, such as ``"seccomp"``: the data are of
        the study ``name-variant``, and stand beside those of the study instead of in their place.

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
    twice: Sequence[Levels] = ()
    keep: Callable[[Levels], bool] | None = None
    tools: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    margin: float = 0.02
    seconds: Callable[[Levels], float] | None = None
    treatments: Mapping[str, Treatment] = field(default_factory=dict)
    outcomes: Sequence[str] = ()
    together: Sequence[str] = ()
    variant: str = ""

    @property
    def title(self) -> str:
        """The name in the data: that of the study and of its variant."""
        return f"{self.name}-{self.variant}" if self.variant else self.name

    def __post_init__(self) -> None:
        names = {*self.factors, *self.settings}
        if unknown := [name for name in self.treatments if name not in names]:
            raise UsageError(
                f"treatments of neither a factor nor a setting: {', '.join(unknown)}",
                where=f"study {self.name}",
                remedy=suggestion(unknown[0], sorted(names)),
            )
        if not 0 < self.margin < 1:
            raise UsageError(
                f"the margin is {self.margin}",
                where=f"study {self.name}",
                remedy="a share above 0 and below 1, such as 0.02 for 2 %",
            )

    def infeasible(self, rig: Rig, levels: Levels) -> str | None:
        """Return why a rig cannot run these placements and treatments, or None.

        Raises
        ------
        UsageError
            A treatment has no such level.
        """
        values = {**self.settings, **levels}
        reasons = [rig.infeasible(one) for one in levels.values() if isinstance(one, Placement)]
        for name, treatment in self.treatments.items():
            level = values[name]
            if treatment.known is not None and level not in treatment.known:
                raise UsageError(
                    f"{name} has no level {level!r}",
                    where=f"study {self.name}",
                    remedy=suggestion(level, treatment.known),
                )
            reasons.append(treatment.feasibility(rig, level, levels))
        return next(filter(None, reasons), None)

    def try_one(self, rig: Rig, **levels: Any) -> Attempt:
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
        label = f"trial-{os.getpid()}-try"
        trial = Trial(rig, condition, self.settings, label, {}, treatments=self.treatments)
        with pinned_to_harness(rig):
            one = trial.attempt(self.protocol, {"trial": "try"})
        if one.error:
            raise one.error
        return one

    def plan(
        self,
        rig: Rig,
        *,
        blocks: int,
        seed: int,
        infeasible: Callable[[Levels], str | None] | None = None,
    ) -> Plan:
        """Fix conditions, order and identity on a rig, before anything runs.

        Parameters
        ----------
        rig : Rig
            Where it will run; conditions that it cannot run are left out, with the reason.
        blocks, seed : int
            Number of blocks, and the seed of their order.
        infeasible : callable, optional
            Takes a combination of levels; returns why the study cannot measure it, or None.
        """
        for name, level in self.baseline.items():
            labels = [design.level_label(one) for one in self.factors.get(name, ())]
            if design.level_label(level) not in labels:
                raise UsageError(
                    f"the baseline {name}={level} is not a level of the study",
                    remedy=suggestion(design.level_label(level), labels),
                )
        ordered = design.make_design(
            self.factors,
            blocks=blocks,
            seed=seed,
            keep=self.keep,
            twice=self.twice,
            infeasible=lambda levels: (
                self.infeasible(rig, levels) or (infeasible and infeasible(levels))
            ),
            together=self.together,
        )
        return Plan(self, rig, ordered, blocks, seed)


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
    block 1: ...
    """

    study: Study
    rig: Rig
    design: design.Design
    blocks: int
    seed: int

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of every host by role, read once."""
        return self.rig.facts()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be equal for a campaign to be resumed."""
        stable = {role: facts.get("stable", {}) for role, facts in self.facts.items()}
        return {
            "study": self.study.title,
            "settings": design.canonical(self.study.settings),
            "margin": self.study.margin,
            "blocks": self.blocks,
            "seed": self.seed,
            "conditions": [condition.key for condition in self.design.conditions],
            "order": [list(block) for block in self.design.order],
            "protocol": code_digest(self.study.protocol),
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
            "study": self.study.title,
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
            Begin no block that would end after these minutes; 0 for no limit.
        only : collection of int
            The only blocks to measure; all of them when empty.

        Raises
        ------
        PlanMismatch
            The newest campaign there has another plan, and `new` is false.
        UsageError
            Another process, here or on another machine, measures that campaign.
        """
        store = Store.resume_or_begin(project(into) / self.study.name, self.as_record(), new=new)
        runner = Runner(
            self.study.name,
            self.rig,
            self.design,
            self.study.protocol,
            self.study.settings,
            self.study.treatments,
            only,
            60 * minutes,
        )
        with store.locked():
            runner.run(store, self.facts)
        return data.load(store.path)

    @property
    def seconds(self) -> float:
        """The expected duration."""
        window = self.study.seconds or (lambda levels: 5.0)
        windows = [window(dict(condition.levels)) for _, _, condition in self.design.trials()]
        return sum(windows) + OVERHEAD * len(windows)

    def __str__(self) -> str:
        minutes = self.seconds / 60
        duration = f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
        counts = f"{len(self.design.conditions)} conditions x {self.blocks} blocks"
        lines = [
            f"{self.study.name}: {counts} = {len(self.design)} trials on rig {self.rig.name}",
            f"expected duration: {duration}",
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


def code_digest(function: Callable[..., Any]) -> str:
    """Return a digest of a protocol and of the functions of its module that it calls.

    Comments and layout are no part of it.
    """
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
        sources = [textwrap.dedent(inspect.getsource(one)) for one in functions]
        code = "\n".join(ast.dump(ast.parse(source)) for source in sources)
    except (OSError, TypeError, SyntaxError):
        raise UsageError(
            f"the source of {function!r} cannot be read",
            why="a plan's identity includes the code of the protocol and of what it calls",
            remedy="define it with def, in the notebook or in a file",
        ) from None
    return hashlib.sha256(code.encode()).hexdigest()[:16]
