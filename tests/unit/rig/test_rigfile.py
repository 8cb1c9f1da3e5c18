"""rig.toml: what is read, and the error of every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.errors import UsageError
from labkit.hosts.target import Network
from labkit.paths import SHIPPED as ROOT
from labkit.rig import rigfile
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
gateway = "nc %h %p"
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


def test_the_example_is_read_and_explains_every_key(tmp_path: Path) -> None:
    text = (ROOT / rigfile.EXAMPLE).read_text()
    machines = read(ROOT / rigfile.EXAMPLE).machines
    assert set(machines) == set(rigfile.HostTables.model_fields)
    for key in {*rigfile.Machine.model_fields, *rigfile.NETWORK_NAMES, "name", "shared_machine"}:
        assert f"\n{key} = " in text or f"\n# {key} = " in text, f"{key} is not explained"
    # What is commented out is valid, and what the comments call a default is one.
    uncommented = text.replace("\n# gateway", "\ngateway")
    assert read(write(tmp_path, uncommented)).machines["generator"].gateway
    assert machines["generator"].scratch == rigfile.SCRATCH
    assert machines["sut"].engine == rigfile.ENGINE
    assert machines["peer"].exec_root == rigfile.EXEC_ROOT


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "rigs").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_further_examples_are_read_and_say_what_they_decide(path: Path) -> None:
    assert read(path).name == path.stem
    assert read(path).shared_machine is (path.stem == "two-guests")
    text = path.read_text()
    assert "What it can decide" in text and "What it cannot" in text
    assert "docs/rigs" in (ROOT / rigfile.EXAMPLE).read_text()


def test_machines_and_networks_are_read(tmp_path: Path) -> None:
    inventory = read(write(tmp_path, MORE))
    assert inventory.name == "pair"
    sut, generator = inventory.machines["sut"], inventory.machines["generator"]
    assert (sut.ssh, sut.user, sut.port, sut.sudo) == ("sut.example", "admin", 2222, True)
    assert (sut.engine, sut.gateway, sut.cpus) == (rigfile.ENGINE, "nc %h %p", "2-3")
    names = {"engine": "labkit-layer2", "bridge": "labbr0", "port": "eth2"}
    assert sut.layer2 == Network("bridge", "198.18.1.0/24", "198.18.1.10", **names)
    assert generator.key == str(tmp_path / "keys" / "user"), "relative to the file"
    assert generator.addresses == ("198.18.0.2", "198.18.1.2")
    assert (generator.engine, generator.layer2, generator.known_hosts) == (None, None, None)
    peer, collector = inventory.machines["peer"], inventory.machines["collector"]
    assert (peer.engine, peer.exec_root) == (rigfile.ENGINE, rigfile.EXEC_ROOT)
    assert (collector.addresses, collector.mirrors) == ((), ("sut", "generator"))
    assert set(inventory.networks) == {"macvlan", "nat", "overlay"}
    nat = inventory.networks["nat"]
    assert (nat.subnet, nat.gateway) == ("198.18.4.0/24", "198.18.4.1")
    assert (nat.first, nat.bridge) == ("198.18.4.10", "labnat0")
    assert inventory.networks["overlay"].gateway == ""


def test_the_name_is_by_default_that_of_the_file(tmp_path: Path) -> None:
    assert read(write(tmp_path, GOOD.replace('name = "pair"', ""))).name == "rig"


def test_the_peer_may_be_the_generators_machine(tmp_path: Path) -> None:
    other = MORE.replace('"peer.example"', '"gen.example"')
    same = other.replace('"198.18.0.5"', '"198.18.0.2"')
    assert read(write(tmp_path, same)).machines["peer"].addresses == ("198.18.0.2",)
    with pytest.raises(UsageError, match=r"peer\.addresses") as caught:
        read(write(tmp_path, other))
    assert "the same machine" in caught.value.why


MISTAKES = [
    ('name = "pair"', "name = 3", "name", "letters, digits"),
    ('name = "pair"', 'shared_machine = "yes"', "shared_machine", "a valid boolean"),
    ('name = "pair"', 'colour = "red"', "colour", "one of name, shared_machine, patience, hosts"),
    ("[hosts.generator]", "[hosts.clean]", "generator", "every rig has one"),
    ("[hosts.sut]", "[hosts.server]", "server", "one of generator, sut, clean, peer, collector"),
    ('ssh = "gen.example"\n', "", "ssh", "given for every host"),
    ('ssh = "gen.example"', 'ssh = ""', "ssh", "not empty"),
    ("port = 2222", 'port = "2222"', "port", "a valid integer"),
    ("port = 2222", "port = 70000", "port", "less than 65536"),
    ("sudo = true", 'sudo = "yes"', "sudo", "a valid boolean"),
    ('addresses = ["198.18.0.3"]', 'addresses = "198.18.0.3"', "addresses", "a list"),
    ('addresses = ["198.18.0.3"]', "addresses = []", "addresses", "at least one"),
    ('addresses = ["198.18.0.3"]', 'addresses = ["sut"]', "addresses", "an IP address"),
    ('addresses = ["198.18.0.3"]', 'addresses = ["127.0.0.1"]', "addresses", "can send to"),
    ('addresses = ["198.18.0.3"]', 'addresses = ["198.18.0.2"]', "addresses", "of its own"),
    ('["eth1"]\ncpus = "2-3"', '["eth/1"]\ncpus = "2-3"', "interfaces", "network interface"),
    ('cpus = "2-3"', 'cpus = "all"', "cpus", "a CPU list"),
    ('cpus = "2-3"', 'cpus = "2-3"\nscratch = "here"', "scratch", "absolute path"),
    ('cpus = "2-3"', 'cpus = "2-3"\nscratch = "/a/../b"', "scratch", "absolute path"),
    ('cpus = "2-3"', 'cpus = "2-3"\nengine = "tcp://x:1"', "engine", "a socket on that host"),
    ('cpus = "2-3"', 'cpus = "2-3"\nengine = "none"', "engine", "since there is a bridge"),
    ('cpus = "2"', 'cpus = "2"\nengine = "none"', "engine", "only sut and peer"),
    ('cpus = "2"', 'cpus = "2"\nbridge_port = "eth2"', "bridge_port", "only sut to have it"),
    ('cpus = "2"', 'cpus = "2"\nmirrors = ["sut"]', "mirrors", "only collector to have it"),
    ('cpus = "2"', 'cpus = "2"\ncpu = "2"', "cpu", "one of ssh, user, port"),
    ('bridge_port = "eth2"\n', "", "bridge_port", "or neither"),
    ('"198.18.1.10/24"', '"198.18.1.10"', "bridge_address", "with its prefix length"),
    ('"198.18.1.10/24"', '"198.18.1.0/24"', "bridge_address", "with its prefix length"),
    ('"198.18.1.10/24"', '"198.18.7.10/24"', "addresses", "layer 2 has no router"),
    ('"198.18.1.10/24"', '"198.18.1.2/24"', "bridge_address", "of its own"),
    ('bridge_port = "eth2"', 'bridge_port = "eth1"', "bridge_port", "another one"),
    (
        'interfaces = ["eth1"]\ncpus = "2"\n[hosts.collector]',
        'interfaces = ["eth1"]\ncpus = "2"\nengine = "none"\n[hosts.collector]',
        "engine",
        "an engine",
    ),
    ('mirrors = ["sut", "generator"]', 'mirrors = ["clean"]', "mirrors", "one of generator, sut"),
    ("[networks]", "networks = 3\n[networks2]", "networks2", "one of name"),
    ("nat =", "tunnel =", "tunnel", "one of macvlan, nat"),
    ('"198.18.4.10/24"', '"198.18.4.10"', "nat", "prefix length"),
    ('"198.18.4.10/24"', '"2001:db8::10/64"', "nat", "IPv4"),
    ('"198.18.4.10/24"', '"198.18.4.3/24"', "nat", "3 before"),
    ('"198.18.4.10/24"', '"198.18.4.100/24"', "nat", "96 addresses"),
    ('"198.18.4.10/24"', '"192.0.2.10/24"', "nat", "a subnet of its own"),
    ('"198.18.4.10/24"', '"198.18.1.20/24"', "nat", "a subnet of its own"),
    ('"198.18.4.10/24"', '"198.18.0.40/24"', "nat", "a subnet of its own"),
    ('macvlan = "198.18.0.32/24"', 'macvlan = "198.18.9.32/24"', "macvlan", "subnet of the gener"),
    ('addresses = ["198.18.0.5"]', 'addresses = ["198.18.0.50"]', "macvlan", "no host has"),
]


@pytest.mark.parametrize(("old", "new", "key", "expected"), MISTAKES)
def test_a_mistake_names_file_table_key_and_what_was_expected(
    tmp_path: Path, old: str, new: str, key: str, expected: str
) -> None:
    assert old in MORE
    path = write(tmp_path, MORE.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read(path)
    error = caught.value
    assert str(path) in error.where and f"key {key}" in error.where
    assert "table [" in error.where or "top level" in error.where
    assert expected in error.why and rigfile.EXAMPLE in error.remedy
    assert error.exit_code == 2


@pytest.mark.parametrize("text", ["hosts = 3", "[hosts]\nsut = 3\ngenerator = 4", "name = ", ""])
def test_a_file_that_is_no_inventory_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(write(tmp_path, text))
    assert str(tmp_path / "rig.toml") in caught.value.where and caught.value.why


def test_a_missing_file_says_what_to_copy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read(tmp_path / "none.toml")
    assert rigfile.EXAMPLE in caught.value.remedy


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"nc %h %p"', '"nc \'%h"', "quotes are closed"),
        ('"keys/user"', '"~nobody-of-this-name/key"', "home of a user"),
        ('["198.18.0.3"]', "[" * 5000, "cannot be read"),
    ],
)
def test_what_no_command_and_no_path_can_be(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(write(tmp_path, GOOD.replace(old, new)))
    assert words in str(caught.value)
