"""Pairing by keys against a plain implementation; store-forward; what tcpdump dropped."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from functools import partial

import capture_files as files
import numpy as np
import pytest
from capture_files import CLIENT, SERVER
from hypothesis import example, given, settings
from hypothesis import strategies as st

from labkit import capture
from labkit.errors import ToolOutput, UsageError

START = 1_700_000_000_000_000_000
SECOND = 10**9
request = files.message
reply = partial(files.message, src=SERVER, dst=CLIENT)
events = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=25)


def packets(pairs, frame=request):
    """Return packets of (time, number)."""
    return capture.read(files.pcap([(START + time, frame(number)) for time, number in pairs]))


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
def test_it_is_what_a_dict_finds(arrivals, departures, longest, in_turn):
    both = packets(arrivals), packets(departures, reply)
    found = capture.pair(*both, longest_ns=longest, in_turn=in_turn)
    pairs, counts, left_out = plain(arrivals, departures, longest, in_turn)
    assert list(zip(found.arrival.tolist(), found.departure.tolist(), strict=True)) == pairs
    assert found.residence_ns.tolist() == [departures[d][0] - arrivals[a][0] for a, d in pairs]
    assert found.departures == counts | {"without key": 0}
    assert found.arrivals["repeated"] == left_out and found.arrivals["paired"] == len(pairs)
    assert sum(found.arrivals.values()) == len(arrivals)
    assert found.unmatched == (len(arrivals) - len(pairs), len(departures) - len(pairs))
    assert bool(found.flags) == any(found.unmatched)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 80))
def test_losses_duplicates_and_reordering_are_counted_and_nothing_is_mispaired(seed, n):
    rng = random.Random(seed)
    arrivals = [(1_000 * i, i) for i in range(n)]
    stays = {i: rng.randrange(100, 9_000) for i in range(n) if rng.random() < 0.9}
    twice = [i for i in stays if rng.random() < 0.1]
    departures = [(1_000 * i + stay, i) for i, stay in stays.items()]
    departures += [(1_000 * i + stays[i] + 50, i) for i in twice]
    departures.sort()
    found = capture.pair(packets(arrivals), packets(departures, reply))
    assert found.residence_ns.tolist() == list(stays.values())
    assert found.arrivals["lost"] == n - len(stays)
    assert found.departures["duplicate"] == len(twice)
    lost = [flag for flag in found.flags if flag.startswith("lost: ")]
    assert bool(lost) == (len(stays) < n) and len(found) == len(stays)


def test_a_client_that_begins_anew_is_told_apart_by_time():
    arrivals = [(i * 1_000 + run * 3 * SECOND, i) for run in range(3) for i in range(4)]
    departures = [(time + 300 + n, number) for n, (time, number) in enumerate(arrivals)]
    found = capture.pair(packets(arrivals), packets(departures, reply))
    assert found.residence_ns.tolist() == [300 + n for n in range(12)] and found.flags == ()
    # Its second run lost all it sent: nothing of the third is taken for that.
    kept = departures[:4] + departures[8:]
    again = capture.pair(packets(arrivals), packets(kept, reply))
    assert again.residence_ns.tolist() == [300 + n for n in range(12) if not 4 <= n < 8]
    assert again.flags == (f"lost: 4 of 12 arrivals, no departure of their key within {SECOND} ns",)


def test_keys_that_come_again_too_soon_are_left_out_and_flagged():
    arrivals = [(0, 1), (10, 2), (20, 1), (30, 3)]
    departures = [(time + 100, number) for time, number in arrivals]
    found = capture.pair(packets(arrivals), packets(departures, reply))
    assert found.arrival.tolist() == [1, 3] and found.residence_ns.tolist() == [100, 100]
    assert found.arrivals["repeated"] == found.departures["repeated"] == 2
    assert [flag.split(":")[0] for flag in found.flags] == ["repeated", "repeated"]


def test_directions_that_were_swapped_are_flagged_and_never_negative():
    arrivals, departures = packets([(0, 0), (10, 1)]), packets([(5, 0), (15, 1)], reply)
    found = capture.pair(departures, arrivals)
    assert len(found) == 0 and found.departures["early"] == 2 and found.arrivals["lost"] == 2
    assert any("are the directions or the clocks apart?" in flag for flag in found.flags)


def test_a_residence_that_cannot_be_is_late_and_flagged():
    found = capture.pair(packets([(0, 0)]), packets([(2 * SECOND, 0)], reply))
    assert len(found) == 0 and found.departures["late"] == 1
    assert found.flags[1].startswith("late: 1 of 1 departures")
    longer = capture.pair(packets([(0, 0)]), packets([(2 * SECOND, 0)]), longest_ns=2 * SECOND)
    assert longer.residence_ns.tolist() == [2 * SECOND] and longer.flags == ()


def test_nothing_to_pair_is_no_error():
    for one, other in (([], []), ([(1, 1)], []), ([], [(1, 1)])):
        found = capture.pair(packets(one), packets(other))
        assert len(found) == 0 and found.residence_ns.dtype == np.int64
        assert found.unmatched == (len(one), len(other))
    for longest in (0, -1, 1e9):
        with pytest.raises(UsageError):
            capture.pair(packets([]), packets([]), longest_ns=longest)


def payloads(times, contents, **options):
    frames = [files.ethernet(files.ipv4(files.udp(content))) for content in contents]
    return capture.read(files.pcap(list(zip(times, frames, strict=True)), **options))


@settings(max_examples=80, deadline=None)
@example(contents=[b"ab", b"ab\0", b"abc", b"ab"], most=2)
@given(
    contents=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12),
    most=st.integers(1, 48),
)
def test_payloads_are_known_by_themselves(contents, most):
    (values, there), (again, _) = (
        capture.payload(most)(payloads([START] * len(each), each))
        for each in (contents, [b"another", *contents])
    )
    assert there.all() and values.tolist() == again.tolist()[1:]
    for a, one in zip(values, contents, strict=True):
        for b, other in zip(values, contents, strict=True):
            alike = one[:most] == other[:most] and len(one) == len(other)
            assert (a == b) == alike


def test_a_payload_of_which_too_little_was_captured_has_no_key():
    contents = [bytes([i] * 30) for i in range(3)] + [b""]
    whole = payloads(range(4), contents)
    cut = payloads(range(100, 104), contents, snaplen=42 + 20)
    # Every fourth has no payload at all.
    assert len(capture.pair(whole, cut, capture.payload(20))) == 3
    found = capture.pair(whole, cut, capture.payload(21))
    assert found.departures["without key"] == 4 and found.arrivals["without key"] == 1
    with pytest.raises(UsageError):
        capture.payload(0)


def test_datagrams_that_are_forwarded_are_known_by_their_number():
    def forwarded(times, first):
        frames = [files.ethernet(files.ipv4(b"", identification=first + i)) for i in range(3)]
        return capture.read(files.pcap(list(zip(times, frames, strict=True))))

    found = capture.pair(forwarded([0, 1, 2], 5), forwarded([9, 8, 7], 5), capture.identification)
    assert found.residence_ns.tolist() == [9, 7, 5]
    part = capture.read(files.pcap([(0, files.ethernet(files.ipv4(b"", part=0x2000)))]))
    assert not capture.identification(part)[1].any()


def test_messages_without_anything_to_know_them_by_are_paired_in_turn():
    arrivals, departures = [0, 100, 200, 300], [30, 140, 145, 320]
    both = payloads(arrivals, [b"same"] * 4), payloads(departures, [b"same"] * 4)
    found = capture.pair(*both, capture.alike, in_turn=True)
    assert found.residence_ns.tolist() == [30, 40, 20]
    assert found.arrivals["lost"] == 1 and found.departures["duplicate"] == 1
    # Without being told so, none of them is paired.
    assert len(capture.pair(*both, capture.alike)) == 0
    assert len(capture.pair(*both, capture.payload())) == 0


@pytest.mark.parametrize("stamped", ["start", "end"])
def test_store_forward_is_from_the_last_byte_in_to_the_first_out(stamped):
    # 1,454 bytes of payload are 1,496 in the capture and 1,500 on the wire: 12 us at 1 Gbit/s.
    found = capture.store_forward([50_000, 12_000, 10], 1_496, 10**9, stamped)
    assert found.tolist() == [38_000, 0, -11_990] and found.dtype == np.int64
    # Short frames are filled up to 64 bytes: 51.2 ns at 10 Gbit/s.
    assert capture.store_forward([1_000], [42], 10**10, stamped).tolist() == [949]
    assert capture.store_forward([], [], 10**9, stamped).tolist() == []


@given(
    residence=st.integers(0, 2**62),
    wire=st.integers(60, 65_535),
    rate=st.integers(10**6, 4 * 10**11),
)
def test_store_forward_is_exact_to_half_a_nanosecond(residence, wire, rate):
    found = int(capture.store_forward([residence], [wire], rate, "start")[0])
    exact = residence - Fraction(8 * (wire + 4) * 10**9, rate)
    assert abs(found - exact) <= Fraction(1, 2)


@pytest.mark.parametrize(
    ("residence", "wire", "rate", "stamped"),
    [
        ([1], [60], 10**9, "middle"),
        ([1], [60], 0, "end"),
        ([1], [60], 1e9, "end"),
        ([1], [0], 10**9, "end"),
        ([1.5], [60], 10**9, "end"),
        ([math.nan], [60], 10**9, "end"),
        ([1, 2, 3], [60, 60], 10**9, "end"),
    ],
)
def test_store_forward_refuses_what_cannot_be(residence, wire, rate, stamped):
    with pytest.raises(UsageError):
        capture.store_forward(residence, wire, rate, stamped)


#: As tcpdump 4.99.3 wrote it, with its counts left out.
CLOSING = """tcpdump: listening on lo, link-type EN10MB (Ethernet), snapshot length 96 bytes
{}{} packet{} captured
{} packets received by filter
{} packets dropped by kernel
"""


def test_what_tcpdump_dropped_is_counted_and_flagged():
    assert capture.parse_drops(CLOSING.format("", 400, "s", 818, 0)) == capture.Drops(400, 818, 0)
    whole = capture.parse_drops(CLOSING.format("", 1, "", 2, 0))
    assert (whole.captured, whole.received, whole.flags) == (1, 2, ())
    # Counts that it gave when asked, on the way, are not the last ones.
    asked = "tcpdump: 7 packets captured, 8 packets received by filter, "
    asked += "9 packets dropped by kernel\n"
    text = CLOSING.format(asked, 1537, "s", 2023, 477) + "12 packets dropped by interface\n"
    drops = capture.parse_drops(text)
    assert drops == capture.Drops(1537, 2023, 477, 12)
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
def test_closing_lines_that_are_not_whole_are_an_error_that_shows_them(text):
    with pytest.raises(ToolOutput) as caught:
        capture.parse_drops(text)
    assert (text.strip() or "(nothing)")[-20:] in caught.value.why and caught.value.remedy
