"""A second engine and a capture host among the machines of an inventory, where a study asks.

Both are what their owner has set up: an engine that runs, and a switch that mirrors ports to the
capture host all the time. That the mirror shows both ways is tried out before anything is planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from labkit.errors import UsageError
from labkit.hosts import script, start_job
from labkit.hosts.site import Image, Site
from labkit.paths import project
from labkit.rig import collector, engine, peer

if TYPE_CHECKING:
    from labkit.rig.base import Rig

#: Nobody listens there (discard); a mirror shows what is sent to it all the same.
_PORT = "9"
# Waits until the program listens, or until it has shown every way; the ways are patterns.
_AWAIT = """
file=$1 tries=0
shift
while [ "$tries" -lt 250 ]; do
    seen=yes
    for way in "$@"; do grep -q "$way" "$file" 2>/dev/null || seen=; done
    [ -z "$seen" ] || exit 0
    tries=$((tries + 1))
    sleep 0.02
done
cat "${file%/*}/stderr" >&2
exit 1
"""


def images(site: Site, store: str, names: Sequence[str]) -> dict[str, Image]:
    """Return images of ``containers/``, each built on a site's engine where it is not there yet."""
    found = {}
    for name in names:
        folder = project("containers") / name
        if not (folder / "Dockerfile").is_file():
            raise UsageError(f"no image {name!r}", remedy="name a folder of containers/")
        options = {"store": store, "parent": site.cgroup_parent}
        found[name] = engine.ensure_image(site.host, str(site.engine), folder, **options)
    return found


@contextmanager
def second(site: Site, store: str, rig: Rig, wanted: Sequence[str]) -> Iterator[None]:
    """Have the peer's place in the rig, with images, for the duration of a ``with`` block."""
    before = rig.sites
    rig.sites = {**before, peer.ROLE: replace(site, images=images(site, store, wanted))}
    try:
        yield
    finally:
        rig.sites = before


@contextmanager
def listening(site: Site, mirrors: Sequence[str], rig: Rig, roles: Sequence[str]) -> Iterator[None]:
    """Have the collector's place in the rig, or else the reason why it is of no use."""
    sites, missing, mirrored = rig.sites, rig.missing, rig.mirrored
    astray = [role for role in roles if role not in mirrors]
    reason = (
        f"rig.toml does not say that the switch mirrors the port of {astray[0]} to the collector: "
        f'mirrors = ["{astray[0]}"] in [hosts.collector]'
        if astray
        else _unseen(rig, site, roles)
    )
    if reason:
        rig.missing = {**missing, collector.ROLE: reason}
    else:
        rig.sites = {**sites, collector.ROLE: site}
        rig.mirrored = {**mirrored, collector.ROLE: tuple(roles)}
    try:
        yield
    finally:
        rig.sites, rig.missing, rig.mirrored = sites, missing, mirrored


def _unseen(rig: Rig, site: Site, roles: Sequence[str]) -> str:
    """Return what the mirror does not show of roles' traffic; "" where it shows both ways."""
    interface, directory = rig.interfaces[collector.ROLE][0], f"{site.directory}/trial-mirror"
    argv = ["tcpdump", "-l", "-nn", "-i", interface, f"udp dst port {_PORT}"]
    job = start_job(site.host, argv, directory=directory, label="trial-mirror")
    try:
        ready = script(_AWAIT, f"{directory}/stderr", "listening on")
        heard = site.host.run(*ready, check=False)
        if heard.status != 0:
            return f"tcpdump does not listen on the collector: {heard.stderr.strip()[-200:]}"
        for role in roles:
            other = "generator" if role != "generator" else "sut"
            for source, target in ((role, other), (other, role)):
                if reason := _sent(rig, site, directory, source, target):
                    return reason
        return ""
    finally:
        job.stop()
        site.host.run("rm", "-rf", "--", directory)


def _sent(rig: Rig, site: Site, directory: str, source: str, target: str) -> str:
    here, there = rig.addresses[source][0], rig.addresses[target][0]
    load = ("sockperf", "throughput", "-i", there, "-p", _PORT, "-t", "1", "--mps", "20")
    sent = rig.hosts[source].run(*load, check=False)
    way = rf"IP {here}\.[0-9]* > {there}\.{_PORT}: "
    seen = site.host.run(*script(_AWAIT, f"{directory}/stdout", way), check=False)
    if seen.status == 0:
        return ""
    why = "" if sent.status == 0 else f" ({sent.stderr.strip()[-200:] or 'sockperf failed'})"
    return f"the collector does not see what {source} sends to {target}{why}: is the mirror on?"
