"""Datasets on disk, read into tidy frames: a campaign as it is measured, or packed.

`labkit.dataset.storage` says which files there are. Each attempt at a trial is there completely or
not at all, and a failed one is a row like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.dataset.files import (
    FORMAT,
    campaigns,
    check_keys,
    in_threads,
    read_json,
    refuse_archive,
)
from labkit.dataset.storage import REST, PackedTables, Part, TrialFolders, read_samples, storage_of
from labkit.errors import DatasetError

__all__ = ["FORMAT", "Dataset", "campaigns", "in_threads", "load", "read_json"]

#: As many metrics are named when a dataset is shown.
_SHOWN = 8


@dataclass(frozen=True, repr=False)
class Dataset:
    """One campaign, read from disk; make one with `load`."""

    path: Path

    def __repr__(self) -> str:
        """Return study, rig, size, factors and metrics; or why that cannot be read."""
        try:
            return "\n  ".join([f"Dataset({str(self.path)!r})", *self._summary()])
        except DatasetError as error:
            return f"Dataset({str(self.path)!r}): {error}"

    def _summary(self) -> list[str]:
        done = [one for one in self.records if one["status"] == "ok"]
        failed, order = len(self.records) - len(done), self.plan.get("order")
        planned = f" of {sum(map(len, order))} planned" if order else ""
        blocks = len({one["block"] for one in self.records})
        factors = dict(self.plan["factors"])
        conditions = self.ok[[*factors]].drop_duplicates() if done else ()
        metrics = list(dict.fromkeys(name for one in done for name in one.get("metrics", {})))
        sampled = dict.fromkeys(name for names in self.sampled.values() for name in names)
        more = f", ... ({len(metrics)} in all)" if len(metrics) > _SHOWN else ""
        return [
            f"study: {self.plan.get('study', 'unknown')}",
            f"rig: {self.rig.get('name', 'unknown')} ({self.rig.get('kind', 'unknown')})",
            f"trials: {len(done)}{planned}, {blocks} blocks, {failed} failed attempts",
            f"conditions: {len(conditions)}",
            *(f"  {name}: {', '.join(map(str, levels))}" for name, levels in factors.items()),
            f"metrics: {', '.join(metrics[:_SHOWN]) or 'none'}{more}",
            f"samples: {', '.join(sampled) or 'none'}",
        ]

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan as stored: identity, settings, factors, conditions, order, infeasible, seed."""
        path = self.path / "plan.json"
        return check_keys(read_json(path), ("identity", "factors", "rig"), str(path))

    @property
    def rig(self) -> dict[str, Any]:
        """The rig: hosts, links, CPU map, capabilities and caveats."""
        return dict(self.plan["rig"])

    @cached_property
    def sessions(self) -> list[dict[str, Any]]:
        """Every session (a boot of the rig) with the facts of its hosts."""
        return self._storage.sessions()

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of each host in the last session, by role."""
        return dict(self.sessions[-1]["facts"]) if self.sessions else {}

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Every attempt's record, in the order of the plan: what ran, evidence, outcome."""
        found = self._storage.records()
        return sorted(found, key=lambda one: (one["block"], one["position"], one["attempt"]))

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per attempt: condition, outcome, flags and mechanism evidence.

        A trial that measured several conditions at once, such as both sides of a pair, has a row
        for each; ``trial`` of the further ones ends in ``/1``, ``/2`` ...
        """
        return pd.DataFrame([row for record in self.records for row in _rows(record)])

    @property
    def ok(self) -> pd.DataFrame:
        """The rows of `trials` whose measurement succeeded; one a planned trial at most."""
        return self.trials[self.trials["status"] == "ok"] if len(self.trials) else self.trials

    @cached_property
    def sampled(self) -> dict[str, tuple[str, ...]]:
        """The measured columns of each successful trial with samples, by the trial's name."""
        records, parts = self._with_samples()
        return {one["trial"]: tuple(part.types) for one, part in zip(records, parts, strict=True)}

    def raw(self, trial: str, attempt: int | None = None) -> dict[str, str]:
        """Return what the programs of a trial printed, by the name of the file.

        Parameters
        ----------
        trial : str
            Name of the trial, as in the column ``trial``.
        attempt : int, optional
            Which attempt; the last one when omitted.

        Raises
        ------
        DatasetError
            There is no such trial or attempt, or the archive of raw output is damaged.
        """
        attempts = [one["attempt"] for one in self.records if one["trial"] == trial]
        if not attempts or attempt not in (None, *attempts):
            known = f"it has attempts {attempts}" if attempts else "see the column `trial`"
            where = f"{trial}, attempt {attempt or 'last'}, of {self.path}"
            raise DatasetError("no such trial", where=where, remedy=known)
        home = f"trials/{trial}-a{attempt or attempts[-1]}/"
        return {
            name.removeprefix(home): content.decode(errors="replace")
            for name, content in self._storage.raw()
            if name.startswith(home)
        }

    def part(self, there: Callable[[Mapping[str, Any]], bool]) -> Dataset:
        """Return the dataset with those records only for which `there` holds."""
        part = copy(self)
        for made in ("trials", "sampled"):
            part.__dict__.pop(made, None)
        part.__dict__["records"] = [one for one in self.records if there(one)]
        return part

    def samples(self, columns: Iterable[str] | None = None) -> pd.DataFrame:
        """Return the samples of all successful trials, one row a sample.

        Parameters
        ----------
        columns : str or iterable of str, optional
            Measured columns; those of every trial when omitted. Times are int64 nanoseconds.

        Returns
        -------
        DataFrame
            ``trial``, ``block``, the factors and ``replicate``, then the columns. Trial and factors
            are categories, in the order of the plan; block and replicate are small integers,
            so that a row costs few bytes beside what was measured.
        """
        records, counts, measured = self._measured(columns)
        return pd.DataFrame(self._keys(records, counts) | measured, copy=False)

    def series(self, columns: Iterable[str] | None = None) -> pd.DataFrame:
        """Return the samples of all successful trials, one row a trial.

        The numbers of `samples` in half of the memory and a fraction of the time. Functions of
        ``labkit.analysis`` take either; ``reduce.sort_trials`` sorts them once for all of them.

        Parameters
        ----------
        columns : str or iterable of str, optional
            Measured columns; those of every trial when omitted.

        Returns
        -------
        DataFrame
            ``trial, block``, the factors and ``replicate`` as in `samples`; ``n`` samples; then
            columns of arrays (times are int64 nanoseconds), in the order in which they were taken.
        """
        records, counts, measured = self._measured(columns)
        keys = self._keys(records, [1] * len(counts)) | {"n": np.array(counts, dtype=np.int64)}
        ends = np.cumsum(counts)
        for name, values in measured.items():
            keys[name] = np.empty(len(counts), dtype=object)
            for number, (end, count) in enumerate(zip(ends, counts, strict=True)):
                keys[name][number] = values[end - count : end]
        return pd.DataFrame(keys)

    def _measured(
        self, columns: Iterable[str] | None
    ) -> tuple[list[dict[str, Any]], list[int], dict[str, NDArray[Any]]]:
        """Return the records of trials with samples, how many each has, and the samples."""
        one_name = isinstance(columns, str)
        wanted = [str(columns)] if one_name else None if columns is None else list(columns)
        records, parts = self._with_samples()
        if not records:
            return [], [], {name: np.empty(0, object) for name in wanted or []}
        return records, *read_samples(parts, [int(one["n_samples"]) for one in records], wanted)

    @cached_property
    def _storage(self) -> TrialFolders | PackedTables:
        return storage_of(self.path)

    def _with_samples(self) -> tuple[list[dict[str, Any]], list[Part]]:
        """Return the records of trials that kept samples, and these samples, not yet read."""
        records = [one for one in self.records if one["status"] == "ok" and one["n_samples"]]
        return records, self._storage.parts(records) if records else []

    def _keys(self, records: list[dict[str, Any]], counts: list[int]) -> dict[str, Any]:
        """Return trial, block, factors and replicate of each row."""
        factors = self.plan["factors"]
        if not records:
            return dict.fromkeys(
                ["trial", "block", *factors, "replicate"], np.empty(0, dtype=object)
            )
        for one in records:
            if lacking := [name for name in factors if name not in one["levels"]]:
                raise DatasetError(
                    "a trial has no level of a factor of the plan",
                    where=self._storage.where(one),
                    why=f"{lacking} of {self.path / 'plan.json'}, where it has {[*one['levels']]}",
                    remedy=REST,
                )
        trial = [one["trial"] for one in records]
        keys: dict[str, Any] = {
            "trial": _category(trial, sorted(set(trial)), counts),
            "block": np.repeat(_small([one["block"] for one in records]), counts),
        }
        for name, order in factors.items():
            keys[name] = _category([one["levels"][name] for one in records], order, counts)
        return keys | {
            "replicate": np.repeat(_small([one["replicate"] for one in records]), counts)
        }


def load(path: Path | str) -> Dataset:
    """Return the dataset at `path`: a campaign, or the newest campaign of a study's folder.

    Parameters
    ----------
    path : Path or str
        A folder with a campaign, as it was measured or packed; an archive is unpacked first.

    Raises
    ------
    DatasetError
        There is none, there are several studies, its plan cannot be read, or `path` is a file.
    """
    folder = Path(path)
    refuse_archive(folder)
    if not (folder / "plan.json").is_file():
        folder = _newest(folder)
    dataset = Dataset(folder)
    _ = dataset.plan
    return dataset


def _newest(folder: Path) -> Path:
    """Return the newest campaign in a folder, whose campaigns must be of one study."""
    inside = campaigns(folder)
    if len({str(read_json(path / "plan.json").get("study", "")) for path in inside}) == 1:
        return inside[-1]
    deeper = sorted({plan.parent.parent for plan in folder.glob("*/*/plan.json")})
    if names := [str(path) for path in inside or deeper]:
        raise DatasetError(
            "campaigns of several studies are here",
            where=str(folder),
            remedy=f"name one: {', '.join(names)}",
        )
    raise DatasetError(
        "no campaign here",
        where=str(folder),
        why="neither plan.json nor a directory that holds one",
        remedy="measure one first: labkit run --profile tiny",
    )


def _rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the row of an attempt, and of each further condition that it measured."""
    rows = [_row(record)]
    for number, other in enumerate(record.get("also", []), start=1):
        changed = {
            "trial": f"{record['trial']}/{number}",
            "levels": record["levels"] | other["levels"],
            "metrics": other["metrics"],
        }
        rows.append(_row(record | changed))
    return rows


def _row(record: dict[str, Any]) -> dict[str, Any]:
    error = record.get("error") or {}
    return {
        **{name: record[name] for name in ("trial", "attempt", "block", "position")},
        **record["levels"],
        **{name: record[name] for name in ("replicate", "status", "n_samples", "started_ns")},
        **{name: record[name] for name in ("seconds", "session")},
        "flags": "; ".join(record.get("flags", [])),
        "problems": error.get("what", ""),
        # What a protocol says of a window of its own goes before what the last window was.
        **record.get("mechanisms", {}),
        **record.get("metrics", {}),
    }


def _small(values: list[int]) -> NDArray[Any]:
    """Return integers in two bytes each, or more where they do not fit."""
    return np.array(values, dtype=np.result_type(np.int16, *map(np.min_scalar_type, values)))


def _category(values: list[Any], order: Iterable[Any], counts: list[int]) -> pd.Categorical[Any]:
    """Return a value a trial, repeated for each of its samples: those that occur, in order."""
    there = set(values)
    names = list(dict.fromkeys([name for name in order if name in there] + values))
    place = {name: number for number, name in enumerate(names)}
    codes = np.array([place[value] for value in values], dtype=np.min_scalar_type(-len(names)))
    return pd.Categorical.from_codes(np.repeat(codes, counts), pd.Index(names))
