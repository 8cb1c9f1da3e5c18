"""Running workloads in placements: the engines, their life cycle, and its verification."""

from __future__ import annotations

from labkit.hosts import Host
from labkit.runtimes.bare import Bare
from labkit.runtimes.base import Engine, Instance, Server, placed
from labkit.runtimes.docker import Docker
from labkit.runtimes.lxc import Lxc
from labkit.runtimes.rkt import Rkt

__all__ = ["RUNTIMES", "Engine", "Instance", "Server", "placed", "unavailable"]

#: Every engine by the name that placements have for it.
RUNTIMES: dict[str, Engine] = {
    "bare": Bare(),
    "docker": Docker(),
    "lxc": Lxc(),
    "rkt": Rkt(),
}


def unavailable(host: Host) -> dict[str, str]:
    """Return the capabilities ``runtime:NAME`` that a host lacks, with the reason.

    Docker is not among them: whether it runs is the rig's own capability ``docker``.
    """
    reasons = {}
    for name, engine in RUNTIMES.items():
        if not engine.program or engine.program in engine.needs:
            continue
        # The shell of a user may not look where the programs of root are.
        look = 'PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; command -v "$0"'
        found = host.run("sh", "-c", look, engine.program, check=False).status == 0
        remedy = engine.source or f"its package is {engine.package}"
        reason = f"{engine.program} is not on the host; {remedy}"
        if reason := engine.unusable(host) if found else reason:
            reasons[f"runtime:{name}"] = reason
    return reasons
