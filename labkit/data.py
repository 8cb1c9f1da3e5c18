"""Campaigns on disk, read as tidy frames: a row an attempt at a trial.

A campaign is a folder with these files; ``labkit dataset pack`` makes the packed form of them.

=================== =============================================================================
``plan.json``       the plan, fixed before measuring: conditions, order, settings, protocol, rig
``sessions.json``   the facts of each host in each session
``trials.parquet``  packed: a row an attempt; before, ``trials/NAME/trial.json`` has it
``samples.parquet`` a row a sample; before packing a folder with a file an attempt
``raw.tar.xz``      packed: the folders ``trials`` and ``logs`` without samples
=================== =============================================================================
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labkit.errors import DatasetError, UsageError, suggestion

__all__ = ["FORMAT", "SAMPLE_STATISTICS", "Campaign", "by_study", "campaigns", "load", "statistics"]

#: Version of the files; another one is refused.
FORMAT = 2
#: Samples of a trial that a quantile needs, so that one is expected beyond it.
_QUANTILES = {"p95": (0.95, 20), "p99": (0.99, 100), "p999": (0.999, 1000)}
SAMPLE_STATISTICS = ("mean", "median", "min", "max", "std", *_QUANTILES)
_RESTORE = "restore it from a copy, or measure again with --new"
#: Columns that a trial's row has before its factors.
KEYS = ("trial", "attempt", "block", "position", "session", "repeat")


def statistics(name: str, samples: NDArray[Any]) -> dict[str, float]:
    """Statistics of one trial's samples, as columns of its row.

    Parameters
    ----------
    name : str
        The samples' column, such as ``rtt_ns``.
    samples : ndarray of shape (n,)
        Its values. A quantile needs so many that one is expected beyond it.

    Returns
    -------
    dict of str to float
        ``rtt_ns_mean`` and so on, in the unit of the samples; empty without samples.

    Examples
    --------
    >>> statistics("rtt_ns", np.array([1, 2, 6]))["rtt_ns_median"]
    2.0
    """
    if not len(samples):
        return {}
    values = np.asarray(samples, dtype=np.float64)
    found = {
        "mean": values.mean(),
        "median": np.median(values),
        "min": values.min(),
        "max": values.max(),
    }
    if len(values) > 1:
        found["std"] = values.std(ddof=1)
    for quantile, (level, needed) in _QUANTILES.items():
        if len(values) >= needed:
            found[quantile] = np.quantile(values, level)
    return {f"{name}_{statistic}": float(value) for statistic, value in found.items()}


@dataclass(frozen=True, repr=False)
class Campaign:
    """One campaign, as `load` reads it; its frames are read when they are first used.

    Parameters
    ----------
    path : Path
        Its folder.
    plan : mapping
        The plan: ``study``, ``factors``, ``settings``, ``order``, ``infeasible``, ``rig`` ...
    """

    path: Path
    plan: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Campaign({str(self.path)!r}: {self.study}, {len(self.ok)} trials)"

    @property
    def study(self) -> str:
        """Name of the study."""
        return str(self.plan["study"])

    @property
    def factors(self) -> dict[str, list[Any]]:
        """Planned levels by factor: numbers where all levels of a factor are numbers."""
        return {name: _numbers(levels) for name, levels in self.plan["factors"].items()}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all trials have in common."""
        return dict(self.plan["settings"])

    @property
    def margin(self) -> float:
        """Relative difference up to which two conditions count as equal."""
        return float(self.plan["margin"])

    @property
    def rig(self) -> dict[str, Any]:
        """Rig: hosts, links, CPU map, capabilities and caveats."""
        return dict(self.plan["rig"])

    @cached_property
    def sessions(self) -> list[dict[str, Any]]:
        """Sessions in order, each with the facts of its hosts."""
        path = self.path / "sessions.json"
        return list(_read_json(path)["sessions"]) if path.is_file() else []

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of each host in the last session, by role."""
        return dict(self.sessions[-1]["facts"]) if self.sessions else {}

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Attempts in the order of the plan, failed ones included.

        A trial that measured several conditions has a row for each; the second ends in ``/1``.
        Scalar settings are columns too.
        """
        table = self.path / "trials.parquet"
        if table.is_file():
            with _readable(table):
                frame = pd.read_parquet(table)
        else:
            records = [_read_json(one) for one in self.path.glob("trials/*/trial.json")]
            frame = pd.DataFrame([row for record in records for row in record["rows"]])
        if not len(frame):
            columns = [*KEYS, *self.factors, "status", "problem", "flags", "n_samples", "saturated"]
            frame = pd.DataFrame(columns=columns)
        for name, levels in self.factors.items():
            if name not in frame:
                raise DatasetError(
                    f"no trial has a level of the factor {name!r}, which the plan has",
                    where=str(self.path),
                    remedy="restore plan.json from a copy",
                )
            if all(isinstance(level, int | float) for level in levels):
                with _readable(self.path):
                    frame[name] = pd.to_numeric(frame[name])
        constant = {
            name: value
            for name, value in self.settings.items()
            if isinstance(value, str | int | float) and name not in frame
        }
        with _readable(self.path):
            return frame.assign(**constant).sort_values(
                ["block", "position", "attempt", "trial"], ignore_index=True
            )

    @cached_property
    def ok(self) -> pd.DataFrame:
        """Successful rows of `trials`: at most one attempt of each planned trial."""
        return self.trials[self.trials["status"] == "ok"]

    @property
    def planned(self) -> dict[int, int]:
        """Number of planned trials by block.

        Campaigns with interim analyses stopped measuring some conditions after a block; the plan
        has that block as ``dropped``, by condition.
        """
        labels = [" | ".join(map(str, one["levels"].values())) for one in self.plan["conditions"]]
        last = self.plan.get("dropped", {})
        return {
            block: sum(block <= last.get(labels[index], block) for index in indices)
            for block, indices in enumerate(self.plan["order"], start=1)
        }

    @property
    def complete_blocks(self) -> int:
        """Number of blocks of which every planned trial succeeded."""
        done = self.ok.drop_duplicates(["block", "position"]).groupby("block").size()
        return sum(done.get(block, 0) >= count > 0 for block, count in self.planned.items())

    def samples(self, *columns: str, **levels: Any) -> pd.DataFrame:
        """Samples of the successful trials that have all of `levels`, a row a sample.

        Parameters
        ----------
        *columns : str
            Measured columns, such as ``rtt_ns``. Trials without one of them are left out.
        **levels
            Levels of factors, or of other columns of `trials`.

        Returns
        -------
        DataFrame
            ``trial``, ``block``, the factors, then the columns. Times are in ns.

        Raises
        ------
        UsageError
            A column was not measured.
        """
        path = self.path / "samples.parquet"
        trials = select(self.ok, levels).drop_duplicates("trial").set_index("trial")
        if not path.exists():
            raise UsageError(
                "no trial has samples", where=str(self.path), remedy="use statistics in `trials`"
            )
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        with _readable(path):
            # Trials differ in their columns.
            schema = pa.unify_schemas([pq.read_schema(one) for one in files])
        if missing := [name for name in columns if name not in schema.names]:
            raise UsageError(
                f"{', '.join(missing)} was not measured",
                where=str(path),
                remedy=suggestion(missing[0], schema.names),
            )
        wanted = [("trial", "in", {"", *trials.index})]
        with _readable(path):
            found = pd.read_parquet(
                path, columns=["trial", *columns], filters=wanted, schema=schema
            ).dropna()
        # Millions of rows: what all samples of a trial share is a category.
        found["trial"] = found["trial"].astype("category")
        rows = trials.index.get_indexer(found["trial"].cat.categories)
        rows = rows[found["trial"].cat.codes]
        for place, name in enumerate(["block", *self.factors], start=1):
            known = self.factors.get(name, [])
            order = known + [level for level in trials[name].unique() if level not in known]
            levels_of = pd.Series(pd.Categorical(trials[name], order).take(rows), found.index)
            found.insert(place, name, levels_of)
        return found


def select(frame: pd.DataFrame, levels: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of a frame that have a level, or one of several, of each column named.

    Raises
    ------
    UsageError
        There is no such column.
    """
    for name, level in levels.items():
        if name not in frame:
            raise UsageError(f"no column called {name!r}", remedy=suggestion(name, list(frame)))
        wanted = list(level) if isinstance(level, list | tuple | set) else [level]
        frame = frame[frame[name].isin(wanted)]
    return frame


def expand(of: Any) -> list[dict[str, Any]]:
    """Return the cells that a mapping with lists stands for, or those of several mappings."""
    if isinstance(of, list):
        return [cell for one in of for cell in expand(one)]
    levels = [level if isinstance(level, list) else [level] for level in of.values()]
    return [dict(zip(of, one, strict=True)) for one in itertools.product(*levels)]


def load(path: Path | str) -> Campaign:
    """Return a campaign, or the newest one in a study's folder.

    Parameters
    ----------
    path : Path or str
        The folder of a campaign, or one whose folders are campaigns of one study.

    Raises
    ------
    DatasetError
        There is no campaign, there are those of several studies, or a file cannot be read.

    Examples
    --------
    >>> from labkit import load
    >>> load("data/reference/affinity-spinning").plan["blocks"]
    100
    """
    folder = Path(path)
    if (folder / "plan.json").is_file():
        return Campaign(folder, _read_json(folder / "plan.json"))
    if folder.is_file():
        raise DatasetError(
            "a campaign is read from a folder, and this is a file",
            where=str(folder),
            remedy=f"unpack it: tar -xf {folder}; then give the folder",
        )
    found = campaigns(folder)
    studies = sorted({one.study for one in found})
    if len(studies) != 1:
        raise DatasetError(
            "campaigns of several studies are here" if studies else "no campaign here",
            where=str(folder),
            remedy=f"name one of {', '.join(str(one.path) for one in found)}"
            if studies
            else "measure one first: labkit run STUDY -P ask",
        )
    return found[-1]


def campaigns(folder: Path | str) -> list[Campaign]:
    """Return every campaign in a folder, at any depth, in the order in which they were begun."""
    paths = sorted(Path(folder).rglob("plan.json"), key=lambda plan: (plan.parent.name, plan))
    return [Campaign(plan.parent, _read_json(plan)) for plan in paths]


def by_study(folder: Path | str) -> dict[str, Campaign]:
    """Return the campaign of each study in a folder that has most complete blocks.

    Of equal ones it is the newest.
    """
    best: dict[str, Campaign] = {}
    for one in campaigns(folder):
        if one.complete_blocks >= getattr(best.get(one.study), "complete_blocks", 0):
            best[one.study] = one
    return best


def _numbers(levels: Iterable[Any]) -> list[Any]:
    """Return levels as numbers if all of them are."""
    texts = list(levels)
    try:
        return [float(text) if "." in str(text) else int(text) for text in texts]
    except ValueError:
        return texts


class _Document(dict[str, Any]):
    """Content of a JSON file; a key that it does not have is an error that names the file."""

    def __init__(self, content: Mapping[str, Any], path: Path) -> None:
        super().__init__(content)
        self.path = path

    def __missing__(self, key: str) -> Any:
        raise DatasetError(
            f"a file of a campaign has no {key!r}", where=str(self.path), remedy=_RESTORE
        )


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file of this format."""
    with _readable(path):
        data = _Document(json.loads(path.read_text()), path)
    if data["format"] != FORMAT:
        raise DatasetError(
            f"a campaign of format {data['format']}, and this labkit reads {FORMAT}",
            where=str(path),
            remedy="read it with the labkit that measured it, or measure again with --new",
        )
    return data


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise `DatasetError` with the path where reading fails."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DatasetError(
            "a campaign cannot be read", where=str(path), why=str(error), remedy=_RESTORE
        ) from None
