"""labkit's own programs, run here: file operations, loads on memcached and Thrift, and a sink."""

import itertools
import json
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import ran, read, serving

from labkit.errors import ToolOutput
from labkit.hosts import Host
from labkit.tools import APPLICATIONS, base, datagrams, file_operations, memcached, thrift_rpc
from labkit.tools.base import PYTHON


def measured(client, **changes):
    return client.parse(ran(client.argv, **changes).stdout, "")


def test_each_operation_does_what_it_says_and_leaves_nothing(tmp_path):
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


def program(name):
    """Return what one of labkit's programs defines."""
    defined: dict[str, Any] = {}
    exec((Path(base.__file__).with_name("programs") / f"{name}.py").read_text(), defined)
    return defined


def test_dirty_pages_are_written_and_ls_is_loaded_before_a_cold_listing(monkeypatch):
    options = json.loads(file_operations.traverse("/data/tree", files=9).argv[4])
    defined, calls = program("file_operations"), list[str]()
    monkeypatch.setattr(os, "sync", lambda: calls.append("sync"))
    defined["listing"] = lambda path: calls.append(path) or 7
    found = json.dumps(defined["main"](**options))
    synced, empty, listed = calls
    assert (synced, listed) == ("sync", "/data/tree") and empty != listed
    assert file_operations.parse(found).samples["latency_ns"].tolist() == [7]


PORT, THRIFT_PORT = 21_211, 29_090


@pytest.mark.skipif(not shutil.which("memcached"), reason="memcached is not installed")
@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_every_operation_is_counted_and_timed(protocol):
    options = {"threads": 2, "connections": 3, "sets": 1, "gets": 10, "keys": 40}
    client = memcached.load("127.0.0.1", protocol=protocol, seconds=0.2, **options)
    with serving(f"memcached -u nobody -l 127.0.0.1 -p {PORT} -U 0".split(), PORT):
        ended = ran(client.argv, port=PORT)
    measurement = client.parse(ended.stdout, "")
    metrics, samples = measurement.metrics, measurement.samples
    start, latency, kind = map(np.array, json.loads(ended.stdout)["samples"].values())
    assert metrics["sets"] + metrics["gets"] == len(start) < measurement.messages - 40
    assert metrics["gets"] == pytest.approx(10 * metrics["sets"], abs=150)
    for number, name in ((1, "set_"), (0, "get_")):
        assert metrics[f"{name}latency_ns_max"] == latency[kind == number].max()
    assert (start >= 0).all() and start.max() < 0.2e9
    assert (np.diff(samples["start_ns"]) >= 0).all() and len(samples["set"]) <= 2 * memcached.KEPT


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_only_the_whole_right_answer_is_accepted(protocol):
    key, value, defined = b"labkit-7", b"x" * 32, program("memcached_load")
    header = struct.Struct("!BBHBBHIIQ")
    stored, found = b"STORED\r\n", b"VALUE %b 0 32\r\n%b\r\nEND\r\n" % (key, value)
    nothing = b"END\r\n"
    if protocol == "binary":
        stored = header.pack(0x81, 1, 0, 0, 0, 0, 0, 0, 9)
        found = header.pack(0x81, 0, 0, 4, 0, 0, 36, 0, 9) + bytes(4) + value
        nothing = header.pack(0x81, 0, 0, 0, 0, 1, 9, 0, 0) + b"Not found"
    for kind, answer in ((1, stored), (0, found)):
        _, *expected = defined["operation"](protocol, kind, key, value)
        defined["check"](answer, *expected)
        for wrong in (answer[:-1], answer + b"?", b"ERROR\r\n", b"", nothing):
            with pytest.raises(ValueError, match="memcached answered"):
                defined["check"](wrong, *expected)


def test_a_count_ends_when_nothing_arrives_any_more(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    defined = program("datagram_sink")
    # A queue empties slowly, until four counts are equal; or never.
    slowly = iter([0, 5, 6, 6, 6, 7, 8, 8, 8, 8, 0])
    for counts, not_read in ((slowly, 0), (itertools.count(), 102)):
        defined["drops"] = lambda pid, counts=counts: next(counts)
        defined["count"](1, settle=0.2, middle=0.6, end=0.2)
        assert next(counts) == not_read


@pytest.mark.parametrize(
    ("first", "then", "rate"),
    [
        ((1_000_000_000, {"77": 500}), (1_600_000_000, {"77": 3_500}), 5000.0),
        ((0, {"77": 2**32 - 1000}), (1_000_000_000, {"77": 1000}), 2000.0),
        ((0, {"77": 1}), (1_000_000_000, {"78": 2}), None),
        ((9, {"77": 1}), (5, {"77": 2}), None),
    ],
)
def test_a_rate_is_the_change_of_one_counter_on_one_clock(first, then, rate):
    text = json.dumps({"looks": [first, then]}) + "\n"
    if rate is not None:
        assert datagrams.parse_watch(text).metrics == {"packets_per_s": rate}
        text = text[:30]
    with pytest.raises(ToolOutput):
        datagrams.parse_watch(text)


CLOSED = json.loads(read("thrift-closed.json"))


@pytest.mark.parametrize(
    ("per_mille", "slices", "flagged"),
    [(1.0, 0, False), (1.02, 0, True), (20.5, 40, False)],  # 1 us each time that it woke up
)
def test_the_client_s_own_stalls_are_flagged(per_mille, slices, flagged):
    samples = {"start_ns": [0], "lateness_ns": [0], "latency_ns": [2_000_000]}
    found = CLOSED | {"samples": samples, "delay_ns": per_mille * 2000, "slices": slices}
    measurement = thrift_rpc.parse(json.dumps(found))
    assert measurement.metrics["client_delay"] == per_mille / 1000
    assert ["waited for its CPU" in text for text in measurement.flags] == [True] * flagged


@pytest.fixture
def thrift():
    if not os.access(PYTHON, os.X_OK) or subprocess.run([PYTHON, "-c", "import thrift"]).returncode:
        pytest.skip("python3-thrift is not installed (make setup)")
    with serving(thrift_rpc.server().argv, THRIFT_PORT):
        yield


def called(**options):
    client = thrift_rpc.client("127.0.0.1", **options)
    ended = ran(client.argv, python=PYTHON, port=THRIFT_PORT)
    assert ended.stderr == ""
    return client.parse(ended.stdout, "")


@pytest.mark.usefixtures("thrift")
@pytest.mark.parametrize("call", ["nothing", "receive", "send"])
def test_the_service_answers_every_call(call):
    measurement = called(calls=50, pause_us=300, call=call, size=100_000)
    assert len(measurement.samples["latency_ns"]) == 50 and measurement.messages == 550
    answered = measurement.samples["start_ns"] + measurement.samples["latency_ns"]
    assert (measurement.samples["start_ns"][1:] - answered[:-1] >= 300_000).all()


@pytest.mark.usefixtures("thrift")
@pytest.mark.parametrize("rate", [1_000, 1_000_000])
def test_no_call_is_sent_before_it_is_due_and_its_wait_counts(rate):
    start, late, latency = called(calls=300, rate=rate).samples.values()
    assert (np.diff(start) == 1_000_000_000 // rate).all() and (late >= 0).all()
    # A wait before a call is sent is part of its latency.
    assert (latency > late).all()
    # One at a time: none is sent before the one before it was answered.
    assert ((start + late)[1:] >= (start + latency)[:-1]).all()


@pytest.mark.usefixtures("thrift")
def test_a_client_without_a_server_fails_and_a_busy_workload_ends_in_time():
    for client, words in (
        (thrift_rpc.client("127.0.0.1", calls=5), "TTransportException: "),
        (APPLICATIONS["memcached text"].load("127.0.0.1", seconds=1), "ConnectionRefusedError"),
    ):
        ended = ran(client.argv, python=PYTHON, port=9)
        assert ended.returncode == 1 and ended.stdout == ""
        assert words in ended.stderr.splitlines()[-1]
    began = time.monotonic()
    assert subprocess.run(thrift_rpc.busy(0.2).argv, check=False).returncode == 0
    assert time.monotonic() - began >= 0.2
    assert thrift_rpc.probe(Host()).count(" on Python 3.") == 1
