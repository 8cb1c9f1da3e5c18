"""The setting of a claim: what it asks of a rig and a campaign, against what they have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from labkit.answers import percent
from labkit.claims.schema import Cell, Claim, Needs
from labkit.dataset import Dataset
from labkit.placement import parse_cpus
from labkit.units import capability_words, heading

#: How near a rig and a campaign are to the paper's, the nearest first.
SETTINGS = ("same", "analogue", "unsuitable")
#: Sizes and durations within this factor of the paper's are the same setting.
SIZE_FACTOR = 2
#: What no rig lacks unless it says that it has it.
_OFFERED = ("aufs", "residence-time")
#: A host of this role stands in for another one, so that a trial never uses both.
_STAND_IN = "clean"


def setting(
    claim: Claim,
    dataset: Dataset,
    samples: int | None,
    sizes: Mapping[str, float],
    hosts: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Return the setting of a claim on the rig of a campaign, and what it lacks.

    `sizes` and `hosts` are those of the paper's own runs (`Claims.sizes`, `Claims.paper_hosts`).

    ``unsuitable``: the rig cannot have what the claim is about, or a confounder on it is as large
    as the effect. ``same``: host roles, hardware, and sizes and durations within `SIZE_FACTOR` of
    the paper's, on hosts with what the paper's had. ``analogue``: the rest.
    """
    if dataset.unmeasured:
        return "unsuitable", dataset.unmeasured
    hosts = hosts or {}
    here = {name: _HOSTS[name][1](dataset) for name in _HOSTS if name in hosts}
    other = {
        name: f"{_HOSTS[name][0]}: {hosts[name]} in the paper, {found or 'not recorded'} here"
        for name, found in here.items()
        if found != hosts[name]
    }
    # One that a campaign did not record may be that of the paper.
    large = [reason for name, reason in other.items() if name in _CONFOUNDERS and here[name]]
    if lacking := [*_lacking(claim.needs, claim, dataset, samples), *large]:
        return "unsuitable", "; ".join(lacking)
    if lacking := [
        *_lacking(claim.same, claim, dataset, samples),
        *_other_sizes(sizes, dataset),
        *other.values(),
    ]:
        return "analogue", "; ".join(lacking)
    return "same", ""


def _other_sizes(sizes: Mapping[str, float], dataset: Dataset) -> Iterator[str]:
    """Yield the sizes of a campaign that are not within `SIZE_FACTOR` of the paper's."""
    for name, published in sizes.items():
        value: Any = dataset.plan.get("settings", {})
        try:
            for key in name.split("."):
                value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            yield f"{_size_words(name)}: {published:,.10g} in the paper, not stated here"
            continue
        if not published / SIZE_FACTOR <= float(value) <= published * SIZE_FACTOR:
            yield f"{_size_words(name)}: {published:,.10g} in the paper, {value:,} here"


def _size_words(name: str) -> str:
    """Return the path of a setting (``linpack_size.equations``) in words with its unit."""
    return ", ".join(heading(part) for part in name.split(".") if not part.isdecimal())


def _congestion_control(dataset: Dataset) -> str:
    """Return what was set, or else what the hosts and the placements had."""
    level = dataset.plan.get("settings", {}).get("congestion_control", "as found")
    if level != "as found":
        return str(level)
    path = "net/ipv4/tcp_congestion_control"
    kernels = [_stable(dataset.facts, role).get("kernel", {}) for role in dataset.facts]
    found = {kernel.get("sysctl", {}).get(path) for kernel in kernels}
    found |= {one.get("congestion_control") for one in _verified(dataset)}
    return " and ".join(sorted(filter(None, found)))


def _disk(dataset: Dataset) -> str:
    """Return the kind of disk below the data of the engine."""
    places = _stable(dataset.facts, "sut").get("storage", {})
    return str(places.get("engine", {}).get("disk") or "")


def _idle(dataset: Dataset) -> str:
    """Return the idle policy of a campaign (`labkit.treatments.IdlePolicy`)."""
    return str(dataset.plan.get("settings", {}).get("idle", "as found"))


def _seccomp(dataset: Dataset) -> str:
    """Return the profile of seccomp filters that the engine gives containers."""
    options = (_stable(dataset.facts, "sut").get("engine") or {}).get("SecurityOptions")
    if options is None:
        return ""
    named = re.search(r"name=seccomp,profile=([\w.-]+)", " ".join(options))
    # Later engines call their default "builtin".
    return "none" if not named else named[1].replace("builtin", "default")


def _weave(dataset: Dataset) -> str:
    """Return what carried the packets of Weave Net's routers, by every placement on it."""
    paths = {path for one in _verified(dataset) for path in (one.get("router") or {}).values()}
    return " and ".join(sorted(paths))


def _verified(dataset: Dataset) -> Iterator[Mapping[str, Any]]:
    """Yield what was read back of every placement of every attempt."""
    for record in dataset.records:
        yield record.get("verification") or {}
        yield from (record.get("verifications") or {}).values()


#: What a paper's hosts may differ in: how a reason names it, and how it is read of a campaign.
_HOSTS: Mapping[str, tuple[str, Callable[[Dataset], str]]] = {
    "congestion_control": ("TCP congestion control", _congestion_control),
    "disk": ("the kind of disk", _disk),
    "idle": ("idle states", _idle),
    "weave": ("the data path of Weave Net", _weave),
    "seccomp": ("the seccomp filter of containers", _seccomp),
}


#: Those whose effect is as large as what the claims are about. TCP through Weave Net's routers in
#: user space has 1 % of the host's throughput in data/reference; through the kernel the paper's
#: had 17 % (haruna2019, Table 5.1).
_CONFOUNDERS = frozenset({"weave"})


def _lacking(needs: Needs, claim: Claim, dataset: Dataset, samples: int | None) -> Iterator[str]:
    rig, facts = dataset.rig, dataset.facts
    for name in needs.capabilities:
        if reason := _capability(name, dataset):
            yield f"{capability_words(name)}: {reason}"
    for what, wanted, available in (
        ("CPUs of the system under test", needs.cores, _cores(facts)),
        ("CPUs of the server's host alone", needs.own_cpus, _own_cpus(dataset)),
        ("hosts", needs.hosts, len(rig.get("hosts", {}).keys() - {_STAND_IN})),
        ("samples a trial", needs.samples if samples is not None else 0, samples),
    ):
        if wanted and not available:
            yield f"{wanted:,} {what}: the campaign does not state them"
        elif available and available < wanted:
            yield f"{wanted:,} {what}: there are {available:,}"
    if needs.cores_at_most and not 0 < (available := _cores(facts)) <= needs.cores_at_most:
        yield f"at most {needs.cores_at_most} CPUs of the system under test: there are {available}"
    shaped = dataset.plan.get("settings", {}).get("link_gbit_per_s")
    if (
        needs.link_gbit_per_s
        and needs.link_gbit_per_s != shaped
        and (reason := _link(needs.link_gbit_per_s, dataset))
    ):
        yield f"a link of {needs.link_gbit_per_s:g} Gbit/s: {reason}"
    if needs.engine and not _ran(needs.engine, dataset):
        yield f"{needs.engine}: nothing ran under it"
    if needs.cpu_use and not needs.cpu_use[0] <= (use := _use(claim, dataset)) <= needs.cpu_use[1]:
        low, high = needs.cpu_use
        found = "the campaign does not state it" if math.isnan(use) else f"it uses {use:.0%}"
        yield f"a server that uses {low:.0%} to {high:.0%} of a CPU: {found}"
    most = needs.loss_at_most
    if most is not None and not (lost := _lost(claim, dataset)) <= most:
        found = f"it loses {percent(lost)}" if lost >= 0 else "the campaign does not state it"
        yield f"a baseline that loses at most {percent(most)} of the packets offered: {found}"


def _use(claim: Claim, dataset: Dataset) -> float:
    """Return the CPU use of a server while it is called: the highest median of a condition.

    NaN where the trials of the claim's `where` do not state it.
    """
    rows = _rows(claim.where, dataset)
    if not {"cpu_ns", "elapsed_ns", "warmup_ns"} <= set(rows):
        return math.nan
    return _highest(rows["cpu_ns"] / (rows["elapsed_ns"] + rows["warmup_ns"]), rows, dataset)


def _lost(claim: Claim, dataset: Dataset) -> float:
    """Return the share of packets that a claim's baseline loses at the rate of its latencies.

    The highest median of a condition; NaN where its trials do not state it.
    """
    baseline = claim.complete_cells()["baseline"]
    rows = pd.concat([_rows({**baseline, **at}, dataset) for at in claim.at_each()])
    return _highest(rows["loaded_loss"], rows, dataset) if "loaded_loss" in rows else math.nan


def _rows(cell: Cell, dataset: Dataset) -> pd.DataFrame:
    """Return the successful trials that have the levels of a cell."""
    rows = dataset.ok
    for factor, level in cell.items():
        here = rows.get(factor, pd.Series("", index=rows.index)).astype(str)
        number = not isinstance(level, str)
        rows = rows[(pd.to_numeric(here, errors="coerce") if number else here) == level]
    return rows


def _highest(values: pd.Series[float], rows: pd.DataFrame, dataset: Dataset) -> float:
    """Return the highest median of a condition."""
    factors = [rows[name] for name in dataset.levels if name in rows]
    return float(values.groupby(factors).median().max())


def _capability(name: str, dataset: Dataset) -> str:
    """Return why the rig of a campaign lacks a capability; empty where it has it."""
    rig = dataset.rig
    lacking = rig.get("capabilities")
    if lacking is None:
        return "the rig does not state what it lacks"
    if name in lacking:
        return str(lacking[name])
    if name in ("separate-kernels", "separate-machines") and rig.get("shared_kernel", True):
        return "the hosts share one kernel"
    own = dataset.plan.get("settings", {}).get("receiving_cpu") == "own"
    if name == "separate-cpu-time" and rig.get("shared_kernel", True) and not own:
        return "the sender's CPU takes in what the receiver gets"
    if name in _OFFERED and name not in rig.get("offers", ()):
        return "the rig does not offer it"
    return ""


def _cores(facts: Mapping[str, Any]) -> int:
    return int(_stable(facts, "sut").get("cpu", {}).get("count") or 0)


def _own_cpus(dataset: Dataset) -> int:
    """Return how many CPUs the host of the server has, and no other host of the rig."""
    if not dataset.rig.get("shared_kernel", True):
        return _cores(dataset.facts)
    return len(parse_cpus(str(dataset.rig.get("cpu_map", {}).get("sut", ""))))


def _link(wanted: float, dataset: Dataset) -> str:
    """Return why the link between both ends is not known to have a rate; empty where it has."""
    # A virtual interface names a rate that no packet ever keeps to.
    if reason := _capability("nic-hardware", dataset):
        return reason
    ends = [_stable(dataset.facts, role) for role in ("generator", "sut")]
    rates = [rate for end in ends for rate in _rates(end)]
    if not rates or not all(map(math.isfinite, rates)):
        return "the rig does not state a rate"
    return "" if min(rates) >= wanted else f"there are {min(rates):g} Gbit/s"


def _rates(stable: Mapping[str, Any]) -> list[float]:
    """Return the rate of each lab interface in Gbit/s, NaN where it is not known."""
    speeds = [str(interface.get("speed")) for interface in stable.get("interfaces", {}).values()]
    matches = [re.fullmatch(r"(\d+)Mb/s", speed) for speed in speeds]
    return [int(match[1]) / 1000 if match else math.nan for match in matches] or [math.nan]


def _stable(facts: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    return dict(facts.get(role, {}).get("stable", {}))


def _ran(engine: str, dataset: Dataset) -> bool:
    """Tell whether a runtime ran: by the placements, or else by the engines of the hosts."""
    placements = dataset.levels.get("placement")
    if placements is not None:
        return any(str(placement).split()[0] == engine for placement in placements)
    hosts = dataset.rig.get("hosts", {}).values()
    return engine == "docker" and len(dataset.ok) > 0 and any(host.get("engine") for host in hosts)
