"""Campaigns on disk with what an explorer meets: several factors, gaps, failures, odd trials."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labkit.campaign.store import Store, write_json

FACTORS = {
    "placement": ["bare clean", "docker host", "docker bridge"],
    "wait": ["block", "spin"],
    "size_b": ["64"],
}
#: What a placement costs, as a ratio to the first.
COSTS = {"bare clean": 1.0, "docker host": 1.0, "docker bridge": 1.5}
#: The trial that is unlike the others of its kind, and the one that failed at first.
ODD, FAILED = "b03-p01", "b02-p02"


def write(
    folder: Path,
    *,
    blocks: int = 5,
    samples: int = 400,
    factors: Mapping[str, Sequence[str]] = FACTORS,
    sessions: int = 1,
    study: str = "echo",
) -> Path:
    """Write a campaign; return its path.

    ``rtt_ns`` is everyone's, ``close_ns`` only theirs who spin, ``zeros_ns`` has zeros; ``gflops``
    is a metric of some, ``lost`` one with zeros. `sessions` beyond one: the last block spans two.
    """
    rng, store = np.random.default_rng(8), Store(folder)
    rig = {"name": "virtual", "kind": "virtual", "caveats": [], "cpu_map": {}}
    baseline = {"placement": "bare clean"}
    about = {"study": study, "factors": dict(factors), "baseline": baseline, "margin": 0.02}
    write_json(folder / "plan.json", about | {"identity": {}, "rig": rig})
    cells = [dict(zip(factors, one, strict=True)) for one in itertools.product(*factors.values())]
    for block in range(1, blocks + 1):
        for position, levels in enumerate(cells, 1):
            late = sessions > 1 and block == blocks and position > len(cells) // 2
            one = _record(block, position, levels, samples, session=2 if late else 1)
            level = 10_000 * COSTS.get(levels["placement"], 1.2) * (1 + 0.01 * rng.normal())
            level *= 3 if one["trial"] == ODD else 1
            if one["trial"] == FAILED:
                wrong = {"status": "failed", "error": {"what": "it <b>broke</b>"}, "n_samples": 0}
                store.add(one | wrong, {}, {"tool.out": "no\n"})
                one["attempt"] = 2
            found = {"rtt_ns": (level * rng.lognormal(0, 0.1, samples)).astype(np.int64)}
            found["zeros_ns"] = np.arange(samples, dtype=np.int64)
            if levels.get("wait") == "spin":
                found["close_ns"] = found["rtt_ns"] // 2
            store.add(one, found, {"tool.out": "yes\n"})
    return folder


def _record(
    block: int, position: int, levels: Mapping[str, str], samples: int, *, session: int
) -> dict[str, Any]:
    trial = f"b{block:02d}-p{position:02d}"
    metrics = {"lost": float(block % 2), "rtt_ns_p99": 1.0}
    if levels["placement"] == "docker bridge":
        metrics["gflops"] = 2.0 + 0.1 * block
    return {
        "trial": trial,
        "block": block,
        "position": position,
        "attempt": 1,
        "session": session,
        "levels": dict(levels),
        "replicate": 1,
        "started_ns": 1_700_000_000_000_000_000 + block * 10**11 + position * 10**9,
        "seconds": 0.5,
        "status": "ok",
        "error": None,
        "n_samples": samples,
        "metrics": metrics,
        "mechanisms": {
            "context_switches": 4.0 + 0.01 * position,
            "pressure_us": 100 * block,
            "migrations": 0,
        },
        "flags": ["steal 1.0% of a CPU"] if position == 1 else [],
        "commands": [["sockperf", "ping-pong"]],
    }
