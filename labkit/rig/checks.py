"""Titled checks of hosts: this machine, for the virtual rig, and machines of a rig.toml."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from labkit import runtimes
from labkit.errors import UNPACKAGED, CommandFailed, ToolMissing
from labkit.hosts import Host
from labkit.hosts.target import Network
from labkit.placement import cpu_set
from labkit.rig import engine
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
    """The result of one check: what was found, and if that is not `ok`, why and what to do.

    `needed` tells that nothing can be measured with the fault, and `lacks` are the capabilities
    that a rig does not have with it.
    """

    title: str
    found: str
    ok: bool = True
    fault: str = ""
    remedy: str = ""
    needed: bool = False
    lacks: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the result as text, with fault and remedy."""
        if self.ok:
            return f"ok    {self.title}: {self.found}"
        text = f"{'MISS' if self.needed else 'note'}  {self.title}: {self.found}; {self.fault}"
        return f"{text}\n        -> {self.remedy}" if self.remedy else text


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
    #: Of `labkit.hosts.agent.probe`, and `facts`.
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

    @property
    def is_end(self) -> bool:
        """Whether it is one of the two ends of a measurement on machines."""
        return self.role in ("generator", "sut")

    def command(self, text: str) -> str:
        """Return the command that runs another one on the host."""
        return on_host(self.machine, text) if self.machine else text


def on_host(machine: Machine, text: str) -> str:
    """Return the command by which a user runs another one on a machine."""
    port = f"-p {machine.port} " if machine.port != 22 else ""
    sudo = "sudo " if machine.sudo else ""
    return f"ssh {port}{machine.user}@{machine.ssh} {sudo}{text}"


def ask(
    host: Host, role: str = "", machine: Machine | None = None, far: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the answers of a host to `labkit.hosts.agent.probe`.

    Its role and table in a rig.toml, and the addresses that it exchanges lab traffic with; nothing
    of them for this machine.
    """
    layer2 = machine.layer2 if machine else None
    engines = [name for engine in runtimes.RUNTIMES.values() for name in engine.programs]
    names = [*(program.name for program in programs(role)), *PAPERS, "weaver", *engines]
    answers: dict[str, Any] = host.call(
        "probe",
        scratch=machine.scratch if machine else str(KEEP),
        programs=names,
        addresses=list(far),
        engine=(machine.socket if machine else None) or "",
        network=layer2.engine if layer2 else "",
    )
    return answers


def look(
    host: Host, role: str = "", machine: Machine | None = None, far: Sequence[str] = ()
) -> Seen:
    """Return how a host is; see `ask`."""
    before = time.time_ns()
    try:
        answers = ask(host, role, machine, far)
    except CommandFailed as error:
        install = "apt-get install python3"
        raise ToolMissing(
            f"python3 does not run on host {host.name}",
            where=str(host),
            why=error.why,
            remedy=on_host(machine, install) if machine else install,
        ) from None
    after, there = time.time_ns(), answers["clock_ns"]
    socket = machine.socket if machine else None
    cannot = missing_networks(answers) if socket or not machine else {}
    if role in ("", "sut"):
        cannot |= runtimes.unavailable(answers["absent"])
    interfaces = machine.interfaces if machine else ()
    facts = host.call("facts", interfaces=interfaces, engine=socket or "", timeout=120)
    clock_s = max(0, there - after, before - there) / 1e9
    return Seen(role, machine, answers, facts, cannot, clock_s)


def missing_networks(answers: Mapping[str, Any]) -> dict[str, str]:
    """Return the networks that a host cannot have, as capabilities with the reason."""
    devices = {"macvlan": "macvlan devices", "overlay": "VXLAN devices"}
    reasons = {
        f"network:{name}": f"the kernel has no {devices[name]} ({error})"
        for name, error in answers["cannot"].items()
    }
    if "weaver" in answers["absent"]:
        why = f"Weave Net's router, weaver, is not on the host; {UNPACKAGED}"
        reasons["network:weave"] = why
    return reasons


def check(seen: Seen) -> list[Check]:
    """Return the results of all checks of a host."""
    found = [*_system(seen), *_cpus(seen), *_kernel(seen)]
    return [*_machine(seen, seen.machine), *found] if seen.machine else found


def _system(seen: Seen) -> Iterator[Check]:
    """Yield the checks of user, programs, engines and networks."""
    answers, version = seen.answers, seen.answers["python"]
    yield Check(
        "python3",
        version,
        tuple(map(int, version.split(".")[:2])) >= _PYTHON,
        "labkit needs 3.9 or later",
        seen.command("apt-get install python3"),
        needed=True,
    )
    idle = isinstance(seen.machine, Collector) and not seen.machine.mirrors
    yield Check(
        "root",
        f"user {answers['user']}",
        answers["user"] == 0 or seen.role == "generator" or idle,
        "workloads, their verification and captures need root",
        "in rig.toml: sudo = true, or user" if seen.machine else "run labkit as root",
        needed=True,
    )
    unused = ("docker.io", "docker-cli") if seen.machine and not seen.machine.socket else ()
    wanted = [program for program in programs(seen.role) if program.package not in unused]
    absent = [program for program in wanted if program.name in answers["absent"]]
    packages = " ".join(dict.fromkeys(program.package for program in absent))
    yield Check(
        "programs",
        f"{len(wanted) - len(absent)} of {len(wanted)}",
        not absent,
        "; ".join(f"no {program.name} ({program.purpose})" for program in absent),
        seen.command(f"apt-get install --no-install-recommends {packages}"),
        needed=any(program.use == "needed" for program in absent),
    )
    papers = [name for name in PAPERS if name not in answers["absent"]]
    found = f"{', '.join(papers) or 'none'} of {', '.join(PAPERS)}"
    yield Check("programs of the papers", found, len(papers) == len(PAPERS), UNPACKAGED)
    if not seen.machine or seen.machine.socket:
        reasons = "; ".join(f"no {name}: {reason}" for name, reason in seen.cannot.items())
        found = f"{len(seen.cannot)} missing"
        yield Check("engines and networks of containers", found, not seen.cannot, reasons)
    free = answers["free_gib"]
    yield Check("disk", f"{free:.0f} GiB free", free >= DISK_GIB, f"images need {DISK_GIB:g} GiB")


def _cpus(seen: Seen) -> Iterator[Check]:
    """Yield the checks of CPUs, scheduling, frequency and idle states."""
    stable, cpu = seen.facts["stable"], seen.facts["stable"]["cpu"]
    online, isolated = str(cpu["online"] or "0"), str(cpu["isolated"] or "").strip()
    own = seen.machine.cpus if seen.machine else online
    there = cpu_set(own) <= cpu_set(online)
    yield Check("CPUs", online, there, f"it has no CPU {own}", "in rig.toml: cpus", needed=True)
    yield Check(
        "isolated CPUs",
        isolated or "none",
        cpu_set(own) <= cpu_set(isolated) if seen.is_end else bool(isolated),
        f"CPU {own} is not isolated: rare tails are not decided",
        f"boot with isolcpus={own}",
        lacks=("isolated-cpus",) if seen.is_end else (),
    )
    governors = set((cpu["governor"] or {}).values())
    yield Check(
        "frequency governor",
        ", ".join(sorted(governors)) or "not shown",
        governors <= {"performance"},
        "the frequency changes with the load",
        seen.command("cpupower frequency-set --governor performance"),
    )
    states = ", ".join(state["name"] for state in stable["idle"]["states"]) or "not shown"
    held = stable["dma_latency_us"] is not None
    yield Check("idle states", states, held, "without /dev/cpu_dma_latency none can be held")
    why = seen.answers["real_time"]
    lacks = ("realtime",) if seen.role in ("sut", "clean") else ()
    yield Check("real-time class", "none" if why else "available", not why, why, lacks=lacks)


def _kernel(seen: Seen) -> Iterator[Check]:
    """Yield the checks of clock, hypervisor, control groups, pressure, TCP and seccomp."""
    stable, kernel = seen.facts["stable"], seen.facts["stable"]["kernel"]
    clock = str(kernel["clock_source"])
    precise = clock in ("tsc", "arch_sys_counter")
    yield Check("clock source", clock, precise, "reading the time may be slow")
    virtual = stable["virtualisation"]["hypervisor"]
    fault = "separate machines and network cards are not decided on it"
    found = "a virtual machine" if virtual else "no hypervisor is seen"
    yield Check("bare machine", found, not virtual, fault, "name machines in a rig.toml")
    groups, lacking = stable["cgroup"], {"cpu", "cpuset"} - set(stable["cgroup"]["controllers"])
    fault = f"no controller {' and '.join(sorted(lacking))}"
    remedy = "mount /sys/fs/cgroup"
    yield Check("control groups", str(groups["version"]), not lacking, fault, remedy, needed=True)
    pressure, fault = ", ".join(kernel["psi"]), "waiting for CPUs is not recorded"
    yield Check("pressure (PSI)", pressure or "none", bool(pressure), fault, "boot with psi=1")
    control = str(kernel["sysctl"].get("net/ipv4/tcp_congestion_control"))
    remedy = "set the parameter congestion_control of a study to cubic"
    yield Check("congestion control", control, control == "cubic", "the papers had cubic", remedy)
    filtered, able = seen.answers["filtered"], "errno" in seen.answers["filters"]
    yield Check(
        "seccomp",
        "labkit runs under a filter" if filtered else "the kernel has filters" if able else "none",
        able and not filtered,
        f"trials {'outside' if filtered else 'in'} a container fail",
        "docker run --security-opt seccomp=unconfined" if filtered else "CONFIG_SECCOMP_FILTER",
    )


def _machine(seen: Seen, machine: Machine) -> Iterator[Check]:
    """Yield how a host differs from its table."""
    answers, near = seen.answers, machine.interfaces[0]
    remedy = seen.command("systemctl start systemd-timesyncd")
    fault = f"this machine's differs by {seen.clock_s:.1f} s"
    yield Check("clock", "is read", seen.clock_s <= CLOCK_SECONDS, fault, remedy)
    remedy, writable = "in rig.toml: scratch", answers["scratch"]
    yield Check("scratch", machine.scratch, writable, "it is not writable", remedy, needed=True)
    addresses = {
        link["ifname"]: [row["local"] for row in link.get("addr_info", []) if "local" in row]
        for link in answers["links"]
    }
    names = ", ".join(machine.interfaces)
    absent = [name for name in machine.interfaces if name not in addresses]
    fault = f"there is no interface {', '.join(absent)}"
    remedy = f"in rig.toml: interfaces; it has {', '.join(addresses)}"
    yield Check("interfaces", names, not absent, fault, remedy, needed=True)
    lab = [address for name in machine.interfaces for address in addresses.get(name, [])]
    missing = ", ".join(address for address in machine.addresses if address not in lab)
    remedy = seen.command(f"ip addr add {missing}/24 dev {near}")
    fault = f"{missing} is not on {names}"
    yield Check(
        "addresses",
        ", ".join(lab) or "none",
        not missing or bool(absent),
        fault,
        remedy,
        needed=True,
    )
    ways = {to: rows[0].get("dev", "") if rows else "" for to, rows in answers["routes"].items()}
    stray = [address for address, device in ways.items() if device not in machine.interfaces]
    for address in stray or [""]:
        fault = f"{address} is reached by {ways.get(address) or 'no interface'}"
        remedy = seen.command(f"ip route add {address} dev {near}")
        found = ", ".join(sorted({*ways.values()}))
        yield Check("routes", found, not address, fault, remedy, needed=True)
    for name, driver in seen.drivers.items():
        found = f"{name} is {driver or 'of an unknown driver'}"
        queues = bool(driver) and driver not in SOFTWARE
        hardware = queues and driver not in PARAVIRTUAL
        lacks, polls = (("nic-hardware",), ("busy-poll",)) if seen.is_end else ((), ())
        yield Check("network card", found, hardware, "it is no hardware", lacks=lacks)
        yield Check("busy polling", found, queues, "it has no queue to poll", lacks=polls)
    known = seen.facts["stable"]["engine"]
    if machine.socket:
        found = f"Docker {known['version']}, {known['Driver']}" if known else "none"
        fault = f"no Docker Engine answers on {machine.socket}"
        remedy = seen.command("systemctl start docker")
        yield Check("engine", found, bool(known), fault, remedy, needed=True)
    if machine.layer2 and known:
        fault, remedy = _bridge_fault(seen, machine.layer2)
        yield Check("bridge", machine.layer2.bridge, not fault, fault, remedy, needed=True)


def _bridge_fault(seen: Seen, bridge: Network) -> tuple[str, str]:
    """Return what is wrong with the layer-2 network of containers, and the remedy; or "" twice."""
    port = next((link for link in seen.answers["links"] if link["ifname"] == bridge.port), None)
    if port is None:
        return f"there is no interface {bridge.port}", "in rig.toml: bridge_port"
    if any(row.get("scope") == "global" for row in port.get("addr_info", [])):
        why = f"{bridge.port} has an address, and on a bridge would lose its connections"
        return why, "in rig.toml: bridge_port, an interface without an address"
    network = [*seen.answers["network"], {}][0]
    found = [(network.get("Options") or {}).get("com.docker.network.bridge.name")]
    found += [row.get("Subnet") for row in network.get("IPAM", {}).get("Config") or []]
    if not network:
        options = " ".join(engine.bridge_options(bridge.bridge))
        create = f"docker network create {options} --subnet {bridge.subnet} {bridge.engine}"
        return f"the engine has no network {bridge.engine}", seen.command(create)
    if found != [bridge.bridge, bridge.subnet]:
        shown = " ".join(map(str, found))
        why = f"the network {bridge.engine} is {shown}, not {bridge.bridge} {bridge.subnet}"
        return why, seen.command(f"docker network rm {bridge.engine}")
    if port.get("master") != bridge.bridge or "UP" not in port.get("flags", []):
        join = f"ip link set {bridge.port} master {bridge.bridge} up"
        return f"{bridge.port} is down or not on {bridge.bridge}", seen.command(join)
    return "", ""
