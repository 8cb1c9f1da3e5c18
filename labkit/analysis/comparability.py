"""Rules that tell what a claim needs and a rig or its setting does not have.

A rule reads the campaign and the paper's numbers, never the result of a comparison with the claim,
so that another rig or setting can decide what this one cannot.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from labkit.analysis import words
from labkit.analysis.stats import Cell
from labkit.data import expand
from labkit.placement import parse_cpus

if TYPE_CHECKING:
    from labkit.analysis.claims import Claim, Evidence

#: Share of a condition's trials that a saturated load generator may have limited.
SATURATED_SHARE = 0.1
#: Packets that a forwarder may lose before its latency is that of a full queue.
_QUEUE_LOSS = 0.01
#: Share of the packets from which a condition carries all that it is offered.
_CARRIES_ALL = 0.99
#: Time by which wrk2 over-reports a latency, in ns: up to a tick of its event loop
#: (https://github.com/giltene/wrk2/issues/78).
_TICK = 1e6


@dataclass(frozen=True)
class Subject:
    """A claim and the campaign that it is asked of."""

    claim: Claim
    evidence: Evidence

    @property
    def cells(self) -> list[dict[str, Any]]:
        """Cells of the claim and of its baselines."""
        return [*expand(self.claim.of), *self.claim.baselines]

    def trials(self, cells: Sequence[Cell], *columns: str) -> pd.DataFrame:
        """Return columns of the successful trials of some cells, NaN where not measured."""
        table = self.evidence
        return table.trials.reindex(columns=columns)[table.ok & table.of(*cells)[table.condition]]

    def by_condition(self, cells: Sequence[Cell], *columns: str, of: str = "median") -> Any:
        """Return a statistic of columns of each condition of some cells."""
        found = self.trials(cells, *columns)
        return found.groupby(self.evidence.condition[found.index]).agg(of)

    def stable(self, role: str = "sut") -> Mapping[str, Any]:
        """Return the facts of a host that do not change while it runs."""
        return dict(self.evidence.campaign.facts.get(role, {}).get("stable", {}))


Rule = Callable[[Any, Subject], str]


def _rule(found: Callable[[Subject], Any], fits: Callable[[Any, Any], bool], text: str) -> Rule:
    """Return the rule that a quantity found here fits the one wanted; the text says what lacks."""

    def rule(wanted: Any, subject: Subject) -> str:
        here = found(subject)
        return "" if fits(here, wanted) else text.format(wanted=wanted, here=here)

    return rule


def _cpus(subject: Subject) -> int:
    return int(subject.stable().get("cpu", {}).get("count") or 0)


def _own_cpus(subject: Subject) -> int:
    """Return how many CPUs the server's host shares with no other host."""
    rig = subject.evidence.campaign.rig
    if rig["shared_kernel"]:
        return len(parse_cpus(str(rig["cpu_map"].get("sut", ""))))
    return _cpus(subject)


def _separate(subject: Subject) -> set[str]:
    """Return which of machines, kernels and CPU time both ends have of their own."""
    rig, own = subject.evidence.campaign.rig, set[str]()
    if not rig["shared_kernel"]:
        own = {"machines", "kernels", "cpu time"}
    elif subject.evidence.campaign.settings.get("receiving_cpu") == "own":
        own = {"cpu time"}
    return {one for one in own if f"separate-{one.replace(' ', '-')}" not in rig["capabilities"]}


def _link(wanted: float, subject: Subject) -> str:
    """Return the link that a claim needs: its rate is shaped, or that of the network cards."""
    found = float(subject.evidence.campaign.settings.get("link_gbit_per_s") or 0.0)
    if not found and "nic-hardware" not in subject.evidence.campaign.rig["capabilities"]:
        cards = [subject.stable(role).get("interfaces", {}) for role in ("generator", "sut")]
        speeds = [str(card.get("speed")) for host in cards for card in host.values()]
        rates = [re.fullmatch(r"(\d+)Mb/s", speed) for speed in speeds]
        found = min((float(rate[1]) / 1000 if rate else 0.0 for rate in rates), default=0.0)
    here = f"{found:g} Gbit/s" if found else "no network card"
    return f"a link of {wanted:g} Gbit/s (here {here})" if found < wanted else ""


def _cpu_use(subject: Subject) -> float:
    """Return the share of a CPU that the server uses at most: without a quota it uses that."""
    cells = [cell | {"quota_us": "all"} for cell in expand(subject.claim.of)]
    trials = subject.trials(cells, "cpu_ns", "elapsed_ns", "warmup_ns")
    use = trials["cpu_ns"] / (trials["elapsed_ns"] + trials["warmup_ns"])
    return float(use.groupby(subject.evidence.condition[trials.index]).median().max())


def _carried(subject: Subject) -> float:
    """Return the share of the packets that a baseline forwards."""
    trials = subject.trials(subject.claim.baselines, "packets_per_s", "sent_per_s")
    return float((trials["packets_per_s"] / trials["sent_per_s"]).median())


def _offered(wanted: Mapping[str, float], subject: Subject) -> str:
    """Return what a condition needs that carries all that it is offered, if the paper offers more.

    The rates of the paper are packets a second, by payload.
    """
    names = ("payload_b", "packets_per_s", "sent_per_s", "offered_per_s")
    found = subject.by_condition(subject.cells, *names)
    found = found[found["packets_per_s"] >= _CARRIES_ALL * found["sent_per_s"]]
    for payload, rate in wanted.items():
        offered = found.loc[found["payload_b"] == int(payload), "offered_per_s"].min()
        if offered < rate:
            return f"{rate:,.0f} packets offered a second (here {offered:,.0f}, all carried)"
    return ""


def _regime(wanted: Mapping[str, float], subject: Subject) -> str:
    """Return what a claim needs whose baseline is many times off the paper's, in some columns."""
    times = subject.claim.regime
    for column, paper in wanted.items():
        found = subject.by_condition(subject.claim.baselines, column)[column].max()
        if found > 0 and not 1 / times <= found / paper <= times:
            amounts = [words.amount(one, column) for one in (paper, found)]
            return f"the paper's regime (a baseline of {amounts[0]}, here {amounts[1]})"
    return ""


def _routers(subject: Subject) -> str:
    routers = set(subject.trials(subject.cells, "router")["router"].dropna())
    return " and ".join(sorted(routers - {""}))


#: Rules on the rig and on the claim's trials, by their name in ``needs``; those on trials are met
#: where nothing was measured.
RULES: dict[str, Rule] = {
    "separate": _rule(
        _separate, lambda here, wanted: wanted in here, "separate {wanted} (here one kernel)"
    ),
    "cpus": _rule(_cpus, operator.ge, "{wanted} CPUs (here {here})"),
    "cpus_at_most": _rule(_cpus, operator.le, "at most {wanted} CPUs (here {here})"),
    "own_cpus": _rule(
        _own_cpus, operator.ge, "{wanted} CPUs of the server's host alone (here {here})"
    ),
    "hosts": _rule(  # the host without an engine stands in for another one: no trial uses both
        lambda subject: len(subject.evidence.campaign.rig["hosts"].keys() - {"clean"}),
        operator.ge,
        "{wanted} hosts (here {here})",
    ),
    "link_gbit_per_s": _link,
    "cpu_use": _rule(
        _cpu_use,
        lambda here, wanted: not (here < wanted[0] or here > wanted[1]),
        "a server that uses {wanted[0]:.0%} to {wanted[1]:.0%} of a CPU (here {here:.0%})",
    ),
    "carried": _rule(
        _carried,
        lambda here, wanted: not here < wanted,
        "a CPU that forwards the rate of the link (here the baseline carries {here:.0%})",
    ),
    "offered": _offered,
    "samples": _rule(
        lambda subject: subject.trials(subject.cells, "n_samples")["n_samples"].min(),
        lambda here, wanted: not here < wanted,
        "{wanted:,} samples a trial (here {here:,.0f})",
    ),
    "regime": _regime,
    "weave": _rule(
        _routers,
        lambda here, wanted: here in ("", wanted),
        "Weave Net with its data path {wanted} (here {here})",
    ),
}


def _always(subject: Subject) -> list[str]:
    """Return what the trials of any claim need: no limit of the load generator, queue or timer."""
    claim, cells, found = subject.claim, subject.cells, []
    saturated = "loaded_saturated" if claim.value.startswith("loaded_") else "saturated"
    if subject.by_condition(cells, saturated, of="mean")[saturated].max() > SATURATED_SHARE:
        found.append("a load generator that is not the limit itself")
    if claim.value.startswith("loaded_latency_ns"):
        lost = subject.by_condition(cells, "loaded_loss")["loaded_loss"].max()
        if lost > _QUEUE_LOSS:
            found.append(
                "a rate below the forwarders' capacity (they lose up to"
                f" {words.percent(lost)}: the latency of a full queue is the reciprocal of its"
                " throughput)"
            )
    if "_ns" in claim.value and (claim.to is not None or claim.order):
        loads = subject.evidence.campaign.settings.get("tools", {})
        trials = subject.trials(cells, "application", "placement", claim.value)
        timed = trials[trials["application"].map(loads) == "wrk2"].groupby("placement")
        medians = timed[claim.value].median()
        if medians.max() - medians.min() < _TICK:
            tick = words.amount(_TICK, claim.value)
            found.append(f"a load tool with a finer timer than {tick} (here wrk2)")
    if claim.absolute is not None:
        found.append(_regime({claim.value: claim.absolute}, subject))
    return found


def lacking(claim: Claim, evidence: Evidence) -> str:
    """Return what a claim needs and a campaign does not have; "" where nothing is lacking."""
    subject = Subject(claim, evidence)
    found = [RULES[name](wanted, subject) for name, wanted in claim.needs.items()]
    return "; ".join(filter(None, dict.fromkeys([*found, *_always(subject)])))
