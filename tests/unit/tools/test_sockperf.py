"""sockperf's parser on output recorded from sockperf 3.7, whole, broken and absent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import read

from labkit.campaign.window import _THIN
from labkit.errors import ToolOutput
from labkit.hosts import LocalHost, script
from labkit.tools import sockperf


@pytest.mark.parametrize("name", ["block", "spin", "tcp"])
def test_round_trips_are_exact_integers(name):
    log = read(f"sockperf-{name}.log")
    measurement = sockperf.parse(read(f"sockperf-{name}.txt"), log)
    rtt = measurement.samples["rtt_ns"]
    assert rtt.dtype == np.int64 and len(rtt) == 19
    # The tool prints half of the round trip in us with three digits: half a ns of rounding.
    rows = log[log.index("packet, tx") :].splitlines()[1:]
    halves = np.array([float(row.split(",")[3]) for row in rows])
    assert np.abs(rtt / 2000 - halves).max() <= 0.00051
    assert measurement.metrics["dropped"] == 0 and measurement.flags == ()
    assert measurement.messages > 10_000  # all that were sent, warm-up included


def test_keeps_the_first_messages_and_flags_too_few():
    text, log = read("sockperf-block.txt"), read("sockperf-block.log")
    assert len(sockperf.parse(text, log, messages=5).samples["rtt_ns"]) == 5
    assert sockperf.parse(text, log, messages=50).flags == ("short: 19 of 50 messages",)


@pytest.mark.parametrize("log", ["", "packet, txTime(sec), rxTime(sec), latency(usec)\n"])
def test_a_log_without_packets_is_an_error(log):
    with pytest.raises(ToolOutput):
        sockperf.parse(read("sockperf-block.txt"), log)


@given(st.integers(0, 2000))
def test_a_log_cut_anywhere_gives_fewer_rows_or_an_error_never_a_wrong_number(cut):
    text, log = read("sockperf-block.txt"), read("sockperf-block.log")
    whole = sockperf.parse(text, log).samples["rtt_ns"]
    try:
        part = sockperf.parse(text, log[:cut]).samples["rtt_ns"]
    except ToolOutput:
        return
    assert len(part) <= len(whole) and (part == whole[: len(part)]).all()


def test_decimal_commas_and_rubbish_are_errors_that_show_the_line():
    log = read("sockperf-block.log").replace("0, 2.", "0, 2x")
    with pytest.raises(ToolOutput, match="2x"):
        sockperf.parse(read("sockperf-block.txt"), log)


def test_a_pause_of_an_end_is_flagged():
    times = [10.0 + 0.0001 * n + (1.5 if n > 700 else 0.0) for n in range(1000)]
    rows = "".join(f"{n}, {t:.9f}, {t + 0.00005:.9f}, 25.0\n" for n, t in enumerate(times))
    head, text = "packet, txTime(sec), rxTime(sec), latency(usec)\n", read("sockperf-block.txt")
    (flag,) = sockperf.parse(text, head + rows, messages=500).flags  # it is after those kept
    assert flag.startswith("pause of 1.50 s, 0.07 s after the first message")


def test_losses_are_flagged():
    text = read("sockperf-block.txt").replace("dropped messages = 0", "dropped messages = 7")
    measurement = sockperf.parse(text, read("sockperf-block.log"))
    assert measurement.flags == ("lossy: 7 dropped, 0 duplicated, 0 reordered",)


def test_commands_are_argument_lists_with_the_ways_to_wait():
    client = sockperf.ping_pong("198.18.0.3", messages=1_000, size=64, wait="spin")
    assert "--nonblocked" in client.argv and "{log}" in client.argv
    assert "--nonblocked" not in sockperf.server("block").argv
    assert "--lls" in sockperf.server("busy_poll").argv
    both = sockperf.server("spin", protocol="tcp"), sockperf.server("spin")
    assert [one.protocol for one in both] == ["tcp", "udp"]
    assert ["--tcp" in one.argv for one in both] == [True, False]
    asked = {"messages": 1_000, "size": 64, "wait": "spin", "protocol": "tcp"}
    assert "--tcp" in sockperf.ping_pong("198.18.0.3", **asked).argv


def test_a_run_is_long_enough_for_its_messages():
    assert sockperf.duration(1_000, "block") == 1
    assert sockperf.duration(1_000_000, "block") == 101


@pytest.mark.parametrize(
    ("want", "rows"),
    [
        (5, [3, 7, 11, 15, 18]),
        (10, [1, 3, 5, 7, 9, 11, 13, 15, 17, 18]),
        (18, [*range(1, 19)]),
        (19, [*range(19)]),
        (30, [*range(19)]),
    ],
)
def test_what_is_kept_is_spread_evenly_over_the_window(tmp_path, want, rows):
    log = tmp_path / "log"
    log.write_text(read("sockperf-block.log"))
    thinned = LocalHost().run(*script(_THIN, str(log), str(want))).stdout
    numbers = [int(line.split(",")[0]) for line in thinned.splitlines() if line[:1].isdigit()]
    assert numbers == rows
    head = read("sockperf-block.log").partition("packet, tx")[0]
    assert thinned.startswith(head)
    measurement = sockperf.parse(read("sockperf-block.txt"), thinned, messages=want)
    assert len(measurement.samples["rtt_ns"]) == len(rows)
    assert bool(measurement.flags) == (want > len(rows))


def test_a_missing_log_is_thinned_to_nothing(tmp_path):
    assert LocalHost().run(*script(_THIN, str(tmp_path / "none"), "5")).stdout == ""
