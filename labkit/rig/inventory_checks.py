"""Checks of the machines of an inventory: rules over what they answered, without a connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.hosts import json_rows
from labkit.placement import cpu_set, parse_cpus
from labkit.process import boot
from labkit.rig.rigfile import NETWORK_NAMES, Inventory, Machine

#: Drivers without a device, and those of devices that a hypervisor emulates.
SOFTWARE = {"veth", "bridge", "tun", "macvlan", "ipvlan", "vxlan", "dummy"}
PARAVIRTUAL = {"virtio_net", "vmxnet3", "hv_netvsc", "vif", "xen_netfront"}
Facts = Mapping[str, Any]

#: Removes the parent of control groups, and what is below, if it is empty; systemd removes its own.
REMOVE_PARENT = """
for group in /sys/fs/cgroup/labkit-host /sys/fs/cgroup/*/labkit-host; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
done
"""


class Mismatch(NamedTuple):
    """How a host differs from its table: at which key, and what to do."""

    key: str
    why: str
    remedy: str


def mismatches(
    role: str,
    machine: Machine,
    answers: Mapping[str, str],
    facts: Facts,
    far_addresses: Sequence[str],
) -> Iterator[Mismatch]:
    """Yield the differences between a host and its table."""
    places = role in ("sut", "clean", "peer")
    if (places or machine.mirrors) and answers.get("user") != "0":
        what = "the check reads" if places else "tcpdump captures"
        why = f"commands run there as user {answers.get('user')}, but {what} as root"
        remedy = "sudo = true, with a sudo that asks for no password; or user = root"
        yield Mismatch("sudo", why, remedy)
    if not answers.get("scratch"):
        why = f"{machine.scratch} is not writable"
        yield Mismatch("scratch", why, "name another directory there")
    yield from _wrong_links(role, machine, answers, far_addresses)
    online = facts["stable"]["cpu"]["online"]
    if online and not cpu_set(machine.cpus) <= cpu_set(online):
        why = f"it has CPUs {online}, not {machine.cpus}"
        yield Mismatch("cpus", why, "name CPUs that it has")
    if machine.engine and not facts["stable"]["engine"]:
        why = f"no Docker Engine answers on {machine.engine}"
        remedy = 'start it there, correct the socket, or say engine = "none"'
        yield Mismatch("engine", why, remedy)


def _wrong_links(
    role: str, machine: Machine, answers: Mapping[str, str], far_addresses: Sequence[str]
) -> Iterator[Mismatch]:
    """Yield what is wrong with interfaces, addresses and routes."""
    addresses = {
        link["ifname"]: {row["local"] for row in link.get("addr_info", []) if "local" in row}
        for link in json_rows(answers.get("addresses", ""), f"ip addr of {role}")
        if "ifname" in link
    }
    absent = [name for name in machine.interfaces if name not in addresses]
    for interface in absent:
        yield Mismatch("interfaces", f"there is no interface {interface}", "correct the name")
    if absent:
        return
    lab = {address for name in machine.interfaces for address in addresses[name]}
    for address in machine.addresses:
        if address not in lab:
            why = f"{address} is not on {', '.join(machine.interfaces)}, which have {sorted(lab)}"
            remedy = "give the interface that address, or correct the file"
            yield Mismatch("addresses", why, remedy)
    for address in far_addresses:
        routes = json_rows(answers.get(f"route {address}", ""), f"ip route of {role}")
        device = str(routes[0].get("dev", "")) if routes else ""
        if device not in machine.interfaces:
            why = f"what it sends to {address} leaves by {device or 'no interface'}"
            remedy = "add a route through the lab, or correct the file"
            yield Mismatch("interfaces", why, remedy)


def kernel(answers: Mapping[str, str], facts: Facts) -> tuple[str, str]:
    """Return what identifies a host's kernel and processes: boot, and PID namespace."""
    return str(facts["volatile"].get("boot_id")), answers.get("processes", "")


def cgroup_parent(facts: Facts) -> str:
    """Return the parent of control groups, for systemd a slice.

    Not that of the virtual rig, which kills everything in its group when it is taken down.
    """
    driver = (facts["stable"]["engine"] or {}).get("CgroupDriver")
    return "labkit.slice" if driver == "systemd" else "/labkit-host"


def cpu_map(
    machines: Mapping[str, Machine], facts: Mapping[str, Facts], *, shared: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the CPU list of each role, and notes on what has none.

    ``all`` is for every host of one shared kernel, ``all.<role>`` for a host with its own.
    """
    cpus = {role: machine.cpus for role, machine in machines.items()}
    online = {role: str(facts[role]["stable"]["cpu"]["online"] or "0") for role in facts}
    notes = {"softirq": "where each machine's interrupts go"}
    if not shared:
        notes["harness"] = "not on the generator's or the server's CPUs"
        return cpus | {f"all.{role}": online[role] for role in online}, notes
    if facts["sut"]["volatile"].get("boot_id") == boot():
        # The harness is on this kernel too: with the generator, where no other CPU is left.
        generator = parse_cpus(machines["generator"].cpus)
        used = {*parse_cpus(machines["sut"].cpus), *generator}
        harness = [cpu for cpu in parse_cpus(online["sut"]) if cpu not in used] or generator
    else:
        harness = parse_cpus(Path("/sys/devices/system/cpu/online").read_text())
    return cpus | {"harness": ",".join(map(str, harness)), "all": online["sut"]}, notes


def drivers(machine: Machine, facts: Facts) -> dict[str, str]:
    """Return the driver of each lab interface; "" where it cannot be read."""
    known = facts["stable"]["interfaces"]
    return {name: str(known.get(name, {}).get("driver") or "") for name in machine.interfaces}


def links(machines: Mapping[str, Machine], facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """Return how each host is connected, as text."""
    return tuple(
        f"{role} -- {name} ({driver or 'unknown driver'}) -- lab"
        for role, machine in machines.items()
        for name, driver in drivers(machine, facts[role]).items()
    )


def caveats(
    inventory: Inventory, kernels: Mapping[str, tuple[str, str]], facts: Mapping[str, Facts]
) -> tuple[str, ...]:
    """Return the limits of what the machines' numbers can show."""
    texts = []
    boots: dict[str, list[str]] = {}
    for role, (boot_id, _) in kernels.items():
        boots.setdefault(boot_id, []).append(role)
    for boot_id, roles in boots.items():
        if len(roles) > 1:
            texts.append(f"{' and '.join(roles)} share one kernel, and with it CPUs and softirq")
        if boot_id == boot():
            texts.append(f"the harness runs on the machine of {' and '.join(roles)}")
    if "clean" in kernels and kernels["clean"][0] != kernels["sut"][0]:
        texts.append(
            "clean is another machine than the sut: a ratio to bare clean holds the difference of "
            "the two; bare rules and bare cgroup do not"
        )
    if "peer" in kernels and kernels["peer"][0] == kernels["generator"][0]:
        texts.append("the peer's engine and its firewall rules are on the generator's machine")
    guests = [role for role in facts if facts[role]["stable"]["virtualisation"]["hypervisor"]]
    if inventory.shared_machine:
        texts.append(
            "the hosts are guests of one machine: they share its CPUs, caches and memory, and what "
            "one end computes may slow the other"
        )
    elif guests:
        texts.append(f"virtual machines: {', '.join(guests)}; their CPUs are shared unseen")
    return tuple(texts)


def missing(
    inventory: Inventory,
    kernels: Mapping[str, tuple[str, str]],
    facts: Mapping[str, Facts],
    answers: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """Return the capabilities that the machines lack, each with the reason."""
    machines = inventory.machines
    sut, generator = machines["sut"], machines["generator"]
    reasons = _missing_hardware({"generator": generator, "sut": sut}, facts)
    reasons |= _missing_apart(inventory, kernels)
    if "collector" not in machines:
        reasons["collector"] = "rig.toml names no host collector"
    elif not machines["collector"].mirrors:
        reasons["collector"] = (
            "rig.toml does not say whose ports the switch mirrors to the collector: "
            'mirrors = ["sut"] in [hosts.collector]'
        )
    if "peer" not in machines:
        reasons["peer"] = "rig.toml names no host peer, a second machine with an engine"
    if "clean" not in machines:
        reasons["clean-host"] = "rig.toml names no host clean, and the sut has an engine's rules"
    elif answers["clean"].get("rules"):
        reasons["clean-host"] = "host clean has firewall rules of its own"
    elif not answers["clean"].get("readers"):
        reasons["clean-host"] = "host clean has neither nft nor iptables-legacy-save to read rules"
    if sut.engine is None:
        no_engine = "rig.toml says that sut has no engine"
        reasons |= dict.fromkeys(("docker", "layer2", "nat"), no_engine)
        reasons |= dict.fromkeys(("chroot", "cgroup"), _NO_IMAGES)
    elif sut.layer2 is None:
        reasons["layer2"] = "rig.toml names no bridge_port and bridge_address for sut"
    if not answers["sut"].get("readers"):
        reasons["rules"] = "host sut has neither nft nor iptables-legacy-save to read rules with"
    elif not answers["sut"].get("rules"):
        reasons["rules"] = (
            "host sut has no firewall rules of an engine (is it run without iptables?)"
        )
    return reasons


def _missing_apart(inventory: Inventory, kernels: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return what generator and sut lack as two machines, or as one."""
    if kernels["generator"][0] != kernels["sut"][0]:
        reasons = {"one-machine": "generator and sut have kernels of their own: no CPU is of both"}
        if inventory.shared_machine:
            reasons["separate-machines"] = "rig.toml says that the hosts are guests of one machine"
        return reasons
    one_kernel = "generator and sut have one kernel (the same boot identifier)"
    reasons = dict.fromkeys(("separate-machines", "separate-cpu-time"), one_kernel)
    sut, generator = inventory.machines["sut"], inventory.machines["generator"]
    if not cpu_set(sut.cpus) - cpu_set(generator.cpus):
        reasons["two-cpus"] = "rig.toml gives generator and sut the same CPU of one machine"
    return reasons


_NO_IMAGES = "images are made by an engine; sut has none"


def _missing_hardware(
    machines: Mapping[str, Machine], facts: Mapping[str, Facts]
) -> dict[str, str]:
    reasons = {}
    for role, machine in machines.items():
        isolated = str(facts[role]["stable"]["cpu"]["isolated"] or "").strip()
        if not cpu_set(machine.cpus) <= cpu_set(isolated):
            reasons["isolated-cpus"] = (
                f"CPU {machine.cpus} of {role} is not isolated (isolcpus: {isolated or 'none'})"
            )
        for name, driver in drivers(machine, facts[role]).items():
            if not driver or driver in SOFTWARE | PARAVIRTUAL:
                what = f"is {driver}, not hardware" if driver else "tells no driver"
                reasons["nic-hardware"] = f"{name} of {role} {what}"
            if not driver or driver in SOFTWARE:
                reasons["busy-poll"] = f"{name} of {role} has no queue that a socket could poll"
    return reasons


def missing_networks(inventory: Inventory) -> dict[str, str]:
    """Return the networks between containers that the rig cannot have, each with the reason."""
    if inventory.machines["sut"].engine is None:
        return {f"network:{name}": _NO_IMAGES for name in NETWORK_NAMES}
    return {
        f"network:{name}": f"rig.toml has no key {name} in its table [networks]"
        for name in NETWORK_NAMES
        if name not in inventory.networks
    }
