"""What a host can have: programs, namespaces, and networks, which are tried in a namespace."""

from __future__ import annotations

import os
import shutil

from labkit.errors import UNPACKAGED
from labkit.hosts import Host, LocalHost, script
from labkit.rig.lock import is_root

#: What a network needs of the kernel: the probe, and how a message names what it tries.
_NEEDS = {
    "macvlan": {"macvlan": "macvlan devices"},
    "overlay": {"vxlan": "VXLAN devices"},
}

_NO_WEAVE = f"Weave Net's router, weaver, is not on the host; {UNPACKAGED}"

# Nothing is sent: the namespace has no link to another, and ends with the script.
_PROBE = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
try() {
    name=$1
    shift
    if error=$("$@" 2>&1); then echo "$name yes"; else echo "$name no" $error; fi
}
ip link add lkt0 type veth peer name lkt1
try macvlan ip link add lkt2 link lkt0 type macvlan mode bridge
try vxlan ip link add lkt3 type vxlan id 1 local 127.0.0.1 dstport 4789
"""

_HAS = 'PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; command -v "$1"'


def find_tool(name: str) -> str | None:
    """Return the path of a program, also in the directories of root's PATH."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    return shutil.which(name, path=path)


def no_namespaces() -> str:
    """Return why this process cannot create network namespaces, or "".

    Root in a container may lack the right to. A named namespace is a mount, hence both options.
    """
    if not is_root():
        return "this is not root"
    result = LocalHost().run("unshare", "--net", "--mount", "true", check=False)
    if result.status == 0:
        return ""
    error = result.stderr.strip()[-200:] or f"unshare ended with status {result.status}"
    return f"this is root without the right to make network namespaces ({error})"


def missing_networks(host: Host | None = None) -> dict[str, str]:
    """Return the networks that a host cannot have, as capabilities with the reason.

    Only root can try.
    """
    host = host or LocalHost()
    answers = host.run("unshare", "--net", *script(_PROBE), check=False).stdout
    has_weave = host.run(*script(_HAS, "weaver"), check=False).status == 0
    return parse_missing_networks(answers) | ({} if has_weave else {"network:weave": _NO_WEAVE})


def parse_missing_networks(text: str) -> dict[str, str]:
    """Return the networks that the answers of the probe exclude, each with the reason."""
    errors = {}
    for line in text.splitlines():
        name, _, answer = line.partition(" ")
        if answer.startswith("no"):
            errors[name] = answer.removeprefix("no").strip()
    return {
        f"network:{network}": f"the kernel has no {what}"
        + (f" ({errors[probe]})" if errors[probe] else "")
        for network, probes in _NEEDS.items()
        for probe, what in reversed(probes.items())
        if probe in errors
    }
