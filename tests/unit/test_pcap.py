"""Captures: exact times, headers, truncation and damage; pairs; drops."""

from __future__ import annotations

from functools import partial

import capture_files as files
import pytest
from capture_files import CLIENT, SERVER, ethernet, ipv4, message, udp
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import pcap
from labkit.errors import ToolOutput

START, SECOND = 1_700_000_000_123_456_789, 10**9
reply = partial(message, src=SERVER, dst=CLIENT)
#: As tcpdump 4.99.3 wrote it, with its counts left out.
CLOSING = """tcpdump: listening on lo, link-type EN10MB (Ethernet), snapshot length 96 bytes
{} packet{} captured
{} packets received by filter
{} packets dropped by kernel
"""
NO_DROPS = CLOSING.format(3, "s", 3, 0)


def read(frames, summary=NO_DROPS, **options):
    """Return a capture of frames, one every ns."""
    stamped = [(START + at, frame) for at, frame in enumerate(frames)]
    return pcap.read(files.pcap(stamped, **options), summary)


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
    assert read([]).flags == ("empty: no packet was captured",) and read([]).packets.empty


EMPTY, OTHER = files.pcap([]), [files.pcap([], link=105), files.pcap([], magic=0xA1B2C3D4)]


@pytest.mark.parametrize("data", [b"15:01 IP 198.18.0.1", EMPTY[:23], *OTHER])
def test_other_files_are_errors_that_show_their_first_bytes(data):
    with pytest.raises(ToolOutput) as caught:
        pcap.read(data, NO_DROPS)
    assert data[:8].hex(" ") in caught.value.why and caught.value.remedy


DATAGRAM = udp(b"0123456789", 1_234, 5_678)


def test_fields_are_those_that_were_written_and_all_else_is_flagged():
    others = [
        ethernet(bytes(28), kind=0x0806),
        ethernet(ipv4(DATAGRAM, first=0x46)),  # a longer header
        ethernet(ipv4(DATAGRAM, part=0x2000)),  # fragments
        ethernet(ipv4(DATAGRAM, part=0x0008)),
        ethernet(ipv4(bytes(40), protocol=6, total=0)),  # TCP before an offload
        ethernet(ipv4(DATAGRAM, total=37)),  # longer than its packet
        ethernet(ipv4(udp(b"")[:4] + bytes(4))),  # shorter than its own header
    ]
    whole = ethernet(ipv4(DATAGRAM, src=SERVER, dst="255.255.255.255"))
    found = read([whole, ethernet(ipv4(udp(b"abc"))), *others])
    assert found.flags == ("undecoded: 7 packets are not whole datagrams of UDP",)
    first, second, *rest = found.packets.drop(columns="time_ns").to_numpy().tolist()
    number = int.from_bytes(b"01234567")
    assert first == [0xC6120002, 0xFFFFFFFF, 1_234, 5_678, 10, number, True]
    assert second == [0xC6120001, 0xC6120002, 40_000, 11_111, 3, 0, False]
    assert rest == [[0] * 6 + [False]] * 7
    merged = "merged: 1 datagrams are longer than a frame, by an offload"
    assert read([message(1, 1472), message(2, 4000)]).flags == (merged,)


@pytest.mark.parametrize("snaplen", [41, 42, 49, 50])
def test_the_rest_of_a_packet_is_not_taken_from_the_next_one(snaplen):
    number = 0x0102030405060708
    for frames in ([message(number, 200)], [message(number, 200), message(1)]):
        first = read(frames, snaplen=snaplen).packets.iloc[0]
        assert first["size"] == (200 if snaplen >= 42 else 0)
        assert (first["numbered"], first["number"]) == (snaplen >= 50, number * (snaplen >= 50))


def plain(arrivals, departures, longest, in_turn):
    """Pair as `pair` says that it does, with a dict and no array; return pairs and repeated."""
    by_key, repeated, pairs = {}, set(), {}
    for index, (time, key) in enumerate(arrivals):
        by_key.setdefault(key * (not in_turn), []).append((time, index))
    for places in by_key.values():
        for (t, i), (u, j) in ((a, b) for a in places for b in places):
            if i != j and abs(t - u) <= longest and not in_turn:
                repeated.add(i)
    for time, key in sorted(departures, key=lambda one: one[0]):
        before = [t for t in by_key.get(key * (not in_turn), []) if time - longest <= t[0] <= time]
        if before and max(before)[1] not in repeated:
            pairs.setdefault(max(before)[1], time)
    found = sorted((arrivals[at][0], time - arrivals[at][0]) for at, time in pairs.items())
    return found, len(repeated)


events = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=25)


@settings(max_examples=200, deadline=None)
@given(arrivals=events, departures=events, longest=st.integers(1, 12), in_turn=st.booleans())
def test_pairs_are_those_of_a_dict(arrivals, departures, longest, in_turn):
    both = packets(arrivals), packets(departures, reply)
    found, flags = pcap.pair(*both, longest_ns=longest, in_turn=in_turn)
    pairs, repeated = plain(arrivals, departures, longest, in_turn)
    times = (found["time_ns"] - START).tolist()
    assert sorted(zip(times, found["residence_ns"], strict=True)) == pairs
    assert times == sorted(times)
    # Each packet that is not paired is counted once.
    counts = {"lost": len(arrivals) - len(pairs) - repeated, "repeated": repeated}
    counts["unmatched"] = len(departures) - len(pairs)
    shown = (flag.split()[:2] for flag in flags)
    assert {name.rstrip(":"): int(count) for name, count in shown} == {
        name: count for name, count in counts.items() if count
    }


def test_a_client_that_starts_over_is_distinguished_by_time():
    arrivals = [(i * 1_000 + run * 3 * SECOND, i) for run in range(3) for i in range(4)]
    departures = [(time + 300 + n, number) for n, (time, number) in enumerate(arrivals)]
    # Its second run lost all it sent: nothing of the third is taken for that.
    found, flags = pcap.pair(packets(arrivals), packets(departures[:4] + departures[8:], reply))
    assert found["residence_ns"].tolist() == [300 + n for n in range(12) if not 4 <= n < 8]
    assert flags == ("lost: 4 arrivals did not leave",)
    one = read([ethernet(ipv4(udp(b"same")))] * 3).packets
    assert pcap.pair(one, one)[1][0] == "without number: 3 arrivals have none in the capture"


def test_large_numbers_that_differ_a_little_are_not_taken_for_one():
    near = packets([(0, 2**60), (1, 2**60 + 1)])
    found, flags = pcap.pair(near, packets([(5, 2**60), (7, 2**60 + 1)], reply))
    assert found["residence_ns"].tolist() == [5, 6] and flags == ()


def test_packets_that_tcpdump_dropped_are_counted_and_flagged():
    # Counts that it gave when asked, on the way, are not the last ones.
    asked = "tcpdump: 7 packets captured, 8 packets received by filter, "
    text = f"{asked}9 packets dropped by kernel\n{CLOSING.format(1537, 's', 2023, 477)}"
    found = read([message(1)], f"{text}12 packets dropped by interface\n")
    assert found.dropped == 489
    assert found.flags[0].startswith("lossy capture: 477 of 2014 packets")
    assert read([message(1)], CLOSING.format(1, "", 2, 0)).flags == ()
    cut = NO_DROPS.partition("received")[0]
    for text in ("", cut, CLOSING.format("1,537", "s", 5, 0), CLOSING.format(5, "s", 5, "-5")):
        with pytest.raises(ToolOutput) as caught:
            read([message(1)], text)
        assert (text.strip() or "(nothing)")[-20:] in caught.value.why and caught.value.remedy
