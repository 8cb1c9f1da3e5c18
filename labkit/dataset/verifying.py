"""Is a dataset whole? Every file against its digest, every record and table against its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.dataset import Dataset
from labkit.dataset.archive import archive_of, unpack, whole
from labkit.dataset.describing import PACKAGE, sample_types
from labkit.dataset.files import (
    SUMS,
    campaigns_within,
    digest_of,
    files_of,
    progress,
    read_json,
    read_sums,
)
from labkit.errors import DatasetError


@dataclass
class Verified:
    """What was found.

    Parameters
    ----------
    where : str
        What was verified.
    sums : mapping of str to str
        The digest of every listed file.
    problems : dict of str to str
        What is wrong, by the name of the file; empty when the dataset is whole.
    """

    where: str
    sums: Mapping[str, str]
    problems: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the findings as lines: each problem, then what can still be read."""
        found = [f"{name}: {what}" for name, what in sorted(self.problems.items())]
        head = f"{self.where}: {len(self.sums)} files, {len(found) or 'no'} problem"
        return [head + ("" if len(found) == 1 else "s"), *found, *self._whole()]

    def _whole(self) -> list[str]:
        return [f"whole: {line}" for line in whole(self.sums, self.problems)]


def verify(path: Path) -> Verified:
    """Check a described folder, or an archive of one, file by file.

    Parameters
    ----------
    path : Path
        A folder that `describe` described, or an archive of `pack`.

    Returns
    -------
    Verified
        Every problem, by file: missing, altered, not listed, not readable, of a newer format, or
        not as the schema of its table says.

    Raises
    ------
    DatasetError
        It is neither, or its list of files cannot be read.
    """
    if archive_of(path) == path:
        unpacked = unpack(path)
        folder, found = unpacked.folder, Verified(str(path), unpacked.sums)
        found.problems |= unpacked.problems
    else:
        folder, found = path, _listed(path)
        for name in progress(list(found.sums), "digests"):
            if wrong := _file(path / name, found.sums[name]):
                found.problems[name] = wrong
        found.problems |= dict.fromkeys(_unlisted(path, found), _SINCE)
    types = _table_types(folder, found)
    for name in progress([one for one in found.sums if _good(one, found)], "contents"):
        try:
            if name.endswith("/trial.json"):
                _trial(folder / name, found, types, folder)
            else:
                read_json(folder / name)
        except DatasetError as error:
            _blame(name, error, found)
    return found


def _good(name: str, found: Verified) -> bool:
    """Return whether a file is JSON of labkit's own format, and as it was written."""
    *_, parent, last = ("", *name.split("/"))
    ours = last in ("plan.json", "trial.json") or (parent == "sessions" and last.endswith(".json"))
    return ours and name not in found.problems


def _listed(folder: Path) -> Verified:
    try:
        text = (folder / SUMS).read_text(errors="replace")
    except OSError as error:
        raise DatasetError(
            "a dataset without a list of its files cannot be verified",
            where=str(folder / SUMS),
            why=error.strerror or str(error),
            remedy=f"the data still read; labkit dataset describe {folder} makes the list",
        ) from None
    return Verified(str(folder), read_sums(text, str(folder / SUMS)))


_SINCE = "not listed: labkit dataset describe takes in what was measured since"


def _unlisted(folder: Path, found: Verified) -> set[str]:
    """Return the files of campaigns that are not listed; what else lies there is not asked."""
    try:
        homes = campaigns_within(folder)
    except DatasetError:  # every plan is gone, which its digest has told
        return set()
    return {name for one in homes for name in files_of(folder, one)} - {*found.sums, SUMS}


def _file(path: Path, digest: str) -> str:
    """Return what is wrong with a file, or nothing."""
    try:
        return "" if digest_of(path) == digest else "altered"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _blame(name: str, error: DatasetError, found: Verified) -> None:
    """Note an error under the file that is to blame: a record, or the samples that it is of."""
    blamed = "samples.parquet" if error.where.endswith(".parquet") else "trial.json"
    why = f" ({error.why})" if error.why else ""
    found.problems[name.replace("trial.json", blamed)] = f"{error.what}{why}"


def _table_types(folder: Path, found: Verified) -> dict[str, dict[str, str]]:
    """Return the types of the columns of each file of samples, by the data package's schemas."""
    if PACKAGE in found.problems or PACKAGE not in found.sums:
        return {}
    try:
        resources = json.loads((folder / PACKAGE).read_text())["resources"]
        return {
            path: {one["name"]: one["type"] for one in resource["schema"]["fields"]}
            for resource in resources
            if resource["format"] == "parquet"
            for path in resource["path"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        found.problems[PACKAGE] = f"cannot be read: {error}"
        return {}


def _trial(
    path: Path, found: Verified, types: Mapping[str, Mapping[str, str]], folder: Path
) -> None:
    """Read a trial's record and the shape of its samples, and hold these against the schema."""
    record = Dataset(path.parents[2]).record(path.parent)
    samples = path.with_name("samples.parquet")
    name = samples.relative_to(folder).as_posix()
    if record["status"] != "ok" or not record["n_samples"] or name in found.problems:
        return
    measured = sample_types(samples, int(record["n_samples"]))
    if types and measured != types.get(name):
        raise DatasetError(
            "the samples have other columns than the data package says",
            where=str(samples),
            why=f"{measured} and {types.get(name)}",
        )
