"""The design of a campaign: conditions, the order of seeded blocks, and the plan's identity.

A randomised complete block design: each block has every feasible condition once, in an order drawn
from the seed, and a few of them twice (A/A), which shows the rig's noise.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from labkit.errors import PlanMismatch, UsageError

Levels = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """A combination of levels: pairs of factor and level, and 2 for its A/A repeat, else 1."""

    levels: tuple[tuple[str, Any], ...]
    repeat: int = 1

    def __getitem__(self, factor: str) -> Any:
        return dict(self.levels)[factor]

    @property
    def label(self) -> str:
        """The levels as text, the same for both repeats."""
        return condition_label(dict(self.levels))

    @property
    def key(self) -> str:
        """The unique name in a plan, from which the order of its trials is drawn."""
        # The word of stored plans, whose order is drawn again from it.
        return self.label + (f" (replicate {self.repeat})" if self.repeat > 1 else "")


@dataclass(frozen=True)
class Infeasible:
    """The label of an infeasible condition, and the reason."""

    condition: str
    reason: str


@dataclass(frozen=True)
class Design:
    """The feasible conditions, the order of each block as indices of them, and the infeasible."""

    conditions: tuple[Condition, ...]
    order: tuple[tuple[int, ...], ...]
    infeasible: tuple[Infeasible, ...]

    def __len__(self) -> int:
        return sum(len(block) for block in self.order)

    def trials(self) -> Iterable[tuple[int, int, Condition]]:
        """Yield (block, position, condition) in the order of execution, counted from 1."""
        for block, indices in enumerate(self.order, start=1):
            for position, index in enumerate(indices, start=1):
                yield block, position, self.conditions[index]


def trial_name(block: int, position: int) -> str:
    """Return the name of a trial, such as ``b01-p03``."""
    return f"b{block:02d}-p{position:02d}"


def level_label(level: Any) -> str:
    """Return the text of a level: its ``label`` if it has one."""
    return str(getattr(level, "label", level))


def condition_label(levels: Mapping[Any, Any]) -> str:
    """Return the label of a condition from its levels, or from their texts."""
    return " | ".join(map(level_label, levels.values()))


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
    if not factors:
        raise UsageError("a study needs at least one factor")
    for name, levels in factors.items():
        labels = [level_label(level) for level in levels]
        if not labels or len(set(labels)) != len(labels):
            raise UsageError(f"factor {name!r} needs distinct levels, got {labels}")
    every = (dict(zip(factors, one, strict=True)) for one in itertools.product(*factors.values()))
    return [Condition(tuple(one.items())) for one in every if only is None or call(only, one)]


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
    feasible: list[Condition] = []
    excluded: list[Infeasible] = []
    for condition in combinations(factors, only):
        if reason := infeasible(dict(condition.levels)):
            excluded.append(Infeasible(condition.label, reason))
            continue
        feasible.append(condition)
        texts = {name: level_label(level) for name, level in condition.levels}
        if any(one.items() <= texts.items() for one in wanted):
            feasible.append(Condition(condition.levels, repeat=2))
    if not feasible:
        reasons = "; ".join(sorted({condition.reason for condition in excluded}))
        raise UsageError("this rig can run no condition of the study", why=reasons)
    order = tuple(_shuffled(feasible, seed, block, together) for block in range(1, blocks + 1))
    return Design(tuple(feasible), order, tuple(excluded))


def _shuffled(
    conditions: Sequence[Condition], seed: int, block: int, together: Sequence[str]
) -> tuple[int, ...]:
    def draw(key: str) -> str:
        return hashlib.sha256(f"{seed}/{block}/{key}".encode()).hexdigest()

    def place(index: int) -> tuple[str, str]:
        condition = conditions[index]
        group = condition_label({name: condition[name] for name in together})
        return draw(group), draw(condition.key)

    return tuple(sorted(range(len(conditions)), key=place))


def canonical(value: Any) -> Any:
    """Return `value` as JSON data, the same for equal values."""
    if is_dataclass(value) and not isinstance(value, type):
        return canonical(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): canonical(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(f"{value!r} ({type(value).__name__}) cannot be part of a plan")


def digest(identity: Mapping[str, Any]) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of an identity."""
    text = json.dumps(canonical(identity), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _flatten(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the values of nested mappings and lists by their paths."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    flat: dict[tuple[str, ...], Any] = {}
    for name, item in items:
        place = (*path, str(name))
        nested = isinstance(item, Mapping | list) and item
        flat |= _flatten(item, place) if nested else {place: item}
    return flat


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (name, before, after) of every entry that differs between two identities."""
    old, new = _flatten(canonical(before)), _flatten(canonical(after))
    both = [(path, old.get(path, "(absent)"), new.get(path, "(absent)")) for path in {**old, **new}]
    return [(".".join(path), *values) for path, *values in both if values[0] != values[1]]


def refuse_to_mix(stored: Mapping[str, Any], planned: Mapping[str, Any], where: str) -> None:
    """Raise `PlanMismatch` with the differences if two identities differ."""
    changes = difference(stored, planned)
    if not changes:
        return
    # Conditions and order follow from the other entries, so showing them would hide the cause.
    causes = [change for change in changes if not change[0].startswith(("order.", "conditions."))]
    lines = [
        f"{name}: {short_text(old)} -> {short_text(new)}" for name, old, new in causes or changes
    ]
    shown = lines[:15] + ([f"... and {len(lines) - 15} more"] if len(lines) > 15 else [])
    raise PlanMismatch(
        "the campaign on disk has another plan",
        where=where,
        why="\n       ".join(shown),
        remedy="measure with the stored settings to resume it, or start another campaign: "
        "--new (labkit run), NEW=1 (make report), -p new True (papermill)",
        evidence={"difference": [list(map(str, change)) for change in changes]},
    )


def short_text(value: Any) -> str:
    """Return a value as one line of at most 60 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
