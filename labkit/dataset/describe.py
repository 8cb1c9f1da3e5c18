"""The description of a dataset: schemas of its tables, provenance, and digests.

From the data, and the authors in the folder's own CITATION.cff, `describe` writes

- ``trials.csv`` in each campaign: `Dataset.trials`, one row an attempt;
- ``datapackage.json``: a Frictionless data package with the schema of every table;
- ``ro-crate-metadata.json``: what was measured with which software, images and rig, and by whom;
- ``SHA256SUMS``: the digest of every other file, as ``sha256sum --check`` reads it.

A column is a factor of the plan, or described in `labkit.units`. The suffix of a statistic
(``_median``) means that statistic of a trial's samples; the name of a placement as a prefix
(``hop01_cpu_ns``) means the column of that placement.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from labkit.citation import Entry, citation, full_name, software
from labkit.dataset import Dataset
from labkit.dataset.files import (
    LOOKS,
    SUMS,
    campaigns_within,
    digest_of,
    files_of,
    progress,
    read_sums,
    write_sums,
)
from labkit.dataset.storage import RAW, SAMPLES, SESSIONS, TRIALS, check_rows
from labkit.errors import DatasetError
from labkit.units import about_column, plural, unit_of_name

PACKAGE, CRATE, CSV = "datapackage.json", "ro-crate-metadata.json", "trials.csv"
README, LICENSE = "README.md", "LICENSE"
#: Names the authors, where whoever measured put it there.
CITATION = "CITATION.cff"
#: Files that are no data: derived from them, or about them.
MADE = (PACKAGE, CRATE, CSV, SUMS, README, CITATION)
LICENCE = {
    "name": "CC-BY-4.0",
    "title": "Creative Commons Attribution 4.0 International",
    "path": "https://creativecommons.org/licenses/by/4.0/",
}
_APACHE = "https://www.apache.org/licenses/LICENSE-2.0"

#: The files of a packed campaign.
PACKED_FILES = {
    "plan.json": "the plan, fixed before: conditions, order, settings, protocol, rig",
    LOOKS: "what was decided at the planned looks, and which conditions were dropped",
    CSV: "one row an attempt at a trial: condition, outcome, metrics, counters",
    TRIALS: "one row an attempt, whole: with verification, evidence and commands, as JSON",
    SAMPLES: "one row a sample, one row group an attempt: what was measured (times in ns)",
    SESSIONS: "the facts of every host, by session",
    RAW: "what the programs printed, and what each run did",
}
#: Columns of trials.parquet that are not columns of trials.csv.
_RECORD = {
    "format": ("", "version of the dataset format"),
    "levels": ("", "the level of each factor (JSON)"),
    "error": ("", "what failed, with its evidence; null where nothing did (JSON)"),
    "metrics": ("", "the measured values, by the name of the metric (JSON)"),
    "also": ("", "further conditions that the trial measured: their levels and metrics (JSON)"),
    "commands": ("", "the commands of the workload and of the tool, as argument lists (JSON)"),
    "mechanisms": ("", "counters of the measured window, by name (JSON)"),
    "verification": (
        "",
        "what was read back from the host of where the workload ran: verification (JSON)",
    ),
    "verifications": ("", "what was read back of each further placement, by its name (JSON)"),
    "steering": ("", "packet steering as it was read back from the hosts (JSON)"),
    "details": ("", "what the protocol noted beside its metrics (JSON)"),
    "window_seconds": ("s", "length of the measured window, with its snapshots"),
    "evidence": ("", "counters of the host before and after the window (JSON)"),
    "held": ("", "what was the same before and after the window, by host (JSON)"),
    "sampled": ("", "the measured columns of samples.parquet, in their order (JSON)"),
}


def factor_field(plan: Mapping[str, Any], name: str, levels: Sequence[Any]) -> dict[str, Any]:
    """Return a factor's description, levels and unit for a schema."""
    planned = plan["factors"].get(name, [])
    words = name.replace("_", " ")
    baseline = plan.get("baseline", {}).get(name)
    text = f"{words}, varied by the plan: {', '.join(map(str, planned))}"
    if len(planned) == 1:
        text = f"{words}, the same in every condition of the plan: {planned[0]}"
    if baseline is not None:
        text += f"; the baseline is {baseline}"
    if further := [str(one) for one in levels if one not in planned]:
        text += f"; measured in the same trials: {', '.join(further)}"
    field = {"description": text, "constraints": {"enum": list(levels)}}
    return field | ({"unit": unit} if (unit := unit_of_name(name)) else {})


def _schema(
    types: Mapping[str, str], factors: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return a Frictionless Table Schema: fields with name, type, description, and unit."""
    fields = []
    for name, kind in types.items():
        unit, text = _RECORD.get(name) or about_column(name)
        field = {"description": text or "see the study's protocol in plan.json"}
        field |= {"unit": unit} if unit else {}
        fields.append({"name": name, "type": kind} | ((factors or {}).get(name) or field))
    return {"fields": fields, "missingValues": [""]}


def _slug(name: str) -> str:
    """Return a name in the characters that a data package allows."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower())


@dataclass(frozen=True)
class Campaign:
    """A campaign in a described folder, and its path from there (empty for the folder itself)."""

    data: Dataset
    home: str

    @property
    def study(self) -> str:
        """The study's name."""
        return str(self.data.plan.get("study") or self.data.path.name)

    @property
    def name(self) -> str:
        """The prefix of its tables' names."""
        return _slug(self.home or self.study)

    @property
    def packed(self) -> bool:
        """Whether it is stored as tables."""
        return (self.data.path / TRIALS).is_file()

    def at(self, name: str) -> str:
        """Return the path of one of its files from the described folder."""
        return f"{self.home}/{name}" if self.home else name

    @cached_property
    def span(self) -> tuple[datetime, datetime] | None:
        """When its first trial began and its last ended (UTC); None without trials."""
        records = self.data.records
        if not records:
            return None
        began = min(record["started_ns"] / 1e9 for record in records)
        ended = max(one["started_ns"] / 1e9 + one["seconds"] for one in records)
        return datetime.fromtimestamp(int(began), UTC), datetime.fromtimestamp(int(ended), UTC)

    def counted(self) -> str:
        """Return its numbers of attempts, blocks, flags and samples as text."""
        records = self.data.records
        failed = sum(one["status"] != "ok" for one in records)
        flagged = sum(bool(one.get("flags")) for one in records)
        blocks = len({one["block"] for one in records})
        samples = sum(int(one["n_samples"]) for one in records)
        return (
            f"{len(records)} attempts at trials in {plural(blocks, 'block')} "
            f"({failed} failed, {flagged} flagged, all kept), {samples:,} samples, "
            f"rig {self.data.rig.get('name', 'unknown')}"
        )

    def measured(self) -> str:
        """Return when it was measured, for how long and on what, as text."""
        if self.span is None:
            return "nothing yet"
        days = list(dict.fromkeys(when.date().isoformat() for when in self.span))
        hours = math.fsum(record["seconds"] for record in self.data.records) / 3600
        sessions = len({record["session"] for record in self.data.records})
        stable = self.data.facts.get("sut", {}).get("stable", {})
        cpu, kernel = stable.get("cpu", {}), stable.get("kernel", {})
        return (
            f"{' to '.join(days)}: {hours:.1f} hours of trials in "
            f"{plural(sessions, 'session')}, {cpu.get('model', 'unknown processor')}, "
            f"{cpu.get('count', '?')} CPUs, Linux {kernel.get('release', 'unknown')}"
        )

    def files(self) -> dict[str, str]:
        """Return the description of each of its existing files and folders."""
        known = PACKED_FILES | {
            "sessions/": "the facts of every host, one file a session",
            "trials/": "a directory an attempt: record, samples and what the programs printed",
        }
        return {name: text for name, text in known.items() if (self.data.path / name).exists()}


@dataclass(frozen=True)
class Description:
    """What is cited of a described folder; `fingerprint` is the digest of SHA256SUMS."""

    title: str
    day: str
    campaigns: tuple[str, ...]
    fingerprint: str
    authors: tuple[Mapping[str, str], ...] = ()

    def entry(self) -> Entry:
        """Return the entry to cite, whose version is the fingerprint."""
        return Entry(
            f"labkit-data-{self.fingerprint[:8]}",
            "dataset",
            self.title,
            self.authors,
            self.day[:4],
            version=self.fingerprint[:12],
            note=f"Licence: {LICENCE['name']}",
        )


def read_description(folder: Path) -> Description:
    """Return the description of a folder."""
    try:
        package = json.loads((folder / PACKAGE).read_text())
        title, day = str(package["title"]), str(package["created"])[:10]
        lines = tuple(str(package["description"]).splitlines())
        return Description(title, day, lines, digest_of(folder / SUMS), authors_of(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            "a dataset without a description, or with a damaged one",
            where=str(folder),
            why=str(error),
            remedy=f"labkit dataset describe {folder}",
        ) from None


def authors_of(folder: Path) -> tuple[Mapping[str, str], ...]:
    """Return the authors that a folder's own CITATION.cff names; none without it."""
    path = folder / CITATION
    if not path.is_file():
        return ()
    authors = citation(path).get("authors")
    if not isinstance(authors, list) or not all(
        isinstance(one, dict) and one.keys() & {"name", "family-names"} for one in authors
    ):
        raise DatasetError(
            "this CITATION.cff names no authors",
            where=str(path),
            remedy="authors: a list of persons (given-names, family-names) and entities (name)",
        )
    return tuple(authors)


def campaigns_of(folder: Path) -> list[Campaign]:
    """Return the campaigns in a folder; raise `DatasetError` where there is none."""
    return [
        Campaign(Dataset(path), "" if path == folder else path.relative_to(folder).as_posix())
        for path in campaigns_within(folder)
    ]


def describe(folder: Path) -> Description:
    """Write and return the description of a folder with campaigns.

    Raises
    ------
    DatasetError
        There is no trial, or data that were described before are missing or altered.
    """
    import frictionless

    refuse_changed(folder)
    campaigns = campaigns_of(folder)
    ends = [one.span[1] for one in campaigns if one.span]
    if not ends:
        raise DatasetError("nothing was measured here yet", where=str(folder))
    created = max(ends)
    studies = ", ".join(dict.fromkeys(one.study.replace("-", " ") for one in campaigns))
    title = f"Container performance measured with labkit: {studies}"
    people = [{"title": full_name(author), "roles": ["author"]} for author in authors_of(folder)]
    package = {
        "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
        "name": f"labkit-{_slug(folder.resolve().name)}",
        "title": title,
        "description": "\n".join(f"{one.home or one.study}: {one.counted()}" for one in campaigns),
        "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "licenses": [LICENCE],
        **({"contributors": people} if people else {}),
        "resources": [one for campaign in campaigns for one in _resources(folder, campaign)],
    }
    frictionless.Package.from_descriptor(package)  # raises where the descriptor is not valid
    _write(folder / PACKAGE, package)
    _write(folder / CRATE, _crate(folder, campaigns, title, created))
    names = {name for one in campaigns for name in files_of(folder, one.data.path)}
    own = (PACKAGE, CRATE, README, LICENSE, CITATION)
    names |= {name for name in own if (folder / name).is_file()}
    names -= {SUMS}
    sums = {name: digest_of(folder / name) for name in progress(sorted(names), "digests")}
    write_sums(folder / SUMS, sums)
    return read_description(folder)


def refuse_changed(folder: Path) -> None:
    """Raise `DatasetError` where data of an earlier description are not what they were."""
    if not (folder / SUMS).is_file():
        return
    sums = read_sums(folder / SUMS)
    data = {name: digest for name, digest in sums.items() if name.rpartition("/")[2] not in MADE}
    changed = [
        name
        for name in progress(list(data), "checking the data described before")
        if not (folder / name).is_file() or digest_of(folder / name) != data[name]
    ]
    if changed:
        raise DatasetError(
            f"{plural(len(changed), 'file')} missing or altered since this was described",
            where=", ".join(str(folder / name) for name in changed[:5]),
            why="a new description would hide it",
            remedy=f"labkit dataset verify {folder} lists them; if the change is intended, "
            f"remove {SUMS}",
        )


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


# -- the data package


def _resources(folder: Path, campaign: Campaign) -> list[dict[str, Any]]:
    """Write a campaign's trials.csv, and return the resource of each of its tables."""
    frame, plan = campaign.data.trials, campaign.data.plan
    infinite = {math.inf: "INF", -math.inf: "-INF"}  # as the Table Schema writes them
    csv = folder / campaign.at(CSV)
    csv.write_text(frame.replace(infinite).to_csv(index=False, lineterminator="\n"))
    type_of = {"i": "integer", "u": "integer", "f": "number", "b": "boolean"}
    types = {str(name): type_of.get(frame[name].dtype.kind, "string") for name in frame}
    factors = {
        name: factor_field(plan, name, list(dict.fromkeys([*levels, *frame[name]])))
        for name, levels in plan["factors"].items()
        if name in frame
    }
    schema = _schema(types, factors)
    schema |= {"primaryKey": ["trial", "attempt"]} if "trial" in frame else {}
    table = {
        "name": f"{campaign.name}-trials",
        "title": f"{campaign.study}: one row an attempt at a trial",
        "type": "table",
        "path": campaign.at(CSV),
        "format": "csv",
        "mediatype": "text/csv",
        "encoding": "utf-8",
        "bytes": csv.stat().st_size,
        "hash": f"sha256:{digest_of(csv)}",
        "schema": schema,
    }
    return [table, *(_packed(campaign) if campaign.packed else _samples(folder, campaign))]


def _parquet(
    campaign: Campaign, name: str, title: str, path: str | list[str], types: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "name": f"{campaign.name}-{name}",
        "title": f"{campaign.study}: {title}",
        "type": "table",
        "path": path,
        "format": "parquet",
        "mediatype": "application/vnd.apache.parquet",
        "schema": _schema(types),
    }


def _packed(campaign: Campaign) -> list[dict[str, Any]]:
    """Return the resources of a packed campaign: its tables and the archive of raw output."""
    files = campaign.files()
    resources = [
        _parquet(campaign, name, files[file], campaign.at(file), table_types(path))
        for file, name in ((TRIALS, "records"), (SAMPLES, "samples"))
        if (path := campaign.data.path / file).is_file()
    ]
    if RAW in files:
        raw = {"name": f"{campaign.name}-raw", "title": f"{campaign.study}: {files[RAW]}"}
        raw |= {"path": campaign.at(RAW), "format": "tar.xz", "mediatype": "application/x-xz"}
        resources.append(raw)
    return resources


def _samples(folder: Path, campaign: Campaign) -> list[dict[str, Any]]:
    """Return a resource for each set of columns, with the samples of the trials that have it."""
    tables: dict[tuple[tuple[str, str], ...], list[str]] = {}
    data = campaign.data
    for record, part in zip(*data.with_samples(), strict=True):
        check_rows(part, record)
        path = Path(part.where).relative_to(folder).as_posix()
        tables.setdefault(tuple(kinds_of(part.types).items()), []).append(path)
    return [
        _parquet(
            campaign,
            "-".join(["samples", *(name for name, _ in columns)]),
            "one row a sample, one file a trial; the path has trial and attempt",
            paths,
            dict(columns),
        )
        for columns, paths in tables.items()
    ]


def kinds_of(types: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of each column as the Table Schema names it."""
    return {name: _kind(kind) for name, kind in types.items()}


def _kind(kind: Any) -> str:
    if pa.types.is_integer(kind):
        return "integer"
    return "number" if pa.types.is_floating(kind) else "string"  # JSON is text, too


def table_types(path: Path) -> dict[str, str]:
    """Return the type of each column of a Parquet file as the Table Schema names it."""
    try:
        schema = parquet.read_schema(path)
    except (OSError, ValueError, NotImplementedError) as error:  # the bases of pyarrow's errors
        raise DatasetError("a table is damaged", where=str(path), why=str(error)) from None
    return kinds_of({field.name: field.type for field in schema})


# -- provenance


def _crate(
    folder: Path, campaigns: Sequence[Campaign], title: str, created: datetime
) -> dict[str, Any]:
    """Return the metadata of an RO-Crate: campaigns, the runs that measured them, their inputs.

    The day of the last trial serves as that of publication, which is not known here.
    """
    from rocrate.rocrate import ROCrate

    crate = ROCrate(version="1.3")
    people = [_add_person(crate, author) for author in authors_of(folder)]
    root = crate.root_dataset
    root["name"] = title
    if people:
        root["author"] = _list(people)
    root["description"] = "; ".join(f"{one.study}: {one.counted()}" for one in campaigns)
    root["datePublished"] = created.strftime("%Y-%m-%d")
    root["keywords"] = ", ".join(citation()["keywords"])
    root["license"] = _add_licence(crate, LICENCE["path"], LICENCE["name"], LICENCE["title"])
    for name, text, kind in (
        (PACKAGE, "schemas of every table", "application/json"),
        (SUMS, "the digest of every other file, for sha256sum --check", "text/plain"),
        (README, "what is here, and how to read it", "text/markdown"),
        (LICENSE, "the text of the licence", "text/plain"),
        (CITATION, "who measured this", "text/yaml"),
    ):
        if name in (PACKAGE, SUMS) or (folder / name).is_file():
            properties = {"name": name, "description": text, "encodingFormat": kind}
            crate.add_file(dest_path=name, properties=properties)
    runs = [_add_campaign(crate, one, people) for one in campaigns]
    root["mentions"] = [run for run in runs if run is not None]
    return dict(crate.metadata.generate())


def _add(crate: Any, entity: str, kind: str, **properties: Any) -> Any:
    """Return an entity that is no file; add it if it is new."""
    from rocrate.model.contextentity import ContextEntity

    new = {"@type": kind, **properties}
    return crate.get(entity) or crate.add(ContextEntity(crate, entity, new))


def _list(entities: list[Any]) -> Any:
    """Return a list, or its only entity, as RO-Crate 1.3 requires."""
    return entities[0] if len(entities) == 1 else entities


def _add_licence(crate: Any, address: str, name: str, title: str) -> Any:
    text = {"name": title, "identifier": name, "description": title}
    return _add(crate, address, "CreativeWork", **text)


def _add_person(crate: Any, author: Mapping[str, str]) -> Any:
    name, kind = full_name(author), "Organization" if "name" in author else "Person"
    return _add(crate, author.get("orcid") or f"#{name.replace(' ', '-')}", kind, name=name)


def _add_campaign(crate: Any, campaign: Campaign, people: list[Any]) -> Any:
    """Add a campaign's files and run; return the run, or None without trials."""
    parts = []
    for name, text in campaign.files().items():
        path = campaign.at(name)
        properties = {"name": path, "description": f"{campaign.study}: {text}"}
        add = crate.add_directory if name.endswith("/") else crate.add_file
        if suffix := Path(name).suffix:
            properties["encodingFormat"] = _MEDIA[suffix]
        parts.append(add(dest_path=path, properties=properties))
    result: Any = parts
    if campaign.home:
        about = {
            "name": f"{campaign.home}/",
            "description": f"{campaign.study}: {campaign.counted()}",
        }
        result = crate.add_directory(dest_path=f"{campaign.home}/", properties=about)
        result["hasPart"] = parts
    program = _add_program(crate, campaign)
    used = [_add_rig(crate, campaign), *_add_images(crate, campaign)]
    if campaign.span is None:
        return None
    began, ended = (time.strftime("%Y-%m-%dT%H:%M:%SZ") for time in campaign.span)
    return _add(
        crate,
        f"#run-of-{campaign.name}",
        "CreateAction",
        name=f"labkit run {campaign.study}",
        description="Trials in the seeded order of the plan; the rig and images are inputs.",
        startTime=began,
        endTime=ended,
        instrument=program,
        object=_list(used),
        result=result,
        **({"agent": _list(people)} if people else {}),
    )


_MEDIA = {
    ".json": "application/json",
    ".csv": "text/csv",
    ".parquet": "application/vnd.apache.parquet",
    ".xz": "application/x-xz",
}


def _add_program(crate: Any, campaign: Campaign) -> Any:
    """Add the version of labkit that measured a campaign."""
    plan = campaign.data.plan
    version = str(plan.get("labkit", "unknown"))
    measurement = str(plan["identity"].get("measurement_version", "not recorded"))
    return _add(
        crate,
        f"#labkit-{version}-{measurement.replace(' ', '-')}",
        "CreativeWork",  # RO-Crate requires an address of a SoftwareApplication
        additionalType="https://schema.org/SoftwareApplication",
        name=software().title,
        version=version,
        identifier=f"measurement version {measurement}",
        description=" ".join(str(citation()["abstract"]).split()),
        license=_add_licence(crate, _APACHE, "Apache-2.0", "Apache License 2.0"),
    )


def _add_images(crate: Any, campaign: Campaign) -> list[Any]:
    images = campaign.data.plan["identity"].get("images") or {}
    return [
        _add(
            crate,
            f"#image-{name}-{str(digest).rpartition(':')[2][:12]}",
            "CreativeWork",
            name=f"container image {name}",
            identifier=str(digest),
        )
        for name, digest in images.items()
    ]


def _add_rig(crate: Any, campaign: Campaign) -> Any:
    """Add the rig: its kind, its caveats, and the machine, kernel and engine of each host."""
    rig, hosts = campaign.data.rig, campaign.data.plan["identity"].get("hosts") or {}
    cpus = ", ".join(f"{name} {value}" for name, value in rig.get("cpu_map", {}).items())
    facts = [f"kind: {rig.get('kind', 'unknown')}", f"CPU map: {cpus}"]
    facts += [f"host {role}: {_machine(stable)}" for role, stable in hosts.items()]
    return _add(
        crate,
        f"#rig-of-{campaign.name}",
        "IndividualProduct",
        name=f"rig {rig.get('name', 'unknown')}",
        description="; ".join(facts),
        disambiguatingDescription="; ".join(map(str, rig.get("caveats", []))) or "no caveat",
    )


def _machine(facts: Mapping[str, Any]) -> str:
    cpu, kernel = facts.get("cpu") or {}, facts.get("kernel") or {}
    engine = facts.get("engine") or {}
    parts = [
        f"{cpu.get('count', '?')} CPUs {cpu.get('model', '')}",
        f"kernel {kernel.get('release', '?')}",
        str(facts.get("distribution") or ""),
        f"engine {engine['version']}" if engine.get("version") else "",
    ]
    return ", ".join(filter(None, parts))
