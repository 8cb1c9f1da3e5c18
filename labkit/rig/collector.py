"""A host that only listens, for as long as a study asks for it: the switch mirrors a port to it.

On the virtual rig the mirror is a filter on the switch's side of a host's link, so that what
arrives at that host and what leaves it is seen once each. Its own link leads nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.hosts import LocalHost, script
from labkit.hosts.site import Site
from labkit.rig import ending, netns

if TYPE_CHECKING:
    from labkit.rig.base import Rig

ROLE = "collector"
#: Label of its processes.
LABEL = "labkit-collector"

# Both directions of each port, in the order in which the switch has them. u32 is a filter that
# every kernel has.
_MIRROR = """
target=$1
shift
for port in "$@"; do
    tc qdisc add dev "$port" clsact
    for way in ingress egress; do
        tc filter add dev "$port" "$way" protocol all u32 match u32 0 0 \\
            action mirred egress mirror dev "$target"
    done
done
"""
_NO_MIRROR = """
for port in "$@"; do tc qdisc del dev "$port" clsact 2>/dev/null || true; done
"""
_SWITCH = ("nsenter", f"--net=/run/netns/{netns.SWITCH}")


@contextmanager
def beside(rig: Rig, roles: Sequence[str]) -> Iterator[None]:
    """Have the collector in the rig; ports of roles are mirrored to it while something captures."""
    local = LocalHost()
    before = replace(rig)
    remove(local)
    try:
        netns.make_host(local, ROLE)
        netns.start_sshd(local, ROLE, LABEL)
        # Its link leads nowhere but from the mirror.
        local.run("ip", "-n", netns.SWITCH, "link", "set", netns.plug(ROLE), "nomaster")
        with closing(netns.connect(ROLE)) as host:
            rig.hosts = {**rig.hosts, ROLE: host}
            site = Site(host, netns.address(ROLE), directory=str(netns.DIRECTORY / "jobs"))
            rig.sites = {**rig.sites, ROLE: site}
            rig.interfaces = {**rig.interfaces, ROLE: ("lab0",)}
            # No lab address, as nothing is sent to it; what captures runs where the harness does.
            rig.cpu_map = {**rig.cpu_map, ROLE: rig.cpu_map["harness"]}
            rig.mirrored = {**rig.mirrored, ROLE: tuple(roles)}
            rig.mirror = partial(_mirrored, local, roles)
            yield
    finally:
        for name in ("hosts", "sites", "interfaces", "cpu_map", "mirrored", "mirror"):
            setattr(rig, name, getattr(before, name))
        remove(local)


@contextmanager
def _mirrored(local: LocalHost, roles: Sequence[str]) -> Iterator[None]:
    """Mirror the ports of roles: every packet pays for it, so not while nothing captures."""
    ports = [netns.plug(role, n) for role in roles for n in range(len(netns.PORTS[role]))]
    try:
        local.run(*_SWITCH, *script(_MIRROR, netns.plug(ROLE), *ports))
        yield
    finally:
        local.run(*_SWITCH, *script(_NO_MIRROR, *ports))


def remove(local: LocalHost) -> list[str]:
    """Take the collector down, also what a killed campaign left of it; return it in words."""
    # The mirror first: to a port that is gone, it would go on costing every packet a look.
    if Path("/run/netns", netns.SWITCH).exists():
        ends = [netns.plug(one, n) for one, ports in netns.PORTS.items() for n in range(len(ports))]
        local.run(*_SWITCH, *script(_NO_MIRROR, *ends))
    if not Path(netns.namespace(ROLE)).exists():
        return []
    ending.remove_host(local, ROLE, LABEL)
    return ["the collector"]
