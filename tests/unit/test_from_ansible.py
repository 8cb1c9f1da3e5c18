"""The converter from Ansible inventories, on what ansible-inventory really printed."""

import subprocess
import sys

import pytest

from labkit.errors import UsageError
from labkit.paths import SHIPPED
from labkit.rig.rigfile import read_rigfile


def run(name, old, new):
    text = (SHIPPED / "tests" / "captured" / name).read_text().replace(old, new)
    argv = [sys.executable, str(SHIPPED / "docs" / "rigs" / "from_ansible.py")]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=False)


def convert(folder, name, old="", new=""):
    done = run(name, old, new)
    assert done.returncode == 0
    (folder / "rig.toml").write_text(done.stdout)
    return read_rigfile(folder / "rig.toml")


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


#: What an inventory has in place of its first value, which INI makes a text or a list.
BECOME, CPUS, HOST = (
    '"ansible_become": true',
    '"labkit_cpus": "2-3"',
    '"ansible_host": "192.0.2.10"',
)


def test_values_of_ini_are_those_of_a_rig_file(tmp_path):
    for text, sudo in {"yes": True, "no": False, "True": True, "off": False}.items():
        file = convert(tmp_path, "ansible-inventory.json", BECOME, f'"ansible_become": "{text}"')
        assert file.hosts.generator.sudo is sudo
    file = convert(tmp_path, "ansible-inventory.json", CPUS, '"labkit_cpus": [2, 3]')
    assert file.hosts.generator.cpus == "2,3"
    file = convert(tmp_path, "ansible-inventory.json", "2222", '"2222"')
    assert file.hosts.generator.port == 2222


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ('"ansible_host": "{{ mgmt_ip }}"', "ansible_host is a template"),
        (f'{HOST}, "labkit_key": {{"__ansible_vault": "$ANSIBLE_VAULT;1.1"}}', "decrypt it first"),
        (f'{HOST}, "ansible_ssh_common_args": "-J gate"', "ansible_ssh_common_args is left out"),
    ],
)
def test_a_value_that_cannot_be_carried_over_is_named(new, words):
    assert words in run("ansible-inventory.json", HOST, new).stderr


def test_an_inventory_below_a_warning_with_groups_in_groups(tmp_path):
    name = "ansible-inventory.json"
    below = '"generator": {"children": ["load"]}, "peer": null, "load": {'
    assert convert(tmp_path, name, '"generator": {', below).hosts.generator.ssh == "192.0.2.10"
    assert convert(
        tmp_path, name, '{\n    "_meta"', '[WARNING]: {a}\n{\n    "_meta"'
    ).hosts.collector
    for wrong in ("all:", '{"all"'):
        assert "not the output of" in run(name, '{\n    "_meta"', wrong).stderr
