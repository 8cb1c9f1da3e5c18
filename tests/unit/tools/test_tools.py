"""Tools in general: their commands, and where they are installed."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import commands, shown
from recordings import ADDRESS, Prints

import labkit.tools
from labkit.errors import ToolMissing, UsageError
from labkit.tools import base, datagrams, sockperf, thrift_rpc, wrk2
from labkit.tools.applications import APPLICATIONS, with_tools

EXPECTED = Path(__file__).with_name("commands.json")
MODULES = [
    importlib.import_module(f"labkit.tools.{module.name}")
    for module in pkgutil.iter_modules(labkit.tools.__path__)
    if module.name != "programs"
]
PROBED = [module for module in MODULES if hasattr(module, "probe")]


def test_commands_have_not_changed() -> None:
    """After an intended change: python tests/unit/tools/test_tools.py."""
    expected = json.loads(EXPECTED.read_text())
    for name, command in commands().items():
        assert shown(command) == expected.pop(name), name
    assert not expected


@pytest.mark.parametrize("module", PROBED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_tool_that_is_not_installed_is_missed(module: ModuleType) -> None:
    for answer in (Prints("not found", 127), Prints("something else", 1)):
        with pytest.raises(ToolMissing, match="not installed") as caught:
            module.probe(answer)
        assert caught.value.remedy


def test_debian_s_wrk_is_not_taken_for_wrk2() -> None:
    wrk = "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\nUsage: wrk\n  -c\n"
    with pytest.raises(ToolMissing, match="wrk2"):
        wrk2.probe(Prints(wrk))
    usage = "wrk 4.0.0 [epoll] Copyright\nUsage: wrk\n    -R, --rate  <T>  work rate\n"
    assert wrk2.probe(Prints(usage)) == "4.0.0"


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown wait 'spinn'") as caught:
        base.one_of("wait", "spinn", ("block", "spin"))
    assert "did you mean 'spin'" in str(caught.value)
    with pytest.raises(UsageError, match="unknown way to wait"):
        sockperf.ping_pong(ADDRESS, messages=1, size=64, wait="sleep")
    with pytest.raises(UsageError, match="unknown family"):
        with_tools({"redis": "redis"})
    with pytest.raises(UsageError, match="no payload of one frame"):
        datagrams.send(ADDRESS, rate=1, size=1473, seconds=1, port=1)
    with pytest.raises(UsageError, match="nothing is left of 1 s"):
        datagrams.watch(ADDRESS, 4242, 1, 1.0)
    wrong: list[dict[str, Any]] = [{"pause_us": -1}, {"pause_us": float("nan")}, {"loop": "open"}]
    for options in wrong:
        with pytest.raises(UsageError, match="invalid pause or rate"):
            thrift_rpc.client(ADDRESS, calls=50, **options)


def test_the_first_tool_that_images_have_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "wrk2").touch(mode=0o755)
    monkeypatch.setattr(base, "project", lambda path: tmp_path)
    found = with_tools({"memcached": "memtier_benchmark or labkit", "nginx": "wrk2 or h2load"})
    assert list(found) == list(APPLICATIONS)
    assert found["nginx 1 MB"].tool == "wrk2"
    assert found["memcached text"].tool == "the load on memcached"


if __name__ == "__main__":
    EXPECTED.write_text(
        json.dumps({name: shown(one) for name, one in commands().items()}, indent=1) + "\n"
    )
