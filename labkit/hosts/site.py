"""What a runtime needs to know of the place in which it puts a workload."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
