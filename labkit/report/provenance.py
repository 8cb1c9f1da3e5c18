"""Where a page's numbers come from: the dataset, its plan and rig, and how to measure it again."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from typing import Any

import yaml
from markupsafe import Markup

from labkit.dataset import Dataset
from labkit.design import digest
from labkit.notebooks import parameters_source
from labkit.paths import project
from labkit.report.html import render_part
from labkit.units import plural

#: Of profiles that fit equally well, the first is named.
_PROFILES = ("quick", "decide", "paper", "tiny")


def provenance(campaign: Dataset) -> dict[str, str]:
    """Return the provenance of a campaign, a line of text by its label."""
    plan, rig, path, home = campaign.plan, campaign.rig, campaign.path, project()
    dataset = path.relative_to(home).as_posix() if path.is_relative_to(home) else path.name
    identity = plan.get("identity") or {}
    version = f"labkit {plan.get('labkit', 'of an unknown version')}"
    if "measurement_version" in identity:
        version += f", measurement version {identity['measurement_version']}"
    conditions = plural(len(plan.get("conditions", [])), "condition")
    design = f"{plan.get('blocks')} blocks of {conditions}"
    return {
        "Dataset": dataset,
        "Fingerprint": fingerprint(campaign),
        "Plan": f"{plan['study']}, {design}, seed {plan.get('seed')}, identity {digest(identity)}",
        "Rig": f"{rig.get('name', 'unnamed')} ({rig.get('kind', 'of an unknown kind')})",
        "Measured with": version,
        "Measured again by": measure_command(plan),
    }


def provenance_html(lines: Mapping[str, str], *, anchor: str = "") -> Markup:
    """Return provenance as HTML, for a page and for a notebook's output."""
    return Markup(render_part("provenance.html.j2", lines=lines, anchor=anchor))


def fingerprint(campaign: Dataset) -> str:
    """Return a digest of the plan and all records, the same wherever the campaign is stored."""
    records = [
        {name: value for name, value in record.items() if name != "directory"}
        for record in campaign.records
    ]
    text = json.dumps([campaign.plan, records], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measure_command(plan: Mapping[str, Any]) -> str:
    """Return the command that runs the plan's study with its seed, blocks and settings.

    It names the closest profile, and the plan's other values as parameters. It is empty where the
    project has no notebook of the study.
    """
    study = str(plan["study"])
    notebooks = sorted(project("notebooks/studies").glob(f"[0-9]*-{study}.ipynb"))
    if not notebooks:
        return ""
    declared: dict[str, Any] = {}
    exec(parameters_source(notebooks[0]), {}, declared)  # assignments of the project's own
    planned = {**plan.get("settings", {}), "blocks": plan.get("blocks"), "seed": plan.get("seed")}
    looks = list(plan.get("looks") or [])
    planned |= {"decide": {"looks": looks}} if len(looks) > 1 else {}
    planned = {name: planned[name] for name in declared if planned.get(name) is not None}
    profiles = {name: declared | _profile(notebooks[0].stem, name) for name in _PROFILES}
    # Of two profiles the one with looks also has the conditions, which a plan does not keep as
    # parameters.
    looking = {name: values for name, values in profiles.items() if values.get("decide")}
    different = {
        profile: {name: value for name, value in planned.items() if values.get(name) != value}
        for profile, values in (looking if "decide" in planned and looking else profiles).items()
    }
    best = min(different, key=lambda profile: len(different[profile]))
    parts = ["labkit", "run", study, "--profile", best]
    # The seed draws the order of the trials, so it is always named.
    for name, value in {"seed": planned.get("seed"), **different[best]}.items():
        if value is not None:
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
            parts += ["-p", name, text.removesuffix("...").strip()]
    return shlex.join(parts)


def _profile(stem: str, name: str) -> dict[str, Any]:
    path = project("notebooks/profiles") / f"{stem}.{name}.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}
