"""Provenance as an RO-Crate: campaigns, the runs that made them, software, images, rig, people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from labkit.citation import citation, software
from labkit.dataset.files import SUMS

if TYPE_CHECKING:
    from labkit.dataset.describing import Campaign

_VERSION = "https://w3id.org/ro/crate/1.3"
Entity = dict[str, Any]


def crate(
    campaigns: Sequence[Campaign], title: str, created: datetime, licence: Mapping[str, str]
) -> dict[str, Any]:
    """Return the metadata of an RO-Crate 1.3.

    Parameters
    ----------
    campaigns : sequence of Campaign
        What it holds.
    title : str
        Its name.
    created : datetime
        When the last trial ended; it stands for the day of publication, which is not known here.
    licence : mapping
        ``name``, ``title`` and ``path`` (an address) of the data's licence.
    """
    people = [_person(one) for one in citation()["authors"]]
    graph = [
        _descriptor(),
        {
            "@id": "./",
            "@type": "Dataset",
            "name": title,
            "description": "; ".join(f"{one.study}: {one.counted()}" for one in campaigns),
            "datePublished": created.strftime("%Y-%m-%d"),
            "license": _to(licence["path"]),
            "author": _all(people),
            "keywords": ", ".join(citation()["keywords"]),
            "hasPart": [_to(name) for name in ("datapackage.json", SUMS)]
            + [_to(_home(one)) for one in campaigns if one.home]
            + [part for one in campaigns if not one.home for part in _parts(one)],
            "mentions": [_to(_run_of(one)) for one in campaigns if one.span],
        },
        _licence(licence["path"], licence["name"], licence["title"]),
        _licence(_APACHE, "Apache-2.0", "Apache License 2.0"),
        _file("datapackage.json", "schemas of every table", "application/json"),
        _file(SUMS, "the digest of every other file, for sha256sum --check", "text/plain"),
        *people,
    ]
    for one in campaigns:
        graph += _campaign(one, people)
    unique = {entity["@id"]: entity for entity in graph}
    return {"@context": f"{_VERSION}/context", "@graph": list(unique.values())}


_APACHE = "https://www.apache.org/licenses/LICENSE-2.0"


def _to(name: str) -> Entity:
    return {"@id": name}


def _all(entities: Sequence[Entity]) -> list[Entity] | Entity:
    """Return references; one alone is not a list, as RO-Crate 1.3 wants it."""
    found = [_to(one["@id"]) for one in entities]
    return found[0] if len(found) == 1 else found


def _descriptor() -> Entity:
    return {
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "about": _to("./"),
        "conformsTo": _to(_VERSION),
    }


def _licence(address: str, name: str, title: str) -> Entity:
    kind = "CreativeWork"
    return {"@id": address, "@type": kind, "name": title, "identifier": name, "description": title}


def _file(name: str, text: str, kind: str) -> Entity:
    about = {"name": name, "description": text, "encodingFormat": kind}
    return {"@id": name, "@type": "File", **about}


def _person(one: Mapping[str, str]) -> Entity:
    if "name" in one:
        name, kind = one["name"], "Organization"
    else:
        name, kind = f"{one.get('given-names', '')} {one['family-names']}".strip(), "Person"
    return {"@id": one.get("orcid") or f"#{name.replace(' ', '-')}", "@type": kind, "name": name}


def _home(one: Campaign) -> str:
    return f"{one.home}/" if one.home else "./"


def _run_of(one: Campaign) -> str:
    return f"#run-of-{one.name}"


def _parts(one: Campaign) -> list[Entity]:
    return [_to(one.at(name)) for name in ("plan.json", "trials.csv", "sessions/", "trials/")]


def _campaign(one: Campaign, people: Sequence[Entity]) -> list[Entity]:
    """Return the entities of a campaign: its data, the run that made them, and what it used."""
    program, images, rig = _program(one), _images(one), _rig(one)
    entities = [
        _file(one.at("plan.json"), f"{one.study}: the plan, fixed before", "application/json"),
        _file(one.at("trials.csv"), f"{one.study}: one row an attempt", "text/csv"),
        _folder(one.at("sessions/"), "the facts of every host, one file a boot of the rig"),
        _folder(
            one.at("trials/"),
            "a directory an attempt: trial.json, samples.parquet and what the programs printed",
        ),
        program,
        *images,
        rig,
    ]
    if one.home:
        home = _folder(_home(one), f"{one.study}: {one.counted()}")
        entities.append(home | {"hasPart": _parts(one)})
    if one.span:
        began, ended = (time.strftime("%Y-%m-%dT%H:%M:%SZ") for time in one.span)
        run = {
            "@id": _run_of(one),
            "@type": "CreateAction",
            "name": f"labkit run {one.study}",
            "description": "Trials in the seeded order of the plan; the rig and images are inputs.",
            "startTime": began,
            "endTime": ended,
            "agent": _all(people),
            "instrument": _to(program["@id"]),
            "object": _all([rig, *images]),
            "result": _to(_home(one)) if one.home else _parts(one),
        }
        entities.append(run)
    return entities


def _folder(name: str, text: str) -> Entity:
    return {"@id": name, "@type": "Dataset", "name": name, "description": text}


def _program(one: Campaign) -> Entity:
    """Return labkit as it measured this campaign, which need not be the one that describes it."""
    identity = one.data.plan["identity"]
    version = str(identity.get("labkit", "unknown"))
    measurement = str(identity.get("measurement_version", "not recorded"))
    return {
        "@id": f"#labkit-{version}-{measurement.replace(' ', '-')}",
        "@type": "CreativeWork",  # an application of RO-Crate has an address, which is not known
        "additionalType": "https://schema.org/SoftwareApplication",
        "name": software().title,
        "version": version,
        "identifier": f"measurement version {measurement}",
        "description": " ".join(str(citation()["abstract"]).split()),
        "license": _to(_APACHE),
    }


def _images(one: Campaign) -> list[Entity]:
    images = one.data.plan["identity"].get("images") or {}
    return [
        {
            "@id": f"#image-{name}-{str(digest).rpartition(':')[2][:12]}",
            "@type": "CreativeWork",
            "name": f"container image {name}",
            "identifier": str(digest),
        }
        for name, digest in images.items()
    ]


def _rig(one: Campaign) -> Entity:
    """Return the rig: its kind, what limits it, and each host's machine, kernel and engine."""
    rig, hosts = one.data.rig, one.data.plan["identity"].get("hosts") or {}
    said = {"kind": rig.get("kind", "unknown"), "CPU map": rig.get("cpu_map", {})}
    said |= {f"host {role}": _machine(facts) for role, facts in hosts.items()}
    return {
        "@id": f"#rig-of-{one.name}",
        "@type": "IndividualProduct",
        "name": f"rig {rig.get('name', 'unknown')}",
        "description": "; ".join([_words(name, value) for name, value in said.items()]),
        "disambiguatingDescription": "; ".join(map(str, rig.get("caveats", []))) or "no caveat",
    }


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


def _words(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{key} {one}" for key, one in value.items())
    return f"{name}: {value}"
