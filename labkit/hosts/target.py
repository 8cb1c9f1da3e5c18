"""A host of a rig as a target for workloads, with its images, storages and networks."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.hosts.host import Host, Result


@dataclass(frozen=True)
class Image:
    """An image, as the engine stores it and as an unpacked directory on the host."""

    #: Its directory below ``containers/``, its name for the engine, the engine's identifier of its
    #: content, and the directory on the host with its root file system.
    name: str
    reference: str
    digest: str
    rootfs: str


@dataclass(frozen=True)
class Storage:
    """A place on a host where containers store ``/data``."""

    #: One of ``labkit.placement.STORAGES``, the engine's storage driver, and the kernel's name of
    #: the file system of ``/data``.
    name: str
    driver: str
    filesystem: str


@dataclass(frozen=True)
class Network:
    """A network of a host that containers can be attached to."""

    #: One of ``labkit.placement.NETWORKS``, its addresses with prefix length, and that of the first
    #: placement of a trial; the others follow in order.
    name: str
    subnet: str
    first: str
    #: The host's own address in it, and Docker's name of it, if any.
    gateway: str = ""
    engine: str = ""
    #: The host's bridge for its interfaces, and the device that connects it to other hosts: a lab
    #: interface or a tunnel. Or the parent interface of a macvlan.
    bridge: str = ""
    port: str = ""
    parent: str = ""
    #: Of a tunnel, or routers of its own: the addresses of the other ends, and where a router says
    #: what it is connected to.
    remotes: tuple[str, ...] = ()
    router: str = ""

    def address(self, place: int) -> str:
        """Return the address of the placement with this number, from 0."""
        return str(ipaddress.ip_address(self.first) + place)

    @property
    def prefix(self) -> int:
        """The prefix length."""
        return ipaddress.ip_network(self.subnet).prefixlen

    def hardware(self, place: int) -> str:
        """Return the MAC address that Docker derives from `address`: no ARP cache is outdated."""
        return "02:42:" + ipaddress.ip_address(self.address(place)).packed.hex(":")


@dataclass(frozen=True)
class Target:
    """One host of a rig as a target for workloads."""

    host: Host
    #: Its address in the lab, and the ``DOCKER_HOST`` of its engine, if it has one.
    address: str
    engine: str | None = None
    #: The parent of every control group created for a placement.
    cgroup_parent: str = "/labkit"
    #: A scratch directory on the host, and the mount point of the sysfs of its network namespace.
    directory: str = "/run/labkit"
    sysfs: str = "/sys"
    #: By name, what is set up: images, storages, and networks besides the host's own.
    images: Mapping[str, Image] = field(default_factory=dict)
    storages: Mapping[str, Storage] = field(default_factory=dict)
    networks: Mapping[str, Network] = field(default_factory=dict)
    #: A directory on a disk of the host with what storages mount; and that of the placement.
    disk: str = ""
    storage: Storage | None = None
    #: The number of the placement in its trial, from 0.
    place: int = 0
    #: The distribution of its engine, where that is not the host's, and the directory of the
    #: network namespaces in which the engine hides the tunnel of an overlay.
    system: str = ""
    sandboxes: str = "/var/run/docker/netns"
    #: All its addresses and interfaces in the lab.
    addresses: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()

    def run(self, *argv: str, **options: Any) -> Result:
        """Run a command on the host that asks its engine; options are those of `Host.run`."""
        return self.host.run(*argv, env={"DOCKER_HOST": str(self.engine)}, **options)
