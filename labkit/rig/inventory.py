"""A rig of real machines, reached over SSH.

They need an SSH server, a POSIX shell and, on the system under test, a Docker Engine. What the file
says is checked before anything is measured: hosts have their addresses, routes lead through the
lab's interfaces, CPUs exist.

A second engine and a capture host are provided by their owner: an engine that runs, and a switch
that always mirrors ports to the capture host. Before anything is planned, packets are sent to check
that the mirror shows both directions.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit import runtimes
from labkit.errors import HostUnreachable, LabkitError, RigError, UsageError
from labkit.hosts import (
    Host,
    Job,
    SshHost,
    collect_facts,
    json_rows,
    restore,
    script,
    start_job,
    stop_labelled,
)
from labkit.hosts.target import Network, Target
from labkit.paths import project
from labkit.rig import engine, images, inventory_checks, kernel_probe, networks, storage
from labkit.rig.base import Rig
from labkit.rig.images import Say
from labkit.rig.rigfile import Inventory, Machine, read_rigfile
from labkit.runtimes.daemonless import withdraw
from labkit.runtimes.observed import sections

#: Label of the networks that opening the rig makes on an engine.
NETWORK_LABEL = "labkit=rig"
PEER, COLLECTOR = "peer", "collector"
#: Seconds after a boot for which a host may not yet be what its table says, and between two looks.
_BOOTING, _LOOK_SECONDS = 120.0, 5.0
#: Seconds between two messages that a host does not answer.
_SAY_SECONDS = 60.0


def remove_networks(host: Host, socket: str) -> list[str]:
    """Remove the networks that opening a rig made, which frees the ports of their bridges."""
    env = {"DOCKER_HOST": socket}
    listing = ("docker", "network", "ls", "--quiet", "--filter", f"label={NETWORK_LABEL}")
    names = host.run(*listing, env=env).stdout.split()
    for name in names:
        host.run("docker", "network", "rm", name, env=env)
    return [f"network {name}" for name in names]


def make_bridge(host: Host, socket: str, bridge: Network) -> bool:
    """Ensure that the layer-2 network exists with its port; tell whether it was made here.

    An existing network of that name must be what the file describes, and is used as it is. A new
    one gets a label by which it is removed again.
    """
    shown = host.run("ip", "-j", "addr", "show").stdout
    links = {link.get("ifname"): link for link in json_rows(shown, f"ip addr of {host.name}")}
    port = links.get(bridge.port)
    if port is None:
        raise _bridge_error(host, f"there is no interface {bridge.port}", "correct bridge_port")
    if any(address.get("scope") == "global" for address in port.get("addr_info", [])):
        why = f"{bridge.port} has an address: on a bridge it would lose its connections"
        raise _bridge_error(host, why, "name a second lab interface, without an address")
    if "UP" not in port.get("flags", []):
        remedy = f"on that host: ip link set {bridge.port} up"
        raise _bridge_error(host, f"{bridge.port} is down", remedy)
    env = {"DOCKER_HOST": socket}
    inspected = host.run("docker", "network", "inspect", bridge.engine, env=env, check=False)
    if inspected.status == 0:
        (found,) = json_rows(inspected.stdout, f"the network {bridge.engine} of {host.name}")
        problem = _network_difference(found, bridge)
        if not problem and port.get("master") != bridge.bridge:
            problem = f"{bridge.port} is not enslaved to {bridge.bridge}"
        if problem:
            remedy = (
                f"on that host: ip link set {bridge.port} master {bridge.bridge}; or remove the "
                "network, and labkit makes it"
            )
            raise _bridge_error(host, problem, remedy)
        return False
    if master := port.get("master"):
        why = f"{bridge.port} is enslaved to {master}"
        raise _bridge_error(host, why, "free it, or name that bridge")
    options = ("--label", NETWORK_LABEL, "--subnet", bridge.subnet)
    engine.create_network(host, socket, bridge.engine, bridge.bridge, *options)
    try:
        host.run("ip", "link", "set", bridge.port, "master", bridge.bridge)
    except LabkitError:
        remove_networks(host, socket)
        raise
    return True


def _network_difference(network: Mapping[str, Any], bridge: Network) -> str:
    """Return how an existing network differs from the file; "" where it does not."""
    subnets = [str(row.get("Subnet")) for row in network.get("IPAM", {}).get("Config") or []]
    name = (network.get("Options") or {}).get("com.docker.network.bridge.name")
    if network.get("Driver") != "bridge" or name != bridge.bridge:
        return f"the network {bridge.engine} is not on the bridge {bridge.bridge} but on {name}"
    address = ipaddress.ip_address(bridge.first)
    if not any(address in ipaddress.ip_network(subnet) for subnet in subnets):
        return f"{bridge.first} is not in the subnet of {bridge.engine}, {', '.join(subnets)}"
    return ""


def _bridge_error(host: Host, why: str, remedy: str) -> RigError:
    return RigError(
        "cannot set up the layer-2 bridge of the containers",
        where=f"{host!r}, keys bridge...",
        why=why,
        remedy=remedy,
    )


def _with_images(target: Target, scratch: str, names: Sequence[str]) -> Target:
    """Return a target with images of ``containers/``, built where its engine lacks them."""
    built = {}
    for name in names:
        folder = project("containers") / name
        if not (folder / "Dockerfile").is_file():
            raise UsageError(f"no image {name!r}", remedy="name a folder of containers/")
        where = (target.host, str(target.engine))
        built[name] = images.ensure_image(*where, folder, f"{scratch}/images", target.cgroup_parent)
    return replace(target, images=built)


#: The discard port: no process listens, but the packets show whether the mirror works.
_DISCARD_PORT = "9"


def _mirror_problem(rig: Rig, target: Target, roles: Sequence[str]) -> str:
    """Return what the mirror does not show of roles' traffic; "" where it shows everything."""
    interface, directory = rig.interfaces[COLLECTOR][0], f"{target.directory}/trial-mirror"
    argv = ["tcpdump", "-l", "-nn", "-i", interface, f"udp dst port {_DISCARD_PORT}"]
    job = start_job(target.host, argv, directory=directory, label="trial-mirror")
    try:
        result = job.await_output("listening on")
        if result.status != 0:
            return f"tcpdump does not listen on the collector: {result.stderr.strip()[-200:]}"
        for role in roles:
            other = "generator" if role != "generator" else "sut"
            for source, receiver in ((role, other), (other, role)):
                if reason := _unseen(rig, job, source, receiver):
                    return reason
        return ""
    finally:
        job.stop()
        target.host.run("rm", "-rf", "--", directory)


def _unseen(rig: Rig, job: Job, source: str, receiver: str) -> str:
    """Send packets; return that the collector did not see them, or ""."""
    near, far = rig.addresses[source][0], rig.addresses[receiver][0]
    load = ("sockperf", "throughput", "-i", far, "-p", _DISCARD_PORT, "-t", "1", "--mps", "20")
    sent = rig.hosts[source].run(*load, check=False)
    pattern = rf"IP {near}\.[0-9]* > {far}\.{_DISCARD_PORT}: "
    if job.await_output(pattern).status == 0:
        return ""
    why = "" if sent.status == 0 else f" ({sent.stderr.strip()[-200:] or 'sockperf failed'})"
    return f"the collector does not see what {source} sends to {receiver}{why}: is the mirror on?"


# Describes a host before it is used; the arguments are its scratch directory and the lab addresses
# of other hosts.
_LOOK = """
echo "@@ scratch"; mkdir -p "$1" && [ -w "$1" ] && echo writable || true
shift
echo "@@ user"; id -u
echo "@@ processes"; readlink /proc/self/ns/pid
echo "@@ addresses"; ip -j addr show
for peer in "$@"; do echo "@@ route $peer"; ip -j route get "$peer" || true; done
echo "@@ rules"; { nft list ruleset; iptables-legacy-save; } 2>/dev/null | head -n 1 || true
echo "@@ readers"; command -v nft || command -v iptables-legacy-save || true
"""


def connect(role: str, machine: Machine) -> SshHost:
    """Return a host of an inventory; it connects when first needed."""
    keys = ("user", "port", "key", "known_hosts", "gateway", "sudo")
    return SshHost(role, machine.ssh, **{key: getattr(machine, key) for key in keys})


def look(
    role: str, machines: Mapping[str, Machine], host: Host
) -> tuple[dict[str, str], inventory_checks.Facts, list[inventory_checks.Mismatch]]:
    """Return what a host answers, its facts, and how it differs from its table."""
    machine, far = machines[role], far_addresses(machines, role)
    answers = sections(host.run(*script(_LOOK, machine.scratch, *far)).stdout)
    facts = collect_facts(host, interfaces=machine.interfaces, engine_socket=machine.engine)
    return answers, facts, list(inventory_checks.mismatches(role, machine, answers, facts, far))


def far_addresses(machines: Mapping[str, Machine], role: str) -> list[str]:
    """Return the addresses that a host exchanges lab traffic with."""
    others = {"generator": ("sut", "clean", "peer"), "sut": ("generator", "peer")}
    others |= {"clean": ("generator",), "peer": ("generator", "sut")}
    far = [machines[other] for other in others.get(role, ()) if other in machines]
    addresses = [machine.addresses[0] for machine in far]
    addresses += [machine.layer2.first for machine in far if machine.layer2]
    # The peer may be the generator's machine.
    return [address for address in addresses if address not in machines[role].addresses]


def sweep(role: str, machine: Machine, host: Host, *, root: bool) -> list[str]:
    """Remove what a killed campaign left on a host, and nothing else; return what it was."""
    removed = [f"process {line}" for line in stop_labelled(host, "trial-")]
    if root:
        # Only settings of trials: others in the same journal belong to another rig.
        removed += [str(outcome) for outcome in restore(host, label="trial-")]
    if root and machine.engine:
        # Elsewhere no ports are published, and asking may load a table of rules.
        removed += [f"firewall rule {rule}" for rule in withdraw(host, "trial-")]
    if machine.engine:
        containers = engine.remove_containers(host, machine.engine, check=True)
        removed += [f"container {container}" for container in containers]
    if machine.engine:
        removed += networks.remove(host, machine.engine, f"{machine.scratch}/jobs", role)
        removed += remove_networks(host, machine.engine)
        storage.clear(host, f"{machine.scratch}/storage")
    host.run("rm", "-rf", "--", f"{machine.scratch}/jobs")
    images.forget_logs(host, f"{machine.scratch}/images")
    return removed


def _target(machine: Machine, host: Host, facts: inventory_checks.Facts) -> Target:
    return Target(
        host,
        next(iter(machine.addresses), ""),
        engine=machine.engine,
        networks={"bridge": machine.layer2} if machine.layer2 else {},
        cgroup_parent=inventory_checks.cgroup_parent(facts),
        directory=f"{machine.scratch}/jobs",
        disk=f"{machine.scratch}/storage",
        sandboxes=f"{machine.exec_root}/netns",
    )


@dataclass
class InventoryRig(Rig):
    """Real machines that an inventory file describes.

    Parameters
    ----------
    machines : mapping of str to Machine
        The hosts' tables in the file.
    extra : mapping of str to Target
        The peer and the collector, which take part only while a study needs them.
    """

    machines: Mapping[str, Machine] = field(default_factory=dict)
    extra: Mapping[str, Target] = field(default_factory=dict)

    @classmethod
    def accepts(cls, spec: str) -> bool:
        """Accept the path of a TOML file."""
        return spec.endswith(".toml")

    @classmethod
    def check(cls, spec: str) -> None:
        """Read the file."""
        read_rigfile(project(spec))

    @classmethod
    def attach(cls, spec: str | Path, say: Say = lambda text: None) -> InventoryRig:
        """Return the rig that an inventory file describes, connected, checked and with its images.

        The caller holds `labkit.rig.lock.locked`, so whatever a trial left on the hosts has no
        owner and is removed. The lock cannot tell whether another machine uses the same hosts.
        Where a host does not answer, it is tried again for as long as the file's ``patience``.
        """
        inventory = read_rigfile(project(spec))
        say(f"connecting to {', '.join(inventory.machines)}")
        deadline, said = time.monotonic() + inventory.patience, -math.inf
        while True:
            try:
                return cls._open(inventory, say)
            except HostUnreachable as error:
                now = time.monotonic()
                if error.lasting or now >= deadline:
                    raise
                if now - said >= _SAY_SECONDS:
                    said = now
                    say(
                        f"{error.what} ({error.why}): tried again for {deadline - now:.0f} s "
                        "(patience in rig.toml); Ctrl-C ends this"
                    )
                time.sleep(_LOOK_SECONDS)

    @classmethod
    def _open(cls, inventory: Inventory, say: Say) -> InventoryRig:
        machines = inventory.machines
        answers: dict[str, dict[str, str]] = {}
        facts: dict[str, inventory_checks.Facts] = {}
        with ExitStack() as stack:
            hosts = {role: connect(role, machine) for role, machine in machines.items()}
            for host in hosts.values():
                stack.callback(host.close)
            for role in machines:
                answers[role], facts[role], problems = look(role, machines, hosts[role])
                # After a reboot, addresses and the engine come some time after the SSH server.
                while problems and (facts[role]["volatile"]["uptime_s"] or _BOOTING) < _BOOTING:
                    say(f"host {role} has just booted: {problems[0].why}")
                    time.sleep(_LOOK_SECONDS)
                    answers[role], facts[role], problems = look(role, machines, hosts[role])
                for problem in problems[:1]:
                    raise RigError(
                        f"host {role} is not what {inventory.path.name} says",
                        where=f"{hosts[role]!r}; {inventory.path}, table [hosts.{role}], "
                        f"key {problem.key}",
                        why=problem.why,
                        remedy=problem.remedy,
                    )
            for role, machine in machines.items():
                for line in sweep(role, machine, hosts[role], root=answers[role]["user"] == "0"):
                    say(f"host {role}: removed {line}")
            sut = machines["sut"]
            stack.callback(hosts["sut"].run, *script(inventory_checks.REMOVE_PARENT))
            if sut.layer2 and sut.engine and make_bridge(hosts["sut"], sut.engine, sut.layer2):
                stack.callback(remove_networks, hosts["sut"], sut.engine)
            targets = {
                role: _target(machine, hosts[role], facts[role if machine.engine else "sut"])
                for role, machine in machines.items()
            }
            if sut.engine:
                say(f"images on {sut.ssh} (the first time takes about a minute)")
                names = [folder.name for folder in images.folders()]
                targets["sut"] = _with_images(targets["sut"], sut.scratch, names)
            rig = cls._assemble(inventory, hosts, targets, answers, facts)
            rig.at_close = (stack.pop_all().close,)
            return rig

    @classmethod
    def _assemble(
        cls,
        inventory: Inventory,
        hosts: Mapping[str, Host],
        targets: Mapping[str, Target],
        answers: Mapping[str, Mapping[str, str]],
        facts: Mapping[str, inventory_checks.Facts],
    ) -> InventoryRig:
        machines = inventory.machines
        kernels = {role: inventory_checks.kernel(answers[role], facts[role]) for role in machines}
        shared = len(set(kernels.values())) == 1
        sut = targets["sut"]
        cpus, notes = inventory_checks.cpu_map(machines, facts, shared=shared)
        without = {
            name: f"{target.host.name}: {reason}"
            for target in targets.values()
            if target.engine
            for name, reason in kernel_probe.missing_networks(target.host).items()
        }
        return cls(
            name=inventory.name,
            kind="inventory",
            hosts=hosts,
            targets={role: targets[role] for role in targets if role not in (PEER, COLLECTOR)},
            addresses={role: machine.addresses for role, machine in machines.items()},
            interfaces={role: machine.interfaces for role, machine in machines.items()},
            cpu_map=cpus,
            cpu_notes=notes,
            shared_kernel=shared,
            links=inventory_checks.links(machines, facts),
            caveats=inventory_checks.caveats(inventory, kernels, facts),
            missing=inventory_checks.missing(inventory, kernels, facts, answers)
            | runtimes.unavailable(sut.host)
            | inventory_checks.missing_networks(inventory)
            | without
            | storage.missing(sut.host, sut.engine, sut.disk),
            possible_networks=inventory.networks,
            patience=inventory.patience,
            machines=machines,
            extra={role: targets[role] for role in targets if role in (PEER, COLLECTOR)},
        )

    @contextmanager
    def peer(self, images: Sequence[str], *, clean: bool = False) -> Iterator[None]:
        """Add the peer, with images, for a ``with`` block; a rig file names no clean one."""
        if PEER not in self.extra:
            yield
            return
        peer = _with_images(self.extra[PEER], self.machines[PEER].scratch, images)
        with self.changed(targets={**self.targets, PEER: peer}):
            yield

    @contextmanager
    def collector(self, *roles: str) -> Iterator[None]:
        """Add the collector for the duration of a ``with`` block, or record why it cannot."""
        if COLLECTOR not in self.extra:
            yield
            return
        roles, target = roles or ("sut",), self.extra[COLLECTOR]
        unmirrored = [role for role in roles if role not in self.machines[COLLECTOR].mirrors]
        if unmirrored:
            reason = (
                f"rig.toml does not say that the switch mirrors the port of {unmirrored[0]} to the "
                f'collector: mirrors = ["{unmirrored[0]}"] in [hosts.collector]'
            )
        else:
            reason = _mirror_problem(self, target, roles)
        changes: dict[str, Any] = {"missing": {**self.missing, COLLECTOR: reason}}
        if not reason:
            changes = {
                "targets": {**self.targets, COLLECTOR: target},
                "mirrored": {**self.mirrored, COLLECTOR: tuple(roles)},
            }
        with self.changed(**changes):
            yield
