"""A rig without hosts, whose trials are drawn from a stated model: for demos, teaching and plans.

Nothing is measured. Its campaigns say so, decide no claim, and never stand for a campaign of this
machine.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from labkit.design import Condition, level_label
from labkit.errors import UsageError
from labkit.rig.base import Rig
from labkit.rig.images import Say
from labkit.tools.base import Measurement

KIND = "simulated"
#: What every page of its campaigns says.
CAVEAT = "simulated: every number is drawn from a model, and nothing was measured"


@dataclass(frozen=True)
class Model:
    """Where the samples of a simulated trial come from.

    The log of a sample is a sum of independent normal parts: the typical value, a factor for each
    level, what this rig does to each level, the block, the trial, and the sample itself.

    Parameters
    ----------
    column : str
        The column of the samples, in nanoseconds.
    typical : float
        The median where no level has a factor.
    factors : mapping of str to float
        The factor of levels by name (``"docker bridge": 1.3``), 1 for others.
    rig, effect, block, trial, sample : float
        Standard deviations of the logs: of the rig, of what it does to each level, of the block,
        of the trial, and of the sample.
    samples : int
        Samples a trial.
    seconds : float
        Seconds that a trial takes.
    """

    column: str = "rtt_ns"
    typical: float = 50_000.0
    factors: Mapping[str, float] = field(
        default_factory=lambda: {
            "docker host": 1.05,
            "docker bridge": 1.3,
            "docker nat": 1.4,
            "spin": 0.6,
            "busy_poll": 0.8,
            "split": 0.9,
        }
    )
    rig: float = 0.2
    effect: float = 0.03
    block: float = 0.05
    trial: float = 0.02
    sample: float = 0.3
    samples: int = 500
    seconds: float = 0.0

    def draw(self, rig: str, condition: Condition, block: int) -> Measurement:
        """Return a trial: the same for the same rig, condition, replicate and block."""
        levels = [level_label(level) for _, level in condition.levels]
        centre = math.log(self.typical) + self.rig * _normal(rig)
        centre += sum(math.log(self.factors.get(level, 1.0)) for level in levels)
        centre += sum(self.effect * _normal(rig, level) for level in levels)
        centre += self.block * _normal(rig, block)
        key = (rig, block, condition.key)
        centre += self.trial * _normal(*key)
        noise = _generator("samples", *key).normal(0, self.sample, self.samples)
        values = np.exp(centre + noise).astype(np.int64)
        return Measurement({self.column: values})


def _generator(*key: object) -> np.random.Generator:
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def _normal(*key: object) -> float:
    return float(_generator(*key).normal())


@dataclass
class SimulatedRig(Rig):
    """A rig that draws its trials; its name tells it from others.

    Parameters
    ----------
    model : Model
        Where trials come from.
    """

    model: Model = field(default_factory=Model)

    uses_machine: ClassVar[bool] = False

    @classmethod
    def named(cls, name: str = "", model: Model | None = None) -> SimulatedRig:
        """Return the simulated rig of a name; another name is another rig."""
        roles = ("generator", "sut", "clean", "harness", "all")
        return cls(
            name=f"{KIND} {name}".strip(),
            kind=KIND,
            hosts={},
            targets={},
            addresses={},
            cpu_map=dict.fromkeys(roles, "0"),
            shared_kernel=False,
            caveats=(CAVEAT,),
            model=model or Model(),
        )

    @classmethod
    def accepts(cls, spec: str) -> bool:
        """Accept ``simulated``, ``simulated:NAME`` and ``simulated:NAME:SECONDS`` (of a trial)."""
        return spec.partition(":")[0] == KIND

    @classmethod
    def check(cls, spec: str) -> None:
        """Raise `UsageError` where the seconds are no number."""
        _parts(spec)

    @classmethod
    def attach(cls, spec: Any, say: Say = lambda text: None) -> SimulatedRig:
        """Return the rig that a specification names."""
        name, seconds = _parts(str(spec))
        say(CAVEAT)
        return cls.named(name, Model(seconds=seconds))

    def cpus(self, role: str, affinity: str) -> str:
        """Return a CPU, of which nothing depends."""
        return "0"

    def protocol(
        self, protocol: Callable[[Any], Any], condition: Condition, block: int
    ) -> Callable[[Any], Any]:
        """Return what draws a trial instead of running the study's protocol."""

        def draw(trial: Any) -> Measurement:
            time.sleep(self.model.seconds)
            return self.model.draw(self.name, condition, block)

        return draw


def _parts(spec: str) -> tuple[str, float]:
    """Return the name and the seconds of a trial in a specification."""
    _, name, seconds = [*spec.split(":", 2), "", ""][:3]
    try:
        value = float(seconds or 0)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(
            f"invalid seconds of a simulated trial: {seconds!r}",
            remedy="write for example simulated:lab-1:0.2",
        )
    return name, value
