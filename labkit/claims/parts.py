"""What a claim comes down to: estimates, each with the region in which it is said to lie.

A claim of several parts holds when every part does: it is shown by the largest of their p-values
(intersection-union; Berger 1982). It fails when any part does: it is refuted by the smallest, times
the number of parts (Bonferroni).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labkit.analysis.inference import Inference


@dataclass(frozen=True)
class Part:
    """One estimate and the region in which a claim says that it lies.

    Parameters
    ----------
    label : str
        What is estimated.
    estimate : Inference
        The estimate.
    low, high : float
        The region; infinite where it is open.
    unit : str
        ``1`` for a ratio or a share.
    """

    label: str
    estimate: Inference
    low: float
    high: float
    unit: str = "1"

    @property
    def p_within(self) -> float:
        """The p-value that shows the part to hold."""
        return self.estimate.p_within(self.low, self.high)

    @property
    def p_outside(self) -> float:
        """The p-value that shows the part to fail."""
        return self.estimate.p_outside(self.low, self.high)


@dataclass(frozen=True)
class Evaluation:
    """What a campaign says to a claim.

    Parameters
    ----------
    parts : tuple of Part
        All of them have to hold.
    samples : int
        Samples of the shortest trial; 0 where trials do not say.
    shown : Part or None
        The number to show, where it is not that of the part which decides.
    also : float
        The p-value of what has to be shown beside the parts; 0 where there is no such thing.
    note : str
        What to know about it.
    """

    parts: tuple[Part, ...]
    samples: int = 0
    shown: Part | None = None
    also: float = 0.0
    note: str = ""

    @property
    def p_replicates(self) -> float:
        """The p-value that shows every part to hold; NaN where that of some part is unknown."""
        return float(np.max([self.also, *(part.p_within for part in self.parts)]))

    @property
    def p_contradicts(self) -> float:
        """The p-value that shows some part to fail; NaN where none is known."""
        known = [p for part in self.parts if not math.isnan(p := part.p_outside)]
        return min(1.0, len(self.parts) * min(known)) if known else math.nan

    @property
    def weakest(self) -> Part:
        """The part that is furthest from being shown to hold."""
        return max(self.parts, key=lambda part: (math.isnan(part.p_within), part.p_within))

    @property
    def worst(self) -> Part:
        """The part that is nearest to being shown to fail."""
        return min(self.parts, key=lambda part: (math.isnan(part.p_outside), part.p_outside))

    @property
    def n_blocks(self) -> int:
        """Blocks that every part rests on."""
        return min(part.estimate.n_blocks for part in self.parts)
