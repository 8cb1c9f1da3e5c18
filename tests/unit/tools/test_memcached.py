"""The load on memcached: its parser on recorded output, and the program against a small server."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
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

#: A memcached of a page, in both protocols: argument 1 is the port, 2 what it does wrong.
SERVER = r"""
import asyncio, struct, sys

HEADER = struct.Struct("!BBHBBHIIQ")
held, wrong = {}, sys.argv[2]

async def serve(reader, writer):
    while True:
        first = await reader.readexactly(1)
        if first == b"\x80":
            head = HEADER.unpack(first + await reader.readexactly(23))
            opcode, key, extras, total = head[1], head[2], head[3], head[6]
            body = await reader.readexactly(total)
            name, value = body[extras:extras + key], body[extras + key:]
            if opcode == 1:
                held[name] = value
                answer = HEADER.pack(0x81, 1, 0, 0, 0, 0, 0, 0, 77)
            elif name in held and wrong != "miss":
                answer = HEADER.pack(0x81, 0, 0, 4, 0, 0, 4 + len(held[name]), 0, 77)
                answer += bytes(4) + held[name]
            else:
                answer = HEADER.pack(0x81, 0, 0, 0, 0, 1, 9, 0, 0) + b"Not found"
            if wrong == "error":
                answer = HEADER.pack(0x81, opcode, 0, 0, 0, 0x82, 0, 0, 0)
        else:
            words = (first + await reader.readuntil(b"\r\n")).split()
            if words[0] == b"set":
                held[words[1]] = (await reader.readexactly(int(words[4]) + 2))[:-2]
                answer = b"STORED\r\n"
            elif words[1] in held and wrong != "miss":
                value = held[words[1]]
                answer = b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (words[1], len(value), value)
            else:
                answer = b"END\r\n"
            if wrong == "error":
                answer = b"SERVER_ERROR out of memory\r\n"
        if wrong == "close" and len(held) > 3:
            return writer.close()
        if wrong == "slowly":
            for place in range(len(answer)):
                writer.write(answer[place:place + 1])
                await writer.drain()
                await asyncio.sleep(0)
        else:
            writer.write(answer)

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the port of a small server; its parameter is what it does wrong."""
    wrong = getattr(request, "param", "")
    argv = [sys.executable, "-c", SERVER, "0", wrong]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def load(port: int, protocol: str) -> Client:
    options = {"seconds": 0.2, "threads": 2, "connections": 3, "keys": 40}
    return memcached.closed_loop("127.0.0.1", protocol=protocol, port=port, **options)


def run(client: Client) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, *client.argv[1:]]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("server", ["", "slowly"], indirect=True)
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
        latency = samples["latency_ns"][samples["set"] == kind]
        assert metrics[f"{name}latency_ns_max"] == latency.max()
        assert metrics[f"{name}latency_ns_min"] == latency.min()
        assert metrics[f"{name}latency_ns_mean"] == pytest.approx(latency.mean(), abs=1)
        middle = np.sort(latency)[int(np.ceil(len(latency) / 2)) - 1]
        assert metrics[f"{name}latency_ns_median"] == middle
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


@pytest.mark.parametrize("server", ["miss"], indirect=True)
@pytest.mark.parametrize("protocol", memcached.PROTOCOLS)
def test_gets_that_miss_are_flagged(server: int, protocol: str) -> None:
    client = load(server, protocol)
    measurement = client.parse(run(client).stdout, "")
    assert measurement.metrics["hits"] == 0
    assert [flag for flag in measurement.flags if flag.endswith("GETs found nothing")]


@pytest.mark.parametrize("server", ["error", "close"], indirect=True)
@pytest.mark.parametrize("protocol", memcached.PROTOCOLS)
def test_a_server_that_fails_fails_the_load(server: int, protocol: str) -> None:
    ended = run(load(server, protocol))
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.startswith("memcached_load: ") and "Traceback" not in ended.stderr


def test_where_nobody_listens_the_load_fails_and_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ended = run(load(taken.getsockname()[1], "text"))
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
    "change", [{"rows": 3}, {"elapsed_ns": 0}, {"set": {"count": 0}}, {"all": {}}, {}]
)
def test_a_load_without_time_left_is_flagged_and_an_impossible_summary_an_error(
    change: dict[str, Any],
) -> None:
    found = json.loads(read("memcached-text.txt"))
    found |= change or {"cpu_ns": found["wall_ns"] * found["cpus"]}
    texts = json.dumps(found) + "\n", read("memcached-text.log")
    if not change:
        assert "100% of its CPUs" in memcached.parse(*texts).flags[0]
        return
    with pytest.raises(ToolOutput):
        memcached.parse(*texts)


PROGRAM: dict[str, Any] = {"__name__": "program"}
exec(compile(python("memcached_load")[2], "memcached_load", "exec"), PROGRAM)


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
def test_an_answer_in_parts_is_whole_only_at_its_end(size: int, data) -> None:
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
