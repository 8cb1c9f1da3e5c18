"""The virtual rig: this machine as several hosts, removed again completely."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from labkit import runtimes
from labkit.errors import RigError
from labkit.hosts import Host, LocalHost, Tuning, restore, stop_labelled
from labkit.hosts.journal import Entry, Journal
from labkit.hosts.target import Image, Target
from labkit.placement import cpu_set, format_cpus, parse_cpus
from labkit.rig import (
    engine,
    extra_hosts,
    images,
    kernel_probe,
    lock,
    netns,
    networks,
    storage,
    teardown,
)
from labkit.rig.base import Rig
from labkit.rig.images import Say
from labkit.rig.kernel_probe import find_tool
from labkit.runtimes.engines.docker import PREFIX
from labkit.version import MEASUREMENT_VERSION

LAB = "198.18.0.0/15"
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


def up(*, keep: bool, say: Say = lambda text: None) -> None:
    """Bring the rig up; the caller holds `labkit.rig.lock.locked`."""
    if why := kernel_probe.no_namespaces():
        raise RigError(
            "the virtual rig needs root, with the right to make network namespaces",
            why=why,
            remedy="run as root, in a container with --privileged",
        )
    if lacking := missing_tools():
        raise RigError(
            f"the virtual rig needs {', '.join(sorted(lacking))}",
            remedy=f"apt-get install {' '.join(sorted(set(lacking.values())))}",
        )
    local = LocalHost()
    lock.write_state(ready=False, keep=False)
    try:
        settings = _change_settings(local)
        built = images.ensure_images(local, say)
        say("joining hosts and switch")
        netns.build(local)
        netns.make_keys(local)
        for role in netns.PORTS:
            netns.start_sshd(local, role)
        say("starting the Docker Engine")
        engine.start_engine(local)
        netns.unhook_switch(local)
        for role in netns.PORTS:
            netns.connect(role).close()
    except BaseException:
        down(say=say)
        raise
    records = {name: image.__dict__ for name, image in built.items()}
    lock.write_state(
        ready=True, keep=keep, images=records, version=MEASUREMENT_VERSION, settings=settings
    )


def _change_settings(local: LocalHost) -> list[dict[str, Any]]:
    """Change the few settings that are not in a namespace; return what the journal has of them."""
    tuning = Tuning(local, netns.LABEL)
    # No packet to the lab from outside its namespaces may leave the machine.
    tuning.add_route("unreachable", LAB)
    # The engine raises these limits and does not restore them, so they are raised before.
    for name, value in (("root_maxkeys", "1000000"), ("root_maxbytes", "25000000")):
        path = Path("/proc/sys/kernel/keys") / name
        if path.is_file() and int(path.read_text()) < int(value):
            tuning.set_file(str(path), value)
    return [asdict(entry) for entry in tuning.entries]


def down(say: Say = lambda text: None) -> None:
    """Take down whatever exists of the rig.

    The state is removed last: after a kill the next start finds it and calls this again.
    """
    local, state = LocalHost(), lock.read_state()
    if state is not None or netns.existing():
        say("taking the rig down")
    for name in ("docker", extra_hosts.PEER):
        if (netns.DIRECTORY / f"{name}.pid").exists():
            engine.remove_containers(local, engine.socket_of(name))
    storage.clear(local, str(engine.STORAGES))
    teardown.stop_engine()
    extra = map(extra_hosts.label, netns.EXTRA)
    for label in (netns.LABEL, *extra, "trial-"):
        stop_labelled(local, label)
    teardown.kill(netns.pids)
    teardown.kill(teardown.grouped)
    teardown.unmount()
    for name in netns.existing():
        local.run("ip", "netns", "del", name)
    teardown.remove_groups()
    images.forget_logs(local, str(engine.IMAGES))
    try:
        if left := engine.forget_containers(local):
            say(f"{left} containers of an engine that was killed are removed")
    except RigError as error:  # the rest is taken down all the same
        say(f"containers of an engine that was killed stay in {engine.DATA_ROOT}: {error.what}")
    known = [Entry(**fields) for fields in (state or {}).get("settings", [])]
    for outcome in restore(local, label=netns.LABEL, known=known) + restore(local, label="trial-"):
        if outcome.state not in ("restored", "unchanged"):
            say(f"setting {outcome}")
    # Those of the namespaces went with them, whatever the machine's own value is.
    journal = Journal(local)
    record = journal.load()
    if gone := {entry.id: "gone" for entry in record.pending if _inside(entry)}:
        journal.finish(gone, record)
    teardown.remove_holds(local)
    lock.remove_state()


def _revive(local: LocalHost) -> list[str]:
    """Start engines that have died again; no trial may be running."""

    def end_containers() -> None:
        teardown.kill(teardown.grouped)
        teardown.remove_groups(keep_roots=True)

    return engine.revive(local, end_containers)


def _mend_kept(state: Mapping[str, Any], say: Say) -> None:
    """Start engines of a rig that stays up again, and make it anew where it lacks more."""
    local = LocalHost()
    why = netns.broken(local)
    try:
        for line in [] if why else _revive(local):
            say(line)
        why = why or engine.lost(local)
    except RigError as error:
        why = f"{error.what}: {error.why}"
    if why:
        say(f"the rig is made anew: {why}")
        down(say=say)
        up(keep=bool(state["keep"]), say=say)


class VirtualRig(Rig):
    """One machine as several hosts: network namespaces on a switch, with their own engine."""

    auto_spec = "virtual"

    @classmethod
    def accepts(cls, spec: str) -> bool:
        """Accept ``virtual``, and ``virtual:1gbit`` for links with a rate."""
        name, colon, rate = spec.partition(":")
        return name == cls.auto_spec and (not colon or netns.bits_per_second(rate) > 0)

    @classmethod
    def unavailable(cls) -> str:
        """Return why this machine and user cannot have it."""
        if why := kernel_probe.no_namespaces():
            return why
        lacking = sorted(set(missing_tools().values()))
        return f"packages are missing ({', '.join(lacking)})" if lacking else ""

    @classmethod
    @contextmanager
    def opened(cls, spec: str, say: Say) -> Iterator[Rig]:
        """Use the rig that is up, or bring one up for the duration of a ``with`` block."""
        with ExitStack() as stack:
            clean(say=say)
            state = lock.read_state()
            if state and state.get("ready"):
                _mend_kept(state, say)
            else:
                up(keep=False, say=say)
                stack.callback(down, say=say)
            rig = cls.attach(spec, say)
            stack.callback(rig.close)
            yield rig

    @classmethod
    def attach(cls, spec: str | Path = "virtual", say: Say = lambda text: None) -> VirtualRig:
        """Return the rig that is up, connected; its links have the rate until it is closed.

        A rate that a killed campaign left is removed.
        """
        state = lock.read_state()
        if not state or not state.get("ready"):
            raise RigError("the virtual rig is not up", remedy="labkit rig up")
        rate = str(spec).partition(":")[2]
        local = LocalHost()
        netns.limit_rate(local, rate, netns.PORTS)
        with ThreadPoolExecutor(len(netns.PORTS)) as pool:
            hosts = dict(zip(netns.PORTS, pool.map(netns.connect, netns.PORTS), strict=True))
        cpus = cpu_map()
        return cls(
            name=str(spec),
            kind="virtual",
            rate=rate,
            at_close=(partial(netns.limit_rate, local, "", netns.PORTS),) if rate else (),
            hosts=hosts,
            targets=_targets(
                hosts, {name: Image(**record) for name, record in state["images"].items()}
            ),
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
            links=(
                "each host a veth pair to one switch (a bridge), the sut two"
                f"{netns.rate_text(rate)}",
            ),
            caveats=(
                f"one kernel, {len(allowed_cpus())} vCPUs, shared softirq: the receiving side's "
                "network work runs on the sender's CPU, unless a campaign moves it (receiving_cpu)",
                "hosts are network namespaces; links are veth pairs: no wire, no NIC, no driver",
                *netns.rate_caveats(rate),
            ),
            missing=_missing(cpus)
            | storage.missing(hosts["sut"], engine.SOCKET, str(engine.STORAGES))
            | kernel_probe.missing_networks(hosts["sut"])
            | runtimes.unavailable(hosts["sut"]),
            possible_networks=networks.VIRTUAL,
        )

    def networks_of(self, hosts: Collection[Host]) -> dict[str, str]:
        """Return the namespaces of these hosts and of the switch."""
        roles = [role for role, host in self.hosts.items() if any(host is one for one in hosts)]
        return {role: netns.namespace(role) for role in [*roles, "switch"]}

    @contextmanager
    def peer(self, images: Sequence[str], *, clean: bool = False) -> Iterator[None]:
        """Run a second host with an engine; its workloads share the generator's CPU."""
        available = self.targets["sut"].images
        with ExitStack() as stack:
            peer = stack.enter_context(extra_hosts.running_peer(self.rate, available, images))
            added = {extra_hosts.PEER: peer}
            if clean:
                host = stack.enter_context(extra_hosts.running_clean_peer(self.rate))
                added[extra_hosts.CLEAN_PEER] = host
            cpus = dict.fromkeys(added, self.cpu_map["generator"])
            changes = self.changed(
                hosts={**self.hosts, **{role: one.host for role, one in added.items()}},
                targets={**self.targets, **added},
                addresses={
                    **self.addresses,
                    **{role: (one.address,) for role, one in added.items()},
                },
                interfaces={**self.interfaces, **dict.fromkeys(added, ("lab0",))},
                cpu_map={**self.cpu_map, **cpus},
            )
            stack.enter_context(changes)
            yield

    @contextmanager
    def collector(self, *roles: str) -> Iterator[None]:
        """Run a host that captures, on the harness's CPU; `mirror` mirrors ports of roles to it.

        It has no lab address, as nothing is sent to it.
        """
        role = extra_hosts.COLLECTOR
        with (
            extra_hosts.running_collector() as target,
            self.changed(
                hosts={**self.hosts, role: target.host},
                targets={**self.targets, role: target},
                interfaces={**self.interfaces, role: ("lab0",)},
                cpu_map={**self.cpu_map, role: self.cpu_map["harness"]},
                mirrored={**self.mirrored, role: roles or ("sut",)},
            ),
        ):
            yield

    @contextmanager
    def mirror(self) -> Iterator[None]:
        """Mirror ports to the collector, where there is one."""
        if extra_hosts.COLLECTOR not in self.mirrored:
            yield
            return
        with extra_hosts.mirrored(self.mirrored[extra_hosts.COLLECTOR]):
            yield

    @contextmanager
    def networks(self, names: Sequence[str]) -> Iterator[None]:
        """Create networks; if this process is killed, the next user takes the rig down."""
        state = lock.read_state()
        if state:
            lock.write_state(**state | {"networks": [*state.get("networks", []), *names]})
        stack = ExitStack()
        stack.enter_context(super().networks(names))
        try:
            yield
        finally:
            stack.close()
            # Where removing them failed, the state goes on naming them.
            if state:
                lock.write_state(**state)

    def mend(self) -> list[str]:
        """Start engines that have died again."""
        return _revive(LocalHost())


def _targets(hosts: Mapping[str, Host], images: Mapping[str, Image]) -> dict[str, Target]:
    targets = {
        role: Target(
            host,
            netns.address(role),
            directory=str(netns.DIRECTORY / "jobs"),
            sysfs=str(netns.sysfs(role)),
            images={} if role == "generator" else images,
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
    return targets


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


def _missing(cpus: dict[str, str]) -> dict[str, str]:
    reasons = {
        "separate-machines": "the hosts are namespaces of one kernel",
        "nic-hardware": "the links are veth pairs",
        "busy-poll": "veth has no queue that a socket could poll (no NAPI without GRO or XDP)",
    }
    if int(cpus["sut"]) in siblings(int(cpus["generator"])) and cpus["generator"] != cpus["sut"]:
        reasons["two-cores"] = "the two ends run on threads of one core"
    if cpus["generator"] == cpus["sut"]:
        reasons["separate-cpu-time"] = "generator and sut share the only CPU"
    return reasons | missing_here(cpus)


def missing_here(cpus: Mapping[str, str]) -> dict[str, str]:
    """Return what a rig on this machine lacks for this machine and user, with the reasons."""
    reasons = {}
    if cpus["generator"] == cpus["sut"]:
        reasons["two-cpus"] = "this machine has one CPU: the two ends cannot have one each"
    path = CPU_FOLDER / "isolated"
    isolated = cpu_set(path.read_text()) if path.exists() else frozenset()
    if not isolated:
        reasons["isolated-cpus"] = "no CPU was isolated at boot (isolcpus)"
    elif not {int(cpus["generator"]), int(cpus["sut"])} <= isolated:
        reasons["isolated-cpus"] = "the two ends are not on CPUs that were isolated at boot"
    real_time = LocalHost().run("chrt", "--fifo", "1", "true", check=False)
    if real_time.status != 0:
        reasons["realtime"] = f"no real-time class here: {real_time.stderr.strip()[-200:]}"
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        reasons["cold-cache"] = "the caches cannot be dropped (/proc/sys/vm/drop_caches)"
    return reasons


_OWNERLESS = "a virtual rig whose owner is gone"


def _unusable(local: LocalHost, state: Mapping[str, Any]) -> str:
    """Return as what a rig that is up has to be taken down; "" if it can be used on."""
    if not (state["ready"] and state["keep"]):
        return _OWNERLESS
    if state.get("version") != MEASUREMENT_VERSION:
        return "a virtual rig made by another version of labkit"
    if names := state.get("networks"):
        return f"a virtual rig with {', '.join(names)}, whose owner is gone"
    built = {name: image["reference"] for name, image in state["images"].items()}
    if built != {folder.name: images.tag(folder) for folder in images.folders()}:
        return "a virtual rig with other images than those of containers/"
    if any(map(_inside, Journal(local).load().pending)):
        return "a virtual rig with a setting of a killed trial"
    return ""


def _inside(entry: Entry) -> bool:
    """Tell whether a trial's setting is that of a host's namespace, and not of the machine.

    One journal has the settings of all hosts, and restoring them would look at the machine's.
    """
    own = entry.kind == "offload" or entry.target.startswith("/proc/sys/net/")
    return own and entry.label.startswith("trial-")


def clean(say: Say = print) -> list[str]:
    """Remove what a killed campaign left, and nothing else; return descriptions of it.

    The caller holds the machine's lock, so nothing with a campaign's label has an owner.
    """
    if not lock.is_root():
        return []
    local = LocalHost()
    state = lock.read_state()
    remains = _unusable(local, state) if state else ""
    if state is None and netns.existing():
        remains = _OWNERLESS
    if remains:
        down(say=say)
        return [remains]
    removed = [f"process {line}" for line in stop_labelled(local, "trial-")]
    if state:
        removed += [f"container {name} ({PREFIX}...)" for name in engine.remove_containers(local)]
        removed += extra_hosts.remove_peer(local) + extra_hosts.remove_clean_peer(local)
        removed += extra_hosts.remove_collector(local)
        storage.clear(local, str(engine.STORAGES))
        removed += teardown.remove_trial_leftovers()
    images.forget_logs(local, str(engine.IMAGES))
    # While a rig is up, only settings of trials have lost their owner.
    removed += [str(outcome) for outcome in restore(local, label="trial-" if state else None)]
    teardown.remove_holds(local)
    return removed
