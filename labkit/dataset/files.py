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
    """Return what `function` makes of each item, a thread a CPU that this process may use.

    For work that releases the interpreter's lock. Results, and which error is raised, are those of
    a plain loop. At most 8 threads, because all wait for memory.
    """
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 8)) as pool:
        return list(pool.map(function, items))


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file of this dataset format.

    Raises
    ------
    DatasetError
        The file is missing, is not JSON, or is of a newer format than this labkit reads.
    """
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise DatasetError(
            "a file of the dataset is missing", where=str(path), remedy="see `labkit run --help`"
        ) from None
    except ValueError as error:
        raise DatasetError(
            "a file of the dataset is damaged",
            where=str(path),
            why=str(error),
            remedy="take it from a backup, or remove its directory: the same run measures it again",
        ) from None
    found = data.get("format") if isinstance(data, dict) else None
    if type(found) is not int:
        raise DatasetError("not a file of a labkit dataset", where=str(path), why="no format")
    if found > FORMAT:
        raise DatasetError(
            f"dataset format {found} is newer than this labkit reads ({FORMAT})",
            where=str(path),
            remedy="update labkit",
        )
    return dict(data)


def read_part(path: Path, needed: Sequence[str]) -> dict[str, Any]:
    """Return `read_json` of a file that has these keys; raise `DatasetError` where one is not."""
    data = read_json(path)
    if lacking := [name for name in needed if name not in data]:
        raise DatasetError(
            "a file of the dataset is damaged",
            where=str(path),
            why=f"it lacks {', '.join(lacking)}",
            remedy="take it from a backup, or remove its directory: the same run measures it again",
        )
    return data


def campaigns(folder: Path | str) -> list[Path]:
    """Return the campaign directories in a study's folder, oldest first."""
    return sorted(plan.parent for plan in Path(folder).glob("*/plan.json"))


def campaigns_within(folder: Path) -> list[Path]:
    """Return every campaign directory in a folder, at any depth: the folder itself may be one.

    Raises
    ------
    DatasetError
        There is none.
    """
    found = sorted(plan.parent for plan in folder.rglob("plan.json"))
    if not found:
        raise DatasetError(
            "no campaign here",
            where=str(folder),
            why="no plan.json in it, nor in a folder of it",
            remedy="measure one first: labkit run --profile tiny",
        )
    return found


def files_of(folder: Path, within: Path) -> Iterator[str]:
    """Yield the names, from `folder`, of the files in `within`; what is hidden is no data."""
    for path in within.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix()


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(text: str, where: str) -> dict[str, str]:
    """Return the digest of every listed file, by its name.

    Raises
    ------
    DatasetError
        A line is not a digest and a name inside the folder.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        digest, gap, name = line.partition("  ")
        path = PurePosixPath(name)
        inside = name == path.as_posix() and not path.is_absolute() and ".." not in path.parts
        if len(digest) != 64 or not gap or name in ("", ".") or not inside:
            raise DatasetError(
                "the list of files is damaged",
                where=f"{where}, line {number}",
                why=f"{line[:100]!r} is not a digest and a name",
                remedy="the files themselves still read: labkit.load takes each campaign's folder",
            )
        found[name] = digest
    return found


def write_sums(sums: dict[str, str]) -> str:
    """Return the list of files as ``sha256sum --check`` reads it, sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
