"""The virtual rig: this machine as several hosts, made at each opening and removed completely."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from labkit.errors import RigError
from labkit.hosts import Host, Result, Settings, script
from labkit.hosts.agent import CPUS, JOURNAL
from labkit.hosts.target import Image, Target
from labkit.placement import RELEASES, format_cpus, parse_cpus
from labkit.process import announce
from labkit.rig import checks, images, netns, networks
from labkit.rig.base import Additions, Rig
from labkit.rig.checks import Check

#: The hosts that have an engine.
_ENGINES = ("sut", "peer", *RELEASES)
_UNHOOK = "[ ! -d /proc/sys/net/bridge ] || echo 0 | tee /proc/sys/net/bridge/bridge-nf-call-*"
#: Where daemons of the rig mount something.
_MOUNTS = tuple(f"{p}/" for p in (netns.DIRECTORY, netns.DATA_ROOT, netns.IMAGES, netns.STORAGES))
# Until namespaces have no process: one that is killed may leave children. Then they are deleted.
_KILL = """
while pids=$(for name; do ip netns pids "$name"; done); [ "$pids" ]; do
    kill -KILL $pids || true; sleep 0.02
done
for name; do ip netns del "$name"; done
"""


def check_machine() -> list[Check]:
    """Return the results of all checks of this machine, which the virtual rig is made of."""
    # Root in a container may lack the right to. A named namespace is a mount, hence both options.
    result = Host().run("unshare", "--net", "--mount", "true", check=False)
    able, why = result.status == 0, result.stderr.strip()[-200:]
    fault = f"user {os.geteuid()} has no right to make network namespaces ({why})"
    remedy = "run as root, in a container with --privileged"
    rig = Check("virtual rig", "can be made" if able else "no", able, fault, remedy, True)
    return [rig, *checks.check(checks.look(None, "", Host()))]


def check(spec: str) -> None:
    """Raise an error for an invalid rate, or where this machine and user cannot have the rig."""
    netns.bits_per_second(spec)
    for one in check_machine():
        if one.needed and not one.ok:
            remedy = f"{one.remedy}; or name other machines in a rig.toml"
            raise RigError("this user can have no virtual rig here", why=one.fault, remedy=remedy)


@contextmanager
def opened(spec: str, added: Additions) -> Iterator[Rig]:
    """Make the rig for the duration of a ``with`` block."""
    for line in clean():
        announce(f"removed {line}")
    roles = roles_with(added)
    with ExitStack() as stack:
        stack.callback(clean)
        for name, value in (("root_maxkeys", 10**6), ("root_maxbytes", 25 * 10**6)):
            path = Path("/proc/sys/kernel/keys", name)
            # An engine raises it and does not restore it.
            if path.exists() and int(path.read_text()) < value:
                Settings(Host(), netns.LABEL).set_files({str(path): value})
        built = images.ensure_images()
        for name in added.releases:
            images.ensure_release(name)
        announce("starting hosts, switch and Docker Engine")
        netns.build(roles, netns.bits_per_second(spec))
        with ThreadPoolExecutor() as pool:
            started = pool.map(netns.start_daemon, [role for role in roles if role in _ENGINES])
            hosts = dict(zip(roles, pool.map(netns.connect, roles), strict=True))
            for host in hosts.values():
                stack.callback(host.close)
            list(started)  # raises the error of one that did not
        rig = _rig(spec, hosts, built, added)
        # An engine may have loaded hooks by which frames of the switch pass a firewall.
        Host().run("nsenter", f"--net={netns.namespace('switch')}", *script(_UNHOOK))
        yield rig


def roles_with(added: Additions) -> list[str]:
    """Return the roles of a virtual rig with what a study adds."""
    asked = {"peer": added.peer, "clean-peer": added.clean_peer, "collector": added.collector}
    asked |= {name: name in added.releases for name in RELEASES}
    return [role for role in netns.PORTS if asked.get(role, True)]


def _rig(spec: str, hosts: Mapping[str, Host], built: Mapping[str, Image], added: Additions) -> Rig:
    """Return the rig, with the networks that were asked for and that it can have."""
    images_of = {"sut": built, "clean": built, "peer": {n: built[n] for n in added.peer}}
    images_of |= {name: {"net": built["net"]} for name in added.releases}
    targets = dict[str, Target]()
    for role, host in hosts.items():
        socket, own = netns.socket_of(role), [*images_of.get(role, {}).values()]
        here = Target(Host(), "", socket)
        # Engines keep them between runs, and no other one shares the data of the sut's.
        if role in ("peer", *RELEASES) and any(
            images.digest_of(here, one.reference) != one.digest for one in own
        ):
            images.send(netns.socket_of("sut"), here, [one.reference for one in own])
        targets[role] = Target(
            host,
            netns.address(role),
            engine=socket if role in _ENGINES else None,
            directory=str(netns.DIRECTORY / "jobs"),
            sysfs=str(netns.SYSFS / role),
            images=images_of.get(role, {}),
            disk=str(netns.STORAGES) if role == "sut" else "",
            system=images.ensure_release(role) if role in RELEASES else "",
            sandboxes=str(netns.DIRECTORY / role / "netns"),
            # The collector has no address, as nothing is sent to it.
            addresses=tuple(chain(*netns.PORTS[role].values())) if role != "collector" else (),
            interfaces=tuple(netns.PORTS[role]),
        )
    targets["sut"], missing = images.with_storages(targets["sut"], added.layers)
    seen, rate = checks.look(None, "", hosts["sut"]), netns.bits_per_second(spec)
    cpus = cpu_map(seen.facts["stable"]["files"], [*hosts])
    missing |= seen.lacks | {
        "separate-machines": f"one kernel, {len(parse_cpus(cpus['all']))} vCPUs: the sender's CPU "
        "also does the network work of the receiving side, unless it is moved (receiving_cpu)",
        "nic-hardware": "links are veth pairs of network namespaces: no wire, no NIC, no driver",
        "busy-poll": "veth has no queue that a socket could poll (no NAPI without GRO or XDP)",
    }
    if cpus["generator"] == cpus["sut"]:
        missing["separate-cpu-time"] = "generator and sut share the only CPU"
        missing["two-cpus"] = "this machine has one CPU: the two ends cannot have one each"
    if Path("/.dockerenv").exists():
        missing["own-machine"] = "all of it is inside a container, whose limits are the lab's, too"
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        missing["cold-cache"] = "the caches cannot be dropped (/proc/sys/vm/drop_caches)"
    wanted = [n for n in ("bridge", *added.networks) if f"network:{n}" not in missing]
    links = "each host a veth pair to one switch (a bridge), the sut two"
    if rate:
        links += f", {rate / 1e6:g} Mbit/s each way, by a token bucket at each end"
        missing["nic-hardware"] += "; of a bucket's rate a frame may take no time of its own"
    made = networks.create(targets, [networks.VIRTUAL[name] for name in wanted])
    cpus["softirq"] = "the sender's, unless packets are moved"
    return Rig(spec, "virtual", made, cpus, True, (links,), missing, mirrors=added.collector)


def cpu_map(files: Mapping[str, str], roles: Sequence[str]) -> dict[str, str]:
    """Return the CPU of each role; with two CPUs, the harness sleeps on the generator's."""
    # A container may have fewer CPUs than the machine, of whose facts `files` are.
    allowed = os.sched_getaffinity(1) or {0}

    def place(cpu: int) -> int:
        """Return the place of a CPU among the threads of its core that may be used."""
        threads = parse_cpus(files.get(f"{CPUS}/cpu{cpu}/topology/thread_siblings_list", str(cpu)))
        return [one for one in threads if one in allowed].index(cpu)

    # Two threads of one core slow each other down, so CPUs of different cores come first.
    cpus = sorted(allowed, key=lambda cpu: (place(cpu), cpu))
    generator, sut = cpus[0], cpus[1 % len(cpus)]
    harness = cpus[2] if len(cpus) > 2 else generator
    others = dict.fromkeys(("generator", "peer", "clean-peer"), generator) | {"collector": harness}
    ends = {role: others.get(role, sut) for role in roles} | {"harness": harness}
    return {**{role: str(cpu) for role, cpu in ends.items()}, "all": format_cpus(cpus)}


class DryHost(Host):
    """A host that runs nothing, and has what a plan asks for."""

    def __init__(self, name: str, facts: dict[str, Any]) -> None:
        super().__init__(name)
        self.facts = facts

    def run(self, *argv: str, **options: Any) -> Result:
        """Return a success; a plan reads only the known controls of TCP congestion."""
        return Result(argv, self.name, 0, "reno cubic", "")

    def call(self, function: str, **arguments: Any) -> Any:
        """Return the recorded facts, or that a device has one queue and its offloads."""
        queue = {"/sys/class/net/lab0/queues/rx-0/rps_cpus": "0"}
        return {"facts": self.facts, "files": queue, "get_value": "on"}.get(function)


@contextmanager
def recorded(spec: str, added: Additions) -> Iterator[Rig]:
    """Yield the dry rig, with the hosts that a study adds; it shows plans and runs nothing."""
    # `describe()` and the facts of "sut" of a virtual rig with two CPUs.
    known = json.loads(Path(__file__).with_name("dry.json").read_text("utf-8"))
    rig, targets = known["rig"], dict[str, Target]()
    for role in roles_with(added):
        host, address = DryHost(role, known["facts"]), netns.address(role)
        engine = "unix:///dry" if role in _ENGINES else None
        targets[role] = Target(host, address, engine, addresses=(address,), interfaces=("lab0",))
    links, missing = tuple(rig["links"]), rig["capabilities"]
    yield Rig("dry", "dry", targets, rig["cpu_map"], True, links, missing)


# Removing. No record is kept of a rig: processes carry a label, and everything else has labkit's
# name. So what a killed campaign left is removed in the same way as a rig that is closed.


def clean() -> list[str]:
    """Remove all of labkit's but images, under the machine's lock; return most of what it was."""
    local = Host()
    groups = Path("/sys/fs/cgroup")  # of version 2, or with the hierarchies of version 1
    removed = [f"control groups {at}" for way in ("labkit", "*/labkit") for at in groups.glob(way)]
    # First what is in containers: an engine would wait for them as it ends.
    local.call("remove_group", group="/labkit")
    # An engine ends its own; an SSH server loses its label, and is found in its namespace.
    for label, grace in (("trial-", 2.0), (netns.ENGINE, 10.0), (netns.PREFIX, 0.0)):
        removed += [f"process {line}" for line in local.call("stop", prefix=label, grace=grace)]
    # A process that waits for a disk or a mount cannot be killed.
    names = sorted(path.name for path in Path("/run/netns").glob(f"{netns.PREFIX}*"))
    local.run(*script(_KILL, *names), timeout=10)
    removed += [f"network namespace {name}" for name in names]
    points = [partition.mountpoint for partition in psutil.disk_partitions(all=True)]
    left = [point for point in points if f"{point}/".startswith(_MOUNTS)]
    for point in sorted(left, reverse=True):  # what a killed daemon left, the deepest first
        local.run("umount", "--lazy", point)
    # An engine may have started one more container before it ended.
    local.call("remove_group", group="/labkit")
    local.run("ip", "route", "del", *netns.UNREACHABLE.split(), check=False)
    for socket in Path(networks.PLUGINS).glob("labkit-*"):
        socket.unlink()
    # Of settings only the machine's are left; those of the hosts went with their namespaces.
    outcomes = local.call("restore", label="trial-", gone=True)
    outcomes += local.call("restore", label=netns.LABEL)
    removed += [f"setting {outcome}" for outcome in outcomes]
    places = map(str, (netns.STORAGES, netns.IMAGES, netns.DIRECTORY, JOURNAL))
    local.run(*script(images.CLEAR, *places), timeout=600)
    return removed
