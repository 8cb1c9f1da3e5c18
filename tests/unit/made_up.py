"""Campaigns that are made up, in the files of a real one."""

import itertools
import json

import numpy as np
import pandas as pd

from labkit.data import FORMAT, load

#: A rig that lacks nothing: separate machines with network cards.
RIG = {
    "name": "made up",
    "kind": "inventory",
    "hosts": {"generator": {}, "sut": {}, "clean": {}},
    "cpu_map": {"generator": "0", "sut": "1-20"},
    "shared_kernel": False,
    "capabilities": {},
    "caveats": ["nothing of it was measured"],
}


def facts(cpus=20, speed="25000Mb/s", **more):
    interfaces = {"lab0": {"speed": speed}}
    stable = {"cpu": {"count": cpus, "model": "made up"}, "interfaces": interfaces, **more}
    return {role: {"stable": stable} for role in ("generator", "sut")}


def write(
    folder,
    factors,
    values,
    *,
    study="made-up",
    blocks=10,
    spread=0.02,
    seed=1,
    repeat=None,
    infeasible=(),
    samples=None,
    **plan,
):
    """Write a campaign and return it as `labkit.load` does.

    `values` returns the columns of a trial for its levels, a dict of numbers without noise, or None
    where the trial fails; `repeat` has the levels of the conditions that run twice in each block.
    """
    random = np.random.default_rng(seed)
    conditions = [
        {"levels": {name: str(level) for name, level in cell.items()}, "repeat": number}
        for cell in _cells(factors)
        for number in ((1, 2) if repeat and repeat.items() <= cell.items() else (1,))
    ]
    rows, order = [], []
    for block in range(1, blocks + 1):
        places = [int(place) for place in random.permutation(len(conditions))]
        order.append(places)
        level = random.normal(0, 0.2)
        for position, place in enumerate(places, start=1):
            condition = conditions[place]
            cell = dict(zip(factors, _levels(factors, condition["levels"]), strict=True))
            found = values(cell, block)
            noise = np.exp(level + random.normal(0, spread))
            rows.append(
                {
                    "trial": f"b{block:02d}-p{position:02d}",
                    "attempt": 1,
                    "block": block,
                    "position": position,
                    "session": 1,
                    "repeat": condition["repeat"],
                    **condition["levels"],
                    "status": "ok" if found else "failed",
                    "problem": "" if found else "it failed",
                    "flags": "",
                    "n_samples": 20_000,
                    "started_ns": 1_700_000_000_000_000_000 + len(rows) * 10**9,
                    "seconds": 1.0,
                    "saturated": False,
                    **{name: value * noise for name, value in (found or {}).items()},
                }
            )
    folder.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(rows)
    frame.to_parquet(folder / "trials.parquet")
    if samples:
        ok = frame[frame["status"] == "ok"]
        parts = [
            pd.DataFrame({"trial": trial, "attempt": 1, samples: random.integers(900, 9000, 200)})
            for trial in ok["trial"]
        ]
        pd.concat(parts).to_parquet(folder / "samples.parquet")
    document = {
        "format": FORMAT,
        "study": study,
        "factors": {name: [str(one) for one in levels] for name, levels in factors.items()},
        "settings": {},
        "margin": 0.02,
        "outcomes": [next(name for name in frame.columns[::-1])],
        "blocks": blocks,
        "conditions": conditions,
        "order": order,
        "infeasible": list(infeasible),
        "rig": RIG,
        **plan,
    }
    (folder / "plan.json").write_text(json.dumps(document))
    sessions = [{"session": 1, "facts": document.pop("facts", facts())}]
    (folder / "sessions.json").write_text(json.dumps({"format": FORMAT, "sessions": sessions}))
    return load(folder)


def _cells(factors):
    return [
        dict(zip(factors, levels, strict=True)) for levels in itertools.product(*factors.values())
    ]


def _levels(factors, texts):
    """Return the levels that some texts stand for."""
    return [
        next(level for level in levels if str(level) == texts[name])
        for name, levels in factors.items()
    ]
