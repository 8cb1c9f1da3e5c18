"""Pods of rkt, which mounts unused controllers of version 1 where control groups are mixed."""

import json
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

from labkit.errors import UNPACKAGED
from labkit.runtimes.base import Facts, Instance
from labkit.runtimes.jobs import Jobs, in_group

#: Placements that start at the same time store their image once.
_STORING = threading.Lock()
#: rkt's own filter is a list of what was allowed in 2016, under which no current libc starts: what
#: it forbids by name is what Docker forbids.
_SECCOMP = {"name": "os/linux/seccomp-remove-set", "value": {"set": ["@rkt/default-blacklist"]}}
_MANIFEST = {
    "acKind": "ImageManifest",
    "acVersion": "0.8.11",
    "name": "labkit/image",
    "labels": [{"name": "os", "value": "linux"}, {"name": "arch", "value": "amd64"}],
    "app": {"exec": ["/bin/true"], "user": "0", "group": "0", "isolators": [_SECCOMP]},
}


class Rkt(Jobs):
    """Starts pods by ``rkt run``."""

    programs: ClassVar = {"rkt": UNPACKAGED, "systemd-nspawn": "its package is systemd-container"}
    holder = "systemd-nspawn"

    def command(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        """Store the image, which takes seconds once, and return the command in a control group."""
        host, folder, network = instance.target.host, instance.folder, instance.network
        image = stored(instance)[0]
        name = f"labkit-{instance.label}" if network else "host"
        host.run("mkdir", "-p", f"{folder}/net.d")
        if network:  # of CNI, with a single address
            address = network.address(instance.target.place)
            ipam: dict[str, Any] = {"type": "host-local", "subnet": network.subnet}
            ipam |= {"rangeStart": address, "rangeEnd": address}
            if network.gateway:
                ipam |= {"routes": [{"dst": "0.0.0.0/0"}], "gateway": network.gateway}
            device = {"type": "bridge", "bridge": network.bridge}
            if network.parent:
                device = {"type": "macvlan", "master": network.parent, "mode": "bridge"}
            conf = json.dumps({"name": name, **device, "ipam": ipam})
            host.run("tee", f"{folder}/net.d/10-labkit.conf", input=conf)
        words = _rkt(instance, f"--local-config={folder}", "--insecure-options=image,paths,ondisk")
        words += ["run", f"--net={name}", f"--uuid-file-save={folder}/uuid", "--dns=none"]
        words += ["--hostname=labkit", image, f"--exec=/usr/bin/{argv[0]}", "--", *argv[1:]]
        return in_group(instance, words)

    def start(self, instance: Instance) -> tuple[int, str]:
        """Start it, with the hardware address that others know: rkt tells them of no other."""
        started = super().start(instance)
        if network := instance.network:
            words = ("address", network.hardware(instance.target.place))
            inside = ("nsenter", "-t", str(started[0]), "-n")
            instance.target.host.run(*inside, "ip", "link", "set", "eth0", *words)
        return started

    def expect(self, instance: Instance, container: str) -> Facts:
        return {**super().expect(instance, container), "layer over": stored(instance)[1]}

    def stop(self, instance: Instance) -> str:
        """Stop the pod first, as the job's own end would leave what systemd-nspawn started."""
        host = instance.target.host
        if pod := host.call("read", path=f"{instance.folder}/uuid"):
            host.run(*_rkt(instance), "stop", "--force", pod, check=False)
        log = super().stop(instance)
        left = [f"/var/lib/cni/networks/labkit-{instance.label}"]
        if pod:
            host.run(*_rkt(instance), "rm", pod, check=False)
            # Where /run is on a disk, systemd-nspawn leaves this.
            left += [f"/run/systemd/nspawn/propagate/rkt-{pod}"]
        host.run("rm", "-rf", "--", *left)
        return log


def stored(instance: Instance) -> tuple[str, str]:
    """Return the image's name in rkt's store, made once, and the directory of its files there."""
    host, store = instance.target.host, _store(instance)
    with _STORING:
        if known := host.call("read", path=f"{store}/image").splitlines():
            return known[0], known[1]
        made, rkt = f"{store}/made", _rkt(instance, "--insecure-options=image,ondisk")
        host.run("mkdir", "-p", made)
        host.run("tee", f"{made}/manifest", input=json.dumps(_MANIFEST))
        folders = ("-C", made, "manifest", "-C", store.removesuffix("/rkt"), "rootfs")
        # rkt reads what an image holds, and /dev/zero has no end.
        host.run("tar", "-cf", f"{made}/aci", "--exclude=rootfs/dev/*", *folders, timeout=600)
        image = host.run(*rkt, "fetch", "--full", f"{made}/aci", timeout=600).stdout.split()[-1]
        pod = host.run(*rkt, "prepare", "--quiet", image, timeout=600).stdout.strip()
        apps = f"{store}/data/pods/prepared/{pod}/appsinfo"
        tree = host.run("find", apps, "-name", "treeStoreID", "-exec", "cat", "{}", "+").stdout
        host.run(*rkt, "rm", pod)
        found = image, f"{store}/data/cas/tree/{tree.strip()}/rootfs"
        host.run("tee", f"{made}/image", input="\n".join(found))
        host.run("mv", f"{made}/image", f"{store}/image")
        host.run("rm", "-rf", "--", made)
        return found


def _store(instance: Instance) -> str:
    return f"{instance.image.rootfs.removesuffix('/rootfs')}/rkt"


def _rkt(instance: Instance, *options: str) -> list[str]:
    return ["rkt", f"--dir={_store(instance)}/data", *options]
