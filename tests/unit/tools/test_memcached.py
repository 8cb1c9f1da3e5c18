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
from hypothesis import given
from hypothesis import strategies as st
from recordings import read

from labkit.errors import ToolOutput
from labkit.tools import memcached
from labkit.tools.base import Client, python

PROGRAM: dict[str, Any] = {"__name__": "program"}
exec(compile(python("memcached_load")[2], "memcached_load", "exec"), PROGRAM)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@pytest.fixture
def server() -> Iterator[int]:
    """Return the port of a memcached on loopback."""
    if not shutil.which("memcached"):
        pytest.skip("memcached is not installed")
    port = free_port()
    argv = ("memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-U", "0")
    with subprocess.Popen(argv) as process:
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield port
        process.kill()


def load(port: int, protocol: str) -> Client:
    options = {"seconds": 0.2, "threads": 2, "connections": 3, "keys": 40}
    return memcached.closed_loop("127.0.0.1", protocol=protocol, port=port, **options)


def run(client: Client) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, *client.argv[1:]]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("protocol", memcached.PROTOCOLS)
def test_every_operation_is_counted_and_timed(
    server: int, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memcached, "KEPT", 1_000_000)
    client = load(server, protocol)
    ended = run(client)
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
    assert not [flag for flag in measurement.flags if "CPUs" not in flag]


def test_rows_are_thinned_and_the_metrics_are_of_all(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memcached, "KEPT", 5)
    client = load(server, "text")
    measurement = client.parse(run(client).stdout, "")
    operations = measurement.metrics["sets"] + measurement.metrics["gets"]
    assert 5 <= len(measurement.samples["set"]) < 11 < operations
    assert client.samples_in_stdout


def test_a_load_without_a_server_fails_with_a_reason() -> None:
    ended = run(load(free_port(), "text"))
    assert ended.returncode == 1
    assert ended.stderr == read("memcached-refused.txt").splitlines(True)[0]


@pytest.mark.parametrize("protocol", memcached.PROTOCOLS)
def test_recorded_operations_are_rows_of_integers(protocol: str) -> None:
    text, log = read(f"memcached-{protocol}.txt"), read(f"memcached-{protocol}.log")
    measurement = memcached.parse(text, log)
    rows = sorted(tuple(map(int, line.split(","))) for line in log.splitlines()[1:])
    columns = [values.tolist() for values in measurement.samples.values()]
    assert sorted(zip(*columns, strict=True)) == rows
    assert all(values.dtype == np.int64 for values in measurement.samples.values())
    assert measurement.metrics["hits"] == 1 and 0 < measurement.metrics["tool_cpu"] <= 1
    assert memcached.parse(text + log, "").metrics == measurement.metrics


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"cpu_ns": 10**12}, "of its CPUs: it may be the limit"),
        ({"missed": 7}, "7 of "),
        ({"rows": 3}, None),
        ({"elapsed_ns": 0}, None),
        ({"set": {"count": 0}}, None),
        ({"all": {}}, None),
    ],
)
def test_a_summary_is_flagged_or_an_error(change: dict[str, Any], flag: str | None) -> None:
    found = json.loads(read("memcached-text.txt")) | change
    texts = json.dumps(found) + "\n", read("memcached-text.log")
    if flag is None:
        with pytest.raises(ToolOutput):
            memcached.parse(*texts)
    else:
        assert flag in memcached.parse(*texts).flags[0]


@pytest.mark.parametrize("protocol", memcached.PROTOCOLS)
def test_the_bytes_of_an_operation_are_those_on_its_connection(protocol: str) -> None:
    request, answer = PROGRAM["PROTOCOLS"][protocol]
    key, size = PROGRAM["key"](7), memcached.SIZE
    value = b"x" * size
    stored, found = b"STORED\r\n", b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, size, value)
    if protocol == "binary":
        head = PROGRAM["HEADER"]
        stored = head.pack(0x81, 1, 0, 0, 0, 0, 0, 0, 0)
        found = head.pack(0x81, 0, 0, 4, 0, 0, 4 + size, 0, 0) + bytes(4) + value
    # The program's own reader takes them for whole answers.
    assert answer(stored, size) == answer(found, size) == 1
    sizes = len(request(1, key, value) + stored), len(request(0, key, value) + found)
    assert memcached.carried(protocol) == sizes


@given(st.integers(0, 200), st.data())
def test_an_answer_in_parts_is_whole_only_at_its_end(size: int, data: Any) -> None:
    value = bytes(65 + i % 7 for i in range(size))
    header = struct.Struct("!BBHBBHIIQ")
    whole = {
        "text": [b"STORED\r\n", b"END\r\n", b"VALUE k 0 %d\r\n%b\r\nEND\r\n" % (size, value)],
        "binary": [
            header.pack(0x81, 1, 0, 0, 0, 0, 0, 0, 9),
            header.pack(0x81, 0, 0, 0, 0, 1, 9, 0, 0) + b"Not found",
            header.pack(0x81, 0, 0, 4, 0, 0, 4 + size, 0, 9) + bytes(4) + value,
        ],
    }
    protocol = data.draw(st.sampled_from(sorted(whole)))
    answer = PROGRAM["PROTOCOLS"][protocol][1]
    text = data.draw(st.sampled_from(whole[protocol]))
    cut = data.draw(st.integers(0, len(text) - 1))
    assert answer(text, size) == (0 if text == whole[protocol][1] else 1)
    assert answer(text[:cut], size) == -1
    with pytest.raises(ValueError, match="memcached answered"):
        answer(text + b"?", size)
