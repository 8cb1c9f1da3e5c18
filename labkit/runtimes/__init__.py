"""Running workloads in placements: the engines, their life cycle, and its verification."""

from __future__ import annotations

import importlib
import pkgutil

from labkit.hosts import Host, script
from labkit.runtimes import engines
from labkit.runtimes.base import Instance, Runtime, Server, placed

__all__ = ["RUNTIMES", "Instance", "Runtime", "Server", "placed", "unavailable"]

_MISSING = """
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
for program in "$@"; do command -v "$program" >/dev/null || echo "$program"; done
"""


def _runtime(name: str) -> type[Runtime]:
    """Return the runtime that a module of `labkit.runtimes.engines` defines."""
    module = importlib.import_module(f"{engines.__name__}.{name}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Runtime)
        and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise ImportError(f"{module.__name__} must define one class derived from Runtime")
    return classes[0]


#: Every runtime by the name of its file.
RUNTIMES: dict[str, type[Runtime]] = {
    module.name: _runtime(module.name) for module in pkgutil.iter_modules(engines.__path__)
}


def unavailable(host: Host) -> dict[str, str]:
    """Return the capabilities ``runtime:NAME`` that a host lacks, with the reason.

    Docker is not among them: whether it runs is the rig's own capability ``docker``.
    """
    candidates = {
        name: runtime
        for name, runtime in RUNTIMES.items()
        if runtime.program and runtime.program not in runtime.needs
    }
    programs = [runtime.program for runtime in candidates.values()]
    absent = host.run(*script(_MISSING, *programs)).stdout.split()
    reasons = {}
    for name, runtime in candidates.items():
        if runtime.program in absent:
            remedy = runtime.source or f"its package is {runtime.package}"
            reasons[f"runtime:{name}"] = f"{runtime.program} is not on the host; {remedy}"
        elif reason := runtime.unusable(host):
            reasons[f"runtime:{name}"] = reason
    return reasons
