"""A host of a rig as a target for workloads, with its images, storages and networks."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from labkit.hosts.host import Host


@dataclass(frozen=True)
class Image:
    """An image, as the engine stores it and as an unpacked directory.

    Parameters
    ----------
    name : str
        Its directory below ``containers/``.
    reference : str
        Its name for the engine.
    digest : str
        The engine's identifier of its content.
    rootfs : str
        The directory on the host with its root file system.
    """

    name: str
    reference: str
    digest: str
    rootfs: str


@dataclass(frozen=True)
class Storage:
    """A place on a host where containers store ``/data``.

    Parameters
    ----------
    name : str
        One of ``labkit.placement.DRIVERS`` or ``MOUNTS``.
    engine : str
        The ``DOCKER_HOST`` of the engine that runs its containers.
    driver : str
        That engine's storage driver.
    filesystem : str
        The kernel's name of the file system of ``/data``.
    directory : str
        The directory on the host with what is mounted.
    branches : mapping of str to tuple of str
        For ``unionfs-fuse``: the directories of each image's layers, the lowest first.
    """

    name: str
    engine: str
    driver: str
    filesystem: str
    directory: str = ""
    branches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A network of a host that containers can be attached to.

    Parameters
    ----------
    name : str
        One of ``labkit.placement.NETWORKS``.
    subnet : str
        Its addresses, with prefix length.
    first : str
        The address of a trial's first placement; the others follow in order.
    gateway : str
        The host's own address in it, if any.
    engine : str
        Docker's name of it, if any.
    bridge : str
        The host's bridge for its interfaces, if any.
    port : str
        The device that connects the bridge to other hosts: a lab interface or a tunnel.
    parent : str
        The parent interface of a macvlan.
    remotes : tuple of str
        For a tunnel: the addresses of the other ends.
    sandboxes : str
        The directory of the namespaces in which an engine hides its tunnel.
    """

    name: str
    subnet: str
    first: str
    gateway: str = ""
    engine: str = ""
    bridge: str = ""
    port: str = ""
    parent: str = ""
    remotes: tuple[str, ...] = ()
    sandboxes: str = ""

    def address(self, place: int) -> str:
        """Return the address of the placement with this number, from 0."""
        return str(ipaddress.ip_address(self.first) + place)

    @property
    def prefix(self) -> int:
        """The prefix length."""
        return ipaddress.ip_network(self.subnet).prefixlen

    def hardware(self, place: int) -> str:
        """Return the MAC address derived from `address`, as Docker does.

        It is the same in each trial, so that no ARP cache of another host is outdated.
        """
        return "02:42:" + ipaddress.ip_address(self.address(place)).packed.hex(":")


@dataclass(frozen=True)
class Target:
    """One host of a rig as a target for workloads.

    Parameters
    ----------
    host : Host
        The host.
    address : str
        Its address in the lab.
    engine : str, optional
        The ``DOCKER_HOST`` of its engine.
    cgroup_parent : str
        The parent of every control group created for a placement.
    directory : str
        A scratch directory on the host, created and removed by the rig.
    sysfs : str
        The mount point of the sysfs of the host's network namespace.
    images : mapping of str to Image
        The images on the host, by name.
    disk : str
        A directory on a disk of the host, for the data of storages.
    storages : mapping of str to Storage
        The storages that are set up, by name.
    storage : Storage, optional
        The storage of the placement.
    networks : mapping of str to Network
        The networks that are set up besides the host's own, by name.
    place : int
        The number of the placement in its trial, from 0.
    sandboxes : str
        The directory of the engine's network namespaces.
    """

    host: Host
    address: str
    engine: str | None = None
    cgroup_parent: str = "/labkit"
    directory: str = "/run/labkit"
    sysfs: str = "/sys"
    images: Mapping[str, Image] = field(default_factory=dict)
    disk: str = ""
    storages: Mapping[str, Storage] = field(default_factory=dict)
    storage: Storage | None = None
    networks: Mapping[str, Network] = field(default_factory=dict)
    place: int = 0
    sandboxes: str = "/var/run/docker/netns"

    @property
    def parent_group(self) -> str:
        """The path of `cgroup_parent`, which for an engine on systemd is only a slice's name."""
        return "/" + self.cgroup_parent.strip("/")

    def with_storage(self, name: str) -> Target:
        """Return this target with a storage and its engine."""
        storage = self.storages[name]
        return replace(self, engine=storage.engine, storage=storage)
