"""All parsers on recorded output that is cut off, damaged, or says something else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from damaged import damaged, survives
from hypothesis import given
from hypothesis import strategies as st
from recordings import RECORDINGS, read

from labkit.errors import ToolOutput
from labkit.tools.base import Measurement
from labkit.tools.parsing import csv_rows, fields, json_in, positive, reading, rows, shortfall
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
        ("netperf", "netperf-gigabits.txt", "is not TCP in 10"),
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


ABORTED = "Run was aborted; the above results are incomplete.\n"
BROKEN = "\niperf3: error - unable to send control message: Broken pipe\n"
SUM = '"sum_sent": {"bytes": 1, "bits_per_second": 1, "retransmits": 0}, "sum_received"'


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        # A number that the tool itself contradicts, or a failure that it reports beside it.
        ("pgbench", r"\Z", ABORTED, "was aborted"),
        ("iperf3 tcp", r"\Z", BROKEN, "Broken pipe"),
        ("iperf3 tcp", r"2180775936", "0", "and 0 received"),
        (
            "iperf3 udp",
            r'"bytes":\s*12517376,([^{]*false)',
            r'"bytes": 11900000,\1',
            "95.1% of the",
        ),
        ("iperf3 udp", r'"lost_packets":\s*0', '"lost_packets": 690', "690 of 382 datagrams"),
        (
            "memtier",
            r'"Min Latency":\s*0\.\d+',
            '"Min Latency": 9223372036854776.0',
            "not in order",
        ),
        ("memtier", r'"p(\S+)":\s*0\.231', r'"p\1": 0.0', "not in order"),
        ("memtier", r'"Interrupted": "false"', '"Interrupted": "true"', "interrupted"),
        ("memtier", r'"Count": 206295', '"Count": 206290', "206290 operations"),
        ("sockperf", r"SentMessages=10672", "SentMessages=10700", "10672 of 10700 messages"),
        ("datagrams", r"Rate is 2000", "Rate is 1900", "1900 per second"),
        ("wrk2", r"in 5\.00s", "in 307445734491.24m", "was the clock set"),
        ("wrk2", r"in 5\.00s", "in 4.60s", "not 2935.69 per second"),
        ("linpack", "check=passed", "check=failed", "failed"),
        ("linpack", "residual=0.00183027", "residual=17.2", "17.2"),
        ("linpack", "=0.0018", "=nan", "nan"),
        ("stream", "check=passed", "check=failed", "expected values"),
        # The same key or table twice.
        ("iperf3 tcp", r'"sum_received"', SUM, "'sum_sent' occurs twice"),
        ("wrk2", r"(?s)( +Detailed Percentile.*?)(\n---)", r"\1\n\1\2", "ValueError"),
        ("linpack", r"\Z", "gflops=1\n", "'gflops' occurs twice"),
        # Other versions.
        ("iperf3 udp", r'"sum_received"', '"other"', "needs iperf3 3.12 or later; this says 3.12"),
        ("memtier", r"Percentile Latencies", "Other", "needs memtier_benchmark 1.4"),
        ("pgbench", r"number of failed.*", "", "needs pgbench 15 or later; this says 15"),
        (
            "sockperf",
            r"packet, txTime\(sec\), rxTime\(sec\)",
            "txTime, rxTime",
            "needs sockperf 3.5",
        ),
        ("bonnie", "1.98,", "1.97,", r"format 1\.97"),
    ],
)
def test_output_that_contradicts_itself_is_an_error(
    name: str, old: str, new: str, words: str
) -> None:
    texts = [re.sub(old, new, text) for text in RECORDINGS[name].texts()]
    with pytest.raises(ToolOutput, match=words):
        RECORDINGS[name].parse(*texts)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("iperf3 udp", r'"lost_percent":\s*0(?=[^}]*}[^}]*"streams")', '"lost_percent": -nan'),
        ("iperf3 tcp", r"\A", "warning: {this} is no JSON\n"),
        ("iperf3 tcp", r"\Z", "\niperf Done.\n"),
    ],
)
def test_text_around_json_and_missing_numbers_in_it_do_no_harm(
    name: str, old: str, new: str
) -> None:
    text = RECORDINGS[name].texts()[0]
    changed = re.sub(old, new, text, count=1)
    assert same(RECORDINGS[name].parse(changed, ""), RECORDINGS[name].measurement())


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
    assert csv_rows("a,b\n1,2\n", ("a", "b"))["b"].tolist() == [2]
    with pytest.raises(ValueError, match="not the columns a, b"):
        csv_rows("1,2\n", ("a", "b"))


def test_json_is_the_first_object_that_begins_a_line() -> None:
    assert json_in('{"a": -nan, "b": [inf, 1]} and {more\n')["b"][1] == 1
    for wrong in ("", "[1]", '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', "{"):
        with pytest.raises(ValueError):
            json_in(wrong)


def test_numbers_are_positive_and_fields_are_there_once() -> None:
    assert positive("1e3", "a") == 1000 and fields("a=1\nb = 2=3\nc\n") == {"a": "1", "b": "2=3"}
    for wrong in ("0", "-1", "nan", "inf", "1,5", "1_0", "", "x", "1e999"):
        with pytest.raises(ValueError):
            positive(wrong, "a")


def test_rates_that_fall_short_are_flagged() -> None:
    assert shortfall(99, 100) == shortfall(95, 100, chance=5) == ()
    assert shortfall(93, 100, chance=5) == ("rate not reached: 93.0 of 100.0 per second",)
