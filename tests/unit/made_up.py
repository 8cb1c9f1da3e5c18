"""Campaigns that are made up, in the files of one that is being measured."""

import json

import numpy as np
import pandas as pd

from labkit.data import FORMAT, expand, load

#: A rig that lacks nothing: separate machines with network cards.
RIG = {"name": "made up", "hosts": {"generator": {}, "sut": {}, "clean": {}}, "capabilities": {}}
RIG |= {"cpu_map": {"generator": "0", "sut": "1-20"}, "shared_kernel": False}
RIG |= {"caveats": ["nothing of it was measured"]}


def facts(cpus=20, speed="25000Mb/s"):
    stable = {"cpu": {"count": cpus, "model": "Made CPU"}, "interfaces": {"lab0": {"speed": speed}}}
    stable |= {"kernel": {"release": "6.1"}, "cgroup": {"version": "v2"}}
    stable |= {"engine": {"version": "29.0"}}
    return {role: {"stable": stable} for role in ("generator", "sut")}


def write(folder, factors, values, *, blocks=10, spread=0.02, seed=1, twice=None, **plan):
    """Write a campaign and return it as `labkit.load` does.

    `values` returns the columns of a trial for its levels and block, a dict of numbers without
    noise, or None where the trial fails; a list has those of each attempt so far. Conditions with
    the levels `twice` are repeated in each block. The plan may have ``samples``, a column of which
    each trial then has 50, and ``facts``.
    """
    random, samples = np.random.default_rng(seed), plan.pop("samples", None)
    hosts, outcomes = plan.pop("facts", facts()), []
    cells = expand(factors)
    twice = [cell for cell in cells if twice and twice.items() <= cell.items()]
    cells = [(cell, 1) for cell in cells] + [(cell, 2) for cell in twice]
    conditions = [
        {"levels": {name: str(level) for name, level in cell.items()}, "repeat": repeat}
        for cell, repeat in cells
    ]
    order = [random.permutation(len(cells)).tolist() for _ in range(blocks)]
    (folder / "samples.parquet").mkdir(parents=True, exist_ok=True)
    for block, places in enumerate(order, start=1):
        change = random.normal(0, 10 * spread)
        for position, place in enumerate(places, start=1):
            trial, made = f"b{block:02d}-p{position:02d}", values(cells[place][0], block)
            noise = np.exp(change + random.normal(0, spread))
            for attempt, found in enumerate(made if isinstance(made, list) else [made], start=1):
                row = {"trial": trial, "attempt": attempt, "block": block, "position": position}
                row |= {"session": 1, "repeat": cells[place][1], **conditions[place]["levels"]}
                row |= {"status": "ok" if found else "failed", "problem": "it failed" * (not found)}
                row |= {"flags": "", "saturated": False, "n_samples": 50 * bool(samples and found)}
                row |= {"started_ns": (10**9 + 100 * block + position) * 10**9, "seconds": 1.0}
                row |= {name: value * noise for name, value in (found or {}).items()}
                outcomes = outcomes or [*(found or {})][:1]
                home = folder / "trials" / f"{trial}-a{attempt}"
                home.mkdir(parents=True, exist_ok=True)
                (home / "trial.json").write_text(json.dumps({"format": FORMAT, "rows": [row]}))
                if samples and found:
                    table = pd.DataFrame({"trial": trial, samples: random.integers(900, 9000, 50)})
                    table.to_parquet(folder / f"samples.parquet/{home.name}.parquet", index=False)
    factors = {name: [str(one) for one in every] for name, every in factors.items()}
    document = {"study": "made-up", "labkit": "0.1.0", "factors": factors, "settings": {}}
    document |= {"baseline": {name: every[0] for name, every in [*factors.items()][:1]}}
    document |= {"margin": 0.02, "outcomes": outcomes, "blocks": blocks, "infeasible": []}
    document |= {"conditions": conditions, "order": order, "rig": RIG, **plan}
    sessions = {"sessions": [{"session": 1, "began": "2001-09-09T01:46:40Z", "facts": hosts}]}
    for name, content in {"plan": document, "sessions": sessions}.items():
        (folder / f"{name}.json").write_text(json.dumps({"format": FORMAT, **content}))
    return load(folder)
