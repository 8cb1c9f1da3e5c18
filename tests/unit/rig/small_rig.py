"""A rig without hosts, for rules that need none."""

from __future__ import annotations

from typing import Any

from labkit.rig import Rig


def make_rig(**changes: Any) -> Rig:
    values: dict[str, Any] = {"name": "x", "kind": "inventory", "targets": {}}
    values |= {"cpu_map": {}, "shared_kernel": True}
    return Rig(**values | changes)
