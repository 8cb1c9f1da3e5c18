"""Datasets to publish: campaigns packed into a few files, described, verified and cited."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import yaml
from pyarrow.dataset import dataset

from labkit.data import ORDER, Campaign, campaigns
from labkit.errors import DatasetError
from labkit.paths import SHIPPED
from labkit.units import column

_SCHEMA, _SUMS = "schema.json", "SHA256SUMS"
_LICENCE = "https://creativecommons.org/licenses/by/4.0/"
_README = """# {title}

{table}

Failed and flagged trials are kept. Each folder has plan.json (conditions, order, settings, rig),
sessions.json (facts of the hosts), trials.parquet (a row an attempt: condition, outcome, metrics,
counters), samples.parquet (a row a sample, in ns) and raw.tar.xz (records of the attempts, output
of the programs, logs). schema.json has every column with its unit, datapackage.json the tables
(Frictionless), ro-crate-metadata.json the provenance. Read it with `labkit.results("FOLDER")` or
pandas, check it with `sha256sum --check SHA256SUMS`. Licence: CC-BY-4.0, {licence}

{notes}"""


def pack(folder: Path, output: Path) -> None:
    """Pack each campaign of a folder into a few files of a new one, and describe that.

    The same data and library versions give the same bytes. CITATION.cff and notes.md go along.
    """
    output.mkdir(parents=True)
    for campaign in campaigns(folder):
        home = output / campaign.path.relative_to(folder)
        if (campaign.path / "trials.parquet").is_file():
            shutil.copytree(campaign.path, home, dirs_exist_ok=True)
        else:
            _pack(campaign, home)
    for path in (folder / "CITATION.cff", folder / "notes.md"):
        if path.is_file():
            shutil.copyfile(path, output / path.name)
    describe(output)


def _pack(campaign: Campaign, home: Path) -> None:
    """Write the trials, samples and raw output of a campaign that was measured here."""
    source = campaign.path
    home.mkdir(parents=True, exist_ok=True)
    for name in ("plan.json", "sessions.json"):
        shutil.copyfile(source / name, home / name)
    rows = campaign.rows.sort_values(ORDER)
    rows.to_parquet(home / "trials.parquet", compression="zstd", index=False)
    if files := sorted(source.glob("samples.parquet/*.parquet")):
        schema = pa.unify_schemas([parquet.read_schema(path).remove_metadata() for path in files])
        with parquet.ParquetWriter(home / "samples.parquet", schema, compression="zstd") as writer:
            for batch in dataset(files, schema).to_batches():
                writer.write_batch(batch)
    with tarfile.open(home / "raw.tar.xz", "w:xz") as archive:
        archive.add(source / "trials", "trials", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member of an archive without owner, time and permissions."""
    mode = 0o755 if member.isdir() else 0o644
    return member.replace(uid=0, gid=0, uname="", gname="", mtime=0, mode=mode, deep=False)


def describe(folder: Path) -> pd.DataFrame:
    """Write the description of a folder of packed campaigns, and return a row a campaign.

    All of it follows from the data, and from CITATION.cff (authors) and notes.md of the folder.
    """
    found = [one for one in campaigns(folder) if (one.path / "trials.parquet").is_file()]
    if not found:
        what, remedy = "no packed campaign here", "labkit dataset pack FOLDER -o OUTPUT"
        raise DatasetError(what, where=str(folder), remedy=remedy)
    table = pd.DataFrame([about(campaign) for campaign in found])
    homes = [campaign.path.relative_to(folder).as_posix() for campaign in found]
    table.insert(0, "folder", homes)
    days = sorted(table["measured"].str.split(" to ").explode())
    machine = ("engine", "cgroup", "kernel", "processors")
    parts = [", ".join(dict.fromkeys(table[one])) for one in machine]
    title = "; ".join([f"Costs of containers, {days[0]} to {days[-1]}", *parts])
    paths = {
        path.relative_to(folder).as_posix(): parquet.ParquetFile(path)
        for campaign in found
        for path in sorted(campaign.path.glob("*.parquet"))
    }
    fields = {one.name: _field(one) for file in paths.values() for one in file.schema_arrow}
    _write(folder / _SCHEMA, {"fieldsMatch": "superset", "fields": list(fields.values())})
    resources = [
        {"name": name.replace("/", "-"), "path": name, "format": "parquet", "schema": _SCHEMA}
        for name in paths
    ]
    package = {"name": "labkit-data", "title": title, "licenses": [{"path": _LICENCE}]}
    _write(folder / "datapackage.json", {**package, "resources": resources})
    _write(folder / "ro-crate-metadata.json", _crate(folder, table, title))
    rows = [[*table], ["---"] * len(table.columns), *table.to_numpy()]
    lines = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
    notes = (folder / "notes.md").read_text() if (folder / "notes.md").is_file() else ""
    text = _README.format(title=title, table=lines, licence=_LICENCE, notes=notes)
    (folder / "README.md").write_text(text)
    shutil.copyfile(SHIPPED / "data" / "LICENSE", folder / "LICENSE")
    sums = "".join(f"{digest}  {name}\n" for name, digest in _digests(folder).items())
    (folder / _SUMS).write_text(sums)
    return table


def about(campaign: Campaign) -> dict[str, Any]:
    """Return the machine of a campaign, its dates and its size."""
    names = ["engine.version", "cgroup.version", "kernel.release", "cpu.count", "cpu.model"]
    facts = pd.json_normalize([one["facts"]["sut"]["stable"] for one in campaign.sessions])
    facts = facts.reindex(columns=names).fillna("unknown")
    cpus = facts["cpu.count"].astype(str) + " CPUs " + facts["cpu.model"]
    attempts = campaign.trials.drop_duplicates(["block", "position", "attempt"])
    days = pd.to_datetime(attempts["started_ns"], unit="ns").dt.strftime("%Y-%m-%d")
    return {
        "measured": " to ".join(dict.fromkeys([days.min(), days.max()])),
        "engine": " and ".join("Docker " + facts["engine.version"].unique()),
        "cgroup": " and ".join("cgroup " + facts["cgroup.version"].unique()),
        "kernel": " and ".join("Linux " + facts["kernel.release"].unique()),
        "processors": " and ".join(cpus.unique()),
        "labkit": campaign.plan.get("labkit", ""),
        "hours": round(attempts["seconds"].sum() / 3600, 1),
        "blocks": attempts["block"].nunique(),
        "trials": len(attempts),
        "failed": (attempts["status"] != "ok").sum(),
        "flagged": (attempts["flags"] != "").sum(),
        "samples": attempts["n_samples"].sum(),
    }


def _field(one: Any) -> dict[str, str]:
    """Return a column of a table as a field of its schema."""
    kind = "boolean" if pa.types.is_boolean(one.type) else "number"
    kind = kind if pa.types.is_primitive(one.type) else "string"
    known = column(one.name)
    return {"name": one.name, "type": kind, "description": known.text, "unit": known.unit}


def _crate(folder: Path, table: pd.DataFrame, title: str) -> dict[str, Any]:
    """Return the provenance: who measured which data with which program, and when."""
    from rocrate.model import Person, SoftwareApplication
    from rocrate.rocrate import ROCrate

    crate = ROCrate()
    crate.name, crate.description, crate.license = title, title, _LICENCE
    crate.datePublished = table["measured"].str[-10:].max()
    path = folder / "CITATION.cff"
    authors = yaml.safe_load(path.read_text())["authors"] if path.is_file() else []
    for name in map(_name, authors):
        person = Person(crate, f"#{name.replace(' ', '-')}", {"name": name})
        crate.root_dataset.append_to("author", crate.add(person))
    for row in table.astype(str).to_dict("records"):
        text = ", ".join(f"{name}: {value}" for name, value in row.items())
        data = crate.add_dataset(dest_path=f"{row['folder']}/", properties={"description": text})
        version = {"name": "labkit", "version": row["labkit"]}
        program = crate.add(SoftwareApplication(crate, f"#labkit-{row['labkit']}", version))
        crate.add_action(program, f"#measuring-{row['folder']}", result=data)
    return dict(crate.metadata.generate())


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=0, ensure_ascii=False) + "\n")


def _digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file of a dataset, but for the list of digests."""
    digests = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _SUMS):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        digests[path.relative_to(folder).as_posix()] = digest
    return digests


def verify(folder: Path) -> list[str]:
    """Return the problems of a described folder, a line each: files, then contents of tables."""
    lines = (folder / _SUMS).read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    found = _digests(folder)
    problems = [f"{name}: missing" for name in sorted(listed.keys() - found.keys())]
    problems += [f"{name}: not listed" for name in sorted(found.keys() - listed.keys())]
    both = sorted(found.keys() & listed.keys())
    problems += [f"{name}: altered" for name in both if found[name] != listed[name]]
    return problems or [problem for one in campaigns(folder) for problem in _contents(one, folder)]


def _contents(campaign: Campaign, folder: Path) -> list[str]:
    """Return the problems of the tables and the archive of a campaign with unaltered files."""
    from frictionless import Resource, Schema

    home, problems, rows = campaign.path, [], {"samples.parquet": 0}
    fields = {one["name"]: one for one in json.loads((folder / _SCHEMA).read_text())["fields"]}
    for path in sorted(home.glob("*.parquet")):
        table = parquet.ParquetFile(path)
        rows[path.name] = table.metadata.num_rows
        first = next(table.iter_batches(2_000)).to_pydict()
        known = {"fields": [fields[name] for name in first if name in fields]}
        data = [list(first), *map(list, zip(*first.values(), strict=True))]
        report = Resource(data=data, schema=Schema.from_descriptor(known)).validate()
        problems += [f"{path}: {message}" for (message,) in report.flatten(["message"])]
    attempts = campaign.trials.drop_duplicates(["block", "position", "attempt"])
    with tarfile.open(home / "raw.tar.xz") as archive:
        files = [tarfile.data_filter(member, str(home)).name for member in archive]
    if (samples := attempts["n_samples"].sum()) != rows["samples.parquet"]:
        problems.append(f"{home}: {rows['samples.parquet']} samples, its trials have {samples}")
    if (records := sum(name.endswith("/trial.json") for name in files)) != len(attempts):
        problems.append(f"{home}: {records} records of {len(attempts)} attempts")
    return problems


def _name(author: dict[str, str]) -> str:
    """Return the name of a person or entity in CITATION.cff."""
    return author.get("name") or f"{author['family-names']}, {author['given-names']}"


def cite(path: Path = SHIPPED / "CITATION.cff") -> str:
    """Return citations of a CITATION.cff and its references, as text and then in BibTeX.

    The version of a described dataset is the beginning of the digest of SHA256SUMS.
    """
    citation = yaml.safe_load(path.read_text())
    if (sums := path.parent / _SUMS).is_file():
        citation["version"] = hashlib.sha256(sums.read_bytes()).hexdigest()[:12]
    texts, entries = [], []
    for one in [citation, *citation.get("references", [])]:
        names = [_name(author) for author in one["authors"]]
        year = str(one.get("year") or one.get("date-released") or "n.d.")[:4]
        version, school = one.get("version", ""), one.get("institution", {}).get("name", "")
        notes = one.get("notes", "")
        key = re.search(r"Cited in this project as (\w+)", notes)
        rest = ", ".join(filter(None, [one["title"], version and f"version {version}", school]))
        texts.append(f"{'; '.join(names)} ({year}). {rest}.")
        fields = {"author": " and ".join(name if "," in name else f"{{{name}}}" for name in names)}
        fields |= {"title": f"{{{one['title']}}}", "year": year, "school": school}
        fields |= {"version": version, "note": notes}
        body = ",\n".join(f"  {name} = {{{text}}}" for name, text in fields.items() if text)
        kind = "mastersthesis" if one["type"] == "thesis" else "misc"
        entries.append(f"@{kind}{{{key[1] if key else one['title'].split()[-1]},\n{body}\n}}")
    return "\n\n".join([*texts, *entries])
