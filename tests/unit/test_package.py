"""Datasets packed, described, verified, cited and compared."""

import json
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from frictionless import Package
from rocrate.rocrate import ROCrate
from small_campaigns import write_campaign

from labkit.analysis.package import cite, describe, pack, verify
from labkit.analysis.rigs import compare_datasets
from labkit.cli import compare_datasets as compare_command
from labkit.cli import verify as verify_command
from labkit.data import campaigns, load
from labkit.errors import DatasetError, UsageError
from labkit.paths import project

CITATION = "title: Made\ntype: dataset\nauthors: [{family-names: Doe, given-names: Jane}]\n"
FACTORS = {"placement": ["bare clean", "docker host"], "size_b": ["1", "64"]}


def numbers(scale=1.0):
    """Return how a trial is measured: Docker takes 1.1 times as long."""

    def measure(levels, generator):
        slower = scale * (1.1 if levels["placement"] == "docker host" else 1.0)
        return {"rtt_ns_median": 1000 * slower * np.exp(generator.normal(0, 1e-3))}

    return measure


@pytest.fixture
def local(tmp_path):
    """Two campaigns as they are while measuring, one with samples, and their author."""
    folder = tmp_path / "local"
    for name, samples in (("one", ["rtt_ns"]), ("two", [])):
        (folder / name).mkdir(parents=True)
        write_campaign(folder / name, FACTORS, numbers(), samples=samples)
    (folder / "CITATION.cff").write_text(CITATION)
    (folder / "notes.md").write_text("Programs with local changes: none.\n")
    return folder


@pytest.fixture
def packed(local, tmp_path):
    pack(local, tmp_path / "packed")
    return tmp_path / "packed"


def files(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_packed_campaign_is_read_as_the_local_one(local, packed):
    for before, after in zip(campaigns(local), campaigns(packed), strict=True):
        pd.testing.assert_frame_equal(before.trials, after.trials)
        assert (before.plan, before.sessions) == (after.plan, after.sessions)
    before, after = (load(folder / "one").samples("rtt_ns") for folder in (local, packed))
    pd.testing.assert_frame_equal(before, after)


def test_the_same_data_have_the_same_bytes(local, packed, tmp_path):
    copy = shutil.copytree(local, tmp_path / "copy", copy_function=shutil.copyfile)
    pack(copy, tmp_path / "again")
    pack(packed, tmp_path / "repacked")
    assert files(tmp_path / "again") == files(packed) == files(tmp_path / "repacked")


def test_standard_tools_read_the_description(packed):
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=packed, check=True)
    assert Package(str(packed / "datapackage.json")).validate().valid
    fields = json.loads((packed / "schema.json").read_text())["fields"]
    assert {"rtt_ns", "rtt_ns_median", "size_b"} <= {field["name"] for field in fields}
    assert next(one for one in fields if one["name"] == "rtt_ns_median")["unit"] == "ns"
    crate = ROCrate(packed)
    assert [author["name"] for author in crate.root_dataset["author"]] == ["Doe, Jane"]
    actions = crate.get_by_type("CreateAction")
    assert {action["result"].id for action in actions} == {"one/", "two/"}
    assert {action["instrument"].type for action in actions} == {"SoftwareApplication"}


def test_the_readme_says_what_was_measured_on_what(packed):
    title, *lines = (packed / "README.md").read_text().splitlines()
    for known in ("Docker 29.0", "cgroup v2", "Linux 6.1", "2 CPUs Made CPU", "2001-09-09"):
        assert known in title and known in next(line for line in lines if line.startswith("| one"))
    assert "local changes" in "\n".join(lines)


@pytest.mark.parametrize("name", ["one/trials.parquet", "two/raw.tar.xz", "README.md"])
def test_a_changed_byte_is_found(packed, name):
    assert verify(packed) == []
    content = bytearray((packed / name).read_bytes())
    content[len(content) // 2] ^= 1
    (packed / name).write_bytes(content)
    assert verify(packed) == [f"{name}: altered"]
    result = CliRunner().invoke(verify_command, [str(packed)])
    assert result.exit_code == 1 and name in result.output


def test_missing_and_unknown_files_are_found(packed):
    (packed / "one" / "plan.json").rename(packed / "one" / "other.json")
    assert len(verify(packed)) == 2


def test_tables_that_do_not_fit_each_other_are_found(packed):
    path = packed / "one" / "trials.parquet"
    pd.read_parquet(path).iloc[1:].to_parquet(path, index=False)
    describe(packed)
    assert len(verify(packed)) == 2  # its samples, and the records of its attempts


@pytest.mark.parametrize(("old", "new"), [('"number"', '"boolean"'), ('"block"', '"blocks"')])
def test_tables_that_do_not_follow_their_schema_are_found(packed, old, new):
    schema = packed / "schema.json"
    schema.write_text(schema.read_text().replace(old, new))
    names = sorted(files(packed).keys() - {"SHA256SUMS"})
    sums = subprocess.run(["sha256sum", *names], cwd=packed, check=True, capture_output=True)
    (packed / "SHA256SUMS").write_bytes(sums.stdout)
    assert any("trials.parquet" in problem for problem in verify(packed))


def test_the_reference_is_as_described():
    assert verify(project("data/reference")) == []


def test_nothing_to_describe_is_an_error(local):
    with pytest.raises(DatasetError):
        describe(local)


def test_citations_are_text_and_bibtex(packed, tmp_path):
    text = cite(packed / "CITATION.cff")
    assert "Doe, Jane (n.d.). Made, version " in text and "author = {Doe, Jane}" in text
    assert all(key in cite() for key in ("{labkit,", "{struye2017,", "{haruna2019,"))
    about = {**yaml.safe_load(CITATION), "date-released": "2026-01-02", "version": "1.2"}
    (tmp_path / "CITATION.cff").write_text(yaml.safe_dump(about))
    assert "Doe, Jane (2026). Made, version 1.2." in cite(tmp_path / "CITATION.cff")


def test_a_campaign_does_not_differ_from_itself(local):
    result = CliRunner().invoke(compare_command, [str(local / "one"), str(local / "one")])
    assert result.exit_code == 0, result.output


def test_a_campaign_that_takes_longer_differs(local, tmp_path):
    write_campaign(tmp_path / "slower", FACTORS, numbers(1.2))
    result = CliRunner().invoke(compare_command, [str(local / "one"), str(tmp_path / "slower")])
    assert result.exit_code == 1, result.output
    table = compare_datasets(load(local / "one"), load(tmp_path / "slower"))
    bare = table["condition"].str.startswith("bare")
    assert table["differs"].tolist() == bare.tolist()  # ratios to the baseline are the same
    assert table.loc[bare, "ratio"].to_numpy() == pytest.approx(1.2, rel=0.01)
    assert compare_datasets(load(local / "one"), load(tmp_path / "slower"), margin=0.3)[
        "differs"
    ].tolist() == [False] * len(table)


def test_campaigns_without_anything_in_common_are_refused(local, tmp_path):
    write_campaign(tmp_path / "other", FACTORS, numbers(), study="other")
    write_campaign(tmp_path / "few", FACTORS, numbers(), blocks=2)
    for name in ("other", "few"):
        with pytest.raises(UsageError):
            compare_datasets(load(local / "one"), load(tmp_path / name))
