"""Pods of rkt, whose development ended in 2020, with systemd of the host as their first stage.

As its project left it, rkt mounts unused controllers of version 1 as new hierarchies of the whole
machine where control groups of versions 1 and 2 are mixed (data/README.md: the local changes).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from labkit.errors import UNPACKAGED
from labkit.hosts import Host, script
from labkit.hosts.target import Network, Target
from labkit.runtimes import networks
from labkit.runtimes.base import Instance, Started
from labkit.runtimes.daemonless import DaemonlessRuntime
from labkit.runtimes.engines.bare import LEAVE, join_argv
from labkit.runtimes.verify import Expectation

# An image of rkt is an archive of a manifest and a root file system. It is made, stored and
# unpacked once, beside the unpacked image: pods share it. Device nodes are left out, as rkt reads
# what an image holds, and /dev/zero has no end.
_STORE = """
store=$1 rootfs=$2 manifest=$3
mkdir -p "$store"
exec 9>"$store/lock"
flock 9
[ ! -e "$store/image" ] || { cat "$store/image"; exit 0; }
made=$(mktemp -d -p "$store")
trap 'rm -rf "$made"' EXIT
printf '%s' "$manifest" >"$made/manifest"
tar -cf "$made/image.aci" --exclude='rootfs/dev/*' \\
    -C "$made" manifest -C "${rootfs%/rootfs}" rootfs
rkt() { command rkt --dir="$store/data" --insecure-options=image,ondisk "$@"; }
id=$(rkt fetch --full "$made/image.aci" | tail -n 1)
pod=$(rkt prepare --quiet "$id")
tree=$(cat "$store/data/pods/prepared/$pod/appsinfo"/*/treeStoreID)
rkt rm "$pod" >&2
printf '%s\\n' "$id" "$store/data/cas/tree/$tree/rootfs" >"$store/image.new"
mv "$store/image.new" "$store/image"
cat "$store/image"
"""
_RUN = """
store=$1 folder=$2 network=$3 name=$4 image=$5
shift 5
mkdir -p "$folder/net.d"
[ -z "$network" ] || printf '%s' "$network" >"$folder/net.d/10-labkit.conf"
program=$1
shift
exec rkt --dir="$store/data" --local-config="$folder" --insecure-options=image,paths,ondisk \\
    run --net="$name" --uuid-file-save="$folder/uuid" --dns=none --hostname=labkit \\
    "$image" --exec="$program" -- "$@"
"""
# rkt gives an interface another hardware address each time, and says nothing of it to others.
_ATTACH = 'nsenter -t "$1" -n ip link set eth0 address "$2"'
_END = """
store=$1 folder=$2
[ ! -e "$folder/uuid" ] || rkt --dir="$store/data" stop --force --uuid-file="$folder/uuid"
"""
# What a pod leaves is removed by its host's own rkt, in whose network namespace its interfaces are.
_CLEAR = """
store=$1 folder=$2 name=$3
[ ! -e "$folder/uuid" ] || rkt --dir="$store/data" rm --uuid-file="$folder/uuid"
# Where /run is on a disk, systemd-nspawn leaves this.
[ ! -e "$folder/uuid" ] || rm -rf -- "/run/systemd/nspawn/propagate/rkt-$(cat "$folder/uuid")"
rm -rf -- "/var/lib/cni/networks/$name"
"""


class Rkt(DaemonlessRuntime):
    """Starts pods by ``rkt run`` in the foreground of a job."""

    impossible: ClassVar[dict[str, str]] = networks.no_swarm(
        "rkt has no network of its own between hosts; Swarm's are Docker's"
    )
    program = "rkt"
    source = UNPACKAGED
    holder = "systemd-nspawn"

    def __init__(self) -> None:
        super().__init__()
        #: Of each pod: the store, its image there, and the directory of its root file system.
        self._stores: dict[str, tuple[str, str, str]] = {}

    @classmethod
    def unusable(cls, host: Host) -> str:
        """Return why it cannot start pods: it runs them by systemd-nspawn."""
        found = host.run("sh", "-c", "command -v systemd-nspawn", check=False).status == 0
        missing = "systemd-nspawn, which rkt runs pods by, is not on the host"
        return "" if found else f"{missing}; its package is systemd-container"

    def start(self, instance: Instance) -> Started:
        """Store the image, which takes seconds once, and start the pod."""
        store = f"{instance.rootfs.removesuffix('/rootfs')}/rkt"
        values = (store, instance.rootfs, json.dumps(_MANIFEST))
        stored = instance.target.host.run(*script(_STORE, *values), timeout=600)
        image, _, tree = stored.stdout.strip().partition("\n")
        self._stores[instance.label] = store, image, tree
        return super().start(instance)

    def hold(self, instance: Instance, command: Sequence[str]) -> list[str]:
        """Return the command, in a new control group, with the network's configuration."""
        target, label, network = instance.target, instance.label, instance.network
        name = f"labkit-{label}" if network else "host"
        conf = json.dumps(_network(instance, network, name)) if network else ""
        store, image, _ = self._stores[label]
        values = (store, _folder(target, label), conf, name, image)
        argv = list(script(_RUN, *values, f"/usr/bin/{command[0]}", *command[1:]))
        return join_argv(instance, argv)

    def attach(self, instance: Instance, pid: int) -> None:
        """Give its interface the hardware address that the others know."""
        target, network = instance.target, instance.network
        if network:
            target.host.run(*script(_ATTACH, str(pid), network.hardware(target.place)))

    def expect(self, instance: Instance, started: Started) -> Expectation:
        """Return what must be true on each network; rkt has its own copy of the image."""
        tree = self._stores[instance.label][2]
        return replace(super().expect(instance, started), rootfs=tree)

    def end(self, target: Target, label: str) -> None:
        """Stop the pod: the job's own end would leave what systemd-nspawn started."""
        values = (self._stores[label][0], _folder(target, label))
        target.host.run(*script(_END, *values), check=False, timeout=60)

    def clear(self, target: Target, label: str) -> None:
        """Remove the pod and its control group."""
        values = (self._stores[label][0], _folder(target, label), f"labkit-{label}")
        target.host.run(*script(_CLEAR, *values), check=False, timeout=60)
        target.host.run(*script(LEAVE, f"{target.parent_group}/{label}"))


#: rkt's own filter is a list of what was allowed in 2016, under which no current libc starts: what
#: it forbids by name is what Docker forbids.
_MANIFEST = {
    "acKind": "ImageManifest",
    "acVersion": "0.8.11",
    "name": "labkit/image",
    "labels": [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}],
    "app": {
        "exec": ["/bin/true"],
        "user": "0",
        "group": "0",
        "isolators": [
            {"name": "os/linux/seccomp-remove-set", "value": {"set": ["@rkt/default-blacklist"]}}
        ],
    },
}


def _folder(target: Target, label: str) -> str:
    return f"{target.directory}/{label}/rkt"


def _network(instance: Instance, network: Network, name: str) -> dict[str, object]:
    """Return the configuration of a CNI network with a single address."""
    address = network.address(instance.target.place)
    routes = (
        {"routes": [{"dst": "0.0.0.0/0"}], "gateway": network.gateway} if network.gateway else {}
    )
    ipam = {"type": "host-local", "subnet": network.subnet}
    ipam |= {"rangeStart": address, "rangeEnd": address}
    device: dict[str, object] = {"type": "bridge", "bridge": network.bridge}
    if instance.placement.network == "macvlan":
        device = {"type": "macvlan", "master": network.parent, "mode": "bridge"}
    return {"name": name, **device, "ipam": ipam | routes}
