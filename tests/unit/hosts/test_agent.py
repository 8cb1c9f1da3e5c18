"""Calls of the agent: what crosses as JSON, and how an error arrives."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from labkit.errors import CommandFailed
from labkit.hosts import LocalHost, agent, host

HOST = LocalHost()


def test_a_call_returns_the_value_of_the_function(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b" \xff \n")
    assert HOST.call("read", path=str(tmp_path / "a")) == "\udcff"
    assert HOST.call("read", path=str(tmp_path / "b"), default="\n\udc80\0") == "\n\udc80\0"


def test_an_error_on_the_host_arrives_with_its_reason() -> None:
    with pytest.raises(CommandFailed) as caught:
        HOST.call("read", path="a\0b")
    assert "null" in caught.value.why
    assert caught.value.evidence["arguments"] == {"path": "a\0b"}


def test_a_host_with_another_python_gets_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(host._AGENT, "python", "cpython-39")
    monkeypatch.setitem(host._AGENT, "code", "")
    assert HOST.call("read", path="/no/such/file", default="x") == "x"
    ast.parse(Path(agent.__file__).read_text(), feature_version=(3, 9))
