"""The page of the rig: hosts and CPUs, ladder of baselines, noise, what cannot be decided.

Everything is read from the datasets of the studies that were measured on the rig.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis.checks import blocks_across_sessions
from labkit.analysis.compare import compare, with_verdict_intervals
from labkit.analysis.noise import baseline_steps
from labkit.analysis.summary import summarise
from labkit.analysis.tables import headline
from labkit.analysis.trials import sort_samples
from labkit.dataset import Dataset, load
from labkit.dataset.comparison import level_of
from labkit.placement import cpu_set
from labkit.plots import interval_plot
from labkit.report import topology
from labkit.report.html import UNSTATED, fact_at, number, picture, render, stated, write
from labkit.report.pages import index_entry
from labkit.report.topology import ROLES, addresses_of, cpus_of, in_order

#: The result of a claim that asks for more than the rig has.
UNDECIDED = "not decidable on this rig"
#: Hosts that are up only for studies that ask for them.
_TEMPORARY = ("peer", "clean-peer", "collector")
#: Facts of a machine that are shown: the label, and the path in its facts.
_FACTS: dict[str, tuple[str, ...]] = {
    "Processor": ("cpu", "model"),
    "CPUs online": ("cpu", "online"),
    "Threads of a core (SMT)": ("cpu", "smt"),
    "CPUs isolated at boot": ("cpu", "isolated"),
    "Frequency governor": ("cpu", "governor"),
    "Idle driver": ("idle", "driver"),
    "Memory, GiB": ("memory_gib",),
    "Virtualisation": ("virtualisation", "detected"),
    "Distribution": ("distribution",),
    "Kernel": ("kernel", "release"),
    "Timer, Hz": ("kernel", "hz"),
    "Clock source": ("kernel", "clock_source"),
    "Control groups": ("cgroup", "version"),
    "TCP congestion control": ("kernel", "sysctl", "net/ipv4/tcp_congestion_control"),
    "File system of the engine": ("storage", "engine", "filesystem"),
    "Disk of the engine": ("storage", "engine", "disk"),
}
_ENGINE = {
    "version": "version",
    "storage driver": "Driver",
    "control groups by": "CgroupDriver",
    "runtime": "DefaultRuntime",
    "security": "SecurityOptions",
}
#: The samples that the ladder of baselines is measured by.
VALUE = "rtt_ns"
#: The baseline levels from the lowest up, each with what it adds to the one below.
LADDER = {
    "bare clean": "a process on a host without an engine",
    "bare rules": "the firewall rules of the engine, which runs on the same host",
    "bare chroot": "the image's own root file system (a chroot)",
    "bare cgroup": "a control group like the container's: the nearest baseline",
    "docker host": "the container itself: namespaces, seccomp, capabilities; the host's network",
    "docker bridge": "a network of its own: a veth pair to a bridge",
}
#: The least levels of a ladder, and the most ladders shown of a campaign.
_LEAST, _FEW = 3, 2


def build_rig(
    pages: Mapping[Path, Path],
    output: Path,
    *,
    ledger: Mapping[str, Mapping[str, int]] | None = None,
) -> Path:
    """Write the page of the rig, or of every rig that the studies of a report were measured on."""
    studies = [_study(page, data, output) for page, data in pages.items()]
    title = "The rig"
    text = render(
        "rig.html.j2",
        title,
        {"page_title": title},
        rigs=[_shown_rig(rig) for rig in rigs_of(studies)],
        ladders=[(study, ladder) for study in studies for ladder in ladders_of(study.dataset)],
        studies=studies,
        undecided=UNDECIDED,
        counts={
            source: row[UNDECIDED] for source, row in (ledger or {}).items() if row.get(UNDECIDED)
        },
    )
    write(output, text)
    return output


def _study(page: Path, data: Path, output: Path) -> MeasuredStudy:
    about = index_entry(page, output)
    return MeasuredStudy(str(about["title"]), about["href"], about["summary"], load(data))


def _shown_rig(rig: Rig) -> dict[str, Any]:
    """Return what the template shows of one rig."""
    described = rig.described
    (cpus, roles), machines = rig.cpu_map(), rig.machines()
    return {
        **described,
        "topology": topology.draw(described),
        "cpus": cpus,
        "roles": roles,
        "table": rig.hosts(),
        "machines": machines,
        "facts": list(dict.fromkeys(name for _, facts in machines for name in facts)),
        "studies": rig.studies,
    }


@dataclass(frozen=True)
class MeasuredStudy:
    """A study on the page of its rig: what its page says, and its dataset."""

    title: str
    href: str
    summary: Mapping[str, Any]
    dataset: Dataset

    @property
    def key(self) -> str:
        """What identifies the rig: everything but its temporary hosts."""
        rig, sut = self.dataset.rig, self.dataset.facts.get("sut", {}).get("stable", {})
        permanent = [
            {role: host for role, host in (rig.get(part) or {}).items() if role not in _TEMPORARY}
            for part in ("hosts", "cpu_map")
        ]
        words = [rig.get(name) for name in ("name", "kind", "links", "caveats")]
        machine = [_at(sut, _FACTS[name]) for name in ("Processor", "Kernel", "Memory, GiB")]
        return json.dumps([*permanent, *words, *machine], sort_keys=True)


@dataclass(frozen=True)
class Rig:
    """One rig, and the studies that were measured on it."""

    studies: list[MeasuredStudy]

    @property
    def described(self) -> dict[str, Any]:
        """The description of the rig, with the hosts of every study."""
        rigs = [study.dataset.rig for study in self.studies]
        merged = dict(rigs[0])
        for part in ("hosts", "cpu_map", "capabilities"):
            merged[part] = {}
            for rig in reversed(rigs):
                merged[part] |= rig.get(part) or {}
            merged[part] = in_order(merged[part])
        return merged

    def hosts(self) -> list[dict[str, Any]]:
        """Return each host: role, addresses, CPUs, engine, interfaces, its studies."""
        rig, hosts = self.described, []
        for role, host in rig["hosts"].items():
            studies = [s for s in self.studies if role in (s.dataset.rig.get("hosts") or {})]
            stable = [study.dataset.facts.get(role, {}).get("stable", {}) for study in studies]
            hosts.append(
                {
                    "role": role,
                    "addresses": ", ".join(addresses_of(role, host)),
                    "cpus": cpus_of(role, host, rig),
                    "engine": _engine(stable) if host.get("engine") else "none",
                    "interfaces": _recorded(map(_interfaces, stable)),
                    "studies": [] if len(studies) == len(self.studies) else studies,
                }
            )
        return hosts

    def machines(self) -> list[tuple[list[str], dict[str, str]]]:
        """Return the facts of each machine, hosts with the same facts together."""
        machines: list[tuple[list[str], dict[str, str]]] = []
        for role in self.described["hosts"]:
            facts = self._facts(role)
            same = next((roles for roles, known in machines if known == facts), None)
            if same is None:
                machines.append(([role], facts))
            else:
                same.append(role)
        return machines

    def _facts(self, role: str) -> dict[str, str]:
        datasets = [study.dataset for study in self.studies if role in study.dataset.facts]
        stable = [dataset.facts[role].get("stable", {}) for dataset in datasets]
        facts = {
            label: _recorded(_at(known, path) for known in stable) for label, path in _FACTS.items()
        }
        for name in sorted({name for known in stable for name in known.get("tools") or {}}):
            versions = ((known.get("tools") or {}).get(name) for known in stable)
            facts[f"{name} (tool)"] = _recorded(versions)
        return facts

    def cpu_map(self) -> tuple[list[int], list[dict[str, Any]]]:
        """Return the CPUs, and for each role those it may run on, or a text instead."""
        rig = self.described
        roles = dict(rig["cpu_map"])
        for role, host in rig["hosts"].items():
            roles.setdefault(role, cpus_of(role, host, rig))
        sets = {role: _cpus(text) for role, text in roles.items()}
        cpus = sorted(set().union(*filter(None, sets.values())))
        rows = [
            {
                "role": role,
                "purpose": ROLES.get(role.partition(".")[0], ""),
                "words": "" if sets[role] else stated(text),
                "runs": [cpu in (sets[role] or ()) for cpu in cpus],
            }
            for role, text in in_order(roles).items()
        ]
        return cpus, rows


def rigs_of(studies: Iterable[MeasuredStudy]) -> list[Rig]:
    """Return the rigs that studies were measured on, in the order of the studies."""
    rigs: dict[str, list[MeasuredStudy]] = {}
    for study in studies:
        rigs.setdefault(study.key, []).append(study)
    return list(map(Rig, rigs.values()))


def _cpus(text: Any) -> frozenset[int] | None:
    """Return the CPUs of a list; None for a text in words."""
    match = re.match(r"\d+(-\d+)?(,\d+(-\d+)?)*(?=$| \()", str(text or ""))
    return cpu_set(match[0]) if match else None


def _at(facts: Mapping[str, Any], path: Sequence[str]) -> Any:
    value = fact_at(facts, path)
    # An empty list of isolated CPUs means that there are none.
    return "none" if value == "" and path[-1] == "isolated" else value


def _recorded(values: Iterable[Any]) -> str:
    """Return what studies recorded as text, every distinct value."""
    known = [str(value) for value in values if value not in (None, "", {}, [])]
    return "; ".join(dict.fromkeys(known)) or UNSTATED


def _engine(stable: Iterable[Mapping[str, Any]]) -> str:
    """Return the recorded facts of a host's engine as text."""
    engines = [known.get("engine") or {} for known in stable]
    facts = {
        label: _recorded(fact_at(engine, [key]) for engine in engines)
        for label, key in _ENGINE.items()
    }
    name = f"Docker Engine ({facts.pop('version')})"
    known = [f"{label} {value}" for label, value in facts.items() if value != UNSTATED]
    return ", ".join([name, *known])


def _interfaces(stable: Mapping[str, Any]) -> str:
    """Return the lab interfaces of a host, with driver, rate and MTU."""
    interfaces = []
    for name, nic in (stable.get("interfaces") or {}).items():
        parts = [nic.get("driver"), nic.get("speed"), f"MTU {nic['mtu']}" if "mtu" in nic else ""]
        interfaces.append(f"{name} ({', '.join(filter(None, parts))})")
    return ", ".join(interfaces)


@dataclass(frozen=True)
class Ladder:
    """One ladder of baselines; the other factors have the levels `within`.

    `steps` is the result of `labkit.analysis.noise.baseline_steps` in µs, with the ratio to the
    lowest level as ``lowest, lowest_low, lowest_high``. `margin` is the plan's.
    """

    within: dict[str, Any]
    steps: pd.DataFrame
    margin: float

    @property
    def title(self) -> str:
        """The levels of the other factors."""
        return ", ".join(f"{name} {level}" for name, level in self.within.items())

    @property
    def query(self) -> str:
        """The expression for `Dataset.ok.query` that selects the trials."""
        levels = {**self.within, "placement": self.steps["condition"].to_list()}
        return " and ".join(f"{name} == {level!r}" for name, level in levels.items())

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The levels as a page shows them, None for what is missing."""
        table = self.steps.astype(object).where(self.steps.notna(), None)
        rows = [
            {str(name): value for name, value in row.items()} for row in table.to_dict("records")
        ]
        return [
            row
            | {
                "adds": LADDER[row["condition"]],
                "verdict": headline(row, "")["verdict"] if row["below"] else None,
            }
            for row in rows
        ]

    @property
    def alt(self) -> str:
        """The figure as text."""
        steps = [
            f"{row['condition']} over {row['below']} {number(row['estimate'])}"
            f" [{number(row['low'])} to {number(row['high'])}], {row['verdict']}"
            for row in self.rows
            if row["below"]
        ]
        return f"Round trips, each level over the one below: {'; '.join(steps)}."

    @property
    def image(self) -> str:
        """Each level's ratio to the one below, with intervals and verdicts, as a data URL."""
        table = self.steps[self.steps["below"].notna()]
        table = table.assign(step=table["condition"] + " / " + table["below"])
        figure = interval_plot(table, margin=self.margin, label="step", baseline="the level below")
        return picture(figure)


def ladders_of(campaign: Dataset) -> list[Ladder]:
    """Return the ladders of a campaign with most levels, at most two."""
    factors = dict(campaign.plan["factors"])
    placements = set(map(str, factors.pop("placement", [])))
    planned = [name for name in LADDER if name in placements]
    if len(planned) < _LEAST or not any(VALUE in names for names in campaign.sampled.values()):
        return []
    trials, margin = _trials(campaign), campaign.margin
    alpha = level_of(campaign, 0.05, trials["block"].nunique())
    ladders = []
    for levels in itertools.product(*factors.values()):
        within = dict(zip(factors, levels, strict=True))
        equal = trials[list(within)].astype("str") == pd.Series(within).astype("str")
        part = trials[equal.all(axis=1)]
        measured = [name for name in planned if name in set(part["placement"])]
        if len(measured) >= _LEAST:
            ladders.append(Ladder(within, _steps(part, measured, margin, alpha), margin))
    most = max((len(ladder.steps) for ladder in ladders), default=0)
    return [ladder for ladder in ladders if len(ladder.steps) == most][:_FEW]


def _trials(campaign: Dataset) -> pd.DataFrame:
    """Return the median round trip of each trial in µs, without blocks that span sessions."""
    ordered = campaign.series([VALUE], reduce=sort_samples)
    medians = summarise(ordered, by=["trial"], value=VALUE, statistics=["median"])
    trials = campaign.ok.merge(medians.astype({"trial": "str"})[["trial", "median"]], on="trial")
    trials["median"] /= 1000
    return trials[~trials["block"].isin(blocks_across_sessions(trials))]


def _steps(
    trials: pd.DataFrame, levels: Sequence[str], margin: float, alpha: float
) -> pd.DataFrame:
    options: dict[str, Any] = {"value": "median", "condition": "placement"}
    options |= {"margin": margin, "alpha": alpha}
    trials = trials[trials["placement"].isin(levels)]
    table = with_verdict_intervals(baseline_steps(trials, levels=levels, **options))
    lowest = compare(trials, baseline=levels[0], **options)
    ends = {name: f"lowest_{name}" for name in ("low", "high")} | {"estimate": "lowest"}
    lowest = lowest[["condition", *ends]].rename(columns=ends)
    return table.merge(lowest, on="condition", how="left")
