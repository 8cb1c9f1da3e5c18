"""The virtual rig: this machine as several hosts, made at each opening and removed completely."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit import runtimes
from labkit.errors import RigError, suggestion
from labkit.hosts import Host, LocalHost, Settings, script
from labkit.hosts.target import Image, Target
from labkit.placement import cpu_set, format_cpus, parse_cpus
from labkit.rig import engine, images, kernel_probe, netns, networks, storage, teardown
from labkit.rig.base import Rig
from labkit.rig.images import Say
from labkit.rig.kernel_probe import find_tool
from labkit.rig.netns import CLEAN_PEER, COLLECTOR, PEER

#: The programs that the virtual rig needs, with their packages.
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


def missing_tools() -> dict[str, str]:
    """Return the programs that are not on this machine, with the package of each."""
    return {tool: name for tool, name in TOOLS.items() if find_tool(tool) is None}


@dataclass
class VirtualRig(Rig):
    """One machine as several hosts: network namespaces on a switch, with their own engine.

    Parameters
    ----------
    extra : mapping of str to Target
        The hosts that take part only while a study needs them.
    """

    extra: Mapping[str, Target] = field(default_factory=dict)

    @classmethod
    def accepts(cls, spec: str) -> bool:
        """Accept ``virtual``, and ``virtual:1gbit`` for links with a rate."""
        name, colon, rate = spec.partition(":")
        return name == "virtual" and (not colon or netns.bits_per_second(rate) > 0)

    @classmethod
    def check(cls, spec: str) -> None:
        """Raise `RigError` where this machine and user cannot have it."""
        why, remedy = kernel_probe.no_namespaces(), "run as root, in a container with --privileged"
        if not why and (lacking := missing_tools()):
            why = f"there is no {', '.join(sorted(lacking))}"
            remedy = f"apt-get install {' '.join(sorted(set(lacking.values())))}"
        if why:
            what = "this machine and user can have no virtual rig"
            remedy += "; or name other machines in a rig.toml"
            raise RigError(what, why=why, remedy=remedy)

    @classmethod
    @contextmanager
    def opened(cls, spec: str, say: Say) -> Iterator[VirtualRig]:
        """Make the rig for the duration of a ``with`` block."""
        for line in teardown.clean():
            say(f"removed {line}")
        local = LocalHost()
        with ExitStack() as stack:
            stack.callback(teardown.clean)
            _raise_limits(local)
            built = images.ensure_images(local, say)
            say("starting hosts, switch and Docker Engine")
            rate = spec.partition(":")[2]
            netns.build(local, rate)
            netns.make_keys(local)
            with ThreadPoolExecutor() as pool:
                started = pool.submit(engine.start_engine, local)
                hosts = dict(zip(netns.ALL, pool.map(netns.connect, netns.ALL), strict=True))
                for host in hosts.values():
                    stack.callback(host.close)
                started.result()
            netns.unhook_switch(local)
            yield cls._assemble(spec, hosts, built)

    @classmethod
    def _assemble(
        cls, spec: str, hosts: Mapping[str, Host], built: Mapping[str, Image]
    ) -> VirtualRig:
        cpus, rate = cpu_map(), spec.partition(":")[2]
        links = "each host a veth pair to one switch (a bridge), the sut two"
        caveats = [
            f"one kernel, {len(allowed_cpus())} vCPUs, shared softirq: the receiving side's "
            "network work runs on the sender's CPU, unless a campaign moves it (receiving_cpu)",
            "hosts are network namespaces; links are veth pairs: no wire, no NIC, no driver",
        ]
        if rate:
            mbit = f"{netns.bits_per_second(rate) / 1e6:g} Mbit/s"
            links += f", {mbit} each way, by a token bucket at each end"
            caveats.append(
                f"the links' {mbit} are token buckets, not wires: a frame that finds tokens takes "
                "no time of its own, and a capture at the switch sees a frame before it waits in "
                "the port that it leaves by"
            )
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
        targets["sut"] = replace(
            targets["sut"],
            engine=engine.SOCKET,
            networks={"bridge": engine.LAYER2},
            disk=str(engine.STORAGES),
            sandboxes=str(netns.DIRECTORY / "docker" / "netns"),
        )
        return cls(
            name=spec,
            kind="virtual",
            hosts={role: hosts[role] for role in netns.PORTS},
            targets={role: targets[role] for role in netns.PORTS},
            extra={role: targets[role] for role in netns.EXTRA},
            addresses={
                role: tuple(text.partition("/")[0] for port in ports for text in port.addresses)
                for role, ports in netns.PORTS.items()
            },
            interfaces={
                role: tuple(port.interface for port in ports) for role, ports in netns.PORTS.items()
            },
            cpu_map=cpus,
            cpu_notes=CPU_NOTES,
            shared_kernel=True,
            links=(links,),
            caveats=tuple(caveats),
            missing=_missing(cpus)
            | storage.missing(hosts["sut"], engine.SOCKET, str(engine.STORAGES))
            | kernel_probe.missing_networks(hosts["sut"])
            | runtimes.unavailable(hosts["sut"]),
            possible_networks=networks.VIRTUAL,
        )

    @contextmanager
    def peer(self, images: Sequence[str], *, clean: bool = False) -> Iterator[None]:
        """Let a second host with an engine take part; its workloads share the generator's CPU."""
        local = LocalHost()
        with engine.running_peer(local) as socket:
            added = {
                PEER: replace(
                    self.extra[PEER],
                    engine=socket,
                    images=self._copied(local, images),
                    sandboxes=str(netns.DIRECTORY / PEER / "netns"),
                )
            }
            added |= {CLEAN_PEER: self.extra[CLEAN_PEER]} if clean else {}
            addresses = {role: (target.address,) for role, target in added.items()}
            with self._joined(added, "generator", addresses={**self.addresses, **addresses}):
                yield

    def _copied(self, local: LocalHost, names: Sequence[str]) -> dict[str, Image]:
        """Copy images that the peer's engine lacks; it keeps them between runs."""
        available = self.targets["sut"].images
        for name in names:
            if name not in available:
                raise RigError(f"the rig has no image {name!r}", remedy=suggestion(name, available))
            image = available[name]
            found = engine.digests(local, engine.PEER_SOCKET, [image.reference])
            if found.get(image.reference) != image.digest:
                copy = 'docker --host "$1" save "$3" | docker --host "$2" load >/dev/null'
                sockets = (engine.SOCKET, engine.PEER_SOCKET)
                local.run(*script(copy, *sockets, image.reference), timeout=600)
        return {name: available[name] for name in names}

    @contextmanager
    def collector(self, *roles: str) -> Iterator[None]:
        """Let a host that captures take part, on the harness's CPU.

        It has no lab address, as nothing is sent to it.
        """
        mirrored = {**self.mirrored, COLLECTOR: roles or ("sut",)}
        with self._joined({COLLECTOR: self.extra[COLLECTOR]}, "harness", mirrored=mirrored):
            yield

    def _joined(
        self, added: Mapping[str, Target], cpus: str, **changes: Any
    ) -> AbstractContextManager[None]:
        """Let hosts take part for a ``with`` block, on the CPUs of another role."""
        return self.changed(
            hosts={**self.hosts, **{role: target.host for role, target in added.items()}},
            targets={**self.targets, **added},
            interfaces={**self.interfaces, **dict.fromkeys(added, ("lab0",))},
            cpu_map={**self.cpu_map, **dict.fromkeys(added, self.cpu_map[cpus])},
            **changes,
        )

    @contextmanager
    def mirror(self) -> Iterator[None]:
        """Mirror ports to the collector, where one takes part, since it costs every packet."""
        roles, local = self.mirrored.get(COLLECTOR, ()), LocalHost()
        try:
            netns.mirror(local, roles, on=True)
            yield
        finally:
            netns.mirror(local, roles, on=False)


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
#: What has no CPU list.
CPU_NOTES = {"softirq": "the sender's, unless packets are moved"}


def cpu_map() -> dict[str, str]:
    """Return the CPU of each role; with two CPUs, the harness sleeps on the generator's.

    Two threads of one core slow each other down, so CPUs of different cores come first.
    """
    cpus = sorted(allowed_cpus(), key=lambda cpu: (_thread(cpu), cpu))
    generator, sut = cpus[0], cpus[1 % len(cpus)]
    harness = cpus[2] if len(cpus) > 2 else generator
    return {
        "generator": str(generator),
        "sut": str(sut),
        "clean": str(sut),
        "harness": str(harness),
        "all": format_cpus(allowed_cpus()),
    }


def siblings(cpu: int) -> tuple[int, ...]:
    """Return the threads of a CPU's core."""
    path = CPU_FOLDER / f"cpu{cpu}/topology/thread_siblings_list"
    return parse_cpus(path.read_text()) if path.exists() else (cpu,)


def _thread(cpu: int) -> int:
    """Return which thread of its core a CPU is, from 0."""
    threads = siblings(cpu)
    return threads.index(cpu) if cpu in threads else len(threads)


def _missing(cpus: Mapping[str, str]) -> dict[str, str]:
    """Return what a rig on this machine lacks, with the reasons."""
    generator, sut = int(cpus["generator"]), int(cpus["sut"])
    reasons = {
        "separate-machines": "the hosts are namespaces of one kernel",
        "nic-hardware": "the links are veth pairs",
        "busy-poll": "veth has no queue that a socket could poll (no NAPI without GRO or XDP)",
    }
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
    real_time = LocalHost().run("chrt", "--fifo", "1", "true", check=False)
    if real_time.status != 0:
        reasons["realtime"] = f"no real-time class here: {real_time.stderr.strip()[-200:]}"
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        reasons["cold-cache"] = "the caches cannot be dropped (/proc/sys/vm/drop_caches)"
    return reasons
