"""Machines of one's own, which a rig.toml describes and which are reached over SSH."""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.errors import HostUnreachable, LabkitError, RigError
from labkit.hosts import Host, SshHost, script
from labkit.hosts.agent import JOURNAL
from labkit.hosts.target import Target
from labkit.process import announce
from labkit.rig import checks, images, netns, networks
from labkit.rig.base import Additions, Rig
from labkit.rig.checks import Check, Seen
from labkit.rig.rigfile import RigFile, read_rigfile
from labkit.runtimes.jobs import withdraw

#: The parent of control groups; the virtual rig kills everything in its own at its end.
GROUP = "/labkit-host"
#: Seconds after a boot for which a host may not yet be as its table says, and between two looks.
_BOOTING, _PAUSE = 120.0, 5.0


@contextmanager
def connected(file: RigFile) -> Iterator[dict[str, SshHost]]:
    """Yield the hosts of a rig file, which connect when first needed."""
    keys, hosts = {"user", "port", "key", "known_hosts", "sudo"}, dict[str, SshHost]()
    with ExitStack() as stack:
        for role, one in file.machines.items():
            hosts[role] = SshHost(role, one.ssh, **one.model_dump(include=keys))
            stack.callback(hosts[role].close)
        yield hosts


def each(path: Path | str, do: Callable[..., Any], *, at_once: bool = False) -> dict[str, Any]:
    """Do something on all machines of a rig file; return results, or the error, by role."""

    def attempt(role: str) -> Any:
        try:
            return do(file, role, hosts[role])
        except LabkitError as error:
            return error

    file = read_rigfile(path)
    # Only what changes nothing may be done at once, since roles may share a machine.
    with connected(file) as hosts, ThreadPoolExecutor(len(hosts) if at_once else 1) as pool:
        return dict(zip(hosts, pool.map(attempt, hosts), strict=True))


def sweep(file: RigFile, role: str, host: Host) -> list[str]:
    """Remove what campaigns left on a host, by their label; return what it was."""
    machine = file.machines[role]
    jobs, socket = f"{machine.scratch}/jobs", machine.socket
    removed = [f"process {line}" for line in host.call("stop", prefix="trial-")]
    # Only settings of trials: others in the same journal belong to another rig.
    removed += [f"setting {outcome}" for outcome in host.call("restore", label="trial-")]
    if socket:
        removed += [f"firewall rule {rule}" for rule in withdraw(host, "labkit=trial-")]
        target = Target(host, "", socket, directory=jobs)
        removed += [f"container {one}" for one in networks.remove_containers(target)]
        # After the containers, since an engine keeps a network that one of them is on.
        removed += networks.remove(target)
    places = (f"{machine.scratch}/storage", f"{machine.scratch}/images", jobs, JOURNAL)
    host.run(*script(images.CLEAR, *places), timeout=600)
    host.call("remove_group", group=GROUP)
    return removed


def kernels(seen: Mapping[str, Seen]) -> Check:
    """Return whether the two ends have kernels of their own, as ends on machines must."""
    boots = {seen[role].facts["volatile"].get("boot_id") for role in ("generator", "sut")}
    fault, remedy = "generator and sut have the same boot identifier", "name two machines"
    return Check("kernels", str(len(boots)), len(boots) == 2, fault, remedy, needed=True)


def missing(file: RigFile, seen: Mapping[str, Seen]) -> dict[str, str]:
    """Return the capabilities that the machines lack, each with the reason."""
    hosts, rules = file.hosts, {role: host.answers["rules"] for role, host in seen.items()}
    guests = [r for r in seen if seen[r].facts["stable"]["virtualisation"]["hypervisor"]]
    rows: list[tuple[str, Any, str]] = [
        ("separate-machines", file.shared_machine, "its hosts share CPUs, caches and memory"),
        ("own-cpus", guests, f"{' and '.join(guests)} share CPUs unseen, as virtual machines"),
        ("clean-on-sut", hosts.clean, "ratios to bare clean hold the difference of two machines"),
        ("collector", not hosts.collector, "it has no [hosts.collector], on a mirror port"),
        ("peer", not hosts.peer, "it has no [hosts.peer], a second machine with an engine"),
        ("clean-host", not hosts.clean, "it has no [hosts.clean], and the sut has engine rules"),
        ("clean-host", rules.get("clean"), "its host clean has firewall rules of its own"),
        ("rules", not rules["sut"], "its sut has no rules of an engine (without iptables?)"),
    ]
    without = dict.fromkeys(networks.NAMES, "[networks] has no such key")
    without["bridge"] = "its sut has no bridge_port and bridge_address"
    rows += [(f"network:{n}", n not in file.networks, why) for n, why in without.items()]
    reasons = {name: f"rig.toml: {why}" for name, lacking, why in rows if lacking}
    for role, host in seen.items():
        reasons |= {name: f"host {role}: {reason}" for name, reason in host.lacks.items()}
    return reasons


def check(path: Path | str) -> dict[str, list[Check]]:
    """Return the results of a rig file's hosts, asked at the same time, and of the rig, by role."""
    results, found = dict[str, list[Check]](), each(path, checks.look, at_once=True)
    for role, seen in found.items():
        if isinstance(seen, LabkitError):
            why = f"{seen.what}: {seen.why}"
            results[role] = [Check("reached", "no", False, why, seen.remedy, needed=True)]
        else:
            results[role] = [*checks.check(seen)]
    if all(isinstance(seen, Seen) for seen in found.values()):
        reasons = missing(read_rigfile(path), found)
        rows = [Check(name, "infeasible", False, why) for name, why in reasons.items()]
        results["rig"] = [kernels(found), *rows]
    return results


@contextmanager
def opened(spec: str, added: Additions) -> Iterator[Rig]:
    """Connect the rig of a file, checked and with its images, for a ``with`` block."""
    file = read_rigfile(spec)
    announce(f"connecting to {', '.join(file.machines)}")
    with connected(file) as hosts, ExitStack() as stack:
        seen = _persistent(lambda: _look_at(file, hosts), file.patience)
        stack.callback(_sweep_all, file, hosts)
        yield _persistent(lambda: _rig(file, hosts, seen, added), file.patience)


def _persistent(attempt: Callable[[], Any], patience: float) -> Any:
    """Return the result of a function; where a host does not answer, try again for some seconds."""
    deadline, announced = time.monotonic() + patience, False
    while True:
        try:
            return attempt()
        except HostUnreachable as error:
            if error.lasting or time.monotonic() >= deadline:
                raise
            if not announced:
                announce(f"{error.what} ({error.why}): tried again for {patience:.0f} s (patience)")
            announced = True
            time.sleep(_PAUSE)


def _look_at(file: RigFile, hosts: Mapping[str, SshHost]) -> dict[str, Seen]:
    """Return how each host is; raise an error if one is not as its table says."""
    seen = {role: checks.look(file, role, host) for role, host in hosts.items()}
    found = [(role, one) for role in seen for one in checks.check(seen[role])]
    for role, one in [*found, ("sut", kernels(seen))]:
        if one.needed and not one.ok:
            # After a reboot, addresses and the engine come some time after the SSH server.
            booting = (seen[role].facts["volatile"]["uptime_s"] or _BOOTING) < _BOOTING
            what = f"host {role} is not as rig.toml says: {one.title}"
            kind = HostUnreachable if booting else RigError
            raise kind(what, where=hosts[role].where, why=one.fault, remedy=one.remedy)
    return seen


def _sweep_all(file: RigFile, hosts: Mapping[str, Host]) -> list[str]:
    """Remove what campaigns left on the hosts that can be reached; return what it was."""
    lines = list[str]()
    for role, host in hosts.items():
        with suppress(HostUnreachable):
            lines += [f"host {role}: removed {line}" for line in sweep(file, role, host)]
    return lines


def _rig(
    file: RigFile, hosts: Mapping[str, Host], seen: Mapping[str, Seen], added: Additions
) -> Rig:
    for line in _sweep_all(file, hosts):
        announce(line)
    machines, reasons, targets = file.machines, missing(file, seen), dict[str, Target]()
    collector = file.hosts.collector
    if collector and not {*added.collector} <= {*collector.mirrors}:
        reasons["collector"] = f"rig.toml: its mirrors are not of {' and '.join(added.collector)}"
    left_out = {"peer": not added.peer, "collector": not added.collector or "collector" in reasons}
    for role, machine in machines.items():
        if left_out.get(role):
            continue
        # An engine on systemd has slices.
        engine_of = seen[role if machine.socket else "sut"].facts["stable"]["engine"] or {}
        systemd = engine_of.get("CgroupDriver") == "systemd"
        targets[role] = Target(
            hosts[role],
            next(iter(machine.addresses), ""),
            engine=machine.socket or None,
            cgroup_parent="labkit.slice" if systemd else GROUP,
            directory=f"{machine.scratch}/jobs",
            disk=f"{machine.scratch}/storage",
            sandboxes=f"{getattr(machine, 'exec_root', '')}/netns",
            addresses=tuple(machine.addresses),
            interfaces=tuple(machine.interfaces),
        )
    sut = _with_images(targets["sut"], images.folders())
    targets["sut"], lacking = images.with_storages(sut, added.layers)
    reasons |= lacking
    if "peer" in targets:
        targets["peer"] = _with_images(targets["peer"], added.peer)
    cpus = {role: machine.cpus for role, machine in machines.items()}
    cpus |= {f"all.{role}": seen[role].facts["stable"]["cpu"]["online"] for role in machines}
    wanted = [n for n in ("bridge", *added.networks) if f"network:{n}" not in reasons]
    made = networks.create(targets, [file.networks[name] for name in wanted])
    mirrors = added.collector if "collector" in targets else ()
    return Rig(file.name, "inventory", made, cpus, False, missing=reasons, mirrors=mirrors)


def _with_images(target: Target, names: Iterable[str]) -> Target:
    """Return a target with images; those that its engine lacks are sent, or else built there."""
    folders = [images.folders()[name] for name in names]
    lacking = [tag for tag in map(images.tag, folders) if not images.digest_of(target, tag)]
    if lacking and os.geteuid() == 0 and shutil.which("dockerd"):
        images.ensure_images()
        with netns.building_daemon() as source:
            images.send(source, target, lacking)
    return replace(target, images={one.name: images.ensure_image(target, one) for one in folders})
