"""An archive for a repository such as Zenodo: the same data give the same bytes."""

from __future__ import annotations

import tarfile
from pathlib import Path

from labkit.dataset.describing import About, describe
from labkit.dataset.files import SUMS, progress, read_sums
from labkit.errors import DatasetError, UsageError


def pack(folder: Path, archive: Path) -> About:
    """Describe a folder with campaigns, and write it as an archive.

    The archive is a plain tar, not compressed: samples are compressed already, and what a library
    compresses depends on its version. Its first file is the list of the others, which follow by
    name; times, owners and modes are fixed.

    Parameters
    ----------
    folder : Path
        A campaign, or a folder with campaigns at any depth.
    archive : Path
        The file to write; it appears when it is complete.

    Returns
    -------
    About
        What was packed.

    Raises
    ------
    DatasetError
        There is no campaign, or a file cannot be read or is not what was described before.
    UsageError
        The archive would lie inside of the folder.
    """
    folder = folder.resolve()
    if archive.resolve().is_relative_to(folder):
        raise UsageError("an archive cannot lie in what it packs", where=str(archive))
    packed = describe(folder)
    names = [SUMS, *read_sums((folder / SUMS).read_text(), SUMS)]
    part = archive.with_name(f".{archive.name}.part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as out:
            for name in progress(names, "packing"):
                _add(out, folder, name)
        part.rename(archive)
    except OSError as error:
        why = str(error)
        raise DatasetError("an archive cannot be written", where=str(archive), why=why) from None
    finally:
        part.unlink(missing_ok=True)
    return packed


def _add(out: tarfile.TarFile, folder: Path, name: str) -> None:
    info = tarfile.TarInfo(f"{folder.name}/{name}")  # root's, of 1970, of mode 0644
    with (folder / name).open("rb") as file:
        info.size = (folder / name).stat().st_size
        out.addfile(info, file)
