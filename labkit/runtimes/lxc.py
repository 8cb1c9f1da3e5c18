"""LXC containers, started by LXC's own tools."""

from collections.abc import Sequence
from typing import ClassVar

from labkit.hosts import script
from labkit.runtimes.base import Instance
from labkit.runtimes.jobs import Jobs, limit_files

# Runs a command where /sys shows the network namespace that it is in.
_OWN_SYSFS = """mkdir -p "$1"; mount --rbind /sys/fs/cgroup "$1"
mount -t sysfs sysfs /sys
mount --rbind "$1" /sys/fs/cgroup
shift; exec "$@"
"""


class Lxc(Jobs):
    """Starts application containers by ``lxc-start``."""

    programs: ClassVar = {"lxc-start": "its package is lxc"}
    holder = "lxc-start"

    def command(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Write the container's configuration, and return the command that starts it."""
        target, folder, name = instance.target, instance.folder, instance.label
        host, network, group = target.host, instance.network, instance.group.lstrip("/")
        host.run("mkdir", "-p", f"{folder}/{name}/upper")
        settings = {
            "uts.name": name,
            "rootfs.path": f"overlay:{instance.image.rootfs}:{folder}/{name}/upper",
            "mount.auto": "proc:mixed sys:ro",
            "seccomp.profile": "/usr/share/lxc/config/common.seccomp",
            "cap.drop": "mac_admin mac_override sys_time sys_module sys_rawio",
            "cgroup.dir.container": group,
            "cgroup.dir.monitor": f"{group}-monitor",
            "console.logfile": f"{folder}/console",
            "net.0.type": "none",
        }
        if network:
            settings |= {
                "net.0.type": "macvlan" if network.parent else "veth",
                "net.0.name": "eth0",
                "net.0.flags": "up",
                "net.0.link": network.parent or network.bridge,
                "net.0.hwaddr": network.hardware(target.place),
                "net.0.ipv4.address": f"{network.address(target.place)}/{network.prefix}",
                **({"net.0.macvlan.mode": "bridge"} if network.parent else {}),
                **({"net.0.ipv4.gateway": network.gateway} if network.gateway else {}),
            }
        version2 = bool(host.call("read", path="/sys/fs/cgroup/cgroup.controllers"))
        for key, text in limit_files(instance.placement.limits).items():
            only_version2 = key in ("cpu.weight", "cpu.max", "memory.max")
            if key == "cpuset.cpus" or only_version2 == version2:
                settings[f"{'cgroup2' if version2 else 'cgroup'}.{key}"] = text
        file = f"{folder}/{name}/config"
        lines = [f"lxc.{key} = {value}\n" for key, value in settings.items()]
        host.run("tee", file, input="".join(lines))
        start = ["lxc-start", "-F", "-P", folder, "-n", name, "-f", file, "--", *argv]
        link = (network.bridge or network.parent) if network else "lo"
        # Its tools look for the bridge in /sys, which in a namespace of the rig is another host's.
        if host.call("read", path=f"/sys/class/net/{link}/ifindex"):
            return start
        enter = ["unshare", "--mount", "--propagation", "private"]
        return [*enter, *script(_OWN_SYSFS, f"{folder}/cgroup", *start)]

    def stop(self, instance: Instance) -> str:
        """End the container by its own engine first: its holder does not on TERM."""
        named = ("-P", instance.folder, "-n", instance.label)
        instance.target.host.run("lxc-stop", "-k", *named, check=False)
        return super().stop(instance)
