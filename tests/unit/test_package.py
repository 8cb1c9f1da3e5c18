"""Datasets packed, described, verified, cited and compared."""

import json
import shutil
import subprocess
import tarfile

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from frictionless import Package
from made_up import write
from rocrate.rocrate import ROCrate

from labkit import cli
from labkit.analysis.package import cite, describe, pack, verify
from labkit.analysis.rigs import compare_datasets
from labkit.data import campaigns, load
from labkit.errors import DatasetError, UsageError
from labkit.paths import project

AUTHORS = {"title": "Made", "type": "dataset"}
AUTHORS["authors"] = [{"family-names": "Doe", "given-names": "Jane"}]
FACTORS = {"placement": ["bare clean", "docker host"], "size_b": [1, 64]}


def campaign(folder, scale=1.0, **options):
    """Write a campaign in which Docker takes 1.1 times as long."""
    times = {"bare clean": 1000 * scale, "docker host": 1100 * scale}
    options = {"blocks": 6, "spread": 1e-3, **options}
    return write(
        folder, FACTORS, lambda at, _: {"rtt_ns_median": times[at["placement"]]}, **options
    )


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Two campaigns as they are while measuring, one with samples, and their author."""
    folder = tmp_path_factory.mktemp("local")
    campaign(folder / "one", samples="rtt_ns")
    campaign(folder / "two")
    (folder / "CITATION.cff").write_text(yaml.safe_dump(AUTHORS))
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


def files(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


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
    assert files(tmp_path / "again") == files(described) == files(tmp_path / "repacked")


def test_standard_tools_and_people_read_the_description(described):
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=described, check=True)
    assert Package(str(described / "datapackage.json")).validate().valid
    fields = json.loads((described / "schema.json").read_text())["fields"]
    units = {one["name"]: one["unit"] for one in fields}
    assert units["rtt_ns"] == units["rtt_ns_median"] == "ns" and "size_b" in units
    crate = ROCrate(described)
    assert [author["name"] for author in crate.root_dataset["author"]] == ["Doe, Jane"]
    actions = crate.get_by_type("CreateAction")
    assert {action["result"].id for action in actions} == {"one/", "two/"}
    assert {action["instrument"].type for action in actions} == {"SoftwareApplication"}
    title, *lines = (described / "README.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| one"))
    for known in ("Docker 29.0", "cgroup v2", "Linux 6.1", "20 CPUs Made CPU", "2001-09-09"):
        assert known in title and known in row
    assert "Programs with local changes: none." in lines


@pytest.mark.parametrize("name", ["one/trials.parquet", "two/raw.tar.xz", "README.md"])
def test_a_changed_byte_is_found(packed, name):
    content = bytearray((packed / name).read_bytes())
    content[len(content) // 2] ^= 1
    (packed / name).write_bytes(content)
    result = CliRunner().invoke(cli.app, ["dataset", "verify", str(packed)])
    assert result.exit_code == 1 and result.output.startswith(f"{name}:")


def test_missing_and_unknown_files_are_found(packed):
    assert verify(packed) == []
    (packed / "one" / "plan.json").rename(packed / "one" / "other.json")
    assert len(verify(packed)) == 2


def test_tables_that_do_not_fit_each_other_are_found(packed):
    path = packed / "one" / "trials.parquet"
    pd.read_parquet(path).iloc[1:].to_parquet(path, index=False)
    describe(packed)
    (problem,) = verify(packed)
    assert "1200 samples, its trials have 1150" in problem


@pytest.mark.parametrize(("old", "new"), [('"number"', '"boolean"'), ('"block"', '"blocks"')])
def test_tables_that_do_not_follow_their_schema_are_found(packed, old, new):
    schema = packed / "schema.json"
    schema.write_text(schema.read_text().replace(old, new))
    names = sorted(files(packed).keys() - {"SHA256SUMS"})
    sums = subprocess.run(["sha256sum", *names], cwd=packed, check=True, capture_output=True)
    (packed / "SHA256SUMS").write_bytes(sums.stdout)
    assert any("trials.parquet" in problem for problem in verify(packed))


def test_the_reference_is_as_described_and_a_folder_of_nothing_packed_is_refused(local):
    assert verify(project("data/reference")) == []
    with pytest.raises(DatasetError):
        describe(local)


def test_citations_are_bibtex(described, tmp_path):
    text = cite(described / "CITATION.cff")
    assert "author = {Doe, Jane}" in text and "year = {n.d.}" in text and "version = {" in text
    assert all(key in cite() for key in ("{labkit,", "{struye2017,", "{haruna2019,"))
    released = {**AUTHORS, "date-released": "2026-01-02", "version": "1.2"}
    (tmp_path / "CITATION.cff").write_text(yaml.safe_dump(released))
    own = cite(tmp_path / "CITATION.cff")
    assert "year = {2026}" in own and "version = {1.2}" in own


def test_a_campaign_differs_from_one_that_takes_longer_and_not_from_itself(local, tmp_path):
    first, second = load(local / "one"), campaign(tmp_path / "slower", 1.2, seed=2)
    for other, code in ((first, 0), (second, 1)):
        argv = ["compare-datasets", str(first.path), str(other.path)]
        assert CliRunner().invoke(cli.app, argv).exit_code == code
    table = compare_datasets(first, second)
    bare = table["condition"].str.startswith("bare")
    assert table["differs"].tolist() == bare.tolist()  # ratios to the baseline are the same
    assert table.loc[bare, "ratio"].to_numpy() == pytest.approx(1.2, rel=0.02)
    assert not compare_datasets(first, second, margin=0.3)["differs"].any()


@pytest.mark.parametrize("options", [{"study": "other"}, {"blocks": 2}])
def test_campaigns_without_anything_in_common_are_refused(local, tmp_path, options):
    with pytest.raises(UsageError):
        compare_datasets(load(local / "one"), campaign(tmp_path, **options))
