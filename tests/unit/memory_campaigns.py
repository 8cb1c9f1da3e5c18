"""Campaigns in memory, for tests of the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from small_datasets import record as small_record

from labkit.dataset import Dataset

PLACEMENTS = ("docker a", "docker b", "docker c", "docker d")
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
REAL = {
    "name": "real",
    "kind": "inventory",
    "hosts": {name: {"engine": name == "sut"} for name in ("generator", "sut", "clean")},
    "shared_kernel": False,
    "capabilities": {},
    "offers": ["aufs", "residence-time"],
}
MACHINE = {"stable": {"cpu": {"count": 8}, "interfaces": {"eth1": {"speed": "10000Mb/s"}}}}
FACTS = {"generator": MACHINE, "sut": MACHINE}
Truth = Callable[[str, float], float]


class _Anything(tuple[str, ...]):
    """The columns of a trial whose only array stands for whatever is asked for."""

    def __contains__(self, name: object) -> bool:
        return True


class Campaign(Dataset):
    """A dataset of a plan, sessions, records and samples in memory."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        records: Sequence[dict[str, Any]],
        samples: Mapping[str, np.ndarray] | None = None,
        facts: Mapping[str, Any] = FACTS,
    ) -> None:
        self.__dict__.update(
            path=Path("campaign"), plan=plan, records=list(records), sessions=[{"facts": facts}]
        )
        self.__dict__["arrays"] = samples or {}

    @property
    def sampled(self) -> dict[str, tuple[str, ...]]:  # type: ignore[override]
        arrays = {
            one["trial"]: self.arrays[one["trial"]]
            for one in self.records
            if one["status"] == "ok" and one["n_samples"]
        }
        return {
            trial: tuple(array) if isinstance(array, Mapping) else _Anything()
            for trial, array in arrays.items()
        }

    def _measured(self, columns: Any, reduce: Any = None) -> Any:
        records = [one for one in self.records if one["status"] == "ok" and one["n_samples"]]
        arrays = [self.arrays[one["trial"]] for one in records]
        # A trial has an array, or several by column.
        by_column = {
            name: [array[name] if isinstance(array, Mapping) else array for array in arrays]
            for name in columns
        }
        lengths = [len(array) for array in next(iter(by_column.values()))]
        if reduce:
            kept = {name: list(map(reduce, of)) for name, of in by_column.items()}
            return records, lengths, kept
        joined = {name: np.concatenate([np.empty(0), *of]) for name, of in by_column.items()}
        return records, lengths, joined


def campaign(
    truth: Truth,
    *,
    blocks: int = 10,
    noise: float = 0.005,
    copies: int = 1,
    seed: int = 1,
    factors: Mapping[str, Sequence[str]] | None = None,
    rig: Mapping[str, Any] = REAL,
    metrics: Sequence[str] = ("rate",),
    **plan: Any,
) -> Campaign:
    """Return a campaign whose trials have log-normal noise, and blocks a level of their own."""
    levels = dict(factors or {"placement": PLACEMENTS, "size_b": [str(one) for one in SIZES]})
    rng = np.random.default_rng(seed)
    combinations = list(itertools.product(*levels.values()))
    records = []
    for block in range(1, blocks + 1):
        shift = rng.normal(0, 0.05, len(metrics))
        for position, (combination, replicate) in enumerate(
            itertools.product(combinations, range(1, copies + 1)), 1
        ):
            found = dict(zip(levels, combination, strict=True))
            mean = truth(found.get("placement", ""), float(found.get("size_b", 1)))
            values = mean * np.exp(shift + rng.normal(0, noise, len(metrics)))
            given = dict(zip(metrics, map(float, values), strict=True))
            records.append(record(block, position, found, given, replicate=replicate))
    about = {"study": "nets", "factors": levels, "infeasible": [], "settings": {}, "rig": dict(rig)}
    return Campaign(about | plan, records)


def record(
    block: int, position: int, levels: Mapping[str, str], metrics: Mapping[str, float], **more: Any
) -> dict[str, Any]:
    """Return one trial's record."""
    trial = {"trial": f"b{block:02d}-p{position:03d}", "levels": dict(levels)}
    trial |= {"metrics": dict(metrics), "mechanisms": {}, "n_samples": 5000}
    return small_record(block, position, **(trial | more))


def fail(found: Campaign, matches: Callable[[dict[str, Any]], bool], why: str = "it broke") -> None:
    """Make some trials failed ones."""
    found.__dict__.pop("trials", None)
    for one in found.records:
        if matches(one):
            one |= {"status": "failed", "error": {"what": why}, "metrics": {}, "n_samples": 0}
