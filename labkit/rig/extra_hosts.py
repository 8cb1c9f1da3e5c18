"""Hosts of the virtual rig that exist only while a study needs them.

``peer`` is a second host with an engine, for clients in containers and for networks between
engines. It is not the generator, so that the generator has no firewall rules; and since an idle
engine wakes up now and then, it does not run while other studies are measured.

``clean-peer`` is a second host without an engine: a clean baseline on two hosts.

``collector`` captures packets: the switch mirrors the ports of other hosts to it. The mirror is a
filter on the switch's end of a host's link, so each packet from or to that host is seen once. The
collector's own link leads nowhere else.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from labkit.errors import RigError, suggestion
from labkit.hosts import LocalHost, script
from labkit.hosts.target import Image, Target
from labkit.rig import engine, netns, teardown

PEER, CLEAN_PEER, COLLECTOR = "peer", "clean-peer", "collector"
PEER_DATA = engine.STORAGES / PEER
PEER_SOCKET = engine.socket_of(PEER)
#: Addresses that containers of the first engine never have.
_POOLS = ("--bip", "198.19.128.1/24", "--default-address-pool", "base=198.19.128.0/17,size=24")

_COPY_IMAGE = """
DOCKER_HOST=$1 docker save "$3" | DOCKER_HOST=$2 docker load >/dev/null
"""


@contextmanager
def _running(
    role: str, remove: Callable[[LocalHost], list[str]], rate: str = ""
) -> Iterator[Target]:
    """Run a host of the rig; `remove` also removes what a killed campaign left of it."""
    local = LocalHost()
    remove(local)
    try:
        netns.make_host(local, role)
        netns.limit_rate(local, rate, (role,))
        netns.start_sshd(local, role, label(role))
        with closing(netns.connect(role)) as host:
            yield Target(
                host,
                netns.address(role),
                directory=str(netns.DIRECTORY / "jobs"),
                sysfs=str(netns.sysfs(role)),
            )
    finally:
        remove(local)


def label(role: str) -> str:
    """Return the label of a host's processes."""
    return netns.PREFIX + role


@contextmanager
def running_peer(
    rate: str, available: Mapping[str, Image], images: Sequence[str]
) -> Iterator[Target]:
    """Run the second host with an engine, with some of the first engine's images."""
    local = LocalHost()
    with _running(PEER, remove_peer, rate) as target:
        engine.start_daemon(local, PEER, *_POOLS, data_root=PEER_DATA, role=PEER, label=label(PEER))
        engine.await_daemon(local, PEER)
        engine.remove_containers(local, PEER_SOCKET)
        yield replace(
            target,
            engine=PEER_SOCKET,
            images=_copy_images(local, available, images),
            sandboxes=str(netns.DIRECTORY / PEER / "netns"),
        )


def _copy_images(
    local: LocalHost, available: Mapping[str, Image], names: Sequence[str]
) -> dict[str, Image]:
    """Copy images that the peer's engine lacks; it keeps them between runs."""
    copied = {}
    for name in names:
        if name not in available:
            raise RigError(f"the rig has no image {name!r}", remedy=suggestion(name, available))
        image = copied[name] = available[name]
        digests = engine.digests(local, PEER_SOCKET, [image.reference])
        if digests.get(image.reference) != image.digest:
            argv = script(_COPY_IMAGE, engine.SOCKET, PEER_SOCKET, image.reference)
            local.run(*argv, timeout=600)
    return copied


def remove_peer(local: LocalHost) -> list[str]:
    """Remove the peer, also what a killed campaign left of it; return a description of it."""
    if not Path(netns.namespace(PEER)).exists():
        return []
    if (netns.DIRECTORY / f"{PEER}.pid").exists():
        engine.remove_containers(local, PEER_SOCKET)
    teardown.stop_engine(f"{PEER}.pid")
    files = (netns.DIRECTORY / PEER, netns.DIRECTORY / f"{PEER}-daemon")
    teardown.remove_host(local, PEER, label(PEER), below=(str(files[0]), str(PEER_DATA)))
    for path in files:
        shutil.rmtree(path, ignore_errors=True)
    return ["the second host with an engine"]


def running_clean_peer(rate: str) -> AbstractContextManager[Target]:
    """Run the second host without an engine."""
    return _running(CLEAN_PEER, remove_clean_peer, rate)


def remove_clean_peer(local: LocalHost) -> list[str]:
    """Remove it, also what a killed campaign left of it; return a description of it."""
    if not Path(netns.namespace(CLEAN_PEER)).exists():
        return []
    teardown.remove_host(local, CLEAN_PEER, label(CLEAN_PEER))
    return ["the second host without an engine"]


# Both directions of each port, in the order in which packets pass the switch. Every kernel has the
# u32 filter.
_MIRROR = """
target=$1
shift
for port in "$@"; do
    tc qdisc add dev "$port" clsact
    for direction in ingress egress; do
        tc filter add dev "$port" "$direction" protocol all u32 match u32 0 0 \\
            action mirred egress mirror dev "$target"
    done
done
"""
_UNMIRROR = """
for port in "$@"; do tc qdisc del dev "$port" clsact 2>/dev/null || true; done
"""
_SWITCH = ("nsenter", f"--net=/run/netns/{netns.SWITCH}")


@contextmanager
def running_collector() -> Iterator[Target]:
    """Run the host that captures."""
    with _running(COLLECTOR, remove_collector) as target:
        # Only the mirror sends to its link.
        LocalHost().run("ip", "-n", netns.SWITCH, "link", "set", netns.plug(COLLECTOR), "nomaster")
        yield target


@contextmanager
def mirrored(roles: Sequence[str]) -> Iterator[None]:
    """Mirror the ports of roles; only while something captures, since it costs every packet."""
    local, plugs = LocalHost(), _plugs(roles)
    try:
        local.run(*_SWITCH, *script(_MIRROR, netns.plug(COLLECTOR), *plugs))
        yield
    finally:
        local.run(*_SWITCH, *script(_UNMIRROR, *plugs))


def _plugs(roles: Sequence[str]) -> list[str]:
    """Return the switch's ends of the links of roles."""
    return [netns.plug(role, n) for role in roles for n in range(len(netns.PORTS[role]))]


def remove_collector(local: LocalHost) -> list[str]:
    """Remove the collector, also what a killed campaign left; return a description of it."""
    # First the mirror: even without its target it would cost every packet a lookup.
    if Path("/run/netns", netns.SWITCH).exists():
        local.run(*_SWITCH, *script(_UNMIRROR, *_plugs(list(netns.PORTS))))
    if not Path(netns.namespace(COLLECTOR)).exists():
        return []
    teardown.remove_host(local, COLLECTOR, label(COLLECTOR))
    return ["the collector"]
