"""Titled checks of hosts: this machine, for the virtual rig, and machines of a rig.toml."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from labkit.errors import UNPACKAGED, CommandFailed
from labkit.hosts import Host
from labkit.hosts.target import Network
from labkit.placement import cpu_set
from labkit.rig import engine
from labkit.rig.lock import KEEP
from labkit.rig.rigfile import Machine, RigFile
from labkit.runtimes import RUNTIMES

#: Drivers without a device, and those of devices that a hypervisor emulates.
SOFTWARE = {"veth", "bridge", "tun", "macvlan", "ipvlan", "vxlan", "dummy"}
PARAVIRTUAL = {"virtio_net", "vmxnet3", "hv_netvsc", "vif", "xen_netfront"}
#: Programs of the papers that no distribution packages.
PAPERS = ("sfnt-pingpong", "memtier_benchmark", "wrk2")
#: The two ends of a measurement on machines.
_ENDS = ("generator", "sut")
#: Packages of what the virtual rig runs itself.
_OWN = ("docker.io", "docker-cli", "iptables", "openssh-server")


class Check(NamedTuple):
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


def programs(role: str = "") -> list[dict[str, str]]:
    """Return the rows of programs.txt that a host of a rig.toml, or this machine, should have."""
    keys = ("name", "package", "use", "roles", "purpose")
    text = resources.files("labkit.rig").joinpath("programs.txt").read_text("utf-8")
    lines = [line.split(":", 4) for line in text.splitlines() if not line.startswith("#")]
    rows = [dict(zip(keys, line, strict=True)) for line in lines]
    return [p for p in rows if (role in p["roles"].split(",") if role else p["use"] != "test")]


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
    def boot(self) -> str:
        """The identifier of its boot, and with it of its kernel."""
        return str(self.facts["volatile"].get("boot_id"))

    @property
    def cpus(self) -> str:
        """Its online CPUs."""
        return str(self.facts["stable"]["cpu"]["online"] or "0")

    @property
    def drivers(self) -> dict[str, str]:
        """The driver of each lab interface, "" where it cannot be read."""
        known = self.facts["stable"]["interfaces"]
        return {name: str(of.get("driver") or "") for name, of in known.items()}


def on_host(machine: Machine | None, text: str) -> str:
    """Return the command by which a user runs another one on a machine, or on this one."""
    if not machine:
        return text
    port = f"-p {machine.port} " if machine.port != 22 else ""
    return f"ssh {port}{machine.user}@{machine.ssh} {'sudo ' if machine.sudo else ''}{text}"


#: The hosts that each exchanges lab traffic with.
_FAR = {"generator": ("sut", "clean", "peer"), "sut": ("generator", "peer")}
_FAR |= {"clean": ("generator",), "peer": ("generator", "sut")}


def look(file: RigFile | None, role: str, host: Host) -> Seen:
    """Return how a host of a rig.toml is, or without one, this machine."""
    machines = file.machines if file else {}
    machine = machines.get(role)
    socket, layer2 = (machine.socket, machine.layer2) if machine else (None, None)
    far = [machines[other] for other in _FAR.get(role, ()) if other in machines]
    addresses = {one.addresses[0] for one in far} | {one.layer2.first for one in far if one.layer2}
    names = [program["name"] for program in programs(role)]
    names += [name for runtime in RUNTIMES.values() for name in runtime.programs]
    before = time.time_ns()
    try:
        answers = host.call(
            "probe",
            scratch=machine.scratch if machine else str(KEEP),
            programs=[*names, *PAPERS, "weaver"],
            # The peer may be the generator's machine.
            addresses=sorted(addresses - set(machine.addresses if machine else ())),
            engine=socket or "",
            network=layer2.engine if layer2 else "",
        )
    except CommandFailed as error:
        error.remedy = on_host(machine, "apt-get install python3")
        raise
    after, there = time.time_ns(), answers["clock_ns"]
    cannot = missing_networks(answers) if socket or not machine else {}
    if role in ("", "sut"):
        # Whether Docker runs is a capability of the rig, ``docker``.
        cannot |= {
            f"runtime:{name}": f"{program} is not on the host; {remedy}"
            for name, one in RUNTIMES.items()
            for program, remedy in one.programs.items()
            if program in answers["absent"]
        }
    interfaces = machine.interfaces if machine else ()
    facts = host.call("facts", interfaces=interfaces, engine=socket or "", timeout=120)
    clock_s = max(0, there - after, before - there) / 1e9
    return Seen(role, machine, answers, facts, cannot, clock_s)


def missing_networks(answers: Mapping[str, Any]) -> dict[str, str]:
    """Return the networks that a host cannot have, as capabilities with the reason."""
    devices = {"macvlan": "macvlan", "overlay": "VXLAN"}
    reasons = {
        f"network:{name}": f"the kernel has no {devices[name]} devices ({error})"
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
    answers, machine = seen.answers, seen.machine
    recent = tuple(map(int, answers["python"].split(".")[:2])) >= (3, 9)
    remedy = on_host(seen.machine, "apt-get install python3")
    yield Check("python3", answers["python"], recent, "labkit needs 3.9 or later", remedy, True)
    fault = "workloads, their verification and captures need root"
    remedy = "in rig.toml: sudo = true, or user" if machine else "run labkit as root"
    able = answers["user"] == 0 or seen.role == "generator"
    yield Check("root", f"user {answers['user']}", able, fault, remedy, True)
    unused = ("docker.io", "docker-cli") if machine and not machine.socket else ()
    wanted = [program for program in programs(seen.role) if program["package"] not in unused]
    absent = [program for program in wanted if program["name"] in answers["absent"]]
    packages = list(dict.fromkeys(program["package"] for program in absent))
    found = f"{len(wanted) - len(absent)} of {len(wanted)}"
    fault = "; ".join(f"no {one['name']} ({one['purpose']})" for one in absent)
    remedy = on_host(seen.machine, f"apt-get install --no-install-recommends {' '.join(packages)}")
    needed = (not machine and bool({*packages} & {*_OWN})) or "needed" in [p["use"] for p in absent]
    yield Check("programs", found, not absent, fault, remedy, needed)
    papers = [name for name in PAPERS if name not in answers["absent"]]
    found = f"{', '.join(papers) or 'none'} of {', '.join(PAPERS)}"
    yield Check("programs of the papers", found, len(papers) == len(PAPERS), UNPACKAGED)
    if not machine or machine.socket:
        fault = "; ".join(f"no {name}: {reason}" for name, reason in seen.cannot.items())
        found = f"{len(seen.cannot)} missing"
        yield Check("engines and networks of containers", found, not fault, fault)
    free = answers["free_gib"]
    yield Check("disk", f"{free:.0f} GiB free", free >= 5, "images need 5 GiB")


def _cpus(seen: Seen) -> Iterator[Check]:
    """Yield the checks of CPUs, scheduling, frequency and idle states."""
    stable, cpu = seen.facts["stable"], seen.facts["stable"]["cpu"]
    online, isolated = seen.cpus, str(cpu["isolated"] or "").strip()
    own, is_end = seen.machine.cpus if seen.machine else online, seen.role in _ENDS
    there = cpu_set(own) <= cpu_set(online)
    yield Check("CPUs", online, there, f"it has no CPU {own}", "in rig.toml: cpus", True)
    apart = cpu_set(own) <= cpu_set(isolated) if is_end else bool(isolated)
    fault = f"CPU {own} is not isolated: rare tails are not decided"
    lacks = ("isolated-cpus",) if is_end else ()
    found, remedy = isolated or "none", f"boot with isolcpus={own}"
    yield Check("isolated CPUs", found, apart, fault, remedy, lacks=lacks)
    governors = set((cpu["governor"] or {}).values())
    found, ok = ", ".join(sorted(governors)) or "not shown", governors <= {"performance"}
    remedy = on_host(seen.machine, "cpupower frequency-set --governor performance")
    yield Check("frequency governor", found, ok, "the frequency changes with the load", remedy)
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
    groups = stable["cgroup"]
    lacking = " and ".join(sorted({"cpu", "cpuset"} - set(groups["controllers"])))
    fault, remedy = f"no controller {lacking}", "mount /sys/fs/cgroup"
    yield Check("control groups", str(groups["version"]), not lacking, fault, remedy, True)
    pressure, fault = ", ".join(kernel["psi"]), "waiting for CPUs is not recorded"
    yield Check("pressure (PSI)", pressure or "none", bool(pressure), fault, "boot with psi=1")
    control = str(kernel["sysctl"].get("net/ipv4/tcp_congestion_control"))
    remedy = "set the parameter congestion_control of a study to cubic"
    yield Check("congestion control", control, control == "cubic", "the papers had cubic", remedy)
    found = "the kernel has filters" if "errno" in seen.answers["filters"] else "none"
    fault, remedy = "trials in a container fail", "CONFIG_SECCOMP_FILTER"
    if seen.answers["filtered"]:
        found, fault = "labkit runs under a filter", "trials outside a container fail"
        remedy = "docker run --security-opt seccomp=unconfined"
    yield Check("seccomp", found, found == "the kernel has filters", fault, remedy)


def _machine(seen: Seen, machine: Machine) -> Iterator[Check]:
    """Yield how a host differs from its table."""
    answers, near = seen.answers, machine.interfaces[0]
    remedy = on_host(seen.machine, "systemctl start systemd-timesyncd")
    fault = f"this machine's differs by {seen.clock_s:.1f} s"
    # Otherwise data and the hosts' logs would be hard to match.
    yield Check("clock", "is read", seen.clock_s <= 1.0, fault, remedy)
    remedy, writable = "in rig.toml: scratch", answers["scratch"]
    yield Check("scratch", machine.scratch, writable, "it is not writable", remedy, True)
    held = {
        link["ifname"]: [row.get("local") for row in link.get("addr_info", [])]
        for link in answers["links"]
    }
    lab = [address for name in machine.interfaces for address in held.get(name, [])]
    missing = ", ".join(address for address in machine.addresses if address not in lab)
    fault = f"{missing} is not on {', '.join(machine.interfaces)}"
    remedy = on_host(seen.machine, f"ip addr add {missing}/24 dev {near}")
    if absent := ", ".join(name for name in machine.interfaces if name not in held):
        fault = f"there is no interface {absent}"
        remedy = f"in rig.toml: interfaces; it has {', '.join(held)}"
    found = ", ".join(filter(None, lab)) or "none"
    yield Check("addresses", found, not (missing or absent), fault, remedy, True)
    ways = {to: rows[0].get("dev", "") if rows else "" for to, rows in answers["routes"].items()}
    stray = [address for address, device in ways.items() if device not in machine.interfaces]
    for address in stray or [""]:
        fault = f"{address} is reached by {ways.get(address) or 'no interface'}"
        remedy = on_host(seen.machine, f"ip route add {address} dev {near}")
        yield Check("routes", ", ".join(sorted({*ways.values()})), not address, fault, remedy, True)
    for name, driver in seen.drivers.items():
        found = f"{name} is {driver or 'of an unknown driver'}"
        queues = bool(driver) and driver not in SOFTWARE
        hardware = queues and driver not in PARAVIRTUAL
        lacks, polls = (("nic-hardware",), ("busy-poll",)) if seen.role in _ENDS else ((), ())
        yield Check("network card", found, hardware, "it is no hardware", lacks=lacks)
        yield Check("busy polling", found, queues, "it has no queue to poll", lacks=polls)
    known = seen.facts["stable"]["engine"]
    if machine.socket:
        found = f"Docker {known['version']}, {known['Driver']}" if known else "none"
        fault = f"no Docker Engine answers on {machine.socket}"
        remedy = on_host(seen.machine, "systemctl start docker")
        yield Check("engine", found, bool(known), fault, remedy, True)
    if machine.layer2 and known:
        fault, remedy = _bridge_fault(seen, machine.layer2)
        yield Check("bridge", machine.layer2.bridge, not fault, fault, remedy, True)


def _bridge_fault(seen: Seen, bridge: Network) -> tuple[str, str]:
    """Return what is wrong with the layer-2 network of containers, and the remedy; or "" twice."""
    ports = [link for link in seen.answers["links"] if link["ifname"] == bridge.port]
    port, network = [*ports, {}][0], [*seen.answers["network"], {}][0]
    name = (network.get("Options") or {}).get("com.docker.network.bridge.name")
    subnets = [row.get("Subnet") for row in network.get("IPAM", {}).get("Config") or []]
    found, wanted = " ".join(map(str, [name, *subnets])), f"{bridge.bridge} {bridge.subnet}"
    if not port:
        return f"there is no interface {bridge.port}", "in rig.toml: bridge_port"
    if any(row.get("scope") == "global" for row in port.get("addr_info", [])):
        why = f"{bridge.port} has an address, and on a bridge would lose its connections"
        return why, "in rig.toml: bridge_port, an interface without an address"
    if network and found != wanted:
        why = f"the network {bridge.engine} is {found}, not {wanted}"
        return why, on_host(seen.machine, f"docker network rm {bridge.engine}")
    if not network:
        options = " ".join(engine.bridge_options(bridge.bridge))
        create = f"docker network create {options} --subnet {bridge.subnet} {bridge.engine}"
        return f"the engine has no network {bridge.engine}", on_host(seen.machine, create)
    if port.get("master") != bridge.bridge or "UP" not in port.get("flags", []):
        join = f"ip link set {bridge.port} master {bridge.bridge} up"
        return f"{bridge.port} is down or not on {bridge.bridge}", on_host(seen.machine, join)
    return "", ""
