"""Rules that tell what a claim needs and a rig or its setting does not have.

A rule reads the campaign and the paper's numbers, never the result of a comparison with the claim,
so that another rig or setting can decide what this one cannot. The first rules are thresholds that
a claim has in ``needs``, the last hold for every claim.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.analysis import words
from labkit.data import Campaign, expand
from labkit.placement import parse_cpus

if TYPE_CHECKING:
    from labkit.analysis.claims import Claim

#: Trials of a cell that a saturated load generator may have limited.
_SATURATED_SHARE = 0.1
#: Packets that a forwarder may lose before its latency is that of a full queue.
_QUEUE_LOSS = 0.01
#: Share of the packets from which a condition carries all that it is offered.
_CARRIES_ALL = 0.99
#: Factor by which an absolute value may differ from the paper's.
_REGIME = 10.0
#: Times by which load tools over-report a latency, in ns: wrk2 by up to a tick of its event loop
#: (https://github.com/giltene/wrk2/issues/78).
_TIMERS = {"wrk2": 1e6}


def _stable(campaign: Campaign, role: str = "sut") -> Mapping[str, Any]:
    """Return the facts of a host that do not change while it runs."""
    return dict(campaign.facts.get(role, {}).get("stable", {}))


def _cpus(campaign: Campaign) -> int:
    return int(_stable(campaign).get("cpu", {}).get("count") or 0)


def _own_cpus(campaign: Campaign) -> int:
    """Return how many CPUs the server's host shares with no other host."""
    if not campaign.rig["shared_kernel"]:
        return _cpus(campaign)
    return len(parse_cpus(str(campaign.rig["cpu_map"].get("sut", ""))))


def _separate(wanted: str, campaign: Campaign) -> bool:
    """Tell whether both ends have machines, kernels or CPU time of their own."""
    rig = campaign.rig
    if f"separate-{wanted.replace(' ', '-')}" in rig["capabilities"]:
        return False
    own = wanted == "cpu time" and campaign.settings.get("receiving_cpu") == "own"
    return own or not rig["shared_kernel"]


def _link(campaign: Campaign) -> float:
    """Return the rate between both ends in Gbit/s: shaped, or of its network cards; else 0."""
    shaped = campaign.settings.get("link_gbit_per_s")
    if shaped or "nic-hardware" in campaign.rig["capabilities"]:
        return float(shaped or 0.0)
    rates = [
        match[1] if (match := re.fullmatch(r"(\d+)Mb/s", str(interface.get("speed")))) else "0"
        for role in ("generator", "sut")
        for interface in _stable(campaign, role).get("interfaces", {}).values()
    ]
    return min((float(rate) / 1000 for rate in rates), default=0.0)


def _median(trials: pd.DataFrame, column: str, campaign: Campaign) -> float:
    """Return the highest median of a condition; NaN where trials do not have the column."""
    if column not in trials or not len(trials):
        return np.nan
    values = trials[column].groupby([trials[name] for name in campaign.factors]).median()
    return float(values.max())


@dataclass(frozen=True)
class Subject:
    """A claim and the campaign that it is asked of."""

    claim: Claim
    campaign: Campaign

    def select(self, cells: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
        """Return the successful trials of some cells."""
        trials = self.campaign.ok
        mask = np.zeros(len(trials), dtype=bool)
        for cell in cells:
            wanted = [trials[name] == level for name, level in cell.items() if level != "all"]
            mask |= np.logical_and.reduce(wanted)
        return trials[mask]

    @cached_property
    def baselines(self) -> pd.DataFrame:
        """Successful trials of the baselines, or of the cells of a claim without any."""
        return self.select({**cell, **(self.claim.to or {})} for cell in expand(self.claim.of))

    @cached_property
    def trials(self) -> pd.DataFrame:
        """Successful trials of all conditions of the claim."""
        cells = expand(self.claim.of)
        return self.select([*cells, *({**cell, **(self.claim.to or {})} for cell in cells)])


Rule = Callable[[Any, Subject], str]


def _needs_cpus(wanted: int, subject: Subject) -> str:
    found = _cpus(subject.campaign)
    return f"{wanted} CPUs (here {found})" if found < wanted else ""


def _needs_few_cpus(wanted: int, subject: Subject) -> str:
    found = _cpus(subject.campaign)
    return f"at most {wanted} CPUs (here {found})" if found > wanted else ""


def _needs_own_cpus(wanted: int, subject: Subject) -> str:
    found = _own_cpus(subject.campaign)
    return f"{wanted} CPUs of the server's host alone (here {found})" if found < wanted else ""


def _needs_hosts(wanted: int, subject: Subject) -> str:
    # The host without an engine stands in for another one: no trial uses both.
    found = len(subject.campaign.rig["hosts"].keys() - {"clean"})
    return f"{wanted} hosts (here {found})" if found < wanted else ""


def _needs_separate(wanted: str, subject: Subject) -> str:
    return "" if _separate(wanted, subject.campaign) else f"separate {wanted} (here one kernel)"


def _needs_link(wanted: float, subject: Subject) -> str:
    found = _link(subject.campaign)
    has = f"{found:g} Gbit/s" if found else "no network card"
    return f"a link of {wanted:g} Gbit/s (here {has})" if found < wanted else ""


def _needs_cpu_use(wanted: tuple[float, float], subject: Subject) -> str:
    low, high = wanted
    # Whatever the quota: the most that the server uses is what it would use without one.
    cells = expand(subject.claim.of)
    trials = subject.select(
        {name: level for name, level in cell.items() if name != "quota_us"} for cell in cells
    )
    use = trials["cpu_ns"] / (trials["elapsed_ns"] + trials["warmup_ns"])
    found = _median(trials.assign(use=use), "use", subject.campaign)
    if low <= found <= high:
        return ""
    return f"a server that uses {low:.0%} to {high:.0%} of a CPU (here {found:.0%})"


def _needs_carried(wanted: float, subject: Subject) -> str:
    """Return what a baseline lacks that forwarded all that it was offered in the paper."""
    trials = subject.baselines
    carried = float((trials["packets_per_s"] / trials["sent_per_s"]).median())
    if carried >= wanted:
        return ""
    return f"a CPU that forwards the rate of the link (here the baseline carries {carried:.0%})"


def _needs_offered(wanted: Mapping[str, float], subject: Subject) -> str:
    """Return what a condition needs that carries all that it is offered, if the paper offers more.

    The rates of the paper are packets a second, by payload.
    """
    trials, factors = subject.trials, subject.campaign.factors
    for payload, rate in wanted.items():
        rows = trials[trials["payload_b"] == int(payload)]
        columns = ["offered_per_s", "sent_per_s", "packets_per_s"]
        found = rows[columns].groupby([rows[name] for name in factors]).median()
        carries_all = found["packets_per_s"] >= _CARRIES_ALL * found["sent_per_s"]
        fewer = found.loc[carries_all & (found["offered_per_s"] < rate), "offered_per_s"]
        if len(fewer):
            return f"{rate:,.0f} packets offered a second (here {fewer.min():,.0f}, all carried)"
    return ""


def _needs_samples(wanted: int, subject: Subject) -> str:
    found = int(subject.trials["n_samples"].min())
    return f"{wanted:,} samples a trial (here {found:,})" if found < wanted else ""


def _needs_regime(wanted: Mapping[str, float], subject: Subject, times: float = _REGIME) -> str:
    """Return what a claim needs whose baseline is many times off the paper's, in some columns."""
    for column, paper in wanted.items():
        found = _median(subject.baselines, column, subject.campaign)
        if found > 0 and not 1 / times <= found / paper <= times:
            amounts = [words.amount(one, column) for one in (paper, found)]
            return f"the paper's regime (a baseline of {amounts[0]}, here {amounts[1]})"
    return ""


def _needs_regime_times(wanted: float, subject: Subject) -> str:
    """Return what a share of a fixed time needs, which the length of the baseline decides."""
    return _needs_regime({subject.claim.value: subject.claim.absolute or 0.0}, subject, wanted)


def _needs_weave(wanted: str, subject: Subject) -> str:
    trials = subject.trials
    routers = trials["router"] if "router" in trials else pd.Series(dtype=str)
    found = sorted(set(routers) - {""})
    if not found or found == [wanted]:
        return ""
    return f"Weave Net with its data path {wanted} (here {' and '.join(found)})"


#: Rules on the rig, by their name in ``needs``.
_OF_RIG: dict[str, Rule] = {
    "separate": _needs_separate,
    "cpus": _needs_cpus,
    "cpus_at_most": _needs_few_cpus,
    "own_cpus": _needs_own_cpus,
    "hosts": _needs_hosts,
    "link_gbit_per_s": _needs_link,
}
#: Rules on the trials of the claim.
_OF_TRIALS: dict[str, Rule] = {
    "cpu_use": _needs_cpu_use,
    "carried": _needs_carried,
    "offered": _needs_offered,
    "samples": _needs_samples,
    "regime": _needs_regime,
    "regime_times": _needs_regime_times,
    "weave": _needs_weave,
}
RULES = _OF_RIG | _OF_TRIALS


def _full_queue(subject: Subject) -> str:
    """Return what a latency needs that was measured while packets were lost."""
    if not subject.claim.value.startswith("loaded_latency_ns"):
        return ""
    lost = _median(subject.trials, "loaded_loss", subject.campaign)
    if not lost > _QUEUE_LOSS:
        return ""
    return (
        f"a rate below the forwarders' capacity (they lose up to {words.percent(lost)}: the latency"
        " of a full queue is the reciprocal of its throughput)"
    )


def _timer(subject: Subject) -> str:
    """Return what a latency needs whose differences its load tool cannot resolve."""
    if "_ns" not in subject.claim.value or (subject.claim.to is None and not subject.claim.order):
        return ""
    trials = subject.trials
    tools = dict(subject.campaign.settings.get("tools", {}))
    used = {tools.get(one) for one in trials["application"]} if "application" in trials else set()
    tool = next((str(one) for one in used if one in _TIMERS), "")
    timer = _TIMERS.get(tool)
    if timer is None:
        return ""
    levels = trials.groupby(trials["placement"])[subject.claim.value].median()
    if not np.ptp(levels) < timer:
        return ""
    tick = words.amount(timer, subject.claim.value)
    return f"a load tool with a finer timer than {tick} (here {tool})"


def _regime(subject: Subject) -> str:
    """Return what a claim needs whose own value is ten times off the paper's in the baseline."""
    absolute = subject.claim.absolute
    return "" if absolute is None else _needs_regime({subject.claim.value: absolute}, subject)


def _saturated(subject: Subject) -> str:
    """Return what a claim needs of which the load generator was the limit."""
    column = "loaded_saturated" if subject.claim.value.startswith("loaded_") else "saturated"
    trials = subject.trials
    share = trials.groupby([trials[name] for name in subject.campaign.factors])[column].mean().max()
    if not share > _SATURATED_SHARE:
        return ""
    return "a load generator that is not the limit itself"


def lacking(claim: Claim, campaign: Campaign) -> str:
    """Return what a claim needs and a campaign does not have; "" where nothing is lacking."""
    kind = campaign.rig.get("kind")
    if kind in ("simulated", "emulated"):
        return f"a rig that measures (here a {kind} one)"
    subject = Subject(claim, campaign)
    rules = RULES if len(subject.trials) else _OF_RIG
    found = [rules[name](wanted, subject) for name, wanted in claim.needs.items() if name in rules]
    if len(subject.trials):
        found += [rule(subject) for rule in (_saturated, _full_queue, _timer, _regime)]
    return "; ".join(filter(None, dict.fromkeys(found)))
