"""Machines of one's own, which a rig.toml describes and which are reached over SSH.

Bridges, engines and mirrors are their owner's; labkit checks them before it measures anything.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from labkit.errors import HostUnreachable, LabkitError, RigError
from labkit.hosts import Host, LocalHost, SshHost, agent, stop_labelled
from labkit.hosts.target import Target
from labkit.paths import project
from labkit.rig import checks, engine, images, lock, networks
from labkit.rig.base import Additions, Rig
from labkit.rig.checks import Check, Seen
from labkit.rig.images import Say
from labkit.rig.netns import COLLECTOR, PEER
from labkit.rig.rigfile import RigFile, read_rigfile
from labkit.runtimes.jobs import withdraw

T = TypeVar("T")
#: The parent of control groups; the virtual rig kills everything in its own at its end.
GROUP = "/labkit-host"
#: Seconds after a boot for which a host may not yet be as its table says, and between two looks.
_BOOTING, _PAUSE = 120.0, 5.0


@contextmanager
def connected(file: RigFile) -> Iterator[dict[str, SshHost]]:
    """Yield the hosts of a rig file, which connect when first needed."""
    keys = {"user", "port", "key", "known_hosts", "sudo"}
    with ExitStack() as stack:
        hosts = {}
        for role, machine in file.machines.items():
            hosts[role] = SshHost(role, machine.ssh, **machine.model_dump(include=keys))
            stack.callback(hosts[role].close)
        yield hosts


def each(
    path: Path | str, do: Callable[[RigFile, str, SshHost], Any], *, at_once: bool = False
) -> dict[str, Any]:
    """Do something on all machines of a rig file; return results, or the error, by role.

    Only what changes nothing may be done at once, since roles may share a machine.
    """

    def attempt(role: str) -> Any:
        try:
            return do(file, role, hosts[role])
        except LabkitError as error:
            return error

    file = read_rigfile(project(path))
    with connected(file) as hosts, ThreadPoolExecutor(len(hosts) if at_once else 1) as pool:
        return dict(zip(hosts, pool.map(attempt, hosts), strict=True))


def sweep(file: RigFile, role: str, host: Host) -> list[str]:
    """Remove what campaigns left on a host, by their label; return what it was."""
    machine = file.machines[role]
    jobs, socket = f"{machine.scratch}/jobs", machine.socket
    removed = [f"process {line}" for line in stop_labelled(host, "trial-")]
    is_root = host.run("id", "-u").stdout.strip() == "0"
    if is_root:
        # Only settings of trials: others in the same journal belong to another rig.
        removed += host.call("restore", label="trial-")
    if is_root and socket:
        removed += [f"firewall rule {rule}" for rule in withdraw(host, "trial-")]
    if socket:
        found = engine.remove_containers(host, socket, check=True)
        removed += [f"container {container}" for container in found]
        # After the containers, since an engine keeps a network that one of them is on.
        removed += networks.remove(Target(host, "", socket, directory=jobs))
    host.run("rm", "-rf", "--", jobs)
    images.clear(host, f"{machine.scratch}/storage", f"{machine.scratch}/images")
    if is_root:
        host.call("remove_group", group=GROUP)
    return removed


def kernels(seen: Mapping[str, Seen]) -> Check:
    """Return whether the two ends have kernels of their own, as ends on machines must."""
    two = seen["generator"].boot != seen["sut"].boot
    fault = "generator and sut have the same boot identifier"
    remedy = "name two machines, or use the rig virtual"
    return Check("kernels", "two" if two else "one", two, fault, remedy, needed=True)


def caveats(file: RigFile, seen: Mapping[str, Seen]) -> tuple[str, ...]:
    """Return the limits of what the machines' numbers can show."""
    boots = {role: one.boot for role, one in seen.items()}
    texts = []
    for boot_id in dict.fromkeys(boots.values()):
        roles = [role for role in boots if boots[role] == boot_id]
        names = " and ".join(roles)
        if len(roles) > 1:
            texts.append(f"{names} share one kernel, and with it CPUs and softirq")
        if boot_id == agent.read(agent.BOOT_ID):
            texts.append(f"the harness runs on the machine of {names}")
    if boots.get("clean", boots["sut"]) != boots["sut"]:
        texts.append(
            "clean is another machine than the sut: a ratio to bare clean holds the difference of "
            "the two; bare rules and bare cgroup do not"
        )
    guests = [r for r in seen if seen[r].facts["stable"]["virtualisation"]["hypervisor"]]
    if file.shared_machine:
        texts.append(
            "the hosts are guests of one machine: they share its CPUs, caches and memory, and what "
            "one end computes may slow the other"
        )
    elif guests:
        texts.append(f"virtual machines: {', '.join(guests)}; their CPUs are shared unseen")
    return tuple(texts)


def missing(file: RigFile, seen: Mapping[str, Seen]) -> dict[str, str]:
    """Return the capabilities that the machines lack, each with the reason."""
    hosts, sut, reasons = file.hosts, file.hosts.sut, dict[str, str]()
    for role, host in seen.items():
        for one in checks.check(host):
            if not one.ok:
                reasons |= dict.fromkeys(one.lacks, f"host {role}: {one.found}; {one.fault}")
        reasons |= {name: f"host {role}: {reason}" for name, reason in host.cannot.items()}
    between = {name: f"network:{name}" for name in networks.NAMES}
    needing = ["docker", "layer2", "nat", "chroot", "cgroup", *between.values()]
    unnamed = [key for name, key in between.items() if not {name, key} & {*file.networks, *reasons}]
    rules = {role: host.answers["rules"] for role, host in seen.items()}
    for lacking, capabilities, reason in (
        (file.shared_machine, ["separate-machines"], "its hosts are guests of one machine"),
        (not _mirrors(file), [COLLECTOR], "it has no [hosts.collector] with mirrors"),
        (not hosts.peer, [PEER], "it has no [hosts.peer], a second machine with an engine"),
        (not hosts.clean, ["clean-host"], "it has no [hosts.clean], and the sut has engine rules"),
        (rules.get("clean"), ["clean-host"], "its host clean has firewall rules of its own"),
        (not rules["sut"], ["rules"], "its sut has no rules of an engine (without iptables?)"),
        (not sut.layer2, ["layer2"], "its sut has no bridge_port and bridge_address"),
        (True, unnamed, "its table [networks] has no such key"),
        (not sut.socket, needing, "its sut has no engine"),
    ):
        reasons |= dict.fromkeys(capabilities if lacking else [], f"rig.toml: {reason}")
    return reasons


def _mirrors(file: RigFile) -> list[str]:
    """Return the roles whose ports the switch mirrors to a collector."""
    return [*file.hosts.collector.mirrors] if file.hosts.collector else []


def check(spec: str) -> None:
    """Raise an error if the rig file cannot be read."""
    read_rigfile(project(spec))


@contextmanager
def opened(spec: str, added: Additions, say: Say) -> Iterator[Rig]:
    """Connect the rig of a file, checked and with its images, for the duration of a ``with`` block.

    The lock cannot tell whether another machine uses the same hosts.
    """
    file = read_rigfile(project(spec))
    say(f"connecting to {', '.join(file.machines)}")
    with connected(file) as hosts, ExitStack() as stack:
        seen = _persistent(partial(_look_at, file, hosts), file.patience, say)
        stack.callback(_sweep_all, file, hosts, lambda text: None)
        yield _persistent(partial(_rig, file, hosts, seen, added, say), file.patience, say)


def _persistent(attempt: Callable[[], T], patience: float, say: Say) -> T:
    """Return the result of a function; where a host does not answer, try again for some seconds."""
    deadline, said = time.monotonic() + patience, False
    while True:
        try:
            return attempt()
        except HostUnreachable as error:
            if error.lasting or time.monotonic() >= deadline:
                raise
            if not said:
                say(f"{error.what} ({error.why}): tried again for {patience:.0f} s (patience)")
            said = True
            time.sleep(_PAUSE)


def _look_at(file: RigFile, hosts: Mapping[str, Host]) -> dict[str, Seen]:
    """Return how each host is; raise an error if one is not as its table says."""
    seen = {role: checks.look(file, role, host) for role, host in hosts.items()}
    found = [(role, one) for role in seen for one in checks.check(seen[role])]
    for role, one in [*found, ("sut", kernels(seen))]:
        if one.needed and not one.ok:
            # After a reboot, addresses and the engine come some time after the SSH server.
            booting = (seen[role].facts["volatile"]["uptime_s"] or _BOOTING) < _BOOTING
            what = f"host {role} is not as rig.toml says: {one.title}"
            kind = HostUnreachable if booting else RigError
            raise kind(what, where=repr(hosts[role]), why=one.fault, remedy=one.remedy)
    return seen


def _sweep_all(file: RigFile, hosts: Mapping[str, Host], say: Say) -> None:
    """Remove what campaigns left on the hosts that can be reached."""
    for role, host in hosts.items():
        with suppress(HostUnreachable):
            for line in sweep(file, role, host):
                say(f"host {role}: removed {line}")


def _rig(
    file: RigFile,
    hosts: Mapping[str, SshHost],
    seen: Mapping[str, Seen],
    added: Additions,
    say: Say,
) -> Rig:
    _sweep_all(file, hosts, say)
    machines, reasons, targets = file.machines, missing(file, seen), dict[str, Target]()
    for role, machine in machines.items():
        # An engine on systemd has slices.
        engine_of = seen[role if machine.socket else "sut"].facts["stable"]["engine"] or {}
        systemd = engine_of.get("CgroupDriver") == "systemd"
        targets[role] = Target(
            hosts[role],
            next(iter(machine.addresses), ""),
            engine=machine.socket,
            networks={"bridge": machine.layer2} if machine.layer2 else {},
            cgroup_parent="labkit.slice" if systemd else GROUP,
            directory=f"{machine.scratch}/jobs",
            disk=f"{machine.scratch}/storage",
            sandboxes=f"{getattr(machine, 'exec_root', '')}/netns",
            addresses=tuple(machine.addresses),
            interfaces=tuple(machine.interfaces),
        )
    sut = targets["sut"]
    if sut.engine:
        sut = images.with_layers(_with_images(sut, images.folders(), say), added.layers, say)
    storages, lacking = images.find_storages(sut.host, sut.engine, sut.disk)
    targets["sut"] = replace(sut, storages=storages)
    reasons |= lacking
    if PEER in targets and added.peer:
        targets[PEER] = _with_images(targets[PEER], added.peer, say)
    if COLLECTOR in targets and (fault := _mirror_fault(file, hosts, added.collector)):
        reasons[COLLECTOR] = fault
    left_out = {PEER: not added.peer, COLLECTOR: not added.collector or COLLECTOR in reasons}
    targets = {role: target for role, target in targets.items() if not left_out.get(role)}
    cpus = {role: machine.cpus for role, machine in machines.items()}
    cpus |= {f"all.{role}": seen[role].cpus for role in machines}
    notes = {"softirq": "where each machine's interrupts go"}
    notes["harness"] = "not on the generator's or the server's CPUs"
    wanted = [file.networks[name] for name in added.networks if f"network:{name}" not in reasons]
    return Rig(
        name=file.name,
        kind="inventory",
        targets=networks.create(targets, wanted),
        cpu_map={**cpus, **notes},
        shared_kernel=False,
        links=tuple(
            f"{role} -- {name} ({known or 'unknown driver'}) -- lab"
            for role, one in seen.items()
            for name, known in one.drivers.items()
        ),
        caveats=caveats(file, seen),
        missing=reasons,
        mirrors=added.collector if COLLECTOR in targets else (),
    )


# Sends for as long as tcpdump runs, since either may start first. No process listens on the discard
# port, but the packets show whether the mirror works.
_SEND = """
import socket, sys, time
for _ in range(20):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"labkit", (sys.argv[1], 9))
    time.sleep(0.2)
"""


def _mirror_fault(file: RigFile, hosts: Mapping[str, Host], roles: Sequence[str]) -> str:
    """Send packets both ways; return which direction the collector does not see."""
    machines = file.machines
    if absent := [role for role in roles if role not in _mirrors(file)]:
        return f"[hosts.collector] of rig.toml has no mirrors for {', '.join(absent)}"
    ways = []
    for role in roles:
        other = "generator" if role != "generator" else "sut"
        ways += [(role, other), (other, role)]
    capture = ("timeout", "4", "tcpdump", "-l", "-nn", "-i", machines[COLLECTOR].interfaces[0])
    with ThreadPoolExecutor(1 + len(ways)) as pool:
        captured = pool.submit(hosts[COLLECTOR].run, *capture, "udp dst port 9", check=False)
        for source, receiver in ways:
            send = ("python3", "-ISc", _SEND, machines[receiver].addresses[0])
            pool.submit(hosts[source].run, *send, check=False)
    shown = captured.result()
    for source, receiver in ways:
        near, far = machines[source].addresses[0], machines[receiver].addresses[0]
        lines = [line for line in shown.stdout.splitlines() if f" > {far}.9: " in line]
        if not any(f" {near}." in line for line in lines):
            fault = f"the collector does not see what {source} sends to {receiver}"
            return f"{fault}: is the mirror on? ({shown.stderr.strip()[-200:]})"
    return ""


def _with_images(target: Target, names: Iterable[str], say: Say) -> Target:
    """Return a target with images; those that its engine lacks are sent, or else built there."""
    host, socket, folders = target.host, str(target.engine), images.folders()
    tags = [images.tag(folders[name]) for name in names]
    lacking = [tag for tag in tags if not engine.digests(host, socket, [tag])]
    if lacking and lock.is_root() and shutil.which("dockerd"):
        images.ensure_images(LocalHost(), say)
        with engine.building_daemon(LocalHost()) as source:
            images.send(source, host, socket, lacking, say)
    where = (str(Path(target.disk).with_name("images")), target.cgroup_parent)
    built = {name: images.ensure_image(host, socket, folders[name], *where) for name in names}
    return replace(target, images=built)
