"""The converter from Ansible inventories, on what ansible-inventory really printed."""

import subprocess
import sys

import pytest

from labkit.errors import UsageError
from labkit.paths import SHIPPED
from labkit.rig.rigfile import read_rigfile


def convert(folder, name, old="", new=""):
    text = (SHIPPED / "tests" / "captured" / name).read_text().replace(old, new)
    argv = [sys.executable, str(SHIPPED / "docs" / "rigs" / "from_ansible.py")]
    printed = subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout
    (folder / "rig.toml").write_text(printed)
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
