"""Datasets on disk, read into tidy frames.

Layout, format 1::

    <campaign>/plan.json                    identity, settings, conditions, order, refusals, rig
    <campaign>/sessions/01.json             facts of every host, one file a boot of the rig
    <campaign>/trials/b01-p03-a1/trial.json what ran, what was read back, evidence, outcome
    <campaign>/trials/b01-p03-a1/samples.parquet   integer columns, one row a sample
    <campaign>/logs/01.log                  what a run did, with times (UTC); one file a run

A trial's directory is there completely or not at all. Each attempt is a directory: a failed one is
a row like any other.
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

from labkit.dataset.archive import opened
from labkit.dataset.files import FORMAT, campaigns, in_threads, read_json, read_part
from labkit.dataset.rows import rows_of
from labkit.dataset.samples import REST, columns_of, read_columns
from labkit.errors import DatasetError

__all__ = ["FORMAT", "Dataset", "campaigns", "in_threads", "load", "read_json"]


#: What every attempt's record has.
_RECORD = (
    *("trial", "attempt", "block", "position", "copy", "levels", "session"),
    *("status", "n_samples", "started_ns", "seconds"),
)


@dataclass(frozen=True)
class Dataset:
    """One campaign, read from disk; make one with `load`."""

    path: Path

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan as stored: identity, settings, factors, conditions, order, refusals, seed."""
        return read_part(self.path / "plan.json", ("identity", "factors", "rig"))

    @property
    def rig(self) -> dict[str, Any]:
        """The rig: hosts, links, CPU map, capabilities and caveats."""
        return dict(self.plan["rig"])

    @cached_property
    def sessions(self) -> list[dict[str, Any]]:
        """Every session (a boot of the rig) with the facts of its hosts."""
        return [read_json(path) for path in sorted((self.path / "sessions").glob("*.json"))]

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of each host in the last session, by role."""
        return dict(self.sessions[-1]["facts"]) if self.sessions else {}

    def record(self, directory: Path) -> dict[str, Any]:
        """Return the ``trial.json`` of an attempt, with the name of its directory."""
        return read_part(directory / "trial.json", _RECORD) | {"directory": directory.name}

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """Every attempt's ``trial.json``, in the order of the plan."""
        found = [self.record(one) for one in (self.path / "trials").glob("b*-p*-a*")]
        return sorted(found, key=lambda one: (one["block"], one["position"], one["attempt"]))

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per attempt: condition, outcome, flags and mechanism evidence.

        A trial that measured several conditions at once, such as both sides of a pair, has a row
        for each; ``trial`` of the further ones ends in ``/1``, ``/2`` ...
        """
        rows = [row for record in self.records for row in rows_of(record)]
        return pd.DataFrame(rows)

    @property
    def ok(self) -> pd.DataFrame:
        """The rows of `trials` whose measurement succeeded; one a planned trial at most."""
        return self.trials[self.trials["status"] == "ok"] if len(self.trials) else self.trials

    @cached_property
    def sampled(self) -> dict[str, tuple[str, ...]]:
        """The measured columns of each successful trial with samples, by the trial's name."""
        records, paths = self._with_samples()
        return {one["trial"]: names for one, names in zip(records, columns_of(paths), strict=True)}

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
        columns : iterable of str, optional
            Measured columns; those of every trial when omitted. Times are int64 nanoseconds.

        Returns
        -------
        DataFrame
            ``trial``, ``block``, the factors and ``copy``, then the columns. Trial and factors are
            categories, the factors' in the order of the plan; block and copy are small integers,
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
        columns : iterable of str, optional
            Measured columns; all when omitted.

        Returns
        -------
        DataFrame
            ``trial, block``, the factors and ``copy`` as in `samples`; ``n`` samples; then columns
            of arrays (times are int64 nanoseconds), in the order in which they were taken.
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
        wanted = list(columns) if columns is not None else None
        records, paths = self._with_samples()
        if not records:
            return [], [], {name: np.empty(0, object) for name in wanted or []}
        return records, *read_columns(paths, [int(one["n_samples"]) for one in records], wanted)

    def _with_samples(self) -> tuple[list[dict[str, Any]], list[Path]]:
        """Return the records of trials that kept samples, and where these are."""
        records = [one for one in self.records if one["status"] == "ok" and one["n_samples"]]
        home = self.path / "trials"
        return records, [home / one["directory"] / "samples.parquet" for one in records]

    def _keys(self, records: list[dict[str, Any]], counts: list[int]) -> dict[str, Any]:
        """Return trial, block, factors and copy of each record, repeated for each of its rows."""
        factors = self.plan["factors"]
        if not records:
            return dict.fromkeys(["trial", "block", *factors, "copy"], np.empty(0, dtype=object))
        for one in records:
            if lacking := [name for name in factors if name not in one["levels"]]:
                raise DatasetError(
                    "a trial has no level of a factor of the plan",
                    where=str(self.path / "trials" / one["directory"] / "trial.json"),
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
        return keys | {"copy": np.repeat(_small([one["copy"] for one in records]), counts)}


def load(path: Path | str) -> Dataset:
    """Return the dataset at `path`: a campaign, or the newest campaign of a study's folder.

    Parameters
    ----------
    path : Path or str
        A folder, or an archive of ``labkit dataset pack``, or a folder inside of one
        (``reference.tar/cpu-quota``).

    Raises
    ------
    DatasetError
        There is none, there are several studies, its plan cannot be read, or what was asked of an
        archive is damaged.
    """
    folder = opened(Path(path))
    if not (folder / "plan.json").is_file():
        found = campaigns(folder)
        _refuse_but_one(Path(path), folder, found)
        folder = found[-1]
    dataset = Dataset(folder)
    _ = dataset.plan
    return dataset


def _refuse_but_one(path: Path, folder: Path, found: list[Path]) -> None:
    """Raise `DatasetError` unless the campaigns found in `folder` are there and of one study."""
    deeper = sorted({plan.parent.parent for plan in folder.glob("*/*/plan.json")})
    studies = {str(read_json(one / "plan.json").get("study", "")) for one in found}
    if len(studies) == 1:
        return
    names = ", ".join(str(path / one.name) for one in found or deeper)
    raise DatasetError(
        "campaigns of several studies are here" if names else "no campaign here",
        where=str(path),
        why="" if names else "neither plan.json nor a directory that holds one",
        remedy=f"name one: {names}" if names else "measure one first: labkit run --profile tiny",
    )


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
