"""The converter from Ansible inventories, on what ansible-inventory really printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labkit.errors import UsageError
from labkit.rig.rigfile import read_rigfile

PROJECT = Path(__file__).parents[2]
CONVERTER = PROJECT / "docs" / "rigs" / "from_ansible.py"
CAPTURED = PROJECT / "tests" / "captured"


def convert(folder: Path, text: str) -> Path:
    argv = [sys.executable, str(CONVERTER)]
    printed = subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout
    path = folder / "rig.toml"
    path.write_text(printed)
    return path


def test_roles_of_enoslib(tmp_path: Path) -> None:
    machines = read_rigfile(
        convert(tmp_path, (CAPTURED / "ansible-enoslib.json").read_text())
    ).machines
    assert list(machines) == ["generator", "sut", "clean"]
    assert (machines["sut"].ssh, machines["sut"].user) == ("node-2.site.example", "root")
    assert (machines["sut"].addresses, machines["sut"].cpus) == (("198.18.0.2",), "2")


def test_groups_of_an_inventory(tmp_path: Path) -> None:
    machines = read_rigfile(
        convert(tmp_path, (CAPTURED / "ansible-inventory.json").read_text())
    ).machines
    generator, sut, collector = (machines[name] for name in ("generator", "sut", "collector"))
    assert (generator.ssh, generator.port, generator.sudo) == ("192.0.2.10", 2222, True)
    assert generator.addresses == ("198.18.0.2", "198.18.1.2")
    assert generator.cpus == "2-3" and sut.cpus == "2"
    assert sut.layer2 is not None and sut.layer2.port == "eth2"
    assert collector.mirrors == ("sut",)


def test_a_variable_that_is_no_key_is_refused_by_labkit(tmp_path: Path) -> None:
    text = (CAPTURED / "ansible-inventory.json").read_text()
    path = convert(tmp_path, text.replace("labkit_bridge_port", "labkit_bridge_prot"))
    with pytest.raises(UsageError, match="bridge_prot"):
        read_rigfile(path)
