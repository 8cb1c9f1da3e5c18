"""Captures: exact times, headers, truncation; pairs; drops."""

from __future__ import annotations

import capture_files as files
import pytest
from capture_files import SERVER, ethernet, ipv4, message, reply, udp
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import pcap
from labkit.errors import ToolOutput

START, SECOND = 1_700_000_000_123_456_789, 10**9
#: As tcpdump 4.99.3 wrote it, with its counts left out.
CLOSING = "{} packet{} captured\n{} packets received by filter\n{} packets dropped by kernel\n"
NO_DROPS = CLOSING.format(3, "s", 3, 0)


def read(frames, summary=NO_DROPS, **size):
    """Return a capture of frames, one every ns."""
    stamped = [(START + at, frame) for at, frame in enumerate(frames)]
    return pcap.read(files.pcap(stamped), summary, **size)


def packets(pairs, frame=message):
    """Return packets of (time, number)."""
    stamped = [(START + time, frame(number)) for time, number in pairs]
    return pcap.read(files.pcap(stamped), NO_DROPS).packets


def test_a_file_cut_anywhere_in_its_last_packet_keeps_the_whole_ones():
    stamped = [(START + 1_001 * n, message(n, size)) for n, size in enumerate([20, 64, 30])]
    data, before = files.pcap(stamped), files.pcap(stamped[:2])
    for end in range(len(before), len(data)):
        found = pcap.read(data[:end], NO_DROPS)
        assert found.packets["number"].tolist() == [0, 1]
        assert found.packets["time_ns"].tolist() == [START, START + 1_001]
        left = f"truncated: {end - len(before)} bytes after the last whole packet"
        assert found.flags == ((left,) if end > len(before) else ())
    for data in (files.pcap([]), b""):
        found = pcap.read(data, NO_DROPS)
        assert found.flags == ("empty: no packet was captured",) and found.packets.empty


DATAGRAM = udp(b"0123456789", 1_234, 5_678)


def test_fields_are_those_that_were_written_and_all_else_is_flagged():
    others = [
        ethernet(bytes(28), kind=0x0806),
        ethernet(ipv4(DATAGRAM, protocol=6)),
        ethernet(ipv4(DATAGRAM[:4] + bytes(2) + DATAGRAM[6:])),  # an offload without a length
        ethernet(ipv4(DATAGRAM))[:45],  # of which too few bytes were kept
        ethernet(ipv4(DATAGRAM, first=0x46)),  # a longer header
        ethernet(ipv4(DATAGRAM, part=0x2000)),  # fragments
        ethernet(ipv4(DATAGRAM, part=0x0008)),
    ]
    whole = ethernet(ipv4(DATAGRAM, src=SERVER, dst="255.255.255.255"))
    found = read([whole, ethernet(ipv4(udp(b"abc"))), *others])
    assert found.flags == ("undecoded: 7 packets are not whole datagrams of UDP",)
    first, second, *rest = found.packets.drop(columns="time_ns").to_numpy().tolist()
    number = int.from_bytes(b"01234567")
    assert first == [0xC6120002, 0xFFFFFFFF, 1_234, 5_678, number, 10]
    assert second == [0xC6120001, 0xC6120002, 40_000, 11_111, 0, 3]
    assert rest == [[0] * 6] * 7
    merged = "merged: 1 datagrams are longer than 64 bytes, by an offload"
    assert read([message(1, 64), message(2, 640)], size=64).flags == (merged,)


def plain(arrivals, departures, in_turn):
    """Pair as `pair` says that it does, with a dict and no array."""
    pairs = {}
    for time, key in sorted(departures, key=lambda one: one[0]):
        before = [
            (t, index)
            for index, (t, other) in enumerate(arrivals)
            if t <= time and (in_turn or other == key)
        ]
        if before:
            pairs.setdefault(max(before)[1], time)
    return sorted((arrivals[at][0], time - arrivals[at][0]) for at, time in pairs.items())


#: Their numbers differ by less than a float can tell.
events = st.lists(st.tuples(st.integers(0, 40), st.integers(2**60, 2**60 + 5)), max_size=25)


@settings(max_examples=200, deadline=None)
@given(arrivals=events, departures=events, in_turn=st.booleans())
def test_pairs_are_those_of_a_dict(arrivals, departures, in_turn):
    found, flags = pcap.pair(packets(arrivals), packets(departures, reply), in_turn=in_turn)
    pairs = plain(arrivals, departures, in_turn)
    times = (found["time_ns"] - START).tolist()
    assert sorted(zip(times, found["residence_ns"], strict=True)) == pairs
    assert times == sorted(times)
    # Each packet that is not paired is counted once.
    counts = {"lost": len(arrivals) - len(pairs), "unmatched": len(departures) - len(pairs)}
    shown = (flag.split()[:2] for flag in flags)
    assert {name.rstrip(":"): int(count) for name, count in shown} == {
        name: count for name, count in counts.items() if count
    }


def test_a_message_in_turn_is_under_way_for_a_second_at_most():
    late = packets([(SECOND + 1, 0)], reply)
    found, flags = pcap.pair(packets([(0, 0)]), late, in_turn=True)
    assert found.empty and [flag.split(":")[0] for flag in flags] == ["lost", "unmatched"]


def test_packets_that_tcpdump_dropped_are_counted_and_flagged():
    text = CLOSING.format(1537, "s", 2023, 477)
    found = read([message(1)], f"{text}12 packets dropped by interface\n")
    assert found.dropped == 489
    assert found.flags[0].startswith("lossy capture: 477 of 2014 packets")
    assert read([message(1)], CLOSING.format(1, "", 2, 0)).flags == ()
    for summary in ("tcpdump: listening on lo\n", NO_DROPS + NO_DROPS):
        with pytest.raises(ToolOutput, match="did not end once, by itself"):
            read([message(1)], summary)


def test_times_of_an_older_tcpdump_and_of_a_clock_that_was_set():
    data = files.pcap(
        [(START + 1001, message(1)), (START, message(2)), (START - SECOND, message(3))]
    )
    assert pcap.read(data, NO_DROPS).flags == ("set clock: time goes back in 1 places",)
    older = pcap.read(b"\xd4\xc3\xb2\xa1" + data[4:], NO_DROPS).packets["time_ns"]
    assert older[0] - older[1] == 1_001_000
    with pytest.raises(ToolOutput, match="no pcap file"):
        pcap.read(b"\x0a\x0d\x0d\x0a" + data[4:], NO_DROPS)
