"""What the workers of the fleet's tests run; they import this module."""

from __future__ import annotations

import os
from pathlib import Path

from labkit import Study
from labkit.campaign.trial import Trial
from labkit.fleet import RIG, Block, read_block
from labkit.process import BLOCKS
from labkit.rig.simulated import Model, SimulatedRig
from labkit.tools.base import Measurement

STUDY = "simulated-study"
LEVELS = {"placement": ["bare", "docker host", "docker bridge"], "wait": ["block", "spin"]}


def never(trial: Trial) -> Measurement:
    raise AssertionError("a simulated rig runs no protocol")


def study() -> Study:
    baseline = {"placement": "bare", "wait": "block"}
    return Study(STUDY, never, factors=LEVELS, baseline=baseline, outcomes=["rtt_ns_median"])


def simulated_block(number: int, data: str, blocks: int, seconds: float) -> Block:
    """Measure one block on the simulated rig that this worker offers."""
    rig = SimulatedRig.named(os.environ[RIG], Model(samples=50, seconds=seconds))
    os.environ[BLOCKS] = str(number)
    campaign = study().plan(rig, blocks=blocks, seed=1).run(Path(data) / os.environ[RIG])
    return read_block(campaign.path, number, samples=False)


def failing_block(number: int) -> Block:
    """Fail as a block whose study fails does."""
    raise ValueError(f"no block {number} today")
