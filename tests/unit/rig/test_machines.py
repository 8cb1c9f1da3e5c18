"""Machines of one's own: rig.toml, its mistakes, inventories as one; checks, what follows."""

import re
import subprocess
import sys
from typing import Any

import pytest
from damaged import damaged, survives
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.hosts.target import Network
from labkit.paths import SHIPPED as ROOT
from labkit.rig import checks, machines, rigfile
from labkit.rig.checks import Seen
from labkit.rig.networks import NAMES
from labkit.rig.rigfile import read_rigfile as read

#: The example with a key in its own folder, another port, and more CPUs of the sut.
TEXT = (ROOT / rigfile.EXAMPLE).read_text().replace("~/.ssh/id_ed25519", "keys/user")
TEXT = TEXT.replace("port = 22\n", "port = 2222\n")
TEXT = TEXT.replace('cpus = "2"\n# The engine', 'cpus = "2-3"\n# The engine')
#: Generator and sut; all that the example has but a clean host and Weave Net.
GOOD = TEXT.partition("[hosts.clean]")[0]
MORE = GOOD + "[hosts.peer]" + TEXT.partition("[hosts.peer]")[2].partition("weave = ")[0]


def write(folder, text):
    path = folder / "rig.toml"
    path.write_text(text)
    return path


def test_the_example_explains_every_key():
    text = (ROOT / rigfile.EXAMPLE).read_text()
    machines = read(ROOT / rigfile.EXAMPLE).machines
    assert set(machines) == set(rigfile.Hosts.model_fields)
    tables = (*map(type, machines.values()), rigfile.RigFile)
    keys = {key for table in tables for key in table.model_fields} - {"hosts", "first"}
    for key in {*keys, *NAMES}:
        assert f"\n{key} = " in text, f"{key} is not explained"
    for path in (ROOT / "docs" / "rigs").glob("*.toml"):
        assert read(path).name == path.stem


def test_machines_and_networks_are_read(tmp_path):
    file = read(write(tmp_path, MORE))
    sut, generator = file.machines["sut"], file.machines["generator"]
    assert (sut.ssh, sut.user, sut.sudo) == ("sut.lab.example", "admin", True)
    names = {"engine": "labkit-layer2", "bridge": "labbr0", "port": "eth2"}
    layer2 = Network("bridge", "198.18.1.0/24", "198.18.1.10", "198.18.1.1", **names)
    assert file.networks["bridge"] == layer2
    assert sut.socket == file.machines["peer"].socket == "unix:///var/run/docker.sock"
    assert generator.key == str(tmp_path / "keys" / "user"), "relative to the file"
    assert (generator.socket, generator.port, sut.known_hosts) == ("", 2222, None)
    assert set(file.networks) == {"bridge", "macvlan", "nat", "overlay"}
    assert file.networks["overlay"].subnet == "198.18.5.0/24"
    assert file.networks["nat"].gateway == "198.18.3.1"


MISTAKES = [
    (MORE, "name = ", "cannot be read"),
    (MORE, "[" * 5000, "cannot be read"),
    ("[hosts.generator]", "[hosts.clean]", "hosts.generator: Field required"),
    ('["198.18.0.3"]', '["198.18.0.300"]', "hosts.sut.addresses.0: Value error"),
    ('cpus = "2-3"', 'cpus = "all"', "hosts.sut.cpus: Value error, invalid CPU list: 'all'"),
    ('cpus = "2-3"', "cpus = 2\ncpu = 2", "hosts.sut.cpus: Input should be a valid string"),
    ('cpus = "2-3"', "cpus = 2\ncpu = 2", "hosts.sut.cpu: Extra inputs are not permitted"),
    ('cpus = "2-3"', 'cpus = "2-3"\nscratch = "/a/../b"', "hosts.sut.scratch: String should"),
    ("overlay = ", "flannel = ", "networks.flannel.[key]: Input should be 'macvlan'"),
    ('"198.18.3.10/24"', '"198.18.3.3/24"', "networks.nat: it needs 96 addresses"),
    ('"198.18.3.10/24"', '"198.18.3.10"', "networks.nat: Value error, it needs its prefix"),
    ('"198.18.3.10/24"', '"198.18.1.20/24"', "networks.nat: a host or another network has"),
    ('"198.18.3.10/24"', '"198.18.5.20/24"', "networks.nat: a host or another network has"),
    ('["198.18.0.5"]', '["198.18.0.50"]', "networks.macvlan: a host or another network has"),
]


@pytest.mark.parametrize(("old", "new", "expected"), MISTAKES)
def test_every_mistake_names_file_key_and_remedy(tmp_path, old, new, expected):
    path = write(tmp_path, MORE.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read(path)
    error = caught.value
    assert expected in error.what and path.read_text() != MORE
    assert all(line.startswith("rig.toml") for line in error.what.splitlines())
    assert error.where == str(path) and rigfile.EXAMPLE in error.remedy


@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(data, tmp_path):
    changed = data.draw(damaged((ROOT / rigfile.EXAMPLE).read_text("utf-8")))
    (tmp_path / "rig.toml").write_bytes(changed.encode("utf-8", "surrogatepass"))
    survives(lambda: read(tmp_path / "rig.toml"))


# Hosts as they answer.

PORT = {"ifname": "eth2", "addr_info": [{"local": "fe80::1"}]}


def seen(file, role, boot_id="a", driver="ixgbe", **changes):
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
    answers = {"python": "3.11.2", "user": 0, "scratch": True, "free_gib": 50.0, "absent": []}
    answers |= {"links": links, "routes": {"198.18.0.9": [{"dev": "eth1"}]}, "real_time": ""}
    answers |= {"rules": role != "clean", "filtered": False, "cannot": {}}
    facts = {"stable": stable | changes.pop("stable", {}), "volatile": {"boot_id": boot_id}}
    return Seen(role, machine, answers | changes, facts)


@pytest.fixture
def file(tmp_path):
    return read(write(tmp_path, GOOD))


def faults(host):
    return {check.title: check for check in checks.check(host) if not check.ok}


LAB = {"ifname": "eth1", "addr_info": [{"local": "198.18.0.3"}]}
NAMED = PORT | {"addr_info": [{"local": "192.0.2.1"}]}
ONE_GROUP = {"cgroup": {"version": "v2", "controllers": ["cpu"]}}
GUEST = {"virtualisation": {"hypervisor": True}}
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
def test_a_fault_of_a_host_has_a_remedy(file, title, changes, fault, remedy):
    assert not faults(seen(file, "sut"))
    found = faults(seen(file, "sut", **changes))
    check = found[title]
    assert fault in check.fault and remedy in check.remedy
    is_note = title in ("frequency governor", "seccomp")
    assert check.line().startswith(f"{'note' if is_note else 'MISS'}  {title}: ")
    assert [name for name in found if found[name].needed] == [title] * (not is_note)


def missing(file, **changes):
    hosts = {role: seen(file, role) for role in file.machines}
    return machines.missing(file, hosts | {"sut": seen(file, "sut", "b", **changes)})


def test_separate_machines_with_real_interfaces_lack_little(tmp_path, file):
    absent = {f"network:{name}" for name in NAMES}
    assert set(missing(file)) - absent == {"clean-host", "collector", "peer"}
    assert set(missing(read(write(tmp_path, MORE)))) == {"clean-host", "network:weave"}


@pytest.mark.parametrize(
    ("text", "changes", "capability", "why"),
    [
        (GOOD, {"driver": "veth"}, "nic-hardware", "host sut: eth1 is veth"),
        (GOOD, {"driver": "virtio_net"}, "nic-hardware", "is no hardware"),
        (GOOD, {"driver": "veth"}, "busy-poll", "no queue"),
        (GOOD, {"real_time": "not permitted"}, "realtime", "not permitted"),
        (GOOD, {"rules": False}, "rules", "no rules of an engine"),
        (GOOD, {"absent": ["weaver"]}, "network:weave", "weaver, is not on PATH"),
        (GOOD, {"cannot": {"overlay": "Unknown type"}}, "network:overlay", "no device for it (Unk"),
        (GOOD, {"stable": GUEST}, "own-cpus", "sut share CPUs unseen"),
        (GOOD, {}, "collector", "[hosts.collector]"),
        (MORE, {}, "network:weave", "[networks] has no such key"),
        (GOOD.partition("bridge_port")[0], {}, "network:bridge", "bridge_port"),
        (GOOD.replace(" = false", " = true", 1), {}, "separate-machines", "share CPUs, caches and"),
    ],
)
def test_a_missing_capability_has_its_reason(tmp_path, text, changes, capability, why):
    assert why in missing(read(write(tmp_path, text)), **changes)[capability]


def test_the_two_ends_have_kernels_of_their_own(file):
    hosts = {"generator": seen(file, "generator"), "sut": seen(file, "sut", "b")}
    assert machines.kernels(hosts).ok
    one = machines.kernels(hosts | {"sut": seen(file, "sut")})
    assert one.needed and not one.ok and "the same boot identifier" in one.fault


# Hosts that are asked.


def test_this_machine_is_checked_as_a_host():
    links = Host().run("ip", "-br", "link").stdout
    found = checks.look(None, "", Host())
    titles = {check.title for check in checks.check(found)}
    assert {"python3", "root", "programs", "control groups", "seccomp"} <= titles
    assert not {"addresses", "engine"} & titles
    # A reason is the kernel's, not that of a wrong command, and what was tried is gone.
    assert not re.search("invalid|Usage|Garbage", " ".join(found.lacks.values()))
    assert Host().run("ip", "-br", "link").stdout == links


def test_hosts_that_cannot_be_reached_are_all_listed(tmp_path):
    # The discard port of loopback, where nothing listens.
    text = re.sub("ssh = .*", 'ssh = "127.0.0.1"\nport = 9', GOOD.replace("port = 2222\n", ""))
    found = machines.check(write(tmp_path, text))
    assert list(found) == ["generator", "sut"]
    for (check,) in found.values():
        assert check.needed and not check.ok and "cannot be reached" in check.fault and check.remedy


# The converter from Ansible inventories, on what ansible-inventory really printed.


def from_ansible(name, old, new):
    text = (ROOT / "tests" / "captured" / name).read_text().replace(old, new)
    argv = [sys.executable, str(ROOT / "docs" / "rigs" / "from_ansible.py")]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=False)


def convert(folder, name, old="", new=""):
    done = from_ansible(name, old, new)
    assert done.returncode == 0
    (folder / "rig.toml").write_text(done.stdout)
    return read(folder / "rig.toml")


def test_roles_of_enoslib(tmp_path):
    machines = convert(tmp_path, "ansible-enoslib.json").machines
    assert list(machines) == ["generator", "sut", "clean"]
    assert (machines["sut"].ssh, machines["sut"].user) == ("node-2.site.example", "root")
    assert (machines["sut"].addresses, machines["sut"].cpus) == (["198.18.0.2"], "2")


def test_groups_of_an_inventory(tmp_path):
    file = convert(tmp_path, "ansible-inventory.json")
    generator, layer2 = file.hosts.generator, file.networks["bridge"]
    assert (generator.ssh, generator.port, generator.sudo) == ("192.0.2.10", 2222, True)
    assert generator.addresses == ["198.18.0.2", "198.18.1.2"]
    assert layer2.port == "eth2" and file.hosts.collector.mirrors == ["sut"]
    with pytest.raises(UsageError, match="bridge_prot"):  # a variable that is no key
        convert(tmp_path, "ansible-inventory.json", "labkit_bridge_port", "labkit_bridge_prot")


INVENTORY, START = "ansible-inventory.json", '{\n    "_meta"'
HOST = '"ansible_host": "192.0.2.10"'


def test_values_of_ini_are_those_of_a_rig_file(tmp_path):
    for text, sudo in {"yes": True, "no": False, "True": True, "off": False}.items():
        found = convert(tmp_path, INVENTORY, " true,\n", f' "{text}",\n').hosts.generator
        assert found.sudo is sudo
    assert convert(tmp_path, INVENTORY, '"2-3"', "[2, 3]").hosts.generator.cpus == "2,3"
    assert convert(tmp_path, INVENTORY, "2222", '"2222"').hosts.generator.port == 2222


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ('"ansible_host": "{{ mgmt_ip }}"', "ansible_host is a template"),
        (f'{HOST}, "labkit_key": {{"__ansible_vault": "$ANSIBLE_VAULT;1.1"}}', "decrypt it first"),
        (f'{HOST}, "ansible_ssh_common_args": "-J gate"', "ansible_ssh_common_args is left out"),
    ],
)
def test_a_value_that_cannot_be_carried_over_is_named(new, words):
    assert words in from_ansible(INVENTORY, HOST, new).stderr


def test_an_inventory_below_a_warning_with_groups_in_groups(tmp_path):
    below = '"generator": {"children": ["load"]}, "peer": null, "load": {'
    file = convert(tmp_path, INVENTORY, '"generator": {', below)
    assert file.hosts.generator.ssh == "192.0.2.10"
    assert convert(tmp_path, INVENTORY, START, f"[WARNING]: {{a}}\n{START}").hosts.collector
    for wrong in ("all:", '{"all"'):
        assert "not the output of" in from_ansible(INVENTORY, START, wrong).stderr
