"""The virtual rig: this machine as several hosts, made at each opening and removed completely."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from labkit import runtimes
from labkit.errors import RigError, suggestion
from labkit.hosts import Host, LocalHost, Settings, script
from labkit.hosts.target import Image, Target
from labkit.placement import cpu_set, format_cpus, parse_cpus
from labkit.rig import checks, engine, images, layers, lock, netns, networks, storage, teardown
from labkit.rig.base import Additions, Rig
from labkit.rig.images import Say
from labkit.rig.netns import CLEAN_PEER, COLLECTOR, PEER

#: Packages with programs that only some studies need of other rigs, but the virtual one always.
_PACKAGES = ("docker.io", "docker-cli", "iptables", "openssh-server")


def missing_tools() -> dict[str, str]:
    """Return the programs of the virtual rig that are not here, with the package of each."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    return {
        program.name: program.package
        for program in checks.programs()
        if (program.use == "needed" or program.package in _PACKAGES)
        and not shutil.which(program.name, path=path)
    }


def no_namespaces() -> str:
    """Return why this process cannot create network namespaces, or "".

    Root in a container may lack the right to. A named namespace is a mount, hence both options.
    """
    if not lock.is_root():
        return "this is not root"
    result = LocalHost().run("unshare", "--net", "--mount", "true", check=False)
    if result.status == 0:
        return ""
    error = result.stderr.strip()[-200:] or f"unshare ended with status {result.status}"
    return f"this is root without the right to make network namespaces ({error})"


def check(spec: str) -> None:
    """Raise an error for an invalid rate, or where this machine and user cannot have the rig."""
    netns.bits_per_second(spec)
    why, remedy = no_namespaces(), "run as root, in a container with --privileged"
    if not why and (lacking := missing_tools()):
        why = f"there is no {', '.join(sorted(lacking))}"
        remedy = f"apt-get install {' '.join(sorted(set(lacking.values())))}"
    if why:
        what = "this machine and user can have no virtual rig"
        raise RigError(what, why=why, remedy=f"{remedy}; or name other machines in a rig.toml")


@contextmanager
def opened(spec: str, added: Additions, say: Say) -> Iterator[Rig]:
    """Make the rig for the duration of a ``with`` block."""
    for line in teardown.clean():
        say(f"removed {line}")
    local, roles = LocalHost(), roles_with(added)
    with ExitStack() as stack:
        stack.callback(teardown.clean)
        _raise_limits(local)
        built = images.ensure_images(local, say)
        say("starting hosts, switch and Docker Engine")
        netns.build(local, netns.bits_per_second(spec))
        netns.make_keys(local)
        with ThreadPoolExecutor() as pool:
            starts = [pool.submit(engine.start_engine, local)]
            starts += [pool.submit(engine.start_peer, local)] if added.peer else []
            hosts = dict(zip(roles, pool.map(netns.connect, roles), strict=True))
            for host in hosts.values():
                stack.callback(host.close)
            for start in starts:
                start.result()
        netns.unhook_switch(local)
        yield _rig(spec, hosts, built, added, say)


def roles_with(added: Additions) -> list[str]:
    """Return the roles of a virtual rig with what a study adds."""
    asked = {PEER: added.peer, CLEAN_PEER: added.clean_peer, COLLECTOR: added.collector}
    return [role for role in netns.PORTS if asked.get(role, True)]


def _rig(
    spec: str, hosts: Mapping[str, Host], built: Mapping[str, Image], added: Additions, say: Say
) -> Rig:
    """Return the rig, with the networks that were asked for and that it can have."""
    storages, missing = storage.find(hosts["sut"], engine.SOCKET, str(engine.STORAGES))
    targets = {
        role: Target(
            host,
            netns.address(role),
            directory=str(netns.DIRECTORY / "jobs"),
            sysfs=str(netns.sysfs(role)),
            images=built if role in ("sut", "clean") else {},
        )
        for role, host in hosts.items()
    }
    sut = replace(
        targets["sut"],
        engine=engine.SOCKET,
        networks={"bridge": engine.LAYER2},
        disk=str(engine.STORAGES),
        storages=storages,
        sandboxes=str(netns.DIRECTORY / "docker" / "netns"),
    )
    targets["sut"] = layers.with_layers(sut, added.layers, say)
    if added.peer:
        targets[PEER] = replace(
            targets[PEER],
            engine=engine.PEER_SOCKET,
            images={name: _copied(built, name) for name in added.peer},
            sandboxes=str(netns.DIRECTORY / PEER / "netns"),
        )
    cpus, rate = with_added(cpu_map(), hosts), netns.bits_per_second(spec)
    missing |= _missing(cpus, hosts["sut"])
    interfaces = {role: tuple(netns.PORTS[role]) for role in hosts}
    wanted = [networks.VIRTUAL[n] for n in added.networks if f"network:{n}" not in missing]
    links = "each host a veth pair to one switch (a bridge), the sut two"
    caveats = [
        f"one kernel, {len(allowed_cpus())} vCPUs, shared softirq: the receiving side's "
        "network work runs on the sender's CPU, unless a campaign moves it (receiving_cpu)",
        "hosts are network namespaces; links are veth pairs: no wire, no NIC, no driver",
    ]
    if Path("/.dockerenv").exists():
        caveats.append("all of it is inside a container, whose limits are those of the lab")
    if rate:
        mbit = f"{rate / 1e6:g} Mbit/s"
        links += f", {mbit} each way, by a token bucket at each end"
        caveats.append(
            f"the links' {mbit} are token buckets, not wires: a frame that finds tokens takes "
            "no time of its own, and a capture at the switch sees a frame before it waits in "
            "the port that it leaves by"
        )
    return Rig(
        name=spec,
        kind="virtual",
        hosts=hosts,
        targets=networks.create(targets, interfaces, wanted),
        # The collector has no address, as nothing is sent to it.
        addresses={
            role: tuple(text for own in netns.PORTS[role].values() for text in own)
            for role in hosts
            if role != COLLECTOR
        },
        interfaces=interfaces,
        cpu_map=cpus,
        cpu_notes={"softirq": "the sender's, unless packets are moved"},
        shared_kernel=True,
        links=(links,),
        caveats=tuple(caveats),
        missing=missing,
        mirrored={COLLECTOR: added.collector} if added.collector else {},
    )


def _copied(available: Mapping[str, Image], name: str) -> Image:
    """Return an image of the peer's engine, copied if it lacks it; it keeps images between runs."""
    if name not in available:
        raise RigError(f"the rig has no image {name!r}", remedy=suggestion(name, available))
    image, local, sockets = available[name], LocalHost(), (engine.SOCKET, engine.PEER_SOCKET)
    wanted = {image.reference: image.digest}
    if engine.digests(local, engine.PEER_SOCKET, [*wanted]) != wanted:
        copy = 'docker --host "$1" save "$3" | docker --host "$2" load >/dev/null'
        local.run(*script(copy, *sockets, image.reference), timeout=600)
    return image


def _raise_limits(local: LocalHost) -> None:
    """Raise limits that an engine raises and does not restore, so that they are restored."""
    tuning = Settings(local, netns.LABEL)
    for name, value in (("root_maxkeys", "1000000"), ("root_maxbytes", "25000000")):
        path = Path("/proc/sys/kernel/keys") / name
        if path.is_file() and int(path.read_text()) < int(value):
            tuning.set_file(str(path), value)


def allowed_cpus() -> list[int]:
    """Return the CPUs that a rig on this machine may use."""
    return sorted(os.sched_getaffinity(1) or {0})


CPU_FOLDER = Path("/sys/devices/system/cpu")


def cpu_map() -> dict[str, str]:
    """Return the CPU of each role; with two CPUs, the harness sleeps on the generator's.

    Two threads of one core slow each other down, so CPUs of different cores come first.
    """
    # By the number of threads of its core before it.
    cpus = sorted(allowed_cpus(), key=lambda cpu: (siblings(cpu).index(cpu), cpu))
    generator, sut = cpus[0], cpus[1 % len(cpus)]
    harness = cpus[2] if len(cpus) > 2 else generator
    ends = {"generator": generator, "sut": sut, "clean": sut, "harness": harness}
    return {**{role: str(cpu) for role, cpu in ends.items()}, "all": format_cpus(cpus)}


def with_added(cpus: Mapping[str, str], roles: Collection[str]) -> dict[str, str]:
    """Return a CPU map with the roles that a study adds.

    Workloads of the peers share the generator's CPU, and captures the harness's.
    """
    ends = {PEER: "generator", CLEAN_PEER: "generator", COLLECTOR: "harness"}
    return {**cpus, **{role: cpus[end] for role, end in ends.items() if role in roles}}


def siblings(cpu: int) -> tuple[int, ...]:
    """Return the threads of a CPU's core."""
    path = CPU_FOLDER / f"cpu{cpu}/topology/thread_siblings_list"
    return parse_cpus(path.read_text()) if path.exists() else (cpu,)


def _missing(cpus: Mapping[str, str], sut: Host) -> dict[str, str]:
    """Return the capabilities that the rig lacks on this machine, with the reasons."""
    answers = checks.ask(sut)
    reasons = (
        checks.missing_networks(answers)
        | runtimes.unavailable(answers["absent"])
        | _missing_cpus(cpus)
    )
    reasons |= {
        "separate-machines": "the hosts are namespaces of one kernel",
        "nic-hardware": "the links are veth pairs",
        "busy-poll": "veth has no queue that a socket could poll (no NAPI without GRO or XDP)",
    }
    if answers["real_time"]:
        reasons["realtime"] = f"no real-time class here: {answers['real_time']}"
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        reasons["cold-cache"] = "the caches cannot be dropped (/proc/sys/vm/drop_caches)"
    return reasons


def _missing_cpus(cpus: Mapping[str, str]) -> dict[str, str]:
    """Return the capabilities that the two ends lack by their CPUs."""
    generator, sut = int(cpus["generator"]), int(cpus["sut"])
    reasons = {}
    if generator == sut:
        reasons["separate-cpu-time"] = "generator and sut share the only CPU"
        reasons["two-cpus"] = "this machine has one CPU: the two ends cannot have one each"
    elif sut in siblings(generator):
        reasons["two-cores"] = "the two ends run on threads of one core"
    path = CPU_FOLDER / "isolated"
    isolated = cpu_set(path.read_text()) if path.exists() else frozenset()
    if not isolated:
        reasons["isolated-cpus"] = "no CPU was isolated at boot (isolcpus)"
    elif not {generator, sut} <= isolated:
        reasons["isolated-cpus"] = "the two ends are not on CPUs that were isolated at boot"
    return reasons
