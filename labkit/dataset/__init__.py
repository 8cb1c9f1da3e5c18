"""Datasets on disk, read into tidy frames, as they were measured or packed.

`labkit.dataset.storage` describes the files. An attempt at a trial is stored completely or not at
all, and a failed attempt is a row too.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.dataset.files import FORMAT, campaigns, read_json, read_looks, refuse_archive
from labkit.dataset.schema import Plan, check
from labkit.dataset.storage import REST, PackedTables, Part, TrialFolders, read_samples, storage_of
from labkit.design import condition_label
from labkit.errors import DatasetError, suggestion
from labkit.placement import CPU_SLOW, CPUS_APART, apart, least_read, slow

if TYPE_CHECKING:
    from labkit.answers import Answer

__all__ = ["FORMAT", "Dataset", "campaigns", "load", "read_json"]

#: Metrics that the representation of a dataset names.
_SHOWN = 8
#: Kinds of rigs on which nothing is measured, with the reason.
_UNMEASURED = {
    "simulated": "the rig is simulated, and nothing was measured",
    "emulated": "the guests were emulated, and their timings mean nothing",
}


@dataclass(frozen=True, repr=False)
class Dataset:
    """One campaign, read from disk by `load`."""

    path: Path

    def __repr__(self) -> str:
        """Return study, rig, size, factors and metrics, or why they cannot be read."""
        try:
            return "\n  ".join([f"Dataset({str(self.path)!r})", *self._summary()])
        except DatasetError as error:
            return f"Dataset({str(self.path)!r}): {error}"

    def _repr_html_(self) -> str:
        try:
            lines = self._summary()
        except DatasetError:
            return f"<pre>{html.escape(repr(self))}</pre>"
        pairs = [line.strip().partition(": ") for line in lines]
        return html_table(self.path, ((name, text) for name, _, text in pairs))

    def _summary(self) -> list[str]:
        done = [record for record in self.records if record["status"] == "ok"]
        failed = len(self.records) - len(done)
        planned = f" of {self.planned} planned" if self.plan.get("order") else ""
        blocks = len({record["block"] for record in self.records})
        factors = self.levels if done else dict(self.plan["factors"])
        conditions = self.ok[[*factors]].drop_duplicates() if done else ()
        metrics = list(dict.fromkeys(name for record in done for name in record.get("metrics", {})))
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
        return check(read_json(path), Plan, str(path))

    @cached_property
    def looks(self) -> list[dict[str, Any]]:
        """What was decided at each planned look, and which conditions were dropped; [] without."""
        return read_looks(self.path)

    @property
    def planned(self) -> int:
        """The number of trials that are planned, without those of dropped conditions."""
        return sum(self.planned_by_block)

    @property
    def planned_by_block(self) -> list[int]:
        """The number of planned trials of each block, without those of dropped conditions."""
        labels = [
            condition_label(condition["levels"]) for condition in self.plan.get("conditions", [])
        ]
        return [
            sum(labels[index] not in dropped_before(self.looks, block) for index in indices)
            for block, indices in enumerate(self.plan.get("order", []), start=1)
        ]

    @property
    def complete_blocks(self) -> set[int]:
        """The blocks of which every planned trial succeeded."""
        trials = {(one["block"], one["trial"]) for one in self.records if one["status"] == "ok"}
        done = Counter(block for block, _ in trials)
        return {
            block
            for block, planned in enumerate(self.planned_by_block, start=1)
            if 0 < planned == done[block]
        }

    @property
    def rig(self) -> dict[str, Any]:
        """The rig: hosts, links, CPU map, capabilities and caveats."""
        return dict(self.plan["rig"])

    @property
    def margin(self) -> float:
        """The relative difference up to which two conditions count as equal, by the plan."""
        return float(self.plan.get("margin", 0.02))

    @property
    def unmeasured(self) -> str:
        """Why its numbers are no measurements of anything; "" where they are."""
        return _UNMEASURED.get(str(self.rig.get("kind")), "")

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
        """The record of every attempt in the order of the plan: commands, evidence, outcome."""
        return sorted(
            self._storage.records(),
            key=lambda record: (record["block"], record["position"], record["attempt"]),
        )

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per attempt: condition, outcome, flags and mechanism evidence.

        A trial that measured several conditions, such as both sides of a pair, has a row for each;
        the ``trial`` of the second and third row ends in ``/1`` and ``/2``.
        """
        rows = [row for record in self.records for row in _rows(record)]
        # The first windows had nothing lower to be compared with.
        for row in rows:
            if row["status"] != "ok":
                continue
            broken = {CPUS_APART: apart(row, self.nearest_ns), CPU_SLOW: slow(row, self.fastest_ns)}
            late = [flag for flag, holds in broken.items() if holds and flag not in row["flags"]]
            row["flags"] = "; ".join(filter(None, [row["flags"], *late]))
        return pd.DataFrame(rows)

    @cached_property
    def nearest_ns(self) -> float:
        """The least time of a cache line in the whole campaign, in ns; infinite without any."""
        return least_read(record.get("mechanisms", {}) for record in self.records)

    @cached_property
    def fastest_ns(self) -> float:
        """The least time of the operation that tells a CPU's speed, in ns; or infinity."""
        windows = (record.get("mechanisms", {}) for record in self.records)
        return min((float(one.get("reference_ns", math.inf)) for one in windows), default=math.inf)

    @property
    def ok(self) -> pd.DataFrame:
        """The successful rows of `trials`: at most one attempt of each planned trial."""
        return self.trials[self.trials["status"] == "ok"] if len(self.trials) else self.trials

    @property
    def lost(self) -> pd.DataFrame:
        """The last attempt of each planned trial that never succeeded."""
        if not len(self.trials):
            return self.trials
        rows = self.trials.drop_duplicates("trial", keep="last")
        return rows[~rows["trial"].isin(self.ok["trial"])]

    @cached_property
    def levels(self) -> dict[str, list[Any]]:
        """The measured levels of each factor: in the order of the plan, then further ones."""
        found = {}
        for name, planned in dict(self.plan["factors"]).items():
            if len(self.ok) and name not in self.ok:
                raise DatasetError(
                    f"no trial has a level of the factor {name!r}, which the plan has",
                    where=str(self.path),
                    remedy="restore plan.json from a copy",
                )
            measured = dict.fromkeys(self.ok[name]) if len(self.ok) else {}
            first = [level for level in planned if level in measured]
            found[name] = first + [level for level in measured if level not in first]
        return found

    @cached_property
    def sampled(self) -> dict[str, tuple[str, ...]]:
        """The measured columns of each successful trial with samples, by the trial's name."""
        records, parts = self.with_samples()
        return {
            record["trial"]: tuple(part.types) for record, part in zip(records, parts, strict=True)
        }

    def raw(self, trial: str, attempt: int | None = None) -> dict[str, str]:
        """Return the output of a trial's programs by file name.

        Parameters
        ----------
        trial : str
            Its name, as in the column ``trial``.
        attempt : int, optional
            The number of the attempt; the last one when omitted.

        Raises
        ------
        DatasetError
            There is no such trial or attempt, or the archive of raw output is damaged.

        Examples
        --------
        >>> from labkit import load
        >>> sorted(load("data/reference/rps").raw("b01-p01"))
        ['server.log']
        """
        attempts = [record["attempt"] for record in self.records if record["trial"] == trial]
        if not attempts or attempt not in (None, *attempts):
            names = [record["trial"] for record in self.records]
            remedy = f"it has attempts {attempts}" if attempts else suggestion(trial, names)
            where = f"{trial}, attempt {attempt or 'last'}, of {self.path}"
            raise DatasetError("no such trial", where=where, remedy=remedy)
        folder = f"trials/{trial}-a{attempt or attempts[-1]}/"
        return {
            name.removeprefix(folder): content.decode(errors="replace")
            for name, content in self._storage.raw()
            if name.startswith(folder)
        }

    def compare(
        self,
        condition: object,
        baseline: object | None = None,
        *,
        metric: str | None = None,
        statistic: str | None = None,
        margin: float | None = None,
        alpha: float = 0.05,
        **levels: object,
    ) -> Answer:
        """Compare two conditions, inside blocks, and answer in a sentence.

        Parameters
        ----------
        condition : str
            A level of any factor, such as ``docker bridge``.
        baseline : str, optional
            Another level of that factor; the one of the plan's baseline when omitted.
        metric : str, optional
            What was measured, such as ``rtt_ns``; needed where the study measured several.
        statistic : str, optional
            Of each trial's samples: ``median`` (as when omitted), ``mean``, ``p99``, ``q0.999``.
        margin : float, optional
            Relative difference up to which both count as equal; the plan's when omitted.
        alpha : float
            Level of the test.
        **levels
            The level of each other factor: conditions that differ in more are never pooled. A
            factor may be left out where both conditions were measured under one level of it, or
            where one of these is ``off``: then this one is taken.

        Returns
        -------
        Answer
            `labkit.answers.Answer`: a sentence when shown, with its numbers as attributes.

        Raises
        ------
        UsageError
            A name is unknown, a factor is left open, several metrics were measured, or trials have
            too few samples for the statistic.

        Examples
        --------
        >>> from labkit import load
        >>> campaign = load("data/reference/affinity-spinning")
        >>> campaign.compare("docker bridge", "docker host", wait="spin", affinity="split").word
        'slower'
        >>> spin = campaign.compare("spin", "block", placement="docker host", affinity="split")
        >>> print(spin)  # doctest: +ELLIPSIS
        spin is faster than block: median round-trip time 5.93 us, -50.8 us, 0.105x [0.102, ...]
        """
        from labkit.dataset.comparison import compare_conditions

        options: dict[str, Any] = {"metric": metric, "statistic": statistic, "margin": margin}
        return compare_conditions(self, condition, baseline, levels=levels, alpha=alpha, **options)

    def part(self, selected: Callable[[Mapping[str, Any]], bool]) -> Dataset:
        """Return the dataset with only those records for which `selected` returns true.

        Examples
        --------
        >>> from labkit import load
        >>> campaign = load("data/reference/rps")
        >>> first = campaign.part(lambda record: record["block"] == 1)
        >>> first.ok["block"].unique().tolist()
        [1]
        """
        _ = self.nearest_ns, self.fastest_ns  # which a part keeps
        part = copy(self)
        for name in ("trials", "levels", "sampled"):
            part.__dict__.pop(name, None)
        part.__dict__["records"] = [record for record in self.records if selected(record)]
        return part

    def samples(self, columns: str | Iterable[str] | None = None) -> pd.DataFrame:
        """Return the samples of all successful trials, one row a sample.

        Parameters
        ----------
        columns : str or iterable of str, optional
            Measured columns; those that all trials have when omitted. Times are int64 ns.

        Returns
        -------
        DataFrame
            ``trial``, ``block``, the factors and ``replicate``, then the columns. Trial and factors
            are categories in the order of the plan, block and replicate small integers, to save
            memory.

        Examples
        --------
        >>> from labkit import load
        >>> samples = load("data/reference/affinity-spinning").samples("rtt_ns")
        >>> samples.columns.tolist()[2:]
        ['placement', 'affinity', 'wait', 'capture', 'replicate', 'rtt_ns']
        """
        records, counts, measured = self._measured(columns)
        return pd.DataFrame(self._keys(records, counts) | measured, copy=False)

    def series(
        self,
        columns: str | Iterable[str] | None = None,
        *,
        reduce: Callable[[NDArray[Any]], Any] | None = None,
    ) -> pd.DataFrame:
        """Return the samples of all successful trials, one row a trial.

        The same numbers as `samples` in half of the memory and a fraction of the time. Functions of
        ``labkit.analysis`` accept either; `labkit.analysis.trials.sort_trials` sorts them once.

        Parameters
        ----------
        columns : str or iterable of str, optional
            Measured columns; those that all trials have when omitted.
        reduce : callable, optional
            What to keep of a trial's array, such as `labkit.analysis.sort_samples`: only what it
            returns stays in memory. It runs in threads, and a view of the array keeps all of it.

        Returns
        -------
        DataFrame
            ``trial``, ``block``, the factors and ``replicate`` as in `samples`; ``n``, the number
            of samples; then columns of arrays, shape (n,), in the order of measuring, or of what
            `reduce` returns of them. Times are int64 ns.

        Examples
        --------
        >>> from labkit import load
        >>> load("data/reference/affinity-spinning").series("rtt_ns").shape
        (1600, 9)
        """
        records, counts, measured = self._measured(columns, reduce)
        keys = self._keys(records, [1] * len(counts)) | {"n": np.array(counts, dtype=np.int64)}
        ends = np.cumsum(counts)
        if reduce:
            return pd.DataFrame(keys | measured)
        for name, values in measured.items():
            keys[name] = np.empty(len(counts), dtype=object)
            for number, (end, count) in enumerate(zip(ends, counts, strict=True)):
                keys[name][number] = values[end - count : end]
        return pd.DataFrame(keys)

    def _measured(
        self,
        columns: str | Iterable[str] | None,
        reduce: Callable[[NDArray[Any]], Any] | None = None,
    ) -> tuple[list[dict[str, Any]], list[int], dict[str, NDArray[Any]]]:
        """Return the records of trials with samples, how many each has, and the samples."""
        names = (
            [columns] if isinstance(columns, str) else None if columns is None else list(columns)
        )
        records, parts = self.with_samples()
        if not records:
            return [], [], {name: np.empty(0, object) for name in names or []}
        return records, *read_samples(parts, records, names, reduce)

    @cached_property
    def _storage(self) -> TrialFolders | PackedTables:
        return storage_of(self.path)

    def with_samples(self) -> tuple[list[dict[str, Any]], list[Part]]:
        """Return the records of trials with samples, and these samples, not read yet."""
        records = [one for one in self.records if one["status"] == "ok" and one["n_samples"]]
        return records, self._storage.parts(records) if records else []

    def _keys(self, records: list[dict[str, Any]], counts: list[int]) -> dict[str, Any]:
        """Return trial, block, factors and replicate of each row."""
        factors = self.plan["factors"]
        if not records:
            return dict.fromkeys(
                ["trial", "block", *factors, "replicate"], np.empty(0, dtype=object)
            )
        for record in records:
            if missing := [name for name in factors if name not in record["levels"]]:
                raise DatasetError(
                    "a trial has no level of a factor of the plan",
                    where=self._storage.where(record),
                    why=f"{missing} of {self.path / 'plan.json'}; it has {[*record['levels']]}",
                    remedy=REST,
                )
        trial = [record["trial"] for record in records]
        keys: dict[str, Any] = {
            "trial": _category(trial, sorted(set(trial)), counts),
            "block": np.repeat(_small([one["block"] for one in records]), counts),
        }
        for name, order in factors.items():
            keys[name] = _category([one["levels"][name] for one in records], order, counts)
        return keys | {
            "replicate": np.repeat(_small([one["replicate"] for one in records]), counts)
        }


def html_table(path: Path, rows: Iterable[tuple[str, str]]) -> str:
    """Return rows of a name and a text as a table of HTML, with a path as its caption."""
    cells = [
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows
    ]
    caption = f"<caption><code>{html.escape(str(path))}</code></caption>"
    return f"<table>{caption}{''.join(cells)}</table>"


def dropped_before(looks: Iterable[Mapping[str, Any]], block: int) -> set[str]:
    """Return the labels of the conditions that looks before a block have dropped."""
    return {label for look in looks if look["blocks"] < block for label in look["dropped"]}


def load(path: Path | str) -> Dataset:
    """Return a campaign, or the newest campaign of a study.

    Parameters
    ----------
    path : Path or str
        The folder of a campaign, measured or packed, or the folder of a study's campaigns.

    Raises
    ------
    DatasetError
        There is no campaign, or those of several studies, its plan cannot be read, or `path` is an
        archive.
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
    paths = campaigns(folder)
    if len({str(read_json(path / "plan.json").get("study", "")) for path in paths}) == 1:
        return paths[-1]
    deeper = sorted({plan.parent.parent for plan in folder.glob("*/*/plan.json")})
    if names := [str(path) for path in paths or deeper]:
        raise DatasetError(
            "campaigns of several studies are here",
            where=str(folder),
            remedy=f"name one: {', '.join(names)}",
        )
    raise DatasetError(
        "no campaign here",
        where=str(folder),
        why="it has no plan.json, and no folder with one",
        remedy="measure one first: labkit run --profile tiny",
    )


def _rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the row of an attempt, and those of further conditions that it measured."""
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
        # A metric takes precedence over the mechanism of the last window of the same name.
        **record.get("mechanisms", {}),
        **record.get("metrics", {}),
    }


def _small(values: list[int]) -> NDArray[Any]:
    """Return integers as int16, or as larger ones where they do not fit."""
    return np.array(values, dtype=np.result_type(np.int16, *map(np.min_scalar_type, values)))


def _category(values: list[Any], order: Iterable[Any], counts: list[int]) -> pd.Categorical[Any]:
    """Return each trial's value, repeated for its samples, with the categories that occur."""
    occurring = set(values)
    names = list(dict.fromkeys([name for name in order if name in occurring] + values))
    code_of = {name: code for code, name in enumerate(names)}
    codes = np.array([code_of[value] for value in values], dtype=np.min_scalar_type(-len(names)))
    return pd.Categorical.from_codes(np.repeat(codes, counts), pd.Index(names))
