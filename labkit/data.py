"""Campaigns on disk, read as tidy frames: a row an attempt. ``data/README.md`` has their files."""

from __future__ import annotations

import contextlib
import html
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from labkit.errors import DatasetError, UsageError, suggestion

#: Version of the files; another one is refused.
FORMAT = 2
#: Flags of a trial whose CPU was slow, or whose CPUs shared no cache; stored campaigns have them.
CPU_SLOW = "the CPU was slow before, between or after the operations"
CPUS_APART = "the CPUs of generator and SUT shared no cache before or after the window"
#: Columns of a row before its factors.
KEYS = ("trial", "attempt", "block", "position", "session", "repeat")
#: Columns that a table of trials is sorted by.
ORDER = ["block", "position", "attempt", "trial"]


@dataclass(frozen=True, repr=False)
class Campaign:
    """Campaign in a folder, as `load` returns it; its frames are read when they are first used."""

    path: Path
    plan: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Campaign({str(self.path)!r}: {self.study}, {len(self.ok)} trials)"

    def _repr_html_(self) -> str:
        """Medians of the outcomes by condition, and the attempts that failed or are flagged."""
        outcomes = [name for name in self.plan.get("outcomes", []) if name in self.ok]
        medians = self.ok.groupby([*self.factors, "repeat"], sort=False)[outcomes].median()
        odd = self.trials.query("status != 'ok' or flags != ''")
        shown = odd[["trial", *self.factors, "status", "flags", "problem"]]
        return f"<p>{html.escape(repr(self))}</p>{medians.to_html()}{shown.to_html()}"

    @property
    def study(self) -> str:
        """Name of the study."""
        return str(self.plan["study"])

    @property
    def factors(self) -> dict[str, list[Any]]:
        """Planned levels by factor: numbers where all levels of a factor are numbers."""
        found = dict(self.plan["factors"])
        for name, texts in found.items():
            with contextlib.suppress(ValueError):
                levels = [float(one) if {*".e"} & {*str(one)} else int(one) for one in texts]
                # A text such as 007 or 1e3 is no number of a study.
                if [*map(str, levels)] == [*map(str, texts)]:
                    found[name] = levels
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all trials have in common."""
        return dict(self.plan["settings"])

    @property
    def rig(self) -> dict[str, Any]:
        """Rig: hosts, links, CPU map, capabilities and caveats."""
        return dict(self.plan["rig"])

    @cached_property
    def sessions(self) -> list[dict[str, Any]]:
        """Sessions in order, each with the facts of its hosts."""
        path = self.path / "sessions.json"
        return list(_read_json(path, "sessions")["sessions"]) if path.is_file() else []

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of each host in the last session, by role."""
        return dict(self.sessions[-1]["facts"]) if self.sessions else {}

    @property
    def rows(self) -> pd.DataFrame:
        """Rows of `trials` as they are stored."""
        table = self.path / "trials.parquet"
        if table.is_file():
            with _readable(table):
                return pd.read_parquet(table)
        records = [_read_json(one, "rows") for one in self.path.glob("trials/*/trial.json")]
        with _readable(self.path):
            return pd.DataFrame([row for record in records for row in record["rows"]])

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Attempts in the order of the plan, failed ones included, with scalar settings as columns.

        A trial that measured several conditions has a row for each; the second ends in ``/1``.
        """
        frame = self.rows
        if not len(frame):
            columns = [*KEYS, *self.factors, "status", "problem", "flags", "n_samples", "saturated"]
            frame = pd.DataFrame(columns=columns)
        with _readable(self.path):
            for name, levels in self.factors.items():
                if all(isinstance(level, int | float) for level in levels):
                    frame[name] = pd.to_numeric(frame[name])
            frame = frame.sort_values(ORDER, ignore_index=True)
        scalars = {n: one for n, one in self.settings.items() if isinstance(one, str | int | float)}
        return frame.assign(**{n: one for n, one in scalars.items() if n not in frame}).copy()

    @cached_property
    def ok(self) -> pd.DataFrame:
        """Successful rows of `trials`: at most one attempt of each planned trial."""
        return self.trials[self.trials["status"] == "ok"]

    @property
    def complete_blocks(self) -> list[int]:
        """Numbers of the blocks of which every trial succeeded."""
        done = self.ok.groupby("block")["position"].nunique()
        planned = enumerate(self.plan["order"], start=1)
        return [number for number, block in planned if done.get(number, 0) == len(block)]

    def samples(self, *columns: str, **levels: Any) -> pd.DataFrame:
        """Samples of the successful trials that have all of `levels`, a row a sample.

        It has ``trial``, ``block``, the factors, then the columns, such as ``rtt_ns``; times are in
        ns. Trials without one of them are left out, and one that no trial has is refused.
        """
        path = self.path / "samples.parquet"
        trials = select(self.ok, levels).drop_duplicates("trial").set_index("trial")
        files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
        with _readable(path):
            # Trials differ in their columns.
            schema = pa.unify_schemas([pa.schema([]), *map(pq.read_schema, files)])
            refuse_unknown("column of samples", columns, schema.names)
            wanted = [("trial", "in", {"", *trials.index})]
            table = pq.read_table(path, columns=["trial", *columns], filters=wanted, schema=schema)
        # Millions of rows: what all samples of a trial share is a category.
        table = table.set_column(0, "trial", table["trial"].dictionary_encode())
        found: pd.DataFrame = table.to_pandas(self_destruct=True).dropna()
        rows = trials.index.get_indexer(found["trial"].cat.categories)
        rows = rows[found["trial"].cat.codes]
        for place, name in enumerate(["block", *self.factors], start=1):
            order = dict.fromkeys([*self.factors.get(name, []), *trials[name].unique()])
            level = pd.Categorical(trials[name], list(order)).take(rows)
            found.insert(place, name, pd.Series(level, found.index))
        return found


def refuse_unknown(what: str, given: Iterable[Any], known: Iterable[Any]) -> None:
    """Raise `UsageError` for the first name that is not a known one."""
    names = list(known)
    for name in given:
        if name not in names:
            raise UsageError(f"no {what} called {name!r}", remedy=suggestion(name, names))


def select(frame: pd.DataFrame, levels: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of a frame that have a level, or one of several, of each column named."""
    refuse_unknown("column", levels, frame)
    for name, level in levels.items():
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
    """Return the campaign in a folder, or the newest one of a folder with those of one study.

    Raises
    ------
    DatasetError
        The folder has no campaign, or those of several studies, or a file cannot be read.
    """
    folder = Path(path)
    if (folder / "plan.json").is_file():
        keys = ("study", "factors", "settings", "order", "rig")
        return Campaign(folder, _read_json(folder / "plan.json", *keys))
    found = campaigns(folder)
    if len({one.study for one in found}) == 1:
        return found[-1]
    what, remedy = "no campaign here", "measure one first: labkit run STUDY -P ask"
    if found:
        what = "campaigns of several studies are here"
        remedy = f"name one of {', '.join(str(one.path) for one in found)}"
    raise DatasetError(what, where=str(folder), remedy=remedy)


def campaigns(folder: Path | str) -> list[Campaign]:
    """Return every campaign in a folder, at any depth, in the order in which they were begun."""
    paths = sorted(Path(folder).rglob("plan.json"), key=lambda plan: (plan.parent.name, plan))
    return [load(path.parent) for path in paths]


def by_study(folder: Path | str) -> dict[str, Campaign]:
    """Return the campaign of each study that has most complete blocks, of equal ones the newest."""
    by_blocks = sorted(campaigns(folder), key=lambda one: len(one.complete_blocks))
    return {one.study: one for one in by_blocks}


def _read_json(path: Path, *keys: str) -> dict[str, Any]:
    """Return a JSON file of this format that has some keys."""
    with _readable(path):
        data: dict[str, Any] = json.loads(path.read_text())
        if data["format"] != FORMAT:
            what = f"a campaign of format {data['format']}, and this labkit reads {FORMAT}"
            remedy = "read it with the labkit that measured it, or measure again with --new"
            raise DatasetError(what, where=str(path), remedy=remedy)
        itemgetter("format", *keys)(data)
    return data


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise `DatasetError` with the path where reading fails."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        what, remedy = "a campaign cannot be read", "restore it, or measure again with --new"
        raise DatasetError(what, where=str(path), why=str(error), remedy=remedy) from None
