"""systemd-nspawn containers, without systemd: each is held by its own program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from labkit.hosts import script
from labkit.hosts.target import Network, Target
from labkit.placement import Placement
from labkit.runtimes import networks
from labkit.runtimes.daemonless import DaemonlessRuntime
from labkit.runtimes.engines.bare import LEAVE, join_argv

# It gives a container an interface and no address: that is for what runs inside, or for us.
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

    def hold(
        self,
        target: Target,
        placement: Placement,
        rootfs: str,
        network: Network | None,
        command: Sequence[str],
        label: str,
    ) -> list[str]:
        """Return the command, in a control group of labkit's: without systemd it makes none."""
        options = ["--quiet", "--register=no", "--keep-unit", "--console=pipe"]
        options += [f"--directory={rootfs}", f"--machine=labkit{target.place}"]
        options += ["--resolv-conf=off", "--timezone=off", "--link-journal=no"]
        if network and placement.network == "macvlan":
            options += ["--private-network"]
        elif network:
            options += [f"--network-bridge={network.bridge}"]
        # What it writes is in memory, over the root file system that others have too.
        options += ["--volatile=overlay"]
        # Its lock would let one container alone have the root file system.
        lock = ["env", "SYSTEMD_NSPAWN_LOCK=0"]
        argv = [*lock, "systemd-nspawn", *options, "--", *command]
        return join_argv(f"{target.parent_group}/{label}", placement.limits, argv)

    def attach(self, target: Target, network: Network, pid: int) -> None:
        """Give its interface the placement's addresses, and bring it up."""
        own = f"{network.address(target.place)}/{network.prefix}"
        values = (str(pid), network.hardware(target.place), own, network.gateway, network.parent)
        target.host.run(*script(_ATTACH, *values))

    def clear(self, target: Target, label: str) -> None:
        """End what is left in its control group, and remove that."""
        group = f"{target.parent_group}/{label}"
        target.host.run(*script(LEAVE, group))
