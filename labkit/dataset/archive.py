"""Archives of text files, written with equal bytes for equal contents, and read within limits.

A packed campaign may be untrusted: reading it must not exhaust memory, and nothing is extracted.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from labkit.errors import DatasetError

#: Bytes of one file or header, and of a whole archive; files; characters and levels of a name.
FILE_BYTES, BYTES, FILES, NAME, LEVELS = 64 << 20, 4 << 30, 200_000, 500, 8
#: What a decoder may allocate; xz -9 needs 65 MiB.
_DECODER = 128 << 20


class _Unpacked:
    """The contents of an xz file, as `tarfile` reads them: forwards, and within limits."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at, self._rest = file, 0, b""
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, _DECODER)

    def tell(self) -> int:
        return self._at

    def seek(self, position: int) -> None:
        if position > BYTES:
            raise ValueError(f"it says that it holds more than {BYTES >> 30} GiB")
        while self._at < position and self._chunk(position - self._at):
            pass

    def read(self, count: int) -> bytes:
        if not 0 <= count <= FILE_BYTES:
            raise ValueError(f"a file or header in it has more than {FILE_BYTES >> 20} MiB")
        parts = []
        while count and (part := self._chunk(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _chunk(self, most: int) -> bytes:
        """Return the next bytes, at most so many; none at the end."""
        while not self._rest and not self._decoder.eof:
            packed = self._file.read(1 << 16) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not packed:
                raise EOFError("it ends early")
            self._rest = self._decoder.decompress(packed, 1 << 20)
        part, self._rest = self._rest[:most], self._rest[most:]
        self._at += len(part)
        if self._at > BYTES:
            raise ValueError(f"it holds more than {BYTES >> 30} GiB")
        return part


def is_inside(name: str) -> bool:
    """Return whether a name is that of a file below a folder, written in the one usual way."""
    pure = PurePosixPath(name)
    usual = name == pure.as_posix() and name != "." and "\0" not in name
    return usual and not pure.is_absolute() and ".." not in pure.parts


def read_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every file of an archive.

    Raises
    ------
    DatasetError
        It is damaged, exceeds a limit, or holds something else than files, such as a link.
    """
    try:
        with path.open("rb") as packed:
            archive = tarfile.open(fileobj=_Unpacked(packed), mode="r:")  # type: ignore[call-overload]  # noqa: SIM115
            for number, member in enumerate(archive):
                _check(member, number)
                yield member.name, archive.extractfile(member).read()
    # tarfile raises many kinds for bad headers; nested ones are a recursion.
    except (
        *(OSError, EOFError, ValueError, LookupError, ArithmeticError, RecursionError),
        *(MemoryError, tarfile.TarError, lzma.LZMAError),
    ) as error:
        raise DatasetError(
            "the archive of raw output is damaged",
            where=str(path),
            why=str(error),
            remedy="restore it from a backup; trials and samples can still be read",
        ) from None


def _check(member: tarfile.TarInfo, number: int) -> None:
    if number >= FILES:
        raise ValueError(f"it holds more than {FILES} files")
    if not member.isreg() or member.issparse():
        raise ValueError(f"{member.name[:NAME]!r} is not a plain file")
    long = len(member.name) > NAME or member.name.count("/") >= LEVELS
    if long or not is_inside(member.name):
        raise ValueError(f"{member.name[:NAME]!r} is not a name that labkit gives")
    if not 0 <= member.size <= FILE_BYTES:
        raise ValueError(f"{member.name!r} has {member.size} bytes, more than labkit packs")


def write_archive(files: Iterable[tuple[str, bytes]], path: Path) -> None:
    """Write files into an archive whose bytes depend only on their names and contents."""
    with tarfile.open(path, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
        for name, content in files:
            if len(content) > FILE_BYTES:
                raise DatasetError(
                    f"a file of more than {FILE_BYTES >> 20} MiB cannot be packed", where=name
                )
            add_file(archive, name, content)
        empty = not archive.getmembers()
    if empty:
        path.unlink()


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file to an archive with the owner root, the time 0 and the mode 0644."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))
