"""Which engines and networks a host can have, and why it cannot have the others."""

from __future__ import annotations

import re

from labkit.hosts import Host, script
from labkit.placement import NETWORKS
from labkit.runtimes import RUNTIMES

#: The option with which a daemon is told of gVisor.
ADD_RUNTIME = "runsc"

_LOOK = """
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
for program in "$@"; do command -v "$program" >/dev/null || echo "$program"; done
"""
# An old one asks whether its namespace is the machine's first by a file that only that one used to
# have; on newer kernels every namespace has it, and it refuses them all.
_ANOTHER_NAMESPACE = ("unshare", "--net", "test", "-e", "/proc/sys/net/core/rmem_default")
#: Releases of runsc before this year ask so, as far as is known here (seen in that of 2022-12-19).
_ASKS_ANEW = 2025
_RUNTIMES = ("docker", "info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}")


def missing(host: Host, socket: str | None) -> dict[str, str]:
    """Return the engines that a host lacks, as capabilities with their reason.

    Parameters
    ----------
    host : Host
        The system under test.
    socket : str or None
        Its Docker Engine.
    """
    programs = {
        name: one for name, one in RUNTIMES.items() if one.program and one.program != "docker"
    }
    absent = host.run(*script(_LOOK, *(one.program for one in programs.values()))).stdout.split()
    found = {
        f"runtime:{name}": f"{one.program} is not on the host; its package is {one.package}"
        for name, one in programs.items()
        if one.program in absent
    }
    if "runtime:gvisor" not in found and (why := _gvisor(host, socket)):
        found["runtime:gvisor"] = why
    return found


def _gvisor(host: Host, socket: str | None) -> str:
    """Return why containers cannot be started with this runsc, or have no network; "" otherwise."""
    told = host.run("runsc", "--version", check=False).stdout
    date = re.search(r"(20\d\d)\d{4}", told)
    everywhere = host.run(*_ANOTHER_NAMESPACE, check=False).status == 0
    if everywhere and date and int(date[1]) < _ASKS_ANEW:
        return (
            f"runsc of {date[0]} takes every network namespace of this kernel for the machine's; "
            "make setup-test builds a current one"
        )
    if socket:
        known = host.run(*_RUNTIMES, env={"DOCKER_HOST": socket}, check=False).stdout.split()
        if ADD_RUNTIME not in known:
            return "the Docker Engine was not told of the runtime runsc"
    return ""


def no_networks(reason: str) -> dict[str, str]:
    """Return every network that is laid on demand as missing for one reason."""
    always = ("host", "bridge", "nat")
    return {f"network:{name}": reason for name in NETWORKS if name not in always}
