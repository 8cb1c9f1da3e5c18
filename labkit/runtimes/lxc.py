"""LXC containers, started by LXC's own tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.hosts import script
from labkit.runtimes import networks
from labkit.runtimes.bare import limit_files
from labkit.runtimes.base import Instance
from labkit.runtimes.daemonless import MONITOR, Daemonless, files_of

#: LXC's default seccomp filter.
_SECCOMP = "/usr/share/lxc/config/common.seccomp"

# Runs a command where /sys shows the network namespace that it is in.
_OWN_SYSFS = """mkdir -p "$1"; mount --rbind /sys/fs/cgroup "$1"
mount -t sysfs sysfs /sys
mount --rbind "$1" /sys/fs/cgroup
shift; exec "$@"
"""


class Lxc(Daemonless):
    """Starts application containers by ``lxc-start``."""

    impossible: ClassVar[dict[str, str]] = networks.no_swarm(
        "LXC has no network of its own between hosts; Swarm's are Docker's"
    )
    programs = ("lxc-start",)
    package = "lxc"
    holder = "lxc-start"

    def hold(self, instance: Instance, command: Sequence[str]) -> list[str]:
        """Write the container's configuration, and return the command that starts it."""
        host, label, folder = instance.target.host, instance.label, files_of(instance)
        network = instance.network
        file = f"{folder}/{label}/config"
        host.run("mkdir", "-p", f"{folder}/{label}/upper")
        host.run("tee", file, input="\n".join([*_settings(instance), ""]))
        start = ["lxc-start", "-F", "-P", folder, "-n", label, "-f", file, "--", *command]
        link = (network.bridge or network.parent) if network else "lo"
        # Its tools look for the bridge in /sys, which in a namespace of the rig is another host's.
        if host.call("read", path=f"/sys/class/net/{link}/ifindex"):
            return start
        enter = ["unshare", "--mount", "--propagation", "private"]
        return [*enter, *script(_OWN_SYSFS, f"{folder}/cgroup", *start)]

    def end(self, instance: Instance) -> None:
        """Kill the container."""
        named = ("-P", files_of(instance), "-n", instance.label)
        instance.target.host.run("lxc-stop", "-k", *named, check=False)

    def logs(self, instance: Instance) -> str:
        """Return what the container printed to its console, and what the holder printed."""
        console = f"{files_of(instance)}/console"
        shown = instance.target.host.run("cat", console, check=False).stdout
        return shown + super().logs(instance)


def _settings(instance: Instance) -> list[str]:
    """Return the container's configuration, with limits for the host's version of groups."""
    folder, group = files_of(instance), instance.group.lstrip("/")
    settings = {
        "uts.name": instance.label,
        "rootfs.path": f"overlay:{instance.image.rootfs}:{folder}/{instance.label}/upper",
        "mount.auto": "proc:mixed sys:ro",
        "seccomp.profile": _SECCOMP,
        "cap.drop": "mac_admin mac_override sys_time sys_module sys_rawio",
        "cgroup.dir.container": group,
        "cgroup.dir.monitor": f"{group}{MONITOR}",
        "console.logfile": f"{folder}/console",
        **_interface(instance),
    }
    version2 = instance.target.host.call("read", path="/sys/fs/cgroup/cgroup.controllers")
    key, other = ("cgroup2", _VERSION1) if version2 else ("cgroup", _VERSION2)
    limits = limit_files(instance.target, instance.placement.limits)
    settings |= {f"{key}.{name}": x for name, x in limits.items() if name not in other}
    return [f"lxc.{name} = {value}" for name, value in settings.items()]


#: The files with limits that only one version of control groups has.
_VERSION1 = ("cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "memory.limit_in_bytes")
_VERSION2 = ("cpu.weight", "cpu.max", "memory.max")


def _interface(instance: Instance) -> dict[str, str]:
    network, place = instance.network, instance.target.place
    if network is None:
        return {"net.0.type": "none"}
    device = "macvlan" if network.parent else "veth"
    settings = {
        "net.0.type": device,
        "net.0.name": "eth0",
        "net.0.flags": "up",
        "net.0.link": network.parent or network.bridge,
        "net.0.hwaddr": network.hardware(place),
        "net.0.ipv4.address": f"{network.address(place)}/{network.prefix}",
    }
    settings |= {"net.0.macvlan.mode": "bridge"} if device == "macvlan" else {}
    return settings | ({"net.0.ipv4.gateway": network.gateway} if network.gateway else {})
