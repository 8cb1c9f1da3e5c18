"""The design of a campaign: conditions, the order of seeded blocks, and the plan's identity."""

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
                keys = {"trial": name, "attempt": 0, "block": block, "position": position}
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
    """Return the combinations of levels that belong; the last factor varies fastest."""
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
    """Return the randomised complete block design of the factors, by the options of a study."""
    if not isinstance(blocks, int) or blocks < 1:
        raise UsageError(f"blocks={blocks!r}: a plan has at least one block")
    wanted = [{name: level_label(level) for name, level in one.items()} for one in twice]
    reasons: dict[str, str] = {}
    feasible = []
    for condition in combinations(factors, only):
        if why := infeasible(condition.levels):
            reasons[condition.label] = why
            continue
        feasible.append(condition)
        if any(one.items() <= condition.texts.items() for one in wanted):
            feasible.append(replace(condition, repeat=2))
    if not feasible:
        why = "; ".join(sorted(set(reasons.values())))
        raise UsageError("this rig can run no condition of the study", why=why)

    def place(block: int, condition: Condition) -> list[str]:
        group = " | ".join(condition.texts[name] for name in together)
        drawn = (f"{seed}/{block}/{key}".encode() for key in (group, condition.key))
        return [hashlib.sha256(text).hexdigest() for text in drawn]

    order = []
    for block in range(1, blocks + 1):
        places = [place(block, one) for one in feasible]
        order.append(tuple(sorted(range(len(feasible)), key=places.__getitem__)))
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


def refuse_to_mix(stored: Mapping[str, Any], planned: Mapping[str, Any], where: str) -> None:
    """Raise `UsageError` with the differences if two identities differ."""
    old, new = _flat(canonical(stored)), _flat(canonical(planned))
    both = {name: (old.get(name, "(absent)"), new.get(name, "(absent)")) for name in old | new}
    changes = [name for name, (before, after) in both.items() if before != after]
    if not changes:
        return
    # Conditions and order follow from the other entries, so showing them would hide the cause.
    causes = [name for name in changes if not name.startswith(("order.", "conditions."))]
    names = causes or changes
    lines = [f"{name}: {both[name][0]!s:.60} -> {both[name][1]!s:.60}" for name in names[:15]]
    lines += [f"... and {len(names) - 15} more"] if len(names) > 15 else []
    what, why = "the campaign on disk has another plan", "\n       ".join(lines)
    remedy = "measure with the stored settings to resume it, or start another campaign: "
    remedy += "--new (labkit run), NEW=1 (make report), -p new True (papermill)"
    raise UsageError(what, where=where, why=why, remedy=remedy)
