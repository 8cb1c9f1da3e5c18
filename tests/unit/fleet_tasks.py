"""Blocks of a made-up rig, which the workers of a fleet measure; they import this module."""

from __future__ import annotations

import os
import time
import zlib
from pathlib import Path

import numpy as np

from labkit import Rig, Study
from labkit.campaign.trial import Trial
from labkit.fleet import RIG, Block, read_block
from labkit.process import BLOCKS
from labkit.tools.base import Measurement

STUDY = "made-up-study"
LEVELS = {"placement": ["bare", "docker host", "docker bridge"], "wait": ["block", "spin"]}


def draw(rig: str, block: int, placement: str, wait: str) -> np.ndarray:
    """Return the samples of a trial: the same for the same rig, block and levels."""
    seed = zlib.crc32(f"{rig} {block} {placement} {wait}".encode())
    return np.random.default_rng(seed).integers(10_000, 90_000, 50)


def drawn(trial: Trial) -> Measurement:
    """Run a trial without hosts."""
    time.sleep(trial.seconds)
    return Measurement({"rtt_ns": draw(os.environ[RIG], trial.turn, trial.placement, trial.wait)})


def drawn_block(number: int, data: str, blocks: int, seconds: float) -> Block:
    """Measure one block on the rig that this worker offers, which has no hosts."""
    name = os.environ[RIG]
    rig = Rig(name, "made up", {}, {}, {}, {}, shared_kernel=False)
    os.environ[BLOCKS] = str(number)
    settings = {"seconds": seconds}
    study = Study(STUDY, drawn, factors=LEVELS, settings=settings, outcomes=["rtt_ns_median"])
    campaign = study.plan(rig, blocks=blocks, seed=1).run(Path(data) / name)
    return read_block(campaign.path, number, samples=False)


def failing_block(number: int) -> Block:
    """Fail as a block whose study fails does."""
    raise ValueError(f"no block {number} today")
