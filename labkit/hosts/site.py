"""What a runtime needs to know of the place in which it puts a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from labkit.hosts.base import Host


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
class Site:
    """One host of a rig as a place for workloads.

    Parameters
    ----------
    host : Host
        The way to it.
    address : str
        Its address in the lab.
    engine : str, optional
        The Docker daemon's socket on that host, as ``DOCKER_HOST`` wants it.
    bridge : str, optional
        The bridge to which the second lab interface is enslaved, for layer-2 placements.
    bridge_port : str, optional
        That second lab interface.
    bridge_network : str, optional
        The engine's name of the network on that bridge.
    bridge_address : str, optional
        Address of a container on that bridge.
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
    """

    host: Host
    address: str
    engine: str | None = None
    bridge: str | None = None
    bridge_port: str | None = None
    bridge_network: str | None = None
    bridge_address: str | None = None
    cgroup_parent: str = "/labkit"
    directory: str = "/run/labkit"
    sysfs: str = "/sys"
    images: Mapping[str, Image] = field(default_factory=dict)
    disk: str = ""
    storages: Mapping[str, Storage] = field(default_factory=dict)
    storage: Storage | None = None

    def with_storage(self, name: str) -> Site:
        """Return this site for a placement with a storage: its engine is that storage's."""
        storage = self.storages[name]
        return replace(self, engine=storage.engine, storage=storage)
