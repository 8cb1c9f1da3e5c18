"""All parsers on recorded output that is cut off, damaged, or says something else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from damaged import damaged, survives
from hypothesis import given
from hypothesis import strategies as st
from recordings import CAPTURED, RECORDINGS, read

from labkit.errors import ToolOutput
from labkit.tools import h2load, iperf3, memtier, pgbench, sockperf, wrk2
from labkit.tools.base import Measurement
from labkit.tools.parsing import flag, json_in, reading, rows, shortfall
from labkit.units import column

#: Their logs may end anywhere: the rows that are there count (see test_ping_pong.py).
ROWS_COUNT = {"sockperf"}
#: Output without a decimal point.
INTEGERS = {"file_operations", "memcached", "sfnt_pingpong", "sockperf", "thrift_rpc", "memtier"}
#: Columns of times and of kinds, which measure nothing.
POSITIONS = {"start_ns", "end_ns", "set"}
APPLICATIONS = ["iperf3 tcp", "iperf3 udp", "memcached", "memtier", "h2load", "wrk2", "pgbench"]


def same(one: Measurement, other: Measurement) -> bool:
    samples = all((one.samples[name] == other.samples[name]).all() for name in one.samples)
    return samples and one.metrics == other.metrics and one.messages == other.messages


@pytest.mark.parametrize("name", RECORDINGS)
@given(data=st.data())
def test_output_cut_anywhere_gives_the_same_or_an_error(name: str, data: Any) -> None:
    recording = RECORDINGS[name]
    texts = list(recording.texts())
    which = data.draw(st.integers(0, 1 if recording.log and name not in ROWS_COUNT else 0))
    texts[which] = texts[which][: data.draw(st.integers(0, len(texts[which].rstrip()) - 1))]
    try:
        part = recording.parse(*texts)
    except ToolOutput:
        return
    assert same(part, recording.measurement())


@pytest.mark.parametrize("name", RECORDINGS)
@given(data=st.data())
def test_damaged_output_gives_a_measurement_or_an_error(name: str, data: Any) -> None:
    texts = list(RECORDINGS[name].texts())
    for which in data.draw(st.sampled_from([(0,), (1,), (0, 1)] if texts[1] else [(0,)])):
        texts[which] = data.draw(damaged(texts[which]))
    survives(lambda: RECORDINGS[name].parse(*texts))


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("text", ["", "Terminated\n", "{}\n", "[1]\n", "1,5\n", "null", "\n\n"])
def test_unknown_output_is_an_error_that_shows_it(name: str, text: str) -> None:
    for log in ("", text, RECORDINGS[name].texts()[1]):
        with pytest.raises(ToolOutput) as caught:
            RECORDINGS[name].parse(text, log)
        if not log.strip():
            assert (text.strip() or "(nothing)") in str(caught.value)


@pytest.mark.parametrize("name", sorted(RECORDINGS.keys() - INTEGERS))
def test_a_decimal_comma_is_an_error(name: str) -> None:
    output, log = RECORDINGS[name].texts()
    with pytest.raises(ToolOutput):
        RECORDINGS[name].parse(output.replace(".", ","), log.replace("\t", ","))


@pytest.mark.parametrize(
    ("name", "output", "words"),
    [
        ("datagrams", "sockperf-throughput-refused.txt", "no total of datagrams"),
        ("datagrams", "sockperf-block.txt", "no total of datagrams"),
        ("h2load", "h2load-refused.txt", "requests: 300 total"),
        ("iperf3 tcp", "iperf3-refused.json", "unable to connect"),
        ("memcached", "memcached-refused.txt", "ConnectionRefusedError"),
        ("memtier", "memtier-refused.txt", r"Totals +0\.00"),
        ("memtier", "memtier-with-histogram.txt", "its file is empty"),
        ("netperf", "netperf-refused.txt", "are you sure there is a netserver"),
        ("netperf", "netperf-gigabits.txt", "and not 10"),
        ("pgbench", "pgbench-refused.txt", "Connection refused"),
        ("sfnt_pingpong", "sfnt-refused.txt", "waiting for server to start"),
        ("sockperf", "sockperf-refused.txt", "Is the server down"),
        ("thrift_rpc", "thrift-refused.txt", "Could not connect"),
        ("wrk2", "wrk2-refused.txt", "Connection refused"),
    ],
)
def test_a_failure_is_an_error_with_the_tools_words(name: str, output: str, words: str) -> None:
    with pytest.raises(ToolOutput, match=words):
        RECORDINGS[name].parse(read(output), "")


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("iperf3 udp", r'"lost_packets":\s*0', '"lost_packets": 690', "690 of 382 datagrams"),
        ("memtier", r'"Interrupted": "false"', '"Interrupted": "true"', "interrupted"),
        ("memtier", r'"Count": 206295', '"Count": 206290', "206290 operations"),
        ("sockperf", r"SentMessages=10672", "SentMessages=10700", "10672 of 10700 messages"),
        ("sockperf", r"0, 2\.", "0, 2x", "2x"),
        ("datagrams", r"Rate is 2000", "Rate is 1900", "1900 per second"),
        ("netperf", r"TIME=1\.00", "TIME=9.00", "was the clock set"),
        ("wrk2", r"in 5\.00s", "in 4.60s", "not 2935.69 per second"),
        ("linpack", "check=passed", "check=failed", "failed"),
        ("linpack", "residual=0.00183027", "residual=17.2", "17.2"),
        ("linpack", "=0.0018", "=nan", "nan"),
        ("linpack", r"\Z", "gflops=1\n", "'gflops' occurs twice"),
        ("stream", "check=passed", "check=failed", "check is failed"),
        ("bonnie", "1.98,", "1.97,", r"format 1\.97"),
    ],
)
def test_output_that_contradicts_itself_is_an_error(
    name: str, old: str, new: str, words: str
) -> None:
    texts = [re.sub(old, new, text) for text in RECORDINGS[name].texts()]
    with pytest.raises(ToolOutput, match=words):
        RECORDINGS[name].parse(*texts)


def case(name: str) -> Measurement:
    """Return what is read of a case of tests/captured/cases."""
    folder = CAPTURED / "cases" / name

    def text(file: str) -> str:
        return (folder / file).read_text()

    match name.split("-")[0]:
        case "iperf3":
            return iperf3.parse(text("out.json"))
        case "pgbench":
            options = {"rate": 100, "seconds": 4, "connections": 10}
            return pgbench.parse(text("out.txt"), text("transactions.log"), **options)
        case "wrk2":
            rate, seconds = (10_000, 110) if name == "wrk2-terabytes" else (2000, 10)
            return wrk2.parse(text("out.txt"), rate=rate, seconds=seconds)
        case "h2load":
            load = {"rate": 200, "seconds": 9.0, "connections": 200, "warmup": 1.0}
            return h2load.parse(text("out.txt"), text("requests.log"), **load)
        case "memtier":
            return memtier.parse(text("out.txt"), text("memtier.json"))
    return sockperf.parse(text("out.txt"), text("full.log"))


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "iperf3-bidir-keys-twice": "'sum_sent' occurs twice",
        "iperf3-lost-percent-180": "107789 of 100000 datagrams",
        "iperf3-server-results-missing": "and 0 received",
        "iperf3-text-after-json": "unable to send control message: Broken pipe",
        "iperf3-udp-3.1-only-sum": "needs iperf3 3.12 or later; this says 3.21",
        "iperf3-udp-loss-zero-old-server": "95.0% of the",
        "memtier-1.3": "needs memtier_benchmark 1.4",
        "memtier-min-sentinel": "not in order",
        "memtier-totals-p50-zero": "not in order",
        "pgbench-13": "needs pgbench 15",
        "pgbench-14": "needs pgbench 15 or later; this says 14.9",
        "pgbench-aborted-rate-kept": "it reports a failure",
        "sockperf-3.3-log": "needs sockperf 3.5 or later; this says 3.3",
        "wrk2-clock": "was the clock set",
        "wrk2-u-latency": "ValueError",
    }.items(),
)
def test_a_case_is_refused_with_its_reason(name: str, words: str) -> None:
    with pytest.raises(ToolOutput, match=words):
        case(name)


@pytest.mark.parametrize(
    ("name", "metrics", "flags"),
    [
        ("iperf3-nan-in-interval", {"throughput_mbit_per_s": 4.8, "loss": 0.0}, ()),
        ("h2load-clock-20ms", {"late_ns_mean": 0.0}, ("the clock was set forward by 20 ms",)),
        ("h2load-clock-forward", {"late_ns_mean": 0}, ("the clock was set forward by 1,000 ms",)),
        ("wrk2-terabytes", {"throughput_mbit_per_s": 1.05 * 2**40 * 8e-6 / 110}, ()),
        ("wrk2-timeouts", {"socket_errors": 1139}, ("1139 of 20000 errors",)),
    ],
)
def test_a_case_has_its_right_value(
    name: str, metrics: dict[str, float], flags: tuple[str, ...]
) -> None:
    found = case(name)
    assert {key: found.metrics[key] for key in metrics} == pytest.approx(metrics, rel=1e-2)
    assert found.flags == flags


@pytest.mark.parametrize("name", [*APPLICATIONS, "datagrams"])
def test_every_metric_has_a_unit(name: str) -> None:
    measurement = RECORDINGS[name].measurement()
    measured = {*measurement.metrics, *measurement.samples} - POSITIONS
    assert [one for one in measured if column(one).kind == "other"] == []


def test_rows_are_integers_in_complete_lines() -> None:
    columns = rows("1 2\n3 4\n", ("a", "b"), " ")
    assert columns["a"].tolist() == [1, 3] and columns["b"].dtype == "int64"
    for wrong in ("", "1 2", "1 2\n3\n", "1 2\n3 4 5\n", "1 2.5\n", "1 \n", "\n\n", "1 2\n\n"):
        with pytest.raises(ToolOutput, match="a tool"), reading("a tool", wrong):
            rows(wrong, ("a", "b"), " ")


def test_json_is_the_first_object_that_begins_a_line() -> None:
    assert json_in('warning: {this}\n{"a": -nan, "b": [inf, 1]} and {more\n')["b"][1] == 1
    for wrong in ("", "[1]", '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', "{"):
        with pytest.raises(ValueError):
            json_in(wrong)


def test_a_load_that_falls_short_is_flagged() -> None:
    assert shortfall(99, 100) == shortfall(95, 100, chance=5) == flag("no", 0) == ()
    assert shortfall(93, 100, chance=5) == ("rate not reached: 93.0 of 100.0 per second",)
