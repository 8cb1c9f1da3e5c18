"""Captures: exact times, headers, truncation and damage; pairing; drops."""

from __future__ import annotations

from functools import partial

import capture_files as files
import pytest
from capture_files import CLIENT, SERVER, message
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import pcap
from labkit.errors import ToolOutput

START = 1_700_000_000_123_456_789
SECOND = 10**9
request = message
reply = partial(message, src=SERVER, dst=CLIENT)


def read(frames, **options):
    """Return a capture of frames, one every ns."""
    return pcap.read(
        files.pcap([(START + at, frame) for at, frame in enumerate(frames)], **options)
    )


def packets(pairs, frame=request):
    """Return packets of (time, number)."""
    return pcap.read(files.pcap([(START + time, frame(number)) for time, number in pairs]))


def test_a_file_cut_anywhere_in_its_last_packet_keeps_the_whole_ones():
    pairs = [
        (START + 1_001 * number, message(number, size)) for number, size in enumerate([20, 64, 30])
    ]
    data, before = files.pcap(pairs), files.pcap(pairs[:2])
    for end in range(len(before), len(data)):
        found = pcap.read(data[:end])
        assert found.fields["number"].tolist() == [0, 1]
        assert found.times_ns.tolist() == [START, START + 1_001]
        left = f"truncated: {end - len(before)} bytes after the last whole packet"
        assert found.flags == ((left,) if end > len(before) else ())
    assert len(pcap.read(data)) == 3


def test_a_capture_without_packets_is_flagged():
    found = read([])
    assert len(found) == 0 and found.flags == ("empty: no packet was captured",)
    assert len(found.where(src=CLIENT, dport=1)) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"15:01 IP 198.18.0.1",
        files.pcap([])[:23],
        files.pcap([], link=105),
        files.pcap([], order=">"),
        files.pcap([], scale=1_000),
    ],
)
def test_other_files_are_errors_that_show_their_first_bytes(data):
    with pytest.raises(ToolOutput) as caught:
        pcap.read(data)
    assert data[:8].hex(" ") in caught.value.why and caught.value.remedy


def test_fields_are_those_that_were_written():
    datagram, stream = (
        files.udp(b"0123456789", 1_234, 5_678),
        files.tcp(b"abc", 80, 40_001, options=bytes(12)),
    )
    found = read(
        [
            files.ethernet(files.ipv4(datagram)),
            files.ethernet(files.ipv4(stream, protocol=6, src=SERVER, dst="255.255.255.255")),
            files.ethernet(files.ipv4(datagram, options=bytes(8))),
            files.ethernet(files.ipv4(b"\x08\x00", protocol=1)),
            files.ethernet(bytes(28), kind=0x0806),
            files.ethernet(files.ipv4(datagram, part=0x2000)),
            files.ethernet(files.ipv4(datagram, part=0x0008)),
        ]
    )
    fields = found.fields
    assert found.flags == (
        "undecoded: 2 packets of UDP or TCP, damaged, cut short or in fragments",
    )
    assert len(found.where(dst=SERVER, protocol="udp", sport=1_234)) == 2
    assert fields["protocol"].tolist() == [17, 6, 17, 0, 0, 0, 0]
    assert fields["src"].tolist()[:3] == [0xC6120001, 0xC6120002, 0xC6120001]
    assert fields["dst"][1] == 0xFFFFFFFF
    assert fields["sport"].tolist() == [1_234, 80, 1_234, 0, 0, 0, 0]
    assert fields["dport"].tolist() == [5_678, 40_001, 5_678, 0, 0, 0, 0]
    assert fields["payload_length"].tolist() == [10, 3, 10, 0, 0, 0, 0]
    assert fields["numbered"].tolist() == [1, 0, 1, 0, 0, 0, 0]
    assert fields["number"].tolist()[::2] == [int.from_bytes(b"01234567")] * 2 + [0, 0]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (14, 0x65),  # of another version
        (14, 0x44),  # a header of 16 bytes
        (17, 19),  # shorter than its header
        (39, 7),  # UDP shorter than its own header
        (39, 37),  # UDP longer than its datagram
        (46, 0x40),  # TCP with a header of 16 bytes
        (46, 0xF0),  # TCP with a header longer than its segment
    ],
)
def test_invalid_headers_count_as_missing(place, value):
    inner = files.udp(bytes(28)) if place != 46 else files.tcp(bytes(16))
    frame = bytearray(files.ethernet(files.ipv4(inner, protocol=6 if place == 46 else 17)))
    assert read([bytes(frame)]).fields["protocol"][0] > 0
    frame[place] = value
    assert not read([bytes(frame)]).fields.drop(columns="time_ns").to_numpy().any()


def test_datagrams_that_an_offload_has_merged_are_flagged():
    flag = "merged: 1 datagrams are longer than a frame, by an offload"
    assert read([message(1, 1472), message(2, 4000)]).flags == (flag,)


@pytest.mark.parametrize("last", [False, True])
def test_headers_that_were_cut_off_count_as_missing(last):
    packet = message(0x0102030405060708, 200)
    for snaplen in range(1, 60):
        # Whatever follows in the file is not taken for the rest of the packet.
        fields = read([packet] if last else [packet, message(1)], snaplen=snaplen).fields
        assert fields["payload_length"][0] == (200 if snaplen >= 42 else 0)
        assert fields["numbered"][0] == (snaplen >= 50)
        assert fields["number"][0] == (0x0102030405060708 if snaplen >= 50 else fields["number"][0])


def plain(arrivals, departures, longest, in_turn):
    """Pair as `pair` says that it does, with a dict and no array; return pairs and repeated."""
    by_key, repeated, pairs = {}, set(), {}
    for index, (time, key) in enumerate(arrivals):
        by_key.setdefault(key, []).append((time, index))
    for places in by_key.values():
        for (t, i), (u, j) in ((a, b) for a in places for b in places):
            if i != j and abs(t - u) <= longest and not in_turn:
                repeated.add(i)
    for index in sorted(range(len(departures)), key=lambda i: departures[i][0]):
        time, key = departures[index]
        before = [one for one in by_key.get(key, []) if time - longest <= one[0] <= time]
        if before and max(before)[1] not in repeated:
            pairs.setdefault(max(before)[1], index)
    return sorted(pairs.items()), len(repeated)


events = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=25)


@settings(max_examples=200, deadline=None)
@given(arrivals=events, departures=events, longest=st.integers(1, 12), in_turn=st.booleans())
def test_pairs_are_those_of_a_dict(arrivals, departures, longest, in_turn):
    both = packets(arrivals), packets(departures, reply)
    found = pcap.pair(*both, longest_ns=longest, in_turn=in_turn)
    pairs, repeated = plain(arrivals, departures, longest, in_turn)
    assert list(zip(found.arrival.tolist(), found.departure.tolist(), strict=True)) == pairs
    assert found.residence_ns.tolist() == [departures[d][0] - arrivals[a][0] for a, d in pairs]
    assert found.unmatched == (len(arrivals) - len(pairs), len(departures) - len(pairs))
    # Each packet that is not paired is counted once.
    counts = {"lost": len(arrivals) - len(pairs) - repeated, "repeated": repeated}
    counts["unmatched"] = len(departures) - len(pairs)
    flags = (flag.split()[:2] for flag in found.flags)
    assert {name.rstrip(":"): int(count) for name, count in flags} == {
        name: count for name, count in counts.items() if count
    }


def test_a_client_that_starts_over_is_distinguished_by_time():
    arrivals = [(i * 1_000 + run * 3 * SECOND, i) for run in range(3) for i in range(4)]
    departures = [(time + 300 + n, number) for n, (time, number) in enumerate(arrivals)]
    found = pcap.pair(packets(arrivals), packets(departures, reply))
    assert found.residence_ns.tolist() == [300 + n for n in range(12)] and found.flags == ()
    # Its second run lost all it sent: nothing of the third is taken for that.
    again = pcap.pair(packets(arrivals), packets(departures[:4] + departures[8:], reply))
    assert again.residence_ns.tolist() == [300 + n for n in range(12) if not 4 <= n < 8]
    assert again.flags == ("lost: 4 arrivals did not leave",)


def test_messages_without_a_number_are_paired_in_turn():
    frame = files.ethernet(files.ipv4(files.udp(b"same")))
    both = [
        pcap.read(files.pcap([(START + at, frame) for at in times]))
        for times in ([0, 100, 200, 300], [30, 140, 145, 320])
    ]
    found = pcap.pair(*both, pcap.alike, in_turn=True)
    assert found.residence_ns.tolist() == [30, 40, 20] and found.unmatched == (1, 1)
    unnumbered = pcap.pair(*both)
    assert len(unnumbered) == 0 and unnumbered.flags[0].startswith("without number: 4")


#: As tcpdump 4.99.3 wrote it, with its counts left out.
CLOSING = """tcpdump: listening on lo, link-type EN10MB (Ethernet), snapshot length 96 bytes
{}{} packet{} captured
{} packets received by filter
{} packets dropped by kernel
"""


def test_what_tcpdump_dropped_is_counted_and_flagged():
    assert pcap.parse_drops(CLOSING.format("", 1, "", 2, 0)) == pcap.Drops(1, 0, 0)
    # Counts that it gave when asked, on the way, are not the last ones.
    asked = "tcpdump: 7 packets captured, 8 packets received by filter, "
    asked += "9 packets dropped by kernel\n"
    text = CLOSING.format(asked, 1537, "s", 2023, 477) + "12 packets dropped by interface\n"
    drops = pcap.parse_drops(text)
    assert drops == pcap.Drops(1537, 477, 12)
    assert drops.flags[0].startswith("lossy capture: 477 of 2014 packets")
    assert pcap.Drops(5, 0, 0).flags == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcpdump: eth9: No such device exists\n",
        CLOSING.format("", 5, "s", 5, 0).partition("received")[0],
        CLOSING.format("", "1,537", "s", 5, 0),
        CLOSING.format("", 5, "s", 5, "-5"),
    ],
)
def test_incomplete_closing_lines_are_an_error_that_shows_them(text):
    with pytest.raises(ToolOutput) as caught:
        pcap.parse_drops(text)
    assert (text.strip() or "(nothing)")[-20:] in caught.value.why and caught.value.remedy
