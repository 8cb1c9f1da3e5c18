"""LXC containers, by its own tools and its own networks, from the same root file system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.hosts import script
from labkit.hosts.target import Network, Target
from labkit.placement import Limits, Placement, weight
from labkit.runtimes import networks
from labkit.runtimes.daemonless import DaemonlessRuntime
from labkit.runtimes.engines.bare import LEAVE

#: System calls that a container of the distribution may not make.
_SECCOMP = "/usr/share/lxc/config/common.seccomp"

# The configuration comes as an argument; control groups are named after the hierarchy there is.
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

    def hold(
        self,
        target: Target,
        placement: Placement,
        rootfs: str,
        network: Network | None,
        command: Sequence[str],
        label: str,
    ) -> list[str]:
        """Return the command with the container's configuration."""
        parent = target.parent_group.lstrip("/")
        lines = [
            f"lxc.uts.name = {label}",
            f"lxc.rootfs.path = overlay:{rootfs}:{_folder(target, label)}/{label}/upper",
            "lxc.mount.auto = proc:mixed sys:ro",
            f"lxc.seccomp.profile = {_SECCOMP}",
            "lxc.cap.drop = mac_admin mac_override sys_time sys_module sys_rawio",
            f"lxc.cgroup.dir.container = {parent}/{label}",
            f"lxc.cgroup.dir.monitor = {parent}/{label}-monitor",
            f"lxc.console.logfile = {_folder(target, label)}/console",
            *_interface(placement, network, target.place),
            *_limits(placement.limits),
        ]
        link = (network.bridge or network.parent) if network else ""
        return list(script(_RUN, _folder(target, label), label, "\n".join(lines), link, *command))

    def end(self, target: Target, label: str) -> None:
        """Kill the container: its holder takes no notice of being told to end."""
        target.host.run("lxc-stop", "-k", "-P", _folder(target, label), "-n", label, check=False)

    def logs(self, target: Target, label: str) -> str:
        """Return what the container printed, which goes to its console, and what the holder did."""
        shown = target.host.run("cat", f"{_folder(target, label)}/console", check=False)
        return shown.stdout + super().logs(target, label)

    def clear(self, target: Target, label: str) -> None:
        """Remove its configuration, and what is left in its control groups."""
        for name in (label, f"{label}-monitor"):
            target.host.run(*script(LEAVE, f"{target.parent_group}/{name}"))
        target.host.run("rm", "-rf", "--one-file-system", "--", _folder(target, label))


def _folder(target: Target, label: str) -> str:
    return f"{target.directory}/{label}-lxc"


def _interface(placement: Placement, network: Network | None, place: int) -> list[str]:
    if network is None:
        return ["lxc.net.0.type = none"]
    device = "macvlan" if placement.network == "macvlan" else "veth"
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


def _limits(limits: Limits) -> list[str]:
    """Return the limits for both versions of control groups, each marked as a comment."""
    version1 = {
        "cpuset.cpus": limits.cpuset,
        "cpu.shares": limits.shares,
        "cpu.cfs_period_us": limits.period_us,
        "cpu.cfs_quota_us": limits.quota_us,
        "memory.limit_in_bytes": limits.memory,
    }
    version2 = {
        "cpuset.cpus": limits.cpuset,
        "cpu.weight": limits.shares and weight(limits.shares),
        "cpu.max": limits.quota_us and f"{limits.quota_us} {limits.period_us}",
        "memory.max": limits.memory,
    }
    first = [f"#v1 lxc.cgroup.{name} = {value}" for name, value in version1.items() if value]
    return first + [
        f"#v2 lxc.cgroup2.{name} = {value}" for name, value in version2.items() if value
    ]
