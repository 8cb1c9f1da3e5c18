"""Rules that tell what a claim needs and a rig or its setting does not have.

A rule reads the campaign and the paper's numbers, never the result of a comparison with the claim,
so that another rig or setting can decide what this one cannot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
#: Time by which wrk2 over-reports a latency, in ns: up to a tick of its event loop
#: (https://github.com/giltene/wrk2/issues/78).
_TICK = 1e6


class _Rules:
    """Rules by their names in ``needs``: each returns what a campaign lacks for a claim, or "".

    Those on trials are met where nothing was measured.
    """

    def __init__(self, claim: Claim, evidence: Evidence) -> None:
        self.claim, self.evidence, self.campaign = claim, evidence, evidence.campaign
        self.baselines = [{**cell, **claim.to} for cell in expand(claim.of)]
        self.cells: list[Cell] = [*expand(claim.of), *self.baselines]
        self.rig, self.settings = self.campaign.rig, self.campaign.settings

    def _trials(self, cells: Sequence[Cell], *columns: str) -> pd.DataFrame:
        """Return columns of the successful trials of some cells, NaN where not measured."""
        table = self.evidence
        return table.trials.reindex(columns=columns)[table.ok & table.of(*cells)[table.condition]]

    def _by_condition(self, cells: Sequence[Cell], *columns: str, of: str = "median") -> Any:
        found = self._trials(cells, *columns)
        return found.groupby(self.evidence.condition[found.index]).agg(of)

    def _stable(self, role: str = "sut") -> Mapping[str, Any]:
        return dict(self.campaign.facts.get(role, {}).get("stable", {}))

    @property
    def _cpus(self) -> int:
        return int(self._stable().get("cpu", {}).get("count") or 0)

    def cpus(self, wanted: int) -> str:
        return "" if self._cpus >= wanted else f"{wanted} CPUs (here {self._cpus})"

    def cpus_at_most(self, wanted: int) -> str:
        return "" if self._cpus <= wanted else f"at most {wanted} CPUs (here {self._cpus})"

    def own_cpus(self, wanted: int) -> str:
        """Require CPUs that the server's host shares with no other host."""
        shared = self.rig["shared_kernel"]
        here = len(parse_cpus(str(self.rig["cpu_map"].get("sut", "")))) if shared else self._cpus
        return "" if here >= wanted else f"{wanted} CPUs of the server's host alone (here {here})"

    def hosts(self, wanted: int) -> str:
        # A trial uses either the host without an engine or the one with it.
        here = len(self.rig["hosts"].keys() - {"clean"})
        return "" if here >= wanted else f"{wanted} hosts (here {here})"

    def separate(self, wanted: str) -> str:
        """Require machines, kernels or CPU time that both ends have of their own."""
        own = not self.rig["shared_kernel"]
        own = own or (wanted, self.settings.get("receiving_cpu")) == ("cpu time", "own")
        own = own and f"separate-{wanted.replace(' ', '-')}" not in self.rig["capabilities"]
        return "" if own else f"separate {wanted} (here one kernel)"

    def link_gbit_per_s(self, wanted: float) -> str:
        """Require a link, whose rate is shaped, or that of the network cards."""
        found = float(self.settings.get("link_gbit_per_s") or 0.0)
        if not found and "nic-hardware" not in self.rig["capabilities"]:
            cards = [self._stable(role).get("interfaces", {}) for role in ("generator", "sut")]
            speeds = [str(card.get("speed")) for host in cards for card in host.values()]
            rates = [re.fullmatch(r"(\d+)Mb/s", speed) for speed in speeds]
            found = min((float(rate[1]) / 1000 if rate else 0.0 for rate in rates), default=0.0)
        here = f"{found:g} Gbit/s" if found else "no network card"
        return f"a link of {wanted:g} Gbit/s (here {here})" if found < wanted else ""

    def cpu_use(self, wanted: Sequence[float]) -> str:
        """Require a share of a CPU that the server uses at most: without a quota it uses that."""
        low, high = wanted
        cells = [cell | {"quota_us": "all"} for cell in expand(self.claim.of)]
        trials = self._trials(cells, "cpu_ns", "elapsed_ns", "warmup_ns")
        use = trials["cpu_ns"] / (trials["elapsed_ns"] + trials["warmup_ns"])
        here = use.groupby(self.evidence.condition[trials.index]).median().max()
        lacks = f"a server that uses {low:.0%} to {high:.0%} of a CPU (here {here:.0%})"
        return lacks if here < low or here > high else ""

    def carried(self, wanted: float) -> str:
        """Require a share of the packets that a baseline forwards."""
        trials = self._trials(self.baselines, "packets_per_s", "sent_per_s")
        here = (trials["packets_per_s"] / trials["sent_per_s"]).median()
        lacks = "a CPU that forwards the rate of the link"
        return f"{lacks} (here the baseline carries {here:.0%})" if here < wanted else ""

    def offered(self, wanted: Mapping[str, float]) -> str:
        """Require as many packets a second as the paper offers, by payload, or a loss."""
        names = ("payload_b", "packets_per_s", "sent_per_s", "offered_per_s")
        found = self._by_condition(self.cells, *names)
        # A condition that carries all that it is offered may carry more.
        found = found[found["packets_per_s"] >= 0.99 * found["sent_per_s"]]
        for payload, rate in wanted.items():
            here = found.loc[found["payload_b"] == int(payload), "offered_per_s"].min()
            if here < rate:
                return f"{rate:,.0f} packets offered a second (here {here:,.0f}, all carried)"
        return ""

    def samples(self, wanted: int) -> str:
        here = self._trials(self.cells, "n_samples")["n_samples"].min()
        return f"{wanted:,} samples a trial (here {here:,.0f})" if here < wanted else ""

    def regime(self, wanted: Mapping[str, float]) -> str:
        """Require a baseline that is not many times off the paper's, in some columns."""
        times = self.claim.regime
        for column, paper in wanted.items():
            here = self._by_condition(self.baselines, column)[column].max()
            if here > 0 and not 1 / times <= here / paper <= times:
                amounts = [words.amount(one, column) for one in (paper, here)]
                return f"the paper's regime (a baseline of {amounts[0]}, here {amounts[1]})"
        return ""

    def weave(self, wanted: str) -> str:
        routers = {*self._trials(self.cells, "router")["router"].dropna()} - {""}
        here = " and ".join(sorted(routers))
        return "" if routers <= {wanted} else f"Weave Net with its data path {wanted} (here {here})"


RULES = {name: rule for name, rule in vars(_Rules).items() if not name.startswith("_")}


def lacking(claim: Claim, evidence: Evidence) -> str:
    """Return what a claim needs and a campaign does not have; "" where nothing is lacking."""
    rules, value = _Rules(claim, evidence), claim.value
    found = [RULES[name](rules, wanted) for name, wanted in claim.needs.items()]
    # What the trials of any claim need: no limit of the load generator, queue or timer.
    saturated = "loaded_saturated" if value.startswith("loaded_") else "saturated"
    if rules._by_condition(rules.cells, saturated, of="mean")[saturated].max() > SATURATED_SHARE:
        found.append("a load generator that is not the limit itself")
    if value.startswith("loaded_latency_ns"):
        lost = rules._by_condition(rules.cells, "loaded_loss")["loaded_loss"].max()
        if lost > _QUEUE_LOSS:
            found.append(
                f"a rate below the forwarders' capacity (they lose up to {words.percent(lost)}: the"
                " latency of a full queue is the reciprocal of its throughput)"
            )
    if "_ns" in value and (claim.to or claim.order):
        trials = rules._trials(rules.cells, "application", "placement", value)
        loads = trials["application"].map(rules.settings.get("tools", {}))
        medians = trials[loads == "wrk2"].groupby("placement")[value].median()
        if medians.max() - medians.min() < _TICK:
            tick = words.amount(_TICK, value)
            found.append(f"a load tool with a finer timer than {tick} (here wrk2)")
    if claim.absolute is not None:
        found.append(rules.regime({value: claim.absolute}))
    return "; ".join(filter(None, dict.fromkeys(found)))
