"""Ping-pong by sockperf and sfnt-pingpong: recorded round trips, residence times, feasibility."""

from types import SimpleNamespace

import numpy as np
import pytest
from capture_files import SERVER, message, pcap, reply
from recordings import read

from labkit.errors import ToolOutput
from labkit.hosts.agent import thinned
from labkit.placement import bare, docker
from labkit.tools import base, ping_pong, sockperf
from labkit.tools.base import Measurement
from labkit.tools.ping_pong import sfnt_pingpong

TEXT, LOG = read("sockperf-block.txt"), read("sockperf-block.log")


def test_sockperf_keeps_the_first_messages_and_flags_pauses():
    assert len(sockperf.parse(TEXT, LOG, messages=5).samples["rtt_ns"]) == 5
    assert sockperf.parse(TEXT, LOG, messages=50).flags == ("short: 19 of 50 messages",)
    times = [10.0 + 0.0001 * n + (1.5 if n > 700 else 0.0) for n in range(1000)]
    table = "".join(f"{n}, {t:.9f}, {t + 0.00005:.9f}, 25.0\n" for n, t in enumerate(times))
    head = "packet, txTime(sec), rxTime(sec), latency(usec)\n"
    (flag,) = sockperf.parse(TEXT, head + table, messages=500).flags  # it is after those kept
    assert flag.startswith("pause of 1.50 s, 0.07 s after the first message")


@pytest.mark.parametrize(
    ("want", "rows"),
    [(5, [3, 7, 11, 15, 18]), (10, [1, 3, 5, 7, 9, 11, 13, 15, 17, 18]), (30, [*range(19)])],
)
def test_the_rows_that_are_kept_are_spread_evenly_over_the_window(tmp_path, want, rows):
    path = tmp_path / "log"
    assert thinned(str(path), want) == ""
    path.write_text(LOG)
    text = thinned(str(path), want)
    numbers = [int(line.split(",")[0]) for line in text.splitlines() if line[:1].isdigit()]
    assert numbers == rows and text.startswith(LOG.partition("packet, tx")[0])
    assert len(sockperf.parse(TEXT, text, messages=want).samples["rtt_ns"]) == len(rows)


def test_sfnt_s_file_must_agree_with_its_summary():
    for size, words in ((64, "raw file holds 5,000 values"), (128, "ValueError")):
        with pytest.raises(ToolOutput, match=words):
            text = read("sfnt-tcp-two-sizes.txt")
            sfnt_pingpong.parse(text, read("sfnt-udp-64.dat"), size=size)


def with_capture(rtt, packets, dropped=0, tool=""):
    """Return a measurement of some round trips, and what was captured meanwhile."""
    summary = f"{len(packets)} packets captured\n{dropped} packets dropped by kernel\n"
    captured = SimpleNamespace(packets=pcap(sorted(packets)), summary=summary)
    measured = Measurement({"rtt_ns": np.array(rtt)}, {"dropped": 0.0}, flags=("lossy",))
    about = {"tool": tool or "sockperf", "address": SERVER, "size": 14}
    empty = SimpleNamespace(packets=b"", summary="")
    assert ping_pong.with_residence_times(measured, empty, **about) is measured
    return ping_pong.with_residence_times(measured, captured, **about)


def test_residence_times_are_added_to_the_round_trips():
    packets = []
    for number in range(1, 101):
        at = 10_000_000 * number
        packets += [(at, message(number)), (at + number, reply(number))]
    packets.pop()  # an answer is lost
    added = with_capture(range(500, 550), packets)
    assert added.samples["rtt_ns"].tolist() == list(range(500, 550))
    residence = added.samples["residence_ns"]
    # As of the round trips, those of the first 400 ms and of the last 50 ms do not count.
    assert len(residence) == 50 and residence[0] == 41 and 90 < residence.max() <= 95
    counts = {"captured": 199, "capture_drops": 0, "paired": 99, "unpaired": 1}
    assert added.metrics == {"dropped": 0.0, **counts} and added.flags[1].startswith("lost:")


def test_packets_and_round_trips_that_are_missing_are_flagged():
    packets = [(0, message(8)), (9, reply(8)), (600_000_000, message(9)), (600_000_009, reply(9))]
    for at, packet in [(10, message(1)), (25, reply(1)), (40, message(2)), (60, reply(2))]:
        packets.append((500_000_000 + at, packet))
    added = with_capture(range(1, 9), packets, dropped=7)
    assert added.samples["residence_ns"].tolist() == [15, 20]
    assert added.samples["rtt_ns"].tolist() == [1, 5] and added.metrics["capture_drops"] == 7
    lossy, dropped, left_out = added.flags
    assert lossy == "lossy" and dropped.startswith("lossy capture: 7 of 15")
    assert left_out.startswith("6 of 8 round trips")
    with pytest.raises(ToolOutput, match="holds no message"):
        with_capture([9], [])
    # Messages need no number, and others are left out.
    packets = [(0, message(5, size=20)), (10, message(0)), (13, reply(0))]
    packets += [(20, message(0)), (24, reply(0)), (25, reply(0))]
    added = with_capture([9, 9], packets, tool="sfnt-pingpong")
    assert added.samples["residence_ns"].tolist() == [3, 4]
    assert (added.metrics["paired"], added.metrics["unpaired"]) == (2, 1)


@pytest.mark.parametrize(
    ("tool", "wait", "placement", "why"),
    [
        ("sfnt-pingpong", "spin", docker("nat"), "on ports that are not published"),
        ("sfnt-pingpong", "spin", bare("chroot"), "not in the image"),
        ("sfnt-pingpong", "spin", bare("rules"), None),
        ("sfnt-pingpong", "busy_poll", bare("rules"), "in other ways"),
        ("sockperf", "busy_poll", docker("nat"), None),
        ("sockperf", "spin", docker("overlay"), "no end of the network overlay"),
    ],
)
def test_an_infeasible_placement_has_a_reason(tool, wait, placement, why, monkeypatch, tmp_path):
    monkeypatch.setattr(base, "project", lambda path: tmp_path)
    reason = ping_pong.infeasible(tool, wait, placement)
    assert reason is None if why is None else why in (reason or "")
