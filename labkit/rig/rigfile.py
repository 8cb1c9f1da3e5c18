"""Reading a ``rig.toml``, which describes machines by role; it connects to nothing.

Every error says where the mistake is and what was expected.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError

from labkit.errors import UsageError
from labkit.hosts.target import Network
from labkit.rig.networks import APART, NAMES, named

EXAMPLE = "rig.example.toml"
#: The engine's default socket, as ``DOCKER_HOST`` expects it, and its default ``--exec-root``.
ENGINE = "unix:///var/run/docker.sock"
EXEC_ROOT = "/var/run/docker"
SCRATCH = "/var/lib/labkit/inventory"
#: Seconds that a campaign waits for a host: long enough for a reboot.
PATIENCE = 600.0


def _matching(pattern: str, expected: str) -> BeforeValidator:
    """Accept a text that matches a pattern; an error says what was `expected`."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(expected)
        return value

    return BeforeValidator(check)


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
        interface = ipaddress.ip_interface(value if isinstance(value, str) else "")
    except ValueError:
        interface = None
    if interface is None or interface.ip in (interface.network[0], interface.network[-1]):
        raise ValueError('a host\'s address with its prefix length, such as "198.18.1.10/24"')
    return str(interface.ip), str(interface.network)


def _ipv4_in_subnet(value: Any) -> tuple[str, str]:
    address, subnet = _in_subnet(value)
    if ":" in address:
        raise ValueError('an IPv4 address with its prefix length, such as "198.18.4.10/24"')
    return address, subnet


def _list(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list with at least one entry")
    return tuple(value)


def _command(value: Any) -> str:
    try:
        words = shlex.split(value if isinstance(value, str) and "\0" not in value else "")
    except ValueError:
        words = []
    if not words:
        raise ValueError("a command whose quotes are closed")
    return str(value)


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
Mirrored = Annotated[str, _matching("generator|sut", "one of generator, sut")]
InSubnet = Annotated[tuple[str, str], BeforeValidator(_in_subnet)]
#: Networks between containers that a file may describe.
NETWORK_NAMES = tuple(NAMES)
NetworkName = Annotated[
    str, _matching("|".join(NETWORK_NAMES), f"one of {', '.join(NETWORK_NAMES)}")
]
FirstAddress = Annotated[tuple[str, str], BeforeValidator(_ipv4_in_subnet)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(_Table):
    """One host of a rig; the fields are the keys of its table."""

    ssh: Text
    user: Text = "root"
    port: Annotated[int, Field(strict=True, gt=0, lt=65536)] = 22
    key: Text | None = None
    known_hosts: Text | None = None
    gateway: Annotated[str, BeforeValidator(_command)] | None = None
    sudo: StrictBool = False
    addresses: Addresses = ()
    interfaces: Annotated[tuple[Interface, ...], BeforeValidator(_list)]
    cpus: Cpus
    scratch: Directory = SCRATCH
    # Keys of some roles only, see `_ROLES_WITH`.
    engine: Socket | None = None
    exec_root: Directory = EXEC_ROOT
    bridge: Interface = "labbr0"
    bridge_port: Interface | None = None
    bridge_network: Name = "labkit-layer2"
    bridge_address: InSubnet | None = None
    mirrors: Annotated[tuple[Mirrored, ...], BeforeValidator(_list)] = ()

    @property
    def layer2(self) -> Network | None:
        """The network of layer-2 placements, where the file describes one."""
        if self.bridge_port is None or self.bridge_address is None:
            return None
        first, subnet = self.bridge_address
        return Network(
            "bridge",
            subnet,
            first,
            engine=self.bridge_network,
            bridge=self.bridge,
            port=self.bridge_port,
        )


#: The roles that may have a key; all other keys are for every role.
_ROLES_WITH = {"engine": ("sut", "peer"), "exec_root": ("sut", "peer"), "mirrors": ("collector",)}
_ROLES_WITH |= {key: ("sut",) for key in Machine.model_fields if key.startswith("bridge")}


class HostTables(_Table):
    """The hosts of a rig by role."""

    generator: Machine
    sut: Machine
    clean: Machine | None = None
    peer: Machine | None = None
    collector: Machine | None = None


class RigFile(_Table):
    """The file."""

    name: Name
    shared_machine: StrictBool = False
    patience: Annotated[float, Field(ge=0)] = PATIENCE
    hosts: HostTables
    networks: dict[NetworkName, FirstAddress] = {}


@dataclass(frozen=True)
class Inventory:
    """What a ``rig.toml`` describes: machines by role, and networks by name."""

    path: Path
    name: str
    machines: Mapping[str, Machine]
    networks: Mapping[str, Network]
    #: Whether the hosts are guests of one machine.
    shared_machine: bool = False
    patience: float = PATIENCE


def read_rigfile(path: Path | str) -> Inventory:
    """Return what an inventory file describes."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    # ValueError: neither TOML nor UTF-8; RecursionError: a thousand brackets.
    except (OSError, ValueError, RecursionError) as error:
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
        role: _complete(path, role, machine)
        for role, machine in tables.hosts
        if machine is not None
    }
    networks = {
        name: named(name, subnet, first) for name, (first, subnet) in tables.networks.items()
    }
    inventory = Inventory(
        path, tables.name, machines, networks, tables.shared_machine, tables.patience
    )
    _check_addresses(inventory)
    for network in networks.values():
        _check_room(inventory, network)
    return inventory


def _wrong(path: Path, table: str, key: str, value: str, expected: str) -> NoReturn:
    where = f"{path}, table [{table}]" if table else f"{path}, top level"
    raise UsageError(
        f"{'.'.join(filter(None, (table, key)))} is {value}",
        where=f"{where}, key {key}",
        why=f"expected {expected}",
        remedy=f"correct it; {EXAMPLE} explains every key",
    )


def _explain(path: Path, error: ValidationError) -> NoReturn:
    """Raise the first mistake; unknown keys first, as one may be a missing key misspelt."""
    mistakes = sorted(
        error.errors(), key=lambda row: (row["type"] != "extra_forbidden", len(row["loc"]))
    )
    mistake = mistakes[0]
    parts = [part for part in mistake["loc"] if isinstance(part, str) and part != "[key]"][:3]
    table, key = ".".join(parts[:-1]), parts[-1]
    value, expected = repr(mistake["input"]), mistake["msg"].removeprefix("Input should be ")
    if mistake["type"] == "extra_forbidden":
        value, expected = "not a key that labkit knows", f"one of {', '.join(_keys(parts))}"
    elif mistake["type"] == "missing":
        levels = (
            "a table for each host, such as [hosts.sut]",
            f"a table [{'.'.join(parts)}]: every rig has one",
        )
        value, expected = "missing", [*levels, _REQUIRED][len(parts) - 1]
    elif mistake["type"] == "value_error":
        expected = str(mistake["ctx"]["error"])
        value = "not a key that labkit knows" if "[key]" in mistake["loc"] else value
    elif mistake["type"] in ("model_type", "dict_type"):
        expected = f"a table [{'.'.join(parts)}]"
    more = f" ({len(mistakes) - 1} further mistakes)" if len(mistakes) > 1 else ""
    _wrong(path, table, key, value, expected + more)


_REQUIRED = "it to be given for every host"


def _keys(parts: list[str]) -> list[str]:
    """Return the keys that the table of a key may have."""
    if len(parts) == 3:
        return [key for key in Machine.model_fields if parts[1] in _ROLES_WITH.get(key, parts)]
    return list((HostTables if len(parts) == 2 else RigFile).model_fields)


def _complete(path: Path, role: str, machine: Machine) -> Machine:
    """Check a machine's keys for its role, and fill in what depends on the role or the file."""
    table = f"hosts.{role}"
    for key in sorted(machine.model_fields_set):
        if role not in (roles := _ROLES_WITH.get(key, (role,))):
            expected = f"only {' and '.join(roles)} to have it"
            _wrong(path, table, key, "not a key of this role", expected)
    if role != "collector" and not machine.addresses:
        _wrong(path, table, "addresses", "missing", _REQUIRED)
    changes: dict[str, Any] = {}
    for key in ("key", "known_hosts"):
        if value := getattr(machine, key):  # relative to the file, wherever it is read from
            try:
                changes[key] = os.path.normpath(path.resolve().parent / Path(value).expanduser())
            except RuntimeError:
                _wrong(path, table, key, repr(value), "a path in the home of a user who exists")
    if role in _ROLES_WITH["engine"]:
        changes["engine"] = None if machine.engine == "none" else machine.engine or ENGINE
        if role == "peer" and changes["engine"] is None:
            _wrong(path, table, "engine", "'none'", "an engine: its containers are what it is for")
    port, address = machine.bridge_port, machine.bridge_address
    for key, value in (("bridge_port", port), ("bridge_address", address)):
        if value is None and (port or address):
            _wrong(path, table, key, "missing", "both bridge_port and bridge_address, or neither")
    if port and changes["engine"] is None:
        _wrong(path, table, "engine", "'none'", "an engine, since there is a bridge for containers")
    if port in machine.interfaces:
        _wrong(path, table, "bridge_port", repr(port), "another one than the host's own interfaces")
    return machine.model_copy(update=changes)


def _check_room(inventory: Inventory, network: Network) -> None:
    """Check that a network has enough addresses, and shares none."""
    subnet, first = ipaddress.IPv4Network(network.subnet), ipaddress.IPv4Address(network.first)
    where = (inventory.path, "networks", network.name, repr(f"{first}/{network.prefix}"))
    end = first + APART * (2 if "peer" in inventory.machines else 1)
    if first <= subnet[3] or end > subnet[-1]:
        _wrong(*where, f"{APART} addresses a host with an engine from there, and 3 before")
    hosts = {
        role: [
            address
            for text in machine.addresses
            if (address := ipaddress.ip_address(text)).version == 4 and address in subnet
        ]
        for role, machine in inventory.machines.items()
    }
    if network.name == "macvlan":
        if not hosts["generator"]:
            _wrong(*where, "the subnet of the generator: macvlan has no router")
        if any(int(first) <= int(address) < int(end) for role in hosts for address in hosts[role]):
            _wrong(*where, "addresses that no host has")
        return
    layer2 = inventory.machines["sut"].layer2
    networks = [*inventory.networks.values(), *([layer2] if layer2 else [])]
    others = [ipaddress.ip_network(other.subnet) for other in networks if other is not network]
    if any(subnet.overlaps(other) for other in others if other.version == 4) or any(hosts.values()):
        _wrong(*where, "a subnet of its own, in which no host and no other network is")


def _check_addresses(inventory: Inventory) -> None:
    """Check the addresses of all machines together."""
    machines = inventory.machines
    generator, peer, layer2 = machines["generator"], machines.get("peer"), machines["sut"].layer2
    # The peer may be another role of the generator's machine.
    same = peer is not None and (peer.ssh, peer.port) == (generator.ssh, generator.port)
    if peer and same and peer.addresses[0] != generator.addresses[0]:
        expected = f"the generator's, {generator.addresses[0]}: it is the same machine"
        _wrong(inventory.path, "hosts.peer", "addresses", repr(list(peer.addresses)), expected)
    addresses = [
        (role, "addresses", address)
        for role, machine in machines.items()
        for address in machine.addresses
        if not (same and role == "peer")
    ]
    addresses += [("sut", "bridge_address", layer2.first)] if layer2 else []
    owners: dict[str, str] = {}
    for role, key, address in addresses:
        if owners.setdefault(address, f"{role}.{key}") != f"{role}.{key}":
            expected = f"an address of its own: {owners[address]} has this one"
            _wrong(inventory.path, f"hosts.{role}", key, repr(address), expected)
    if layer2:
        subnet = ipaddress.ip_network(layer2.subnet)
        if not any(ipaddress.ip_address(address) in subnet for address in generator.addresses):
            expected = f"an address in {subnet} too, since layer 2 has no router"
            found = repr(list(generator.addresses))
            _wrong(inventory.path, "hosts.generator", "addresses", found, expected)
