"""The file operations: their real output, whole and broken, and what they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import read

from labkit.errors import ToolOutput
from labkit.tools import file_operations
from labkit.tools.base import Client, Measurement

OPEN = read("file-operations-open.txt")
WRITE = read("file-operations-write.txt")


def run(client: Client, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a client's command here, by this interpreter."""
    env = {**os.environ, **environment}
    argv = [sys.executable, *client.argv[1:]]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=60)


def measured(client: Client, **environment: str) -> Measurement:
    return client.parse(run(client, **environment).stdout, "")


def test_real_output_is_read() -> None:
    measurement = file_operations.parse(OPEN)
    assert list(measurement.samples) == ["latency_ns", "close_ns", "call_ns"]
    assert measurement.messages == 2 * (40 + 5), "what is done counts, kept or not"
    assert all(values.dtype == np.int64 for values in measurement.samples.values())
    first = OPEN.splitlines()[1].split()
    assert [int(values[0]) for values in measurement.samples.values()] == list(map(int, first))
    assert measurement.mechanisms == {"reference_ns": 3016.88}
    assert file_operations.parse(WRITE).messages == 45
    german = file_operations.parse(read("file-operations-first-write-de.txt"))
    assert list(german.samples) == ["latency_ns", "again_ns"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (OPEN[: len(OPEN) // 2], "breaks off"),
        (OPEN.replace("end 40", "end 41"), "breaks off"),
        ("\n".join(OPEN.splitlines()[:3] + OPEN.splitlines()[4:]), "not 40 positive times"),
        (WRITE.replace("\n", "\n1,5 ", 1), "not lines of 1 integers"),
        (WRITE.replace('"count": 40', '"count": 0').replace("end 40", "end 0"), "breaks off"),
    ],
)
def test_broken_output_is_shown(text: str, why: str) -> None:
    with pytest.raises(ToolOutput, match=why):
        file_operations.parse(text)


def test_each_operation_does_what_it_says_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "written"
    for flush in file_operations.FLUSHES:
        client = file_operations.write(size_b=3000, count=7, flush=flush)
        options = client.argv[-1].replace("/data/written", str(path))
        ended = run(Client((*client.argv[:-1], options), "", 1.0, client.parse))
        assert len(file_operations.parse(ended.stdout).samples["latency_ns"]) == 7
        assert not path.exists()
    path.write_bytes(b"0" * 5000)
    opened = measured(file_operations.open_close(count=6, path=str(path)))
    assert len(opened.samples["close_ns"]) == 6 and path.read_bytes() == b"0" * 5000
    first = file_operations.first_write(folder=str(tmp_path), size_b=5000, files=1)
    assert measured(first).messages == 2 and path.read_bytes() == b"x" * 1024 + b"0" * 3976
    listed = measured(file_operations.traverse(str(tmp_path), count=3, files=1), LC_ALL="de_DE")
    assert listed.messages == 4 and listed.samples["latency_ns"].min() > 50_000


def test_what_cannot_be_done_ends_with_a_reason(tmp_path: Path) -> None:
    ended = run(file_operations.traverse(str(tmp_path / "none"), count=1, files=1))
    assert ended.returncode != 0 and not ended.stdout and "ls -R" in ended.stderr


def test_dirty_pages_are_written_and_ls_is_loaded_before_a_cold_listing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, text, operation, options = file_operations.traverse("/data/tree", files=9).argv
    program: dict[str, Any] = {"__name__": "program"}
    exec(compile(text, "file_operations", "exec"), program)
    calls: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: calls.append("sync"))
    program["listing"] = lambda path: calls.append(path) or 7
    program["main"](operation, options)
    synced, empty, listed = calls
    assert (synced, listed) == ("sync", "/data/tree") and empty != listed
    assert file_operations.parse(capsys.readouterr().out).samples["latency_ns"].tolist() == [7]
