"""LXC containers, started by LXC's own tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.hosts import script
from labkit.hosts.target import Target
from labkit.placement import Limits
from labkit.runtimes import networks
from labkit.runtimes.base import Instance
from labkit.runtimes.daemonless import DaemonlessRuntime
from labkit.runtimes.engines.bare import LEAVE

#: LXC's default seccomp filter.
_SECCOMP = "/usr/share/lxc/config/common.seccomp"

# The configuration is an argument; of its limits, those of the host's version of control groups are
# used.
_RUN = """
folder=$1 name=$2 text=$3 link=$4
shift 4
mkdir -p "$folder/$name/upper"
printf '%s\\n' "$text" >"$folder/$name/config"
version=v1
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || version=v2
sed -n "s/^#$version //p" "$folder/$name/config" >"$folder/$name/limits"
cat "$folder/$name/limits" >>"$folder/$name/config"
set -- lxc-start -F -P "$folder" -n "$name" -f "$folder/$name/config" -- "$@"
# Its tools look for the bridge in /sys, which in a namespace of the rig is another host's.
if [ -n "$link" ] && [ ! -e "/sys/class/net/$link" ]; then
    mkdir -p "$folder/$name/cgroup"
    set -- unshare --mount --propagation private sh -c '
        mount --rbind /sys/fs/cgroup "$0"
        mount -t sysfs sysfs /sys
        mount --rbind "$0" /sys/fs/cgroup
        exec "$@"
    ' "$folder/$name/cgroup" "$@"
fi
exec "$@"
"""


class Lxc(DaemonlessRuntime):
    """Starts application containers by ``lxc-start`` in the foreground of a job."""

    impossible: ClassVar[dict[str, str]] = networks.no_swarm(
        "LXC has no network of its own between hosts; Swarm's are Docker's"
    )
    program = "lxc-start"
    package = "lxc"
    holder = "lxc-start"

    def hold(self, instance: Instance, command: Sequence[str]) -> list[str]:
        """Return the command with the container's configuration."""
        target, label, network = instance.target, instance.label, instance.network
        parent, folder = target.parent_group.lstrip("/"), _folder(target, label)
        lines = [
            f"lxc.uts.name = {label}",
            f"lxc.rootfs.path = overlay:{instance.rootfs}:{folder}/{label}/upper",
            "lxc.mount.auto = proc:mixed sys:ro",
            f"lxc.seccomp.profile = {_SECCOMP}",
            "lxc.cap.drop = mac_admin mac_override sys_time sys_module sys_rawio",
            f"lxc.cgroup.dir.container = {parent}/{label}",
            f"lxc.cgroup.dir.monitor = {parent}/{label}-monitor",
            f"lxc.console.logfile = {folder}/console",
            *_interface(instance),
            *_limits(target, instance.placement.limits),
        ]
        link = (network.bridge or network.parent) if network else ""
        return list(script(_RUN, folder, label, "\n".join(lines), link, *command))

    def end(self, target: Target, label: str) -> None:
        """Kill the container: its holder ignores TERM."""
        target.host.run("lxc-stop", "-k", "-P", _folder(target, label), "-n", label, check=False)

    def logs(self, target: Target, label: str) -> str:
        """Return what the container printed to its console, and what the holder printed."""
        shown = target.host.run("cat", f"{_folder(target, label)}/console", check=False)
        return shown.stdout + super().logs(target, label)

    def clear(self, target: Target, label: str) -> None:
        """Remove its control groups and its files."""
        for name in (label, f"{label}-monitor"):
            target.host.run(*script(LEAVE, f"{target.parent_group}/{name}"))
        target.host.run("rm", "-rf", "--one-file-system", "--", _folder(target, label))


def _folder(target: Target, label: str) -> str:
    return f"{target.directory}/{label}-lxc"


def _interface(instance: Instance) -> list[str]:
    network, place = instance.network, instance.target.place
    if network is None:
        return ["lxc.net.0.type = none"]
    device = "macvlan" if instance.placement.network == "macvlan" else "veth"
    settings = {
        "type": device,
        "name": "eth0",
        "flags": "up",
        "link": network.parent if device == "macvlan" else network.bridge,
        "hwaddr": network.hardware(place),
        "ipv4.address": f"{network.address(place)}/{network.prefix}",
    }
    settings |= {"macvlan.mode": "bridge"} if device == "macvlan" else {}
    settings |= {"ipv4.gateway": network.gateway} if network.gateway else {}
    return [f"lxc.net.0.{name} = {value}" for name, value in settings.items()]


def _limits(target: Target, limits: Limits) -> list[str]:
    """Return the limits for both versions of control groups, as comments with the version."""
    version1 = {
        "cpuset.cpus": limits.cpuset,
        "cpu.shares": limits.shares,
        "cpu.cfs_period_us": limits.period_us,
        "cpu.cfs_quota_us": limits.quota_us,
        "memory.limit_in_bytes": limits.memory,
    }
    version2 = {
        "cpuset.cpus": limits.cpuset,
        "cpu.weight": target.cpu_weight(limits.shares),
        "cpu.max": limits.quota_us and f"{limits.quota_us} {limits.period_us}",
        "memory.max": limits.memory,
    }
    return [
        *(f"#v1 lxc.cgroup.{name} = {value}" for name, value in version1.items() if value),
        *(f"#v2 lxc.cgroup2.{name} = {value}" for name, value in version2.items() if value),
    ]
