"""rig.toml: what is read, and every mistake's error."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.errors import UsageError
from labkit.hosts.target import Network
from labkit.paths import ROOT
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


def write(folder: Path, text: str) -> Path:
    path = folder / "rig.toml"
    path.write_text(text)
    return path


def test_the_example_is_read_and_names_every_key() -> None:
    path = ROOT / rigfile.EXAMPLE
    book = read(path)
    assert set(book.machines) == set(rigfile.HostTables.model_fields)
    text = path.read_text()
    for key in {*rigfile.Machine.model_fields, *rigfile.NETWORK_NAMES}:
        assert f"\n{key} = " in text or f"\n# {key} = " in text, f"{key} is not explained"
    # What is commented out is right too, and what is said to be a default is one.
    assert read_text(path, text.replace("\n# gateway", "\ngateway")).machines["generator"].gateway
    assert book.machines["generator"].scratch == rigfile.SCRATCH
    assert book.machines["sut"].engine == rigfile.ENGINE
    assert book.machines["peer"].exec_root == rigfile.EXEC_ROOT


def read_text(near: Path, text: str) -> rigfile.Inventory:
    """Read a text as if it were a file beside another one."""
    path = near.with_name(".rig-test.toml")
    path.write_text(text)
    try:
        return read(path)
    finally:
        path.unlink()


def test_what_is_read(tmp_path: Path) -> None:
    book = read(write(tmp_path, GOOD))
    assert book.name == "pair"
    sut, generator = book.machines["sut"], book.machines["generator"]
    assert (sut.ssh, sut.user, sut.port, sut.sudo) == ("sut.example", "admin", 2222, True)
    assert (sut.engine, sut.gateway, sut.cpus) == (rigfile.ENGINE, "nc %h %p", "2-3")
    names = {"engine": "labkit-layer2", "bridge": "labbr0", "port": "eth2"}
    assert sut.layer2 == Network("bridge", "198.18.1.0/24", "198.18.1.10", **names)
    assert generator.key == str(tmp_path / "keys" / "user"), "relative to the file"
    assert generator.addresses == ("198.18.0.2", "198.18.1.2")
    assert (generator.engine, generator.layer2, generator.known_hosts) == (None, None, None)
    assert read(write(tmp_path, GOOD.replace('name = "pair"', ""))).name == "rig"
    assert read(write(tmp_path, GOOD + 'engine = "unix:///run/d.sock"')).machines["sut"].engine


WRONG = [
    ('name = "pair"', "name = 3", "name", "letters, digits"),
    ('name = "pair"', 'colour = "red"', "colour", "one of name, hosts, networks"),
    ("[hosts.generator]", "[hosts.clean]", "generator", "every rig has one"),
    ("[hosts.sut]", "[hosts.server]", "server", "one of generator, sut, clean, peer, collector"),
    ('ssh = "gen.example"\n', "", "ssh", "given for every host"),
    ('ssh = "gen.example"', 'ssh = ""', "ssh", "not empty"),
    ('ssh = "gen.example"', "ssh = 5", "ssh", "a text"),
    ("port = 2222", 'port = "2222"', "port", "a valid integer"),
    ("port = 2222", "port = 70000", "port", "less than 65536"),
    ("port = 2222", "port = true", "port", "a valid integer"),
    ("sudo = true", 'sudo = "yes"', "sudo", "a valid boolean"),
    ('addresses = ["198.18.0.3"]', 'addresses = "198.18.0.3"', "addresses", "a list"),
    ('addresses = ["198.18.0.3"]', "addresses = []", "addresses", "at least one"),
    ('addresses = ["198.18.0.3"]', 'addresses = ["sut"]', "addresses", "an IP address"),
    ('addresses = ["198.18.0.3"]', 'addresses = ["198.18.0.3/24"]', "addresses", "without prefix"),
    ('addresses = ["198.18.0.3"]', 'addresses = ["127.0.0.1"]', "addresses", "can send to"),
    ('addresses = ["198.18.0.3"]', 'addresses = ["198.18.0.2"]', "addresses", "of its own"),
    ('["eth1"]\ncpus = "2-3"', '["eth/1"]\ncpus = "2-3"', "interfaces", "network interface"),
    ('cpus = "2-3"', "cpus = 2", "cpus", "a CPU list"),
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
    ('bridge_address = "198.18.1.10/24"', "", "bridge_address", "or neither"),
    ('"198.18.1.10/24"', '"198.18.1.10"', "bridge_address", "with its prefix length"),
    ('"198.18.1.10/24"', '"198.18.1.0/24"', "bridge_address", "with its prefix length"),
    ('"198.18.1.10/24"', '"198.18.7.10/24"', "addresses", "layer 2 has no router"),
    ('"198.18.1.10/24"', '"198.18.1.2/24"', "bridge_address", "of its own"),
    ('bridge_port = "eth2"', 'bridge_port = "eth1"', "bridge_port", "another one"),
]


@pytest.mark.parametrize(("old", "new", "key", "expected"), WRONG)
def test_every_mistake_names_file_table_key_and_what_was_expected(
    tmp_path: Path, old: str, new: str, key: str, expected: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read(path)
    error = caught.value
    assert str(path) in error.where
    assert "table [hosts" in error.where or "top level" in error.where
    assert f"key {key}" in error.where
    assert expected in error.why
    assert rigfile.EXAMPLE in error.remedy
    assert error.exit_code == 2


@pytest.mark.parametrize("text", ["hosts = 3", "[hosts]\nsut = 3\ngenerator = 4", "name = ", ""])
def test_what_is_hardly_a_file_at_all(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(write(tmp_path, text))
    assert str(tmp_path / "rig.toml") in caught.value.where
    assert caught.value.why


def test_a_missing_file_says_what_to_copy(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read(tmp_path / "none.toml")
    assert rigfile.EXAMPLE in caught.value.remedy


# The examples.


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "rigs").glob("*.toml")), ids=lambda p: p.stem
)
def test_the_further_examples_are_read_and_say_what_they_decide(path: Path) -> None:
    book = read(path)
    assert book.name == path.stem
    text = path.read_text()
    assert "What it can decide" in text and "What it cannot" in text
    assert "docs/rigs" in (ROOT / rigfile.EXAMPLE).read_text()


def test_two_machines_have_a_capture_host_and_two_guests_an_engine_each() -> None:
    machines = read(ROOT / "docs" / "rigs" / "two-machines.toml").machines
    assert machines["collector"].mirrors == ("sut",) and machines["collector"].addresses == ()
    guests = read(ROOT / "docs" / "rigs" / "two-guests.toml")
    assert guests.machines["peer"].ssh == guests.machines["generator"].ssh
    assert {"macvlan", "overlay", "encrypted", "nat"} <= set(guests.networks)


# A second engine, a capture host, and networks between containers.

FURTHER = (
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
vxlan = "198.18.4.10/24"
overlay = "192.0.2.8/24"
"""
)


def test_a_second_engine_a_capture_host_and_networks_are_read(tmp_path: Path) -> None:
    book = read(write(tmp_path, FURTHER))
    peer, collector = book.machines["peer"], book.machines["collector"]
    assert (peer.engine, peer.exec_root) == (rigfile.ENGINE, rigfile.EXEC_ROOT)
    assert (collector.addresses, collector.mirrors) == ((), ("sut", "generator"))
    assert set(book.networks) == {"macvlan", "vxlan", "overlay"}
    tunnel = book.networks["vxlan"]
    assert (tunnel.subnet, tunnel.gateway) == ("198.18.4.0/24", "198.18.4.1")
    assert (tunnel.first, tunnel.bridge, tunnel.port) == ("198.18.4.10", "labvx0", "labvxlan0")
    assert book.networks["overlay"].gateway == ""
    assert read(write(tmp_path, GOOD)).networks == {}


def test_the_peer_may_be_the_generator_s_machine(tmp_path: Path) -> None:
    same = FURTHER.replace('"peer.example"', '"gen.example"').replace(
        '"198.18.0.5"', '"198.18.0.2"'
    )
    book = read(write(tmp_path, same))
    assert book.machines["peer"].addresses == ("198.18.0.2",)
    other = FURTHER.replace('"peer.example"', '"gen.example"')
    with pytest.raises(UsageError, match=r"peer\.addresses") as caught:
        read(write(tmp_path, other))
    assert "the same machine" in caught.value.why


WRONG_FURTHER = [
    ('"198.18.0.5"', '"198.18.0.2"', "addresses", "of its own"),
    (
        'interfaces = ["eth1"]\ncpus = "2"\n[hosts.collector]',
        'interfaces = ["eth1"]\ncpus = "2"\nengine = "none"\n[hosts.collector]',
        "engine",
        "an engine",
    ),
    ('mirrors = ["sut", "generator"]', 'mirrors = ["clean"]', "mirrors", "one of generator, sut"),
    ('mirrors = ["sut", "generator"]', "mirrors = []", "mirrors", "at least one"),
    ("[networks]", "networks = 3\n[networks2]", "networks2", "one of name"),
    ("vxlan =", "tunnel =", "tunnel", "one of macvlan, routed"),
    ('"198.18.4.10/24"', '"198.18.4.10"', "vxlan", "prefix length"),
    ('"198.18.4.10/24"', '"2001:db8::10/64"', "vxlan", "IPv4"),
    ('"198.18.4.10/24"', '"198.18.4.3/24"', "vxlan", "3 before"),
    ('"198.18.4.10/24"', '"198.18.4.100/24"', "vxlan", "96 addresses"),
    ('"198.18.4.10/24"', '"192.0.2.10/24"', "vxlan", "a subnet of its own"),
    ('"198.18.4.10/24"', '"198.18.1.20/24"', "vxlan", "a subnet of its own"),
    ('"198.18.4.10/24"', '"198.18.0.40/24"', "vxlan", "a subnet of its own"),
    ('macvlan = "198.18.0.32/24"', 'macvlan = "198.18.9.32/24"', "macvlan", "subnet of the gener"),
    ('addresses = ["198.18.0.5"]', 'addresses = ["198.18.0.50"]', "macvlan", "no host has"),
]


@pytest.mark.parametrize(("old", "new", "key", "expected"), WRONG_FURTHER)
def test_every_mistake_of_the_further_tables_says_what_was_expected(
    tmp_path: Path, old: str, new: str, key: str, expected: str
) -> None:
    assert old in FURTHER
    with pytest.raises(UsageError) as caught:
        read(write(tmp_path, FURTHER.replace(old, new, 1)))
    assert f"key {key}" in caught.value.where
    assert expected in caught.value.why
