"""The Thrift adapter: its parser on recorded output, and both ends of the service on loopback."""

from __future__ import annotations

import json
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
from labkit.tools.base import Client, Measurement

PYTHON = "/usr/bin/python3"
PORT = 29090
try:
    WITHOUT = subprocess.run([PYTHON, "-c", "import thrift"], capture_output=True).returncode != 0
except OSError:
    WITHOUT = True
needs_thrift = pytest.mark.skipif(WITHOUT, reason="python3-thrift is not installed (make setup)")


def test_every_call_is_an_exact_row_of_integers() -> None:
    log = read("thrift-closed.log")
    measurement = thrift_rpc.parse(read("thrift-closed.txt"), log, calls=40)
    rows = [list(map(int, line.split(","))) for line in log.splitlines()[1:]]
    assert [list(row) for row in zip(*measurement.samples.values(), strict=True)] == rows
    assert all(values.dtype == np.int64 for values in measurement.samples.values())
    assert (measurement.samples["lateness_ns"] == 0).all()
    # A closed loop: the next call begins only when the answer is there.
    ends = measurement.samples["start_ns"] + measurement.samples["latency_ns"]
    assert (ends[:-1] <= measurement.samples["start_ns"][1:]).all()
    assert ends[-1] == measurement.metrics["elapsed_ns"] == 7_363_121
    assert measurement.messages == 60 and measurement.flags == ()


def test_slow_calls_are_counted_before_the_sample_and_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measurement = thrift_rpc.parse(read("thrift-closed.txt"), read("thrift-closed.log"))
    latency = measurement.samples["latency_ns"]
    assert measurement.metrics["slow_warmup"] == 3
    assert measurement.metrics["warmup_ns"] == 7_046_816
    assert measurement.metrics["slow_calls"] == (latency > 1_000_000).sum()
    monkeypatch.setattr(thrift_rpc, "SLOW_NS", 50_000)
    many = thrift_rpc.parse(read("thrift-closed.txt"), read("thrift-closed.log"))
    assert many.metrics["slow_calls"] == (latency > 50_000).sum() > 0


def test_an_open_loop_counts_from_when_a_call_was_due_whatever_the_language() -> None:
    measurement = thrift_rpc.parse(read("thrift-open-de.txt"), read("thrift-open-de.log"))
    assert (np.diff(measurement.samples["start_ns"]) == 500_000).all()
    assert (measurement.samples["lateness_ns"] > 0).any()
    assert (measurement.samples["latency_ns"] > measurement.samples["lateness_ns"]).all()


def test_a_client_without_a_file_prints_its_samples() -> None:
    text = read("thrift-inside.txt")
    measurement = thrift_rpc.parse(text, "", calls=40)
    assert len(measurement.samples["latency_ns"]) == 40
    assert measurement.samples["latency_ns"][0] == 56_375
    with pytest.raises(ToolOutput, match="its log"):
        thrift_rpc.parse(text.splitlines()[0], "", calls=40)


@given(st.integers(0, 657))
def test_a_log_that_is_cut_anywhere_is_an_error_never_a_wrong_number(cut: int) -> None:
    log = read("thrift-closed.log")
    for end in ("", "\n"):  # thinning ends every line
        with pytest.raises(ToolOutput):
            thrift_rpc.parse(read("thrift-closed.txt"), log[:cut] + end)


def test_another_number_of_calls_than_was_asked_for_is_an_error() -> None:
    with pytest.raises(ToolOutput, match="40 rows of 41 calls"):
        thrift_rpc.parse(read("thrift-closed.txt"), read("thrift-closed.log"), calls=41)


def test_the_slow_protocol_is_flagged() -> None:
    text = read("thrift-closed.txt").replace('"accelerated": true', '"accelerated": false')
    measurement = thrift_rpc.parse(text, read("thrift-closed.log"))
    assert measurement.flags == ("Thrift's compiled protocol was not used",)


@pytest.mark.parametrize(
    ("delay", "slices", "share", "flagged"),
    [
        (7_363, 0, 0.001, False),
        (7_500, 0, 0.00102, True),
        (40_000, 40, 0.00543, False),  # a microsecond each time it woke up
        (73_631, 40, 0.01, True),
    ],
)
def test_the_clients_own_stalls_are_said(delay, slices, share, flagged) -> None:
    told = f'"delay_ns": {delay}, "slices": {slices}, "accelerated"'
    text = read("thrift-closed.txt").replace('"accelerated"', told)
    measurement = thrift_rpc.parse(text, read("thrift-closed.log"))
    assert measurement.metrics["client_delay_ns"] == delay
    assert measurement.metrics["client_delay"] == pytest.approx(share, rel=0.01)
    assert any("waited for its CPU" in flag for flag in measurement.flags) == flagged


@pytest.mark.parametrize("told", ["", '"delay_ns": null, "slices": 0, '])
def test_a_kernel_that_counts_no_delay_has_no_such_metric(told: str) -> None:
    text = read("thrift-closed.txt").replace('"accelerated"', told + '"accelerated"')
    measurement = thrift_rpc.parse(text, read("thrift-closed.log"))
    assert "client_delay_ns" not in measurement.metrics and measurement.flags == ()


def test_commands_are_argument_lists_with_their_options() -> None:
    client = thrift_rpc.closed_loop("198.18.0.3", calls=1_000, call="send", size=100)
    assert client.argv[:2] == (PYTHON, "-c") and client.target == "198.18.0.3"
    assert {"closed", "call=send", "size=100", "log={log}"} <= set(client.argv)
    assert client.log_rows == 1_000 and not client.samples_in_stdout
    inside = thrift_rpc.open_loop("198.18.0.3", calls=1_000, rate=2_000, inside=True)
    assert {"open", "rate=2000", "log=-"} <= set(inside.argv)
    assert inside.samples_in_stdout and not any("{log}" in part for part in inside.argv)
    assert thrift_rpc.server().protocol == "tcp"
    assert thrift_rpc.busy().port == 0 and "seconds=0.3" in thrift_rpc.busy(0.3).argv
    assert thrift_rpc.pause(1.5).argv == ("sleep", "1.5")
    assert thrift_rpc.pause(1.5).parse("", "").messages == 0
    assert thrift_rpc.pause(1.5, "198.18.0.3").target == "198.18.0.3"


def test_a_run_is_given_the_time_that_its_quota_makes_it_take() -> None:
    whole, tenth = (thrift_rpc.duration(10_000, share=share) for share in (1.0, 0.1))
    assert 2 < whole < 6 and whole < tenth < 20
    assert thrift_rpc.duration(10_000, rate=100) > 100
    assert thrift_rpc.duration(10_000, size=100_000) > whole + 10
    quick, slow = (
        thrift_rpc.closed_loop("198.18.0.3", calls=10_000, pause_us=pause) for pause in (0, 1e3)
    )
    assert slow.seconds > quick.seconds + 10


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
def test_the_service_answers_every_call(call: str, served: None, tmp_path: Path) -> None:
    options = {"call": call, "size": 100_000, "port": PORT}
    client = thrift_rpc.closed_loop("127.0.0.1", calls=50, **options)
    ended = run(client, tmp_path / "log")
    assert ended.stderr == ""
    measurement = client.parse(ended.stdout, (tmp_path / "log").read_text())
    assert len(measurement.samples["latency_ns"]) == 50
    # How busy the machine is that runs the tests is not what is tested.
    assert not any("protocol" in flag for flag in measurement.flags)
    assert (
        0 <= measurement.metrics.get("client_delay_ns", 0) < 2 * measurement.metrics["elapsed_ns"]
    )
    inside = thrift_rpc.closed_loop("127.0.0.1", calls=50, inside=True, **options)
    assert inside.parse(run(inside, tmp_path / "none").stdout, "").messages == 550
    assert not (tmp_path / "none").exists()


@needs_thrift
def test_the_client_sleeps_between_calls_where_it_is_asked_to(served: None, tmp_path: Path) -> None:
    client = thrift_rpc.closed_loop("127.0.0.1", calls=50, pause_us=3_000, port=PORT)
    samples = measured(client, tmp_path / "log").samples
    answered = samples["start_ns"] + samples["latency_ns"]
    assert (samples["start_ns"][1:] - answered[:-1] >= 3_000_000).all()


@pytest.mark.parametrize("pause_us", [-1, 2e6, float("nan")])
def test_an_impossible_pause_is_refused(pause_us: float) -> None:
    with pytest.raises(UsageError, match="invalid pause"):
        thrift_rpc.closed_loop("198.18.0.3", calls=50, pause_us=pause_us)


@needs_thrift
def test_calls_that_come_too_fast_wait_and_their_wait_counts(served: None, tmp_path: Path) -> None:
    client = thrift_rpc.open_loop("127.0.0.1", calls=300, rate=1_000_000, port=PORT)
    samples = measured(client, tmp_path / "log").samples
    assert (np.diff(samples["start_ns"]) == 1_000).all()
    sent = samples["start_ns"] + samples["lateness_ns"]
    # One at a time: none is sent before the one before it was answered.
    assert (sent[1:] >= (samples["start_ns"] + samples["latency_ns"])[:-1]).all()
    assert samples["latency_ns"][-1] > samples["latency_ns"][0]


@needs_thrift
def test_no_call_is_sent_before_it_is_due(served: None, tmp_path: Path) -> None:
    client = thrift_rpc.open_loop("127.0.0.1", calls=400, rate=1_000, port=PORT)
    measurement = measured(client, tmp_path / "log")
    assert (measurement.samples["lateness_ns"] >= 0).all()
    assert measurement.metrics["client_delay"] < 1


@needs_thrift
def test_where_nobody_listens_the_client_fails_and_says_so(tmp_path: Path) -> None:
    client = thrift_rpc.closed_loop("127.0.0.1", calls=5, port=PORT + 1)
    ended = run(client, tmp_path / "log")
    assert ended.returncode == 1 and ended.stdout == ""
    assert "TTransportException: Could not connect" in ended.stderr
    assert not (tmp_path / "log").exists()


@needs_thrift
def test_a_busy_workload_computes_for_as_long_as_it_was_told() -> None:
    began = time.monotonic()
    ended = subprocess.run(thrift_rpc.busy(0.2).argv, check=False)
    assert ended.returncode == 0 and time.monotonic() - began >= 0.2


@needs_thrift
def test_the_library_and_its_compiled_protocol_are_found() -> None:
    assert json.dumps(thrift_rpc.probe(LocalHost())).count(" on Python 3.") == 1
