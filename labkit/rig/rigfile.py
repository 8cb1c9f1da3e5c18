"""Reading a ``rig.toml``: real machines by role, as values; every mistake says where it is.

Nothing here connects to anything: `labkit.rig.inventory` makes a rig of what is read.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from labkit.errors import UsageError
from labkit.hosts.site import Network
from labkit.rig import rigkeys
from labkit.rig.networks import APART, named

#: Roles that a file may name; the first two it must.
ROLES = ("generator", "sut", "clean", "peer", "collector")
EXAMPLE = "rig.example.toml"


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
    exec_root: str
    mirrors: tuple[str, ...]


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
    networks : mapping of str to Network
        What may be laid between containers, by name.
    """

    path: Path
    name: str
    machines: Mapping[str, Machine]
    networks: Mapping[str, Network]


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
    _only(path, "", data, ("name", "hosts", "networks"))
    name = _value(path, "", "name", data.get("name", path.stem), rigkeys.name)
    hosts = data.get("hosts")
    if not isinstance(hosts, dict):
        _wrong(path, "", "hosts", "missing", "a table for each host, such as [hosts.sut]")
    _only(path, "hosts", hosts, ROLES)
    for role in ROLES[:2]:
        if role not in hosts:
            _wrong(path, "hosts", role, "missing", f"a table [hosts.{role}]: every rig has one")
    machines = {role: _machine(path, role, hosts[role]) for role in ROLES if role in hosts}
    book = Inventory(path, name, machines, _networks(path, data.get("networks", {})))
    _agree(book)
    for network in book.networks.values():
        _has_room(book, network)
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


def _machine(path: Path, role: str, found: Any) -> Machine:
    table = f"hosts.{role}"
    if not isinstance(found, dict):
        _wrong(path, "hosts", role, repr(found), f"a table [{table}]")
    keys = rigkeys.KEYS | rigkeys.FURTHER.get(role, {})
    for key in found:
        owners = [one for one, own in rigkeys.FURTHER.items() if key in own]
        if key not in keys and owners:
            expected = f"only {' and '.join(owners)} to have it"
            _wrong(path, table, key, "not a key of this role", expected)
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
    if role == "peer" and values["engine"] is None:
        _wrong(path, table, "engine", "'none'", "an engine: its containers are what it is for")
    values["bridge"] = _bridge(path, table, values) if role == "sut" else None
    taken = {key: value for key, value in values.items() if not key.startswith("bridge_")}
    return Machine(role=role, **{"engine": None, "exec_root": "", "mirrors": (), **taken})


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


def _networks(path: Path, found: Any) -> dict[str, Network]:
    if not isinstance(found, dict):
        _wrong(path, "", "networks", repr(found), "a table [networks]")
    _only(path, "networks", found, tuple(rigkeys.NETWORKS))
    read = {
        key: _value(path, "networks", key, found[key], check)
        for key, (check, _) in rigkeys.NETWORKS.items()
        if key in found
    }
    return {key: named(key, subnet, first) for key, (first, subnet) in read.items()}


def _has_room(book: Inventory, network: Network) -> None:
    """Check that a network's addresses are its own, and enough."""
    mine, first = ipaddress.IPv4Network(network.subnet), ipaddress.IPv4Address(network.first)
    where = (book.path, "networks", network.name, repr(f"{first}/{network.prefix}"))
    hosts = 2 if "peer" in book.machines else 1
    if first <= mine[3] or first + hosts * APART > mine[-1]:
        _wrong(*where, f"{APART} addresses a host with an engine from there, and 3 before")
    held = {role: _of(mine, one.addresses) for role, one in book.machines.items()}
    if network.name == "macvlan":
        if not held["generator"]:
            _wrong(*where, "the subnet of the generator: macvlan has no router")
        if any(first <= a < first + hosts * APART for found in held.values() for a in found):
            _wrong(*where, "addresses that no host has")
        return
    bridge = book.machines["sut"].bridge
    beside = [*book.networks.values(), *([bridge] if bridge else [])]
    others = [ipaddress.ip_network(one.subnet) for one in beside if one is not network]
    if any(mine.overlaps(one) for one in others if one.version == 4) or any(held.values()):
        _wrong(*where, "a subnet of its own, in which no host and no other network is")


def _of(subnet: ipaddress.IPv4Network, addresses: Iterable[str]) -> list[ipaddress.IPv4Address]:
    found = [ipaddress.ip_address(one) for one in addresses]
    return [one for one in found if isinstance(one, ipaddress.IPv4Address) and one in subnet]


def _agree(book: Inventory) -> None:
    """Check what one table alone cannot tell."""
    seen: dict[str, str] = {}
    bridge = book.machines["sut"].bridge
    generator, peer = book.machines["generator"], book.machines.get("peer")
    # A peer may be another role of the generator's machine.
    same = ["peer"] if peer and peer.ssh == generator.ssh and peer.port == generator.port else []
    if peer and same and peer.addresses[0] != generator.addresses[0]:
        expected = f"the generator's, {generator.addresses[0]}: it is the same machine"
        _wrong(book.path, "hosts.peer", "addresses", repr(list(peer.addresses)), expected)
    held = [
        (role, "addresses", one)
        for role, machine in book.machines.items()
        for one in machine.addresses
        if role not in same
    ]
    held += [("sut", "bridge_address", bridge.first)] if bridge else []
    for role, key, address in held:
        if seen.setdefault(address, f"{role}.{key}") != f"{role}.{key}":
            expected = f"an address of its own: {seen[address]} has this one"
            _wrong(book.path, f"hosts.{role}", key, repr(address), expected)
    if bridge is None:
        return
    near = ipaddress.ip_network(bridge.subnet)
    if not any(ipaddress.ip_address(one) in near for one in generator.addresses):
        expected = f"an address in {near} too, since layer 2 has no router"
        found = repr(list(generator.addresses))
        _wrong(book.path, "hosts.generator", "addresses", found, expected)
