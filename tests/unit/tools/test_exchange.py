"""Exchanges: their servers and clients, what is infeasible, and residence times of captures."""

from __future__ import annotations

import struct
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from capture_files import SERVER, ethernet, ipv4, message, pcap, tcp, udp

from labkit.errors import ToolOutput, UsageError
from labkit.placement import bare, docker
from labkit.tools import exchange, sfnt_pingpong, sockperf, udp_tcp
from labkit.tools.base import Measurement
from labkit.tools.exchange import MIXED, Exchange

SUMMARY = "{} packets captured\n{} packets received by filter\n{} packets dropped by kernel\n"
PLAIN = Exchange("udp", "sockperf", messages=1_000, size=14, wait="spin")
SFNT = replace(PLAIN, tool="sfnt-pingpong")


@pytest.mark.parametrize(
    ("pair", "server", "client"),
    [
        (PLAIN, sockperf.server("spin"), sockperf.ping_pong),
        (SFNT, sfnt_pingpong.server(), sfnt_pingpong.ping_pong),
        (replace(PLAIN, kind=MIXED), udp_tcp.server("spin"), udp_tcp.ask),
        (replace(SFNT, kind=MIXED), udp_tcp.server("spin"), udp_tcp.ask),
    ],
)
def test_an_exchange_has_the_server_and_the_client_of_its_tool(
    pair: Exchange, server: Any, client: Any
) -> None:
    expected = client(SERVER, messages=1_000, size=14, wait="spin")
    assert pair.server() == server and pair.client(SERVER).argv == expected.argv
    assert pair.seconds() == expected.seconds < replace(pair, capture="on").seconds()


@pytest.mark.parametrize("pair", [PLAIN, SFNT])
def test_the_transport_is_passed_on(pair: Exchange) -> None:
    argv = replace(pair, kind="tcp").client(SERVER).argv
    assert argv != pair.client(SERVER).argv and "tcp" in " ".join(argv)


def test_an_exchange_is_read_from_levels_and_settings() -> None:
    values = {"exchange": "udp", "tool": "sockperf", "messages": 1_000, "size": 14, "wait": "spin"}
    assert Exchange.of(SimpleNamespace(**values, capture="off", other=1)) == PLAIN


def test_an_unknown_name_is_an_error() -> None:
    for wrong in ({"kind": "udp in"}, {"tool": "ping"}):
        with pytest.raises(UsageError, match="unknown"):
            replace(PLAIN, **wrong)
    for arguments in (("ping", "udp"), ("sockperf", ["udp", "udp in"])):
        with pytest.raises(UsageError, match="unknown"):
            exchange.probes(*arguments)
    with pytest.raises(UsageError, match="unknown load 'heavy'"):
        exchange.background("heavy")


def test_only_tools_that_are_needed_are_probed() -> None:
    assert set(exchange.probes("sockperf", "udp")) == {"sockperf"}
    assert set(exchange.probes("sockperf", ["tcp", MIXED])) == {"sockperf", "python3"}
    assert set(exchange.probes("sfnt-pingpong", MIXED)) == {"python3"}


def test_a_background_load_is_placed_on_its_cpus() -> None:
    assert exchange.background("none") == []
    loads = exchange.background("containers", count=2, busy=True, cpus="1")
    assert [(load["name"], load["cpus"]) for load in loads] == [("load0", "1"), ("load1", "1")]
    waiting = exchange.background("containers", count=1, cpus="1")
    assert waiting[0]["workload"] != loads[0]["workload"]
    (workers,) = exchange.background("stress-ng", count=3, cpus="0-1")
    assert "3" in workers["workload"].argv


@pytest.mark.parametrize(
    ("pair", "placement", "why"),
    [
        (SFNT, docker("nat"), "on ports that the kernel gives it"),
        (SFNT, docker("host"), "not in the image"),
        (SFNT, bare("clean"), "not on the host"),
        (SFNT, bare("rules"), None),
        (replace(PLAIN, kind=MIXED), docker("nat"), "published for one protocol"),
        (replace(SFNT, kind=MIXED), bare("clean"), None),
        (PLAIN, docker("nat"), None),
        (PLAIN, docker("overlay"), "no end of the network overlay"),
        (replace(PLAIN, size=1_500, capture="on"), docker("host"), "several packets"),
        (replace(PLAIN, size=1_500), docker("host"), None),
    ],
)
def test_what_cannot_be_measured_has_a_reason(
    pair: Exchange, placement: Any, why: str | None
) -> None:
    absent = {"image": "not in the image", "clean": "not on the host"}
    reason = pair.infeasible(placement, absent if pair.tool == "sfnt-pingpong" else {})
    assert (reason is None) if why is None else (reason is not None and why in reason)


def capture(packets: list[tuple[int, bytes]], dropped: int = 0) -> Any:
    count = len(packets)
    summary = SUMMARY.format(count, count + dropped, dropped)
    return SimpleNamespace(packets=pcap(sorted(packets)), summary=summary)


def answer(number: int) -> bytes:
    payload = struct.pack(">QHI", number, 0, 14)
    return ethernet(ipv4(udp(payload, sport=11_111, dport=40_000), src=SERVER, dst="198.18.0.1"))


def test_residence_times_are_added_to_the_round_trips() -> None:
    packets = []
    for number in range(1, 101):
        at = 10_000_000 * number
        packets += [(at, message(number)), (at + number, answer(number))]
    packets.pop()  # an answer is lost
    measurement = Measurement({"rtt_ns": np.arange(500, 550)}, {"dropped": 0.0}, 100)
    added = PLAIN.with_residence_times(measurement, capture(packets), SERVER)
    assert added.samples["rtt_ns"].tolist() == list(range(500, 550))
    residence = added.samples["residence_ns"]
    # As of the round trips, those of the first 400 ms and of the last 50 ms do not count.
    assert len(residence) == 50 and residence[0] == 41 and 90 < residence.max() <= 95
    assert added.metrics == {
        "dropped": 0.0,
        "captured": 199,
        "capture_drops": 0,
        "paired": 99,
        "unpaired": 1,
    }
    assert [flag.partition(":")[0] for flag in added.flags] == ["lost"]


def test_without_a_capture_a_measurement_stays_as_it_is() -> None:
    measurement = Measurement({"rtt_ns": np.arange(1, 9)})
    empty = SimpleNamespace(packets=b"", summary="")
    assert PLAIN.with_residence_times(measurement, empty, SERVER) is measurement


def test_packets_and_round_trips_that_are_missing_are_flagged() -> None:
    packets = [(0, message(8)), (9, answer(8)), (600_000_000, message(9)), (600_000_009, answer(9))]
    for at, packet in [(10, message(1)), (25, answer(1)), (40, message(2)), (60, answer(2))]:
        packets.append((500_000_000 + at, packet))
    measurement = Measurement({"rtt_ns": np.arange(1, 9)}, flags=("lossy",))
    added = PLAIN.with_residence_times(measurement, capture(packets, dropped=7), SERVER)
    assert added.samples["residence_ns"].tolist() == [15, 20]
    assert added.samples["rtt_ns"].tolist() == [1, 5] and added.metrics["capture_drops"] == 7
    lossy, dropped, left_out = added.flags
    assert lossy == "lossy" and dropped.startswith("lossy capture: 7 of 15")
    assert left_out.startswith("6 of 8 round trips")
    with pytest.raises(ToolOutput, match="holds no message"):
        PLAIN.with_residence_times(measurement, capture([]), SERVER)


def test_an_answer_over_tcp_is_told_from_acknowledgements() -> None:
    payload = struct.pack(">QHI", 3, 0, 14)
    back = {"src": SERVER, "dst": "198.18.0.1", "protocol": 6}
    packets = [
        (5, ethernet(ipv4(tcp(b""), **back))),
        (10, ethernet(ipv4(udp(payload), dst=SERVER))),
        (20, ethernet(ipv4(tcp(b""), **back))),
        (47, ethernet(ipv4(tcp(payload), **back))),
        (50, ethernet(ipv4(tcp(b""), dst=SERVER, protocol=6))),
    ]
    measurement = Measurement({"rtt_ns": np.array([90])})
    pair = replace(PLAIN, kind=MIXED)
    added = pair.with_residence_times(measurement, capture(packets), SERVER)
    assert added.samples["residence_ns"].tolist() == [37] and added.flags == ()


def test_messages_without_a_number_are_paired_in_turn() -> None:
    payload = bytes(14)
    forth = ethernet(ipv4(udp(payload), dst=SERVER))
    back = ethernet(ipv4(udp(payload), src=SERVER, dst="198.18.0.1"))
    packets = [(10, forth), (13, back), (20, forth), (24, back)]
    measurement = Measurement({"rtt_ns": np.array([9, 9])})
    added = SFNT.with_residence_times(measurement, capture(packets), SERVER)
    assert added.samples["residence_ns"].tolist() == [3, 4]
