"""labkit's own programs, run here: file operations, the load on memcached, datagrams' sink."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import ran, read, serving

from labkit.errors import ToolOutput
from labkit.hosts import LocalHost
from labkit.runtimes.base import wait_ready
from labkit.tools import datagrams, file_operations, memcached
from labkit.tools.base import Client, Measurement, python


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


PROGRAM: dict[str, Any] = {"__name__": "program"}
exec(compile(python("memcached_load", "main")[2], "memcached_load", "exec"), PROGRAM)
PORT = 21_211
PROTOCOLS = ("text", "binary")


@pytest.mark.skipif(not shutil.which("memcached"), reason="memcached is not installed")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_operation_is_counted_and_timed(protocol: str) -> None:
    options = {"seconds": 0.2, "threads": 2, "connections": 3, "keys": 40}
    client = memcached.load("127.0.0.1", protocol=protocol, **options)
    with serving(f"memcached -u nobody -l 127.0.0.1 -p {PORT} -U 0".split(), PORT):
        ended = ran(client.argv, port=PORT)
    measurement = client.parse(ended.stdout, "")
    metrics, samples = measurement.metrics, measurement.samples
    start, latency, kind = map(np.array, json.loads(ended.stdout)["samples"].values())
    assert metrics["sets"] + metrics["gets"] == len(start) < measurement.messages - 40
    assert metrics["gets"] == pytest.approx(10 * metrics["sets"], abs=150)
    assert metrics["operations_per_s"] == pytest.approx(len(start) * 1e9 / (start + latency).max())
    for number, name in ((1, "set_"), (0, "get_")):
        own = np.sort(latency[kind == number])
        ends = [metrics[f"{name}latency_ns_{end}"] for end in ("min", "median", "max")]
        assert ends == [own[0], own[(len(own) + 1) // 2 - 1], own[-1]]
    assert (start >= 0).all() and start.max() < 0.2e9
    assert (np.diff(samples["start_ns"]) >= 0).all() and len(samples["set"]) <= 2 * memcached.KEPT
    assert np.isin(samples["latency_ns"], latency).all()


def test_a_load_without_a_server_fails_with_a_reason() -> None:
    ended = ran(memcached.load("127.0.0.1", protocol="text", seconds=1).argv, port=PORT)
    assert ended.returncode == 1 and "ConnectionRefusedError" in ended.stderr.splitlines()[-1]


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
        _, _, *expected = PROGRAM["operation"](protocol, kind, key, value)
        PROGRAM["check"](answer, *expected)
        for wrong in (answer[:-1], answer + b"?", b"ERROR\r\n", b"", nothing):
            with pytest.raises(ValueError, match="memcached answered"):
                PROGRAM["check"](wrong, *expected)


def test_what_was_not_sent_in_its_turn_is_flagged() -> None:
    whole = read("sockperf-throughput.txt")
    text = whole.replace(" sec\n", " sec (7 messages skipped)\n", 1)
    assert datagrams.parse(text).flags == ("7 datagrams were not sent in their turn",)


@pytest.mark.parametrize(("size", "rate"), [(1454, 82_237), (28, 1_329_787), (14, 1_488_095)])
def test_the_rate_of_a_link(size: int, rate: int) -> None:
    assert datagrams.line_rate(size, 1e9) == pytest.approx(rate, abs=1)


def looks(pid: int, middle: float) -> list[str]:
    return [*python("datagram_sink", "count", pid=pid, settle=0.2, middle=middle, end=0)]


@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="no /usr/bin/python3")
def test_a_sink_counts_every_datagram_and_answers_none() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    workload = datagrams.sink(port)
    with subprocess.Popen(workload.argv, stdin=subprocess.DEVNULL) as process:
        reading = {"pid": process.pid, "port": workload.port, "protocol": workload.protocol}
        wait_ready(LocalHost(), reading, workload)
        with (
            subprocess.Popen(looks(process.pid, 3), stdout=subprocess.PIPE, text=True) as counting,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            sender.connect(("127.0.0.1", port))
            for size in [14, 28, 1454] * 400:  # an answer of ICMP would be an error of the next
                sender.send(bytes(size))
            printed = counting.communicate()[0]
        table = Path("/proc/net/udp").read_text().splitlines()
        process.kill()
    (_, before), (_, after) = json.loads(printed)["looks"]
    (inode,) = before
    assert after[inode] == 1200 and 0 <= before[inode] <= 1200
    assert datagrams.parse_watch(printed).metrics["packets_per_s"] >= 0
    rows = [line.split() for line in table if f":{port:04X} " in line]
    assert [row[4] for row in rows] == ["00000000:00000000"]  # nothing waits in its queue
    ended = ran(looks(1 << 22, 0))  # a process that is not there
    with pytest.raises(ToolOutput, match="did not run all the time"):
        datagrams.parse_watch(ended.stdout)


@pytest.mark.parametrize(
    ("first", "then", "rate"),
    [
        ((1_000_000_000, {"77": 500}), (1_600_000_000, {"77": 3_500}), 5000.0),
        ((0, {"77": 2**32 - 1000}), (1_000_000_000, {"77": 1000}), 2000.0),
        ((0, {"77": 1}), (1_000_000_000, {"78": 2}), None),
        ((9, {"77": 1}), (5, {"77": 2}), None),
    ],
)
def test_a_rate_is_the_change_of_one_counter_on_one_clock(
    first: object, then: object, rate: float | None
) -> None:
    text = json.dumps({"looks": [first, then]}) + "\n"
    if rate is not None:
        assert datagrams.parse_watch(text).metrics == {"packets_per_s": rate}
        text = text[:30]
    with pytest.raises(ToolOutput):
        datagrams.parse_watch(text)
