"""Why a claim did not come out as published: what another level or another condition does to it.

A claim may list conditions of its own campaign that tell (`labkit.claims.schema.Instead`). A plan
with ``vary`` (`labkit.Study.plan`) is an experiment: it measures claims at several levels of a
setting, all in each block; the first level is what the study's other campaigns have. Both are a
ratio of ratios inside blocks. Intervals are not corrected for the number of such tests, and no
claim is decided by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from labkit.analysis.estimates import Inference
from labkit.answers import interval_text
from labkit.claims.cells import Combined, Measured, NotMeasured
from labkit.claims.estimators import evaluate
from labkit.claims.schema import CLAIM, Claim, Claims, Contrast, Level, RatioClaim, Region, words
from labkit.dataset import Dataset
from labkit.units import factor_words, level_words

#: The level of each test.
ALPHA = 0.05


@dataclass(frozen=True)
class Reason:
    """What a possible reason does to a claim.

    Parameters
    ----------
    claim : str
        Its id.
    why : str
        What may be the reason.
    part : str
        What is compared; of several, what was furthest from the published region.
    as_claimed, instead : Inference
        The ratio as the claim has it, and the ratio with the other level or condition.
    change : Inference
        The second over the first.
    other : str
        The other level or condition, in words ("with ...", "against ...").
    region : tuple of float
        The ratios that the claim states.
    margin : float
        Relative change that counts as none, of the plan.
    """

    claim: str
    why: str
    part: str
    as_claimed: Inference
    instead: Inference
    change: Inference
    other: str
    region: Region
    margin: float

    @property
    def verdict(self) -> str:
        """Whether it is the reason, in words."""
        low, high = self.region
        value, (least, most) = self.as_claimed.value, self.change.interval(ALPHA)
        if low <= value <= high:
            return "here there was no difference to the paper to explain"
        towards, away = (most < 1, least > 1) if value > high else (least > 1, most < 1)
        if away:
            return "it is not the reason: the difference to the paper grows"
        other = self.instead.value
        if towards and (other < low if value > high else other > high):
            return "it is a reason: the result passes the published one, and lies beyond it"
        beyond = self.instead.p_outside(low, high) < ALPHA
        if towards and self.instead.p_within(low, high) < ALPHA:
            return "it is the reason: the result is then as published"
        if towards:
            part = "a part" if beyond else "at least a part"
            return f"it is {part} of the reason: the result moves towards the published one"
        if self.change.p_within(1 / (1 + self.margin), 1 + self.margin) < ALPHA:
            return f"it is not the reason: the ratio changes by less than {self.margin:.0%}"
        if beyond:
            return "it is at most a part of the reason: the result is still not as published"
        return "whether it is the reason cannot be told"

    def __str__(self) -> str:
        first, other, change = (
            interval_text(one.value, *one.interval(ALPHA))
            for one in (self.as_claimed, self.instead, self.change)
        )
        return (
            f"Tested: {self.why}. {self.part}: {first}; {self.other} {other}, a change by "
            f"{change} in {self.change.n_blocks} blocks; {self.verdict}."
        )


def of_campaign(claim: Claim, measured: Measured | Combined) -> Iterator[Reason]:
    """Yield what conditions of the claim's own campaign say; nothing of those not measured."""
    for instead in claim.reasons:
        where, metric = {**claim.where, **instead.where}, instead.metric or claim.metric
        base = claim.model_copy(update={"where": where, "metric": metric})
        replaced, said = {}, []
        for side, before in (("condition", "with"), ("baseline", "against")):
            if cell := getattr(instead, side):
                replaced[side] = {**getattr(base, side), **cell}
                said.append(f"{before} {words(cell)}")
        other = base.model_copy(update=replaced)
        with suppress(NotMeasured):
            yield _reason(base, other, measured, instead.why, " ".join(said))


def of_experiment(campaign: Dataset, claims: Claims) -> Iterator[Reason]:
    """Yield what the varied setting of a campaign does to each claim that its plan names.

    Claims that are not of ratios, or that were not measured at both levels, are left out.
    """
    (factor,) = campaign.plan["vary"]
    first, *others = _levels(campaign, factor)
    named = campaign.plan["claims"]
    tested = [claim for claim in claims if claim.id in named and isinstance(claim, RatioClaim)]
    measured = Measured(campaign, tested)
    for claim in tested:
        for level in others:
            base, other = (
                claim.model_copy(update={"where": {**claim.where, factor: one}})
                for one in (first, level)
            )
            with suppress(NotMeasured):
                named, said = factor_words(factor), level_words(factor, level)
                said = said if said.startswith(named) else f"{named} {said}"
                text = f"with {said} in place of {level_words(factor, first)}"
                yield _reason(base, other, measured, str(campaign.plan["reason"]), text)


#: What a claim has in common with the contrast of its two forms.
_COMMON = {"id", "source", "place", "statement", "study", "metric", "statistic"}


def _reason(
    claim: Claim, other: Claim, measured: Measured | Combined, why: str, text: str
) -> Reason:
    """Compare two forms of a claim, of which each has as many parts."""
    found, instead = evaluate(claim, measured), evaluate(other, measured)
    place = found.parts.index(found.worst)
    pairs = [(at, pair) for at in claim.at_each() for pair in claim.pairs()]
    at, pair = pairs[place]
    sides = [{**one.complete_cells()[key], **at} for one in (other, claim) for key in pair]
    entry = claim.model_dump(include=_COMMON, exclude_defaults=True)
    entry |= {"kind": "contrast", "direction": "higher"}
    entry |= zip(Contrast.cell_keys, sides, strict=True)
    (change,) = evaluate(CLAIM.validate_python(entry), measured).parts
    part = found.parts[place]
    return Reason(
        claim.id,
        why,
        part=part.label,
        as_claimed=part.estimate,
        instead=instead.parts[place].estimate,
        change=change.estimate,
        other=text,
        region=part.inner,
        margin=float(measured.dataset.plan["margin"]),
    )


def _levels(campaign: Dataset, factor: str) -> Sequence[Level]:
    """Return the levels of a factor as claims have them: numbers where all of them are."""
    texts = list(map(str, campaign.plan["factors"][factor]))
    try:
        return [float(text) for text in texts]
    except ValueError:
        return texts
