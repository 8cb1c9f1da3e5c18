"""Datasets to publish: campaigns packed into a few files, described, verified and cited."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
from pyarrow.dataset import dataset

from labkit import notebooks
from labkit.data import ORDER, Campaign, campaigns
from labkit.errors import DatasetError
from labkit.paths import SHIPPED
from labkit.units import column

_CITATION, _NOTES, _SUMS = "CITATION.cff", "notes.md", "SHA256SUMS"
_LICENCE = "https://creativecommons.org/licenses/by/4.0/"
_README = """
Failed and flagged trials are kept. Each folder has plan.json (conditions, order, settings, rig),
sessions.json (facts of the hosts), trials.parquet (a row an attempt), samples.parquet (a row a
sample, in ns) and raw.tar.xz (output of the programs); schema.json has every column with its unit.
Read it with `labkit.results("FOLDER")` or pandas, check it with `sha256sum --check SHA256SUMS`.
Licence: CC-BY-4.0, https://creativecommons.org/licenses/by/4.0/
"""


def pack(folder: Path, output: Path) -> None:
    """Pack each campaign of a folder into a new one; the same data give the same bytes."""
    found = campaigns(folder)
    if not found:
        raise DatasetError("no campaign here", where=str(folder))
    output.mkdir(parents=True)
    for campaign in found:
        source, home = campaign.path, output / campaign.path.relative_to(folder)
        if (source / "trials.parquet").is_file():
            shutil.copytree(source, home, dirs_exist_ok=True)
            continue
        home.mkdir(parents=True, exist_ok=True)
        for name in ("plan.json", "sessions.json"):
            shutil.copyfile(source / name, home / name)
        rows = campaign.rows.sort_values(ORDER)
        rows.to_parquet(home / "trials.parquet", compression="zstd", index=False)
        if files := sorted(source.glob("samples.parquet/*.parquet")):
            schema = pa.unify_schemas([parquet.read_schema(one).remove_metadata() for one in files])
            samples = home / "samples.parquet"
            with parquet.ParquetWriter(samples, schema, compression="zstd") as writer:
                for batch in dataset(files, schema).to_batches():
                    writer.write_batch(batch)
        with tarfile.open(home / "raw.tar.xz", "w:xz") as archive:
            archive.add(source / "trials", "trials", filter=_plain)
    for path in (folder / _CITATION, folder / _NOTES):
        if path.is_file():
            shutil.copyfile(path, output / path.name)
    describe(output)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member of an archive without owner, time and permissions."""
    mode = 0o755 if member.isdir() else 0o644
    return member.replace(uid=0, gid=0, uname="", gname="", mtime=0, mode=mode, deep=False)


def describe(folder: Path) -> None:
    """Write the description of a folder of packed campaigns."""
    found = campaigns(folder)
    table = pd.DataFrame([about(one) for one in found])
    table.insert(0, "folder", [one.path.relative_to(folder).as_posix() for one in found])
    days = sorted(table["measured"].str.split(" to ").explode())
    machine = [", ".join(table[n].unique()) for n in ("engine", "cgroup", "kernel", "processors")]
    title = "; ".join([f"Costs of containers, {days[0]} to {days[-1]}", *machine])
    paths = sorted(path for one in found for path in one.path.glob("*.parquet"))
    kinds = {"bool": "boolean", "string": "string", "large_string": "string"}
    fields = {}
    for one in (field for path in paths for field in parquet.read_schema(path)):
        known, kind = column(one.name), kinds.get(str(one.type), "number")
        described = {"description": known.text, "unit": known.unit}
        fields[one.name] = {"name": one.name, "type": kind, **described}
    names = [path.relative_to(folder).as_posix() for path in paths]
    resource = {"format": "parquet", "schema": "schema.json"}
    resources = [{"name": one.replace("/", "-"), "path": one, **resource} for one in names]
    package = {"name": "labkit-data", "title": title, "licenses": [{"path": _LICENCE}]}
    for name, data in {
        "schema.json": {"fieldsMatch": "superset", "fields": list(fields.values())},
        "datapackage.json": {**package, "resources": resources},
        "ro-crate-metadata.json": _crate(folder, table, title),
    }.items():
        (folder / name).write_text(json.dumps(data, indent=0, ensure_ascii=False) + "\n")
    rows = [[*table], ["---"] * len(table.columns), *table.to_numpy()]
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    notes = (folder / _NOTES).read_text() if (folder / _NOTES).is_file() else ""
    (folder / "README.md").write_text("\n".join([f"# {title}\n", *lines, _README, notes]))
    shutil.copyfile(SHIPPED / "data" / "LICENSE", folder / "LICENSE")
    sums = "".join(f"{digest}  {name}\n" for name, digest in _digests(folder).items())
    (folder / _SUMS).write_text(sums)


def about(campaign: Campaign) -> dict[str, Any]:
    """Return the machine of a campaign, its dates and its size."""
    names = ["engine.version", "cgroup.version", "kernel.release", "cpu.count", "cpu.model"]
    facts = pd.json_normalize([one["facts"]["sut"]["stable"] for one in campaign.sessions])
    facts = facts.reindex(columns=names).fillna("unknown").astype(str)
    machine = {
        "engine": "Docker " + facts["engine.version"],
        "cgroup": "cgroup " + facts["cgroup.version"],
        "kernel": "Linux " + facts["kernel.release"],
        "processors": facts["cpu.count"] + " CPUs " + facts["cpu.model"],
    }
    attempts = campaign.trials.drop_duplicates(ORDER[:3])
    days = pd.to_datetime(attempts["started_ns"], unit="ns").dt.strftime("%Y-%m-%d")
    return {
        "measured": " to ".join(dict.fromkeys([days.min(), days.max()])),
        **{name: " and ".join(texts.unique()) for name, texts in machine.items()},
        "labkit": campaign.plan.get("labkit", ""),
        "hours": round(attempts["seconds"].sum() / 3600, 1),
        "blocks": attempts["block"].nunique(),
        "trials": len(attempts),
        "failed": (attempts["status"] != "ok").sum(),
        "flagged": (attempts["flags"] != "").sum(),
        "samples": attempts["n_samples"].sum(),
    }


def _crate(folder: Path, table: pd.DataFrame, title: str) -> Any:
    """Return the provenance: who measured which data with which program, and when."""
    from rocrate.model import Person, SoftwareApplication
    from rocrate.rocrate import ROCrate

    crate = ROCrate()
    crate.name, crate.description, crate.license = title, title, _LICENCE
    crate.datePublished = table["measured"].str[-10:].max()
    path, parts = folder / _CITATION, ("family-names", "given-names", "name")
    for author in notebooks.values(path.read_text())["authors"] if path.is_file() else []:
        name = ", ".join(author[part] for part in parts if part in author)
        person = Person(crate, f"#{name.replace(' ', '-')}", {"name": name})
        crate.root_dataset.append_to("author", crate.add(person))
    for row in table.astype(str).to_dict("records"):
        text = ", ".join(f"{name}: {value}" for name, value in row.items())
        data = crate.add_dataset(dest_path=f"{row['folder']}/", properties={"description": text})
        version = {"name": "labkit", "version": row["labkit"]}
        program = crate.add(SoftwareApplication(crate, f"#labkit-{row['labkit']}", version))
        crate.add_action(program, f"#measuring-{row['folder']}", result=data)
    return crate.metadata.generate()


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file of a dataset, but for the list of digests."""
    digests = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _SUMS):
        with path.open("rb") as file:  # samples may need more memory than there is
            digest = hashlib.file_digest(file, "sha256")
        digests[path.relative_to(folder).as_posix()] = digest.hexdigest()
    return digests


def verify(folder: Path) -> list[str]:
    """Return the problems of a described folder, a line each."""
    lines = (folder / _SUMS).read_text().splitlines()
    listed, found = {line[66:]: line[:64] for line in lines}, _digests(folder)
    changed = sorted(dict(listed.items() ^ found.items()))
    problems = [f"{one}: altered, missing or not listed" for one in changed]
    for campaign in campaigns(folder) if not problems else []:
        wanted, samples = about(campaign)["samples"], campaign.path / "samples.parquet"
        rows = parquet.read_metadata(samples).num_rows if samples.exists() else 0
        if rows != wanted:
            problems.append(f"{campaign.path}: {rows} samples, its trials have {wanted}")
    return problems


def cite(path: Path) -> str:
    """Return a CITATION.cff; of a dataset with a version, the beginning of SHA256SUMS' digest."""
    text, sums = path.read_text(), path.parent / _SUMS
    if sums.is_file() and "version" not in notebooks.values(text):
        text += f'version: "{hashlib.sha256(sums.read_bytes()).hexdigest()[:12]}"\n'
    return text


def missing(folder: Path) -> list[str]:
    """Return what a release still lacks in CITATION.cff, and where .zenodo.json differs from it."""
    citation = notebooks.values((folder / _CITATION).read_text())
    deposit = json.loads((folder / ".zenodo.json").read_text())
    people = [author for author in citation["authors"] if "name" not in author]
    lacks = {
        "a person among the authors": not people,
        "a DOI (a deposit can reserve one before it is published)": not citation.get("doi"),
        "repository-code, the address of the repository": not citation.get("repository-code"),
    }
    for one in people:
        one["name"] = f"{one['family-names']}, {one['given-names']}"
        lacks[f"the ORCID of {one['name']}"] = "orcid" not in one
    # Zenodo reads this file first.
    ours = {**citation, "creators": [one["name"] for one in citation["authors"]]}
    theirs = {**deposit, "creators": [one["name"] for one in deposit["creators"]]}
    shared = ("title", "version", "license", "keywords", "doi", "creators")
    different = [name for name in shared if ours.get(name) != theirs.get(name)]
    return [
        *(f"CITATION.cff: {what}" for what, lacking in lacks.items() if lacking),
        *(f".zenodo.json: another {name} than CITATION.cff" for name in different),
    ]
