"""What a runtime needs to know of the place in which it puts a workload."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from labkit.hosts.host import Host


@dataclass(frozen=True)
class Image:
    """A root file system, as an engine knows it and unpacked.

    Parameters
    ----------
    name : str
        Directory below ``containers/`` that it is made from.
    reference : str
        Name under which the engine has it.
    digest : str
        The engine's identifier of its content.
    rootfs : str
        Directory on the host that holds the same files, for a chroot.
    """

    name: str
    reference: str
    digest: str
    rootfs: str


@dataclass(frozen=True)
class Storage:
    """Where containers keep what they write below ``/data``, as it stands on a host.

    Parameters
    ----------
    name : str
        One of ``labkit.placement.DRIVERS`` or ``MOUNTS``.
    engine : str
        The engine that runs its containers, as ``DOCKER_HOST`` wants it.
    driver : str
        That engine's storage driver.
    filesystem : str
        Type of the file system on which ``/data`` is, as the kernel names it.
    directory : str
        For a mount: where what is mounted is kept.
    branches : mapping of str to tuple of str
        For a union in user space: directories with an image's layers, the lowest first.
    """

    name: str
    engine: str
    driver: str
    filesystem: str
    directory: str = ""
    branches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A network that containers can be put on, as it stands on a host.

    Parameters
    ----------
    name : str
        One of ``labkit.placement.NETWORKS``.
    subnet : str
        Its addresses, with prefix length.
    first : str
        The address of the first placement of a trial; those beside it count up from there.
    gateway : str
        The host's own address in it; "" where it has none.
    engine : str
        The Docker Engine's name of it; "" where that has none.
    bridge : str
        The bridge that an interface is enslaved to; "" for no bridge.
    port : str
        What leads from that bridge to other hosts: a lab interface, or the device of a tunnel.
    parent : str
        The interface that a macvlan interface shares.
    remotes : tuple of str
        For a tunnel: the addresses of its other ends.
    sandboxes : str
        For a network whose tunnel an engine keeps in a namespace of its own: where those are named.
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
        """Return the address of a trial's placement of that number, from 0."""
        return str(ipaddress.ip_address(self.first) + place)

    @property
    def prefix(self) -> int:
        """The length of its prefix."""
        return ipaddress.ip_network(self.subnet).prefixlen

    def hardware(self, place: int) -> str:
        """Return the hardware address that goes with `address`, as Docker makes it.

        An address keeps its own from trial to trial, so that no neighbour's table grows stale.
        """
        return "02:42:" + ipaddress.ip_address(self.address(place)).packed.hex(":")


@dataclass(frozen=True)
class Target:
    """One host of a rig as a place for workloads.

    Parameters
    ----------
    host : Host
        The way to it.
    address : str
        Its address in the lab.
    engine : str, optional
        The Docker daemon's socket on that host, as ``DOCKER_HOST`` wants it.
    cgroup_parent : str
        Parent of every control group made here.
    directory : str
        Scratch directory on the host, made and removed by the rig.
    sysfs : str
        Where the sysfs of the host's own network namespace is mounted; levers of its interfaces
        are found there.
    images : mapping of str to Image
        Root file systems that stand on the host.
    disk : str
        A directory on a disk of the host, for what the storages of containers keep.
    storages : mapping of str to Storage
        Those that were asked for, by name, while they stand.
    storage : Storage, optional
        The one of the placement that this is the place of.
    networks : mapping of str to Network
        Those that stand beside the host's own, by name.
    place : int
        The number of the placement among those of its trial, from 0.
    sandboxes : str
        Where the engine names the namespaces in which it keeps tunnels.
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
        """The parent group's path; an engine on systemd wants a slice's bare name for it."""
        return "/" + self.cgroup_parent.strip("/")

    def with_storage(self, name: str) -> Target:
        """Return this target for a placement with a storage: its engine is that storage's."""
        storage = self.storages[name]
        return replace(self, engine=storage.engine, storage=storage)
