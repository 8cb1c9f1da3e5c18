"""iperf3: throughput of TCP, or of UDP at a rate, as the receiver counts it; Mbit/s of 10^6 bits.

The client sends. Both ends report over a TCP connection to the same port as the data: a published
port must be published for both protocols, as `server` requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement
from labkit.tools.parsing import json_in, reading, shortfall, version

TOOL, PORT = "iperf3", 5201
#: The names of the ends in the report.
_ENDS = {"client": "host", "server": "remote"}
#: By how much what both ends count may differ.
_UNDER_WAY = 0.03


def probe(host: Host) -> str:
    """Return iperf3's version on the host."""
    return version(host, (TOOL, "--version"), r"iperf (\d\S*)")


def server() -> Workload:
    """Return the server, which takes one test after the other."""
    argv = (TOOL, "--server", "-4", "--port", str(PORT))
    return Workload(argv, PORT, "tcp", "apps", second_protocol="udp")


def tcp(address: str, *, seconds: int) -> Client:
    """Return the client that sends one TCP stream as fast as it can for whole seconds."""
    return Client(_client(address, seconds), address, seconds + 2.0, parse)


def udp(address: str, *, seconds: int, mbit_per_s: float) -> Client:
    """Return the client that sends datagrams at a rate of payload for whole seconds.

    It sends in equal parts each millisecond; with a rate of 0 as fast as it can. The receiver's
    losses are the measured value: only a sender that was too slow is flagged.
    """
    argv = (*_client(address, seconds), "--udp", "--bitrate", str(round(mbit_per_s * 1e6)))
    reader = partial(parse, mbit_per_s=mbit_per_s or None)
    return Client(argv, address, seconds + 2.0, reader, protocols=("tcp", "udp"))


def _client(address: str, seconds: int) -> tuple[str, ...]:
    argv = (TOOL, "--client", address, "-4", "--port", str(PORT), "--json")
    return (*argv, "--time", str(seconds))


def parse(stdout: str, log: str = "", *, mbit_per_s: float | None = None) -> Measurement:
    """Read the JSON object that both ends report: rates, losses, and their use of a CPU."""
    with reading(TOOL, stdout, needs="iperf3 3.12"):
        report = json_in(stdout)
        if "error" in report:
            raise ValueError(str(report["error"]))
        end = report["end"]
        sent, received = end["sum_sent"], end["sum_received"]
        metrics = {
            "throughput_mbit_per_s": received["bits_per_second"] / 1e6,
            "sent_mbit_per_s": sent["bits_per_second"] / 1e6,
        }
        if not 0 < received["bytes"] <= (1 + _UNDER_WAY) * sent["bytes"]:
            raise ValueError(f"{sent['bytes']} bytes were sent, and {received['bytes']} received")
        if report["start"]["test_start"]["protocol"] == "UDP":
            metrics |= _udp(end)
        else:
            metrics["retransmits"] = float(sent["retransmits"])
        use = end["cpu_utilization_percent"]
        for name, theirs in _ENDS.items():
            for kind in ("total", "user", "system"):
                suffix = "" if kind == "total" else f"_{kind}"
                metrics[f"tool_{name}_cpu{suffix}"] = use[f"{theirs}_{kind}"] / 100
        if not all(map(math.isfinite, metrics.values())):
            raise ValueError("a number is missing")
    flags: tuple[str, ...] = ()
    if mbit_per_s:
        metrics["requested_mbit_per_s"] = float(mbit_per_s)
        missed = shortfall(metrics["sent_mbit_per_s"], mbit_per_s)
        flags = tuple(f"{flag} (Mbit, sent)" for flag in missed)
    return Measurement({}, metrics, int(metrics.get("datagrams", 0)), flags)


def _udp(end: Mapping[str, Any]) -> dict[str, float]:
    """Return what the receiver lost, which must be what was sent and did not arrive."""
    total, received = end["sum"], end["sum_received"]
    loss, lost, packets = total["lost_percent"] / 100, total["lost_packets"], total["packets"]
    arrived = received["bytes"] / end["sum_sent"]["bytes"]
    # What was on its way at the end is not in the receiver's count: neither lost nor arrived.
    counted = (received["packets"] - received["lost_packets"]) / packets
    if not 0 <= lost <= packets or abs(counted - arrived) > _UNDER_WAY:
        raise ValueError(
            f"{lost} of {packets} datagrams were lost ({loss:.1%}), though {arrived:.1%} of the "
            "bytes arrived: do client and server have the same version?"
        )
    return {
        "jitter_ns": total["jitter_ms"] * 1e6,
        "datagrams": float(packets),
        "datagrams_lost": float(lost),
        "loss": loss,
    }
