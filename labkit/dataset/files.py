"""The files of a dataset: JSON with a format's version, where campaigns lie, and their digests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from labkit.errors import DatasetError

FORMAT = 1
#: The digest of every file, as ``sha256sum`` writes and checks them.
SUMS = "SHA256SUMS"
_RESTORE = "take it from a backup, or remove its directory: the same run measures it again"
_Item = TypeVar("_Item")


def progress(items: Iterable[_Item], what: str, total: int | None = None) -> Iterable[_Item]:
    """Go through files behind a bar on standard error, which appears when it takes seconds."""
    import tqdm

    # The library's monitor is a thread that would wake up beside a measurement of this process.
    tqdm.tqdm.monitor_interval = 0
    title = f"labkit: {what}"
    bar: Iterable[_Item] = tqdm.tqdm(
        items, title, total, unit="file", delay=2, leave=False, dynamic_ncols=True
    )
    return bar


def in_threads(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Return `function` of each item, a thread a CPU that this process may use.

    For work that releases the interpreter's lock. Results, and which error is raised, are those of
    a plain loop. At most 8 threads, because all wait for memory.
    """
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 8)) as pool:
        return list(pool.map(function, items))


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file of this dataset format."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise DatasetError(
            "a file of the dataset is missing", where=str(path), remedy="see `labkit run --help`"
        ) from None
    except ValueError as error:
        raise DatasetError(
            "a file of the dataset is damaged", where=str(path), why=str(error), remedy=_RESTORE
        ) from None
    return check_format(data, str(path))


def check_format(data: Any, where: str) -> dict[str, Any]:
    """Return a JSON object if it is of a format that this labkit reads, else raise."""
    number = data.get("format") if isinstance(data, dict) else None
    if type(number) is not int:
        raise DatasetError("not a file of a labkit dataset", where=where, why="no format")
    if number > FORMAT:
        raise DatasetError(
            f"dataset format {number} is newer than this labkit reads ({FORMAT})",
            where=where,
            remedy="update labkit",
        )
    return dict(data)


def check_keys(data: dict[str, Any], needed: Sequence[str], where: str) -> dict[str, Any]:
    """Return a JSON object if it has these keys, else raise `DatasetError`."""
    if missing := [name for name in needed if name not in data]:
        raise DatasetError(
            "a file of the dataset is damaged",
            where=where,
            why=f"it lacks {', '.join(missing)}",
            remedy=_RESTORE,
        )
    return data


def campaigns(folder: Path | str) -> list[Path]:
    """Return the campaign directories in a study's folder, oldest first."""
    return sorted(plan.parent for plan in Path(folder).glob("*/plan.json"))


def campaigns_within(folder: Path) -> list[Path]:
    """Return every campaign directory in a folder, at any depth: the folder itself may be one."""
    refuse_archive(folder)
    paths = sorted(plan.parent for plan in folder.rglob("plan.json"))
    if not paths:
        raise DatasetError(
            "no campaign here",
            where=str(folder),
            why="no plan.json in it, nor in a folder of it",
            remedy="measure one first: labkit run --profile tiny",
        )
    return paths


def refuse_archive(path: Path) -> None:
    """Raise `DatasetError` where `path` is a file or leads into one: archives are unpacked."""
    archive = next((one for one in (path, *path.parents) if one.is_file()), None)
    if archive is not None:
        folder = archive.name.partition(".tar")[0]
        raise DatasetError(
            "a dataset is read from a folder, and this is a file",
            where=str(archive),
            remedy=f"unpack it first: tar -xf {archive}; then name the folder {folder}",
        )


def files_of(folder: Path, within: Path) -> Iterator[str]:
    """Yield the names, from `folder`, of the files in `within`; hidden files are not data."""
    for path in within.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix()


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(path: Path) -> dict[str, str]:
    """Return the digest of every file that SHA256SUMS lists, by its name."""
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise DatasetError(
            "a dataset without a list of its files cannot be verified",
            where=str(path),
            why=error.strerror or str(error),
            remedy=f"the data still read; labkit dataset describe {path.parent} makes the list",
        ) from None
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        digest, gap, name = line.partition("  ")
        listed = PurePosixPath(name)
        inside = name == listed.as_posix() and not listed.is_absolute() and ".." not in listed.parts
        if len(digest) != 64 or not gap or name in ("", ".") or not inside:
            raise DatasetError(
                "the list of files is damaged",
                where=f"{path}, line {number}",
                why=f"{line[:100]!r} is not a digest and a name",
                remedy="the files themselves still read: labkit.load takes each campaign's folder",
            )
        sums[name] = digest
    return sums


def write_sums(path: Path, sums: dict[str, str]) -> None:
    """Write the list of files as ``sha256sum --check`` reads it, sorted by name."""
    path.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
