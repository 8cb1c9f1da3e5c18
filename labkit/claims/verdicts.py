"""The result of a claim in words: what decided it, or how many blocks it would take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.analysis.blockwise import joined
from labkit.analysis.estimates import Estimate
from labkit.claims.claim import Claim
from labkit.claims.parts import Evaluation, Part
from labkit.power import MOST_BLOCKS, blocks_to_detect, least_blocks

RESULTS = (
    *("replicated", "contradicted", "inconclusive", "not decidable on this rig"),
    *("not measured", "error"),
)


def decide(
    claim: Claim,
    found: Evaluation,
    adjusted: tuple[float, float],
    setting: tuple[str, str],
    *,
    family: int,
    alpha: float,
) -> tuple[str, str]:
    """Return the result of a measured claim and what decided it.

    Parameters
    ----------
    claim : Claim
        The claim.
    found : Evaluation
        What was measured.
    adjusted : tuple of float
        P-values that replicate and that contradict, adjusted; NaN where they are unknown.
    setting : tuple of str
        From `labkit.claims.settings.setting`.
    family : int
        Claims of the source that were measured on a suitable rig in enough blocks.
    alpha : float
        Level of the family.
    """
    holds, fails = adjusted[0] < alpha, adjusted[1] < alpha
    assert not (holds and fails), f"{claim.id}: shown to hold and to fail"
    note = joined(found.note, *(part.estimate.note for part in found.parts))
    if setting[0] == "unsuitable":
        return "not decidable on this rig", joined(f"it takes {setting[1]}", note)
    if found.n_blocks < (least := fewest(claim, alpha)):
        pilot = f"pilot: {found.n_blocks} complete blocks of the {least} that it takes"
        return "inconclusive", joined(pilot, note)
    if holds:
        others = len(found.parts) - 1
        also = f", and so {'does the other' if others == 1 else f'do the {others} others'}"
        return "replicated", joined(
            f"{_inside(found.weakest)}{also if others else ''} (p {_p(adjusted[0])})", note
        )
    if fails:
        said = f"{_outside(found.worst)} (p {_p(adjusted[1])})"
        return "contradicted", joined(said, _absent(found, alpha), note)
    return "inconclusive", joined(_open(claim, found, family, alpha), note)


def fewest(claim: Claim, alpha: float) -> int:
    """Return the fewest blocks for a verdict: the claim's own, or `labkit.power.least_blocks`."""
    return max(claim.blocks, least_blocks(alpha))


def region(part: Part) -> str:
    """Return the region of a part in words."""
    unit = "" if part.unit in ("", "1") else f" {part.unit}"
    if math.isinf(part.low) or math.isinf(part.high):
        low = math.isinf(part.high)
        return f"{'above' if low else 'below'} {part.low if low else part.high:.4g}{unit}"
    return f"from {part.low:.4g} to {part.high:.4g}{unit}"


def blocks_needed(parts: Sequence[Part], alpha: float, least: int) -> int | None:
    """Return how many blocks would decide, if the estimates are what is true.

    With power 0.8, by the paired t test against the nearest bound (`labkit.power`). Where every
    estimate lies in its region, enough for all to be shown inside; otherwise, for one that does
    not to be shown outside.

    Parameters
    ----------
    parts : sequence of Part
        All parts of a claim.
    alpha : float
        Level that is left after the correction.
    least : int
        From `fewest`: no verdict rests on fewer.

    Returns
    -------
    int or None
        None where it cannot be computed; `MOST_BLOCKS` stands for more, too.
    """
    outside = [part for part in parts if not part.low <= part.estimate.value <= part.high]
    if outside:
        numbers = [_blocks(part, alpha / len(parts)) for part in outside]
        known = [one for one in numbers if one is not None]
        return max(least, min(known)) if known else None
    numbers = [_blocks(part, alpha) for part in parts]
    known = [one for one in numbers if one is not None]
    return max(least, *known) if len(known) == len(parts) else None


def _blocks(part: Part, alpha: float) -> int | None:
    found = part.estimate
    if not isinstance(found, Estimate) or not found.error > 0 or not math.isfinite(found.error):
        return None
    bounds = [one for one in (part.low, part.high) if math.isfinite(one)]
    if found.scale == "log":
        bounds = [math.log(one) for one in bounds if one > 0]
    distance = min((abs(found.centre - one) for one in bounds), default=0.0)
    spread = found.error * math.sqrt(found.n_blocks)
    # In units of the spread, which is all that matters; far below 30 of them 2 blocks do.
    distance = min(distance / spread, 30.0)
    if distance < 1e-6:
        return MOST_BLOCKS
    return blocks_to_detect(math.expm1(distance), 1.0, alpha=alpha) or MOST_BLOCKS


def _inside(part: Part) -> str:
    # Two one-sided tests at 5 % are an interval of 90 %: the one of 95 % may reach over a bound.
    both = math.isfinite(part.low) and math.isfinite(part.high)
    how = ", by two one-sided tests" if both else ""
    return f"{part.label}: {part.estimate.value:.4g} lies {region(part)}{how}"


def _outside(part: Part) -> str:
    return f"{part.label}: {part.estimate.value:.4g} does not lie {region(part)}"


def _absent(found: Evaluation, alpha: float) -> str:
    known = found.also < alpha
    return "" if known else f"that there is one was not shown (p {_p(found.also)})"


def _open(claim: Claim, found: Evaluation, family: int, alpha: float) -> str:
    """Return why a claim is neither shown nor refuted, and what it would take."""
    part = found.weakest
    said = f"{part.label}: whether {part.estimate.value:.4g} lies {region(part)} is open"
    if math.isnan(part.estimate.value):
        said = f"{part.label} has no estimate"
    elif min(found.p_replicates, found.p_contradicts) < alpha:
        said += f" after Holm's correction over {family} claims"
    said = joined(said, _absent(found, alpha))
    blocks = blocks_needed(found.parts, alpha / max(1, family), fewest(claim, alpha))
    if blocks is not None:
        more = "more than " if blocks >= MOST_BLOCKS else "about "
        said += f"; {more}{blocks:,} blocks would decide"
    return said


def _p(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"
