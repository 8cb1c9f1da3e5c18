"""systemd-nspawn containers, on a host that need not run systemd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.hosts import script
from labkit.hosts.target import Target
from labkit.runtimes import networks
from labkit.runtimes.base import Instance
from labkit.runtimes.daemonless import DaemonlessRuntime
from labkit.runtimes.engines.bare import LEAVE, join_argv

# systemd-nspawn gives a container an interface, but no address.
_ATTACH = """
enter="nsenter -t $1 -n"
# Its own option for a macvlan interface asks udev, which knows no interface of a namespace.
[ -z "$5" ] || ip link add macvlan0 link "$5" netns "$1" type macvlan mode bridge
device=${5:+macvlan0}
device=${device:-host0}
$enter ip link set "$device" address "$2"
$enter ip addr add "$3" dev "$device"
$enter ip link set "$device" up
if [ -n "$4" ]; then $enter ip route add default via "$4"; fi
"""


class Nspawn(DaemonlessRuntime):
    """Starts containers by ``systemd-nspawn`` in the foreground of a job."""

    impossible: ClassVar[dict[str, str]] = networks.no_swarm(
        "systemd-nspawn has no network between hosts; Swarm's are Docker's"
    )
    program = "systemd-nspawn"
    package = "systemd-container"
    holder = "systemd-nspawn"

    def hold(self, instance: Instance, command: Sequence[str]) -> list[str]:
        """Return the command, in a new control group: without systemd, it creates none."""
        target, network = instance.target, instance.network
        options = ["--quiet", "--register=no", "--keep-unit", "--console=pipe"]
        options += [f"--directory={instance.rootfs}", f"--machine=labkit{target.place}"]
        options += ["--resolv-conf=off", "--timezone=off", "--link-journal=no"]
        if network and instance.placement.network == "macvlan":
            options += ["--private-network"]
        elif network:
            options += [f"--network-bridge={network.bridge}"]
        # Changes are kept in memory, over the shared root file system.
        options += ["--volatile=overlay"]
        # Without this, only one container could use the root file system.
        lock = ["env", "SYSTEMD_NSPAWN_LOCK=0"]
        argv = [*lock, "systemd-nspawn", *options, "--", *command]
        return join_argv(instance, argv)

    def attach(self, instance: Instance, pid: int) -> None:
        """Assign the addresses to its interface, and bring it up."""
        target, network = instance.target, instance.network
        if network:
            address = f"{network.address(target.place)}/{network.prefix}"
            values = (network.hardware(target.place), address, network.gateway, network.parent)
            target.host.run(*script(_ATTACH, str(pid), *values))

    def clear(self, target: Target, label: str) -> None:
        """Remove its control group."""
        target.host.run(*script(LEAVE, f"{target.parent_group}/{label}"))
