"""The headers of captured packets: links, tags, fragments, what was cut off or cannot be."""

from __future__ import annotations

import random
import struct

import capture_files as files
import numpy as np
import pytest
from capture_files import CLIENT, SERVER, message
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import capture
from labkit.capture import records
from labkit.errors import ToolOutput, UsageError

START = 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("place", "value", "ipv4"),
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
def test_headers_that_cannot_be_are_none(place, value, ipv4):
    inner = files.udp(bytes(28)) if place != 46 else files.tcp(bytes(16))
    frame = bytearray(files.ethernet(files.ipv4(inner, protocol=6 if place == 46 else 17)))
    assert capture.read(files.pcap([(START, bytes(frame))])).fields.payload[0] > 0
    frame[place] = value
    fields = capture.read(files.pcap([(START, bytes(frame))])).fields
    assert fields.ipv4.tolist() == [ipv4] and fields.payload.tolist() == [-1]
    assert fields.sport.tolist() == fields.payload_captured.tolist() == [0]
    assert fields.src.tolist() == [0xC6120001 if ipv4 else 0]


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
    found = capture.read(files.pcap([(START, frame) for frame in frames]))
    fields = found.fields
    assert fields.ipv4.tolist() == [True] * 4 + [False] * 2
    assert fields.protocol.tolist() == [17, 6, 17, 1, 0, 0]
    assert fields.src.tolist() == [0xC6120001, 0xC6120002, 0xC6120001, 0xC6120001, 0, 0]
    assert fields.dst[1] == 0xFFFFFFFF and fields.dst.dtype == np.uint32
    assert fields.identification.tolist() == [65_535, 7, 7, 7, 0, 0]
    assert fields.sport.tolist() == [1_234, 80, 1_234, 0, 0, 0]
    assert fields.dport.tolist() == [5_678, 40_001, 5_678, 0, 0, 0]
    assert fields.payload_length.tolist() == [10, 3, 10, 0, 0, 0]
    assert (fields.payload - found.offsets)[:3].tolist() == [42, 66, 50]
    assert fields.payload[3:].tolist() == [-1, -1, -1]
    values, there = found.unsigned(0, 3)
    assert there.tolist() == [True] * 3 + [False] * 3
    assert values.tolist() == [0x303132, 0x616263, 0x303132, 0, 0, 0]


@pytest.mark.parametrize("tags", [(), (0x8100,), (0x88A8, 0x8100), (0x9100,)])
def test_vlan_tags_move_what_follows(tags):
    frames = [files.ethernet(files.ipv4(files.udp(b"\0" * 7 + b"\x05")), tags=tags)]
    frames.append(message(6))
    found = capture.read(files.pcap([(START, frame) for frame in frames]))
    assert found.unsigned(0, 8)[0].tolist() == [5, 6]
    assert found.fields.payload[0] - found.offsets[0] == 42 + 4 * len(tags)


@pytest.mark.parametrize(
    ("link", "head"),
    [(113, files.sll), (276, files.sll2), (101, bytes), (228, bytes), (12, bytes)],
)
def test_other_links_are_read(link, head):
    packet = head(files.ipv4(files.udp(struct.pack(">Q", 9))))
    found = capture.read(files.pcap([(START, packet)], link=link | 0x24000000))
    assert found.link == link and found.unsigned(0, 8)[0].tolist() == [9]


def test_an_unknown_link_keeps_its_times_and_says_so_when_it_is_asked_for_headers():
    found = capture.read(files.pcap([(START, b"wireless")], link=105))
    assert found.times_ns.tolist() == [START]
    with pytest.raises(ToolOutput, match="link type 105"):
        _ = found.fields


def test_fragments_have_neither_ports_nor_payload():
    datagram = files.udp(struct.pack(">Q", 1) + bytes(92))
    parts = [(datagram[:64], 0x2000), (datagram[64:], 0x0008), (datagram[:64], 0x4000)]
    frames = [files.ethernet(files.ipv4(inner, part=part)) for inner, part in parts]
    fields = capture.read(files.pcap([(START, frame) for frame in frames])).fields
    # The third may not be fragmented, but says that it is longer than its datagram.
    assert fields.fragment.tolist() == [True, True, False]
    assert fields.payload.tolist() == [-1, -1, -1]
    assert fields.sport.tolist() == fields.dport.tolist() == [0, 0, 0]
    assert fields.protocol.tolist() == [17, 17, 17]


@pytest.mark.parametrize("last", [False, True])
def test_headers_that_were_cut_off_are_none(last):
    packet = message(0x0102030405060708, 200)
    for snaplen in range(1, 60):
        # Whatever follows in the file is not taken for the rest of the packet.
        packets = [(START, packet)] if last else [(START, packet), (START, message(1))]
        found = capture.read(files.pcap(packets, snaplen=snaplen))
        fields = found.fields
        assert found.wire[0] == 242 and found.captured[0] == snaplen
        assert fields.ipv4[0] == (snaplen >= 34)
        assert (fields.payload[0] >= 0) == (snaplen >= 42)
        assert fields.payload_length[0] == (200 if snaplen >= 42 else 0)
        assert fields.payload_captured[0] == max(0, snaplen - 42)
        values, there = found.unsigned(1, 4)
        assert there[0] == (snaplen >= 47) and values[0] == (0x02030405 if there[0] else 0)


@pytest.mark.parametrize("held", [34, 53, 54, 60])
def test_segments_of_tcp_that_were_cut_off_within_their_header_are_none(held):
    frame = files.ethernet(files.ipv4(files.tcp(bytes(30)), protocol=6))
    packets = [(START, frame), (START, files.message(1))]
    fields = capture.read(files.pcap(packets, snaplen=held)).fields
    assert (fields.payload[0] >= 0) == (held >= 54)
    assert fields.payload_captured[0] == max(0, held - 54)


def test_beyond_the_end_of_a_capture_there_are_zeros():
    data, places = np.arange(1, 6, dtype=np.uint8), np.array([0, 3, 9])
    assert records.take(data, places, 3).tolist() == [[1, 2, 3], [4, 5, 0], [0, 0, 0]]
    assert records.take(data, places, 7).tolist()[0] == [1, 2, 3, 4, 5, 0, 0]


@settings(max_examples=100, deadline=None)
@given(
    payloads=st.lists(st.binary(min_size=0, max_size=24), min_size=1, max_size=6),
    at=st.integers(0, 12),
    size=st.integers(1, 8),
    order=st.sampled_from(["big", "little"]),
)
def test_numbers_of_any_size_and_order(payloads, at, size, order):
    frames = [files.ethernet(files.ipv4(files.udp(payload))) for payload in payloads]
    padded = [frame.ljust(60, b"\xff") for frame in frames]  # as Ethernet fills up short ones
    found = capture.read(files.pcap([(START, frame) for frame in padded]))
    values, there = found.unsigned(at, size, order)
    assert there.tolist() == [len(payload) >= at + size for payload in payloads]
    wanted = [int.from_bytes(payload[at : at + size], order) for payload in payloads]
    assert values.tolist() == [w if has else 0 for w, has in zip(wanted, there, strict=True)]


@pytest.mark.parametrize(("at", "size", "order"), [(-1, 8, "big"), (0, 9, "big"), (0, 2, "le")])
def test_numbers_that_cannot_be_are_refused(at, size, order):
    with pytest.raises(UsageError):
        capture.read(files.pcap([(START, message(0))])).unsigned(at, size, order)


def test_directions_are_told_apart_and_headers_are_read_once():
    rng = random.Random(5)
    there = [rng.random() < 0.5 for _ in range(50)]
    frames = [
        message(i, **({"src": SERVER, "dst": CLIENT} if back else {}))
        for i, back in enumerate(there)
    ]
    found = capture.read(files.pcap([(START + i, frame) for i, frame in enumerate(frames)]))
    back = found.where(src=SERVER, protocol="udp", sport=40_000)
    assert back.unsigned(0, 8)[0].tolist() == [i for i, one in enumerate(there) if one]
    assert "fields" in vars(back) and len(found.where(dst=SERVER)) == 50 - len(back)
    assert len(found.where(protocol="tcp")) == len(found.where(dport=1)) == 0
    assert repr(back).startswith(f"<{len(back)} packets")
    for wrong in ({"src": "198.18.0"}, {"protocol": "sctp"}):
        with pytest.raises(UsageError):
            found.where(**wrong)
