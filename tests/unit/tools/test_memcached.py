"""The load on memcached: its parser on recorded output, and the program against memcached."""

from __future__ import annotations

import json
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
def test_every_operation_is_counted_and_timed(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memcached, "KEPT", 1_000_000)
    client, ended = run(protocol)
    assert ended.stderr == ""
    measurement = client.parse(ended.stdout, "")
    metrics, samples = measurement.metrics, measurement.samples
    assert metrics["sets"] + metrics["gets"] == len(samples["set"]) and metrics["hits"] == 1
    assert metrics["gets"] == pytest.approx(10 * metrics["sets"], abs=150)
    for kind, name in ((1, "set_"), (0, "get_")):
        latency = np.sort(samples["latency_ns"][samples["set"] == kind])
        ends = [metrics[f"{name}latency_ns_{end}"] for end in ("min", "median", "max")]
        assert ends == [latency[0], latency[(len(latency) + 1) // 2 - 1], latency[-1]]
        assert metrics[f"{name}latency_ns_mean"] == pytest.approx(latency.mean(), abs=1)
    assert (samples["start_ns"] >= 0).all() and (np.diff(samples["start_ns"]) >= 0).all()
    assert measurement.messages > 40 + len(samples["set"])


def test_a_load_without_a_server_fails_with_a_reason() -> None:
    _, ended = run("text")
    assert ended.returncode == 1 and "ConnectionRefusedError" in ended.stderr.splitlines()[-1]


def test_a_summary_that_is_not_of_the_rows_is_an_error_and_misses_are_flagged() -> None:
    head, _, rest = read("memcached-text.txt").partition("\n")
    summary = json.loads(head)
    summary["metrics"] |= {"hits": 0.75}
    found = memcached.parse(f"{json.dumps(summary)}\n{rest}")
    assert found.flags == ("25.00% of the GETs found nothing",)
    with pytest.raises(ToolOutput, match="rows"):
        memcached.parse(f"{json.dumps(summary | {'rows': 3})}\n{rest}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_a_whole_answer_is_accepted(protocol: str) -> None:
    key, value = b"labkit-00000007", b"x" * 32
    header = struct.Struct("!BBHBBHIIQ")
    stored, found = b"STORED\r\n", b"VALUE %b 0 32\r\n%b\r\nEND\r\n" % (key, value)
    nothing = b"END\r\n"
    if protocol == "binary":
        stored = header.pack(0x81, 1, 0, 0, 0, 0, 0, 0, 9)
        found = header.pack(0x81, 0, 0, 4, 0, 0, 36, 0, 9) + bytes(4) + value
        nothing = header.pack(0x81, 0, 0, 0, 0, 1, 9, 0, 0) + b"Not found"
    miss = PROGRAM["MISSES"][protocol]
    for kind, answer in ((1, stored), (0, found)):
        _, hit = PROGRAM["operation"](protocol, kind, key, value)
        assert not PROGRAM["is_miss"](answer, hit, miss) and PROGRAM["is_miss"](nothing, hit, miss)
        for wrong in (answer[:-1], answer + b"?", b"ERROR\r\n", b""):
            with pytest.raises(ValueError, match="memcached answered"):
                PROGRAM["is_miss"](wrong, hit, miss)
