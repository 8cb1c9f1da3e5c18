"""Reading captures: every byte order, clock and link, cut anywhere, damaged, and no capture."""

from __future__ import annotations

import gzip
import struct

import capture_files as files
import numpy as np
import pytest
from capture_files import CLIENT, message
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import capture
from labkit.capture import records
from labkit.errors import ToolOutput

START = 1_700_000_000_123_456_789


def some(sizes, start=START):
    """Return a message of each size, 1,001 ns apart, numbered from 0."""
    return [(start + 1_001 * i, message(i, size)) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("scale", [1, 1_000])
@pytest.mark.parametrize("sizes", [[64] * 5, [14, 1454, 28, 28, 15]])
def test_times_lengths_and_places_are_exact(order, scale, sizes):
    packets = some(sizes)
    data = files.pcap(packets, order=order, scale=scale)
    found = capture.read(data)
    assert found.times_ns.dtype == np.int64
    assert found.times_ns.tolist() == [time // scale * scale for time, _ in packets]
    assert found.wire.tolist() == found.captured.tolist() == [42 + size for size in sizes]
    for (_, packet), offset in zip(packets, found.offsets, strict=True):
        assert data[offset : offset + len(packet)] == packet
    assert found.buffer.tobytes() == data and found.link == 1
    assert found.left_over == 0 and found.flags == ()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_of_any_kind_and_files_read_alike(kind, tmp_path):
    data = files.pcap(some([64] * 3))
    path = tmp_path / "eth2.pcap"
    path.write_bytes(data)
    both = capture.read(kind(data)), capture.read(path), capture.read(str(path))
    assert len({tuple(one.times_ns) for one in both}) == 1


@settings(max_examples=60, deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(14, 80), st.integers(1, 60)), max_size=12),
    single=st.sampled_from([2, 3, 7, 2048]),
    ahead=st.sampled_from([1, 5, 4096]),
)
def test_runs_and_single_steps_find_the_same_packets(runs, single, ahead):
    sizes = [size for size, count in runs for _ in range(count)]
    packets = some(sizes)
    data = files.pcap(packets)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_SINGLE", single)
        patch.setattr(records, "_AHEAD", ahead)
        patch.setattr(records, "_FAR", 4 * ahead)
        found = capture.read(data)
    ends = np.cumsum([58 + size for size in sizes], dtype=np.int64)
    assert found.offsets.tolist() == [40, *(24 + ends + 16)][: len(sizes)]
    values, there = found.unsigned(0, 8)
    assert there.all() and values.tolist() == list(range(len(sizes)))
    assert found.left_over == 0


@pytest.mark.parametrize("make", [files.pcap, None], ids=["pcap", "pcapng"])
def test_a_file_cut_anywhere_in_its_last_packet_keeps_the_whole_ones(make):
    packets = some([20, 64, 30])
    if make:
        data, before = make(packets), make(packets[:2])
    else:
        parts = [files.enhanced(time, packet) for time, packet in packets]
        before = files.section() + files.interface() + parts[0] + parts[1]
        data = before + parts[2]
    for end in range(len(before), len(data)):
        found = capture.read(data[:end])
        assert len(found) == 2 and found.left_over == end - len(before)
        assert found.unsigned(0, 8)[0].tolist() == [0, 1]
        left = f"truncated: {found.left_over} bytes after the last whole packet"
        assert found.flags == ((left,) if found.left_over else ())
    assert len(capture.read(data)) == 3


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 330), value=st.integers(0, 255), pcapng=st.booleans())
def test_a_damaged_byte_gives_packets_or_an_error_that_says_where(place, value, pcapng):
    packets = some([14, 40, 14])
    data = bytearray(files.pcap(packets))
    if pcapng:
        body = [files.enhanced(time, packet) for time, packet in packets]
        data = bytearray(files.section() + files.interface() + b"".join(body))
    data[place % len(data)] = value
    try:
        found = capture.read(data)
        assert len(found) <= 4
        assert (found.captured <= found.wire).all()
        assert (found.offsets + found.captured <= len(data)).all()
        fields = found.fields
    except ToolOutput as error:
        assert error.why and error.remedy
        return
    held = fields.payload >= 0
    assert (fields.payload_captured[held] <= fields.payload_length[held]).all()
    assert (fields.payload_captured >= 0).all()


def test_a_capture_without_packets_is_flagged():
    found = capture.read(files.pcap([]))
    assert len(found) == 0 and found.flags == ("empty: no packet was captured",)
    assert len(found.where(src=CLIENT, dport=1)) == 0 and len(found.unsigned(0, 8)[0]) == 0
    nothing = capture.read(files.section())
    assert len(nothing) == 0 and "empty" in nothing.flags[0]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "capture is empty"),
        (b"\n", "no packet capture"),
        ("15:01 IP Käse > 198.18.0.2: UDP, Länge 14\n".encode(), "no packet capture"),
        (gzip.compress(files.pcap([])), "gunzip"),
        (files.pcap([])[:4], "ends within its header"),
        (files.pcap([])[:23], "ends within its header"),
        (files.section()[:20], "ends within its header"),
        (files.section()[:9], "damaged"),
        (struct.pack("<IHH", 0xA1B2C3D4, 2, 3) + bytes(16), "version 2.3"),
        (struct.pack("<I", 0xA1B2CD34) + bytes(20), "no packet capture"),
    ],
)
def test_what_is_no_capture_is_an_error_that_shows_it(data, said):
    with pytest.raises(ToolOutput, match=said) as caught:
        capture.read(data)
    assert caught.value.remedy


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ToolOutput, match="No such file"):
        capture.read(tmp_path / "eth3.pcap")


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
def test_lengths_and_times_that_cannot_be_are_errors(head, said):
    data = files.pcap(some([64, 64])) + struct.pack("<IIII", *head) + bytes(8)
    with pytest.raises(ToolOutput, match=said) as caught:
        capture.read(data)
    assert "packet 3" in caught.value.why and caught.value.evidence["at"] == 268


def test_a_length_that_cannot_be_is_one_too_where_the_file_is_long_enough():
    data = files.pcap(some([64])) + struct.pack("<IIII", 1, 1, 262_145, 262_145) + bytes(262_145)
    with pytest.raises(ToolOutput, match="packet 2 would have 262,145 bytes"):
        capture.read(data)
