"""Titled checks of hosts: this machine, for the virtual rig, and machines of a rig.toml."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from labkit import runtimes
from labkit.errors import UNPACKAGED, CommandFailed, ToolMissing
from labkit.hosts import Host, collect_facts
from labkit.hosts.target import Network
from labkit.placement import cpu_set
from labkit.rig import engine, kernel_probe
from labkit.rig.lock import KEEP
from labkit.rig.rigfile import Collector, Machine

#: Drivers without a device, and those of devices that a hypervisor emulates.
SOFTWARE = {"veth", "bridge", "tun", "macvlan", "ipvlan", "vxlan", "dummy"}
PARAVIRTUAL = {"virtio_net", "vmxnet3", "hv_netvsc", "vif", "xen_netfront"}
#: Programs of the papers that no distribution packages.
PAPERS = ("sfnt-pingpong", "memtier_benchmark", "wrk2")
#: Seconds by which clocks may differ: data and hosts' logs would be hard to match otherwise.
CLOCK_SECONDS = 1.0
#: Disk space in GiB that images need.
DISK_GIB = 5.0
_PYTHON = (3, 9)


@dataclass(frozen=True)
class Check:
    """The result of one check; without a fault it is passed.

    `needed` tells that nothing can be measured with the fault, and `lacks` are the capabilities
    that a rig does not have with it.
    """

    title: str
    found: str
    fault: str = ""
    remedy: str = ""
    needed: bool = False
    lacks: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the result as text, with fault and remedy."""
        mark = "ok  " if not self.fault else "MISS" if self.needed else "note"
        text = f"{mark}  {self.title}: {'; '.join(filter(None, (self.found, self.fault)))}"
        return f"{text}\n        -> {self.remedy}" if self.fault and self.remedy else text


class Program(NamedTuple):
    """A program (or a file, by its path) that hosts need, as programs.txt lists it."""

    name: str
    package: str
    #: ``needed`` by every study, ``measure`` by some, ``test`` by tests.
    use: str
    roles: str
    purpose: str


def programs(role: str = "") -> list[Program]:
    """Return the programs that a host of a rig.toml, or by default this machine, should have."""
    text = resources.files("labkit.rig").joinpath("programs.txt").read_text("utf-8")
    rows = [Program(*row.split(":", 4)) for row in text.splitlines() if not row.startswith("#")]
    return [p for p in rows if (role in p.roles.split(",") if role else p.use != "test")]


@dataclass(frozen=True)
class Seen:
    """A host as it answered; `machine` is its table of a rig.toml, None for this machine."""

    role: str
    machine: Machine | None
    #: Of `labkit.rig.probe`, and of `collect_facts`.
    answers: Mapping[str, Any]
    facts: Mapping[str, Any]
    #: Engines and networks that it cannot have, as capabilities with the reason.
    cannot: Mapping[str, str]
    #: Seconds that its clock differs from this machine's, as far as that is certain.
    clock_s: float

    @property
    def kernel(self) -> tuple[str, str]:
        """What identifies its kernel and processes: boot, and PID namespace."""
        return str(self.facts["volatile"].get("boot_id")), self.answers["processes"]

    @property
    def drivers(self) -> dict[str, str]:
        """The driver of each lab interface, "" where it cannot be read."""
        known = self.facts["stable"]["interfaces"]
        names = self.machine.interfaces if self.machine else []
        return {name: str(known.get(name, {}).get("driver") or "") for name in names}

    def command(self, text: str) -> str:
        """Return the command that runs another one on the host."""
        return on_host(self.machine, text) if self.machine else text


def on_host(machine: Machine, text: str) -> str:
    """Return the command by which a user runs another one on a machine."""
    port = f"-p {machine.port} " if machine.port != 22 else ""
    sudo = "sudo " if machine.sudo else ""
    return f"ssh {port}{machine.user}@{machine.ssh} {sudo}{text}"


def look(
    host: Host, role: str = "", machine: Machine | None = None, far: Sequence[str] = ()
) -> Seen:
    """Return how a host is.

    Parameters
    ----------
    host : Host
    role : str
        Its role in a rig.toml; "" for this machine.
    machine : Machine, optional
        Its table there.
    far : sequence of str
        The addresses that it exchanges lab traffic with.
    """
    socket = machine.socket if machine else None
    layer2 = machine.layer2 if machine else None
    request = {
        "scratch": machine.scratch if machine else str(KEEP),
        "programs": [*(program.name for program in programs(role)), *PAPERS],
        "addresses": list(far),
        "engine": socket or "",
        "network": layer2.engine if layer2 else "",
    }
    source = resources.files("labkit.rig").joinpath("probe.py").read_text("utf-8")
    before = time.time_ns()
    try:
        text = host.run("python3", "-IS", "-", json.dumps(request), input=source).stdout
    except CommandFailed as error:
        install = "apt-get install python3-minimal"
        raise ToolMissing(
            f"python3 does not run on host {host.name}",
            where=str(host),
            why=error.why,
            remedy=on_host(machine, install) if machine else install,
        ) from None
    after = time.time_ns()
    answers = json.loads(text)
    there = answers["clock_ns"]
    cannot = kernel_probe.missing_networks(host) if socket or not machine else {}
    if role in ("", "sut"):
        cannot |= runtimes.unavailable(host)
    interfaces = machine.interfaces if machine else ()
    facts = collect_facts(host, interfaces=interfaces, engine_socket=socket)
    clock_s = max(0, there - after, before - there) / 1e9
    return Seen(role, machine, answers, facts, cannot, clock_s)


def check(seen: Seen) -> list[Check]:
    """Return the results of all checks of a host."""
    found = [*_system(seen), *_cpus(seen), *_kernel(seen)]
    return [*_machine(seen, seen.machine), *found] if seen.machine else found


def _system(seen: Seen) -> Iterator[Check]:
    """Yield the checks of user, programs, engines and networks."""
    answers = seen.answers
    version = answers["python"]
    old = tuple(map(int, version.split(".")[:2])) < _PYTHON
    install = seen.command("apt-get install python3-minimal")
    fault = "labkit needs 3.9 or later" if old else ""
    yield Check("python3", version, fault, install, needed=True)
    idle = isinstance(seen.machine, Collector) and not seen.machine.mirrors
    wrong = answers["user"] != 0 and seen.role != "generator" and not idle
    fault = "workloads, their verification and captures need root" if wrong else ""
    remedy = "in rig.toml: sudo = true, or user" if seen.machine else "run labkit as root"
    yield Check("root", f"user {answers['user']}", fault, remedy, needed=True)
    unused = ("docker.io", "docker-cli") if seen.machine and not seen.machine.socket else ()
    wanted = [program for program in programs(seen.role) if program.package not in unused]
    absent = [program for program in wanted if program.name in answers["absent"]]
    names = ", ".join(program.name for program in absent)
    packages = " ".join(dict.fromkeys(program.package for program in absent))
    yield Check(
        "programs",
        f"no {names}" if absent else "all",
        "; ".join(f"{program.name} is for {program.purpose}" for program in absent),
        seen.command(f"apt-get install --no-install-recommends {packages}"),
        needed=any(program.use == "needed" for program in absent),
    )
    if not seen.machine or seen.machine.socket:
        reasons = (f"no {name}: {reason}" for name, reason in seen.cannot.items())
        found = f"{len(seen.cannot)} missing"
        yield Check("engines and networks of containers", found, "; ".join(reasons))
    papers = ", ".join(name for name in PAPERS if name in answers["absent"])
    yield Check(
        "programs of the papers", f"no {papers}" if papers else "all", papers and UNPACKAGED
    )
    free = answers["free_gib"]
    fault = f"images need {DISK_GIB:g} GiB" if free < DISK_GIB else ""
    yield Check("disk", f"{free:.0f} GiB free", fault, "free space there")


def _cpus(seen: Seen) -> Iterator[Check]:
    """Yield the checks of CPUs, scheduling, frequency and idle states."""
    stable, cpu = seen.facts["stable"], seen.facts["stable"]["cpu"]
    online, isolated = str(cpu["online"] or "0"), str(cpu["isolated"] or "").strip()
    own = seen.machine.cpus if seen.machine else online
    absent = not cpu_set(own) <= cpu_set(online)
    fault = f"it has no CPU {own}" if absent else "both ends share one CPU" if online == "0" else ""
    yield Check("CPUs", online, fault, "in rig.toml: cpus", needed=absent)
    ends = seen.role in ("generator", "sut")
    away = not cpu_set(own) <= cpu_set(isolated) if ends else not isolated
    fault = f"CPU {own} of {seen.role} is not isolated: rare tails are not decided" if ends else ""
    yield Check(
        "isolated CPUs",
        isolated or "none",
        (fault or "rare tails are not decided") if away else "",
        f"boot with isolcpus={own}",
        lacks=("isolated-cpus",) if ends else (),
    )
    governors = sorted(set((cpu["governor"] or {}).values()))
    changing = governors and governors != ["performance"]
    fault = "the frequency changes with the load" if changing else ""
    remedy = seen.command("cpupower frequency-set --governor performance")
    yield Check("frequency governor", ", ".join(governors) or "not shown", fault, remedy)
    states = ", ".join(state["name"] for state in stable["idle"]["states"]) or "not shown"
    held = stable["dma_latency_us"] is not None
    fault = "" if held else 'without /dev/cpu_dma_latency there is no idle="held"'
    yield Check("idle states", states, fault)
    why = seen.answers["real_time"]
    fault = f"priority fifo is infeasible: {why}" if why else ""
    lacks = ("realtime",) if seen.role in ("sut", "clean") else ()
    yield Check("real-time class", "none" if why else "available", fault, lacks=lacks)


def _kernel(seen: Seen) -> Iterator[Check]:
    """Yield the checks of clock, hypervisor, control groups, pressure, TCP and seccomp."""
    stable, kernel = seen.facts["stable"], seen.facts["stable"]["kernel"]
    clock = str(kernel["clock_source"])
    fault = "" if clock in ("tsc", "arch_sys_counter") else "reading the time may be slow"
    yield Check("clock source", clock, fault)
    virtual = stable["virtualisation"]["hypervisor"]
    fault = "separate machines and network cards are not decided on it" if virtual else ""
    found = "a virtual machine" if virtual else "no hypervisor is seen"
    yield Check("bare machine", found, fault, "name machines in a rig.toml")
    groups = str(stable["cgroup"]["version"])
    lacking = {"cpu", "cpuset"} - set(stable["cgroup"]["controllers"])
    fault = f"no controller {' and '.join(sorted(lacking))}" if lacking else ""
    yield Check("control groups", groups, fault, "mount /sys/fs/cgroup", needed=True)
    pressure = ", ".join(kernel["psi"])
    fault = "" if pressure else "waiting for CPUs is not recorded"
    yield Check("pressure (PSI)", pressure or "none", fault, "boot with psi=1")
    control = str(kernel["sysctl"].get("net/ipv4/tcp_congestion_control"))
    fault = "" if control == "cubic" else "the papers had cubic"
    remedy = "set the parameter congestion_control of a study to cubic"
    yield Check("TCP congestion control", control, fault, remedy)
    filtered, filters = seen.answers["filtered"], "errno" in seen.answers["filters"]
    fault = "trials outside a container fail: labkit runs under a filter" if filtered else ""
    fault = fault or ("" if filters else "trials in a container fail: the kernel has no filters")
    remedy = "docker run --security-opt seccomp=unconfined" if filtered else "CONFIG_SECCOMP_FILTER"
    yield Check("seccomp", "filtered" if filtered else "unfiltered", fault, remedy)


def _machine(seen: Seen, machine: Machine) -> Iterator[Check]:
    """Yield how a host differs from its table."""
    answers = seen.answers
    fault = f"it differs by {seen.clock_s:.1f} s" if seen.clock_s > CLOCK_SECONDS else ""
    yield Check("clock", "is read", fault, seen.command("systemctl start systemd-timesyncd"))
    fault = "" if answers["scratch"] else f"{machine.scratch} is not writable"
    yield Check("scratch", machine.scratch, fault, "in rig.toml: scratch", needed=True)
    addresses = {
        link["ifname"]: [row["local"] for row in link.get("addr_info", []) if "local" in row]
        for link in answers["links"]
    }
    near, names = machine.interfaces[0], ", ".join(machine.interfaces)
    absent = [name for name in machine.interfaces if name not in addresses]
    fault = f"there is no interface {absent[0]}" if absent else ""
    remedy = f"in rig.toml: interfaces; it has {', '.join(addresses)}"
    yield Check("interfaces", names, fault, remedy, needed=True)
    lab = [address for name in machine.interfaces for address in addresses.get(name, [])]
    missing = [] if absent else [address for address in machine.addresses if address not in lab]
    fault = f"{missing[0]} is not on {names}" if missing else ""
    remedy = seen.command(f"ip addr add {missing[0]}/24 dev {near}") if missing else ""
    yield Check("addresses", ", ".join(lab) or "none", fault, remedy, needed=True)
    ways = {to: rows[0].get("dev", "") if rows else "" for to, rows in answers["routes"].items()}
    stray = [address for address, device in ways.items() if device not in machine.interfaces]
    fault = f"{stray[0]} is reached by {ways[stray[0]] or 'no interface'}" if stray else ""
    remedy = seen.command(f"ip route add {stray[0]} dev {near}") if stray else ""
    yield Check("routes", ", ".join(sorted({*ways.values()})), fault, remedy, needed=True)
    ends = seen.role in ("generator", "sut")
    for name, driver in seen.drivers.items():
        found = f"{name} of {seen.role} is {driver or 'of an unknown driver'}"
        fault = "" if driver and driver not in SOFTWARE | PARAVIRTUAL else "it is no hardware"
        yield Check("network card", found, fault, lacks=("nic-hardware",) if ends else ())
        fault = "" if driver and driver not in SOFTWARE else "it has no queue to poll"
        yield Check("busy polling", found, fault, lacks=("busy-poll",) if ends else ())
    known = seen.facts["stable"]["engine"]
    if machine.socket:
        fault = "" if known else f"no Docker Engine answers on {machine.socket}"
        remedy = seen.command("systemctl start docker")
        found = f"Docker {known['version']}, {known['Driver']}" if known else "none"
        yield Check("engine", found, fault, remedy, needed=True)
    if machine.layer2 and known:
        fault, remedy = _bridge_fault(seen, machine.layer2)
        yield Check("bridge", machine.layer2.bridge, fault, remedy, needed=True)


def _bridge_fault(seen: Seen, bridge: Network) -> tuple[str, str]:
    """Return what is wrong with the layer-2 network of containers, and the remedy; or "" twice."""
    port = next((link for link in seen.answers["links"] if link["ifname"] == bridge.port), None)
    if port is None:
        return f"there is no interface {bridge.port}", "in rig.toml: bridge_port"
    if any(row.get("scope") == "global" for row in port.get("addr_info", [])):
        why = f"{bridge.port} has an address, and on a bridge would lose its connections"
        return why, "in rig.toml: bridge_port, an interface without an address"
    network = [*seen.answers["network"], {}][0]
    name = (network.get("Options") or {}).get("com.docker.network.bridge.name")
    subnets = [row.get("Subnet") for row in network.get("IPAM", {}).get("Config") or []]
    if not network:
        options = " ".join(engine.bridge_options(bridge.bridge))
        create = f"docker network create {options} --subnet {bridge.subnet} {bridge.engine}"
        return f"the engine has no network {bridge.engine}", seen.command(create)
    if name != bridge.bridge or subnets != [bridge.subnet]:
        why = f"the network {bridge.engine} has the bridge {name} and the subnet {subnets}"
        return why, seen.command(f"docker network rm {bridge.engine}")
    if port.get("master") != bridge.bridge or "UP" not in port.get("flags", []):
        join = f"ip link set {bridge.port} master {bridge.bridge} up"
        return f"{bridge.port} is down or not on {bridge.bridge}", seen.command(join)
    return "", ""
