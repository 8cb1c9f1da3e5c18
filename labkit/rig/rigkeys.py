"""What the keys of a ``rig.toml`` take: how each is checked, and what it is when it is left out."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Any

#: The engine's usual socket, as ``DOCKER_HOST`` wants it, and where it keeps what runs.
ENGINE = "unix:///var/run/docker.sock"
EXEC_ROOT = "/var/run/docker"
SCRATCH = "/var/lib/labkit/inventory"


def text(value: Any) -> str:
    """Return a text on one line."""
    if not isinstance(value, str) or not value.strip() or re.search(r"[\0\n]", value):
        raise ValueError("a text that is not empty, on one line")
    return value


def name(value: Any) -> str:
    """Return a name."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", value):
        raise ValueError("a name of letters, digits and _ . -")
    return value


def port(value: Any) -> int:
    """Return a TCP port."""
    if type(value) is not int or not 0 < value < 65536:
        raise ValueError("a TCP port, 1 to 65535")
    return value


def flag(value: Any) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def cpus(value: Any) -> str:
    """Return a CPU list."""
    if not isinstance(value, str) or not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", value):
        raise ValueError('a CPU list as the kernel prints it, such as "2" or "2-5,8"')
    return value


def address(value: Any) -> str:
    """Return an IP address."""
    try:
        found = ipaddress.ip_address(text(value))
    except ValueError:
        raise ValueError("an IP address without prefix length, not a name") from None
    if found.is_loopback or found.is_multicast or found.is_unspecified:
        raise ValueError("an address that another host can send to")
    return str(found)


def address_in_subnet(value: Any) -> tuple[str, str]:
    """Return an address and its subnet."""
    try:
        found = ipaddress.ip_interface(text(value))
    except ValueError:
        found = None
    if found is None or found.ip in (found.network[0], found.network[-1]):
        raise ValueError('a host\'s address with its prefix length, such as "198.18.1.10/24"')
    return str(found.ip), str(found.network)


def placed_at(value: Any) -> tuple[str, str]:
    """Return the address of a network's first placement, and its subnet."""
    found, subnet = address_in_subnet(value)
    if ":" in found:
        raise ValueError('an IPv4 address with its prefix length, such as "198.18.4.10/24"')
    return found, subnet


def several(check: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    """Return the check of a list whose entries have a check."""

    def checked(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError("a list with at least one entry")
        return tuple(check(one) for one in value)

    return checked


def interface(value: Any) -> str:
    """Return the name of a network interface."""
    if not isinstance(value, str) or not re.fullmatch(r"[^\s/]{1,15}", value):
        raise ValueError("the name of a network interface")
    return value


def socket(value: Any) -> str | None:
    """Return an engine's socket; None for none."""
    if value == "none":
        return None
    if not isinstance(value, str) or not re.fullmatch(r"unix:///\S+", value):
        raise ValueError('"none", or a socket on that host such as "unix:///var/run/docker.sock"')
    return value


def directory(value: Any) -> str:
    """Return an absolute path."""
    if not isinstance(value, str) or not re.fullmatch(r"(/[\w.+@-]+)+", value) or ".." in value:
        raise ValueError("an absolute path on that host, of letters, digits and _ . + @ -")
    return value


def named(names: tuple[str, ...]) -> Callable[[Any], str]:
    """Return the check of a value that is one of some names."""

    def checked(value: Any) -> str:
        if value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return str(value)

    return checked


Keys = dict[str, tuple[Callable[[Any], Any], Any]]
#: What every host has: how a key is checked, and what it is when it is left out.
KEYS: Keys = {
    "ssh": (text, ...),
    "user": (text, "root"),
    "port": (port, 22),
    "key": (text, None),
    "known_hosts": (text, None),
    "gateway": (text, None),
    "sudo": (flag, False),
    "addresses": (several(address), ...),
    "interfaces": (several(interface), ...),
    "cpus": (cpus, ...),
    "scratch": (directory, SCRATCH),
}
_ENGINE: Keys = {"engine": (socket, ENGINE), "exec_root": (directory, EXEC_ROOT)}
#: What only some hosts have, or have otherwise.
FURTHER: dict[str, Keys] = {
    "sut": _ENGINE
    | {
        "bridge": (interface, "labbr0"),
        "bridge_port": (interface, None),
        "bridge_network": (name, "labkit-layer2"),
        "bridge_address": (address_in_subnet, None),
    },
    "peer": _ENGINE,
    # A mirror needs no address.
    "collector": {
        "addresses": (several(address), ()),
        "mirrors": (several(named(("generator", "sut"))), ()),
    },
}
#: Networks between containers, each with the address of its first placement.
NETWORKS: Keys = dict.fromkeys(
    ("macvlan", "routed", "nat", "vxlan", "overlay", "encrypted", "weave"),
    (placed_at, None),
)
