"""rig.toml: what is read, and the error of every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.errors import UsageError
from labkit.hosts.target import Network
from labkit.paths import SHIPPED as ROOT
from labkit.rig import rigfile
from labkit.rig.networks import NAMES
from labkit.rig.rigfile import read_rigfile as read

GOOD = """
name = "pair"
[hosts.generator]
ssh = "gen.example"
key = "keys/user"
addresses = ["198.18.0.2", "198.18.1.2"]
interfaces = ["eth1"]
cpus = "2"
[hosts.sut]
ssh = "sut.example"
user = "admin"
port = 2222
sudo = true
addresses = ["198.18.0.3"]
interfaces = ["eth1"]
cpus = "2-3"
bridge_port = "eth2"
bridge_address = "198.18.1.10/24"
"""
MORE = (
    GOOD
    + """
[hosts.peer]
ssh = "peer.example"
addresses = ["198.18.0.5"]
interfaces = ["eth1"]
cpus = "2"
[hosts.collector]
ssh = "collector.example"
interfaces = ["eth1"]
cpus = "2"
mirrors = ["sut", "generator"]
[networks]
macvlan = "198.18.0.32/24"
nat = "198.18.4.10/24"
overlay = "192.0.2.8/24"
"""
)


def write(folder: Path, text: str) -> Path:
    path = folder / "rig.toml"
    path.write_text(text)
    return path


def test_the_example_explains_every_key() -> None:
    text = (ROOT / rigfile.EXAMPLE).read_text()
    machines = read(ROOT / rigfile.EXAMPLE).machines
    assert set(machines) == set(rigfile.Hosts.model_fields)
    tables = (*map(type, machines.values()), rigfile.RigFile)
    keys = {key for table in tables for key in table.model_fields} - {"hosts", "first"}
    for key in {*keys, *NAMES}:
        assert f"\n{key} = " in text, f"{key} is not explained"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "rigs").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_further_examples_are_read(path: Path) -> None:
    assert read(path).name == path.stem
    assert read(path).shared_machine is (path.stem == "two-guests")


def test_machines_and_networks_are_read(tmp_path: Path) -> None:
    file = read(write(tmp_path, MORE))
    sut, generator = file.machines["sut"], file.machines["generator"]
    assert (sut.ssh, sut.user, sut.port, sut.sudo) == ("sut.example", "admin", 2222, True)
    names = {"engine": "labkit-layer2", "bridge": "labbr0", "port": "eth2"}
    assert sut.layer2 == Network("bridge", "198.18.1.0/24", "198.18.1.10", **names)
    assert sut.socket == file.machines["peer"].socket == "unix:///var/run/docker.sock"
    assert generator.key == str(tmp_path / "keys" / "user"), "relative to the file"
    assert (generator.socket, generator.layer2, generator.known_hosts) == (None, None, None)
    overlay, nat = file.networks["overlay"], file.networks["nat"]
    assert set(file.networks) == {"macvlan", "nat", "overlay"}
    assert (overlay.subnet, overlay.first) == ("192.0.2.0/24", "192.0.2.8")
    assert nat.gateway == "198.18.4.1"
    assert read(write(tmp_path, GOOD.replace('name = "pair"', ""))).name == "rig", "the file's"


def test_the_peer_may_be_the_generators_machine(tmp_path: Path) -> None:
    same = MORE.replace('"198.18.0.5"', '"198.18.0.2"')
    with pytest.raises(UsageError, match="is also in hosts"):
        read(write(tmp_path, same))
    same = same.replace('"peer.example"', '"gen.example"')
    assert read(write(tmp_path, same)).machines["peer"].addresses == ["198.18.0.2"]


MISTAKES = [
    ("[hosts.generator]", "[hosts.clean]", "hosts.generator: Field required"),
    ('ssh = "gen.example"', 'ssh = "-oProxyCommand=x"', "hosts.generator.ssh: String should match"),
    ('["198.18.0.3"]', '["127.0.0.1"]', "hosts.sut.addresses.0: Value error, no other host"),
    ('["198.18.0.3"]', '["198.18.0.2"]', "198.18.0.2 is also in hosts.generator.addresses"),
    ('cpus = "2-3"', 'cpus = "all"', "hosts.sut.cpus: Value error, invalid CPU list: 'all'"),
    ('cpus = "2-3"', 'cpus = "2-3"\nscratch = "/a/../b"', "hosts.sut.scratch: String should"),
    ('cpus = "2-3"', 'cpus = "2-3"\nengine = "none"', "a bridge for containers needs an engine"),
    ('bridge_port = "eth2"\n', "", "bridge_port and bridge_address need each other"),
    ('"198.18.1.10/24"', '"198.18.1.0/24"', "hosts.sut.bridge_address: Value error, not the"),
    ('"198.18.1.10/24"', '"198.18.7.10/24"', "layer 2 has no router"),
    ('"198.18.1.10/24"', '"198.18.1.2/24"', "198.18.1.2 is also in hosts.sut.bridge_address"),
    ('bridge_port = "eth2"', 'bridge_port = "eth1"', "eth1 is the host's own interface"),
    ("overlay = ", "flannel = ", "networks.flannel.[key]: Input should be 'macvlan'"),
    ('"198.18.4.10/24"', '"198.18.4.3/24"', "networks.nat: it needs 96 addresses"),
    ('"198.18.4.10/24"', '"198.18.1.20/24"', "networks.nat: a host or another network is in"),
    ('"198.18.0.32/24"', '"198.18.9.32/24"', "networks.macvlan: it is not in a subnet of the gen"),
    ('["198.18.0.5"]', '["198.18.0.50"]', "networks.macvlan: a host has one of its addresses"),
]


@pytest.mark.parametrize(("old", "new", "expected"), MISTAKES)
def test_a_mistake_names_file_key_and_remedy(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in MORE
    path = write(tmp_path, MORE.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read(path)
    error = caught.value
    assert expected in error.what
    assert all(line.startswith("rig.toml: ") for line in error.what.splitlines())
    assert error.where == str(path) and rigfile.EXAMPLE in error.remedy


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(write(tmp_path, GOOD.replace('cpus = "2"', 'cpu = "2"').replace("2222", "0")))
    keys = [line.split(": ")[1] for line in caught.value.what.splitlines()]
    assert sorted(keys) == ["hosts.generator.cpu", "hosts.generator.cpus", "hosts.sut.port"]


@pytest.mark.parametrize("text", ["name = ", "[" * 5000, None])
def test_a_file_that_cannot_be_read_says_what_to_copy(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "none.toml" if text is None else write(tmp_path, text)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read(path)
    assert caught.value.where == str(path) and rigfile.EXAMPLE in caught.value.remedy
