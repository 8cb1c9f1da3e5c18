"""Machines of one's own: rig.toml and its mistakes, the checks of hosts, what follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from labkit import doctor
from labkit.errors import CommandFailed, HostUnreachable, UsageError
from labkit.hosts import Host, LocalHost
from labkit.hosts.target import Network
from labkit.paths import SHIPPED as ROOT
from labkit.rig import checks, machines, rigfile
from labkit.rig.checks import Check, Seen
from labkit.rig.networks import NAMES
from labkit.rig.rigfile import RigFile
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
    assert sut.layer2 == Network("bridge", "198.18.1.0/24", "198.18.1.10", "198.18.1.1", **names)
    assert sut.socket == file.machines["peer"].socket == "unix:///var/run/docker.sock"
    assert generator.key == str(tmp_path / "keys" / "user"), "relative to the file"
    assert (generator.socket, generator.layer2, generator.known_hosts) == ("", None, None)
    overlay, nat = file.networks["overlay"], file.networks["nat"]
    assert set(file.networks) == {"bridge", "macvlan", "nat", "overlay"}
    assert (overlay.subnet, overlay.first) == ("192.0.2.0/24", "192.0.2.8")
    assert nat.gateway == "198.18.4.1"
    assert read(write(tmp_path, GOOD.replace('name = "pair"', ""))).name == "rig", "the file's"


def test_the_peer_may_be_the_generators_machine(tmp_path: Path) -> None:
    same = MORE.replace('"198.18.0.5"', '"198.18.0.2"')
    with pytest.raises(UsageError, match="is also another host"):
        read(write(tmp_path, same))
    same = same.replace('"peer.example"', '"gen.example"')
    assert read(write(tmp_path, same)).machines["peer"].addresses == ["198.18.0.2"]


MISTAKES = [
    ("[hosts.generator]", "[hosts.clean]", "hosts.generator: Field required"),
    ('["198.18.0.3"]', '["198.18.0.300"]', "hosts.sut.addresses.0: Value error"),
    ('["198.18.0.3"]', '["198.18.0.2"]', "hosts.sut.addresses: 198.18.0.2 is also another host's"),
    ('cpus = "2-3"', 'cpus = "all"', "hosts.sut.cpus: Value error, invalid CPU list: 'all'"),
    ('cpus = "2-3"', 'cpus = "2-3"\nscratch = "/a/../b"', "hosts.sut.scratch: String should"),
    ("overlay = ", "flannel = ", "networks.flannel.[key]: Input should be 'macvlan'"),
    ('"198.18.4.10/24"', '"198.18.4.3/24"', "networks.nat: it needs 96 addresses"),
    ('"198.18.4.10/24"', '"198.18.1.20/24"', "networks.nat: a host or another network has"),
    ('"198.18.4.10/24"', '"192.0.2.10/24"', "networks.nat: a host or another network has"),
    ('["198.18.0.5"]', '["198.18.0.50"]', "networks.macvlan: a host or another network has"),
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


# Hosts as they answer.

PORT = {"ifname": "eth2", "addr_info": [{"local": "fe80::1"}]}


def seen(
    file: RigFile, role: str, boot_id: str = "a", driver: str = "ixgbe", **changes: Any
) -> Seen:
    """Return a host that answers as its table says, but for the changes."""
    machine = file.machines[role]
    stable: dict[str, Any] = {
        "cpu": {"online": "0-3", "isolated": "2-3", "governor": {"0": "performance"}},
        "interfaces": {"eth1": {"driver": driver}},
        "engine": {"CgroupDriver": "cgroupfs", "Driver": "overlay2", "version": "20.10"},
        "virtualisation": {"hypervisor": False},
        "cgroup": {"version": "v2", "controllers": ["cpu", "cpuset"]},
    }
    links = [{"ifname": "eth1", "addr_info": [{"local": a} for a in machine.addresses]}, PORT]
    answers = {
        "python": "3.11.2",
        "user": 0,
        "scratch": True,
        "free_gib": 50.0,
        "absent": [],
        "links": links,
        "routes": {"198.18.0.9": [{"dev": "eth1"}]},
        "rules": role != "clean",
        "real_time": "",
        "filtered": False,
        "cannot": {},
    }
    facts = {"stable": stable | changes.pop("stable", {}), "volatile": {"boot_id": boot_id}}
    return Seen(role, machine, answers | changes, facts)


@pytest.fixture
def file(tmp_path: Path) -> RigFile:
    return read(write(tmp_path, GOOD))


def faults(host: Seen) -> dict[str, Check]:
    return {check.title: check for check in checks.check(host) if not check.ok}


def test_a_host_as_its_table_says_has_no_fault(file: RigFile) -> None:
    assert not faults(seen(file, "sut"))


LAB = {"ifname": "eth1", "addr_info": [{"local": "198.18.0.3"}]}
NAMED = PORT | {"addr_info": [{"local": "192.0.2.1"}]}
ONE_GROUP = {"cgroup": {"version": "v2", "controllers": ["cpu"]}}
SLOW = {"cpu": {"online": "0-3", "isolated": "2-3", "governor": {"0": "powersave"}}}
FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("python3", {"python": "3.8.10"}, "3.9 or later", "apt-get install python3"),
    ("root", {"user": 1000}, "need root", "sudo = true"),
    ("programs", {"absent": ["sockperf"]}, "no sockperf", "--no-install-recommends sockperf"),
    ("control groups", {"stable": ONE_GROUP}, "no controller cpuset", "mount"),
    ("addresses", {"links": [{"ifname": "eth1"}, PORT]}, "198.18.0.3 is not", "ip addr add"),
    ("addresses", {"links": [PORT]}, "eth1, 198.18.0.3 is not there", "in rig.toml: interfaces"),
    ("routes", {"routes": {"198.18.0.2": []}}, "not reached by eth1", "ip route add 198.18.0.2"),
    ("engine", {"stable": {"engine": None}}, "no Docker Engine answers", "systemctl start docker"),
    ("bridge port", {"links": [LAB, NAMED]}, "would lose its connections", "bridge_port"),
    ("bridge port", {"links": [LAB, PORT | {"master": "br0"}]}, "or a bridge", "bridge_port"),
    ("bridge port", {"links": [LAB]}, "it is not there", "bridge_port"),
    ("frequency governor", {"stable": SLOW}, "the load", "cpupower"),
    ("seccomp", {"filtered": True}, "outside a container", "seccomp=unconfined"),
]


@pytest.mark.parametrize(("title", "changes", "fault", "remedy"), FAULTS)
def test_a_fault_of_a_host_has_a_remedy(
    file: RigFile, title: str, changes: dict[str, Any], fault: str, remedy: str
) -> None:
    found = faults(seen(file, "sut", **changes))
    check = found[title]
    assert fault in check.fault and remedy in check.remedy
    is_note = title in ("frequency governor", "seccomp")
    assert check.line().startswith(f"{'note' if is_note else 'MISS'}  {title}: ")
    assert [name for name in found if found[name].needed] == [title] * (not is_note)


def missing(file: RigFile, **changes: Any) -> dict[str, str]:
    hosts = {role: seen(file, role) for role in file.machines}
    return machines.missing(file, hosts | {"sut": seen(file, "sut", "b", **changes)})


def test_separate_machines_with_real_interfaces_lack_little(file: RigFile) -> None:
    absent = {f"network:{name}" for name in NAMES}
    assert set(missing(file)) - absent == {"clean-host", "collector", "peer"}


@pytest.mark.parametrize(
    ("changes", "capability", "why"),
    [
        ({"driver": "veth"}, "nic-hardware", "host sut: eth1 is veth"),
        ({"driver": "virtio_net"}, "nic-hardware", "is no hardware"),
        ({"driver": "veth"}, "busy-poll", "no queue"),
        ({"real_time": "not permitted"}, "realtime", "not permitted"),
        ({"rules": False}, "rules", "no rules of an engine"),
        ({"absent": ["weaver"]}, "network:weave", "weaver, is not on PATH"),
        ({"cannot": {"overlay": "Unknown type"}}, "network:overlay", "no device for it (Unknown"),
    ],
)
def test_a_missing_capability_has_its_reason(
    file: RigFile, changes: dict[str, Any], capability: str, why: str
) -> None:
    assert why in missing(file, **changes)[capability]


def test_a_missing_capability_names_the_key_of_the_file(tmp_path: Path) -> None:
    def lacks(text: str) -> dict[str, str]:
        return missing(read(write(tmp_path, text)))

    assert "[hosts.collector]" in lacks(GOOD)["collector"]
    assert not {"collector", "peer", "network:nat"} & set(lacks(MORE))
    assert "[networks] has no such key" in lacks(MORE)["network:weave"]
    plain = GOOD.partition("bridge_port")[0]
    assert "bridge_port" in lacks(plain)["network:bridge"]
    assert "separate-machines" in lacks("shared_machine = true\n" + GOOD)


def test_kernels_and_caveats_follow_from_the_file_and_the_hosts(tmp_path: Path) -> None:
    file = read(write(tmp_path, "shared_machine = true\n" + GOOD))
    hosts = {"generator": seen(file, "generator"), "sut": seen(file, "sut", "b")}
    (said,) = machines.caveats(file, hosts)
    assert "guests of one machine: they share its CPUs" in said
    assert machines.kernels(hosts).ok
    one = machines.kernels(hosts | {"sut": seen(file, "sut")})
    assert one.needed and not one.ok and "the same boot identifier" in one.fault


# Hosts that are asked.


def test_this_machine_is_checked_as_a_host() -> None:
    links = LocalHost().run("ip", "-br", "link").stdout
    found = checks.look(None, "", LocalHost())
    titles = {check.title for check in checks.check(found)}
    assert {"python3", "root", "programs", "control groups", "seccomp"} <= titles
    assert not {"addresses", "engine"} & titles
    # A reason is the kernel's, not that of a wrong command, and what was tried is gone.
    assert not re.search("invalid|Usage|Garbage", " ".join(found.lacks.values()))
    assert LocalHost().run("ip", "-br", "link").stdout == links


def test_a_host_without_python_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("timeout", "sh", "env", "sleep"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(LocalHost, "python", "python3")
    with pytest.raises(CommandFailed, match="python3 failed") as caught:
        checks.look(None, "", LocalHost())
    assert caught.value.remedy == "apt-get install python3"


def test_what_fails_on_one_host_is_its_result_and_the_others_are_asked(tmp_path: Path) -> None:
    # The discard port of loopback, where nothing listens.
    closed = 'ssh = "127.0.0.1"\nport = 9\n'
    text = GOOD.replace('ssh = "gen.example"\n', closed).replace('ssh = "sut.example"\n', closed)
    path = write(tmp_path, text.replace("port = 2222\n", ""))
    found = doctor.check_rig(path)
    assert list(found) == ["generator", "sut"]
    for (check,) in found.values():
        assert check.needed and not check.ok and "cannot be reached" in check.fault and check.remedy

    def do(file: RigFile, role: str, host: Host) -> str:
        return role if role == "sut" else host.run("true").stdout

    results = machines.each(path, do)
    assert isinstance(results["generator"], HostUnreachable) and results["sut"] == "sut"
