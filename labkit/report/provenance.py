"""Where a page's numbers come from: the dataset, its plan and rig, and how to measure it again."""

from __future__ import annotations

import ast
import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from labkit.dataset import Dataset
from labkit.design import digest
from labkit.paths import ROOT, project
from labkit.report.execution import parameter_statements
from labkit.report.html import environment

#: In the order in which they are tried: the first that fits best is named.
_PROFILES = ("quick", "paper", "tiny")


def provenance(campaign: Dataset) -> dict[str, str]:
    """Return what a page says of where its numbers come from, by the label of each line."""
    plan, rig, path = campaign.plan, campaign.rig, campaign.path
    place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    identity = plan.get("identity") or {}
    version = f"labkit {identity.get('labkit', 'of an unknown version')}"
    if "measurement_version" in identity:
        version += f", measurement version {identity['measurement_version']}"
    design = f"{plan.get('blocks')} blocks of {len(plan.get('conditions', []))} conditions"
    return {
        "Dataset": place,
        "Fingerprint": fingerprint(campaign),
        "Plan": f"{plan['study']}, {design}, seed {plan.get('seed')}, identity {digest(identity)}",
        "Rig": f"{rig.get('name', 'unnamed')} ({rig.get('kind', 'of an unknown kind')})",
        "Measured with": version,
        "Measured again by": measure_command(plan),
    }


def provenance_html(lines: Mapping[str, str], *, anchor: str = "") -> Markup:
    """Return provenance as HTML, for a page and for a notebook's output."""
    template = environment().get_template("provenance.html.j2")
    return Markup(template.render(lines=lines, anchor=anchor))


def fingerprint(campaign: Dataset) -> str:
    """Return 16 hexadecimal digits that change with the plan and with any attempt's record.

    They are the same however the campaign is stored.
    """
    records = [
        {name: value for name, value in record.items() if name != "directory"}
        for record in campaign.records
    ]
    text = json.dumps([campaign.plan, records], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def measure_command(plan: Mapping[str, Any]) -> str:
    """Return the command that runs the plan's study with the plan's seed, blocks and settings.

    It names the closest profile; whatever the plan has otherwise is a parameter of the command.
    Empty where this clone has no notebook of the study.
    """
    study = str(plan["study"])
    notebooks = sorted(project("notebooks/studies").glob(f"[0-9]*-{study}.ipynb"))
    if not notebooks:
        return ""
    declared = _declared(notebooks[0])
    planned = {**plan.get("settings", {}), "blocks": plan.get("blocks"), "seed": plan.get("seed")}
    planned = {name: planned[name] for name in declared if planned.get(name) is not None}
    different = {}
    for profile in _PROFILES:
        values = declared | _profile(notebooks[0].stem, profile)
        different[profile] = {
            name: value for name, value in planned.items() if values.get(name) != value
        }
    best = min(different, key=lambda profile: len(different[profile]))
    parts = ["labkit", "run", study, "--profile", best]
    # The seed draws the order of the trials: it is named even where it is the notebook's own.
    for name, value in {"seed": planned.get("seed"), **different[best]}.items():
        if value is not None:
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
            parts += ["-p", name, text.removesuffix("...").strip()]
    return shlex.join(parts)


def _declared(notebook: Path) -> dict[str, Any]:
    """Return the parameters of a notebook with their values; None for what is computed."""
    values: dict[str, Any] = {}
    for node in parameter_statements(notebook):
        if isinstance(node, ast.Assign):
            values |= _assigned(node.targets[0], node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            before, more = values[node.target.id], ast.literal_eval(node.value)
            values[node.target.id] = before | more if isinstance(more, dict) else before + more
    return values


def _assigned(target: ast.expr, value: ast.expr) -> dict[str, Any]:
    """Return what an assignment gives to a name, or to several at once."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        return {name: item for pair in pairs for name, item in _assigned(*pair).items()}
    if not isinstance(target, ast.Name):
        return {}
    try:
        return {target.id: ast.literal_eval(value)}
    except ValueError:
        return {target.id: None}


def _profile(stem: str, name: str) -> dict[str, Any]:
    path = project("notebooks/profiles") / f"{stem}.{name}.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}
