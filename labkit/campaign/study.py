"""A study and its plan: what a notebook declares, shows, and runs."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit import dataset, design
from labkit.benchmarks.base import Reading
from labkit.campaign import runner
from labkit.campaign.estimate import Estimate, estimate
from labkit.campaign.store import Store
from labkit.campaign.trial import Trial
from labkit.errors import UsageError
from labkit.paths import project
from labkit.rig import Rig
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
    doubled : sequence of mapping
        Conditions that run twice in each block, for the noise floor.
    keep : callable, optional
        Which combinations of levels belong to the study.
    tools : mapping of str to callable, optional
        Version of each tool on a host: ``{"sockperf": sockperf.probe}``.
    margin : float
        Relative difference up to which two conditions count as equal; fixed with the plan.
    seconds : callable, optional
        Expected duration of a trial's window with these levels, for the plan's estimate.
    """

    name: str
    protocol: Callable[[Trial], Reading]
    factors: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    baseline: Levels = field(default_factory=dict)
    doubled: Sequence[Levels] = ()
    keep: Callable[[Levels], bool] | None = None
    tools: Mapping[str, Callable[[Any], str]] = field(default_factory=dict)
    margin: float = 0.02
    seconds: Callable[[Levels], float] | None = None

    def plan(
        self,
        rig: Rig,
        *,
        blocks: int,
        seed: int,
        earlier: Path | str | None = None,
        refuse: Callable[[Levels], str | None] | None = None,
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
        refuse : callable, optional
            Returns why the study cannot measure a condition that the rig can run, or None.
        """
        for name, level in self.baseline.items():
            labels = [design.level_label(one) for one in self.factors.get(name, ())]
            if design.level_label(level) not in labels:
                raise UsageError(f"the baseline {name}={level} is no level of the study: {labels}")
        made = design.make_design(
            self.factors,
            blocks=blocks,
            seed=seed,
            keep=self.keep,
            doubled=self.doubled,
            refuse=lambda levels: rig.refuse(levels) or (refuse(levels) if refuse else None),
        )
        return Plan(self, rig, made, blocks, seed, earlier)


@dataclass(frozen=True)
class Plan:
    """A study on a rig, fixed; display it to see order, duration, refusals and what it decides."""

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
            "labkit": VERSION,
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
                {"levels": {n: design.level_label(x) for n, x in one.levels}, "copy": one.copy}
                for one in self.design.conditions
            ],
            "order": [list(block) for block in self.design.order],
            "refusals": [vars(refusal) for refusal in self.design.refusals],
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
            The newest campaign there was planned otherwise.
        """
        store = Store.resume_or_begin(project(into) / self.study.name, self.as_record(), new=new)
        runner.run(self, store)
        return dataset.load(store.path)

    def estimate(self) -> Estimate:
        """Return duration and smallest decidable margin, from the earlier campaign if any."""
        return estimate(self, self.earlier)

    def __str__(self) -> str:
        found = self.estimate()
        counts = f"{len(self.design.conditions)} conditions x {self.blocks} blocks"
        lines = [
            f"{self.study.name}: {counts} = {len(self.design)} trials on rig {self.rig.name}",
            f"expected duration: {found.duration_text}",
            f"smallest decidable margin: {found.margin_text}",
            *([] if self.blocks >= 5 else ["fewer than 5 blocks: this is a pilot"]),
            *(f"refused: {one.condition}: {one.reason}" for one in self.design.refusals),
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


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a protocol, and of what its notebook defines for it to call."""
    return "\n".join(_one_source(one) for one in _called(function))


def _called(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a function and every other of its own module that it names, each once."""
    found = [function]
    for one in found:
        inner = inspect.unwrap(one)
        names = getattr(getattr(inner, "__code__", None), "co_names", ())
        known = [getattr(inner, "__globals__", {}).get(name) for name in names]
        found += [
            other
            for other in known
            if inspect.isfunction(other)
            and inspect.unwrap(other).__module__ == inner.__module__
            and other not in found
        ]
    return found


def _one_source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        raise UsageError(
            f"the source of {function!r} cannot be read",
            why="a plan's identity includes the protocol's own code",
            remedy="define it with def, in the notebook or in a file",
        ) from None
