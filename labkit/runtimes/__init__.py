"""Running workloads in placements: the engines, their life cycle, and its verification."""

from __future__ import annotations

from labkit.errors import UNPACKAGED
from labkit.hosts import Host, script
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
    wanted = {name: engine for name, engine in RUNTIMES.items() if not engine.needs}
    programs = [program for engine in wanted.values() for program in engine.programs]
    # The shell of a user may not look where the programs of root are.
    look = """PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
    for program; do command -v "$program" >/dev/null || echo "$program"; done"""
    absent = host.run(*script(look, *programs)).stdout.split()
    reasons = {}
    for name, engine in wanted.items():
        remedy = f"its package is {engine.package}" if engine.package else UNPACKAGED
        if missing := [program for program in engine.programs if program in absent]:
            reasons[f"runtime:{name}"] = f"{missing[0]} is not on the host; {remedy}"
    return reasons
