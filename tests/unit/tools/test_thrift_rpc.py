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

from labkit.errors import ToolOutput, UsageError
from labkit.hosts import LocalHost
from labkit.tools import thrift_rpc
from labkit.tools.base import PYTHON, Client, Measurement

PORT = 29090
try:
    WITHOUT = subprocess.run([PYTHON, "-c", "import thrift"], capture_output=True).returncode != 0
except OSError:
    WITHOUT = True
needs_thrift = pytest.mark.skipif(WITHOUT, reason="python3-thrift is not installed (make setup)")
CLOSED, LOG = read("thrift-closed.txt"), read("thrift-closed.log")


def test_every_call_is_an_exact_row_of_integers() -> None:
    measurement = thrift_rpc.parse(CLOSED, LOG, calls=40)
    rows = [list(map(int, line.split(","))) for line in LOG.splitlines()[1:]]
    assert [list(row) for row in zip(*measurement.samples.values(), strict=True)] == rows
    assert all(values.dtype == np.int64 for values in measurement.samples.values())
    assert (measurement.samples["lateness_ns"] == 0).all()
    # A closed loop: the next call begins only when the answer is there.
    ends = measurement.samples["start_ns"] + measurement.samples["latency_ns"]
    assert (ends[:-1] <= measurement.samples["start_ns"][1:]).all()
    assert ends[-1] == measurement.metrics["elapsed_ns"] == 7_363_121
    assert measurement.metrics["slow_warmup"] == 3
    assert measurement.metrics["warmup_ns"] == 7_046_816
    assert measurement.messages == 60 and measurement.flags == ()


def test_slow_calls_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thrift_rpc, "SLOW_NS", 50_000)
    measurement = thrift_rpc.parse(CLOSED, LOG)
    slow = (measurement.samples["latency_ns"] > 50_000).sum()
    assert measurement.metrics["slow_calls"] == slow > 0


def test_an_open_loop_counts_from_when_a_call_was_due_whatever_the_language() -> None:
    measurement = thrift_rpc.parse(read("thrift-open-de.txt"), read("thrift-open-de.log"))
    assert (np.diff(measurement.samples["start_ns"]) == 500_000).all()
    assert (measurement.samples["lateness_ns"] > 0).any()
    assert (measurement.samples["latency_ns"] > measurement.samples["lateness_ns"]).all()


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
        ("", None, None),
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
    assert ("client_delay_ns" in measurement.metrics) == (share is not None)
    assert [flag in text for text in measurement.flags] == ([True] if flag else [])


def test_commands_are_argument_lists_with_their_options() -> None:
    client = thrift_rpc.closed_loop("198.18.0.3", calls=1_000, call="send", size=100)
    assert client.argv[:2] == (PYTHON, "-c") and client.target == "198.18.0.3"
    assert {"closed", "call=send", "size=100", "log={log}"} <= set(client.argv)
    assert client.log_rows == 1_000 and not client.samples_in_stdout
    inside = thrift_rpc.open_loop("198.18.0.3", calls=1_000, rate=2_000, inside=True)
    assert {"open", "rate=2000", "log=-"} <= set(inside.argv)
    assert inside.samples_in_stdout and not any("{log}" in part for part in inside.argv)
    assert thrift_rpc.busy().port == 0 and "seconds=0.3" in thrift_rpc.busy(0.3).argv
    waiting = thrift_rpc.pause(1.5, "198.18.0.3")
    assert waiting.argv == ("sleep", "1.5") and waiting.target == "198.18.0.3"
    assert waiting.parse("", "").messages == 0
    for pause in (-1, 2e6, float("nan")):
        with pytest.raises(UsageError, match="invalid pause"):
            thrift_rpc.closed_loop("198.18.0.3", calls=50, pause_us=pause)
    for rate in (0, float("nan")):
        with pytest.raises(UsageError, match="invalid rate"):
            thrift_rpc.open_loop("198.18.0.3", calls=50, rate=rate)


def test_a_run_is_given_the_time_that_its_quota_and_its_pauses_make_it_take() -> None:
    whole, tenth = (thrift_rpc.duration(10_000, share=share) for share in (1.0, 0.1))
    assert 2 < whole < 6 and whole < tenth < 20
    assert thrift_rpc.duration(10_000, rate=100) > 100
    assert thrift_rpc.duration(10_000, size=100_000) > whole + 10
    assert thrift_rpc.duration(10_000, pause_us=1e3) > whole + 10


@pytest.fixture
def served() -> Iterator[None]:
    """Serve on loopback."""
    process = subprocess.Popen(thrift_rpc.server(port=PORT).argv)
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                break
        time.sleep(0.01)
    yield
    process.kill()
    process.wait()


def run(client: Client, log: Path) -> subprocess.CompletedProcess[str]:
    argv = [part.replace("{log}", str(log)) for part in client.argv]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def measured(client: Client, log: Path) -> Measurement:
    return client.parse(run(client, log).stdout, log.read_text())


@needs_thrift
@pytest.mark.parametrize("call", thrift_rpc.CALLS)
@pytest.mark.parametrize("inside", [False, True])
def test_the_service_answers_every_call(
    call: str, inside: bool, served: None, tmp_path: Path
) -> None:
    options = {"call": call, "size": 100_000, "port": PORT, "inside": inside}
    client = thrift_rpc.closed_loop("127.0.0.1", calls=50, pause_us=300, **options)
    ended = run(client, tmp_path / "log")
    assert ended.stderr == "" and (tmp_path / "log").exists() != inside
    measurement = client.parse(ended.stdout, "" if inside else (tmp_path / "log").read_text())
    assert len(measurement.samples["latency_ns"]) == 50 and measurement.messages == 550
    # How busy the machine is that runs the tests does not matter.
    assert not any("protocol" in flag for flag in measurement.flags)
    answered = measurement.samples["start_ns"] + measurement.samples["latency_ns"]
    assert (measurement.samples["start_ns"][1:] - answered[:-1] >= 300_000).all()


@needs_thrift
@pytest.mark.parametrize("rate", [1_000, 1_000_000])
def test_no_call_is_sent_before_it_is_due_and_its_wait_counts(
    rate: int, served: None, tmp_path: Path
) -> None:
    client = thrift_rpc.open_loop("127.0.0.1", calls=300, rate=rate, port=PORT)
    samples = measured(client, tmp_path / "log").samples
    assert (np.diff(samples["start_ns"]) == 1_000_000_000 // rate).all()
    assert (samples["lateness_ns"] >= 0).all()
    sent = samples["start_ns"] + samples["lateness_ns"]
    # One at a time: none is sent before the one before it was answered.
    assert (sent[1:] >= (samples["start_ns"] + samples["latency_ns"])[:-1]).all()


@needs_thrift
def test_a_client_without_a_server_fails_with_a_reason(tmp_path: Path) -> None:
    client = thrift_rpc.closed_loop("127.0.0.1", calls=5, port=PORT + 1)
    ended = run(client, tmp_path / "log")
    assert ended.returncode == 1 and ended.stdout == "" and not (tmp_path / "log").exists()
    assert "TTransportException: Could not connect" in ended.stderr


@needs_thrift
def test_a_busy_workload_computes_for_its_time_and_the_library_is_found() -> None:
    began = time.monotonic()
    ended = subprocess.run(thrift_rpc.busy(0.2).argv, check=False)
    assert ended.returncode == 0 and time.monotonic() - began >= 0.2
    assert thrift_rpc.probe(LocalHost()).count(" on Python 3.") == 1
