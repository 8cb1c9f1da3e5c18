"""Running workloads in placements: the engines, their life cycle, and its verification."""

from __future__ import annotations

from labkit.hosts import Host, script
from labkit.runtimes.bare import Bare
from labkit.runtimes.base import Engine, Instance, Server, placed
from labkit.runtimes.docker import Docker
from labkit.runtimes.lxc import Lxc
from labkit.runtimes.rkt import Rkt

__all__ = ["RUNTIMES", "Engine", "Instance", "Server", "placed", "unavailable"]

#: Every engine by the name that placements have for it.
RUNTIMES: dict[str, Engine] = {"bare": Bare(), "docker": Docker(), "lxc": Lxc(), "rkt": Rkt()}
#: Prints the programs that are not there; the shell of a user may not look where root's are.
_ABSENT = """PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
for program; do command -v "$program" >/dev/null || echo "$program"; done"""


def unavailable(host: Host) -> dict[str, str]:
    """Return the capabilities ``runtime:NAME`` that a host lacks, with the reason.

    Docker is not among them: whether it runs is the rig's own capability ``docker``.
    """
    programs = [program for engine in RUNTIMES.values() for program in engine.programs]
    absent = host.run(*script(_ABSENT, *programs)).stdout.split()
    return {
        f"runtime:{name}": f"{program} is not on the host; {remedy}"
        for name, engine in RUNTIMES.items()
        for program, remedy in engine.programs.items()
        if program in absent
    }
