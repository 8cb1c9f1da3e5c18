"""Reading a ``rig.toml``: real machines by role; every mistake says where it is and what to do.

Nothing here connects to anything: `labkit.rig.inventory` makes a rig of what is read.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from labkit.errors import UsageError
from labkit.hosts.target import Network
from labkit.rig.networks import APART, named

EXAMPLE = "rig.example.toml"
#: The engine's usual socket, as ``DOCKER_HOST`` wants it, and where it keeps what runs.
ENGINE = "unix:///var/run/docker.sock"
EXEC_ROOT = "/var/run/docker"
SCRATCH = "/var/lib/labkit/inventory"


def _matching(pattern: str, expected: str) -> BeforeValidator:
    """Accept a string that matches a pattern; `expected` is what the error says."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(expected)
        return value

    return BeforeValidator(check)


def _one_of(*names: str) -> BeforeValidator:
    return _matching("|".join(names), f"one of {', '.join(names)}")


def _port(value: Any) -> int:
    if type(value) is not int or not 0 < value < 65536:
        raise ValueError("a TCP port, 1 to 65535")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _address(value: Any) -> str:
    try:
        address = ipaddress.ip_address(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError("an IP address without prefix length, not a name") from None
    if address.is_loopback or address.is_multicast or address.is_unspecified:
        raise ValueError("an address that another host can send to")
    return str(address)


def _in_subnet(value: Any) -> tuple[str, str]:
    """Return an address and its subnet."""
    try:
        found = ipaddress.ip_interface(value if isinstance(value, str) else "")
    except ValueError:
        found = None
    if found is None or found.ip in (found.network[0], found.network[-1]):
        raise ValueError('a host\'s address with its prefix length, such as "198.18.1.10/24"')
    return str(found.ip), str(found.network)


def _ipv4_in_subnet(value: Any) -> tuple[str, str]:
    found, subnet = _in_subnet(value)
    if ":" in found:
        raise ValueError('an IPv4 address with its prefix length, such as "198.18.4.10/24"')
    return found, subnet


def _list(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list with at least one entry")
    return tuple(value)


Text = Annotated[str, _matching(r"[^\0\n]*\S[^\0\n]*", "a text that is not empty, on one line")]
Name = Annotated[
    str, _matching(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "a name of letters, digits and _ . -")
]
Interface = Annotated[str, _matching(r"[^\s/]{1,15}", "the name of a network interface")]
Cpus = Annotated[
    str,
    _matching(
        r"\d+(-\d+)?(,\d+(-\d+)?)*",
        'a CPU list as the kernel prints it, such as "2" or "2-5,8"',
    ),
]
Directory = Annotated[
    str,
    _matching(
        r"(?!.*\.\.)(/[\w.+@-]+)+",
        "an absolute path on that host, of letters, digits and _ . + @ -",
    ),
]
Socket = Annotated[
    str,
    _matching(
        r"none|unix:///\S+",
        '"none", or a socket on that host such as "unix:///var/run/docker.sock"',
    ),
]
Addresses = Annotated[tuple[Annotated[str, BeforeValidator(_address)], ...], BeforeValidator(_list)]
InSubnet = Annotated[tuple[str, str], BeforeValidator(_in_subnet)]
FirstAddress = Annotated[tuple[str, str], BeforeValidator(_ipv4_in_subnet)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HostTable(_Table):
    """The keys of every host."""

    ssh: Text
    user: Text = "root"
    port: Annotated[int, BeforeValidator(_port)] = 22
    key: Text | None = None
    known_hosts: Text | None = None
    gateway: Text | None = None
    sudo: Annotated[bool, BeforeValidator(_flag)] = False
    addresses: Addresses
    interfaces: Annotated[tuple[Interface, ...], BeforeValidator(_list)]
    cpus: Cpus
    scratch: Directory = SCRATCH


class PeerTable(HostTable):
    """The keys of a host with an engine."""

    engine: Socket = ENGINE
    exec_root: Directory = EXEC_ROOT


class SutTable(PeerTable):
    """The keys of the system under test."""

    bridge: Interface = "labbr0"
    bridge_port: Interface | None = None
    bridge_network: Name = "labkit-layer2"
    bridge_address: InSubnet | None = None


class CollectorTable(HostTable):
    """The keys of a capture host; a mirror needs no address."""

    addresses: Addresses = ()
    mirrors: Annotated[
        tuple[Annotated[str, _one_of("generator", "sut")], ...], BeforeValidator(_list)
    ] = ()


class HostTables(_Table):
    """The hosts of a rig by role."""

    generator: HostTable
    sut: SutTable
    clean: HostTable | None = None
    peer: PeerTable | None = None
    collector: CollectorTable | None = None


class NetworkTable(_Table):
    """Networks between containers, each with the address of its first placement."""

    macvlan: FirstAddress | None = None
    routed: FirstAddress | None = None
    nat: FirstAddress | None = None
    vxlan: FirstAddress | None = None
    overlay: FirstAddress | None = None
    encrypted: FirstAddress | None = None
    weave: FirstAddress | None = None


class RigFile(_Table):
    """A whole file."""

    name: Name
    hosts: HostTables
    networks: NetworkTable = NetworkTable()


#: The table of each role that a file may name; the first two it must.
HOST_TABLES: dict[str, type[HostTable]] = {
    "generator": HostTable,
    "sut": SutTable,
    "clean": HostTable,
    "peer": PeerTable,
    "collector": CollectorTable,
}
NETWORK_NAMES = tuple(NetworkTable.model_fields)


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
    scratch: str
    engine: str | None = None
    bridge: Network | None = None
    exec_root: str = ""
    mirrors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """What a ``rig.toml`` says: machines by role, and networks that may be made, by name."""

    path: Path
    name: str
    machines: Mapping[str, Machine]
    networks: Mapping[str, Network]


def read_rigfile(path: Path | str) -> Inventory:
    """Return what an inventory file says."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:  # ValueError: neither TOML nor UTF-8
        raise UsageError(
            f"the inventory {path.name} cannot be read",
            where=str(path),
            why=str(error),
            remedy=f"copy {EXAMPLE} and fill it in",
        ) from None
    try:
        tables = RigFile.model_validate({"name": path.stem, **data})
    except ValidationError as error:
        _explain(path, error)
    machines = {
        role: _machine(path, role, table)
        for role in HOST_TABLES
        if (table := getattr(tables.hosts, role))
    }
    networks = {
        key: named(key, value[1], value[0]) for key, value in tables.networks if value is not None
    }
    book = Inventory(path, tables.name, machines, networks)
    _check_addresses(book)
    for network in networks.values():
        _check_room(book, network)
    return book


def _wrong(path: Path, table: str, key: str, found: str, expected: str) -> NoReturn:
    place = f"{path}, table [{table}]" if table else f"{path}, top level"
    raise UsageError(
        f"{'.'.join(filter(None, (table, key)))} is {found}",
        where=f"{place}, key {key}",
        why=f"expected {expected}",
        remedy=f"correct it; {EXAMPLE} explains every key",
    )


def _explain(path: Path, error: ValidationError) -> NoReturn:
    """Raise the first mistake; unknown keys come first, as what is missing may be one of them."""
    mistakes = sorted(
        error.errors(), key=lambda one: (one["type"] != "extra_forbidden", len(one["loc"]))
    )
    mistake = mistakes[0]
    parts = [part for part in mistake["loc"] if isinstance(part, str)][:3]
    table, key = ".".join(parts[:-1]), parts[-1]
    further = f" ({len(mistakes) - 1} further mistakes)" if len(mistakes) > 1 else ""
    if mistake["type"] == "extra_forbidden":
        found, expected = _unknown_key(parts)
    elif mistake["type"] == "missing":
        found, expected = "missing", "it to be given for every host"
        if len(parts) == 1:
            expected = "a table for each host, such as [hosts.sut]"
        elif len(parts) == 2:
            expected = f"a table [hosts.{key}]: every rig has one"
    elif mistake["type"] == "value_error":
        found, expected = repr(mistake["input"]), str(mistake["ctx"]["error"])
    else:
        found, expected = repr(mistake["input"]), f"a table [{'.'.join(parts)}]"
    _wrong(path, table, key, found, expected + further)


def _unknown_key(parts: list[str]) -> tuple[str, str]:
    """Return what is wrong with a key that its table does not have, and what is expected."""
    tables: dict[str, type[_Table]] = {"": RigFile, "hosts": HostTables, "networks": NetworkTable}
    tables |= {f"hosts.{role}": table for role, table in HOST_TABLES.items()}
    owners = [role for role, table in HOST_TABLES.items() if parts[-1] in table.model_fields]
    if len(parts) == 3 and owners:
        return "not a key of this role", f"only {' and '.join(owners)} to have it"
    known = tables[".".join(parts[:-1])].model_fields
    return "not a key that labkit knows", f"one of {', '.join(known)}"


def _machine(path: Path, role: str, found: HostTable) -> Machine:
    table, values = f"hosts.{role}", dict(found)
    for key in ("key", "known_hosts"):
        if values[key] is not None:  # relative to the file that names it, wherever it is read from
            values[key] = str(path.resolve().parent / Path(values[key]).expanduser())
    if values.get("engine") == "none":
        values["engine"] = None
        if role == "peer":
            _wrong(path, table, "engine", "'none'", "an engine: its containers are what it is for")
    if isinstance(found, SutTable):
        values["bridge"] = _bridge(path, table, found)
    kept = {key: value for key, value in values.items() if not key.startswith("bridge_")}
    return Machine(role=role, **kept)


def _bridge(path: Path, table: str, sut: SutTable) -> Network | None:
    port, address = sut.bridge_port, sut.bridge_address
    if port is None and address is None:
        return None
    for key, value in (("bridge_port", port), ("bridge_address", address)):
        if value is None:
            _wrong(path, table, key, "missing", "both bridge_port and bridge_address, or neither")
    if sut.engine == "none":
        _wrong(path, table, "engine", "'none'", "an engine, since there is a bridge for containers")
    if port in sut.interfaces:
        _wrong(path, table, "bridge_port", repr(port), "another one than the host's own interfaces")
    assert port is not None and address is not None
    return Network(
        "bridge",
        address[1],
        address[0],
        engine=sut.bridge_network,
        bridge=sut.bridge,
        port=port,
    )


def _check_room(book: Inventory, network: Network) -> None:
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


def _check_addresses(book: Inventory) -> None:
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
