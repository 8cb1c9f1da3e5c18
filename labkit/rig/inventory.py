"""A rig of real machines, reached over SSH: the same object as the virtual one gives.

Nothing but an SSH server, a POSIX shell and, on the system under test, Docker is expected there.
What the file promises is looked at before anything is measured: addresses are held, routes lead
through the lab's interfaces, CPUs exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from labkit.errors import RigError
from labkit.hosts import Host, SshHost, collect_facts, restore, script, stop_labelled
from labkit.hosts.site import Site
from labkit.paths import project
from labkit.rig import bridges, engines, findings, given, kinds, storage, undoing
from labkit.rig.base import Rig
from labkit.rig.rigfile import Inventory, Machine, read
from labkit.runtimes.readback import sections

__all__ = ["attach", "read"]

Say = Callable[[str], None]

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
        if sut.bridge and sut.engine and bridges.make_bridge(hosts["sut"], sut.engine, sut.bridge):
            stack.callback(bridges.remove_networks, hosts["sut"], sut.engine)
        rig = _rig(book, hosts, _sites(book, hosts, seen, say), seen)
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
    """Return the addresses that a host exchanges lab traffic with."""
    others = {"generator": ("sut", "clean", "peer"), "sut": ("generator", "peer")}
    others |= {"clean": ("generator",), "peer": ("generator", "sut")}
    far = [book.machines[one] for one in others.get(role, ()) if one in book.machines]
    found = [one.addresses[0] for one in far] + [one.bridge.first for one in far if one.bridge]
    # A peer may be the generator's machine.
    return [one for one in found if one not in book.machines[role].addresses]


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
    laid = undoing.undo(host, undoing.notes(f"{machine.scratch}/jobs", machine.role))
    done += [f"what {len(laid)} steps made for networks"] if laid else []
    if machine.engine:
        done += bridges.remove_networks(host, machine.engine)
        storage.clear(host, machine.engine, f"{machine.scratch}/storage")
    host.run("rm", "-rf", "--", f"{machine.scratch}/jobs")
    for line in done:
        say(f"host {machine.role}: removed {line}")


def _rig(
    book: Inventory, hosts: Mapping[str, Host], sites: Mapping[str, Site], seen: dict[str, Seen]
) -> Rig:
    facts = {role: one.facts for role, one in seen.items()}
    answers = {role: one.answers for role, one in seen.items()}
    kernels = {role: findings.kernel(one.answers, one.facts) for role, one in seen.items()}
    shared = len(set(kernels.values())) == 1
    sut = sites["sut"]
    apart = storage.apart(sut.host, sut.engine, sut.disk) if sut.engine else ""
    beside = _beside(book, sites)
    return Rig(
        name=book.name,
        kind="inventory",
        hosts=hosts,
        # Those that stand while a study asks for them come and go.
        sites={role: site for role, site in sites.items() if role not in ("peer", "collector")},
        addresses={role: one.addresses for role, one in book.machines.items()},
        interfaces={role: one.interfaces for role, one in book.machines.items()},
        cpu_map=findings.cpu_map(book.machines, facts, shared=shared),
        shared_kernel=shared,
        links=findings.links(book.machines, facts),
        caveats=findings.caveats(kernels, facts),
        missing=findings.missing(book.machines, kernels, facts, answers)
        | engines.missing(sut.host, sut.engine)
        | findings.networks(book, answers)
        | _unable(sites)
        | storage.missing_beside((facts["sut"]["stable"]["engine"] or {}).get("Driver"), apart),
        layable=book.networks,
        **beside,
    )


def _unable(sites: Mapping[str, Site]) -> dict[str, str]:
    """Return the networks that a machine with an engine cannot have."""
    with_engine = [site for site in sites.values() if site.engine]
    return {
        name: f"{site.host.name}: {reason}"
        for site in with_engine
        for name, reason in kinds.missing(site.host, site.engine).items()
    }


def _beside(book: Inventory, sites: Mapping[str, Site]) -> dict[str, Any]:
    """Return how the rig has a peer and a collector, where the file names them."""
    found: dict[str, Any] = {}
    if "peer" in sites:
        store = f"{book.machines['peer'].scratch}/images"
        found["second"] = partial(given.second, sites["peer"], store)
    if "collector" in sites:
        mirrors = book.machines["collector"].mirrors
        found["listening"] = partial(given.listening, sites["collector"], mirrors)
    return found


def _sites(
    book: Inventory, hosts: Mapping[str, Host], seen: Mapping[str, Seen], say: Say
) -> dict[str, Site]:
    """Return each machine as a place; the sut's has every image, a peer's what a study names."""
    found = {}
    for role, machine in book.machines.items():
        site = Site(
            hosts[role],
            next(iter(machine.addresses), ""),
            engine=machine.engine,
            networks={"bridge": machine.bridge} if machine.bridge else {},
            cgroup_parent=findings.cgroup_parent(seen[role if machine.engine else "sut"].facts),
            directory=f"{machine.scratch}/jobs",
            disk=f"{machine.scratch}/storage",
            sandboxes=f"{machine.exec_root}/netns",
        )
        if role == "sut" and machine.engine:
            say(f"images on {machine.ssh} (the first time takes about a minute)")
            names = [
                path.parent.name for path in sorted(project("containers").glob("*/Dockerfile"))
            ]
            site = replace(site, images=given.images(site, f"{machine.scratch}/images", names))
        found[role] = site
    return found
