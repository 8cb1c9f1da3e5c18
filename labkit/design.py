"""The design of a campaign: conditions, the order of seeded blocks, and the plan's identity.

A randomised complete block design: each block has every feasible condition once, in an order drawn
from the seed, and a few of them twice (A/A), which shows the rig's noise.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

from labkit.errors import UsageError

Levels = Mapping[str, Any]
#: Part of every plan's identity. Raise it when a change of labkit changes what a trial measures,
#: so that trials from before and after never mix; a test reminds when measuring code changed.
MEASUREMENT_VERSION = 4


@dataclass(frozen=True)
class Condition:
    """A combination of levels by factor, and 2 for its A/A repeat, else 1."""

    levels: dict[str, Any]
    repeat: int = 1

    @property
    def texts(self) -> dict[str, str]:
        """The text of each level."""
        return {name: level_label(level) for name, level in self.levels.items()}

    @property
    def label(self) -> str:
        """The levels as text, the same for both repeats."""
        return " | ".join(self.texts.values())

    @property
    def key(self) -> str:
        """The unique name in a plan, from which the order of its trials is drawn."""
        # The word of stored plans, whose order is drawn again from it.
        return self.label + (f" (replicate {self.repeat})" if self.repeat > 1 else "")


@dataclass(frozen=True)
class Design:
    """The feasible conditions, the order of each block, and reasons of infeasible ones by label."""

    conditions: tuple[Condition, ...]
    order: tuple[tuple[int, ...], ...]
    infeasible: dict[str, str]

    def __len__(self) -> int:
        return sum(len(block) for block in self.order)

    def trials(self) -> Iterator[tuple[dict[str, Any], Condition]]:
        """Yield keys and condition of each trial: its name, such as ``b01-p03``, and place."""
        for block, indices in enumerate(self.order, start=1):
            for position, index in enumerate(indices, start=1):
                name = f"b{block:02d}-p{position:02d}"
                keys = {"trial": name, "block": block, "position": position}
                yield keys, self.conditions[index]


def level_label(level: Any) -> str:
    """Return the text of a level: its ``label`` if it has one."""
    return str(getattr(level, "label", level))


def call(function: Callable[..., Any], values: Mapping[str, Any], *first: Any) -> Any:
    """Call a function with `first`, then with those of some values that its parameters name."""
    names = [*inspect.signature(function).parameters][len(first) :]
    return function(*first, **{name: values[name] for name in names if name in values})


def combinations(
    factors: Mapping[str, Sequence[Any]], only: Callable[..., bool] | None = None
) -> list[Condition]:
    """Return the combinations of levels that belong; the last factor varies fastest.

    `only` names the factors that it depends on.
    """
    for name, levels in factors.items():
        labels = [level_label(level) for level in levels]
        if not labels or len(set(labels)) != len(labels):
            raise UsageError(f"factor {name!r} needs distinct levels, got {labels}")
    every = (dict(zip(factors, one, strict=True)) for one in itertools.product(*factors.values()))
    return [Condition(one) for one in every if only is None or call(only, one)]


def make_design(
    factors: Mapping[str, Sequence[Any]],
    *,
    blocks: int,
    seed: int,
    only: Callable[..., bool] | None = None,
    twice: Sequence[Levels] = (),
    infeasible: Callable[[Levels], str | None] = lambda levels: None,
    together: Sequence[str] = (),
) -> Design:
    """Return the randomised complete block design of the factors.

    `only` selects combinations, `twice` those with an A/A repeat, and `infeasible` returns the
    reason why the rig cannot run a combination, or None. Conditions with the same levels of the
    factors in `together` follow each other within a block; the order of these groups is drawn too.
    """
    if not isinstance(blocks, int) or blocks < 1:
        raise UsageError(f"blocks={blocks!r}: a plan has at least one block")
    wanted = [{name: level_label(level) for name, level in one.items()} for one in twice]
    every = combinations(factors, only)
    reasons = {one.label: why for one in every if (why := infeasible(one.levels))}
    feasible = []
    for condition in every:
        again = any(one.items() <= condition.texts.items() for one in wanted)
        repeats = [condition, *([replace(condition, repeat=2)] if again else [])]
        feasible += repeats if condition.label not in reasons else []
    if not feasible:
        why = "; ".join(sorted(set(reasons.values())))
        raise UsageError("this rig can run no condition of the study", why=why)

    def place(block: int, condition: Condition) -> list[str]:
        group = " | ".join(condition.texts[name] for name in together)
        drawn = (f"{seed}/{block}/{key}".encode() for key in (group, condition.key))
        return [hashlib.sha256(text).hexdigest() for text in drawn]

    indices = range(len(feasible))
    order = [
        tuple(sorted(indices, key=[place(block, one) for one in feasible].__getitem__))
        for block in range(1, blocks + 1)
    ]
    return Design(tuple(feasible), tuple(order), reasons)


def canonical(value: Any) -> Any:
    """Return `value` as JSON data, the same for equal values."""

    def plain(one: Any) -> dict[str, Any]:
        if is_dataclass(one) and not isinstance(one, type):
            return asdict(one)
        raise UsageError(f"{one!r} ({type(one).__name__}) cannot be part of a plan")

    return json.loads(json.dumps(value, default=plain))


def digest(identity: Mapping[str, Any]) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of an identity."""
    text = json.dumps(canonical(identity), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the values of nested mappings and lists by their paths."""
    if not value or not isinstance(value, dict | list):
        return {path.removeprefix("."): value}
    items = enumerate(value) if isinstance(value, list) else value.items()
    return {name: x for key, one in items for name, x in _flat(one, f"{path}.{key}").items()}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (name, before, after) of every entry that differs between two identities."""
    old, new = _flat(canonical(before)), _flat(canonical(after))
    both = [(name, old.get(name, "(absent)"), new.get(name, "(absent)")) for name in old | new]
    return [entry for entry in both if entry[1] != entry[2]]


def refuse_to_mix(stored: Mapping[str, Any], planned: Mapping[str, Any], where: str) -> None:
    """Raise `UsageError` with the differences if two identities differ."""
    if not (changes := difference(stored, planned)):
        return
    # Conditions and order follow from the other entries, so showing them would hide the cause.
    causes = [change for change in changes if not change[0].startswith(("order.", "conditions."))]
    lines = [f"{name}: {old!s:.60} -> {new!s:.60}" for name, old, new in causes or changes]
    more = [f"... and {len(lines) - 15} more"] if len(lines) > 15 else []
    raise UsageError(
        "the campaign on disk has another plan",
        where=where,
        why="\n       ".join(lines[:15] + more),
        remedy="measure with the stored settings to resume it, or start another campaign: "
        "--new (labkit run), NEW=1 (make report), -p new True (papermill)",
    )
