"""Titled checks of hosts: this machine, for the virtual rig, and machines of a rig.toml."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from labkit.errors import UNPACKAGED, CommandFailed
from labkit.hosts import Host
from labkit.placement import parse_cpus
from labkit.rig.netns import KEEP
from labkit.rig.rigfile import Machine, RigFile
from labkit.runtimes import RUNTIMES

#: Drivers without a device, and those of devices that a hypervisor emulates.
SOFTWARE = {"", "veth", "bridge", "tun", "macvlan", "ipvlan", "vxlan", "dummy"}
PARAVIRTUAL = {"virtio_net", "vmxnet3", "hv_netvsc", "vif", "xen_netfront"}
#: The two ends of a measurement on machines.
_ENDS = ("generator", "sut")
#: Packages of what the virtual rig runs itself.
_OWN = {"docker.io", "docker-cli", "iptables", "openssh-server"}


class Check(NamedTuple):
    """The result of one check: what was found, and if that is not `ok`, why and what to do.

    `needed` tells that nothing can be measured with the fault.
    """

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


def programs(role: str = "") -> list[dict[str, str]]:
    """Return the rows of programs.txt that a host of a rig.toml, or this machine, should have."""
    keys = ("name", "package", "use", "roles", "purpose")
    text = resources.files("labkit.rig").joinpath("programs.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = [*csv.DictReader(lines, keys, delimiter=":")]
    return [p for p in rows if (role in p["roles"].split(",") if role else p["use"] != "test")]


@dataclass(frozen=True)
class Seen:
    """A host as it answered; `machine` is its table of a rig.toml, None for this machine."""

    role: str
    machine: Machine | None
    #: Of `labkit.hosts.agent.probe`, and `facts`.
    answers: Mapping[str, Any]
    facts: Mapping[str, Any]

    @property
    def boot(self) -> str:
        """The identifier of its boot, and with it of its kernel."""
        return str(self.facts["volatile"].get("boot_id"))

    @property
    def cpus(self) -> str:
        """Its online CPUs."""
        return str(self.facts["stable"]["cpu"]["online"] or "0")

    @property
    def lacks(self) -> dict[str, str]:
        """The capabilities that it cannot have, each with the reason."""
        reasons, absent = dict[str, str](), self.answers["absent"]
        if not self.machine or self.machine.socket:
            for name, error in self.answers["cannot"].items():
                reasons[f"network:{name}"] = f"the kernel has no device for it ({error})"
            if "weaver" in absent:
                reasons["network:weave"] = f"its router, weaver, is not on PATH; {UNPACKAGED}"
        if self.role in ("", "sut"):
            reasons |= {
                f"runtime:{name}": f"{program} is not on the host; {remedy}"
                for name, one in RUNTIMES.items()
                for program, remedy in one.programs.items()
                if program in absent
            }
        if self.answers["real_time"] and self.role in ("", "sut", "clean"):
            reasons["realtime"] = f"no real-time class: {self.answers['real_time']}"
        links = self.facts["stable"]["interfaces"] if self.role in _ENDS else {}
        for name, link in links.items():
            driver = str(link.get("driver") or "")
            found = f"{name} is {driver or 'of an unknown driver'}"
            if driver in SOFTWARE:
                reasons["busy-poll"] = f"{found}, which has no queue to poll"
            if driver in SOFTWARE | PARAVIRTUAL:
                reasons["nic-hardware"] = f"{found}, which is no hardware"
        return reasons


#: The hosts that each exchanges lab traffic with.
_FAR = {"generator": ("sut", "clean", "peer"), "sut": ("generator", "peer")}
_FAR |= {"clean": ("generator",), "peer": ("generator", "sut")}


def look(file: RigFile | None, role: str, host: Host) -> Seen:
    """Return how a host of a rig.toml is, or without one, this machine."""
    machines = file.machines if file else {}
    machine = machines.get(role)
    socket = machine.socket if machine else ""
    far = [machines[other] for other in _FAR.get(role, ()) if other in machines]
    addresses = {one.addresses[0] for one in far} | {one.layer2.first for one in far if one.layer2}
    names = [program["name"] for program in programs(role)]
    names += [name for runtime in RUNTIMES.values() for name in runtime.programs]
    try:
        answers = host.call(
            "probe",
            scratch=machine.scratch if machine else str(KEEP),
            programs=[*names, "weaver"],
            # The peer may be the generator's machine.
            addresses=sorted(addresses - set(machine.addresses if machine else ())),
        )
    except CommandFailed as error:
        error.remedy = "apt-get install python3"
        raise
    interfaces = machine.interfaces if machine else ()
    facts = host.call("facts", interfaces=interfaces, engine=socket, timeout=120)
    return Seen(role, machine, answers, facts)


def check(seen: Seen) -> list[Check]:
    """Return the results of all checks of a host."""
    found = [*_system(seen), *_processors(seen)]
    return [*_machine(seen, seen.machine), *found] if seen.machine else found


def _system(seen: Seen) -> Iterator[Check]:
    """Yield the checks of user, programs, capabilities, disk and kernel."""
    answers, machine = seen.answers, seen.machine
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
    own = () if machine else _OWN
    needed = any(one["use"] == "needed" or one["package"] in own for one in absent)
    found = f"{len(wanted) - len(absent)} of {len(wanted)}"
    yield Check("programs", found, not absent, fault, remedy, needed)
    fault = "; ".join(f"no {name}: {reason}" for name, reason in seen.lacks.items())
    yield Check("capabilities", f"{len(seen.lacks)} missing", not fault, fault)
    free = answers["free_gib"]
    yield Check("disk", f"{free:.0f} GiB free", free >= 5, "images need 5 GiB")
    groups = seen.facts["stable"]["cgroup"]
    lacking = " and ".join(sorted({"cpu", "cpuset"} - set(groups["controllers"])))
    fault, remedy = f"no controller {lacking}", "mount /sys/fs/cgroup"
    yield Check("control groups", str(groups["version"]), not lacking, fault, remedy, True)
    found = "a filter" if answers["filtered"] else "no filter"
    fault, remedy = (
        "trials outside a container fail",
        "docker run --security-opt seccomp=unconfined",
    )
    yield Check("seccomp", f"labkit runs under {found}", not answers["filtered"], fault, remedy)


def _processors(seen: Seen) -> Iterator[Check]:
    """Yield the checks of CPUs and their frequency."""
    cpu, own = seen.facts["stable"]["cpu"], seen.machine.cpus if seen.machine else seen.cpus
    there = {*parse_cpus(own)} <= {*parse_cpus(seen.cpus)}
    yield Check("CPUs", seen.cpus, there, f"it has no CPU {own}", "in rig.toml: cpus", True)
    isolated = str(cpu["isolated"] or "").strip()
    apart = {*parse_cpus(own)} <= {*parse_cpus(isolated)} if seen.machine else bool(isolated)
    fault, remedy = "rare tails are those of the machine", f"boot with isolcpus={own}"
    yield Check("isolated CPUs", isolated or "none", apart, fault, remedy)
    governors = set((cpu["governor"] or {}).values())
    found, ok = ", ".join(sorted(governors)) or "not shown", governors <= {"performance"}
    remedy = "cpupower frequency-set --governor performance"
    yield Check("frequency governor", found, ok, "the frequency changes with the load", remedy)


def _machine(seen: Seen, machine: Machine) -> Iterator[Check]:
    """Yield how a host differs from its table."""
    answers, near = seen.answers, machine.interfaces[0]
    remedy, writable = "in rig.toml: scratch", answers["scratch"]
    yield Check("scratch", machine.scratch, writable, "it is not writable", remedy, True)
    held = {
        link["ifname"]: [str(row.get("local")) for row in link.get("addr_info", [])]
        for link in answers["links"]
    }
    lab = [address for name in machine.interfaces for address in held.get(name, [])]
    lacking = [name for name in machine.interfaces if name not in held]
    lacking += [address for address in machine.addresses if address not in lab]
    found = ", ".join(" ".join([name, *held[name]]) for name in held)
    fault = f"{', '.join(lacking)} is not there"
    remedy = f"ip addr add {', '.join(machine.addresses)}/24 dev {near}"
    remedy = f"in rig.toml: interfaces, addresses; or {remedy}"
    yield Check("addresses", found, not lacking, fault, remedy, True)
    ways = {to: rows[0].get("dev") if rows else None for to, rows in answers["routes"].items()}
    stray = ", ".join(to for to, device in ways.items() if device not in machine.interfaces)
    fault = f"{stray} is not reached by {', '.join(machine.interfaces)}"
    remedy = f"ip route add {stray} dev {near}"
    found = ", ".join(sorted({str(device) for device in ways.values()}))
    yield Check("routes", found, not stray, fault, remedy, True)
    known = seen.facts["stable"]["engine"]
    if machine.socket:
        found = f"Docker {known['version']}, {known['Driver']}" if known else "none"
        fault = f"no Docker Engine answers on {machine.socket}"
        remedy = "systemctl start docker"
        yield Check("engine", found, bool(known), fault, remedy, True)
    if machine.layer2:
        port, bridge = machine.layer2.port, machine.layer2.bridge
        masters = [one.get("master", bridge) for one in answers["links"] if one["ifname"] == port]
        own = [address for address in held.get(port, []) if ":" not in address]
        fault = "it is not there, or has an address or a bridge, and would lose its connections"
        free = masters == [bridge] and not own
        yield Check("bridge port", port, free, fault, "in rig.toml: bridge_port", True)
