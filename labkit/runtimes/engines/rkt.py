"""rkt containers, if the host has its binary; the last release is of 2018.

Written from the documentation of rkt 1.30 (``rkt run`` and its networks), and never run.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from labkit.hosts import script
from labkit.hosts.target import Network, Target
from labkit.runtimes import networks
from labkit.runtimes.base import Instance, Started
from labkit.runtimes.daemonless import DaemonlessRuntime
from labkit.runtimes.engines.bare import LEAVE, join_argv
from labkit.runtimes.verify import Expectation

# An image of rkt is an archive of a manifest and a root file system, created once from the unpacked
# image. A network is a file in the container's configuration directory.
_RUN = """
rootfs=$1 folder=$2 manifest=$3 network=$4
shift 4
image=${rootfs%/rootfs}/image.aci
if [ ! -e "$image" ]; then
    made=$(mktemp -d)
    printf '%s' "$manifest" >"$made/manifest"
    tar -cf "$image.new" -C "$made" manifest -C "${rootfs%/rootfs}" rootfs
    rm -r "$made"
    mv "$image.new" "$image"
fi
mkdir -p "$folder/net.d"
[ -z "$network" ] || printf '%s' "$network" >"$folder/net.d/10-labkit.conf"
program=$1
shift
exec rkt --dir="$folder/data" --local-config="$folder" --insecure-options=image,paths,ondisk \\
    run $RKT_NET --uuid-file-save="$folder/uuid" "$image" --exec="$program" -- "$@"
"""
_CLEAR = """
[ ! -e "$1/uuid" ] || rkt --dir="$1/data" stop --force --uuid-file="$1/uuid"
[ ! -d "$1/data" ] || rkt --dir="$1/data" gc --grace-period=0s
rm -rf -- "$1"
"""


class Rkt(DaemonlessRuntime):
    """Starts pods by ``rkt run`` in the foreground of a job."""

    impossible: ClassVar[dict[str, str]] = networks.no_swarm(
        "rkt has no network of its own between hosts; Swarm's are Docker's"
    )
    program = "rkt"
    source = "packaged nowhere any more: put its binary on PATH"
    holder = "ld-linux"

    def hold(self, instance: Instance, command: Sequence[str]) -> list[str]:
        """Return the command, in a new control group, with the network's configuration."""
        target, network = instance.target, instance.network
        conf = json.dumps(_network(instance, network)) if network else ""
        program, folder = f"/usr/bin/{command[0]}", _folder(target, instance.label)
        values = (instance.rootfs, folder, json.dumps(_MANIFEST), conf, program)
        net = f"RKT_NET=--net={'labkit' if network else 'host'}"
        argv = ["env", net, *script(_RUN, *values, *command[1:])]
        group = f"{target.parent_group}/{instance.label}"
        return join_argv(group, instance.placement.limits, argv)

    def expect(self, instance: Instance, started: Started) -> Expectation:
        """Return what must be true on each network; rkt stores the image itself."""
        return replace(super().expect(instance, started), rootfs="")

    def clear(self, target: Target, label: str) -> None:
        """Stop the pod, and remove it and its control group."""
        target.host.run(*script(_CLEAR, _folder(target, label)), check=False, timeout=120)
        target.host.run(*script(LEAVE, f"{target.parent_group}/{label}"))


_MANIFEST = {
    "acKind": "ImageManifest",
    "acVersion": "0.8.11",
    "name": "labkit/image",
    "labels": [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}],
    "app": {"exec": ["/bin/true"], "user": "0", "group": "0"},
}


def _folder(target: Target, label: str) -> str:
    return f"{target.directory}/rkt/{label}"


def _network(instance: Instance, network: Network) -> dict[str, object]:
    """Return the configuration of a CNI network with a single address."""
    address = network.address(instance.target.place)
    routes = (
        {"routes": [{"dst": "0.0.0.0/0"}], "gateway": network.gateway} if network.gateway else {}
    )
    subnet = str(ipaddress.ip_network(network.subnet))
    ipam = {"type": "host-local", "subnet": subnet, "rangeStart": address, "rangeEnd": address}
    device: dict[str, object] = {"type": "bridge", "bridge": network.bridge}
    if instance.placement.network == "macvlan":
        device = {"type": "macvlan", "master": network.parent, "mode": "bridge"}
    return {"name": "labkit", **device, "ipam": ipam | routes}
