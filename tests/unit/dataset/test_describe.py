"""Described datasets, checked with the validators of Frictionless and RO-Crate."""

from __future__ import annotations

import importlib.resources
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import frictionless
import pandas as pd
import pyarrow.parquet as parquet
import pytest
import urllib3
from requests.adapters import HTTPAdapter
from requests_cache import CachedSession
from rocrate_validator import models, services
from small_datasets import edit, write_campaign

import labkit
from labkit.dataset.describe import PACKAGE, describe, read_description
from labkit.dataset.files import SUMS, digest_of, read_sums, write_sums
from labkit.dataset.package import pack, verify
from labkit.errors import DatasetError
from labkit.paths import project
from labkit.units import KEYS, about_column

REFERENCE = project("data/reference")
STUDIES = sorted(path.parent for path in REFERENCE.glob("*/plan.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_campaign(tmp_path / "data" / "echo")
    write_campaign(tmp_path / "data" / "other", study="other", blocks=1, times=2.0)
    return tmp_path / "data"


def package(folder: Path) -> dict[str, Any]:
    return json.loads((folder / PACKAGE).read_text())


def test_each_table_has_a_resource_with_its_schema(folder: Path) -> None:
    describe(folder)
    found = {one["name"]: one for one in package(folder)["resources"]}
    names = ["echo-trials", "echo-samples-rtt_ns", "other-trials", "other-samples-rtt_ns"]
    assert list(found) == names
    assert len(found["echo-samples-rtt_ns"]["path"]) == 6
    assert found["echo-samples-rtt_ns"]["schema"]["fields"] == [
        {"name": "rtt_ns", "type": "integer", "description": "round-trip time", "unit": "ns"}
    ]
    fields = {one["name"]: one for one in found["echo-trials"]["schema"]["fields"]}
    assert list(fields) == list(labkit.load(folder / "echo").trials.columns)
    assert fields["placement"]["constraints"]["enum"] == ["bare clean", "docker bridge"]
    assert fields["rtt_ns_median"]["description"] == "round-trip time, median"
    table = pd.read_csv(folder / "echo" / "trials.csv", keep_default_na=False)
    pd.testing.assert_frame_equal(table, labkit.load(folder / "echo").trials, check_dtype=False)


def test_trials_with_other_columns_are_another_table(folder: Path) -> None:
    path = folder / "echo" / "trials" / "b01-p01-a1" / "samples.parquet"
    pd.read_parquet(path).assign(start_ns=1.5).to_parquet(path, index=False)
    edit(path.with_name("trial.json"))
    describe(folder)
    found = {one["name"]: one["path"] for one in package(folder)["resources"]}
    assert found["echo-samples-rtt_ns-start_ns"] == [path.relative_to(folder).as_posix()]
    assert len(found["echo-samples-rtt_ns"]) == 5


def test_frictionless_validates_package_and_tables(folder: Path) -> None:
    describe(folder)
    report = frictionless.validate(str(folder / PACKAGE))
    assert report.valid, report.flatten(["type", "note"])
    assert len(report.tasks) == 4 and report.tasks[0].stats["rows"] == 6
    path = folder / "echo" / "trials.csv"
    path.write_text(path.read_text().replace("docker bridge", "podman bridge"))
    broken = frictionless.validate(str(folder / PACKAGE))
    assert {"constraint-error", "hash-count"} <= {kind for (kind,) in broken.flatten(["type"])}


class _Context(HTTPAdapter):
    """Answers any request with the RO-Crate context that ro-crate-py ships."""

    def send(self, request: Any, **_: Any) -> Any:
        text = importlib.resources.files("rocrate").joinpath("data/ro-crate.jsonld").read_bytes()
        head = {"Content-Type": "application/ld+json"}
        body = urllib3.HTTPResponse(io.BytesIO(text), head, 200, preload_content=False)
        return self.build_response(request, body)


def validate_crate(folder: Path, cache: Path) -> list[str]:
    """Return what the RO-Crate validator finds, asking nothing of any network."""
    session = CachedSession(cache_name=str(cache), backend="sqlite", expire_after=-1)
    session.mount("https://", _Context())
    session.get(json.loads((folder / "ro-crate-metadata.json").read_text())["@context"])
    session.close()
    settings = services.ValidationSettings(
        rocrate_uri=str(folder),
        profile_identifier="ro-crate-1.3",
        requirement_severity=models.Severity.REQUIRED,
        offline=True,
        cache_path=cache,
    )
    return [str(issue.message) for issue in services.validate(settings).get_issues()]


def test_the_crate_validates_offline(folder: Path, tmp_path: Path) -> None:
    describe(folder)
    assert validate_crate(folder, tmp_path / "cache") == []


def test_the_validator_finds_a_broken_crate(folder: Path, tmp_path: Path) -> None:
    describe(folder / "echo")
    path = folder / "echo" / "ro-crate-metadata.json"
    data = json.loads(path.read_text())
    del next(one for one in data["@graph"] if one["@id"] == "./")["license"]
    path.write_text(json.dumps(data))
    found = validate_crate(folder / "echo", tmp_path / "cache")  # a campaign alone is a crate too
    assert found and all("license" in what for what in found)


def test_authors_are_those_that_the_folder_names(folder: Path) -> None:
    def described() -> tuple[dict[str, Any], dict[str, Any], str]:
        entry = describe(folder).entry().apa()
        graph = json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]
        entities = {one["@id"]: one for one in graph}
        package = json.loads((folder / "datapackage.json").read_text())
        return package, entities, entry

    package, entities, entry = described()
    assert "contributors" not in package and "author" not in entities["./"]
    assert "agent" not in entities["#run-of-echo"] and entry.startswith("Container performance")
    (folder / "CITATION.cff").write_text(
        "authors: [{given-names: Ada, family-names: Lovelace}, {name: Some laboratory}]"
    )
    package, entities, entry = described()
    assert [one["title"] for one in package["contributors"]] == ["Ada Lovelace", "Some laboratory"]
    assert len(entities["./"]["author"]) == len(entities["#run-of-echo"]["agent"]) == 2
    assert entry.startswith("Lovelace, A., & Some laboratory")
    assert "CITATION.cff" in (folder / "SHA256SUMS").read_text()


def test_the_provenance_of_a_campaign(folder: Path) -> None:
    (folder / "CITATION.cff").write_text("authors: [{name: Some laboratory}]")
    describe(folder)
    graph = json.loads((folder / "ro-crate-metadata.json").read_text())["@graph"]
    entities = {one["@id"]: one for one in graph}
    run = entities["#run-of-echo"]
    assert run["startTime"] == "2023-11-14T22:13:31Z" and run["endTime"] == "2023-11-14T22:13:52Z"
    assert entities[run["instrument"]["@id"]]["version"] == "0.1.0"
    assert "apache.org" in entities[run["instrument"]["@id"]]["license"]["@id"]
    rig, image = (entities[one["@id"]] for one in run["object"])
    assert "2 CPUs small, kernel 6.1" in rig["description"]
    assert rig["disambiguatingDescription"] == "one kernel"
    assert image["identifier"] == "sha256:" + "0" * 64
    assert "by/4.0" in entities["./"]["license"]["@id"]
    assert entities[entities["./"]["author"]["@id"]]["name"] == "Some laboratory"
    assert "1 flagged, all kept" not in entities["./"]["description"]
    assert "2 flagged, all kept" in entities["./"]["description"]


def test_the_digests_are_those_of_sha256sum(folder: Path) -> None:
    describe(folder)
    argv = ["sha256sum", "--check", "--strict", "--quiet", SUMS]
    subprocess.run(argv, cwd=folder, check=True)
    listed = set(read_sums(folder / SUMS))
    there = {one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()}
    assert listed == there - {SUMS}


def test_describing_again_adds_new_trials_only(folder: Path) -> None:
    first = describe(folder)
    assert describe(folder) == first == read_description(folder)
    source, target = (folder / "other" / "trials" / f"b01-p01-a{n}" for n in (1, 2))
    shutil.copytree(source, target)
    path = target / "trial.json"
    edit(path, '"attempt": 1', '"attempt": 2')
    assert "not listed" in verify(folder).problems["other/trials/b01-p01-a2/trial.json"]
    assert describe(folder).fingerprint != first.fingerprint
    assert verify(folder).problems == {}


@pytest.mark.parametrize("change", ["altered", "missing"])
def test_data_that_changed_since_their_description_are_an_error(folder: Path, change: str) -> None:
    describe(folder)
    path = folder / "echo" / "trials" / "b02-p01-a1" / "tool.out"
    path.write_text("other\n") if change == "altered" else path.unlink()
    with pytest.raises(DatasetError, match="missing or altered") as caught:
        describe(folder)
    assert caught.value.where == str(path) and "verify" in caught.value.remedy


def test_a_newer_format_of_a_trial_is_found(folder: Path) -> None:
    path = folder / "echo" / "trials" / "b01-p02-a1" / "trial.json"
    newer = json.dumps(json.loads(path.read_text()) | {"format": 9})
    with pytest.raises(DatasetError, match="newer") as caught:
        path.write_text(newer)
        describe(folder)
    assert caught.value.where == str(path)
    path.write_text(newer.replace('"format": 9', '"format": 1'))
    describe(folder)
    path.write_text(newer)
    list_again(folder, path)
    assert verify(folder).problems == {
        "echo/trials/b01-p02-a1/trial.json": "dataset format 9 is newer than this labkit reads (1)"
    }


def list_again(folder: Path, *paths: Path) -> None:
    """List files as they are now, as if they had been so when they were described."""
    names = {path.relative_to(folder).as_posix(): digest_of(path) for path in paths}
    write_sums(folder / SUMS, read_sums(folder / SUMS) | names)


def test_tables_that_differ_from_their_schema_are_found(folder: Path) -> None:
    describe(folder)
    short, renamed = (
        folder / "echo" / "trials" / name / "samples.parquet"
        for name in ("b01-p01-a1", "b01-p02-a1")
    )
    table = folder / "other" / "trials.csv"
    table.write_text(table.read_text().replace("docker bridge", "podman bridge"))
    pd.read_parquet(short).head(3).to_parquet(short)
    pd.read_parquet(renamed).add_suffix("_x").to_parquet(renamed)
    records = [path.with_name("trial.json") for path in (short, renamed)]
    for path in records:
        edit(path)
    list_again(folder, short, renamed, table, *records)
    found = verify(folder).problems
    assert "are missing (3 rows, but 4" in found[short.relative_to(folder).as_posix()]
    assert "other columns than" in found[renamed.relative_to(folder).as_posix()]
    assert "constraint" in found["other/trials.csv"]
    assert len(found) == 3


def test_packed_tables_that_differ_from_their_schema_are_found(
    folder: Path, tmp_path: Path
) -> None:
    pack(folder, tmp_path / "packed")
    samples = tmp_path / "packed" / "echo" / "samples.parquet"
    records = tmp_path / "packed" / "other" / "trials.parquet"
    whole = pd.read_parquet(samples)
    whole[whole["trial"] != "b01-p01"].to_parquet(samples)
    table = parquet.read_table(records)
    parquet.write_table(table.append_column("more", [[1] * len(table)]), records)
    list_again(tmp_path / "packed", samples, records)
    found = verify(tmp_path / "packed").problems
    assert "lost its samples" in found["echo/samples.parquet"]
    assert "other columns than" in found["other/trials.parquet"]
    assert len(found) == 2


def test_nothing_to_describe_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no campaign here"):
        describe(tmp_path)
    with pytest.raises(DatasetError, match="without a description") as caught:
        read_description(tmp_path)
    assert "dataset describe" in caught.value.remedy
    write_campaign(tmp_path / "empty", blocks=0)
    with pytest.raises(DatasetError, match="nothing was measured"):
        describe(tmp_path)


def test_a_list_of_files_has_names_inside_its_folder(tmp_path: Path) -> None:
    sums = {"b/two words": "0" * 64, "a": "f" * 64}
    write_sums(tmp_path / SUMS, sums)
    assert read_sums(tmp_path / SUMS) == sums
    for name in ("../a", "/a", "a/../../b", "", ".", "a//b"):
        (tmp_path / SUMS).write_text(f"{'0' * 64}  {name}\n")
        with pytest.raises(DatasetError, match="list of files is damaged"):
            read_sums(tmp_path / SUMS)


def test_a_factor_is_described_by_the_plan(folder: Path) -> None:
    describe(folder)
    (trials, *_) = package(folder)["resources"]
    fields = {one["name"]: one for one in trials["schema"]["fields"]}
    assert fields["placement"]["description"] == (
        "placement, varied by the plan: bare clean, docker bridge; the baseline is bare clean"
    )
    assert fields["wait"]["description"] == ("wait, the same in every condition of the plan: block")
    assert all(one["description"] != "factor" for one in fields.values())


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_column_of_the_reference_has_a_description(study: Path) -> None:
    found = labkit.load(study)
    assert set(KEYS) <= set(found.trials)
    columns = set(found.trials) - set(found.plan["factors"])
    assert [name for name in sorted(columns) if not about_column(name)[1]] == []


def test_columns_of_statistics_and_placements() -> None:
    assert about_column("hop07_cpu_ns") == ("ns", "CPU time of the workload's threads, of hop07")
    assert about_column("neighbour_triad_mean_gb_per_s")[0] == "GB/s"
    assert about_column("latency_ns_p999") == ("ns", "latency of a call, 99.9 %")
    assert (
        about_column("hop_trial")
        == about_column("nosuch")
        == about_column("nosuch_median")
        == ("", "")
    )


def test_the_reference_is_described_by_this_version(tmp_path: Path) -> None:
    found = verify(REFERENCE)
    assert found.problems == {}
    assert len(found.lines()) == 1 + len(STUDIES)
    again = tmp_path / "reference"
    shutil.copytree(REFERENCE, again)
    describe(again)
    same = {one.name: (one / "trials.csv").read_bytes() for one in STUDIES}
    assert same == {one.name: (again / one.name / "trials.csv").read_bytes() for one in STUDIES}
    same_sums = (again / SUMS).read_text() == (REFERENCE / SUMS).read_text()
    assert same_sums, "labkit dataset describe data/reference"
