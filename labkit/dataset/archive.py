"""Reading an archive of a dataset: unpacked once a process, each file checked as it comes out."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from labkit.dataset.files import SUMS, progress, read_sums
from labkit.errors import DatasetError

_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error)


@dataclass(frozen=True)
class Unpacked:
    """An archive on disk: files that are whole, and what is wrong with the others.

    Parameters
    ----------
    folder : Path
        Where the files are; one that is not as listed is not there.
    sums : mapping of str to str
        The digest of every listed file.
    problems : mapping of str to str
        What is wrong, by the name of the file.
    keep : TemporaryDirectory
        Removes the folder when the process ends.
    """

    folder: Path
    sums: Mapping[str, str]
    problems: Mapping[str, str]
    keep: tempfile.TemporaryDirectory[str]


def archive_of(path: Path) -> Path | None:
    """Return the file that `path` is, or leads into; None where it is a folder or nothing."""
    return next((one for one in (path, *path.parents) if one.is_file()), None)


def opened(path: Path) -> Path:
    """Return `path`, or where it leads into an archive, what it is unpacked.

    Raises
    ------
    DatasetError
        The file is no archive of a dataset, or what lies at `path` in it is damaged: the error
        names the files, and says what else is whole.
    """
    outer = archive_of(path)
    if outer is None:
        return path
    found, inside = unpack(outer), path.relative_to(outer)
    hit = {n: what for n, what in found.problems.items() if Path(n).is_relative_to(inside)}
    if hit:
        shown = [f"{name}: {what}" for name, what in list(hit.items())[:5]]
        raise DatasetError(
            f"{len(hit)} files are damaged or missing",
            where=str(path),
            why="\n       ".join([*shown, *(["..."] if len(hit) > 5 else [])]),
            remedy=f"fetch it again. Whole are {'; '.join(whole(found.sums, found.problems))}. "
            f"Read {outer}/NAME of one that is, or unpack it (tar -xf) and load that folder",
        )
    return found.folder / inside


def whole(sums: Mapping[str, str], problems: Mapping[str, str]) -> list[str]:
    """Return how many trials of each listed campaign are whole, a line a campaign."""
    lines = []
    for plan in sorted(name for name in sums if name.rpartition("/")[2] == "plan.json"):
        home = plan.removesuffix("plan.json")
        trials, hurt = (
            {name.removeprefix(f"{home}trials/").partition("/")[0] for name in names}
            for names in (
                [name for name in sums if name.startswith(f"{home}trials/")],
                [name for name in problems if name.startswith(f"{home}trials/")],
            )
        )
        about = (
            f"{home.rstrip('/') or 'the campaign'}: {len(trials - hurt)} of {len(trials)} trials"
        )
        lines.append(about + (", but not its plan" if plan in problems else ""))
    return lines


def unpack(path: Path) -> Unpacked:
    """Return what is in an archive, checked file by file against its list.

    Raises
    ------
    DatasetError
        It does not begin with the list of its files.
    """
    about = path.stat()
    return _unpack(path.resolve(), about.st_mtime_ns, about.st_size)


@cache
def _unpack(path: Path, _changed: int, _size: int) -> Unpacked:
    """Unpack a file, once for as long as it does not change."""
    keep = tempfile.TemporaryDirectory(prefix="labkit-")
    folder, sums, seen = Path(keep.name), dict[str, str](), dict[str, str]()
    end = "missing"
    try:
        with tarfile.open(path, "r:gz" if _is_gzip(path) else "r:") as archive:
            first = archive.next()
            root, _, name = (first.name if first else "").rpartition("/")
            file = archive.extractfile(first) if first and name == SUMS else None
            if file is None:
                raise _not_ours(path, f"its first file is not {SUMS}")
            text = file.read()
            (folder / SUMS).write_bytes(text)
            sums = read_sums(text.decode(errors="replace"), f"{path}/{SUMS}")
            for member in progress(archive, "unpacking", len(sums) + 1):
                name = member.name.removeprefix(f"{root}/")
                file = archive.extractfile(member) if member.isreg() else None
                if file is not None and name != SUMS:
                    seen[name] = _take(file, folder / name, sums[name]) if name in sums else _EXTRA
    except _BROKEN as error:
        if not sums:
            raise _not_ours(path, str(error)) from None
        end = f"missing: the archive breaks off ({error})"
    problems = {name: what for name, what in seen.items() if what}
    problems |= {name: end for name in sums if name not in seen}
    return Unpacked(folder, sums, dict(sorted(problems.items())), keep)


_EXTRA = "not listed"


def _is_gzip(path: Path) -> bool:
    """Return whether somebody compressed the archive since it was packed."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _take(file: IO[bytes], target: Path, digest: str) -> str:
    """Write a file out; return what is wrong with it, or nothing. What is wrong is not kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    found = hashlib.sha256()
    try:
        with target.open("wb") as out:
            while part := file.read(1 << 20):
                found.update(part)
                out.write(part)
    except _BROKEN:
        target.unlink()
        raise
    if found.hexdigest() == digest:
        return ""
    target.unlink()
    return "altered"


def _not_ours(path: Path, why: str) -> DatasetError:
    return DatasetError(
        "not an archive of a labkit dataset, or damaged at its beginning",
        where=str(path),
        why=why,
        remedy="fetch it again; `tar -xf` may still unpack files of it, and labkit.load reads "
        "each campaign's folder",
    )
