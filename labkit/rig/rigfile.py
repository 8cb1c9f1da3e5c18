"""The file rig.toml, which describes machines of one's own by role; it connects to nothing."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Iterator
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
)

from labkit.errors import UsageError
from labkit.hosts.target import Network
from labkit.placement import parse_cpus
from labkit.rig.networks import APART, named

EXAMPLE = "rig.example.toml"
#: Names on the sut of the bridge for docker("bridge"), and of the engine's network on it.
BRIDGE, BRIDGE_NETWORK = "labbr0", "labkit-layer2"


def _path(value: str, info: ValidationInfo) -> str:
    """Return a path relative to the file's folder as an absolute one."""
    try:
        return os.path.normpath(Path((info.context or {})["folder"], Path(value).expanduser()))
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def _cpus(value: str) -> str:
    try:
        parse_cpus(value)
    except UsageError as error:
        raise ValueError(f"{error.what}: {error.remedy}") from None
    return value


def _address(value: str) -> str:
    address = ipaddress.ip_address(value)
    if address.is_loopback or address.is_multicast or address.is_unspecified:
        raise ValueError("no other host can send to this address")
    return str(address)


def _inside(value: IPv4Interface) -> IPv4Interface:
    if value.ip in (value.network[0], value.network[-1]):
        raise ValueError("not the address of a host with its prefix length")
    return value


Text = Annotated[str, Field(pattern=r"^[^\s\x00-][^\s\x00]*$")]
LocalPath = Annotated[str, Field(pattern=r"^[^\x00\n]+$"), AfterValidator(_path)]
Interface = Annotated[str, Field(pattern=r"^[^\s/]{1,15}$")]
Directory = Annotated[str, Field(pattern=r"^(/(\w|[+@-])[\w.+@-]*)+$")]
Socket = Annotated[str, Field(pattern=r"^unix:///\S+$")]
FirstAddress = Annotated[IPv4Interface, Strict(False), AfterValidator(_inside)]
Addresses = list[Annotated[str, AfterValidator(_address)]]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Machine(_Table):
    """A host; the fields are the keys of its table."""

    ssh: Text
    user: Text = "root"
    port: Annotated[int, Field(gt=0, lt=65536)] = 22
    key: LocalPath | None = None
    known_hosts: LocalPath | None = None
    sudo: bool = False
    addresses: Annotated[Addresses, Field(min_length=1)]
    interfaces: Annotated[list[Interface], Field(min_length=1)]
    cpus: Annotated[str, Field(min_length=1), AfterValidator(_cpus)]
    scratch: Directory = "/var/lib/labkit/inventory"

    @property
    def socket(self) -> str | None:
        """The socket of its Docker Engine, None where labkit uses none."""
        return None

    @property
    def layer2(self) -> Network | None:
        """The network of docker("bridge"), where the file describes one."""
        return None


class EngineMachine(Machine):
    """A host with a Docker Engine."""

    engine: Socket = "unix:///var/run/docker.sock"
    #: The engine's ``--exec-root``, where it keeps the namespaces of overlay networks.
    exec_root: Directory = "/var/run/docker"

    @property
    def socket(self) -> str | None:
        """The socket of its Docker Engine."""
        return self.engine


class SystemUnderTest(EngineMachine):
    """The system under test, which may also have no engine."""

    engine: Annotated[str, Field(pattern=r"^(none|unix:///\S+)$")] = "unix:///var/run/docker.sock"
    bridge_port: Interface | None = None
    bridge_address: FirstAddress | None = None

    @property
    def socket(self) -> str | None:
        """The socket of its Docker Engine, None where labkit uses none."""
        return None if self.engine == "none" else self.engine

    @property
    def layer2(self) -> Network | None:
        """The network of docker("bridge"), where the file describes one."""
        if self.bridge_port is None or self.bridge_address is None:
            return None
        return Network(
            "bridge",
            str(self.bridge_address.network),
            str(self.bridge_address.ip),
            engine=BRIDGE_NETWORK,
            bridge=BRIDGE,
            port=self.bridge_port,
        )


class Collector(Machine):
    """A host that captures what the switch mirrors to it; it needs no address in the lab."""

    addresses: Addresses = []
    mirrors: list[Literal["generator", "sut"]] = []


class Hosts(_Table):
    """The hosts of a rig by role."""

    generator: Machine
    sut: SystemUnderTest
    clean: Machine | None = None
    peer: EngineMachine | None = None
    collector: Collector | None = None


class Networks(_Table):
    """The first address of each network between containers, with its prefix length."""

    macvlan: FirstAddress | None = None
    nat: FirstAddress | None = None
    overlay: FirstAddress | None = None
    weave: FirstAddress | None = None


class RigFile(_Table):
    """The file; the fields are its keys."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    shared_machine: bool = False
    #: Seconds that a campaign waits for a host: long enough for a reboot.
    patience: Annotated[float, Field(ge=0)] = 600.0
    hosts: Hosts
    networks_: Annotated[Networks, Field(alias="networks")] = Networks()

    @property
    def machines(self) -> dict[str, Machine]:
        """The hosts' tables by role."""
        return {role: machine for role, machine in self.hosts if machine is not None}

    @property
    def networks(self) -> dict[str, Network]:
        """The networks between containers by name."""
        return {
            name: named(name, str(first.network), str(first.ip))
            for name, first in self.networks_
            if first is not None
        }


def read_rigfile(path: Path | str) -> RigFile:
    """Return what a rig file describes.

    Raises
    ------
    UsageError
        The file cannot be read, or a key is wrong; every wrong key is named.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text("utf-8"))
        context = {"folder": path.resolve().parent}
        file = RigFile.model_validate({"name": path.stem, **data}, context=context)
        mistakes = list(_contradictions(file))
    except ValidationError as error:
        mistakes = [
            f"{'.'.join(map(str, row['loc']))}: {row['msg']}"
            + (f" (it is {row['input']!r})" if isinstance(row["input"], str | int) else "")
            for row in error.errors()
        ]
    # ValueError: neither TOML nor UTF-8; RecursionError: a thousand brackets.
    except (OSError, ValueError, RecursionError) as error:
        remedy = f"copy {EXAMPLE} and fill it in"
        raise UsageError(
            f"{path.name} cannot be read", where=str(path), why=str(error), remedy=remedy
        ) from None
    if mistakes:
        raise UsageError(
            "\n".join(f"{path.name}: {mistake}" for mistake in mistakes),
            where=str(path),
            remedy=f"{EXAMPLE} explains every key",
        )
    return file


def _contradictions(file: RigFile) -> Iterator[str]:
    """Yield the keys that are wrong beside others."""
    generator, sut, peer, layer2 = file.hosts.generator, file.hosts.sut, file.hosts.peer, None
    if bool(sut.bridge_port) != bool(sut.bridge_address):
        yield "hosts.sut: bridge_port and bridge_address need each other"
    elif layer2 := sut.layer2:
        if not sut.socket:
            yield "hosts.sut.bridge_port: a bridge for containers needs an engine"
        if layer2.port in sut.interfaces:
            yield f"hosts.sut.bridge_port: {layer2.port} is the host's own interface"
        if not _inside_subnet(generator, layer2):
            yield f"hosts.generator.addresses: none is in {layer2.subnet}: layer 2 has no router"
    # The peer may be another role of the generator's machine.
    same = peer is not None and (peer.ssh, peer.port) == (generator.ssh, generator.port)
    if peer and same and peer.addresses[0] != generator.addresses[0]:
        yield f"hosts.peer.addresses: its machine is the generator's, {generator.addresses[0]}"
    owners = {layer2.first: "hosts.sut.bridge_address"} if layer2 else {}
    for role, machine in file.machines.items():
        for address in machine.addresses if not (same and role == "peer") else ():
            if owners.setdefault(address, f"hosts.{role}.addresses") != f"hosts.{role}.addresses":
                yield f"hosts.{role}.addresses: {address} is also in {owners[address]}"
    for network in file.networks.values():
        yield from (f"networks.{network.name}: {why}" for why in _without_room(file, network))


def _inside_subnet(machine: Machine, network: Network) -> list[int]:
    """Return a machine's addresses in a subnet, as numbers."""
    subnet = ipaddress.ip_network(network.subnet)
    addresses = map(ipaddress.ip_address, machine.addresses)
    return [int(address) for address in addresses if address in subnet]


def _without_room(file: RigFile, network: Network) -> Iterator[str]:
    """Yield why a network has not enough addresses of its own."""
    subnet, first = ipaddress.ip_network(network.subnet), int(ipaddress.ip_address(network.first))
    end = first + APART * (2 if file.hosts.peer else 1)
    if first <= int(subnet[3]) or end > int(subnet[-1]):
        yield f"it needs {APART} addresses a host with an engine from there, and 3 before"
    hosts = [address for m in file.machines.values() for address in _inside_subnet(m, network)]
    if network.name == "macvlan":
        if not _inside_subnet(file.hosts.generator, network):
            yield "it is not in a subnet of the generator, and macvlan has no router"
        if any(first <= address < end for address in hosts):
            yield "a host has one of its addresses"
        return
    others = [*file.networks.values(), *filter(None, [file.hosts.sut.layer2])]
    subnets = [ipaddress.ip_network(other.subnet) for other in others if other.name != network.name]
    if hosts or any(subnet.overlaps(other) for other in subnets):
        yield "a host or another network is in its subnet"
