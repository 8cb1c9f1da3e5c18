"""Captures: byte orders, clocks, headers, truncation and damage; pairing; drops."""

from __future__ import annotations

import gzip
import random
import struct
from functools import partial

import capture_files as files
import numpy as np
import pytest
from capture_files import CLIENT, SERVER, message
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import pcap
from labkit.errors import ToolOutput, UsageError

START = 1_700_000_000_123_456_789
#: The section header with which a pcapng file begins, in the byte order of most processors.
PCAPNG = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)


def some(sizes, start=START):
    """Return a message of each size, 1,001 ns apart, numbered from 0."""
    return [(start + 1_001 * i, message(i, size)) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("scale", [1, 1_000])
@pytest.mark.parametrize("sizes", [[64] * 5, [14, 1454, 28, 28, 15]])
def test_times_lengths_and_places_are_exact(order, scale, sizes):
    packets = some(sizes)
    data = files.pcap(packets, order=order, scale=scale)
    capture = pcap.read(data)
    assert capture.times_ns.dtype == np.int64
    assert capture.times_ns.tolist() == [time // scale * scale for time, _ in packets]
    assert capture.captured.tolist() == [42 + size for size in sizes]
    for (_, packet), offset in zip(packets, capture.offsets, strict=True):
        assert capture.buffer[offset : offset + len(packet)].tobytes() == packet
    assert capture.flags == ()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind_and_files_are_read(kind, tmp_path):
    data = files.pcap(some([64] * 3))
    path = tmp_path / "eth2.pcap"
    path.write_bytes(data)
    captures = pcap.read(kind(data)), pcap.read(path), pcap.read(str(path))
    assert len({tuple(capture.times_ns) for capture in captures}) == 1


@given(
    runs=st.lists(st.tuples(st.integers(14, 80), st.integers(1, 60)), max_size=12),
    single=st.sampled_from([2, 3, 7, 2048]),
    block=st.sampled_from([1, 5, 4096]),
)
def test_runs_and_single_steps_find_the_same_packets(runs, single, block):
    sizes = [size for size, count in runs for _ in range(count)]
    packets = some(sizes)
    data = files.pcap(packets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pcap, "_SINGLE", single)
        patch.setattr(pcap, "_BLOCK", block)
        found = pcap.read(data)
    ends = np.cumsum([58 + size for size in sizes], dtype=np.int64)
    assert found.offsets.tolist() == [40, *(24 + ends + 16)][: len(sizes)]
    values, numbered = pcap.number()(found)
    assert numbered.all() and values.tolist() == list(range(len(sizes)))


def test_a_file_cut_anywhere_in_its_last_packet_keeps_the_whole_ones():
    packets = some([20, 64, 30])
    data, before = files.pcap(packets), files.pcap(packets[:2])
    for end in range(len(before), len(data)):
        found = pcap.read(data[:end])
        assert pcap.number()(found)[0].tolist() == [0, 1]
        left = f"truncated: {end - len(before)} bytes after the last whole packet"
        assert found.flags == ((left,) if end > len(before) else ())
    assert len(pcap.read(data)) == 3


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 330), value=st.integers(0, 255))
def test_a_damaged_byte_gives_packets_or_an_error_that_says_where(place, value):
    packets = some([14, 40, 14])
    data = bytearray(files.pcap(packets))
    data[place % len(data)] = value
    try:
        found = pcap.read(data)
        assert len(found) <= 4
        assert (found.offsets + found.captured <= len(data)).all()
        fields = found.fields
    except ToolOutput as error:
        assert error.why and error.remedy
        return
    held = fields.payload >= 0
    assert (fields.payload_captured[held] <= fields.payload_length[held]).all()
    assert (fields.payload_captured >= 0).all()


def test_a_capture_without_packets_is_flagged():
    found = pcap.read(files.pcap([]))
    assert len(found) == 0 and found.flags == ("empty: no packet was captured",)
    assert len(found.where(src=CLIENT, dport=1)) == 0 and len(pcap.number()(found)[0]) == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "capture is empty"),
        (b"\n", "not a packet capture"),
        ("15:01 IP Käse > 198.18.0.2: UDP, Länge 14\n".encode(), "not a packet capture"),
        (gzip.compress(files.pcap([])), "gunzip"),
        (files.pcap([])[:4], "ends within its header"),
        (files.pcap([])[:23], "ends within its header"),
        (PCAPNG, "editcap -F pcap in.pcapng out.pcap"),
        (PCAPNG[:4], "editcap -F pcap in.pcapng out.pcap"),
        (struct.pack("<IHH", 0xA1B2C3D4, 2, 3) + bytes(16), "version 2.3"),
        (files.pcap([(START, b"wireless")], link=105), "link type 105"),
        (struct.pack("<I", 0xA1B2CD34) + bytes(20), "not a packet capture"),
    ],
)
def test_other_files_are_errors_with_a_remedy(data, said):
    with pytest.raises(ToolOutput, match=said) as caught:
        pcap.read(data)
    assert caught.value.remedy


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ToolOutput, match="No such file"):
        pcap.read(tmp_path / "eth3.pcap")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ((1, 1, 262_145, 262_145), "262,145 bytes"),
        ((1, 1, 0xFFFFFFFF, 60), "4,294,967,295 bytes"),
        ((1, 10**9, 0, 60), "ns past the second"),
        ((1, 1, 8, 7), "8 bytes captured of 7"),
        ((0, 0, 0, 0), "0 bytes captured of 0"),
    ],
)
def test_impossible_lengths_and_times_are_errors(head, said):
    data = files.pcap(some([64, 64])) + struct.pack("<IIII", *head) + bytes(8)
    with pytest.raises(ToolOutput, match=said) as caught:
        pcap.read(data)
    assert "packet 3" in caught.value.why and caught.value.evidence["at"] == 268


def test_a_length_over_the_limit_is_an_error_in_a_long_file_too():
    data = files.pcap(some([64])) + struct.pack("<IIII", 1, 1, 262_145, 262_145) + bytes(262_145)
    with pytest.raises(ToolOutput, match="packet 2 would have 262,145 bytes"):
        pcap.read(data)


@pytest.mark.parametrize(
    ("place", "value", "known"),
    [
        (14, 0x65, False),  # of another version
        (14, 0x44, False),  # a header of 16 bytes
        (17, 19, False),  # shorter than its header
        (39, 7, True),  # UDP shorter than its own header
        (39, 37, True),  # UDP longer than its datagram
        (46, 0x40, True),  # TCP with a header of 16 bytes
        (46, 0xF0, True),  # TCP with a header longer than its segment
    ],
)
def test_invalid_headers_count_as_missing(place, value, known):
    inner = files.udp(bytes(28)) if place != 46 else files.tcp(bytes(16))
    frame = bytearray(files.ethernet(files.ipv4(inner, protocol=6 if place == 46 else 17)))
    assert pcap.read(files.pcap([(START, bytes(frame))])).fields.payload[0] > 0
    frame[place] = value
    fields = pcap.read(files.pcap([(START, bytes(frame))])).fields
    assert fields.payload.tolist() == [-1]
    assert fields.sport.tolist() == fields.payload_captured.tolist() == [0]
    assert fields.src.tolist() == [0xC6120001 if known else 0]


def test_fields_are_those_that_were_written():
    datagram = files.udp(b"0123456789", 1_234, 5_678)
    stream = files.tcp(b"abc", 80, 40_001, options=bytes(12))
    frames = [
        files.ethernet(files.ipv4(datagram, identification=65_535)),
        files.ethernet(files.ipv4(stream, protocol=6, src=SERVER, dst="255.255.255.255")),
        files.ethernet(files.ipv4(datagram, options=bytes(8))),
        files.ethernet(files.ipv4(b"\x08\x00", protocol=1)),
        files.ethernet(bytes(28), kind=0x0806),
        files.ethernet(b"\x60" + bytes(60), kind=0x86DD),
    ]
    found = pcap.read(files.pcap([(START, frame) for frame in frames]))
    fields = found.fields
    assert fields.protocol.tolist() == [17, 6, 17, 1, 0, 0]
    assert fields.src.tolist() == [0xC6120001, 0xC6120002, 0xC6120001, 0xC6120001, 0, 0]
    assert fields.dst[1] == 0xFFFFFFFF and fields.dst.dtype == np.uint32
    assert fields.sport.tolist() == [1_234, 80, 1_234, 0, 0, 0]
    assert fields.dport.tolist() == [5_678, 40_001, 5_678, 0, 0, 0]
    assert fields.payload_length.tolist() == [10, 3, 10, 0, 0, 0]
    assert (fields.payload - found.offsets)[:3].tolist() == [42, 66, 50]
    assert fields.payload[3:].tolist() == [-1, -1, -1]
    values, numbered = pcap.number()(found)
    assert numbered.tolist() == [True, False, True, False, False, False]
    assert values[numbered].tolist() == [int.from_bytes(b"01234567")] * 2


@pytest.mark.parametrize("tags", [(), (0x8100,), (0x88A8, 0x8100), (0x9100,)])
def test_vlan_tags_move_what_follows(tags):
    frames = [files.ethernet(files.ipv4(files.udp(b"\0" * 7 + b"\x05")), tags=tags)]
    frames.append(message(6))
    found = pcap.read(files.pcap([(START, frame) for frame in frames]))
    assert pcap.number()(found)[0].tolist() == [5, 6]
    assert found.fields.payload[0] - found.offsets[0] == 42 + 4 * len(tags)


def test_fragments_have_neither_ports_nor_payload():
    datagram = files.udp(struct.pack(">Q", 1) + bytes(92))
    parts = [(datagram[:64], 0x2000), (datagram[64:], 0x0008), (datagram[:64], 0x4000)]
    frames = [files.ethernet(files.ipv4(inner, part=part)) for inner, part in parts]
    fields = pcap.read(files.pcap([(START, frame) for frame in frames])).fields
    # The third may not be fragmented, but says that it is longer than its datagram.
    assert fields.payload.tolist() == [-1, -1, -1]
    assert fields.sport.tolist() == fields.dport.tolist() == [0, 0, 0]
    assert fields.protocol.tolist() == [17, 17, 17]


@pytest.mark.parametrize("last", [False, True])
def test_headers_that_were_cut_off_count_as_missing(last):
    packet = message(0x0102030405060708, 200)
    for snaplen in range(1, 60):
        # Whatever follows in the file is not taken for the rest of the packet.
        packets = [(START, packet)] if last else [(START, packet), (START, message(1))]
        found = pcap.read(files.pcap(packets, snaplen=snaplen))
        fields = found.fields
        assert found.captured[0] == snaplen
        assert (fields.src[0] > 0) == (snaplen >= 34)
        assert (fields.payload[0] >= 0) == (snaplen >= 42)
        assert fields.payload_length[0] == (200 if snaplen >= 42 else 0)
        assert fields.payload_captured[0] == max(0, snaplen - 42)
        values, numbered = pcap.number()(found)
        assert numbered[0] == (snaplen >= 50)
        assert values[0] == (0x0102030405060708 if numbered[0] else 0)


@pytest.mark.parametrize("held", [34, 53, 54, 60])
def test_segments_of_tcp_cut_off_within_their_header_have_no_payload(held):
    frame = files.ethernet(files.ipv4(files.tcp(bytes(30)), protocol=6))
    packets = [(START, frame), (START, files.message(1))]
    fields = pcap.read(files.pcap(packets, snaplen=held)).fields
    assert (fields.payload[0] >= 0) == (held >= 54)
    assert fields.payload_captured[0] == max(0, held - 54)


def test_directions_are_selected_and_headers_are_read_once():
    rng = random.Random(5)
    directions = [rng.random() < 0.5 for _ in range(50)]
    frames = [
        message(i, **({"src": SERVER, "dst": CLIENT} if back else {}))
        for i, back in enumerate(directions)
    ]
    found = pcap.read(files.pcap([(START + i, frame) for i, frame in enumerate(frames)]))
    back = found.where(src=SERVER, protocol="udp", sport=40_000)
    assert pcap.number()(back)[0].tolist() == [i for i, one in enumerate(directions) if one]
    assert "fields" in vars(back) and len(found.where(dst=SERVER)) == 50 - len(back)
    assert len(found.where(protocol="tcp")) == len(found.where(dport=1)) == 0
    assert repr(back).startswith(f"<{len(back)} packets")
    for wrong in ({"src": "198.18.0"}, {"protocol": "sctp"}):
        with pytest.raises(UsageError):
            found.where(**wrong)


SECOND = 10**9
request = files.message
reply = partial(files.message, src=SERVER, dst=CLIENT)
events = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=25)


def packets(pairs, frame=request):
    """Return packets of (time, number)."""
    return pcap.read(files.pcap([(START + time, frame(number)) for time, number in pairs]))


def plain(arrivals, departures, longest, in_turn):
    """Pair as `pair` says that it does, with a dict and no array; return pairs and counts."""
    by_key = {}
    for index, (time, key) in enumerate(arrivals):
        by_key.setdefault(key, []).append((time, index))
    left_out = set()
    for places in by_key.values():
        for (t, i), (u, j) in ((a, b) for a in places for b in places):
            if i != j and abs(t - u) <= longest and not in_turn:
                left_out.add(i)
    counts = dict.fromkeys(("paired", "duplicate", "late", "early", "stray", "repeated"), 0)
    pairs = {}
    for index in sorted(range(len(departures)), key=lambda i: departures[i][0]):
        time, key = departures[index]
        before = [one for one in by_key.get(key, []) if one[0] <= time]
        if not before:
            kind = "early" if key in by_key else "stray"
        elif max(before)[1] in left_out:
            kind = "repeated"
        elif time - max(before)[0] > longest:
            kind = "late"
        else:
            kind = "duplicate" if max(before)[1] in pairs else "paired"
            pairs.setdefault(max(before)[1], index)
        counts[kind] += 1
    return sorted(pairs.items()), counts, len(left_out)


@settings(max_examples=400, deadline=None)
@given(arrivals=events, departures=events, longest=st.integers(1, 12), in_turn=st.booleans())
def test_pairs_are_those_of_a_dict(arrivals, departures, longest, in_turn):
    both = packets(arrivals), packets(departures, reply)
    found = pcap.pair(*both, longest_ns=longest, in_turn=in_turn)
    pairs, counts, left_out = plain(arrivals, departures, longest, in_turn)
    assert list(zip(found.arrival.tolist(), found.departure.tolist(), strict=True)) == pairs
    assert found.residence_ns.tolist() == [departures[d][0] - arrivals[a][0] for a, d in pairs]
    assert found.departures == counts | {"without key": 0}
    assert found.arrivals["repeated"] == left_out and found.arrivals["paired"] == len(pairs)
    assert sum(found.arrivals.values()) == len(arrivals)
    assert found.unmatched == (len(arrivals) - len(pairs), len(departures) - len(pairs))
    assert bool(found.flags) == any(found.unmatched)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 80))
def test_losses_duplicates_and_reordering_are_counted_and_nothing_is_mispaired(seed, n):
    rng = random.Random(seed)
    arrivals = [(1_000 * i, i) for i in range(n)]
    stays = {i: rng.randrange(100, 9_000) for i in range(n) if rng.random() < 0.9}
    twice = [i for i in stays if rng.random() < 0.1]
    departures = [(1_000 * i + stay, i) for i, stay in stays.items()]
    departures += [(1_000 * i + stays[i] + 50, i) for i in twice]
    departures.sort()
    found = pcap.pair(packets(arrivals), packets(departures, reply))
    assert found.residence_ns.tolist() == list(stays.values())
    assert found.arrivals["lost"] == n - len(stays)
    assert found.departures["duplicate"] == len(twice)
    lost = [flag for flag in found.flags if flag.startswith("lost: ")]
    assert bool(lost) == (len(stays) < n) and len(found) == len(stays)


def test_a_client_that_starts_over_is_distinguished_by_time():
    arrivals = [(i * 1_000 + run * 3 * SECOND, i) for run in range(3) for i in range(4)]
    departures = [(time + 300 + n, number) for n, (time, number) in enumerate(arrivals)]
    found = pcap.pair(packets(arrivals), packets(departures, reply))
    assert found.residence_ns.tolist() == [300 + n for n in range(12)] and found.flags == ()
    # Its second run lost all it sent: nothing of the third is taken for that.
    kept = departures[:4] + departures[8:]
    again = pcap.pair(packets(arrivals), packets(kept, reply))
    assert again.residence_ns.tolist() == [300 + n for n in range(12) if not 4 <= n < 8]
    assert again.flags == (f"lost: 4 of 12 arrivals, no departure of their key within {SECOND} ns",)


def test_keys_that_come_again_too_soon_are_left_out_and_flagged():
    arrivals = [(0, 1), (10, 2), (20, 1), (30, 3)]
    departures = [(time + 100, number) for time, number in arrivals]
    found = pcap.pair(packets(arrivals), packets(departures, reply))
    assert found.arrival.tolist() == [1, 3] and found.residence_ns.tolist() == [100, 100]
    assert found.arrivals["repeated"] == found.departures["repeated"] == 2
    assert [flag.split(":")[0] for flag in found.flags] == ["repeated", "repeated"]


def test_directions_that_were_swapped_are_flagged_and_never_negative():
    arrivals, departures = packets([(0, 0), (10, 1)]), packets([(5, 0), (15, 1)], reply)
    found = pcap.pair(departures, arrivals)
    assert len(found) == 0 and found.departures["early"] == 2 and found.arrivals["lost"] == 2
    assert any("are the directions or the clocks apart?" in flag for flag in found.flags)


def test_too_long_a_residence_is_late_and_flagged():
    found = pcap.pair(packets([(0, 0)]), packets([(2 * SECOND, 0)], reply))
    assert len(found) == 0 and found.departures["late"] == 1
    assert found.flags[1].startswith("late: 1 of 1 departures")
    longer = pcap.pair(packets([(0, 0)]), packets([(2 * SECOND, 0)]), longest_ns=2 * SECOND)
    assert longer.residence_ns.tolist() == [2 * SECOND] and longer.flags == ()


def test_nothing_to_pair_is_no_error():
    for one, other in (([], []), ([(1, 1)], []), ([], [(1, 1)])):
        found = pcap.pair(packets(one), packets(other))
        assert len(found) == 0 and found.residence_ns.dtype == np.int64
        assert found.unmatched == (len(one), len(other))
    for longest in (0, -1, 1e9):
        with pytest.raises(UsageError):
            pcap.pair(packets([]), packets([]), longest_ns=longest)


def payloads(times, contents, **options):
    frames = [files.ethernet(files.ipv4(files.udp(content))) for content in contents]
    return pcap.read(files.pcap(list(zip(times, frames, strict=True)), **options))


def test_messages_without_a_key_are_paired_in_turn():
    arrivals, departures = [0, 100, 200, 300], [30, 140, 145, 320]
    both = payloads(arrivals, [b"same"] * 4), payloads(departures, [b"same"] * 4)
    found = pcap.pair(*both, pcap.alike, in_turn=True)
    assert found.residence_ns.tolist() == [30, 40, 20]
    assert found.arrivals["lost"] == 1 and found.departures["duplicate"] == 1
    # Without being told so, none of them is paired.
    assert len(pcap.pair(*both, pcap.alike)) == 0


#: As tcpdump 4.99.3 wrote it, with its counts left out.
CLOSING = """tcpdump: listening on lo, link-type EN10MB (Ethernet), snapshot length 96 bytes
{}{} packet{} captured
{} packets received by filter
{} packets dropped by kernel
"""


def test_what_tcpdump_dropped_is_counted_and_flagged():
    assert pcap.parse_drops(CLOSING.format("", 400, "s", 818, 0)) == pcap.Drops(400, 818, 0)
    whole = pcap.parse_drops(CLOSING.format("", 1, "", 2, 0))
    assert (whole.captured, whole.received, whole.flags) == (1, 2, ())
    # Counts that it gave when asked, on the way, are not the last ones.
    asked = "tcpdump: 7 packets captured, 8 packets received by filter, "
    asked += "9 packets dropped by kernel\n"
    text = CLOSING.format(asked, 1537, "s", 2023, 477) + "12 packets dropped by interface\n"
    drops = pcap.parse_drops(text)
    assert drops == pcap.Drops(1537, 2023, 477, 12)
    assert drops.flags == (
        "lossy capture: 477 of 2023 packets dropped by the kernel, 12 by the interface",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcpdump: eth9: No such device exists\n",
        CLOSING.format("", 5, "s", 5, 0).partition("received")[0],
        CLOSING.format("", 5, "s", 5, 0).replace("dropped by kernel", "vom Kern verworfen"),
        CLOSING.format("", "1,537", "s", 5, 0),
        CLOSING.format("", 5, "s", "-5", 0),
    ],
)
def test_incomplete_closing_lines_are_an_error_that_shows_them(text):
    with pytest.raises(ToolOutput) as caught:
        pcap.parse_drops(text)
    assert (text.strip() or "(nothing)")[-20:] in caught.value.why and caught.value.remedy
