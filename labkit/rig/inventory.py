"""A rig of real machines, reached over SSH: the same object as the virtual one gives.

Nothing but an SSH server, a POSIX shell and, on the system under test, Docker is expected there.
What the file says is checked before anything is measured: hosts have their addresses, routes lead
through the lab's interfaces, CPUs exist.

A second engine and a capture host are what their owner has set up: an engine that runs, and a
switch that mirrors ports to the capture host all the time. That the mirror shows both ways is tried
before anything is planned.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit import runtimes
from labkit.errors import LabkitError, RigError, UsageError
from labkit.hosts import Host, SshHost, collect_facts, restore, script, start_job, stop_labelled
from labkit.hosts.target import Image, Network, Target
from labkit.paths import project
from labkit.rig import engine, images, inventory_checks, kernel_probe, networks, storage
from labkit.rig.base import Rig, Say
from labkit.rig.rigfile import Inventory, Machine, read_rigfile
from labkit.runtimes.observed import sections

#: Label of what a rig makes on an engine, beside the trials' own.
NETWORK_LABEL = "labkit=rig"
PEER, COLLECTOR = "peer", "collector"


def remove_networks(host: Host, socket: str) -> list[str]:
    """Remove the networks that a rig made; the port of a bridge that goes is free again."""
    env = {"DOCKER_HOST": socket}
    listing = ("docker", "network", "ls", "--quiet", "--filter", f"label={NETWORK_LABEL}")
    found = host.run(*listing, env=env).stdout.split()
    for network in found:
        host.run("docker", "network", "rm", network, env=env)
    return [f"network {network}" for network in found]


def make_bridge(host: Host, socket: str, bridge: Network) -> bool:
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
        problem = _network_difference(json.loads(found.stdout)[0], bridge)
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
    options = ("--label", NETWORK_LABEL, "--subnet", bridge.subnet)
    engine.create_network(host, socket, bridge.engine, bridge.bridge, *options)
    try:
        host.run("ip", "link", "set", bridge.port, "master", bridge.bridge)
    except LabkitError:
        remove_networks(host, socket)
        raise
    return True


def _network_difference(found: Mapping[str, Any], bridge: Network) -> str:
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
        "cannot set up the layer-2 bridge of the containers",
        where=f"{host!r}, keys bridge...",
        why=why,
        remedy=remedy,
    )


#: Nobody listens there (discard); a mirror shows what is sent to it all the same.
_DISCARD_PORT = "9"
# Waits until the program listens, or until it has shown every way; the ways are patterns.
_AWAIT = """
file=$1 tries=0
shift
while [ "$tries" -lt 250 ]; do
    seen=yes
    for way in "$@"; do grep -q "$way" "$file" 2>/dev/null || seen=; done
    [ -z "$seen" ] || exit 0
    tries=$((tries + 1))
    sleep 0.02
done
cat "${file%/*}/stderr" >&2
exit 1
"""


def build_images(target: Target, store: str, names: Sequence[str]) -> dict[str, Image]:
    """Return images of ``containers/``, built on a target's engine where they are missing."""
    found = {}
    for name in names:
        folder = project("containers") / name
        if not (folder / "Dockerfile").is_file():
            raise UsageError(f"no image {name!r}", remedy="name a folder of containers/")
        options = {"store": store, "parent": target.cgroup_parent}
        found[name] = images.ensure_image(target.host, str(target.engine), folder, **options)
    return found


def _mirror_problem(rig: Rig, target: Target, roles: Sequence[str]) -> str:
    """Return what the mirror does not show of roles' traffic; "" where it shows both ways."""
    interface, directory = rig.interfaces[COLLECTOR][0], f"{target.directory}/trial-mirror"
    argv = ["tcpdump", "-l", "-nn", "-i", interface, f"udp dst port {_DISCARD_PORT}"]
    job = start_job(target.host, argv, directory=directory, label="trial-mirror")
    try:
        ready = script(_AWAIT, f"{directory}/stderr", "listening on")
        heard = target.host.run(*ready, check=False)
        if heard.status != 0:
            return f"tcpdump does not listen on the collector: {heard.stderr.strip()[-200:]}"
        for role in roles:
            other = "generator" if role != "generator" else "sut"
            for source, receiver in ((role, other), (other, role)):
                if reason := _send_problem(rig, target, directory, source, receiver):
                    return reason
        return ""
    finally:
        job.stop()
        target.host.run("rm", "-rf", "--", directory)


def _send_problem(rig: Rig, target: Target, directory: str, source: str, receiver: str) -> str:
    here, there = rig.addresses[source][0], rig.addresses[receiver][0]
    load = ("sockperf", "throughput", "-i", there, "-p", _DISCARD_PORT, "-t", "1", "--mps", "20")
    sent = rig.hosts[source].run(*load, check=False)
    way = rf"IP {here}\.[0-9]* > {there}\.{_DISCARD_PORT}: "
    seen = target.host.run(*script(_AWAIT, f"{directory}/stdout", way), check=False)
    if seen.status == 0:
        return ""
    why = "" if sent.status == 0 else f" ({sent.stderr.strip()[-200:] or 'sockperf failed'})"
    return f"the collector does not see what {source} sends to {receiver}{why}: is the mirror on?"


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
    answers = sections(host.run(*script(_LOOK, machine.scratch, *_addresses(book, role))).stdout)
    facts = collect_facts(host, interfaces=machine.interfaces, engine_socket=machine.engine)
    return Seen(answers, facts)


def _addresses(book: Inventory, role: str) -> list[str]:
    """Return the addresses that a host exchanges lab traffic with."""
    others = {"generator": ("sut", "clean", "peer"), "sut": ("generator", "peer")}
    others |= {"clean": ("generator",), "peer": ("generator", "sut")}
    far = [book.machines[one] for one in others.get(role, ()) if one in book.machines]
    found = [one.addresses[0] for one in far] + [one.bridge.first for one in far if one.bridge]
    # A peer may be the generator's machine.
    return [one for one in found if one not in book.machines[role].addresses]


def _check(book: Inventory, machine: Machine, seen: Seen, host: Host) -> None:
    """Raise `RigError` where a host is not what the file says."""
    problem = inventory_checks.mismatch(
        machine, seen.answers, seen.facts, _addresses(book, machine.role)
    )
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
    laid = networks.undo_steps(host, networks.undo_folders(f"{machine.scratch}/jobs", machine.role))
    done += [f"what {len(laid)} steps made for networks"] if laid else []
    if machine.engine:
        done += remove_networks(host, machine.engine)
        storage.clear(host, machine.engine, f"{machine.scratch}/storage")
    host.run("rm", "-rf", "--", f"{machine.scratch}/jobs")
    for line in done:
        say(f"host {machine.role}: removed {line}")


def _unable(targets: Mapping[str, Target]) -> dict[str, str]:
    """Return the networks that a machine with an engine cannot have."""
    with_engine = [target for target in targets.values() if target.engine]
    return {
        name: f"{target.host.name}: {reason}"
        for target in with_engine
        for name, reason in kernel_probe.missing_networks(target.host, target.engine).items()
    }


def _targets(
    book: Inventory, hosts: Mapping[str, Host], seen: Mapping[str, Seen], say: Say
) -> dict[str, Target]:
    """Return each machine as a place; the sut's has every image, a peer's what a study names."""
    found = {}
    for role, machine in book.machines.items():
        target = Target(
            hosts[role],
            next(iter(machine.addresses), ""),
            engine=machine.engine,
            networks={"bridge": machine.bridge} if machine.bridge else {},
            cgroup_parent=inventory_checks.cgroup_parent(
                seen[role if machine.engine else "sut"].facts
            ),
            directory=f"{machine.scratch}/jobs",
            disk=f"{machine.scratch}/storage",
            sandboxes=f"{machine.exec_root}/netns",
        )
        if role == "sut" and machine.engine:
            say(f"images on {machine.ssh} (the first time takes about a minute)")
            names = [
                path.parent.name for path in sorted(project("containers").glob("*/Dockerfile"))
            ]
            target = replace(
                target, images=build_images(target, f"{machine.scratch}/images", names)
            )
        found[role] = target
    return found


@dataclass
class InventoryRig(Rig):
    """Real machines, as an inventory file names them.

    Parameters
    ----------
    peer_target, collector_target : Target, optional
        Hosts that take part only while a study asks for them.
    peer_store : str
        Directory of the peer's unpacked images.
    mirrors : tuple of str
        Roles whose ports the switch mirrors to the collector.
    """

    peer_target: Target | None = None
    peer_store: str = ""
    collector_target: Target | None = None
    mirrors: tuple[str, ...] = ()

    @classmethod
    def accepts(cls, spec: str) -> bool:
        """Accept the path of a TOML file."""
        return spec.endswith(".toml")

    @classmethod
    def attach(cls, spec: str | Path, say: Say = lambda text: None) -> InventoryRig:
        """Return the rig that an inventory file describes, connected, checked and with its images.

        The caller holds `labkit.rig.lock.locked`, so whatever a trial left on the hosts has lost
        its owner and is removed here. One harness uses the machines at a time; whether another one
        drives them is not seen from here.
        """
        book = read_rigfile(project(spec))
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
            stack.callback(hosts["sut"].run, *script(inventory_checks.TIDY))
            if sut.bridge and sut.engine and make_bridge(hosts["sut"], sut.engine, sut.bridge):
                stack.callback(remove_networks, hosts["sut"], sut.engine)
            rig = cls._of(book, hosts, _targets(book, hosts, seen, say), seen)
            rig.at_close = (stack.pop_all().close,)
            return rig

    @classmethod
    def _of(
        cls,
        book: Inventory,
        hosts: Mapping[str, Host],
        targets: Mapping[str, Target],
        seen: Mapping[str, Seen],
    ) -> InventoryRig:
        facts = {role: one.facts for role, one in seen.items()}
        answers = {role: one.answers for role, one in seen.items()}
        kernels = {
            role: inventory_checks.kernel(one.answers, one.facts) for role, one in seen.items()
        }
        shared = len(set(kernels.values())) == 1
        sut, machines = targets["sut"], book.machines
        apart = storage.apart(sut.host, sut.engine, sut.disk) if sut.engine else ""
        driver = (facts["sut"]["stable"]["engine"] or {}).get("Driver")
        cpus, notes = inventory_checks.cpu_map(machines, facts, shared=shared)
        return cls(
            name=book.name,
            kind="inventory",
            hosts=hosts,
            targets={
                role: target for role, target in targets.items() if role not in (PEER, COLLECTOR)
            },
            addresses={role: machine.addresses for role, machine in machines.items()},
            interfaces={role: machine.interfaces for role, machine in machines.items()},
            cpu_map=cpus,
            cpu_notes=notes,
            shared_kernel=shared,
            links=inventory_checks.links(machines, facts),
            caveats=inventory_checks.caveats(kernels, facts),
            missing=inventory_checks.missing(machines, kernels, facts, answers)
            | runtimes.unavailable(sut.host, sut.engine)
            | inventory_checks.networks(book, answers)
            | _unable(targets)
            | storage.missing_beside(driver, apart),
            layable=book.networks,
            peer_target=targets.get(PEER),
            peer_store=f"{machines[PEER].scratch}/images" if PEER in machines else "",
            collector_target=targets.get(COLLECTOR),
            mirrors=machines[COLLECTOR].mirrors if COLLECTOR in machines else (),
        )

    @contextmanager
    def peer(self, images: Sequence[str]) -> Iterator[None]:
        """Have the peer take part, with images, for the duration of a ``with`` block."""
        if self.peer_target is None:
            yield
            return
        receiver = replace(
            self.peer_target, images=build_images(self.peer_target, self.peer_store, images)
        )
        with self.changed(targets={**self.targets, PEER: receiver}):
            yield

    @contextmanager
    def collector(self, *roles: str) -> Iterator[None]:
        """Have the collector take part, or else say why it cannot."""
        roles = roles or ("sut",)
        if self.collector_target is None:
            yield
            return
        unmirrored = [role for role in roles if role not in self.mirrors]
        reason = (
            f"rig.toml does not say that the switch mirrors the port of {unmirrored[0]} to the "
            f'collector: mirrors = ["{unmirrored[0]}"] in [hosts.collector]'
            if unmirrored
            else _mirror_problem(self, self.collector_target, roles)
        )
        changes: dict[str, Any] = (
            {"missing": {**self.missing, COLLECTOR: reason}}
            if reason
            else {
                "targets": {**self.targets, COLLECTOR: self.collector_target},
                "mirrored": {**self.mirrored, COLLECTOR: tuple(roles)},
            }
        )
        with self.changed(**changes):
            yield
