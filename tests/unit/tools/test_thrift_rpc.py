"""The Thrift adapter: its parser on recorded output, and both ends of the service on loopback."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import read

from labkit.errors import ToolOutput
from labkit.hosts import LocalHost
from labkit.tools import thrift_rpc
from labkit.tools.base import PYTHON, Client

PORT = 29_090
try:
    WITHOUT = subprocess.run([PYTHON, "-c", "import thrift"], capture_output=True).returncode != 0
except OSError:
    WITHOUT = True
needs_thrift = pytest.mark.skipif(WITHOUT, reason="python3-thrift is not installed (make setup)")
CLOSED, LOG = read("thrift-closed.txt"), read("thrift-closed.log")


def test_every_call_is_an_exact_row_of_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thrift_rpc, "SLOW_NS", 50_000)
    measurement = thrift_rpc.parse(CLOSED, LOG, calls=40)
    samples, metrics = measurement.samples, measurement.metrics
    rows = [list(map(int, line.split(","))) for line in LOG.splitlines()[1:]]
    assert [list(row) for row in zip(*samples.values(), strict=True)] == rows
    assert all(values.dtype == np.int64 for values in samples.values())
    assert (samples["lateness_ns"] == 0).all()
    # A closed loop: the next call begins only when the answer is there.
    ends = samples["start_ns"] + samples["latency_ns"]
    assert (ends[:-1] <= samples["start_ns"][1:]).all()
    assert ends[-1] == metrics["elapsed_ns"] == 7_363_121 and metrics["warmup_ns"] == 7_046_816
    assert metrics["slow_calls"] == (samples["latency_ns"] > 50_000).sum() > 0
    assert measurement.messages == 60 and measurement.flags == ()


def test_an_open_loop_counts_from_when_a_call_was_due_whatever_the_language() -> None:
    samples = thrift_rpc.parse(read("thrift-open-de.txt"), read("thrift-open-de.log")).samples
    assert (np.diff(samples["start_ns"]) == 500_000).all()
    assert (samples["lateness_ns"] > 0).any()
    assert (samples["latency_ns"] > samples["lateness_ns"]).all()


def test_a_client_without_a_file_prints_its_samples() -> None:
    text = read("thrift-inside.txt")
    latency = thrift_rpc.parse(text, calls=40).samples["latency_ns"]
    assert len(latency) == 40 and latency[0] == 56_375
    with pytest.raises(ToolOutput, match="its log"):
        thrift_rpc.parse(text.splitlines()[0], "", calls=40)


@given(st.integers(0, 657))
def test_a_log_that_is_cut_anywhere_is_an_error_never_a_wrong_number(cut: int) -> None:
    for end in ("", "\n"):  # thinning ends every line
        with pytest.raises(ToolOutput):
            thrift_rpc.parse(CLOSED, LOG[:cut] + end)
    with pytest.raises(ToolOutput, match="40 rows of 41 calls"):
        thrift_rpc.parse(CLOSED, LOG, calls=41)


@pytest.mark.parametrize(
    ("change", "share", "flag"),
    [
        ('"delay_ns": null, "slices": 0, ', None, None),
        ('"delay_ns": 7363, "slices": 0, ', 0.001, None),
        ('"delay_ns": 7500, "slices": 0, ', 0.00102, "waited for its CPU"),
        ('"delay_ns": 40000, "slices": 40, ', 0.00543, None),  # 1 us each time that it woke up
        ('"delay_ns": 73631, "slices": 40, ', 0.01, "waited for its CPU"),
        ('"accelerated": false, "other', None, "compiled protocol was not used"),
    ],
)
def test_the_client_s_own_stalls_and_the_slow_protocol_are_flagged(
    change: str, share: float | None, flag: str | None
) -> None:
    text = CLOSED.replace('"accelerated', change + '"accelerated')
    if "false" in change:
        text = CLOSED.replace('"accelerated": true', '"accelerated": false')
    measurement = thrift_rpc.parse(text, LOG)
    assert measurement.metrics.get("client_delay") == (share and pytest.approx(share, rel=0.01))
    assert [flag in text for text in measurement.flags] == ([True] if flag else [])


def moved(argv: tuple[str, ...], log: Path | str = "") -> list[str]:
    """Return a command with another port, and its log."""
    return [part.replace("{log}", str(log)).replace("port=9090", f"port={PORT}") for part in argv]


@pytest.fixture
def served() -> Iterator[None]:
    """Serve on loopback."""
    process = subprocess.Popen(moved(thrift_rpc.server().argv))
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                break
        time.sleep(0.01)
    yield
    process.kill()
    process.wait()


def run(client: Client, log: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(moved(client.argv, log), capture_output=True, text=True, check=False)


@needs_thrift
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("call", ["nothing", "receive", "send"])
@pytest.mark.parametrize("inside", [False, True])
def test_the_service_answers_every_call(call: str, inside: bool, tmp_path: Path) -> None:
    options = {"call": call, "size": 100_000, "inside": inside}
    client = thrift_rpc.client("127.0.0.1", calls=50, pause_us=300, **options)
    ended = run(client, tmp_path / "log")
    assert ended.stderr == "" and (tmp_path / "log").exists() != inside
    measurement = client.parse(ended.stdout, "" if inside else (tmp_path / "log").read_text())
    assert len(measurement.samples["latency_ns"]) == 50 and measurement.messages == 550
    # How busy the machine is that runs the tests does not matter.
    assert not any("protocol" in flag for flag in measurement.flags)
    answered = measurement.samples["start_ns"] + measurement.samples["latency_ns"]
    assert (measurement.samples["start_ns"][1:] - answered[:-1] >= 300_000).all()


@needs_thrift
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("rate", [1_000, 1_000_000])
def test_no_call_is_sent_before_it_is_due_and_its_wait_counts(rate: int, tmp_path: Path) -> None:
    client = thrift_rpc.client("127.0.0.1", calls=300, loop="open", rate=rate)
    printed = run(client, tmp_path / "log").stdout
    samples = client.parse(printed, (tmp_path / "log").read_text()).samples
    assert (np.diff(samples["start_ns"]) == 1_000_000_000 // rate).all()
    assert (samples["lateness_ns"] >= 0).all()
    sent = samples["start_ns"] + samples["lateness_ns"]
    # One at a time: none is sent before the one before it was answered.
    assert (sent[1:] >= (samples["start_ns"] + samples["latency_ns"])[:-1]).all()


@needs_thrift
def test_a_client_without_a_server_fails_and_a_busy_workload_ends_in_time(tmp_path: Path) -> None:
    ended = run(thrift_rpc.client("127.0.0.1", calls=5), tmp_path / "log")
    assert ended.returncode == 1 and ended.stdout == "" and not (tmp_path / "log").exists()
    assert "TTransportException: " in ended.stderr.splitlines()[-1]
    began = time.monotonic()
    assert subprocess.run(thrift_rpc.busy(0.2).argv, check=False).returncode == 0
    assert time.monotonic() - began >= 0.2
    assert thrift_rpc.probe(LocalHost()).count(" on Python 3.") == 1
