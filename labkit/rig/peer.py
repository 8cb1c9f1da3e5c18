"""A second host with an engine, beside the generator, for as long as a study asks for it.

For clients that are in a container themselves, and for networks between engines. It is a host of
its own, so that the generator keeps no firewall rules; an idle engine wakes up now and then, so it
does not stand while studies that do not need it are measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import RigError
from labkit.hosts import LocalHost, script, start_job
from labkit.hosts.site import Image, Site
from labkit.rig import ending, engine, netns, rates

if TYPE_CHECKING:
    from labkit.rig.base import Rig

ROLE = "peer"
#: Label of its processes.
LABEL = "labkit-peer"
DATA_ROOT = engine.STORAGES / ROLE
SOCKET = f"unix://{netns.DIRECTORY}/{ROLE}.sock"
#: Its containers are never taken for those of the first engine.
_POOLS = ("--bip", "198.19.128.1/24", "--default-address-pool", "base=198.19.128.0/17,size=24")
_DAEMON = netns.DIRECTORY / f"{ROLE}-daemon"

_COPY = """
DOCKER_HOST=$1 docker save "$3" | DOCKER_HOST=$2 docker load >/dev/null
"""


@contextmanager
def beside(rig: Rig, images: Sequence[str]) -> Iterator[None]:
    """Have the second host in the rig, with images that the first engine has.

    Raises
    ------
    RigError
        An image does not stand, or the engine does not answer, with its log.
    """
    local, before = LocalHost(), replace(rig)
    remove(local)
    try:
        netns.make_host(local, ROLE)
        rates.limit(local, rig.rate, (ROLE,))
        netns.start_sshd(local, ROLE, LABEL)
        _start_engine(local)
        copied = _copy(local, rig.sites["sut"].images, images)
        with closing(netns.connect(ROLE)) as host:
            site = Site(
                host,
                netns.address(ROLE),
                engine=SOCKET,
                directory=str(netns.DIRECTORY / "jobs"),
                sysfs=str(netns.sysfs(ROLE)),
                images=copied,
                sandboxes=str(netns.DIRECTORY / ROLE / "netns"),
            )
            _join(rig, site)
            yield
    finally:
        for name in ("hosts", "sites", "addresses", "interfaces", "cpu_map"):
            setattr(rig, name, getattr(before, name))
        remove(local)


def _join(rig: Rig, site: Site) -> None:
    """Name the host in the rig; what runs on it shares the generator's CPU."""
    ports = netns.PASSING[ROLE]
    rig.hosts = {**rig.hosts, ROLE: site.host}
    rig.sites = {**rig.sites, ROLE: site}
    rig.addresses = {**rig.addresses, ROLE: (site.address,)}
    rig.interfaces = {**rig.interfaces, ROLE: tuple(port.interface for port in ports)}
    rig.cpu_map = {**rig.cpu_map, ROLE: rig.cpu_map["generator"]}


def _start_engine(local: LocalHost) -> None:
    engine.forget_networks(DATA_ROOT)
    argv = [
        *netns.inside(ROLE),
        "dockerd",
        *engine.daemon_options(ROLE, SOCKET, DATA_ROOT),
        *_POOLS,
    ]
    start_job(local, argv, directory=str(_DAEMON), label=LABEL)
    engine.await_daemon(local, SOCKET, _DAEMON / "stderr")
    engine.remove_containers(local, SOCKET)


def _copy(local: LocalHost, there: Mapping[str, Image], wanted: Sequence[str]) -> dict[str, Image]:
    """Give the engine those images that it does not have yet; they stay between runs."""
    env, found = {"DOCKER_HOST": SOCKET}, {}
    for name in wanted:
        if name not in there:
            raise RigError(f"the rig has no image {name!r}", remedy=f"one of {', '.join(there)}")
        image = there[name]
        inspect = ("docker", "image", "inspect", "-f", "{{.Id}}", image.reference)
        if local.run(*inspect, env=env, check=False).stdout.strip() != image.digest:
            argv = script(_COPY, engine.SOCKET, SOCKET, image.reference)
            local.run(*argv, timeout=600)
        found[name] = image
    return found


def remove(local: LocalHost) -> list[str]:
    """Take the host down, also what a killed campaign left of it; return it in words."""
    if not Path(netns.namespace(ROLE)).exists():
        return []
    if (netns.DIRECTORY / f"{ROLE}.pid").exists():
        engine.remove_containers(local, SOCKET)
    ending.stop_engine(f"{ROLE}.pid")
    below = (str(netns.DIRECTORY / ROLE), str(DATA_ROOT))
    ending.remove_host(local, ROLE, LABEL, below=below)
    for path in (_DAEMON, netns.DIRECTORY / ROLE):
        shutil.rmtree(path, ignore_errors=True)
    return ["the second host with an engine"]
