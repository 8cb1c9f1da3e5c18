"""Datasets packed, described, verified and cited; those that cannot be read."""

import hashlib
import json
import shutil
import subprocess
import tarfile

import pandas as pd
import pytest
from click.testing import CliRunner
from frictionless import Package
from made_up import write
from rocrate.rocrate import ROCrate

from labkit import cli
from labkit.analysis.package import cite, describe, pack, verify
from labkit.data import campaigns, load
from labkit.errors import DatasetError, UsageError
from labkit.notebooks import values
from labkit.paths import project

AUTHORS = {"title": "Made", "authors": [{"family-names": "Doe", "given-names": "Jane"}]}
CITATION = "title: Made\nauthors: [{family-names: Doe, given-names: Jane}]\n"
FACTORS = {"placement": ["bare clean", "docker host"], "size_b": [1, 64]}


def campaign(folder, **options):
    """Write a small campaign."""
    return write(folder, FACTORS, lambda at, _: {"rtt_ns_median": 1000}, blocks=6, **options)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Two campaigns as they are while measuring, one with samples, and their author."""
    folder = tmp_path_factory.mktemp("local")
    campaign(folder / "one", samples="rtt_ns")
    campaign(folder / "two")
    (folder / "CITATION.cff").write_text(CITATION)
    (folder / "notes.md").write_text("Programs with local changes: none.\n")
    return folder


@pytest.fixture(scope="module")
def described(local, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "new"
    pack(local, folder)
    return folder


@pytest.fixture
def packed(described, tmp_path):
    """A dataset that a test may damage."""
    return shutil.copytree(described, tmp_path / "packed")


def test_a_packed_campaign_is_read_as_the_local_one(local, described):
    for before, after in zip(campaigns(local), campaigns(described), strict=True):
        pd.testing.assert_frame_equal(before.trials, after.trials)
        assert (before.plan, before.sessions) == (after.plan, after.sessions)
    before, after = (load(folder / "one").samples("rtt_ns") for folder in (local, described))
    pd.testing.assert_frame_equal(before, after)
    with tarfile.open(described / "two" / "raw.tar.xz") as archive:
        assert sum(name.endswith("/trial.json") for name in archive.getnames()) == 24


def test_the_same_data_have_the_same_bytes(local, described, tmp_path):
    copy = shutil.copytree(local, tmp_path / "copy", copy_function=shutil.copyfile)
    pack(copy, tmp_path / "again")
    pack(described, tmp_path / "repacked")
    folders = (described, tmp_path / "again", tmp_path / "repacked")
    assert len({(folder / "SHA256SUMS").read_text() for folder in folders}) == 1


def test_standard_tools_and_people_read_the_description(described):
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=described, check=True)
    assert Package(str(described / "datapackage.json")).validate().valid
    fields = json.loads((described / "schema.json").read_text())["fields"]
    units = {one["name"]: one["unit"] for one in fields}
    assert units["rtt_ns"] == units["rtt_ns_median"] == "ns" and "size_b" in units
    crate = ROCrate(described)
    assert [author["name"] for author in crate.root_dataset["author"]] == ["Doe, Jane"]
    measured = {one["result"].id: one["instrument"] for one in crate.get_by_type("CreateAction")}
    assert [measured[name].type for name in ("one/", "two/")] == ["SoftwareApplication"] * 2
    title, *lines = (described / "README.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| one"))
    for known in ("Docker 29.0", "cgroup v2", "Linux 6.1", "20 CPUs Made CPU", "2001-09-09"):
        assert known in title and known in row
    assert "Programs with local changes: none." in lines


def lose_a_trial(folder):
    path = folder / "one" / "trials.parquet"
    pd.read_parquet(path).iloc[1:].to_parquet(path, index=False)
    describe(folder)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "two/raw.tar.xz").write_bytes(b"x"), "two/raw.tar.xz: altered"),
        (lambda folder: (folder / "one/plan.json").unlink(), "one/plan.json: altered, missing"),
        (lambda folder: (folder / "one/new").touch(), "one/new: altered, missing or not listed"),
        (lose_a_trial, "1200 samples, its trials have 1150"),
    ],
)
def test_damages_are_found(packed, damage, problem):
    damage(packed)
    result = CliRunner().invoke(cli.app, ["dataset", "verify", str(packed)])
    assert result.exit_code == 1 and problem in result.output


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("plan.json", b'{"format": 2, "stu'),
        ("plan.json", b'{"format": 99}'),
        ("plan.json", b'{"format": 2, "factors": {}, "study": "x", "settings": {}}'),
        ("sessions.json", b'{"format": 1, "sessions": []}'),
        ("trials.parquet", b"PAR1" * 9),
        ("samples.parquet", b"PAR1" * 9),
    ],
)
def test_a_campaign_that_cannot_be_read_is_named_with_a_remedy(file, content, packed):
    path = packed / "one" / file
    path.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        campaign = load(packed / "one")
        campaign.sessions, campaign.complete_blocks, campaign.samples("rtt_ns")
    assert caught.value.where == str(path) and caught.value.remedy


def test_a_folder_without_a_campaign_and_campaigns_of_several_studies_are_refused(tmp_path):
    for read in (load, lambda folder: pack(folder, tmp_path / "new")):
        with pytest.raises(DatasetError, match="no campaign here"):
            read(tmp_path)
    for study in ("one", "other"):
        campaign(tmp_path / "all" / study, study=study)
    with pytest.raises(DatasetError, match=r"several studies(.|\n)*all/one, .*all/other"):
        load(tmp_path / "all")


def test_columns_that_were_not_measured_are_wrong_use(local):
    with pytest.raises(UsageError, match="did you mean 'rtt_ns'"):
        load(local / "one").samples("rtt")
    with pytest.raises(UsageError, match="no column called 'sizes'"):
        load(local / "one").samples("rtt_ns", sizes=1)


def test_the_reference_is_as_described():
    assert verify(project("data/reference")) == []


def test_a_dataset_is_cited_with_the_digest_of_its_files_as_its_version(described, local):
    assert values(cite(local / "CITATION.cff")) == AUTHORS
    digest = hashlib.sha256((described / "SHA256SUMS").read_bytes()).hexdigest()
    assert values(cite(described / "CITATION.cff")) == AUTHORS | {"version": digest[:12]}
