"""Checks of the machines of an inventory: pure rules over what they answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.placement import cpu_set, parse_cpus
from labkit.rig.rigfile import NETWORK_NAMES, Inventory, Machine

#: Drivers without a device, and those of a device that a hypervisor plays.
SOFTWARE = {"veth", "bridge", "tun", "macvlan", "ipvlan", "vxlan", "dummy"}
PARAVIRTUAL = {"virtio_net", "vmxnet3", "hv_netvsc", "vif", "xen_netfront"}
Facts = Mapping[str, Any]

#: Removes the parent of control groups where nothing is in it; systemd does so by itself.
TIDY = """
for group in /sys/fs/cgroup/labkit-host /sys/fs/cgroup/*/labkit-host; do
    rmdir "$group" 2>/dev/null || true
done
"""


def mismatch(
    machine: Machine, answers: Mapping[str, str], facts: Facts, targets: Sequence[str]
) -> tuple[str, str, str] | None:
    """Return key, difference and remedy of the first thing in which a host is not as described."""
    placing = machine.role in ("sut", "clean", "peer")
    if (placing or machine.mirrors) and answers.get("user") != "0":
        what = "the check reads" if placing else "tcpdump captures"
        why = f"commands run there as user {answers.get('user')}, but {what} as root"
        return "sudo", why, "sudo = true, with a sudo that asks for no password; or user = root"
    if not answers.get("scratch"):
        return "scratch", f"{machine.scratch} is not writable", "name another directory there"
    held = _addresses(answers)
    for interface in machine.interfaces:
        if interface not in held:
            return "interfaces", f"there is no interface {interface}", "correct the name"
    lab = {address for name in machine.interfaces for address in held[name]}
    for address in machine.addresses:
        if address not in lab:
            why = f"{address} is not on {', '.join(machine.interfaces)}, which have {sorted(lab)}"
            return "addresses", why, "give the interface that address, or correct the file"
    for target in targets:
        device = _route_device(answers, target)
        if device not in machine.interfaces:
            why = f"what it sends to {target} leaves by {device or 'no interface'}"
            return "interfaces", why, "add a route through the lab, or correct the file"
    online = facts["stable"]["cpu"]["online"]
    if online and not cpu_set(machine.cpus) <= cpu_set(online):
        return "cpus", f"it has CPUs {online}, not {machine.cpus}", "name CPUs that it has"
    if machine.engine and not facts["stable"]["engine"]:
        why = f"no Docker Engine answers on {machine.engine}"
        return "engine", why, 'start it there, correct the socket, or say engine = "none"'
    return None


def _addresses(answers: Mapping[str, str]) -> dict[str, set[str]]:
    links = json.loads(answers.get("addresses") or "[]")
    return {
        link["ifname"]: {one["local"] for one in link.get("addr_info", []) if "local" in one}
        for link in links
        if "ifname" in link
    }


def _route_device(answers: Mapping[str, str], target: str) -> str:
    routes = json.loads(answers.get(f"way {target}") or "[]")
    return str(routes[0].get("dev", "")) if routes else ""


def kernel(answers: Mapping[str, str], facts: Facts) -> tuple[str, str]:
    """Return what two hosts have in common when they see the same processes: boot, and PIDs."""
    return str(facts["volatile"].get("boot_id")), answers.get("processes", "")


def cgroup_parent(facts: Facts) -> str:
    """Return the parent of control groups; systemd takes only a slice.

    It is not the virtual rig's, which ends whatever is in its own when it is taken down.
    """
    driver = (facts["stable"]["engine"] or {}).get("CgroupDriver")
    return "labkit.slice" if driver == "systemd" else "/labkit-host"


def cpu_map(
    machines: Mapping[str, Machine], facts: Mapping[str, Facts], *, shared: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return which CPU does what, on each machine, and what is known in words only.

    With one kernel ``all`` is everybody's.
    """
    cpus = {role: machine.cpus for role, machine in machines.items()}
    online = {role: str(one["stable"]["cpu"]["online"] or "0") for role, one in facts.items()}
    notes = {"softirq": "where each machine's interrupts go"}
    if not shared:
        notes["harness"] = "not on the generator's or the server's CPUs"
        return cpus | {f"all.{role}": every for role, every in online.items()}, notes
    # The harness may be on this kernel too: it keeps off the server, beside the sleeping generator.
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    if facts["sut"]["volatile"].get("boot_id") == here:
        generator = parse_cpus(machines["generator"].cpus)
        used = {*parse_cpus(machines["sut"].cpus), *generator}
        harness = [cpu for cpu in parse_cpus(online["sut"]) if cpu not in used] or generator
    else:
        harness = parse_cpus(Path("/sys/devices/system/cpu/online").read_text())
    return cpus | {"harness": ",".join(map(str, harness)), "all": online["sut"]}, notes


def drivers(machine: Machine, facts: Facts) -> dict[str, str]:
    """Return the driver of each lab interface; "" where it cannot be read."""
    found = facts["stable"]["interfaces"]
    return {name: str(found.get(name, {}).get("driver") or "") for name in machine.interfaces}


def links(machines: Mapping[str, Machine], facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """Return how each host is joined, in words."""
    return tuple(
        f"{role} -- {name} ({driver or 'unknown driver'}) -- lab"
        for role, machine in machines.items()
        for name, driver in drivers(machine, facts[role]).items()
    )


def caveats(kernels: Mapping[str, tuple[str, str]], facts: Mapping[str, Facts]) -> tuple[str, ...]:
    """Return what the machines' numbers cannot say."""
    found = []
    boots: dict[str, list[str]] = {}
    for role, (boot, _) in kernels.items():
        boots.setdefault(boot, []).append(role)
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for boot, roles in boots.items():
        if len(roles) > 1:
            found.append(f"{' and '.join(roles)} share one kernel, and with it CPUs and softirq")
        if boot == here:
            found.append(f"the harness runs on the machine of {' and '.join(roles)}")
    if "clean" in kernels and kernels["clean"][0] != kernels["sut"][0]:
        found.append(
            "clean is another machine than the sut: a ratio to bare clean holds the difference of "
            "the two; bare rules and bare cgroup do not"
        )
    if "peer" in kernels and kernels["peer"][0] == kernels["generator"][0]:
        found.append("the peer's engine and its firewall rules are on the generator's machine")
    guests = [role for role, one in facts.items() if one["stable"]["virtualisation"]["hypervisor"]]
    if guests:
        found.append(f"virtual machines: {', '.join(guests)}; their CPUs are shared unseen")
    return tuple(found)


def missing(
    machines: Mapping[str, Machine],
    kernels: Mapping[str, tuple[str, str]],
    facts: Mapping[str, Facts],
    answers: Mapping[str, Mapping[str, str]],
) -> dict[str, str]:
    """Return the capabilities that the machines lack, with the reason of each."""
    sut, ends = machines["sut"], {role: machines[role] for role in ("generator", "sut")}
    found = _hardware(ends, facts) | _placements(machines, answers)
    if kernels["generator"][0] == kernels["sut"][0]:
        found["separate-machines"] = "generator and sut have one kernel (the same boot identifier)"
        if not cpu_set(sut.cpus) - cpu_set(machines["generator"].cpus):
            found["two-cpus"] = "rig.toml gives generator and sut the same CPU of one machine"
    else:
        found["one-machine"] = "generator and sut are separate machines: they share no CPU"
    if "collector" not in machines:
        found["collector"] = "rig.toml names no host collector"
    elif not machines["collector"].mirrors:
        found["collector"] = (
            "rig.toml does not say whose ports the switch mirrors to the collector: "
            'mirrors = ["sut"] in [hosts.collector]'
        )
    if "peer" not in machines:
        found["peer"] = "rig.toml names no host peer, a second machine with an engine"
    return found


def networks(book: Inventory, answers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the networks between containers that the file does not give, or its users cannot."""
    found = {
        f"network:{name}": f"rig.toml has no key {name} in its table [networks]"
        for name in NETWORK_NAMES
        if name not in book.networks
    }
    user = answers["generator"].get("user")
    if user != "0":
        reason = f"it needs root on the generator, where commands run as user {user}"
        found |= {
            f"network:{name}": reason for name in ("routed", "vxlan") if name in book.networks
        }
    if book.machines["sut"].engine is None:
        found |= {
            f"network:{name}": "images are made by an engine; sut has none"
            for name in NETWORK_NAMES
        }
    return found


def _hardware(machines: Mapping[str, Machine], facts: Mapping[str, Facts]) -> dict[str, str]:
    found = {}
    for role, machine in machines.items():
        isolated = str(facts[role]["stable"]["cpu"]["isolated"] or "").strip()
        if not cpu_set(machine.cpus) <= cpu_set(isolated):
            found["isolated-cpus"] = (
                f"CPU {machine.cpus} of {role} is not isolated (isolcpus: {isolated or 'none'})"
            )
        for name, driver in drivers(machine, facts[role]).items():
            if not driver or driver in SOFTWARE | PARAVIRTUAL:
                what = f"is {driver}, not hardware" if driver else "tells no driver"
                found["nic-hardware"] = f"{name} of {role} {what}"
            if not driver or driver in SOFTWARE:
                found["busy-poll"] = f"{name} of {role} has no queue that a socket could poll"
    return found


def _placements(
    machines: Mapping[str, Machine], answers: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    sut, found = machines["sut"], {}
    if "clean" not in machines:
        found["clean-host"] = "rig.toml names no host clean, and the sut has an engine's rules"
    elif answers["clean"].get("rules"):
        found["clean-host"] = "host clean has firewall rules of its own"
    elif not answers["clean"].get("readers"):
        found["clean-host"] = "host clean has neither nft nor iptables-legacy-save to read rules"
    if sut.engine is None:
        found |= dict.fromkeys(("docker", "layer2", "nat"), "rig.toml says that sut has no engine")
        found |= dict.fromkeys(("chroot", "cgroup"), "images are made by an engine; sut has none")
    elif sut.bridge is None:
        found["layer2"] = "rig.toml names no bridge_port and bridge_address for sut"
    if not answers["sut"].get("readers"):
        found["rules"] = "host sut has neither nft nor iptables-legacy-save to read rules with"
    elif not answers["sut"].get("rules"):
        found["rules"] = "host sut has no firewall rules of an engine (is it run without iptables?)"
    return found
