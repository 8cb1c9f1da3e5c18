"""Tasks of the fleet's tests, which the workers import; as a program, a labkit without a rig."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from labkit import fleet

STUDY, LEVELS = "made-up-study", ("bare", "docker host", "docker bridge")


def drawn_block(number: int, parameters: dict[str, Any]) -> fleet.Block:
    """Measure a block by this program instead of by `labkit run`."""
    fleet.COMMAND = (sys.executable, __file__)
    return fleet.measure_block(number, study=STUDY, parameters=parameters, name="tiny")


def run(parameters: dict[str, Any], block: int) -> Path:
    """Measure what is missing of a block, as `labkit run` does; return the campaign."""
    folder = Path(parameters["data"], STUDY, "20260101-000000-abc")
    folder.mkdir(parents=True, exist_ok=True)
    conditions = [{"levels": {"placement": level}, "repeat": 1} for level in LEVELS]
    plan = {"study": STUDY, "factors": {"placement": LEVELS}, "settings": {}, "format": 2}
    plan |= {"conditions": conditions, "order": [[0, 1, 2]] * parameters["blocks"]}
    (folder / "plan.json").write_text(json.dumps(plan))
    with (folder / "processes").open("a") as file:
        file.write(f"{os.getpid()}\n")
    for position, level in enumerate(LEVELS, start=1):
        trial = folder / "trials" / f"b{block:02d}-p{position:02d}-a1"
        if not trial.exists():
            time.sleep(parameters["seconds"])
            row = {"trial": trial.name[:-3], "attempt": 1, "block": block, "position": position}
            row |= {"session": 1, "repeat": 1, "placement": level, "status": "ok"}
            trial.mkdir(parents=True)
            (trial / "part").write_text(json.dumps({"format": 2, "rows": [row]}))
            (trial / "part").rename(trial / "trial.json")
    return folder


if __name__ == "__main__":
    given = yaml.safe_load(Path(sys.argv[sys.argv.index("-P") + 1]).read_text())
    if given["rig"] == "broken":
        sys.exit("the rig is on fire")
    (block,) = given["only"]
    run(given, block)
