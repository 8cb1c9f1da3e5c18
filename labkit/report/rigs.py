"""The rigs of a report: what each study's dataset recorded of its hosts, put together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.dataset import Dataset
from labkit.placement import cpu_set
from labkit.report.text import UNSTATED, stated
from labkit.report.topology import addresses_of, cpus_of, in_order

#: Hosts that stand only while a study asks for them.
PASSING = ("peer", "collector")
#: What a role is for.
ROLES = {
    "generator": "sends the load and takes the time",
    "sut": "holds the engine; containers, and processes beside it, are placed here",
    "clean": "has no engine: the clean baseline is placed here",
    "peer": "a second host with an engine",
    "collector": "listens at the switch, which mirrors ports to it while something is captured",
    "softirq": "the kernel's network work",
    "harness": "labkit itself, which sleeps while something is measured",
    "all": "ends that the scheduler places (affinity free)",
}
#: What is told of a machine: the words, and where its facts have it.
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
}
_ENGINE = {
    "version": "version",
    "storage driver": "Driver",
    "control groups by": "CgroupDriver",
    "runtime": "DefaultRuntime",
}


@dataclass(frozen=True)
class Measured:
    """A study on the page of its rig: what its page says, and its dataset."""

    title: str
    href: str
    summary: Mapping[str, Any]
    dataset: Dataset

    @property
    def key(self) -> str:
        """What studies of one rig have in common: everything but the hosts that come and go."""
        rig, sut = self.dataset.rig, self.dataset.facts.get("sut", {}).get("stable", {})
        stay = [
            {role: one for role, one in (rig.get(part) or {}).items() if role not in PASSING}
            for part in ("hosts", "cpu_map")
        ]
        words = [rig.get(name) for name in ("name", "kind", "links", "caveats")]
        machine = [_at(sut, _FACTS[name]) for name in ("Processor", "Kernel", "Memory, GiB")]
        return json.dumps([*stay, *words, *machine], sort_keys=True)

    @property
    def tools(self) -> dict[str, str]:
        """The tools that measured, with their versions."""
        return dict(self.dataset.plan["identity"].get("tools") or {})


@dataclass
class Rig:
    """One rig, and the studies that were measured on it."""

    studies: list[Measured] = field(default_factory=list)

    @property
    def described(self) -> dict[str, Any]:
        """What `labkit.rig.Rig.describe` gave, with the hosts of every study."""
        rigs = [one.dataset.rig for one in self.studies]
        found = dict(rigs[0])
        for part in ("hosts", "cpu_map", "capabilities"):
            every = [one.get(part) or {} for one in reversed(rigs)]
            found[part] = in_order({role: what for one in every for role, what in one.items()})
        return found

    def hosts(self) -> list[dict[str, Any]]:
        """Return each host: role, purpose, addresses, CPUs, engine, interfaces, and for whom."""
        rig, found = self.described, []
        for role, host in rig["hosts"].items():
            there = [one for one in self.studies if role in (one.dataset.rig.get("hosts") or {})]
            stable = [one.dataset.facts.get(role, {}).get("stable", {}) for one in there]
            found.append(
                {
                    "role": role,
                    "purpose": ROLES.get(role, ""),
                    "addresses": ", ".join(addresses_of(role, host)),
                    "cpus": cpus_of(role, host, rig),
                    "engine": _engine(stable) if host.get("engine") else "none",
                    "interfaces": _told(map(_interfaces, stable)),
                    "studies": [] if len(there) == len(self.studies) else there,
                }
            )
        return found

    def machines(self) -> list[tuple[list[str], dict[str, str]]]:
        """Return the facts of each machine, hosts with the same facts together."""
        found: list[tuple[list[str], dict[str, str]]] = []
        for role in self.described["hosts"]:
            facts = self._facts(role)
            same = next((roles for roles, known in found if known == facts), None)
            if same is None:
                found.append(([role], facts))
            else:
                same.append(role)
        return found

    def _facts(self, role: str) -> dict[str, str]:
        every = [one.dataset.facts[role] for one in self.studies if role in one.dataset.facts]
        stable = [facts.get("stable", {}) for facts in every]
        found = {words: _told(_at(one, path) for one in stable) for words, path in _FACTS.items()}
        names = sorted({name for one in stable for name in one.get("tools") or {}})
        tools = {
            name: _told((one.get("tools") or {}).get(name) for one in stable) for name in names
        }
        return found | {f"{name} (tool)": version for name, version in tools.items()}

    def cpu_map(self) -> tuple[list[int], list[dict[str, Any]]]:
        """Return the CPUs, and a row a role: which of them it may run on, or words instead."""
        rig = self.described
        roles = dict(rig["cpu_map"])
        for role, host in rig["hosts"].items():
            roles.setdefault(role, cpus_of(role, host, rig))
        sets = {role: _cpus(text) for role, text in roles.items()}
        every = sorted(set().union(*(one for one in sets.values() if one)))
        rows = [
            {
                "role": role,
                "purpose": ROLES.get(role.partition(".")[0], ""),
                "words": "" if sets[role] else stated(text),
                "runs": [cpu in (sets[role] or ()) for cpu in every],
            }
            for role, text in in_order(roles).items()
        ]
        return every, rows


def apart(studies: Iterable[Measured]) -> list[Rig]:
    """Return the rigs that studies were measured on, in the order of the studies."""
    found: dict[str, Rig] = {}
    for one in studies:
        found.setdefault(one.key, Rig()).studies.append(one)
    return list(found.values())


def _cpus(text: Any) -> frozenset[int] | None:
    """Return the CPUs of a list; None for what is said in words."""
    match = re.match(r"\d+(-\d+)?(,\d+(-\d+)?)*(?=$| \()", str(text or ""))
    return cpu_set(match[0]) if match else None


def _at(facts: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = facts
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    # Of the isolated CPUs an empty list was read, and says something.
    return "none" if found == "" and path[-1] == "isolated" else found


def _told(values: Iterable[Any]) -> str:
    """Return what studies recorded as text; several where they differ."""
    known = [str(one) for one in values if one not in (None, "", {}, [])]
    return "; ".join(dict.fromkeys(known)) or UNSTATED


def _engine(stable: Iterable[Mapping[str, Any]]) -> str:
    """Return what is known of a host's engine, in words."""
    every = [one.get("engine") or {} for one in stable]
    known = {words: _told(one.get(key) for one in every) for words, key in _ENGINE.items()}
    name = f"Docker Engine ({known.pop('version')})"
    return ", ".join(
        [name, *(f"{words} {value}" for words, value in known.items() if value != UNSTATED)]
    )


def _interfaces(stable: Mapping[str, Any]) -> str:
    """Return the lab interfaces of a host, with driver, rate and largest packet."""
    said = []
    for name, one in (stable.get("interfaces") or {}).items():
        parts = [one.get("driver"), one.get("speed"), f"MTU {one['mtu']}" if "mtu" in one else ""]
        said.append(f"{name} ({', '.join(filter(None, parts))})")
    return ", ".join(said)
