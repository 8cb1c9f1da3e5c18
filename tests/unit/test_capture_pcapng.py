"""Captures in pcapng: each interface's clock, what is skipped, counted and refused."""

from __future__ import annotations

import struct
from fractions import Fraction

import capture_files as files
import pytest
from capture_files import message
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import capture
from labkit.errors import ToolOutput

START = 1_700_000_000_123_456_789


def made(*blocks, order="<"):
    return files.section(order) + b"".join(blocks)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("sizes", [[14, 15, 16, 17], [20] * 3])
def test_packets_are_those_that_were_written(order, sizes):
    frames = [message(i, size) for i, size in enumerate(sizes)]
    skipped = files.block(4, bytes(8), order) + files.block(0x0BAD, b"custom", order)
    blocks = [files.enhanced(START + i, frame, order) for i, frame in enumerate(frames)]
    found = capture.read(made(files.interface(order), skipped, *blocks, skipped, order=order))
    assert found.times_ns.tolist() == [START + i for i in range(len(sizes))]
    assert found.wire.tolist() == found.captured.tolist() == [len(frame) for frame in frames]
    assert found.unsigned(0, 8)[0].tolist() == list(range(len(sizes)))
    assert found.flags == () and found.link == 1 and not found.interface.any()


@settings(max_examples=200, deadline=None)
@given(
    resolution=st.one_of(st.integers(0, 18), st.integers(128, 128 + 34), st.none()),
    seconds=st.integers(0, 2**32),
    fraction=st.fractions(0, Fraction(99, 100)),
    offset_s=st.sampled_from([0, 1_700_000_000, -3_600]),
)
def test_times_follow_the_clock_of_their_interface(resolution, seconds, fraction, offset_s):
    shown = 6 if resolution is None else resolution
    unit = 2 ** (shown - 128) if shown >= 128 else 10**shown
    ticks = int((seconds + fraction) * unit)
    if ticks >= 2**64:
        ticks %= 2**63
    exact = Fraction(ticks * 10**9, unit)
    head = files.interface(resolution=resolution, offset_s=offset_s)
    found = capture.read(made(head, files.enhanced(ticks, message(0))))
    assert found.times_ns.tolist() == [exact.__floor__() + offset_s * 10**9]


@pytest.mark.parametrize("resolution", [19, 127, 128 + 35, 255])
def test_clocks_that_cannot_be_read_are_refused(resolution):
    data = made(files.interface(resolution=resolution), files.enhanced(5, message(0)))
    with pytest.raises(ToolOutput, match="clock") as caught:
        capture.read(data)
    assert "editcap" in caught.value.remedy


@pytest.mark.parametrize(
    ("ticks", "options"),
    [(2**63, {"resolution": 6}), (5, {"offset_s": 2**62}), (5, {"offset_s": -(2**63)})],
)
def test_times_that_no_clock_shows_are_refused(ticks, options):
    data = made(files.interface(**options), files.enhanced(ticks, message(0)))
    with pytest.raises(ToolOutput, match="clock"):
        capture.read(data)


def test_several_interfaces_have_their_own_clocks_and_are_told_apart():
    blocks = [files.interface(), files.interface(resolution=6), files.interface(link=113)]
    blocks.append(files.enhanced(START, message(0)))
    blocks.append(files.enhanced(START // 1_000, message(1), number=1))
    found = capture.read(made(*blocks))
    assert found.times_ns.tolist() == [START, START // 1_000 * 1_000]
    assert found.interface.tolist() == [0, 1]
    assert found.where(interface=1).unsigned(0, 8)[0].tolist() == [1]


def test_link_types_that_are_mixed_are_refused():
    blocks = [files.interface(), files.interface(link=113)]
    blocks += [files.enhanced(START, message(i), number=i) for i in range(2)]
    with pytest.raises(ToolOutput, match="several link types"):
        capture.read(made(*blocks))


def test_packets_that_were_cut_short_say_how_long_they_were():
    found = capture.read(made(files.interface(), files.enhanced(START, message(3, 99), snaplen=51)))
    assert found.wire.tolist() == [141] and found.captured.tolist() == [51]
    assert found.fields.payload_captured.tolist() == [9]


def test_drops_that_the_file_counts_are_flagged():
    frames = [files.enhanced(START + i, message(i)) for i in range(2)]
    early, late = files.statistics(3), files.statistics(5)
    data = made(files.interface(), files.interface(), frames[0], early, frames[1], late)
    assert capture.read(data).flags == ("lossy: 5 packets were dropped, as the capture says",)
    other = files.statistics(2, number=1)
    assert capture.read(data + other).flags[0].startswith("lossy: 7 packets")
    assert capture.read(made(files.interface(), *frames, files.statistics(0))).flags == ()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (files.block(3, struct.pack("<I", 56) + message(1)), "without a time"),
        (files.block(2, struct.pack("<HHIIII", 0, 0, 0, 5, 56, 56) + message(1)), "obsolete"),
        (files.section(), "several sections"),
        (files.section(">"), "several sections"),
        (files.enhanced(START, message(1), number=1), "of interface 1 of 1"),
        (struct.pack("<II", 6, 11) + bytes(8), "would have 11 bytes"),
        (struct.pack("<II", 6, 2**24 + 4) + bytes(8), "would have 16,777,220 bytes"),
        (struct.pack("<III", 6, 12, 16), "12 bytes, and 16 at its end"),
        (struct.pack("<IIBI", 0x0BAD, 13, 0, 13), "13 bytes, and 13 at its end"),
        (files.block(6, struct.pack("<IIIII", 0, 0, 5, 60, 60) + bytes(56)), "60 bytes captured"),
        (files.block(6, struct.pack("<IIIII", 0, 0, 5, 8, 7) + bytes(8)), "8 bytes captured of 7"),
        (files.block(6, b""), "in a block of 12"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(extra, said):
    data = made(files.interface(), files.enhanced(START, message(0)))
    assert len(capture.read(data)) == 1
    with pytest.raises(ToolOutput, match=said) as caught:
        capture.read(data + extra)
    assert "editcap" in caught.value.remedy


def test_a_block_with_options_that_run_over_is_read_without_them():
    options = struct.pack("<HH", 9, 200) + b"\x09\0\0\0"
    head = files.block(1, struct.pack("<HHI", 1, 0, 0) + options)
    found = capture.read(made(head, files.enhanced(START // 1_000, message(0))))
    assert found.times_ns.tolist() == [START // 1_000 * 1_000]
