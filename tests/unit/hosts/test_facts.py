"""Facts of this machine, and of texts that others would have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.hosts import LocalHost, agent, collect_facts


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
    monkeypatch.setattr(agent, "printed", lambda *argv: tool)
    monkeypatch.setattr(agent, "_file", lambda path: None)
    assert agent._virtualisation([flag])["detected"] == detected
