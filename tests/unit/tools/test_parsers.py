"""All parsers on recorded output that is cut off, missing or in another form."""

from __future__ import annotations

from typing import Any

import pytest
from damaged import damaged, survives
from hypothesis import given
from hypothesis import strategies as st
from recordings import RECORDINGS

from labkit.errors import ToolOutput
from labkit.tools.base import Measurement
from labkit.units import column

#: Their logs may end anywhere: the rows that are there count (see test_sockperf.py).
ROWS_COUNT = {"sockperf"}
#: Output without a decimal point.
INTEGERS = {"file_operations", "memcached", "sfnt_pingpong", "sockperf", "thrift_rpc", "memtier"}
#: Columns that say when and which, and measure nothing.
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
    recording = RECORDINGS[name]
    with pytest.raises(ToolOutput) as caught:
        recording.parse(text, "")
    shown = str(caught.value)
    assert text.strip() in shown
    assert text.strip() or "(nothing)" in shown or "(no output)" in shown
    for log in (text, recording.texts()[1]):
        with pytest.raises(ToolOutput):
            recording.parse(text, log)


@pytest.mark.parametrize("name", sorted(RECORDINGS.keys() - INTEGERS))
def test_a_decimal_comma_is_an_error(name: str) -> None:
    output, log = RECORDINGS[name].texts()
    with pytest.raises(ToolOutput):
        RECORDINGS[name].parse(output.replace(".", ","), log.replace("\t", ","))


@pytest.mark.parametrize(
    ("name", "output", "words"),
    [
        ("fio", "fio-failed.json", "not a directory"),
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
        ("datagrams", "sockperf-throughput-refused.txt", "no total of datagrams"),
        ("datagrams", "sockperf-block.txt", "no total of datagrams"),
        ("stress_ng", "stress-ng-failed.txt", "no whole result of cpu"),
        ("sysbench cpu", "sysbench-failed.txt", "Invalid value for the 'threads' option"),
        ("thrift_rpc", "thrift-refused.txt", "Could not connect"),
        ("wrk2", "wrk2-refused.txt", "Connection refused"),
    ],
)
def test_a_failure_is_an_error_with_the_tools_words(name: str, output: str, words: str) -> None:
    with pytest.raises(ToolOutput, match=words):
        RECORDINGS[name].parse((RECORDINGS[name]._replace(output=output)).texts()[0], "")


@pytest.mark.parametrize("name", [*APPLICATIONS, "datagrams"])
def test_every_metric_has_a_unit(name: str) -> None:
    measurement = RECORDINGS[name].measurement()
    measured = {*measurement.metrics, *measurement.samples} - POSITIONS
    assert [one for one in measured if column(one).kind == "other"] == []
