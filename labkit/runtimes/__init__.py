"""Running workloads in placements: the engines, their life cycle, and its verification."""

from labkit.runtimes.base import Engine, Instance, Server, placed
from labkit.runtimes.docker import Docker
from labkit.runtimes.jobs import Bare
from labkit.runtimes.lxc import Lxc
from labkit.runtimes.rkt import Rkt

__all__ = ["RUNTIMES", "Engine", "Instance", "Server", "placed"]

#: Every engine by the name that placements have for it.
RUNTIMES: dict[str, Engine] = {"bare": Bare(), "docker": Docker(), "lxc": Lxc(), "rkt": Rkt()}
