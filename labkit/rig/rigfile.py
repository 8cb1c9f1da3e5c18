"""The file rig.toml, which describes machines of one's own by role; it connects to nothing."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, Field

from labkit.errors import UsageError
from labkit.hosts.target import Network
from labkit.placement import parse_cpus
from labkit.rig.networks import APART, named

EXAMPLE = "rig.example.toml"


def _path(value: str, info: pydantic.ValidationInfo) -> str:
    """Return a path relative to the file's folder as an absolute one."""
    return os.path.normpath(Path((info.context or {})["folder"], Path(value).expanduser()))


def _cpus(value: str) -> str:
    try:
        parse_cpus(value)
    except UsageError as error:
        raise ValueError(f"{error.what}: {error.remedy}") from None
    return value


def _address(value: str) -> str:
    address = IPv4Address(value)
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
FirstAddress = Annotated[IPv4Interface, pydantic.Strict(False), AfterValidator(_inside)]
Addresses = list[Annotated[str, AfterValidator(_address)]]
Between = Literal["macvlan", "nat", "overlay", "weave"]


class _Table(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


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
        engine = getattr(self, "engine", "none")
        return None if engine == "none" else str(engine)

    @property
    def layer2(self) -> Network | None:
        """The network of docker("bridge"), where the file describes one."""
        first, port = getattr(self, "bridge_address", None), getattr(self, "bridge_port", "")
        if first is None:
            return None
        own = Network("bridge", str(first.network), str(first.ip))
        return replace(own, engine="labkit-layer2", bridge="labbr0", port=port or "")


class EngineMachine(Machine):
    """A host with a Docker Engine."""

    engine: Annotated[str, Field(pattern=r"^unix:///\S+$")] = "unix:///var/run/docker.sock"
    #: The engine's ``--exec-root``, where it keeps the namespaces of overlay networks.
    exec_root: Directory = "/var/run/docker"


class SystemUnderTest(EngineMachine):
    """The system under test, which may also have no engine."""

    engine: Annotated[str, Field(pattern=r"^(none|unix:///\S+)$")] = "unix:///var/run/docker.sock"
    bridge_port: Interface | None = None
    bridge_address: FirstAddress | None = None


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


class RigFile(_Table):
    """The file; the fields are its keys."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    shared_machine: bool = False
    #: Seconds to wait for a host as the rig is opened: long enough for a reboot.
    patience: Annotated[float, Field(ge=0)] = 600.0
    hosts: Hosts
    #: The first address of each network between containers, with its prefix length.
    first: Annotated[dict[Between, FirstAddress], Field(alias="networks")] = {}

    @property
    def machines(self) -> dict[str, Machine]:
        """The hosts' tables by role."""
        return {role: machine for role, machine in self.hosts if machine}

    @property
    def networks(self) -> dict[str, Network]:
        """The networks between containers by name."""
        return {name: named(name, str(at.network), str(at.ip)) for name, at in self.first.items()}


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
    except pydantic.ValidationError as error:
        mistakes = [
            f"{'.'.join(map(str, row['loc']))}: {row['msg']}"
            + (f" (it is {row['input']!r})" if isinstance(row["input"], str | int) else "")
            for row in error.errors()
        ]
    # ValueError: neither TOML nor UTF-8; RuntimeError: no such home, or a thousand brackets.
    except (OSError, ValueError, RuntimeError) as error:
        what, remedy = f"{path.name} cannot be read", f"copy {EXAMPLE} and fill it in"
        raise UsageError(what, where=str(path), why=str(error), remedy=remedy) from None
    if mistakes:
        what = "\n".join(f"{path.name}: {mistake}" for mistake in mistakes)
        raise UsageError(what, where=str(path), remedy=f"{EXAMPLE} explains every key")
    return file


def _contradictions(file: RigFile) -> Iterator[str]:
    """Yield the keys that are wrong beside others."""
    generator, sut, layer2 = file.hosts.generator, file.hosts.sut, None
    if bool(sut.bridge_port) != bool(sut.bridge_address):
        yield "hosts.sut: bridge_port and bridge_address need each other"
    elif layer2 := sut.layer2:
        if not sut.socket:
            yield "hosts.sut.bridge_port: a bridge for containers needs an engine"
        if layer2.port in sut.interfaces:
            yield f"hosts.sut.bridge_port: {layer2.port} is the host's own interface"
        if not _addresses_in(layer2, generator):
            yield f"hosts.generator.addresses: none is in {layer2.subnet}: layer 2 has no router"
    owners = {layer2.first: ("sut.bridge_address", "")} if layer2 else {}
    for role, machine in file.machines.items():
        for address in machine.addresses:
            # The peer may be another role of the generator's machine.
            own = (f"{role}.addresses", f"{machine.ssh}:{machine.port}")
            other = owners.setdefault(address, own)
            if other[1] != own[1]:
                yield f"hosts.{own[0]}: {address} is also in hosts.{other[0]}"
    for network in file.networks.values():
        if why := _without_room(file, network):
            yield f"networks.{network.name}: {why}"


def _without_room(file: RigFile, network: Network) -> str:
    """Return why a network has not enough addresses of its own, or ""."""
    subnet, first = IPv4Network(network.subnet), IPv4Address(network.first)
    last = first + APART * (2 if file.hosts.peer else 1) - 1
    hosts = _addresses_in(network, *file.machines.values())
    others = [*file.networks.values(), *filter(None, [file.hosts.sut.layer2])]
    subnets = [IPv4Network(other.subnet) for other in others if other.name != network.name]
    if first <= subnet[3] or last >= subnet[-1]:
        return f"it needs {APART} addresses a host with an engine from there, and 3 before"
    if network.name != "macvlan":
        shared = hosts or any(subnet.overlaps(other) for other in subnets)
        return "a host or another network is in its subnet" if shared else ""
    if not _addresses_in(network, file.hosts.generator):
        return "it is not in a subnet of the generator, and macvlan has no router"
    return "a host has one of its addresses" if any(first <= a <= last for a in hosts) else ""


def _addresses_in(network: Network, *machines: Machine) -> list[IPv4Address]:
    """Return the machines' addresses in the subnet of a network."""
    addresses = [IPv4Address(one) for machine in machines for one in machine.addresses]
    return [address for address in addresses if address in IPv4Network(network.subnet)]
