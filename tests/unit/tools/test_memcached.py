"""The load on memcached: its program against memcached, and answers that it refuses."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from recordings import read

from labkit.errors import ToolOutput
from labkit.tools import memcached
from labkit.tools.base import Client, python

PROGRAM: dict[str, Any] = {"__name__": "program"}
exec(compile(python("memcached_load")[2], "memcached_load", "exec"), PROGRAM)
PORT = 21_211
PROTOCOLS = ("text", "binary")


@pytest.fixture
def server() -> Iterator[None]:
    """Run a memcached on loopback."""
    if not shutil.which("memcached"):
        pytest.skip("memcached is not installed")
    argv = f"memcached -u nobody -l 127.0.0.1 -p {PORT} -U 0".split()
    with subprocess.Popen(argv) as process:
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                    break
            time.sleep(0.01)
        yield
        process.kill()


def run(protocol: str) -> tuple[Client, subprocess.CompletedProcess[str]]:
    options = {"seconds": 0.2, "threads": 2, "connections": 3, "keys": 40}
    client = memcached.closed_loop("127.0.0.1", protocol=protocol, **options)
    argv = [part.replace("port=11211", f"port={PORT}") for part in client.argv[1:]]
    ended = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=60)
    return client, ended


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.usefixtures("server")
def test_every_operation_is_counted_and_timed(protocol: str) -> None:
    client, ended = run(protocol)
    assert ended.stderr == ""
    measurement = client.parse(ended.stdout, "")
    metrics, samples = measurement.metrics, measurement.samples
    rows = np.array([line.split(",") for line in ended.stdout.splitlines()[1:]], dtype=np.int64)
    start, latency, kind = rows.T
    assert metrics["sets"] + metrics["gets"] == len(rows) < measurement.messages - 40
    assert metrics["gets"] == pytest.approx(10 * metrics["sets"], abs=150)
    assert metrics["operations_per_s"] == pytest.approx(len(rows) * 1e9 / (start + latency).max())
    for number, name in ((1, "set_"), (0, "get_")):
        own = np.sort(latency[kind == number])
        ends = [metrics[f"{name}latency_ns_{end}"] for end in ("min", "median", "max")]
        assert ends == [own[0], own[(len(own) + 1) // 2 - 1], own[-1]]
    assert (start >= 0).all() and (np.diff(start) >= 0).all() and start.max() < 0.2e9
    assert np.isin(samples["latency_ns"], latency).all()
    assert len(samples["set"]) <= 2 * memcached.KEPT


def test_a_load_without_a_server_or_with_rows_missing_fails_with_a_reason() -> None:
    _, ended = run("text")
    assert ended.returncode == 1 and "ConnectionRefusedError" in ended.stderr.splitlines()[-1]
    with pytest.raises(ToolOutput, match="of 615 rows"):
        memcached.parse(read("memcached-text.txt").rpartition("\n")[0].rpartition("\n")[0] + "\n")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_the_whole_right_answer_is_accepted(protocol: str) -> None:
    key, value = b"labkit-00000007", b"x" * 32
    header = struct.Struct("!BBHBBHIIQ")
    stored, found = b"STORED\r\n", b"VALUE %b 0 32\r\n%b\r\nEND\r\n" % (key, value)
    nothing = b"END\r\n"
    if protocol == "binary":
        stored = header.pack(0x81, 1, 0, 0, 0, 0, 0, 0, 9)
        found = header.pack(0x81, 0, 0, 4, 0, 0, 36, 0, 9) + bytes(4) + value
        nothing = header.pack(0x81, 0, 0, 0, 0, 1, 9, 0, 0) + b"Not found"
    for kind, answer in ((1, stored), (0, found)):
        _, *expected = PROGRAM["operation"](protocol, kind, key, value)
        PROGRAM["check"](answer, *expected)
        for wrong in (answer[:-1], answer + b"?", b"ERROR\r\n", b"", nothing):
            with pytest.raises(ValueError, match="memcached answered"):
                PROGRAM["check"](wrong, *expected)
