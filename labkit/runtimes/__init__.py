"""Running workloads in placements: the engines, their life cycle, and its verification."""

from __future__ import annotations

from collections.abc import Collection

from labkit.runtimes.base import Engine, Instance, Server, placed
from labkit.runtimes.docker import Docker
from labkit.runtimes.jobs import Bare
from labkit.runtimes.lxc import Lxc
from labkit.runtimes.rkt import Rkt

__all__ = ["RUNTIMES", "Engine", "Instance", "Server", "placed", "unavailable"]

#: Every engine by the name that placements have for it.
RUNTIMES: dict[str, Engine] = {"bare": Bare(), "docker": Docker(), "lxc": Lxc(), "rkt": Rkt()}


def unavailable(absent: Collection[str]) -> dict[str, str]:
    """Return the capabilities ``runtime:NAME`` that a host lacks by its absent programs.

    Docker is not among them: whether it runs is the rig's own capability ``docker``.
    """
    return {
        f"runtime:{name}": f"{program} is not on the host; {remedy}"
        for name, engine in RUNTIMES.items()
        for program, remedy in engine.programs.items()
        if program in absent
    }
