"""Archives of datasets: the same bytes each time, whole or an error that names what is not."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_datasets import write_campaign

import labkit
from labkit.dataset.archive import opened, unpack
from labkit.dataset.files import SUMS, read_sums
from labkit.dataset.packing import pack
from labkit.dataset.verifying import verify
from labkit.errors import DatasetError, UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("given") / "data"
    write_campaign(found / "echo", blocks=2)
    write_campaign(found / "other", study="other", blocks=1, times=2.0)
    return found


@pytest.fixture(scope="module")
def archive(folder: Path) -> Path:
    path = folder.parent / "data.tar"
    pack(folder, path)
    return path


def rewritten(archive: Path, path: Path, change: dict[str, bytes | None]) -> Path:
    """Write an archive in which files have other contents, or are left out."""
    with tarfile.open(archive) as source, tarfile.open(path, "w") as out:
        for member in source:
            name = member.name.partition("/")[2]
            text = source.extractfile(member).read()
            text = change.get(name, text)
            if text is not None:
                member.size = len(text)
                out.addfile(member, io.BytesIO(text))
    return path


def test_packing_twice_gives_the_same_bytes_wherever_and_whenever(
    folder: Path, archive: Path, tmp_path: Path
) -> None:
    pack(folder, tmp_path / "again.tar")
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()
    other = tmp_path / "elsewhere" / "data"
    # other times, modes and order of the directory's entries
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file():
            target = other / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            target.chmod(0o600)
            os.utime(target, (1, 1))
    pack(other, tmp_path / "other.tar")
    assert (tmp_path / "other.tar").read_bytes() == archive.read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_its_members_are_sorted_and_nobodys(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as found:
        members = found.getmembers()
    names = [one.name for one in members]
    assert names[0] == f"data/{SUMS}" and names[1:] == sorted(names[1:])
    assert {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in members} == {
        (0, 0, 0, "", 0o644)
    }
    assert {name.removeprefix("data/") for name in names} - {SUMS} == set(
        read_sums((folder / SUMS).read_text(), "")
    )


def test_what_is_hidden_is_not_packed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "data"
    shutil.copytree(folder, other)
    hidden = other / "echo" / "trials" / ".b09-p01-a1.part"
    hidden.mkdir()
    (hidden / "tool.out").write_text("half of it")
    pack(other, tmp_path / "data.tar")
    assert not [name for name in unpack(tmp_path / "data.tar").sums if "part" in name]


def test_an_archive_loads_like_the_folder(folder: Path, archive: Path, tmp_path: Path) -> None:
    here, there = labkit.load(folder / "echo"), labkit.load(archive / "echo")
    pd.testing.assert_frame_equal(here.trials, there.trials)
    pd.testing.assert_frame_equal(here.samples(), there.samples())
    packed = tmp_path / "data.tar.gz"
    packed.write_bytes(gzip.compress(archive.read_bytes()))
    pd.testing.assert_frame_equal(labkit.load(packed / "echo").trials, here.trials)


def test_a_campaign_alone_is_loaded_by_its_archives_name(tmp_path: Path) -> None:
    pack(write_campaign(tmp_path / "echo"), tmp_path / "one.tar")
    assert len(labkit.load(tmp_path / "one.tar").trials) == 6
    assert verify(tmp_path / "one.tar").lines()[1] == "whole: the campaign: 6 of 6 trials"


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_of_several_studies_one_is_named(folder: Path, archive: Path, kind: str) -> None:
    path = {"folder": folder, "archive": archive}[kind]
    with pytest.raises(DatasetError, match="several studies") as caught:
        labkit.load(path)
    assert f"{path}/echo, {path}/other" in caught.value.remedy
    with pytest.raises(DatasetError, match="no campaign here") as caught:
        labkit.load(path / "nosuch")
    assert caught.value.where == f"{path}/nosuch"


def test_campaigns_may_lie_deeper_and_other_files_beside_them(tmp_path: Path) -> None:
    folder = tmp_path / "quick"
    write_campaign(folder / "echo" / "20260101-120000-a", blocks=1)
    write_campaign(folder / "echo" / "20260102-120000-b", blocks=2)
    (folder / "notes.txt").write_text("not of a campaign")
    pack(folder, tmp_path / "quick.tar")
    assert verify(folder).problems == verify(tmp_path / "quick.tar").problems == {}
    assert "notes.txt" not in unpack(tmp_path / "quick.tar").sums
    assert len(labkit.load(tmp_path / "quick.tar" / "echo").trials) == 4
    with pytest.raises(DatasetError, match="several studies") as caught:
        labkit.load(tmp_path / "quick.tar")
    assert caught.value.remedy == f"name one: {tmp_path / 'quick.tar' / 'echo'}"


def test_what_is_wrong_is_told_with_what_is_whole(archive: Path, tmp_path: Path) -> None:
    names = ["echo/trials/b01-p01-a1/trial.json", "echo/trials/b02-p01-a1/samples.parquet"]
    bad = rewritten(archive, tmp_path / "bad.tar", {names[0]: b"{}", names[1]: None})
    assert verify(bad).problems == {names[0]: "altered", names[1]: "missing"}
    assert verify(bad).lines() == [
        f"{bad}: {len(unpack(archive).sums)} files, 2 problems",
        f"{names[0]}: altered",
        f"{names[1]}: missing",
        "whole: echo: 2 of 4 trials",
        "whole: other: 2 of 2 trials",
    ]
    with pytest.raises(DatasetError, match="2 files are damaged") as caught:
        labkit.load(bad / "echo")
    assert all(name in caught.value.why for name in names)
    assert "echo: 2 of 4 trials; other: 2 of 2 trials" in caught.value.remedy
    assert len(labkit.load(bad / "other").trials) == 2


def test_a_changed_archive_is_read_again(archive: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.tar"
    shutil.copy(archive, path)
    assert len(labkit.load(path / "other").trials) == 2
    pack(write_campaign(tmp_path / "other", blocks=4), path)
    assert len(labkit.load(path).trials) == 8


def test_no_file_leaves_the_folder_that_it_is_unpacked_to(archive: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.tar"
    with tarfile.open(evil, "w") as out:
        for name in ("data/../../escaped", "/escaped", f"data/{SUMS}"):
            info = tarfile.TarInfo(name)
            text = f"{'0' * 64}  ../escaped\n".encode()
            info.size = len(text)
            out.addfile(info, io.BytesIO(text))
    with pytest.raises(DatasetError, match="not an archive of a labkit dataset"):
        verify(evil)
    sneaky = rewritten(archive, tmp_path / "sneaky.tar", {})
    with tarfile.open(sneaky, "a") as out:
        link = tarfile.TarInfo("data/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        out.addfile(link)
        out.addfile(tarfile.TarInfo("data/../../../escaped"))
    found = unpack(sneaky)
    assert found.problems == {"../../../escaped": "not listed"}
    assert not (found.folder / "link").is_symlink()


@pytest.mark.parametrize("text", [b"", b"hello", bytes(20_000), b"\x1f\x8b" + bytes(100)])
def test_another_file_is_no_archive(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "data.tar"
    path.write_bytes(text)
    for read in (labkit.load, verify):
        with pytest.raises(DatasetError, match="not an archive") as caught:
            read(path)
        assert caught.value.where == str(path)


def test_an_archive_does_not_lie_in_what_it_packs(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot lie in"):
        pack(folder, folder / "data.tar")


def test_where_nothing_can_be_written_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be written") as caught:
        pack(folder, tmp_path / "nosuch" / "data.tar")
    assert "nosuch" in caught.value.where


def test_a_path_that_leads_nowhere_is_left_alone(tmp_path: Path) -> None:
    assert opened(tmp_path / "nosuch" / "at all") == tmp_path / "nosuch" / "at all"


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_truncated_archive_names_what_is_gone_and_keeps_the_rest(
    data: st.DataObject, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = archive.read_bytes()
    keep = data.draw(st.integers(0, len(text) - 1))
    path = tmp_path_factory.mktemp("cut") / "data.tar"
    path.write_bytes(text[:keep])
    with tarfile.open(archive) as found:
        ends = {m.name.removeprefix("data/"): m.offset_data + m.size for m in found}
    if keep < ends[SUMS]:
        with pytest.raises(DatasetError, match="damaged"):
            verify(path)
        return
    gone = {name for name, end in ends.items() if end > keep}
    found = verify(path)
    assert set(found.problems) == gone
    assert all("missing" in what for what in found.problems.values())
    for study in ("echo", "other"):
        if any(name.startswith(study) for name in gone):
            with pytest.raises(DatasetError, match="damaged"):
                labkit.load(path / study)
        else:
            assert len(labkit.load(path / study).trials)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_altered_archive_never_gives_other_data(
    data: st.DataObject, archive: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = bytearray(archive.read_bytes())
    where = data.draw(st.integers(0, len(text) - 1))
    text[where] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flipped") / "data.tar"
    path.write_bytes(text)
    for study in ("echo", "other"):
        try:
            found = labkit.load(path / study)
            trials, samples = found.trials, found.samples()
        except DatasetError as error:
            assert str(path) in error.where
        else:
            given_ = labkit.load(folder / study)
            pd.testing.assert_frame_equal(trials, given_.trials)
            pd.testing.assert_frame_equal(samples, given_.samples())


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_an_altered_file_of_a_folder_is_found_or_refused(
    data: st.DataObject, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("altered") / "data"
    shutil.copytree(folder, other)
    names = sorted(read_sums((other / SUMS).read_text(), ""))
    name = data.draw(st.sampled_from(names))
    text = bytearray((other / name).read_bytes())
    text[data.draw(st.integers(0, len(text) - 1))] ^= data.draw(st.integers(1, 255))
    (other / name).write_bytes(text)
    assert verify(other).problems == {name: "altered"}
    try:  # without its digest it is read, or it is an error that names the file
        labkit.load(other / "echo").samples()
    except DatasetError as error:
        assert Path(name).name in error.where
