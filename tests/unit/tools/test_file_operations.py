"""The file operations: what they do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from recordings import ran

from labkit.tools import file_operations
from labkit.tools.base import Client, Measurement


def measured(client: Client, **changes: Any) -> Measurement:
    return client.parse(ran(client.argv, **changes).stdout, "")


def test_each_operation_does_what_it_says_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "written"
    for flush in file_operations.FLUSHES:
        client = file_operations.write(size_b=3000, count=7, flush=flush)
        assert len(measured(client, path=str(path)).samples["latency_ns"]) == 7
        assert not path.exists()
    path.write_bytes(b"0" * 5000)
    opened = measured(file_operations.open_close(count=6, path=str(path)))
    assert len(opened.samples["close_ns"]) == 6 and path.read_bytes() == b"0" * 5000
    first = file_operations.first_write(folder=str(tmp_path), size_b=5000, files=1)
    assert measured(first).messages == 2 and path.read_bytes() == b"x" * 1024 + b"0" * 3976
    listed = measured(file_operations.traverse(str(tmp_path), count=3, files=1))
    assert listed.messages == 4 and listed.samples["latency_ns"].min() > 50_000
    failed = ran(file_operations.traverse(str(tmp_path / "none"), count=1, files=1).argv)
    assert failed.returncode != 0 and not failed.stdout and "ls -R" in failed.stderr


def test_dirty_pages_are_written_and_ls_is_loaded_before_a_cold_listing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, text, operation, options = file_operations.traverse("/data/tree", files=9).argv
    program: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, "file_operations", "exec"), program)
    calls: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: calls.append("sync"))
    program["listing"] = lambda path: calls.append(path) or 7
    program["main"](operation, **json.loads(options))
    synced, empty, listed = calls
    assert (synced, listed) == ("sync", "/data/tree") and empty != listed
    assert file_operations.parse(capsys.readouterr().out).samples["latency_ns"].tolist() == [7]
