"""The virtual rig: this machine as several hosts, brought up and taken down without a trace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from labkit.errors import RigError
from labkit.hosts import Host, LocalHost, Tuning, restore, stop_labelled
from labkit.hosts.site import Image, Site
from labkit.paths import project
from labkit.rig import (
    collector,
    daemons,
    ending,
    engine,
    engines,
    kinds,
    netns,
    networks,
    peer,
    rates,
    state,
    storage,
)
from labkit.rig.base import Rig
from labkit.version import MEASUREMENT_VERSION

LAB = "198.18.0.0/15"
CONTAINERS = project("containers")
#: What the virtual rig needs, with the package that has it.
TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "iptables": "iptables",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "socat": "socat",
    "dockerd": "docker.io",
    "docker": "docker.io",
    "sockperf": "sockperf",
    "flock": "util-linux",
    "sysctl": "procps",
}
Say = Callable[[str], None]


def missing_tools() -> dict[str, str]:
    """Return the programs that are not on this machine, with the package of each."""
    return {tool: name for tool, name in TOOLS.items() if find_tool(tool) is None}


def find_tool(name: str) -> str | None:
    """Return where a program is, also where only root looks for it."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    return shutil.which(name, path=path)


def up(*, keep: bool, say: Say = lambda text: None) -> None:
    """Bring the rig up; the caller holds `labkit.rig.state.locked`.

    Parameters
    ----------
    keep : bool
        Whether it outlives the caller: ``labkit rig up`` keeps it, a campaign does not.
    say : callable
        Receives a line before each step that takes seconds.

    Raises
    ------
    RigError
        No namespace can be made, a tool is missing, or a step failed; what had been made is removed
        again.
    """
    if why := kinds.no_namespaces():
        raise RigError(
            "the virtual rig needs root, who may make network namespaces",
            why=why,
            remedy="run as root, in a container with --privileged, or use the one-host rig",
        )
    lacking = missing_tools()
    if lacking:
        raise RigError(
            f"the virtual rig needs {', '.join(sorted(lacking))}",
            remedy=f"apt-get install {' '.join(sorted(set(lacking.values())))}",
        )
    local = LocalHost()
    state.write(ready=False, keep=False)
    try:
        _settings(local)
        say(
            "building images (the first time takes about a minute)"
            if _to_build()
            else "images stand"
        )
        images = engine.ensure_images(local, CONTAINERS)
        say("joining hosts and switch")
        netns.build(local)
        netns.make_keys(local)
        for role in netns.PORTS:
            netns.start_sshd(local, role)
        say("starting the Docker Engine")
        engine.start_daemon(local)
        engine.remove_containers(local)
        engine.make_network(local)
        netns.unhook_switch(local)
        for role in netns.PORTS:
            netns.connect(role).close()
    except BaseException:
        down(say=say)
        raise
    pack = {name: image.__dict__ for name, image in images.items()}
    state.write(ready=True, keep=keep, images=pack, version=MEASUREMENT_VERSION)


def _to_build() -> bool:
    folders = (path.parent for path in CONTAINERS.glob("*/Dockerfile"))
    return any(engine.stored(folder) is None for folder in folders)


def _settings(local: LocalHost) -> None:
    """Change, through the journal, the few settings that are not in a namespace."""
    tuning = Tuning(local, netns.LABEL)
    # Nothing that is sent to the lab from outside its namespaces may leave the machine.
    tuning.add_route("unreachable", LAB)
    # The engine raises these limits and never puts them back; so they are raised before it does.
    for name, value in (("root_maxkeys", "1000000"), ("root_maxbytes", "25000000")):
        path = Path("/proc/sys/kernel/keys") / name
        if path.is_file() and int(path.read_text()) < int(value):
            tuning.set_file(str(path), value)


def down(say: Say = lambda text: None) -> None:
    """Take down whatever of the rig stands; nothing standing is fine.

    The state goes last: killed before, the next start finds it and begins here again.
    """
    local = LocalHost()
    if state.read() is not None or netns.existing():
        say("taking the rig down")
    if (netns.DIRECTORY / "docker.pid").exists():
        engine.remove_containers(local)
    if (netns.DIRECTORY / f"{peer.ROLE}.pid").exists():
        engine.remove_containers(local, peer.SOCKET)
    for driver in daemons.standing():
        engine.remove_containers(local, daemons.socket(driver))
    ending.stop_engine()
    for label in (netns.LABEL, peer.LABEL, daemons.LABEL, "trial-"):
        stop_labelled(local, label)
    ending.kill(netns.pids)
    ending.kill(ending.grouped)
    ending.unmount()
    storage.remove_passing()
    for name in netns.existing():
        local.run("ip", "netns", "del", name)
    ending.remove_groups()
    for label in (netns.LABEL, "trial-"):
        restore(local, label=label)
    ending.remove_holds(local)
    state.forget()


def attach(rate: str = "") -> Rig:
    """Return the standing rig, connected; its links have a rate until it is closed.

    One that a killed campaign left is taken away: the rate is that of who uses the rig.
    """
    found = state.read()
    if not found or not found.get("ready"):
        raise RigError("no virtual rig stands", remedy="labkit rig up")
    local = LocalHost()
    rates.limit(local, rate, netns.PORTS)
    hosts = {role: netns.connect(role) for role in netns.PORTS}
    images = {name: Image(**record) for name, record in found["images"].items()}
    sites = _sites(hosts, images)
    cpus = cpu_map()
    return Rig(
        name=f"virtual:{rate}" if rate else "virtual",
        kind="virtual",
        rate=rate,
        at_close=(partial(rates.limit, local, "", netns.PORTS),) if rate else (),
        hosts=hosts,
        sites=sites,
        addresses={
            role: tuple(one.partition("/")[0] for port in ports for one in port.addresses)
            for role, ports in netns.PORTS.items()
        },
        interfaces={role: tuple(p.interface for p in ports) for role, ports in netns.PORTS.items()},
        cpu_map=cpus,
        shared_kernel=True,
        links=(f"each host a veth pair to one switch (a bridge), the sut two{rates.words(rate)}",),
        caveats=(
            f"one kernel, {len(_cpus())} vCPUs, shared softirq: the receiving side's network work "
            "runs on the sender's CPU",
            "hosts are network namespaces; links are veth pairs: no wire, no NIC, no driver",
            *rates.caveats(rate),
        ),
        missing=_missing(cpus)
        | kinds.missing(hosts["sut"], engine.SOCKET)
        | engines.missing(hosts["sut"], engine.SOCKET),
        layable=networks.VIRTUAL,
        second=peer.beside,
        listening=collector.beside,
    )


def _sites(hosts: Mapping[str, Host], images: Mapping[str, Image]) -> dict[str, Site]:
    scratch = str(netns.DIRECTORY / "jobs")
    found = {
        role: Site(
            host,
            netns.address(role),
            directory=scratch,
            sysfs=str(netns.sysfs(role)),
            images={} if role == "generator" else images,
        )
        for role, host in hosts.items()
    }
    found["sut"] = replace(
        found["sut"],
        engine=engine.SOCKET,
        networks={"bridge": engine.LAYER2},
        disk=str(engine.STORAGES),
        sandboxes=str(netns.DIRECTORY / "docker" / "netns"),
    )
    return found


def _cpus() -> list[int]:
    return sorted(os.sched_getaffinity(1) or {0})


def cpu_map() -> dict[str, str]:
    """Return which CPU does what; with two, the harness shares the generator's and sleeps there.

    Two ends on threads of one core would take turns at it, so cores come before threads.
    """
    cpus = sorted(_cpus(), key=lambda cpu: (_thread(cpu), cpu))
    generator, sut = cpus[0], cpus[1 % len(cpus)]
    spare = cpus[2] if len(cpus) > 2 else generator
    return {
        "generator": str(generator),
        "sut": str(sut),
        "clean": str(sut),
        "softirq": "the sender's",
        "harness": str(spare),
        "all": netns.all_cpus(),
    }


def _siblings(cpu: int) -> list[str]:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text().strip().replace("-", ",").split(",") if path.exists() else [str(cpu)]


def _thread(cpu: int) -> int:
    """Return which thread of its core a CPU is, from 0."""
    siblings = _siblings(cpu)
    return siblings.index(str(cpu)) if str(cpu) in siblings else len(siblings)


def _missing(cpus: dict[str, str]) -> dict[str, str]:
    reasons = {
        "separate-machines": "the hosts are namespaces of one kernel",
        "nic-hardware": "the links are veth pairs",
        "busy-poll": "veth has no queue that a socket could poll (no NAPI without GRO or XDP)",
    }
    if cpus["sut"] in _siblings(int(cpus["generator"])) and cpus["generator"] != cpus["sut"]:
        reasons["two-cores"] = "the two ends run on threads of one core"
    if cpus["generator"] == cpus["sut"]:
        reasons["two-cpus"] = "this machine has one CPU: the two ends cannot have one each"
    if not Path("/sys/devices/system/cpu/isolated").read_text().strip():
        reasons["isolated-cpus"] = "no CPU was isolated at boot (isolcpus)"
    real_time = LocalHost().run("chrt", "--fifo", "1", "true", check=False)
    if real_time.status != 0:
        reasons["realtime"] = f"no real-time class here: {real_time.stderr.strip()[-200:]}"
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        reasons["cold-cache"] = "the caches cannot be dropped (/proc/sys/vm/drop_caches)"
    return reasons | storage.missing()
