"""Packed datasets: the same bytes each time, whole, or an error that names what is not."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_datasets import write_campaign

import labkit
from labkit.dataset.describe import describe
from labkit.dataset.files import SUMS, read_sums
from labkit.dataset.package import pack, verify
from labkit.errors import DatasetError, UsageError

FILES = ["plan.json", "raw.tar.xz", "samples.parquet", "sessions.json", "trials.csv"]
FILES = sorted([*FILES, "trials.parquet"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "data"
    write_campaign(path / "echo", blocks=2)
    write_campaign(path / "other", study="other", blocks=1, times=2.0)
    (path / "echo" / "logs").mkdir()
    (path / "echo" / "logs" / "01.log").write_text("began\n")
    return path


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    path = folder.parent / "packed" / "data"
    path.parent.mkdir()
    pack(folder, path)
    return path


@pytest.fixture(scope="module")
def archive(folder: Path) -> Path:
    path = folder.parent / "data.tar"
    pack(folder, path)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder, by its name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_packing_gives_the_same_bytes_for_the_same_data(
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
    assert not list(tmp_path.glob(".*")), "nothing half done is left"


def test_members_of_an_archive_are_sorted_and_without_times_and_owners(
    archive: Path, packed: Path
) -> None:
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    names = [one.name.removeprefix("data/") for one in members]
    assert names[0] == SUMS and names[1:] == sorted(names[1:])
    assert {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in members} == {
        (0, 0, 0, "", 0o644)
    }
    assert names[1:] == sorted(read_sums(packed / SUMS))


def test_an_archive_has_the_files_of_a_packed_folder(
    archive: Path, packed: Path, tmp_path: Path
) -> None:
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    assert contents(tmp_path / "data") == contents(packed)
    assert verify(tmp_path / "data").problems == {}


def test_the_files_of_a_packed_campaign(folder: Path, packed: Path) -> None:
    assert sorted(path.name for path in (packed / "echo").iterdir()) == FILES
    with tarfile.open(packed / "echo" / "raw.tar.xz") as raw:
        names = raw.getnames()
    trials = [f"trials/b0{b}-p0{p}-a1/tool.out" for b in (1, 2) for p in (1, 2)]
    assert names == ["logs/01.log", *trials]
    assert sorted(contents(packed)) == sorted(
        [SUMS, "LICENSE", "README.md", "datapackage.json", "ro-crate-metadata.json"]
        + [f"{study}/{name}" for study in ("echo", "other") for name in FILES]
    )
    assert not (folder / SUMS).exists(), "the folder itself stays as it is"


def test_pandas_reads_the_tables(packed: Path) -> None:
    samples = pd.read_parquet(packed / "echo" / "samples.parquet")
    assert samples.columns.tolist() == ["trial", "attempt", "rtt_ns"]
    ours = labkit.load(packed / "echo").samples()
    assert samples["rtt_ns"].tolist() == ours["rtt_ns"].tolist()
    assert samples["trial"].tolist() == ours["trial"].tolist()
    trials = pd.read_parquet(packed / "echo" / "trials.parquet")
    assert trials["started_ns"].dtype == "int64" and trials["status"].tolist() == ["ok"] * 4
    assert trials["metrics"].str.startswith('{"rtt_ns_median": ').all()


def test_packing_a_packed_dataset_gives_the_same(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    pack(packed, tmp_path / "again" / "data")
    assert contents(tmp_path / "again" / "data") == contents(packed)


def test_readme_and_licence(packed: Path) -> None:
    text = (packed / "README.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| `echo` | echo | ")]
    assert "hours of trials in 1 session, " in row and "| 4 attempts at trials in 2 blocks" in row
    assert "| `samples.parquet` | one row a sample" in text
    assert "labkit.load" in text and "CC-BY-4.0" in text
    assert "Attribution 4.0 International" in (packed / "LICENSE").read_text()


def test_hidden_files_are_not_packed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "data"
    shutil.copytree(folder, other)
    hidden = other / "echo" / "trials" / ".b09-p01-a1.part"
    hidden.mkdir()
    (hidden / "tool.out").write_text("half of it")
    pack(other, tmp_path / "packed")
    with tarfile.open(tmp_path / "packed" / "echo" / "raw.tar.xz") as raw:
        assert not [name for name in raw.getnames() if "part" in name]


def test_a_single_campaign_can_be_packed(tmp_path: Path) -> None:
    pack(write_campaign(tmp_path / "echo"), tmp_path / "one")
    assert len(labkit.load(tmp_path / "one").trials) == 6
    assert verify(tmp_path / "one").lines() == [
        f"{tmp_path}/one: 10 files, no problems",
        "whole: the campaign: 6 of 6 trials",
    ]


def test_campaigns_at_any_depth_are_packed_without_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "quick"
    write_campaign(folder / "echo" / "20260101-120000-a", blocks=1)
    write_campaign(folder / "echo" / "20260102-120000-b", blocks=2)
    (folder / "notes.txt").write_text("not of a campaign")
    pack(folder, tmp_path / "packed")
    assert verify(tmp_path / "packed").problems == {}
    assert not (tmp_path / "packed" / "notes.txt").exists()
    assert len(labkit.load(tmp_path / "packed" / "echo").trials) == 4


def test_verification_names_problems_and_counts_whole_trials(packed: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(packed, bad)
    path = bad / "echo" / "samples.parquet"
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF  # in the first row group
    path.write_bytes(content)
    (bad / "other" / "trials.parquet").unlink()
    (bad / "other" / "more.txt").write_text("since")
    assert verify(bad).lines() == [
        f"{bad}: 16 files, 3 problems",
        "echo/samples.parquet: altered",
        "other/more.txt: not listed: `labkit dataset describe` adds files measured since",
        "other/trials.parquet: missing",
        "whole: echo: 3 of 4 trials",
        "whole: other: no trials",
    ]


@pytest.mark.parametrize("change", ["altered", "missing"])
def test_data_that_changed_since_their_description_are_not_packed(
    packed: Path, tmp_path: Path, change: str
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(packed, bad)
    path = bad / "echo" / "plan.json"
    path.write_text("{}") if change == "altered" else path.unlink()
    with pytest.raises(DatasetError, match="missing or altered") as caught:
        pack(bad, tmp_path / "out")
    assert caught.value.where == str(path) and not (tmp_path / "out").exists()


def test_an_archive_cannot_be_verified(archive: Path) -> None:
    with pytest.raises(DatasetError, match="read from a folder") as caught:
        verify(archive)
    assert f"tar -xf {archive}" in caught.value.remedy


@pytest.mark.parametrize("name", ["data.tar", "packed"])
def test_the_output_may_not_be_in_the_packed_folder(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be in"):
        pack(folder, folder / name)


def test_a_folder_or_an_archive_is_not_overwritten(
    folder: Path, packed: Path, archive: Path
) -> None:
    for output in (packed, archive):
        with pytest.raises(UsageError, match="exists already"):
            pack(folder, output)


def test_an_output_that_cannot_be_written_is_an_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="cannot be written") as caught:
        pack(folder, tmp_path / "file" / "data.tar")
    assert "data.tar" in caught.value.where


@given(data=st.data())
@pytest.mark.parametrize("form", ["folder", "packed"])
def test_an_altered_file_is_found(
    data: st.DataObject,
    form: str,
    folder: Path,
    packed: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    other = tmp_path_factory.mktemp("altered") / "data"
    if form == "packed":
        shutil.copytree(packed, other)
    else:
        shutil.copytree(folder, other)
        describe(other)
    name = data.draw(st.sampled_from(sorted(read_sums(other / SUMS))))
    text = bytearray((other / name).read_bytes())
    text[data.draw(st.integers(0, len(text) - 1))] ^= data.draw(st.integers(1, 255))
    (other / name).write_bytes(text)
    assert verify(other).problems == {name: "altered"}
    try:  # without its digest it is read, or it is an error that names the file
        found = labkit.load(other / "echo")
        samples = found.samples()
    except DatasetError as error:
        assert Path(name).name in error.where
    else:
        if name == "echo/samples.parquet" and form == "packed":
            expected = labkit.load(folder / "echo").samples()
            pd.testing.assert_frame_equal(samples, expected)
