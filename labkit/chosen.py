"""Which campaigns of a study count, where there are several."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.analysis.power import least_blocks
from labkit.claims.ledger import plan_key
from labkit.dataset import campaigns, load
from labkit.dataset.files import by_time
from labkit.errors import DatasetError
from labkit.paths import project, relative
from labkit.units import plural

#: The profiles of every study, the most thorough first.
PROFILES = ("paper", "decide", "quick", "ask", "tiny")
#: In place of a profile: only the reference dataset counts.
REFERENCE = "reference"


class NothingMeasured(DatasetError):
    """A study has neither a campaign measured here nor a reference campaign."""


@dataclass(frozen=True)
class Chosen:
    """The campaigns of a study that count.

    Parameters
    ----------
    study : str
        The study's name.
    campaigns : tuple of Path
        Campaigns of one plan on one rig, oldest first.
    shown : Path
        The one that the study's page shows.
    why : str
        Why these count, in words.
    """

    study: str
    campaigns: tuple[Path, ...]
    shown: Path
    why: str

    def __str__(self) -> str:
        return f"{self.study}: {self.why}"


@dataclass
class _Plan:
    """Campaigns of one plan on one rig, oldest first, with their complete blocks."""

    key: tuple[object, ...]
    measured: list[tuple[int, Path]]

    @property
    def blocks(self) -> int:
        return sum(blocks for blocks, _ in self.measured)

    @property
    def newest(self) -> str:
        return self.measured[-1][1].name


def choose(study: str, profile: str | None = None) -> Chosen:
    """Return the campaigns of a study that count.

    A block is complete when all trials planned in it succeeded. The rule:

    1. Of the plans measured here the one with most complete blocks counts, of equal ones the
       newest, with all of its campaigns on that rig. With a profile, only that profile's folder is
       looked at.
    2. The reference campaign takes its place where none of its blocks is complete and, without a
       profile, where it has fewer blocks than any verdict needs (`least_blocks`). So a failed or
       small campaign never replaces the reference unless its profile is asked for.
    3. Without a reference campaign, what was measured here counts whatever its size.

    With the profile ``"reference"`` only the reference campaign counts.

    Raises
    ------
    NothingMeasured
        The study has neither a successful trial measured here nor a reference campaign.
    """
    here = _measured_here(study, profile)
    reference = project("data") / REFERENCE / study
    if not (reference / "plan.json").is_file():
        if here is None:
            raise NothingMeasured(
                f"nothing was measured for {study}",
                where=str(project("data")),
                remedy=f"labkit run {study} --profile {profile or 'quick'}",
            )
        return _local(study, here)
    needed = 1 if profile else least_blocks()
    if here is not None and here.blocks >= needed:
        return _local(study, here)
    why = "reference"
    if here is not None:
        why += f", because the local campaign has {_blocks(here.blocks)}"
        why += f", and verdicts need {needed}" if needed > 1 else ""
    elif profile != REFERENCE:
        why += ", because nothing was measured here" + (f" with profile {profile}" * bool(profile))
    return Chosen(study, (reference,), reference, why)


def choose_all(studies: Iterable[str], profile: str | None = None) -> list[Chosen]:
    """Return what counts of each study that has a campaign."""
    found = []
    for study in studies:
        with suppress(NothingMeasured):
            found.append(choose(study, profile))
    return found


def _local(study: str, here: _Plan) -> Chosen:
    """Return campaigns measured here; of those with most blocks the newest is shown."""
    _, shown = max(here.measured)
    others = len(here.measured) - 1
    more = f" and {others} more of its plan" if others else ""
    why = f"measured here, {relative(shown, project())}{more}, with {_blocks(here.blocks)}"
    return Chosen(study, tuple(path for _, path in here.measured), shown, why)


def _measured_here(study: str, profile: str | None) -> _Plan | None:
    """Return the plan measured here that has most complete blocks."""
    if profile == REFERENCE:
        return None
    local = project("data/local")
    folders = [local / profile] if profile else [*(local / one for one in PROFILES), local]
    paths = [path for folder in folders for path in campaigns(folder / study)]
    plans: list[_Plan] = []
    for path in sorted(paths, key=by_time):
        campaign = load(path)
        # A campaign that was simulated or emulated never stands for one of this machine.
        if campaign.unmeasured or not any(one["status"] == "ok" for one in campaign.records):
            continue
        key = plan_key(campaign)
        plan = next((plan for plan in plans if plan.key == key), None)
        if plan is None:
            plans.append(plan := _Plan(key, []))
        plan.measured.append((len(campaign.complete_blocks), path))
    return max(plans, key=lambda plan: (plan.blocks, plan.newest), default=None)


def _blocks(number: int) -> str:
    return plural(number, "block") if number else "no complete block"
