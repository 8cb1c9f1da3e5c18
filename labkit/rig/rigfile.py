"""Reading a ``rig.toml``: real machines by role, as values; every mistake says where it is.

Nothing here connects to anything: `labkit.rig.inventory` makes a rig of what is read.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from labkit.errors import UsageError
from labkit.hosts.site import Network

#: Roles that a file may name; the first two it must.
ROLES = ("generator", "sut", "clean", "collector")
EXAMPLE = "rig.example.toml"
#: The engine's usual socket, as ``DOCKER_HOST`` wants it.
ENGINE = "unix:///var/run/docker.sock"
SCRATCH = "/var/lib/labkit/inventory"


@dataclass(frozen=True)
class Machine:
    """One host of an inventory; the fields are the keys of its table in ``rig.toml``."""

    role: str
    ssh: str
    user: str
    port: int
    key: str | None
    known_hosts: str | None
    gateway: str | None
    sudo: bool
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]
    cpus: str
    engine: str | None
    bridge: Network | None
    scratch: str


@dataclass(frozen=True)
class Inventory:
    """What a ``rig.toml`` says.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        What the rig is called.
    machines : mapping of str to Machine
        By role.
    """

    path: Path
    name: str
    machines: Mapping[str, Machine]


def read(path: Path | str) -> Inventory:
    """Return what an inventory file says.

    Raises
    ------
    UsageError
        It cannot be read, or something in it is missing, unknown or not as expected; the error
        names file, table and key, what was expected, and what to do.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:  # ValueError: no TOML, or no UTF-8
        raise UsageError(
            f"the inventory {path.name} cannot be read",
            where=str(path),
            why=str(error),
            remedy=f"copy {EXAMPLE} and fill it in",
        ) from None
    _only(path, "", data, ("name", "hosts"))
    name = _value(path, "", "name", data.get("name", path.stem), _name)
    hosts = data.get("hosts")
    if not isinstance(hosts, dict):
        _wrong(path, "", "hosts", "missing", "a table for each host, such as [hosts.sut]")
    _only(path, "hosts", hosts, ROLES)
    for role in ROLES[:2]:
        if role not in hosts:
            _wrong(path, "hosts", role, "missing", f"a table [hosts.{role}]: every rig has one")
    book = Inventory(path, name, {r: _machine(path, r, hosts[r]) for r in ROLES if r in hosts})
    _agree(book)
    return book


def _wrong(path: Path, table: str, key: str, found: str, expected: str) -> NoReturn:
    place = f"{path}, table [{table}]" if table else f"{path}, top level"
    raise UsageError(
        f"{'.'.join(filter(None, (table, key)))} is {found}",
        where=f"{place}, key {key}",
        why=f"expected {expected}",
        remedy=f"correct it; {EXAMPLE} explains every key",
    )


def _only(path: Path, table: str, found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            _wrong(path, table, key, "not a key that labkit knows", f"one of {', '.join(known)}")


def _value(path: Path, table: str, key: str, value: Any, check: Callable[[Any], Any]) -> Any:
    try:
        return check(value)
    except (ValueError, TypeError) as error:
        _wrong(path, table, key, repr(value), str(error))


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or re.search(r"[\0\n]", value):
        raise ValueError("a text that is not empty, on one line")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", value):
        raise ValueError("a name of letters, digits and _ . -")
    return value


def _port(value: Any) -> int:
    if type(value) is not int or not 0 < value < 65536:
        raise ValueError("a TCP port, 1 to 65535")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _cpus(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", value):
        raise ValueError('a CPU list as the kernel prints it, such as "2" or "2-5,8"')
    return value


def _address(value: Any) -> str:
    try:
        found = ipaddress.ip_address(_text(value))
    except ValueError:
        raise ValueError("an IP address without prefix length, not a name") from None
    if found.is_loopback or found.is_multicast or found.is_unspecified:
        raise ValueError("an address that another host can send to")
    return str(found)


def _address_in_subnet(value: Any) -> tuple[str, str]:
    try:
        found = ipaddress.ip_interface(_text(value))
    except ValueError:
        found = None
    if found is None or found.ip in (found.network[0], found.network[-1]):
        raise ValueError('a host\'s address with its prefix length, such as "198.18.1.10/24"')
    return str(found.ip), str(found.network)


def _list(check: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    def checked(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError("a list with at least one entry")
        return tuple(check(one) for one in value)

    return checked


def _interface(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[^\s/]{1,15}", value):
        raise ValueError("the name of a network interface")
    return value


def _socket(value: Any) -> str | None:
    if value == "none":
        return None
    if not isinstance(value, str) or not re.fullmatch(r"unix:///\S+", value):
        raise ValueError('"none", or a socket on that host such as "unix:///var/run/docker.sock"')
    return value


def _directory(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"(/[\w.+@-]+)+", value) or ".." in value:
        raise ValueError("an absolute path on that host, of letters, digits and _ . + @ -")
    return value


#: What every host has: how a key is checked, and what it is when it is left out.
_KEYS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "ssh": (_text, ...),
    "user": (_text, "root"),
    "port": (_port, 22),
    "key": (_text, None),
    "known_hosts": (_text, None),
    "gateway": (_text, None),
    "sudo": (_flag, False),
    "addresses": (_list(_address), ...),
    "interfaces": (_list(_interface), ...),
    "cpus": (_cpus, ...),
    "scratch": (_directory, SCRATCH),
}
#: What only the system under test has.
_ENGINE_KEYS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "engine": (_socket, ENGINE),
    "bridge": (_interface, "labbr0"),
    "bridge_port": (_interface, None),
    "bridge_network": (_name, "labkit-layer2"),
    "bridge_address": (_address_in_subnet, None),
}


def _machine(path: Path, role: str, found: Any) -> Machine:
    table = f"hosts.{role}"
    if not isinstance(found, dict):
        _wrong(path, "hosts", role, repr(found), f"a table [{table}]")
    keys = _KEYS | (_ENGINE_KEYS if role == "sut" else {})
    if role != "sut" and (odd := [key for key in _ENGINE_KEYS if key in found]):
        _wrong(path, table, odd[0], "not a key of this role", "the engine to be the sut's alone")
    _only(path, table, found, tuple(keys))
    values: dict[str, Any] = {}
    for key, (check, default) in keys.items():
        if key in found:
            values[key] = _value(path, table, key, found[key], check)
        elif default is ...:
            _wrong(path, table, key, "missing", "it to be given for every host")
        else:
            values[key] = default
    for key in ("key", "known_hosts"):
        if values[key] is not None:  # relative to the file that names it, wherever it is read from
            values[key] = str(path.resolve().parent / Path(values[key]).expanduser())
    values["bridge"] = _bridge(path, table, values) if role == "sut" else None
    taken = {key: value for key, value in values.items() if not key.startswith("bridge_")}
    return Machine(role=role, **{"engine": None, **taken})


def _bridge(path: Path, table: str, values: Mapping[str, Any]) -> Network | None:
    port, address = values["bridge_port"], values["bridge_address"]
    if port is None and address is None:
        return None
    for key, value in (("bridge_port", port), ("bridge_address", address)):
        if value is None:
            _wrong(path, table, key, "missing", "both bridge_port and bridge_address, or neither")
    if values["engine"] is None:
        _wrong(path, table, "engine", "'none'", "an engine, since there is a bridge for containers")
    if port in values["interfaces"]:
        _wrong(path, table, "bridge_port", repr(port), "another one than the host's own interfaces")
    names = {"engine": values["bridge_network"], "bridge": values["bridge"], "port": port}
    return Network("bridge", address[1], address[0], **names)


def _agree(book: Inventory) -> None:
    """Check what one table alone cannot tell."""
    seen: dict[str, str] = {}
    bridge = book.machines["sut"].bridge
    held = [(role, "addresses", one) for role, m in book.machines.items() for one in m.addresses]
    held += [("sut", "bridge_address", bridge.first)] if bridge else []
    for role, key, address in held:
        if seen.setdefault(address, f"{role}.{key}") != f"{role}.{key}":
            expected = f"an address of its own: {seen[address]} has this one"
            _wrong(book.path, f"hosts.{role}", key, repr(address), expected)
    if bridge is None:
        return
    near = ipaddress.ip_network(bridge.subnet)
    generator = book.machines["generator"].addresses
    if not any(ipaddress.ip_address(one) in near for one in generator):
        expected = f"an address in {near} too, since layer 2 has no router"
        _wrong(book.path, "hosts.generator", "addresses", repr(list(generator)), expected)
