"""Engines: one file each. `RUNTIMES` is the whole list; there is no search for plug-ins."""

from labkit.runtimes.bare import Bare
from labkit.runtimes.base import Runtime, Server, placed
from labkit.runtimes.docker import Docker
from labkit.runtimes.gvisor import GVisor
from labkit.runtimes.lxc import Lxc
from labkit.runtimes.nspawn import Nspawn
from labkit.runtimes.podman import Podman
from labkit.runtimes.rkt import Rkt

RUNTIMES: dict[str, type[Runtime]] = {
    "bare": Bare,
    "docker": Docker,
    "gvisor": GVisor,
    "podman": Podman,
    "lxc": Lxc,
    "nspawn": Nspawn,
    "rkt": Rkt,
}

__all__ = ["RUNTIMES", "Bare", "Docker", "Runtime", "Server", "placed"]
