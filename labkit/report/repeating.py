"""The command that measures a campaign again, from its plan."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from labkit.paths import project
from labkit.report.running import parameter_statements

#: In the order in which they are tried: the first that fits best is named.
_PROFILES = ("quick", "paper", "tiny")


def command(plan: Mapping[str, Any]) -> str:
    """Return the command that runs the plan's study with the plan's seed, blocks and settings.

    The profile is the one that comes closest; whatever the plan has otherwise is a parameter of the
    command. Empty where this clone has no notebook of the study.
    """
    study = str(plan["study"])
    found = sorted(project("notebooks/studies").glob(f"[0-9]*-{study}.ipynb"))
    if not found:
        return ""
    declared = _declared(found[0])
    planned = {**plan.get("settings", {}), "blocks": plan.get("blocks"), "seed": plan.get("seed")}
    planned = {name: planned[name] for name in declared if planned.get(name) is not None}
    profiles = {name: declared | _profile(found[0].stem, name) for name in _PROFILES}
    other = {
        profile: {name: value for name, value in planned.items() if values.get(name) != value}
        for profile, values in profiles.items()
    }
    best = min(other, key=lambda name: len(other[name]))
    parts = ["labkit", "run", study, "--profile", best]
    # The seed draws the order of the trials: it is said even where it is the notebook's own.
    for name, value in {"seed": planned.get("seed"), **other[best]}.items():
        if value is not None:
            parts += ["-p", name, _yaml(value)]
    return shlex.join(parts)


def _declared(notebook: Path) -> dict[str, Any]:
    """Return the parameters of a notebook with their values; None for what is computed."""
    found: dict[str, Any] = {}
    for node in parameter_statements(notebook):
        if isinstance(node, ast.Assign):
            found |= _assigned(node.targets[0], node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            before, more = found[node.target.id], ast.literal_eval(node.value)
            found[node.target.id] = before | more if isinstance(more, dict) else before + more
    return found


def _assigned(target: ast.expr, value: ast.expr) -> dict[str, Any]:
    """Return what an assignment gives to a name, or to several at once."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        return {name: one for pair in pairs for name, one in _assigned(*pair).items()}
    if not isinstance(target, ast.Name):
        return {}
    try:
        return {target.id: ast.literal_eval(value)}
    except ValueError:
        return {target.id: None}


def _profile(stem: str, name: str) -> dict[str, Any]:
    path = project("notebooks/profiles") / f"{stem}.{name}.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return text.removesuffix("...").strip()
