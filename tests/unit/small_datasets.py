"""Small campaigns on disk, written as a run writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labkit.campaign.store import Store, write_json

PLACEMENTS = ("bare clean", "docker bridge")
HOSTS = {"sut": {"cpu": {"count": 2, "model": "small"}, "kernel": {"release": "6.1"}}}


def plan(study: str = "echo", **identity: Any) -> dict[str, Any]:
    version = identity.pop("labkit", "0.1.0")
    found = {"study": study, "settings": {"messages": 4}, "hosts": HOSTS}
    found |= {"images": {"net": "sha256:" + "0" * 64}, "measurement_version": 1, "blocks": 5}
    return {
        "study": study,
        "identity": found | identity,
        "labkit": version,
        "factors": {"placement": list(PLACEMENTS), "wait": ["block"]},
        "baseline": {"placement": "bare clean"},
        "conditions": [
            {"levels": {"placement": name, "wait": "block"}, "replicate": 1} for name in PLACEMENTS
        ],
        "rig": {"name": "virtual", "kind": "virtual", "caveats": ["one kernel"], "cpu_map": {}},
    }


def record(block: int = 1, position: int = 1, attempt: int = 1, **more: Any) -> dict[str, Any]:
    """Return the record of a successful attempt; `more` replaces its values."""
    return {
        "trial": f"b{block:02d}-p{position:02d}",
        "block": block,
        "position": position,
        "attempt": attempt,
        "session": 1,
        "levels": {"placement": "bare clean", "wait": "block"},
        "replicate": 1,
        "started_ns": 1_700_000_000_000_000_000,
        "seconds": 1.5,
        "status": "ok",
        "error": None,
        "n_samples": 3,
        "metrics": {"rtt_ns_median": 2.0},
        "mechanisms": {"steal": 0.0},
        "flags": [],
    } | more


def write_campaign(
    folder: Path,
    *,
    study: str = "echo",
    blocks: int = 3,
    effect: float = 1.5,
    times: float = 1.0,
    identity: Mapping[str, Any] | None = None,
) -> Path:
    """Write a campaign whose second condition takes `effect` times its baseline; return its path.

    Blocks vary by a few percent, equally in every campaign; `times` scales all samples.
    """
    store = Store(folder)
    write_json(folder / "plan.json", plan(study, **(identity or {})))
    write_json(folder / "sessions" / "01.json", {"session": 1, "boot": "b", "facts": {}})
    for block in range(1, blocks + 1):
        for position, placement in enumerate(PLACEMENTS, 1):
            scale = times * (effect if position == 2 else 1.0) * (1 + 0.01 * math.sin(7 * block))
            scale *= 1 + 0.004 * math.cos(5 * block + position)
            values = np.array([int(scale * x) for x in (9_000, 10_000, 10_100, 30_000)])
            trial = {
                "levels": {"placement": placement, "wait": "block"},
                "started_ns": 1_700_000_000_000_000_000 + block * 10**10 + position * 10**9,
                "seconds": 0.5,
                "n_samples": len(values),
                "metrics": {"rtt_ns_median": float(np.median(values))},
                "mechanisms": {"steal": 0.0, "migrations": 0},
                "flags": ["steal 1.0% of a CPU"] if block == 2 else [],
            }
            logs = {"tool.out": f"block {block}\n"}
            store.add(record(block, position, **trial), {"rtt_ns": values}, logs)
    return folder


def edit(path: Path, old: str = "", new: str = "") -> None:
    """Change the text of a JSON file, and leave out the digests that this makes wrong."""
    data = json.loads(path.read_text().replace(old, new))
    kept = {name: value for name, value in data.items() if name not in ("sha256", "sha256s")}
    path.write_text(json.dumps(kept, indent=1) + "\n")
