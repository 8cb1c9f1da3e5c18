"""A rig of real machines, reached over SSH: the same object as the virtual one gives.

Nothing but an SSH server, a POSIX shell and, on the system under test, Docker is expected there.
What the file promises is looked at before anything is measured: addresses are held, routes lead
through the lab's interfaces, CPUs exist.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import LabkitError, RigError
from labkit.hosts import Host, SshHost, collect_facts, restore, script, stop_labelled
from labkit.hosts.site import Image, Network, Site
from labkit.paths import project
from labkit.rig import engine, engines, findings, storage
from labkit.rig.base import Rig
from labkit.rig.rigfile import Inventory, Machine, read
from labkit.runtimes.readback import sections

__all__ = ["attach", "read"]

Say = Callable[[str], None]
#: Label of what a rig makes on an engine, beside the trials' own.
LABEL = "labkit=rig"

# What a host is asked before it is used, in one command; the arguments are its scratch directory
# and the lab addresses of others.
_LOOK = """
echo "@@ scratch"; mkdir -p "$1" && [ -w "$1" ] && echo writable || true
shift
echo "@@ user"; id -u
echo "@@ processes"; readlink /proc/self/ns/pid
echo "@@ addresses"; ip -j addr show
for peer in "$@"; do echo "@@ way $peer"; ip -j route get "$peer" || true; done
echo "@@ rules"; { nft list ruleset; iptables-legacy-save; } 2>/dev/null | head -n 1 || true
echo "@@ readers"; command -v nft || command -v iptables-legacy-save || true
"""


@dataclass(frozen=True)
class Seen:
    """What a host showed: its answers to `_LOOK`, and its facts."""

    answers: Mapping[str, str]
    facts: Mapping[str, Any]


def attach(path: Path | str, *, say: Say = lambda text: None) -> Rig:
    """Return the rig that an inventory file describes, connected, checked and with its images.

    The caller holds `labkit.rig.state.locked`, so whatever a trial left on the hosts has lost its
    owner and is removed here. One harness uses the machines at a time; this is not seen from here
    when another one drives them.

    Parameters
    ----------
    path : path
        The file; a relative one is taken from the project's folder.
    say : callable
        Receives a line before each step that takes seconds.

    Raises
    ------
    UsageError
        The file has a mistake; see `labkit.rig.rigfile.read`.
    HostUnreachable, RigError
        A host cannot be reached, or is not what the file says.
    """
    book = read(project(path))
    with ExitStack() as stack:
        hosts = {role: _host(one) for role, one in book.machines.items()}
        for host in hosts.values():
            stack.callback(host.close)
        say(f"connecting to {', '.join(hosts)}")
        seen = {role: _look(book, role, hosts[role]) for role in hosts}
        for role, machine in book.machines.items():
            _check(book, machine, seen[role], hosts[role])
        for role, machine in book.machines.items():
            _sweep(machine, hosts[role], seen[role].answers["user"] == "0", say)
        sut = book.machines["sut"]
        stack.callback(hosts["sut"].run, *script(findings.TIDY))
        images = _images(sut, hosts["sut"], seen["sut"], say)
        if sut.bridge and sut.engine and _make_bridge(hosts["sut"], sut.engine, sut.bridge):
            stack.callback(_remove_networks, hosts["sut"], sut.engine)
        rig = _rig(book, hosts, images, seen)
        rig.at_close = (stack.pop_all().close,)
        return rig


def _host(machine: Machine) -> SshHost:
    return SshHost(
        machine.role,
        machine.ssh,
        user=machine.user,
        port=machine.port,
        key=machine.key,
        known_hosts=machine.known_hosts,
        gateway=machine.gateway,
        sudo=machine.sudo,
    )


def _look(book: Inventory, role: str, host: Host) -> Seen:
    machine = book.machines[role]
    answers = sections(host.run(*script(_LOOK, machine.scratch, *_targets(book, role))).stdout)
    facts = collect_facts(host, interfaces=machine.interfaces, engine_socket=machine.engine)
    return Seen(answers, facts)


def _targets(book: Inventory, role: str) -> list[str]:
    """Return the addresses that a host exchanges lab traffic with: one end is the generator."""
    others = {"generator": ("sut", "clean"), "sut": ("generator",), "clean": ("generator",)}
    peers = [book.machines[one] for one in others.get(role, ()) if one in book.machines]
    found = [peer.addresses[0] for peer in peers]
    return found + [peer.bridge.first for peer in peers if peer.bridge]


def _check(book: Inventory, machine: Machine, seen: Seen, host: Host) -> None:
    """Raise `RigError` where a host is not what the file says."""
    problem = findings.mismatch(machine, seen.answers, seen.facts, _targets(book, machine.role))
    if problem:
        key, what, remedy = problem
        raise RigError(
            f"host {machine.role} is not what {book.path.name} says",
            where=f"{host!r}; {book.path}, table [hosts.{machine.role}], key {key}",
            why=what,
            remedy=remedy,
        )


def _sweep(machine: Machine, host: Host, root: bool, say: Say) -> None:
    """Remove what a dead campaign left on a host, and only that."""
    done = [f"process {line}" for line in stop_labelled(host, "trial-")]
    if root:
        # Only what trials set: another rig's own settings in the same journal belong to it.
        done += [str(outcome) for outcome in restore(host, label="trial-")]
    if machine.engine:
        env = {"DOCKER_HOST": machine.engine}
        listing = ("docker", "ps", "--all", "--quiet", "--filter", "label=labkit")
        for container in host.run(*listing, env=env).stdout.split():
            host.run("docker", "rm", "--force", "--volumes", container, env=env)
            done.append(f"container {container}")
        done += _remove_networks(host, machine.engine)
        storage.clear(host, machine.engine, f"{machine.scratch}/storage")
    host.run("rm", "-rf", "--", f"{machine.scratch}/jobs")
    for line in done:
        say(f"host {machine.role}: removed {line}")


def _remove_networks(host: Host, socket: str) -> list[str]:
    """Remove the networks that a rig made; the port of a bridge that goes is free again."""
    env = {"DOCKER_HOST": socket}
    listing = ("docker", "network", "ls", "--quiet", "--filter", f"label={LABEL}")
    found = host.run(*listing, env=env).stdout.split()
    for network in found:
        host.run("docker", "network", "rm", network, env=env)
    return [f"network {network}" for network in found]


def _images(machine: Machine, host: Host, seen: Seen, say: Say) -> dict[str, Image]:
    """Return the images, each built on the machine's own engine where it is not there yet."""
    if machine.engine is None:
        return {}
    say(f"images on {machine.ssh} (the first time takes about a minute)")
    folders = [path.parent for path in sorted(project("containers").glob("*/Dockerfile"))]
    store = f"{machine.scratch}/images"
    parent = findings.cgroup_parent(seen.facts)
    return {
        folder.name: engine.ensure_image(host, machine.engine, folder, store=store, parent=parent)
        for folder in folders
    }


def _make_bridge(host: Host, socket: str, bridge: Network) -> bool:
    """See that the layer-2 network stands and the port is on it; tell whether it was made here.

    A network of that name that stands is used as it is, if it is what the file says; otherwise it
    is made, with a label by which it is removed again.
    """
    links = {one["ifname"]: one for one in json.loads(host.run("ip", "-j", "addr", "show").stdout)}
    port = links.get(bridge.port)
    if port is None:
        raise _bridge_error(host, f"there is no interface {bridge.port}", "correct bridge_port")
    if any(one.get("scope") == "global" for one in port.get("addr_info", [])):
        why = f"{bridge.port} has an address: on a bridge it would lose its connections"
        raise _bridge_error(host, why, "name a second lab interface, without an address")
    if "UP" not in port.get("flags", []):
        raise _bridge_error(
            host, f"{bridge.port} is down", f"on that host: ip link set {bridge.port} up"
        )
    env = {"DOCKER_HOST": socket}
    found = host.run("docker", "network", "inspect", bridge.engine, env=env, check=False)
    if found.status == 0:
        problem = _other_network(json.loads(found.stdout)[0], bridge)
        if not problem and port.get("master") != bridge.bridge:
            problem = f"{bridge.port} is not enslaved to {bridge.bridge}"
        if problem:
            remedy = (
                f"on that host: ip link set {bridge.port} master {bridge.bridge}; or remove the "
            )
            raise _bridge_error(host, problem, remedy + "network, and labkit makes it")
        return False
    if port.get("master"):
        raise _bridge_error(
            host, f"{bridge.port} is enslaved to {port['master']}", "free it, or name that bridge"
        )
    options = ("--label", LABEL, "--subnet", bridge.subnet)
    engine.create_network(host, socket, bridge.engine, bridge.bridge, *options)
    try:
        host.run("ip", "link", "set", bridge.port, "master", bridge.bridge)
    except LabkitError:
        _remove_networks(host, socket)
        raise
    return True


def _other_network(found: Mapping[str, Any], bridge: Network) -> str:
    """Return in what a network that stands is not the one that the file speaks of."""
    subnets = [str(one.get("Subnet")) for one in found.get("IPAM", {}).get("Config") or []]
    name = (found.get("Options") or {}).get("com.docker.network.bridge.name")
    if found.get("Driver") != "bridge" or name != bridge.bridge:
        return f"the network {bridge.engine} is not on the bridge {bridge.bridge} but on {name}"
    address = ipaddress.ip_address(bridge.first)
    if not any(address in ipaddress.ip_network(one) for one in subnets):
        return f"{bridge.first} is not in the subnet of {bridge.engine}, {', '.join(subnets)}"
    return ""


def _bridge_error(host: Host, why: str, remedy: str) -> RigError:
    return RigError(
        "the layer-2 bridge of the containers cannot be had",
        where=f"{host!r}, keys bridge...",
        why=why,
        remedy=remedy,
    )


def _rig(
    book: Inventory, hosts: Mapping[str, Host], images: Mapping[str, Image], seen: dict[str, Seen]
) -> Rig:
    facts = {role: one.facts for role, one in seen.items()}
    kernels = {role: findings.kernel(one.answers, one.facts) for role, one in seen.items()}
    shared = len(set(kernels.values())) == 1
    sites = _sites(book, hosts, images, facts["sut"])
    sut = sites["sut"]
    apart = storage.apart(sut.host, sut.engine, sut.disk) if sut.engine else ""
    return Rig(
        name=book.name,
        kind="inventory",
        hosts=hosts,
        sites=sites,
        addresses={role: one.addresses for role, one in book.machines.items()},
        interfaces={role: one.interfaces for role, one in book.machines.items()},
        cpu_map=findings.cpu_map(book.machines, facts, shared=shared),
        shared_kernel=shared,
        links=findings.links(book.machines, facts),
        caveats=findings.caveats(kernels, facts),
        missing=findings.missing(
            book.machines, kernels, facts, {role: one.answers for role, one in seen.items()}
        )
        | engines.missing(sut.host, sut.engine)
        | engines.no_networks("rig.toml gives no addresses for it")
        | storage.missing_beside((facts["sut"]["stable"]["engine"] or {}).get("Driver"), apart),
    )


def _sites(
    book: Inventory,
    hosts: Mapping[str, Host],
    images: Mapping[str, Image],
    facts: Mapping[str, Any],
) -> dict[str, Site]:
    found = {}
    for role in ("generator", "sut", "clean"):
        if role in book.machines:
            machine = book.machines[role]
            bridge = machine.bridge
            found[role] = Site(
                hosts[role],
                machine.addresses[0],
                engine=machine.engine,
                networks={"bridge": bridge} if bridge else {},
                cgroup_parent=findings.cgroup_parent(facts),
                directory=f"{machine.scratch}/jobs",
                disk=f"{machine.scratch}/storage",
                images=images if role == "sut" else {},
            )
    return found
