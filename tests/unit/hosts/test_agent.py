"""Calls of the agent: what crosses as JSON, how an error arrives, and facts of this machine."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from labkit.errors import CommandFailed
from labkit.hosts import LocalHost, agent, host

HOST = LocalHost()


def test_an_error_on_the_host_arrives_with_its_reason() -> None:
    with pytest.raises(CommandFailed) as caught:
        HOST.call("read", path="a\0b")
    assert "null" in caught.value.why
    assert caught.value.evidence["arguments"] == {"path": "a\0b"}


def test_a_host_with_another_python_gets_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(host._AGENT, "python", "cpython-39")
    monkeypatch.setitem(host._AGENT, "code", "")
    assert HOST.call("read", path="/no/such/file", default="x\udc80") == "x\udc80"
    ast.parse(Path(agent.__file__).read_text(), feature_version=(3, 9))


def test_facts_of_this_machine() -> None:
    facts, again = (HOST.call("facts", interfaces=["lo", "no-such"]) for _ in range(2))
    stable = facts["stable"]
    assert stable["kernel"]["release"] and stable["cpu"]["count"] and stable["cpu"]["model"]
    assert stable["interfaces"]["lo"]["mtu"] > 0 and stable["interfaces"]["no-such"]["mtu"] is None
    assert stable["cgroup"]["version"] in ("v1", "v2", "hybrid")
    assert {"cpu", "memory"} <= set(stable["cgroup"]["controllers"])
    assert stable["storage"] == {} and stable["engine"] is None
    assert len(facts["volatile"]["boot_id"]) == 36
    assert json.dumps(again["stable"]) == json.dumps(stable)


@pytest.mark.parametrize("release", ["20.10.24", ""])
def test_an_engine_that_answers_one_of_two_commands_only(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = {"ServerVersion": release, "Driver": "overlay2", "DockerRootDir": "/"}
    server = {"Version": "20.10.24", "Components": [{"Name": "runc", "Version": "1.1.5"}]}
    (tmp_path / "info").write_text(json.dumps(info))
    (tmp_path / "version").write_text(json.dumps({"Server": server}))
    (tmp_path / "docker").write_text(f'#!/bin/sh\ncat "{tmp_path}/$3"\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    facts = HOST.call("facts", engine="unix:///some/socket")["stable"]
    if not release:
        assert (facts["engine"], facts["storage"]) == (None, {})
        return
    assert facts["engine"]["version"] == "20.10.24" and facts["storage"]["engine"]
    assert facts["engine"]["components"] == {"runc": "1.1.5"}


def test_boot_parameters_that_do_not_affect_timing_are_left_out() -> None:
    line = "root=/dev/sda ip=192.0.2.1 isolcpus=1 nohz_full=2 password=x -- idle=poll"
    assert agent.boot_parameters(line) == ["isolcpus=1", "nohz_full=2"]
