"""What a claim asks of a rig against what the rig has: the setting of a measurement."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from labkit.claims.claim import Claim, Needs
from labkit.dataset import Dataset

SETTINGS = ("same", "analogue", "unsuitable")
#: What no rig lacks unless it says that it has it.
_OFFERED = ("aufs", "residence-time")
#: A host of this role stands in for another one, so that a trial never uses both.
_STAND_IN = "clean"


def setting(claim: Claim, dataset: Dataset, samples: int | None) -> tuple[str, str]:
    """Return the setting of a claim on the rig of a campaign, and what it lacks.

    Parameters
    ----------
    claim : Claim
        Its ``needs`` make a rig suitable at all, its ``same`` makes the setting that of the paper.
    dataset : Dataset
        The campaign, which describes its rig. What it does not state counts as lacking.
    samples : int or None
        Samples of the shortest trial; None where nothing was measured, so that none are asked.

    Returns
    -------
    tuple of str
        One of `SETTINGS`, and the reasons why it is not better.
    """
    for word, needs in (("unsuitable", claim.needs), ("analogue", claim.same)):
        if lacking := list(_lacking(needs, dataset, samples)):
            return word, "; ".join(lacking)
    return "same", ""


def _lacking(needs: Needs, dataset: Dataset, samples: int | None) -> Iterator[str]:
    rig, facts = dataset.rig, dataset.facts
    for name in needs.capabilities:
        if reason := _capability(name, rig):
            yield f"{name}: {reason}"
    for what, wanted, found in (
        ("CPUs of the system under test", needs.cores, _cores(facts)),
        ("hosts", needs.hosts, len(rig.get("hosts", {}).keys() - {_STAND_IN})),
        ("samples a trial", needs.samples if samples is not None else 0, samples),
    ):
        if wanted and not found:
            yield f"{wanted:,} {what}: the campaign does not state them"
        elif found and found < wanted:
            yield f"{wanted:,} {what}: there are {found:,}"
    if needs.cores_at_most and not 0 < (found := _cores(facts)) <= needs.cores_at_most:
        yield f"at most {needs.cores_at_most} CPUs of the system under test: there are {found}"
    if needs.link_gbit_per_s and (reason := _link(needs.link_gbit_per_s, rig, facts)):
        yield f"a link of {needs.link_gbit_per_s:g} Gbit/s: {reason}"
    if needs.engine and not _ran(needs.engine, dataset):
        yield f"{needs.engine}: nothing ran under it"


def _capability(name: str, rig: Mapping[str, Any]) -> str:
    """Return why a rig lacks a capability; empty where it has it."""
    lacking = rig.get("capabilities")
    if lacking is None:
        return "the rig does not state what it lacks"
    if name in lacking:
        return str(lacking[name])
    if name == "separate-machines" and rig.get("shared_kernel", True):
        return "the hosts share one kernel"
    if name in _OFFERED and name not in rig.get("offers", ()):
        return "the rig does not offer it"
    return ""


def _cores(facts: Mapping[str, Any]) -> int:
    return int(_stable(facts, "sut").get("cpu", {}).get("count") or 0)


def _link(wanted: float, rig: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return why the link between both ends is not known to have a rate; empty where it has."""
    # A virtual interface names a rate that no packet ever keeps to.
    if reason := _capability("nic-hardware", rig):
        return reason
    rates = [rate for role in ("generator", "sut") for rate in _rates(_stable(facts, role))]
    if not rates or not all(map(math.isfinite, rates)):
        return "the rig does not state a rate"
    return "" if min(rates) >= wanted else f"there are {min(rates):g} Gbit/s"


def _rates(stable: Mapping[str, Any]) -> list[float]:
    """Return the rate of each lab interface in Gbit/s, NaN where it is not known."""
    speeds = [str(one.get("speed")) for one in stable.get("interfaces", {}).values()]
    found = [re.fullmatch(r"(\d+)Mb/s", speed) for speed in speeds]
    return [int(one[1]) / 1000 if one else math.nan for one in found] or [math.nan]


def _stable(facts: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    return dict(facts.get(role, {}).get("stable", {}))


def _ran(engine: str, dataset: Dataset) -> bool:
    """Tell whether a runtime ran: by the placements, or else by the engines of the hosts."""
    ok = dataset.ok
    if "placement" in ok.columns:
        return any(str(one).split()[0] == engine for one in set(ok["placement"]))
    hosts = dataset.rig.get("hosts", {}).values()
    return engine == "docker" and len(ok) > 0 and any(host.get("engine") for host in hosts)
