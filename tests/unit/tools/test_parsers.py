"""Tools in general; all parsers on output that is cut off, damaged, or says something else."""

import re
from types import SimpleNamespace

import pytest
from damaged import damaged, survives
from hypothesis import given
from hypothesis import strategies as st
from recordings import ADDRESS, ALL, CAPTURED, PARSERS, RECORDINGS

from labkit.errors import LabkitError, ToolOutput, UsageError
from labkit.tools import APPLICATIONS, base, datagrams, sockperf, with_tools
from labkit.tools.base import flag, json_in, reading, rows, shortfall
from labkit.units import column

#: Output without a decimal point.
INTEGERS = {"sfnt_pingpong", "sockperf", "thrift_rpc", "memtier"}


@pytest.mark.parametrize("name", RECORDINGS)
@given(data=st.data())
def test_output_cut_anywhere_gives_the_same_or_an_error(name, data):
    recording = RECORDINGS[name]
    texts, whole = list(recording.texts()), recording.measurement()
    which = data.draw(st.integers(0, 1 if recording.log else 0))
    texts[which] = texts[which][: data.draw(st.integers(0, len(texts[which].rstrip()) - 1))]
    try:
        part = recording.parse(*texts)
    except ToolOutput:
        return
    assert (part.metrics, part.messages) == (whole.metrics, whole.messages)
    for sample, values in part.samples.items():
        # The rows of a log that was thinned count as far as they go.
        assert name == "sockperf" or len(values) == len(whole.samples[sample])
        assert (values == whole.samples[sample][: len(values)]).all()


@pytest.mark.parametrize("name", RECORDINGS)
@given(data=st.data())
def test_damaged_output_gives_a_measurement_or_an_error(name, data):
    texts = list(RECORDINGS[name].texts())
    for which in data.draw(st.sampled_from([(0,), (1,), (0, 1)] if texts[1] else [(0,)])):
        texts[which] = data.draw(damaged(texts[which]))
    survives(lambda: RECORDINGS[name].parse(*texts))


@pytest.mark.parametrize("name", RECORDINGS)
def test_other_output_is_an_error_that_shows_it(name):
    output, log = RECORDINGS[name].texts()
    for text in ("", "Terminated\n", "{}\n", "[1]\n", "1,5\n", "null"):
        for other in ("", log):
            with pytest.raises(ToolOutput) as caught:
                RECORDINGS[name].parse(text, other)
            if not other:
                assert (text.strip() or "(nothing)") in str(caught.value)
    if name not in INTEGERS:  # a decimal comma
        with pytest.raises(ToolOutput):
            RECORDINGS[name].parse(output.replace(".", ","), log.replace("\t", ","))


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("iperf3 udp", r'"lost_packets":\s*0', '"lost_packets": 690', "690 of 382 datagrams"),
        ("memtier", r'"Interrupted": "false"', '"Interrupted": "true"', "interrupted"),
        ("memtier", r'"Min Latency": [\d.]+', '"Min Latency": 0', "not in order"),
        ("memtier", r'"Count": 206295', '"Count": 206290', "206290 operations"),
        ("sockperf", r"SentMessages=10672", "SentMessages=10700", "10672 of 10700 messages"),
        ("sockperf", r"0, 2\.", "0, 2x", "2x"),
        ("datagrams", r"Rate is 2000", "Rate is 1900", "1900 per second"),
        ("netperf", r"TIME=1\.00", "TIME=9.00", "was the clock set"),
        ("wrk2", r"in 5\.00s", "in 4.60s", "not 2935.69 per second"),
        ("linpack", "check=passed", "check=failed", "failed"),
        ("linpack", r"\Z", "gflops=1\n", "'gflops' occurs twice"),
        ("bonnie", "1.98,", "1.97,", r"format 1\.97"),
        ("bonnie", r"\A", "Bonnie: drastic I/O error (write(2))\n", "it says 'Bonnie: drastic"),
        ("netperf", r"\A", "!!! Desired confidence was not achieved\n", "it says '!!!"),
        ("sfnt_pingpong", r"\A", "ERROR: at sfnt_pingpong.c:100\n", "reports a failure: ERROR"),
        ("iperf3 tcp", r'"seconds":\s*\d', '"seconds": 36', "was the clock set"),
        ("iperf3 tcp", r'"bits_per_second":\s*', '"bits_per_second": 9', r"are not \d+"),
        ("iperf3 tcp", r"\n\Z", "\n{}", "too many values"),
        ("pgbench", r"(?m)^tps = \d+", "tps = 1006", "wall clock of its log was set"),
        ("sockperf", r"(?m)^(\d+, .*)$", r"\1\n\1", "before the last one came back"),
        ("sockperf", r"ReceivedMessages=1", "ReceivedMessages=21", "messages came back"),
        ("sockperf", r"\Z", "[Total Run]", "no complete result"),
        ("wrk2", r"(Max += +)\d+", r"\g<1>0", "not in order"),
    ],
)
def test_output_that_contradicts_itself_is_an_error(name, old, new, words):
    texts = [re.sub(old, new, text) for text in RECORDINGS[name].texts()]
    with pytest.raises(ToolOutput, match=words):
        RECORDINGS[name].parse(*texts)


@pytest.mark.parametrize("step_us", [-1_000_000, -300_000, 300_000, 5_000_000])
def test_a_step_of_the_clock_in_the_log_of_pgbench_is_an_error(step_us):
    output, log = RECORDINGS["pgbench"].texts()
    rows = [[*map(int, line.split())] for line in log.splitlines()]
    for row in rows[len(rows) // 2 :]:
        row[4:6] = divmod(row[4] * 1_000_000 + row[5] + step_us, 1_000_000)
    stepped = "".join(" ".join(map(str, row)) + "\n" for row in rows)
    with pytest.raises(ToolOutput, match="was set while it ran"):
        RECORDINGS["pgbench"].parse(output, stepped)


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("datagrams", "sockperf-throughput-refused.txt", "expected 1, got 0"),
        ("h2load", "h2load-refused.txt", "requests: 300 total"),
        ("h2load, cases", "h2load-clock-20ms", "was set while it ran"),
        ("h2load, cases", "h2load-clock-forward", "was set while it ran"),
        ("iperf3 tcp", "iperf3-bidir-keys-twice", "'sum_sent' occurs twice"),
        ("iperf3 tcp", "iperf3-lost-percent-180", "107789 of 100000 datagrams"),
        ("iperf3 tcp", "iperf3-refused.json", "unable to connect"),
        ("iperf3 tcp", "iperf3-server-results-missing", "and 0 received"),
        ("iperf3 tcp", "iperf3-text-after-json", "unable to send control message: Broken pipe"),
        ("iperf3 tcp", "iperf3-udp-3.1-only-sum", "needs iperf3 3.12 or later; this says 3.21"),
        ("iperf3 tcp", "iperf3-udp-loss-zero-old-server", "95.0% of the"),
        ("memcached", "memcached-refused.txt", "ConnectionRefusedError"),
        ("memtier", "memtier-1.3", "needs memtier_benchmark 1.4"),
        ("memtier", "memtier-min-sentinel", "not in order"),
        ("memtier", "memtier-refused.txt", r"Totals +0\.00"),
        ("memtier", "memtier-totals-p50-zero", "not in order"),
        ("memtier", "memtier-with-histogram.txt", "its file is empty"),
        ("netperf", "netperf-gigabits.txt", "and not 10"),
        ("netperf", "netperf-refused.txt", "are you sure there is a netserver"),
        ("pgbench", "pgbench-13", "needs pgbench 15"),
        ("pgbench", "pgbench-14", "needs pgbench 15 or later; this says 14.9"),
        ("pgbench", "pgbench-aborted-rate-kept", "it reports a failure"),
        ("pgbench", "pgbench-refused.txt", "Connection refused"),
        ("sfnt_pingpong", "sfnt-refused.txt", "waiting for server to start"),
        ("sockperf", "sockperf-3.3-log", "needs sockperf 3.5 or later; this says 3.3"),
        ("sockperf", "sockperf-refused.txt", "Is the server down"),
        ("thrift_rpc", "thrift-refused.txt", "Could not connect"),
        ("wrk2", "wrk2-refused.txt", "Connection refused"),
        ("wrk2, cases", "wrk2-clock", "was the clock set"),
        ("wrk2, cases", "wrk2-u-latency", "ValueError"),
    ],
)
def test_a_failure_or_a_case_is_an_error_with_its_reason(name, path, words):
    paths = [*(CAPTURED / "cases" / path).glob("*")] or [CAPTURED / path]
    texts = [path.read_text() for path in sorted(paths, key=lambda path: path.stem != "out")]
    with pytest.raises(ToolOutput, match=words):
        PARSERS[name](*texts, *[""] * (2 - len(texts)))


@pytest.mark.parametrize(
    ("name", "old", "new", "flag"),
    [
        ("h2load", "0 errored, 0 tim", "3 errored, 2 tim", "5 requests failed before they were"),
        ("datagrams", " sec\n", " sec (7 messages skipped)\n", "7 datagrams were not sent in"),
        ("sockperf", "dropped messages = 0", "dropped messages = 7", "lossy: 7 dropped, 0 dup"),
    ],
)
def test_losses_that_a_tool_reports_are_flagged(name, old, new, flag):
    output, log = RECORDINGS[name].texts()
    (found,) = RECORDINGS[name].parse(output.replace(old, new, 1), log).flags
    assert found.startswith(flag)


def test_rows_are_integers_in_complete_lines_and_json_has_a_key_once():
    for wrong in ("", "1 2", "1 2\n3\n", "1 2\n3 4 5\n", "1 2.5\n", "1 \n", "1 2\n\n"):
        with pytest.raises(ToolOutput, match="a tool"), reading("a tool", wrong):
            rows(wrong, 2, " ")
    assert json_in('warning: {this}\n{"a": -nan, "b": [inf, 1]} and {more\n')["b"][1] == 1
    for wrong in ("", "[1]", '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', "{"):
        with pytest.raises(ValueError):
            json_in(wrong)


def test_a_load_that_falls_short_is_flagged():
    assert shortfall(99, 100) == shortfall(95, 100, chance=5) == flag("no", 0) == ()
    assert shortfall(93, 100, chance=5) == ("rate not reached: 93.0 of 100.0 per second",)


# Tools in general.

#: Columns of times and of kinds, which measure nothing.
POSITIONS = {"start_ns", "end_ns", "set"}


@pytest.mark.parametrize("name", ALL)
def test_every_column_has_a_unit(name):
    measurement = ALL[name].measurement()
    measured = {*measurement.metrics, *measurement.samples} - POSITIONS
    assert [one for one in measured if column(one).kind == "other"] == []
    assert all(one.dtype == "int64" for one in measurement.samples.values())


def prints(text, status=0):
    """Return a host on which every program prints the same, or (127) is not found."""
    result = SimpleNamespace(stdout=text, stderr="", status=status)
    return SimpleNamespace(name="here", run=lambda *argv, check: result)


def test_a_tool_that_is_not_installed_is_missed():
    for answer in (prints("not found", 127), prints("something else", 1)):
        with pytest.raises(LabkitError, match="socat is not installed") as caught:
            datagrams.probe(answer)
        assert caught.value.remedy == "apt-get install socat"
    assert datagrams.probe(prints("socat version 1.7.4.4 on Feb 8 2023")) == "1.7.4.4"


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(UsageError, match="no way to wait called 'spinn'") as caught:
        sockperf.server("spinn")
    assert "did you mean 'spin'" in str(caught.value)
    with pytest.raises(UsageError, match="no family called"):
        with_tools({"redis": "redis"})
    with pytest.raises(UsageError, match="no payload of one frame"):
        datagrams.send(ADDRESS, rate=1, size=1473, seconds=1, port=1)
    with pytest.raises(UsageError, match="nothing is left of 1 s"):
        datagrams.watch(ADDRESS, 4242, 1, 1.0)


def test_the_first_tool_that_images_have_is_taken(monkeypatch, tmp_path):
    (tmp_path / "wrk2").touch(mode=0o755)
    monkeypatch.setattr(base, "project", lambda path: tmp_path)
    found = with_tools({"memcached": "memtier_benchmark or labkit", "nginx": "wrk2 or h2load"})
    assert list(found) == list(APPLICATIONS)
    assert found["nginx 1 MB"].tool == "wrk2"
    assert found["memcached text"].tool == "the load on memcached"
