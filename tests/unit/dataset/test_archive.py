"""Archives of strangers: their files, or an error, within limits of memory, size and names."""

from __future__ import annotations

import io
import lzma
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.dataset import archive
from labkit.dataset.archive import read_archive, write_archive
from labkit.dataset.files import SUMS, read_json, read_sums
from labkit.errors import DatasetError

FILES = {"logs/01.log": b"began\n", "trials/b01-p01-a1/tool.out": b"5\n" * 700}


def member(name: str, *, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(text: bytes, *, size: int | None = None) -> bytes:
    head = member("././@PaxHeader", kind=tarfile.XHDTYPE, size=len(text) if size is None else size)
    return head + text.ljust(-(-len(text) // 512) * 512, b"\0")


def keyword(key: str, value: str) -> bytes:
    body = f" {key}={value}\n"
    size = len(body) + len(str(len(body) + 2))
    return f"{size}{body}".encode()


def sparse(size: int) -> bytes:
    """Return the header of a GNU sparse member without data."""
    head = bytearray(member("logs/01.log", kind=tarfile.GNUTYPE_SPARSE))
    for at, number in ((386, size), (398, 0), (483, size)):
        head[at : at + 12] = f"{number:011o}\0".encode()
    head[148:156] = b" " * 8
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    return bytes(head)


END = bytes(1024)
HOSTILE: dict[str, Callable[[], bytes]] = {
    "a link": lambda: member("logs/a", kind=tarfile.SYMTYPE, link="/etc/passwd"),
    "a hard link to itself": lambda: member("a", kind=tarfile.LNKTYPE, link="a"),
    "a link to what is not there": lambda: member("a", kind=tarfile.LNKTYPE, link="b"),
    "a device": lambda: member("a", kind=tarfile.CHRTYPE),
    "a sparse member of 3 GiB": lambda: sparse(3 << 30),
    "sparse by PAX": lambda: (
        pax(keyword("GNU.sparse.size", str(3 << 30)) + keyword("GNU.sparse.map", "0,1"))
        + member("a")
    ),
    "a bad sparse map": lambda: pax(keyword("GNU.sparse.map", "x,y")) + member("a"),
    "sparse 1.0 without a map": lambda: (
        pax(keyword("GNU.sparse.major", "1") + keyword("GNU.sparse.minor", "0"))
        + member("a", size=512)
        + b"x" * 512
    ),
    "nested PAX headers": lambda: pax(keyword("path", "a")) * 3000,
    "a PAX header of 2 GiB": lambda: pax(b"", size=2 << 30),
    "a PAX size below zero": lambda: pax(keyword("size", "-5")) + member("a"),
    "a huge member": lambda: member("a", size=7 << 30),
    "a member that is cut off": lambda: member("a", size=4096) + b"x" * 512,
    "outside": lambda: member("../a"),
    "absolute": lambda: member("/a"),
    "NUL in a name": lambda: pax(keyword("path", "a\0b")) + member("a"),
    "2,000 levels": lambda: pax(keyword("path", "a/" * 2000 + "b")) + member("a"),
    "a long name": lambda: pax(keyword("path", "a" * 5000)) + member("a"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_an_error_in_little_memory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "raw.tar.xz"
    path.write_bytes(lzma.compress(HOSTILE[kind]() + END))
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError, match="archive of raw output") as caught:
            list(read_archive(path))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.where == str(path) and caught.value.why


@pytest.mark.parametrize("limit", ["FILE_BYTES", "BYTES", "FILES"])
def test_limits_of_sizes(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "raw.tar.xz"
    write_archive(FILES.items(), path)
    assert dict(read_archive(path)) == FILES
    monkeypatch.setattr(archive, limit, {"FILE_BYTES": 1000, "BYTES": 1000, "FILES": 1}[limit])
    with pytest.raises(DatasetError, match="more than"):
        list(read_archive(path))


def test_what_could_not_be_read_is_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "FILE_BYTES", 1000)
    with pytest.raises(DatasetError, match="cannot be packed"):
        write_archive(FILES.items(), tmp_path / "raw.tar.xz")


def test_a_decoder_gets_no_more_memory_than_labkit_needs(tmp_path: Path) -> None:
    path = tmp_path / "raw.tar.xz"
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as opened:
        archive.add_file(opened, "logs/01.log", b"began")
    packed = bytearray(lzma.compress(whole.getvalue()))
    # A compressor with this dictionary would take 30 GiB; only the header says it.
    head = bytearray(packed[12 : 12 + (packed[12] + 1) * 4])
    at = head.index(b"\x21\x01") + 2
    head[at] = 38  # 3 GiB
    head[-4:] = zlib.crc32(bytes(head[:-4])).to_bytes(4, "little")
    packed[12 : 12 + len(head)] = head
    path.write_bytes(packed)
    with pytest.raises(DatasetError, match="archive of raw output") as caught:
        list(read_archive(path))
    assert "limit" in caught.value.why.lower()


@given(data=st.data())
def test_any_change_of_an_archive_is_an_error_or_leaves_files(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("archive") / "raw.tar.xz"
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for name, content in (FILES | {"logs/" + "é" * 120: b"long"}).items():
            archive.add_file(opened, name, content)
    plain = bytearray(whole.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 4000))
        plain[at : at + 1] = data.draw(st.binary(min_size=0, max_size=3))
    path.write_bytes(lzma.compress(bytes(plain), preset=0))
    try:
        found = dict(read_archive(path))
    except DatasetError:
        return
    assert all(archive.is_inside(name) for name in found)


@pytest.mark.parametrize("read", [read_json, read_sums])
def test_a_file_of_zeros_that_takes_no_space_is_an_error(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / SUMS
    with path.open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(DatasetError) as caught:
        read(path)
    assert "more than" in caught.value.why


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_json_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(DatasetError, match="damaged"):
        read_json(tmp_path / "plan.json")
