"""The file rig.toml, which describes machines of one's own by role; it connects to nothing."""

import os
import tomllib
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, Field

from labkit.errors import UsageError
from labkit.hosts.target import Network
from labkit.paths import project
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


def _with_prefix(value: IPv4Interface) -> IPv4Interface:
    if value.network.num_addresses < APART:
        raise ValueError(f"it needs its prefix length, as in {value.ip}/24")
    return value


Text = Annotated[str, Field(pattern=r"^[^\s\x00]+$")]
LocalPath = Annotated[str, AfterValidator(_path)]
Directory = Annotated[str, Field(pattern=r"^(/(\w|[+@-])[\w.+@-]*)+$")]
FirstAddress = Annotated[IPv4Interface, pydantic.Strict(False), AfterValidator(_with_prefix)]
Addresses = list[Annotated[str, AfterValidator(lambda value: str(IPv4Address(value)))]]
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
    interfaces: Annotated[list[Text], Field(min_length=1)]
    cpus: Annotated[str, Field(min_length=1), AfterValidator(_cpus)]
    scratch: Directory = "/var/lib/labkit/inventory"

    @property
    def socket(self) -> str:
        """The socket of its Docker Engine, "" for a host without one."""
        return str(getattr(self, "engine", ""))


class EngineMachine(Machine):
    """A host with a Docker Engine."""

    engine: Annotated[str, Field(pattern=r"^unix:///\S+$")] = "unix:///var/run/docker.sock"
    #: The engine's ``--exec-root``, where it keeps the namespaces of overlay networks.
    exec_root: Directory = "/var/run/docker"


class SystemUnderTest(EngineMachine):
    """The system under test."""

    bridge_port: Text | None = None
    bridge_address: FirstAddress | None = None


class Collector(Machine):
    """A host that captures what the switch mirrors to it; it needs no address in the lab."""

    addresses: Addresses = []
    mirrors: Annotated[list[Literal["generator", "sut"]], Field(min_length=1)]


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
        sut = self.hosts.sut
        found: dict[str, Network] = {name: named(name, one) for name, one in self.first.items()}
        if sut.bridge_port and sut.bridge_address:
            found["bridge"] = named("bridge", sut.bridge_address, port=sut.bridge_port)
        return found


def read_rigfile(path: Path | str) -> RigFile:
    """Return what a rig file describes; raise `UsageError` with every key that is wrong."""
    path = project(path)
    try:
        data = tomllib.loads(path.read_text("utf-8-sig"))
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
    """Yield networks whose addresses do not fit, or that a host or another network has."""
    hosts = [IPv4Address(at) for machine in file.machines.values() for at in machine.addresses]
    subnets = {name: IPv4Network(network.subnet) for name, network in file.networks.items()}
    for name, network in file.networks.items():
        subnet, first = subnets[name], IPv4Address(network.first)
        last = first + APART * (2 if file.hosts.peer else 1) - 1
        if first <= subnet[3] or last >= subnet[-1]:
            yield f"networks.{name}: it needs {APART} addresses a host from there, and 3 before"
        # Hosts are in the subnets of these two.
        shared = name in ("bridge", "macvlan")
        taken = any(first <= at <= last if shared else at in subnet for at in hosts)
        if taken or any(subnet.overlaps(of) for other, of in subnets.items() if other != name):
            yield f"networks.{name}: a host or another network has its addresses"
