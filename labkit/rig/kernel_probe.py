"""Which engines and networks a host can have, and why it cannot have the others.

Networks are tried in a temporary namespace.
"""

from __future__ import annotations

from labkit.hosts import Host, LocalHost, script
from labkit.placement import NETWORKS
from labkit.rig.lock import is_root

#: What a network stands on, each with what the kernel lacks where it cannot be made.
_NEEDS = {
    "macvlan": {"macvlan": "macvlan devices"},
    "vxlan": {"vxlan": "VXLAN devices"},
    "overlay": {"vxlan": "VXLAN devices"},
    "encrypted": {"vxlan": "VXLAN devices", "esp": "IPsec with AES-GCM, which Swarm encrypts by"},
}

# Nothing is sent: the namespace has no link to anywhere, and ends with the script.
_TRY = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
tried() {
    name=$1
    shift
    if said=$("$@" 2>&1); then echo "$name yes"; else echo "$name no" $said; fi
}
ip link add lkt0 type veth peer name lkt1
tried macvlan ip link add lkt2 link lkt0 type macvlan mode bridge
tried vxlan ip link add lkt3 type vxlan id 1 local 127.0.0.1 dstport 4789
key=0x000102030405060708090a0b0c0d0e0f10111213
tried esp ip xfrm state add src 198.18.0.1 dst 198.18.0.2 proto esp spi 256 \
    mode transport aead 'rfc4106(gcm(aes))' $key 64
"""

_PLUGINS = ("docker", "info", "--format", "{{range .Plugins.Network}}{{.}} {{end}}")


def no_namespaces() -> str:
    """Return why this process cannot make network namespaces here, or an empty string.

    Root is not enough: in a container it may lack the right to, so it is tried. A namespace that
    has a name is a mount, hence both.
    """
    if not is_root():
        return "this is not root"
    tried = LocalHost().run("unshare", "--net", "--mount", "true", check=False)
    if tried.status == 0:
        return ""
    said = tried.stderr.strip()[-200:] or f"unshare ended with status {tried.status}"
    return f"this is root without the right to make network namespaces ({said})"


def missing_networks(host: Host | None = None, socket: str | None = None) -> dict[str, str]:
    """Return the networks that a machine cannot have, as capabilities with their reason.

    Root alone can ask the kernel.
    """
    host = host or LocalHost()
    found = parse_missing_networks(host.run("unshare", "--net", *script(_TRY), check=False).stdout)
    env = {"DOCKER_HOST": socket or ""}
    plugins = host.run(*_PLUGINS, env=env, check=False).stdout if socket else ""
    there = "weavemesh" in plugins.split()
    return found if there else found | {"network:weave": "no Weave Net plugin in the engine"}


def parse_missing_networks(text: str) -> dict[str, str]:
    """Return what the answers of the kernel rule out; nothing is known of what was not asked."""
    said = {}
    for line in text.splitlines():
        name, _, answer = line.partition(" ")
        if answer.startswith("no"):
            said[name] = answer.removeprefix("no").strip()
    return {
        f"network:{network}": f"the kernel has no {text}" + (f" ({said[one]})" if said[one] else "")
        for network, needs in _NEEDS.items()
        for one, text in reversed(needs.items())
        if one in said
    }


def networks_missing_because(reason: str) -> dict[str, str]:
    """Return every network that is made on demand as missing for one reason."""
    always = ("host", "bridge", "nat")
    return {f"network:{name}": reason for name in NETWORKS if name not in always}
