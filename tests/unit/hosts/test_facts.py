"""Facts of this machine, and of texts that others would have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.hosts import LocalHost, agent, collect_facts

MOUNTS = """cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
ETHTOOL = """Ring parameters for eth0:
Pre-set maximums:
RX:\t\t256
Current hardware settings:
RX:\t\t128
Speed: Unknown!
"""


def test_facts_of_this_machine() -> None:
    facts = collect_facts(LocalHost(), interfaces=["lo", "no-such"], engine_socket="/no/socket")
    stable = facts["stable"]
    assert stable["kernel"]["release"] and stable["cpu"]["count"] and stable["cpu"]["model"]
    assert stable["interfaces"]["lo"]["mtu"] > 0
    assert stable["interfaces"]["no-such"]["mtu"] is None
    assert len(facts["volatile"]["boot_id"]) == 36
    assert "engine" not in stable["storage"] and stable["engine"] is None
    again = collect_facts(LocalHost(), interfaces=["lo", "no-such"], engine_socket="/no/socket")
    assert json.dumps(again["stable"]) == json.dumps(stable)


def test_a_directory_that_is_not_made_yet_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    places = [tmp_path, tmp_path / "later" / "still"]
    found = [collect_facts(LocalHost(), directory=str(one))["stable"]["storage"] for one in places]
    assert found[0] == found[1] and found[0]["data"]["filesystem"]


@pytest.mark.parametrize("release", ["20.10.24", ""])
def test_an_engine_that_answers_one_of_two_commands_only(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {"ServerVersion": release, "Driver": "overlay2", "Runtimes": {"runc": {}, "a": {}}}
    version = {"Version": "20.10.24", "Components": [{"Name": "runc", "Version": "1.1.5"}]}
    (tmp_path / "info").write_text(json.dumps(info))
    (tmp_path / "version").write_text(json.dumps(version))
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\ncat "{tmp_path}/$3"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    facts = collect_facts(LocalHost(), engine_socket="/some/socket")
    engine, runtimes = facts["stable"]["engine"], facts["volatile"]["runtimes"]
    if not release:
        assert (engine, runtimes) == (None, [])
        return
    assert (engine["version"], engine["components"]) == ("20.10.24", {"runc": "1.1.5"})
    assert (engine["Driver"], runtimes) == ("overlay2", ["a", "runc"])


def test_boot_parameters_that_do_not_affect_timing_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "root=/dev/sda ip=192.0.2.1 isolcpus=1 nohz_full=2 password=x -- idle=poll"
    texts = {"/proc/cmdline": line}
    monkeypatch.setattr(agent, "read", lambda path, default="": texts.get(path, default))
    assert agent._kernel()["parameters"] == ["isolcpus=1", "nohz_full=2"]


def test_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "read", lambda path, default="": default)
    assert agent._cgroups(MOUNTS) == {"version": "hybrid", "controllers": ["cpu"]}
    assert agent._cgroups("") == {"version": None, "controllers": []}


def test_values_of_ethtool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "printed_by", lambda *argv: (ETHTOOL, "netlink error: no"))
    assert agent.ethtool("-g", "eth0") == {"RX": "128"}


@pytest.mark.parametrize(
    ("tool", "flag", "detected"),
    [
        ("kvm\n", "hypervisor", "kvm"),
        ("none\n", "fpu", "none"),
        # Without the tool, or if it does not know the hypervisor, the CPU flag is used.
        ("", "hypervisor", "vm"),
        ("none\n", "hypervisor", "vm"),
        ("", "fpu", None),
    ],
)
def test_virtualisation(
    tool: str, flag: str, detected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "printed_by", lambda *argv: (tool, ""))
    monkeypatch.setattr(agent, "_file", lambda path: None)
    assert agent._virtualisation([flag])["detected"] == detected


@pytest.mark.parametrize(
    ("path", "rotational", "kind"),
    [
        ("/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda", "1", "virtual disk"),
        ("/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1", "0", "NVMe"),
        ("/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/block/sda", "1", "hard disk"),
        ("/sys/devices/pci0000:00/ata1/block/sda", "0", "SSD"),
    ],
)
def test_the_kind_of_a_disk(path: str, rotational: str, kind: str) -> None:
    assert agent.disk_kind(path, rotational) == kind
