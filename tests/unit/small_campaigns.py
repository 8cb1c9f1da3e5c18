"""Campaigns of a few trials, written as `labkit.data` says, for tests of what reads them."""

import itertools
import json

import numpy as np
import pandas as pd


def write_campaign(folder, factors, measure, *, study="made", blocks=6, settings=None, samples=()):
    """Write a campaign of every combination of levels as it is while measuring.

    `measure(levels, generator)` returns the numbers of a trial; those in `samples` are 50 values.
    """
    generator = np.random.default_rng(7)
    cells = [dict(zip(factors, one, strict=True)) for one in itertools.product(*factors.values())]
    outcome = ""
    for block in range(1, blocks + 1):
        for position, levels in enumerate(cells, start=1):
            trial = f"b{block:02d}-p{position:02d}"
            row = {"trial": trial, "attempt": 1, "block": block, "position": position}
            row |= {"session": 1, "repeat": 1, **levels, "status": "ok", "problem": "", "flags": ""}
            row |= {"n_samples": 50 * len(samples), "started_ns": 10**18 * block, "seconds": 2.5}
            row |= {"saturated": False, **measure(levels, generator)}
            outcome = list(row)[-1]
            home = folder / "trials" / f"{trial}-a1"
            home.mkdir(parents=True)
            (home / "trial.json").write_text(json.dumps({"format": 2, "rows": [row]}))
            (home / "tool.out").write_text(f"{trial} done\n")
            if samples:
                (folder / "samples.parquet").mkdir(exist_ok=True)
                values = {name: generator.integers(1000, 2000, 50) for name in samples}
                table = pd.DataFrame({"trial": trial, "attempt": 1, **values})
                table.to_parquet(folder / "samples.parquet" / f"{trial}-a1.parquet", index=False)
    plan = {"format": 2, "study": study, "labkit": "0.1.0", "factors": factors, "margin": 0.02}
    plan |= {"baseline": {name: levels[0] for name, levels in list(factors.items())[:1]}}
    plan |= {"settings": settings or {}, "outcomes": [outcome], "blocks": blocks, "infeasible": []}
    plan |= {"order": [list(range(len(cells)))] * blocks, "rig": {"name": "made"}, "identity": {}}
    plan |= {"conditions": [{"levels": levels, "repeat": 1} for levels in cells]}
    (folder / "plan.json").write_text(json.dumps(plan))
    stable = {"cpu": {"model": "Made CPU", "count": 2}, "kernel": {"release": "6.1"}}
    stable |= {"cgroup": {"version": "v2"}, "engine": {"version": "29.0"}}
    session = {"session": 1, "facts": {"sut": {"stable": stable}}}
    (folder / "sessions.json").write_text(json.dumps({"format": 2, "sessions": [session]}))
    (folder / "logs").mkdir()
    (folder / "logs" / "01.log").write_text("began\n")
    return folder
