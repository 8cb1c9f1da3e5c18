"""Machines of one's own, which a rig.toml describes and which are reached over SSH.

Bridges, engines and mirrors are their owner's; labkit checks them before it measures anything.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from labkit.errors import HostUnreachable, LabkitError, RigError, UsageError, suggestion
from labkit.hosts import Host, LocalHost, SshHost, restore, stop_labelled
from labkit.hosts.target import Target
from labkit.paths import project
from labkit.placement import cpu_set
from labkit.process import boot
from labkit.rig import checks, engine, images, layers, lock, networks, storage
from labkit.rig.base import Additions, Rig
from labkit.rig.checks import Seen
from labkit.rig.images import Say
from labkit.rig.rigfile import EngineMachine, Machine, RigFile, read_rigfile
from labkit.runtimes.jobs import withdraw

T = TypeVar("T")
PEER, COLLECTOR = "peer", "collector"
#: The parent of control groups, but for an engine on systemd.
GROUP = "/labkit-host"
#: Seconds after a boot for which a host may not yet be as its table says, and between two looks.
_BOOTING, _PAUSE = 120.0, 5.0
#: Seconds between two messages that a host does not answer.
_SAY_SECONDS = 60.0


@contextmanager
def connected(file: RigFile) -> Iterator[dict[str, SshHost]]:
    """Yield the hosts of a rig file, which connect when first needed."""
    keys = ("user", "port", "key", "known_hosts", "sudo")
    with ExitStack() as stack:
        hosts = {}
        for role, machine in file.machines.items():
            options = {key: getattr(machine, key) for key in keys}
            hosts[role] = SshHost(role, machine.ssh, **options)
            stack.callback(hosts[role].close)
        yield hosts


def look(file: RigFile, role: str, host: Host) -> Seen:
    """Return how a host of a rig file is."""
    machines = file.machines
    others = {"generator": ("sut", "clean", PEER), "sut": ("generator", PEER)}
    others |= {"clean": ("generator",), PEER: ("generator", "sut")}
    far = [machines[other] for other in others.get(role, ()) if other in machines]
    addresses = [machine.addresses[0] for machine in far]
    addresses += [machine.layer2.first for machine in far if machine.layer2]
    # The peer may be the generator's machine.
    addresses = [address for address in addresses if address not in machines[role].addresses]
    return checks.look(host, role, machines[role], addresses)


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
    removed = [f"process {line}" for line in stop_labelled(host, "trial-")]
    is_root = host.run("id", "-u").stdout.strip() == "0"
    if is_root:
        # Only settings of trials: others in the same journal belong to another rig.
        removed += restore(host, label="trial-")
        if machine.socket:
            removed += [f"firewall rule {rule}" for rule in withdraw(host, "trial-")]
    jobs = f"{machine.scratch}/jobs"
    if machine.socket:
        found = engine.remove_containers(host, machine.socket, check=True)
        removed += [f"container {container}" for container in found]
        # After the containers, since an engine keeps a network that one of them is on.
        removed += networks.remove(Target(host, "", machine.socket, directory=jobs))
        storage.clear(host, f"{machine.scratch}/storage")
    host.run("rm", "-rf", "--", jobs)
    images.forget_logs(host, f"{machine.scratch}/images")
    if is_root:
        host.call("remove_group", group=GROUP)
    return removed


def cgroup_parent(facts: Mapping[str, Any]) -> str:
    """Return the parent of control groups, for systemd a slice.

    Not that of the virtual rig, which kills everything in its group when it is taken down.
    """
    driver = (facts["stable"]["engine"] or {}).get("CgroupDriver")
    return "labkit.slice" if driver == "systemd" else GROUP


def cpu_map(
    machines: Mapping[str, Machine], seen: Mapping[str, Seen]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the CPU list of each role, and notes on what has none.

    ``all`` is for every host of one shared kernel, ``all.<role>`` for a host with its own.
    """
    cpus = {role: machine.cpus for role, machine in machines.items()}
    online = {role: str(seen[role].facts["stable"]["cpu"]["online"] or "0") for role in machines}
    notes = {"softirq": "where each machine's interrupts go"}
    if not _shared_kernel(seen):
        notes["harness"] = "not on the generator's or the server's CPUs"
        return cpus | {f"all.{role}": online[role] for role in online}, notes
    harness = cpu_set(Path("/sys/devices/system/cpu/online").read_text().strip())
    if seen["sut"].kernel[0] == boot():
        # The harness is on this kernel too: with the generator, where no other CPU is left.
        ends = cpu_set(cpus["sut"]) | cpu_set(cpus["generator"])
        harness = cpu_set(online["sut"]) - ends or cpu_set(cpus["generator"])
    return cpus | {"harness": ",".join(map(str, sorted(harness))), "all": online["sut"]}, notes


def _shared_kernel(seen: Mapping[str, Seen]) -> bool:
    return len({one.kernel for one in seen.values()}) == 1


def caveats(file: RigFile, seen: Mapping[str, Seen]) -> tuple[str, ...]:
    """Return the limits of what the machines' numbers can show."""
    texts = []
    boots: dict[str, list[str]] = {}
    for role, one in seen.items():
        boots.setdefault(one.kernel[0], []).append(role)
    for boot_id, roles in boots.items():
        names = " and ".join(roles)
        if len(roles) > 1:
            texts.append(f"{names} share one kernel, and with it CPUs and softirq")
        if boot_id == boot():
            texts.append(f"the harness runs on the machine of {names}")
    if "clean" in seen and seen["clean"].kernel[0] != seen["sut"].kernel[0]:
        texts.append(
            "clean is another machine than the sut: a ratio to bare clean holds the difference of "
            "the two; bare rules and bare cgroup do not"
        )
    if PEER in seen and seen[PEER].kernel[0] == seen["generator"].kernel[0]:
        texts.append("the peer's engine and its firewall rules are on the generator's machine")
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
    hosts = file.hosts
    reasons = {
        capability: f"host {role}: {one.found}; {one.fault}"
        for role, host in seen.items()
        for one in checks.check(host)
        if not one.ok
        for capability in one.lacks
    }
    for role, host in seen.items():
        reasons |= {name: f"host {role}: {reason}" for name, reason in host.cannot.items()}
    reasons |= _missing_apart(file, seen)
    if hosts.collector is None or not hosts.collector.mirrors:
        reasons[COLLECTOR] = "rig.toml names no [hosts.collector] with mirrors"
    if hosts.peer is None:
        reasons[PEER] = "rig.toml names no [hosts.peer], a second machine with an engine"
    if hosts.clean is None:
        reasons["clean-host"] = "rig.toml names no [hosts.clean], and the sut has an engine's rules"
    elif seen["clean"].answers["rules"]:
        reasons["clean-host"] = "host clean has firewall rules of its own"
    if not seen["sut"].answers["rules"]:
        reasons["rules"] = "host sut has no rules of an engine (run without iptables?)"
    if hosts.sut.layer2 is None:
        reasons["layer2"] = "rig.toml names no bridge_port and bridge_address of the sut"
    if hosts.sut.socket is None:
        needing = ["docker", "layer2", "nat", "chroot", "cgroup"]
        needing += [f"network:{name}" for name in networks.NAMES]
        reasons |= dict.fromkeys(needing, "rig.toml says that the sut has no engine")
    known = [*file.networks, *(name.partition(":")[2] for name in reasons)]
    return reasons | {
        f"network:{name}": f"rig.toml has no key {name} in its table [networks]"
        for name in networks.NAMES
        if name not in known
    }


def _missing_apart(file: RigFile, seen: Mapping[str, Seen]) -> dict[str, str]:
    """Return what generator and sut lack as two machines, or as one."""
    if seen["generator"].kernel[0] != seen["sut"].kernel[0]:
        why = "rig.toml says that the hosts are guests of one machine"
        return {"separate-machines": why} if file.shared_machine else {}
    one_kernel = "generator and sut have one kernel (the same boot identifier)"
    reasons = dict.fromkeys(("separate-machines", "separate-cpu-time"), one_kernel)
    if cpu_set(file.hosts.sut.cpus) <= cpu_set(file.hosts.generator.cpus):
        reasons["two-cpus"] = "rig.toml gives generator and sut the same CPU of one machine"
    return reasons


def check(spec: str) -> None:
    """Raise an error if the rig file cannot be read."""
    read_rigfile(project(spec))


@contextmanager
def opened(spec: str, added: Additions, say: Say) -> Iterator[Rig]:
    """Connect the rig of a file, checked and with its images, for the duration of a ``with`` block.

    Whatever a trial left on the hosts has no owner, and is removed at both ends. The lock cannot
    tell whether another machine uses the same hosts.
    """
    file = read_rigfile(project(spec))
    say(f"connecting to {', '.join(file.machines)}")
    with connected(file) as hosts, ExitStack() as stack:
        look_at = partial(_look_at, file, hosts, say)
        seen = _persistent(look_at, file.patience, say)
        stack.callback(_sweep_all, file, hosts, lambda text: None)
        yield _persistent(partial(_rig, file, hosts, seen, added, say), file.patience, say)


def _persistent(attempt: Callable[[], T], patience: float, say: Say) -> T:
    """Return the result of a function; where a host does not answer, try again for some seconds."""
    deadline, said = time.monotonic() + patience, math.inf
    while True:
        try:
            return attempt()
        except HostUnreachable as error:
            left = deadline - time.monotonic()
            if error.lasting or left <= 0:
                raise
            if said - left >= _SAY_SECONDS:
                said = left
                say(f"{error.what} ({error.why}): tried again for {left:.0f} s (patience)")
            time.sleep(_PAUSE)


def _look_at(file: RigFile, hosts: Mapping[str, Host], say: Say) -> dict[str, Seen]:
    return {role: _seen(file, role, host, say) for role, host in hosts.items()}


def _seen(file: RigFile, role: str, host: Host, say: Say) -> Seen:
    """Return how a host is; raise `RigError` if it is not as its table says."""
    while True:
        seen = look(file, role, host)
        one = next((c for c in checks.check(seen) if c.needed and not c.ok), None)
        if one is None:
            return seen
        # After a reboot, addresses and the engine come some time after the SSH server.
        if (seen.facts["volatile"]["uptime_s"] or _BOOTING) >= _BOOTING:
            raise RigError(
                f"host {role} is not as rig.toml says: {one.title}",
                where=f"{host!r}",
                why=one.fault,
                remedy=one.remedy,
            )
        say(f"host {role} has just booted: {one.fault}")
        time.sleep(_PAUSE)


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
    reasons = missing(file, seen)
    targets = {role: _target(file, role, host, seen) for role, host in hosts.items()}
    if targets["sut"].engine:
        names = [folder.name for folder in images.folders()]
        sut = layers.with_layers(_with_images(targets["sut"], names, say), added.layers, say)
        storages, lacking = storage.find(sut.host, sut.engine, sut.disk)
        targets["sut"] = replace(sut, storages=storages)
    else:
        _, lacking = storage.find(hosts["sut"], None, "")
    reasons |= lacking
    if PEER in targets and added.peer:
        targets[PEER] = _with_images(targets[PEER], added.peer, say)
    if COLLECTOR in targets and (fault := _mirror_fault(file, hosts, added.collector)):
        reasons[COLLECTOR] = fault
    left_out = {PEER: not added.peer, COLLECTOR: not added.collector or COLLECTOR in reasons}
    targets = {role: target for role, target in targets.items() if not left_out.get(role)}
    cpus, notes = cpu_map(file.machines, seen)
    interfaces = {role: tuple(machine.interfaces) for role, machine in file.machines.items()}
    wanted = [file.networks[name] for name in added.networks if f"network:{name}" not in reasons]
    return Rig(
        name=file.name,
        kind="inventory",
        hosts=hosts,
        targets=networks.create(targets, interfaces, wanted),
        addresses={role: tuple(machine.addresses) for role, machine in file.machines.items()},
        interfaces=interfaces,
        cpu_map=cpus,
        cpu_notes=notes,
        shared_kernel=_shared_kernel(seen),
        links=tuple(
            f"{role} -- {name} ({known or 'unknown driver'}) -- lab"
            for role, one in seen.items()
            for name, known in one.drivers.items()
        ),
        caveats=caveats(file, seen),
        missing=reasons,
        mirrored={COLLECTOR: added.collector} if COLLECTOR in targets else {},
        patience=file.patience,
    )


def _target(file: RigFile, role: str, host: Host, seen: Mapping[str, Seen]) -> Target:
    """Return a machine as a place for workloads."""
    machine = file.machines[role]
    target = Target(
        host,
        next(iter(machine.addresses), ""),
        engine=machine.socket,
        networks={"bridge": machine.layer2} if machine.layer2 else {},
        cgroup_parent=cgroup_parent(seen[role if machine.socket else "sut"].facts),
        directory=f"{machine.scratch}/jobs",
        disk=f"{machine.scratch}/storage",
    )
    if isinstance(machine, EngineMachine):
        target = replace(target, sandboxes=f"{machine.exec_root}/netns")
    return target


def _mirror_fault(file: RigFile, hosts: Mapping[str, Host], roles: Sequence[str]) -> str:
    """Send packets to the discard port; return which direction the collector does not see."""
    if not roles or file.hosts.collector is None:
        return ""
    for role in roles:
        if role not in file.hosts.collector.mirrors:
            return (
                f"[hosts.collector] of rig.toml has no mirrors for {role}, whose port the switch "
                "must mirror"
            )
    ways = []
    for role in roles:
        other = "generator" if role != "generator" else "sut"
        ways += [(role, other), (other, role)]
    machines = file.machines
    capture = ("tcpdump", "-l", "-nn", "-i", machines[COLLECTOR].interfaces[0])
    with ThreadPoolExecutor(1 + len(ways)) as pool:
        argv = ("timeout", str(_MIRROR_SECONDS), *capture, f"udp dst port {_DISCARD}")
        captured = pool.submit(hosts[COLLECTOR].run, *argv, check=False)
        for source, receiver in ways:
            to = machines[receiver].addresses[0]
            pool.submit(hosts[source].run, "python3", "-ISc", _SEND, to, check=False)
    shown = captured.result()
    for source, receiver in ways:
        near, far = machines[source].addresses[0], machines[receiver].addresses[0]
        way = rf"IP {re.escape(near)}\.\d+ > {re.escape(far)}\.{_DISCARD}: "
        if not re.search(way, shown.stdout):
            return (
                f"the collector does not see what {source} sends to {receiver}: is the mirror "
                f"on? ({shown.stderr.strip()[-200:]})"
            )
    return ""


#: The discard port: no process listens, but the packets show whether the mirror works.
_DISCARD, _MIRROR_SECONDS = 9, 4
# Sends for as long as tcpdump runs, since either may start first.
_SEND = f"""
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range({_MIRROR_SECONDS * 5}):
    sender.sendto(b"labkit", (sys.argv[1], {_DISCARD}))
    time.sleep(0.2)
"""


def _with_images(target: Target, names: Sequence[str], say: Say) -> Target:
    """Return a target with images; those that its engine lacks are sent, or else built there."""
    folders = {folder.name: folder for folder in images.folders()}
    if unknown := [name for name in names if name not in folders]:
        raise UsageError(f"no image {unknown[0]!r}", remedy=suggestion(unknown[0], folders))
    host, socket = target.host, str(target.engine)
    wanted = [folders[name] for name in names]
    lacking = [f for f in wanted if not engine.digests(host, socket, [images.tag(f)])]
    if lacking and lock.is_root() and shutil.which("dockerd"):
        images.ensure_images(LocalHost(), say)
        with engine.building_daemon(LocalHost()) as source:
            send_images(source, host, socket, list(map(images.tag, lacking)), say)
    store = str(Path(target.disk).with_name("images"))
    where = (store, target.cgroup_parent)
    built = {folder.name: images.ensure_image(host, socket, folder, *where) for folder in wanted}
    return replace(target, images=built)


def send_images(source: str, host: Host, socket: str, references: Sequence[str], say: Say) -> None:
    """Send images from an engine of this machine to one of a host."""
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        archive = Path(folder, "images.tar")
        save = ("docker", "--host", source, "save", "--output", str(archive), *references)
        LocalHost().run(*save, timeout=1800)
        say(f"{len(references)} images ({archive.stat().st_size >> 20} MiB) go to {host.name}")
        with images.sent(host, archive) as remote:
            host.run("docker", "--host", socket, "load", "--input", remote, timeout=1800)
