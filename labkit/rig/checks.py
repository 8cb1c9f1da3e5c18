"""Titled checks of hosts: this machine, for the virtual rig, and machines of a rig.toml."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from labkit.errors import UNPACKAGED
from labkit.hosts import Host
from labkit.placement import parse_cpus
from labkit.rig.netns import KEEP
from labkit.rig.networks import BRIDGE
from labkit.rig.rigfile import Machine, RigFile
from labkit.runtimes import RUNTIMES

#: Drivers without a device, and those of devices that a hypervisor emulates.
SOFTWARE = {"", "veth", "bridge", "tun", "macvlan", "ipvlan", "vxlan", "dummy"}
PARAVIRTUAL = {"virtio_net", "vmxnet3", "hv_netvsc", "vif", "xen_netfront"}
#: The hosts that each exchanges lab traffic with.
_FAR = {"generator": ("sut", "clean", "peer"), "sut": ("generator", "peer")}
_FAR |= {"clean": ("generator",), "peer": ("generator", "sut")}


class Check(NamedTuple):
    """The result of one check; with a fault of what is `needed` nothing can be measured."""

    title: str
    found: str
    ok: bool = True
    fault: str = ""
    remedy: str = ""
    needed: bool = False

    def line(self) -> str:
        """Return the result as text, with fault and remedy."""
        if self.ok:
            return f"ok    {self.title}: {self.found}"
        text = f"{'MISS' if self.needed else 'note'}  {self.title}: {self.found}; {self.fault}"
        return f"{text}\n        -> {self.remedy}" if self.remedy else text


class Seen(NamedTuple):
    """A host as it answered; `machine` is its table of a rig.toml, None for this machine."""

    role: str
    machine: Machine | None
    #: Of `labkit.hosts.agent.probe`, and `facts`.
    answers: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def lacks(self) -> dict[str, str]:
        """The capabilities that it cannot have, each with the reason."""
        reasons, absent = dict[str, str](), self.answers["absent"]
        if not self.machine or self.machine.socket:
            for name, error in self.answers["cannot"].items():
                reasons[f"network:{name}"] = f"the kernel has no device for it ({error})"
            if "weaver" in absent:
                reasons["network:weave"] = f"its router, weaver, is not on PATH; {UNPACKAGED}"
        for name, runtime in RUNTIMES.items() if self.role in ("", "sut") else ():
            for program, remedy in runtime.programs.items():
                if program in absent:
                    reasons[f"runtime:{name}"] = f"{program} is not on the host; {remedy}"
        if self.answers["real_time"] and self.role in ("", "sut", "clean"):
            reasons["realtime"] = f"no real-time class: {self.answers['real_time']}"
        links = self.facts["stable"]["interfaces"] if self.role in ("generator", "sut") else {}
        for name, link in links.items():
            driver = str(link.get("driver") or "")
            found = f"{name} is {driver or 'of an unknown driver'}"
            if driver in SOFTWARE:
                reasons["busy-poll"] = f"{found}, which has no queue to poll"
            if driver in SOFTWARE | PARAVIRTUAL:
                reasons["nic-hardware"] = f"{found}, which is no hardware"
        return reasons


def programs(role: str) -> list[dict[str, str]]:
    """Return the rows of programs.txt for a host of a rig.toml, or with "" for this machine."""
    lines = Path(__file__).with_name("programs.txt").read_text("utf-8").splitlines()
    kept = (line for line in lines if not line.startswith("#"))
    rows = csv.DictReader(kept, ("name", "package", "use", "roles", "purpose"), delimiter=":")
    return [p for p in rows if (role in p["roles"].split(",") if role else p["use"] != "test")]


def look(file: RigFile | None, role: str, host: Host) -> Seen:
    """Return how a host of a rig.toml is, or without one, this machine."""
    machines = file.machines if file else {}
    machine = machines.get(role)
    far = [machines[other] for other in _FAR.get(role, ()) if other in machines]
    addresses = {one.addresses[0] for one in far}
    if file and "bridge" in file.networks and "sut" in _FAR.get(role, ()):
        addresses.add(file.networks["bridge"].first)
    # The peer may be the generator's machine.
    addresses -= set(machine.addresses if machine else ())
    names = ["weaver", *(program["name"] for program in programs(role))]
    names += [name for runtime in RUNTIMES.values() for name in runtime.programs]
    scratch = machine.scratch if machine else str(KEEP)
    answers = host.call("probe", scratch=scratch, programs=names, addresses=sorted(addresses))
    interfaces, engine = (machine.interfaces, machine.socket) if machine else ([], "")
    facts = host.call("facts", interfaces=interfaces, engine=engine, timeout=120)
    return Seen(role, machine, answers, facts)


def check(seen: Seen) -> Iterator[Check]:
    """Yield the results of all checks of a host."""
    if seen.machine:
        yield from _differences(seen, seen.machine)
    answers, stable, machine = seen.answers, seen.facts["stable"], seen.machine
    recent = tuple(map(int, answers["python"].split(".")[:2])) >= (3, 9)
    fault, remedy = "labkit needs 3.9 or later", "apt-get install python3"
    yield Check("python3", answers["python"], recent, fault, remedy, True)
    fault = "workloads, their verification and captures need root"
    remedy = "in rig.toml: sudo = true, or user" if machine else "run labkit as root"
    able = answers["user"] == 0 or seen.role == "generator"
    yield Check("root", f"user {answers['user']}", able, fault, remedy, True)
    wanted = programs(seen.role)
    absent = [program for program in wanted if program["name"] in answers["absent"]]
    packages = " ".join(dict.fromkeys(program["package"] for program in absent))
    fault = "; ".join(f"no {one['name']} ({one['purpose']})" for one in absent)
    remedy = f"apt-get install --no-install-recommends {packages}"
    needed = any(one["use"] == "needed" for one in absent)
    found = f"{len(wanted) - len(absent)} of {len(wanted)}"
    yield Check("programs", found, not absent, fault, remedy, needed)
    fault = "; ".join(f"no {name}: {reason}" for name, reason in seen.lacks.items())
    yield Check("capabilities", f"{len(seen.lacks)} missing", not fault, fault)
    free = answers["free_gib"]
    yield Check("disk", f"{free:.0f} GiB free", free >= 5, "images need 5 GiB")
    lacking = " and ".join(sorted({"cpu", "cpuset"} - set(stable["cgroup"]["controllers"])))
    fault, remedy = f"no controller {lacking}", "mount /sys/fs/cgroup"
    yield Check("control groups", stable["cgroup"]["version"], not lacking, fault, remedy, True)
    found = "a filter" if answers["filtered"] else "no filter"
    fault = "trials outside a container fail"
    remedy = "docker run --security-opt seccomp=unconfined"
    yield Check("seccomp", f"labkit runs under {found}", not answers["filtered"], fault, remedy)
    governors = set((stable["cpu"]["governor"] or {}).values())
    found, ok = ", ".join(sorted(governors)) or "not shown", governors <= {"performance"}
    remedy = "cpupower frequency-set --governor performance"
    yield Check("frequency governor", found, ok, "the frequency changes with the load", remedy)


def _differences(seen: Seen, machine: Machine) -> Iterator[Check]:
    """Yield how a host differs from its table."""
    answers, near, stable = seen.answers, machine.interfaces[0], seen.facts["stable"]
    cpus, online = machine.cpus, stable["cpu"]["online"]
    there = {*parse_cpus(cpus)} <= {*parse_cpus(online)}
    yield Check("CPUs", online, there, f"it has no CPU {cpus}", "in rig.toml: cpus", True)
    remedy, writable = "in rig.toml: scratch", answers["scratch"]
    yield Check("scratch", machine.scratch, writable, "it is not writable", remedy, True)
    by_link = {
        link["ifname"]: [str(row.get("local")) for row in link.get("addr_info", [])]
        for link in answers["links"]
    }
    lab = [address for name in machine.interfaces for address in by_link.get(name, [])]
    lacking = [name for name in machine.interfaces if name not in by_link]
    lacking += [address for address in machine.addresses if address not in lab]
    found = ", ".join(" ".join([name, *by_link[name]]) for name in by_link)
    fault = f"{', '.join(lacking)} is not there"
    remedy = f"in rig.toml: interfaces, addresses; or ip addr add ADDRESS/24 dev {near}"
    yield Check("addresses", found, not lacking, fault, remedy, True)
    ways = {to: rows[0].get("dev") if rows else None for to, rows in answers["routes"].items()}
    stray = ", ".join(to for to, device in ways.items() if device not in machine.interfaces)
    fault = f"{stray} is not reached by {', '.join(machine.interfaces)}"
    found = ", ".join(sorted(map(str, {*ways.values()})))
    remedy = f"ip route add {stray} dev {near}"
    yield Check("routes", found, not stray, fault, remedy, True)
    if machine.socket:
        known = stable["engine"]
        found = f"Docker {known['version']}, {known['Driver']}" if known else "none"
        fault = f"no Docker Engine answers on {machine.socket}"
        yield Check("engine", found, bool(known), fault, "systemctl start docker", True)
    if port := getattr(machine, "bridge_port", ""):
        masters = [one.get("master", BRIDGE) for one in answers["links"] if one["ifname"] == port]
        own = [address for address in by_link.get(port, []) if ":" not in address]
        fault = "it is not there, or has an address or a bridge, and would lose its connections"
        free = masters == [BRIDGE] and not own
        yield Check("bridge port", port, free, fault, "in rig.toml: bridge_port", True)
