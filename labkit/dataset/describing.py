"""What a dataset says of itself: tables with schemas, provenance, and the digest of every file.

`describe` writes, beside the data and from nothing but them and CITATION.cff,

- ``trials.csv`` in each campaign: `Dataset.trials`, one row an attempt;
- ``datapackage.json``: a Frictionless data package with the schema of every table;
- ``ro-crate-metadata.json``: who measured what, with which software, images and rig;
- ``SHA256SUMS``: the digest of every other file, as ``sha256sum --check`` reads it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from labkit.citation import Entry, authors, citation
from labkit.dataset import Dataset
from labkit.dataset.columns import table_schema, trials_schema
from labkit.dataset.crate import crate
from labkit.dataset.files import (
    SUMS,
    campaigns_within,
    digest_of,
    files_of,
    progress,
    read_sums,
    write_sums,
)
from labkit.errors import DatasetError

PACKAGE = "datapackage.json"
CRATE = "ro-crate-metadata.json"
TRIALS = "trials.csv"
#: What is made from the rest, and so may change with labkit.
_MADE = (PACKAGE, CRATE, TRIALS, SUMS)
LICENCE = {
    "name": "CC-BY-4.0",
    "title": "Creative Commons Attribution 4.0 International",
    "path": "https://creativecommons.org/licenses/by/4.0/",
}


@dataclass(frozen=True)
class Campaign:
    """A campaign inside of a described folder.

    Parameters
    ----------
    data : Dataset
        The campaign.
    home : str
        Its folder's name from the described one; empty where it is the same.
    """

    data: Dataset
    home: str

    @property
    def study(self) -> str:
        """The study's name."""
        return str(self.data.plan.get("study") or self.data.path.name)

    @property
    def name(self) -> str:
        """What its tables are called."""
        return re.sub(r"[^a-z0-9._-]+", "-", (self.home or self.study).lower())

    def at(self, name: str) -> str:
        """Return a name inside of the campaign, from the described folder."""
        return f"{self.home}/{name}" if self.home else name

    @cached_property
    def span(self) -> tuple[datetime, datetime] | None:
        """When its first trial began and its last ended (UTC); None without trials."""
        times = [(one["started_ns"] / 1e9, one["seconds"]) for one in self.data.records]
        if not times:
            return None
        ends = (min(began for began, _ in times), max(map(math.fsum, times)))
        began, ended = (datetime.fromtimestamp(int(second), UTC) for second in ends)
        return began, ended

    def counted(self) -> str:
        """Return how much it holds, in words; nothing is left out of it."""
        records = self.data.records
        failed = sum(one["status"] != "ok" for one in records)
        flagged = sum(bool(one.get("flags")) for one in records)
        blocks = len({one["block"] for one in records})
        samples = sum(int(one["n_samples"]) for one in records)
        return (
            f"{len(records)} attempts at trials in {blocks} block{'s' * (blocks != 1)} "
            f"({failed} failed, {flagged} flagged, all kept), {samples:,} samples, "
            f"rig {self.data.rig.get('name', 'unknown')}"
        )


@dataclass(frozen=True)
class About:
    """A described folder, as it is cited: title, last day of measuring, campaigns, fingerprint."""

    title: str
    day: str
    campaigns: tuple[str, ...]
    fingerprint: str

    def entry(self) -> Entry:
        """Return the dataset as something to cite; its version is its content's fingerprint."""
        key = f"labkit-data-{self.fingerprint[:8]}"
        makers, licence = citation()["authors"], f"Licence: {LICENCE['name']}"
        version = self.fingerprint[:12]
        return Entry(
            key, "dataset", self.title, makers, self.day[:4], version=version, note=licence
        )


def about(folder: Path) -> About:
    """Return what a described folder is.

    Raises
    ------
    DatasetError
        It was not described, or its description is damaged.
    """
    try:
        package = json.loads((folder / PACKAGE).read_text())
        title, day = str(package["title"]), str(package["created"])[:10]
        lines = tuple(str(package["description"]).splitlines())
        return About(title, day, lines, digest_of(folder / SUMS))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            "a dataset without a description, or with a damaged one",
            where=str(folder),
            why=str(error),
            remedy=f"the data still read; labkit dataset describe {folder}",
        ) from None


def describe(folder: Path) -> About:
    """Write the description of a folder with campaigns, and return what it is.

    Raises
    ------
    DatasetError
        There is no campaign, a file of one cannot be read, or data that were described before
        are missing or altered now: a new description would hide it.
    """
    found = [
        Campaign(Dataset(path), "" if path == folder else path.relative_to(folder).as_posix())
        for path in campaigns_within(folder)
    ]
    _refuse_changed(folder)
    resources: list[dict[str, Any]] = []
    for one in found:
        resources += [_trials(folder, one), *_samples(folder, one)]
    ends = [one.span[1] for one in found if one.span]
    if not ends:
        raise DatasetError("nothing was measured here yet", where=str(folder))
    created = max(ends)
    studies = ", ".join(dict.fromkeys(one.study.replace("-", " ") for one in found))
    title = f"Container performance measured with labkit: {studies}"
    package = {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": f"labkit-{re.sub('[^a-z0-9._-]+', '-', folder.resolve().name.lower())}",
        "title": title,
        "description": "\n".join(f"{one.home or one.study}: {one.counted()}" for one in found),
        "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "licenses": [LICENCE],
        "contributors": [{"title": name, "roles": ["author"]} for name in authors()],
        "resources": resources,
    }
    _write(folder / PACKAGE, package)
    _write(folder / CRATE, crate(found, title, created, LICENCE))
    names = sorted({name for one in found for name in files_of(folder, one.data.path)})
    names = sorted({*names, PACKAGE, CRATE} - {SUMS})
    sums = {name: digest_of(folder / name) for name in progress(names, "digests")}
    (folder / SUMS).write_text(write_sums(sums))
    return about(folder)


def _refuse_changed(folder: Path) -> None:
    """Raise `DatasetError` where data of an earlier description are not what they were."""
    if not (folder / SUMS).is_file():
        return
    sums = read_sums((folder / SUMS).read_text(errors="replace"), str(folder / SUMS))
    data = {name: sum_ for name, sum_ in sums.items() if name.rpartition("/")[2] not in _MADE}
    changed = [
        name
        for name in progress(list(data), "checking the data described before")
        if not (folder / name).is_file() or digest_of(folder / name) != data[name]
    ]
    if changed:
        raise DatasetError(
            f"{len(changed)} files are missing or altered since this was described",
            where=", ".join(str(folder / name) for name in changed[:5]),
            why="a new description would hide it",
            remedy=f"labkit dataset verify {folder} says what is whole; where the change is meant, "
            f"remove {SUMS}",
        )


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def _trials(folder: Path, one: Campaign) -> dict[str, Any]:
    """Write a campaign's table of trials, and return the resource that it is."""
    frame = one.data.trials
    infinite = {math.inf: "INF", -math.inf: "-INF"}  # as the Table Schema writes them
    text = frame.replace(infinite).to_csv(index=False, lineterminator="\n")
    (folder / one.at(TRIALS)).write_text(text)
    return {
        "name": f"{one.name}-trials",
        "title": f"{one.study}: one row an attempt at a trial",
        "type": "table",
        "path": one.at(TRIALS),
        "format": "csv",
        "mediatype": "text/csv",
        "encoding": "utf-8",
        "bytes": len(text.encode()),
        "hash": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
        "schema": trials_schema(frame, one.data.plan["factors"]),
    }


def _samples(folder: Path, one: Campaign) -> list[dict[str, Any]]:
    """Return a resource for each table of samples: trials that measured the same columns."""
    tables: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for record in one.data.records:
        path = one.data.path / "trials" / record["directory"] / "samples.parquet"
        if record["status"] == "ok" and record["n_samples"]:
            columns = tuple(sample_types(path, int(record["n_samples"])).items())
            tables.setdefault(columns, []).append(path.relative_to(folder).as_posix())
    return [
        {
            "name": "-".join([one.name, "samples", *(name for name, _ in columns)]),
            "title": f"{one.study}: one row a sample, one file a trial",
            "description": "The path's directory is the trial and attempt, as in trials.csv.",
            "type": "table",
            "path": paths,
            "format": "parquet",
            "mediatype": "application/vnd.apache.parquet",
            "schema": table_schema(dict(columns)),
        }
        for columns, paths in tables.items()
    ]


def sample_types(path: Path, rows: int) -> dict[str, str]:
    """Return the type of each column of a trial's samples, as a Table Schema calls it.

    Raises
    ------
    DatasetError
        The file is missing or damaged, or has another number of rows than its trial says.
    """
    try:
        found = parquet.read_metadata(path)
    except FileNotFoundError:
        raise DatasetError("a trial has lost its samples", where=str(path)) from None
    except (OSError, ValueError, NotImplementedError) as error:  # what pyarrow's derive from
        why = str(error)
        raise DatasetError("the samples of a trial are damaged", where=str(path), why=why) from None
    if found.num_rows != rows:
        raise DatasetError(
            "the samples of a trial are not all there",
            where=str(path),
            why=f"{found.num_rows} rows, and {rows} in trial.json",
        )
    schema = found.schema.to_arrow_schema()
    return {
        field.name: "integer" if pa.types.is_integer(field.type) else "number" for field in schema
    }
