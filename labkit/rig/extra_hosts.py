"""Hosts of the virtual rig that exist only while a study asks for them.

``peer`` is a second host with an engine, for clients that are in a container themselves, and for
networks between engines. It is a host of its own, so that the generator keeps no firewall rules; an
idle engine wakes up now and then, so it is not there while other studies are measured.

``collector`` only listens: the switch mirrors the ports of other hosts to it. The mirror is a
filter on the switch's side of a host's link, so that what arrives at that host and what leaves it
is seen once each. Its own link leads nowhere else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from labkit.errors import RigError
from labkit.hosts import LocalHost, script, start_job
from labkit.hosts.target import Image, Target
from labkit.rig import engine, netns, teardown

PEER = "peer"
#: Label of its processes.
PEER_LABEL = "labkit-peer"
PEER_DATA = engine.STORAGES / PEER
PEER_SOCKET = f"unix://{netns.DIRECTORY}/{PEER}.sock"
#: Its containers are never taken for those of the first engine.
_POOLS = ("--bip", "198.19.128.1/24", "--default-address-pool", "base=198.19.128.0/17,size=24")
_DAEMON = netns.DIRECTORY / f"{PEER}-daemon"

_COPY_IMAGE = """
DOCKER_HOST=$1 docker save "$3" | DOCKER_HOST=$2 docker load >/dev/null
"""


@contextmanager
def running_peer(
    rate: str, available: Mapping[str, Image], images: Sequence[str]
) -> Iterator[Target]:
    """Run the second host, with images that the first engine has."""
    local = LocalHost()
    remove_peer(local)
    try:
        netns.make_host(local, PEER)
        netns.limit_rate(local, rate, (PEER,))
        netns.start_sshd(local, PEER, PEER_LABEL)
        _start_peer_engine(local)
        copied = _copy_images(local, available, images)
        with closing(netns.connect(PEER)) as host:
            yield Target(
                host,
                netns.address(PEER),
                engine=PEER_SOCKET,
                directory=str(netns.DIRECTORY / "jobs"),
                sysfs=str(netns.sysfs(PEER)),
                images=copied,
                sandboxes=str(netns.DIRECTORY / PEER / "netns"),
            )
    finally:
        remove_peer(local)


def _start_peer_engine(local: LocalHost) -> None:
    engine.forget_networks(PEER_DATA)
    argv = [
        *netns.inside(PEER),
        "dockerd",
        *engine.daemon_options(PEER, PEER_SOCKET, PEER_DATA),
        *_POOLS,
    ]
    start_job(local, argv, directory=str(_DAEMON), label=PEER_LABEL)
    engine.await_daemon(local, PEER_SOCKET, _DAEMON / "stderr")
    engine.remove_containers(local, PEER_SOCKET)


def _copy_images(
    local: LocalHost, there: Mapping[str, Image], wanted: Sequence[str]
) -> dict[str, Image]:
    """Give the engine those images that it does not have yet; they stay between runs."""
    env, found = {"DOCKER_HOST": PEER_SOCKET}, {}
    for name in wanted:
        if name not in there:
            raise RigError(f"the rig has no image {name!r}", remedy=f"one of {', '.join(there)}")
        image = there[name]
        inspect = ("docker", "image", "inspect", "-f", "{{.Id}}", image.reference)
        if local.run(*inspect, env=env, check=False).stdout.strip() != image.digest:
            argv = script(_COPY_IMAGE, engine.SOCKET, PEER_SOCKET, image.reference)
            local.run(*argv, timeout=600)
        found[name] = image
    return found


def remove_peer(local: LocalHost) -> list[str]:
    """Take the host down, also what a killed campaign left of it; return it in words."""
    if not Path(netns.namespace(PEER)).exists():
        return []
    if (netns.DIRECTORY / f"{PEER}.pid").exists():
        engine.remove_containers(local, PEER_SOCKET)
    teardown.stop_engine(f"{PEER}.pid")
    below = (str(netns.DIRECTORY / PEER), str(PEER_DATA))
    teardown.remove_host(local, PEER, PEER_LABEL, below=below)
    for path in (_DAEMON, netns.DIRECTORY / PEER):
        shutil.rmtree(path, ignore_errors=True)
    return ["the second host with an engine"]


COLLECTOR = "collector"
#: Label of its processes.
COLLECTOR_LABEL = "labkit-collector"

# Both directions of each port, in the order in which the switch has them. u32 is a filter that
# every kernel has.
_MIRROR = """
target=$1
shift
for port in "$@"; do
    tc qdisc add dev "$port" clsact
    for way in ingress egress; do
        tc filter add dev "$port" "$way" protocol all u32 match u32 0 0 \\
            action mirred egress mirror dev "$target"
    done
done
"""
_NO_MIRROR = """
for port in "$@"; do tc qdisc del dev "$port" clsact 2>/dev/null || true; done
"""
_SWITCH = ("nsenter", f"--net=/run/netns/{netns.SWITCH}")


@contextmanager
def running_collector() -> Iterator[Target]:
    """Run the host that listens."""
    local = LocalHost()
    remove_collector(local)
    try:
        netns.make_host(local, COLLECTOR)
        netns.start_sshd(local, COLLECTOR, COLLECTOR_LABEL)
        # Its link leads nowhere but from the mirror.
        local.run("ip", "-n", netns.SWITCH, "link", "set", netns.plug(COLLECTOR), "nomaster")
        with closing(netns.connect(COLLECTOR)) as host:
            directory = str(netns.DIRECTORY / "jobs")
            yield Target(host, netns.address(COLLECTOR), directory=directory)
    finally:
        remove_collector(local)


@contextmanager
def mirrored(roles: Sequence[str]) -> Iterator[None]:
    """Mirror the ports of roles: every packet pays for it, so not while nothing captures."""
    local = LocalHost()
    ports = [netns.plug(role, n) for role in roles for n in range(len(netns.PORTS[role]))]
    try:
        local.run(*_SWITCH, *script(_MIRROR, netns.plug(COLLECTOR), *ports))
        yield
    finally:
        local.run(*_SWITCH, *script(_NO_MIRROR, *ports))


def remove_collector(local: LocalHost) -> list[str]:
    """Take the collector down, also what a killed campaign left of it; return it in words."""
    # The mirror first: to a port that is gone, it would go on costing every packet a look.
    if Path("/run/netns", netns.SWITCH).exists():
        ends = [netns.plug(one, n) for one, ports in netns.PORTS.items() for n in range(len(ports))]
        local.run(*_SWITCH, *script(_NO_MIRROR, *ends))
    if not Path(netns.namespace(COLLECTOR)).exists():
        return []
    teardown.remove_host(local, COLLECTOR, COLLECTOR_LABEL)
    return ["the collector"]
