"""The Thrift adapter: its parser on recorded output, and both ends of the service on loopback."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest
from recordings import ran, read, serving

from labkit.errors import ToolOutput
from labkit.hosts import LocalHost
from labkit.tools import thrift_rpc
from labkit.tools.base import PYTHON, Client, Measurement

PORT = 29_090
try:
    WITHOUT = subprocess.run([PYTHON, "-c", "import thrift"], capture_output=True).returncode != 0
except OSError:
    WITHOUT = True
needs_thrift = pytest.mark.skipif(WITHOUT, reason="python3-thrift is not installed (make setup)")
CLOSED = json.loads(read("thrift-closed.json"))


def test_every_call_is_a_row_and_slow_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thrift_rpc, "SLOW_NS", 50_000)
    measurement = thrift_rpc.parse(json.dumps(CLOSED), calls=40)
    samples, metrics = measurement.samples, measurement.metrics
    assert {name: one.tolist() for name, one in samples.items()} == CLOSED["samples"]
    # A closed loop: the next call begins only when the answer is there.
    ends = samples["start_ns"] + samples["latency_ns"]
    assert (ends[:-1] <= samples["start_ns"][1:]).all() and ends[-1] == metrics["elapsed_ns"]
    assert metrics["slow_calls"] == (samples["latency_ns"] > 50_000).sum()
    with pytest.raises(ToolOutput, match="40 of 41 calls"):
        thrift_rpc.parse(json.dumps(CLOSED), calls=41)


@pytest.mark.parametrize(
    ("per_mille", "slices", "flagged"),
    [(1.0, 0, False), (1.02, 0, True), (20.5, 40, False)],  # 1 us each time that it woke up
)
def test_the_client_s_own_stalls_are_flagged(per_mille: float, slices: int, flagged: bool) -> None:
    samples = {"start_ns": [0], "lateness_ns": [0], "latency_ns": [2_000_000]}
    found = CLOSED | {"samples": samples, "delay_ns": per_mille * 2000, "slices": slices}
    measurement = thrift_rpc.parse(json.dumps(found))
    assert measurement.metrics["client_delay"] == per_mille / 1000
    assert ["waited for its CPU" in text for text in measurement.flags] == [True] * flagged


@pytest.fixture
def served() -> Iterator[None]:
    with serving(thrift_rpc.server().argv, PORT):
        yield


def measured(client: Client) -> Measurement:
    ended = ran(client.argv, python=PYTHON, port=PORT)
    assert ended.stderr == ""
    return client.parse(ended.stdout, "")


@needs_thrift
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("call", ["nothing", "receive", "send"])
def test_the_service_answers_every_call(call: str) -> None:
    options = {"call": call, "size": 100_000}
    measurement = measured(thrift_rpc.client("127.0.0.1", calls=50, pause_us=300, **options))
    assert len(measurement.samples["latency_ns"]) == 50 and measurement.messages == 550
    answered = measurement.samples["start_ns"] + measurement.samples["latency_ns"]
    assert (measurement.samples["start_ns"][1:] - answered[:-1] >= 300_000).all()


@needs_thrift
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("rate", [1_000, 1_000_000])
def test_no_call_is_sent_before_it_is_due_and_its_wait_counts(rate: int) -> None:
    client = thrift_rpc.client("127.0.0.1", calls=300, loop="open", rate=rate)
    samples = measured(client).samples
    assert (np.diff(samples["start_ns"]) == 1_000_000_000 // rate).all()
    assert (samples["lateness_ns"] >= 0).all()
    sent = samples["start_ns"] + samples["lateness_ns"]
    # One at a time: none is sent before the one before it was answered.
    assert (sent[1:] >= (samples["start_ns"] + samples["latency_ns"])[:-1]).all()


@needs_thrift
def test_a_client_without_a_server_fails_and_a_busy_workload_ends_in_time() -> None:
    ended = ran(thrift_rpc.client("127.0.0.1", calls=5).argv, python=PYTHON, port=PORT)
    assert ended.returncode == 1 and ended.stdout == ""
    assert "TTransportException: " in ended.stderr.splitlines()[-1]
    began = time.monotonic()
    assert subprocess.run(thrift_rpc.busy(0.2).argv, check=False).returncode == 0
    assert time.monotonic() - began >= 0.2
    assert thrift_rpc.probe(LocalHost()).count(" on Python 3.") == 1
