"""Engines: one file each. `RUNTIMES` is the whole list; there is no search for plug-ins."""

from labkit.runtimes.bare import Bare
from labkit.runtimes.base import Runtime, Server, placed
from labkit.runtimes.docker import Docker

RUNTIMES: dict[str, type[Runtime]] = {"bare": Bare, "docker": Docker}

__all__ = ["RUNTIMES", "Bare", "Docker", "Runtime", "Server", "placed"]
