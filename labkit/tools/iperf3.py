"""iperf3: throughput of TCP, or of UDP at a rate, as the receiver counts it; Mbit/s of 10^6 bits.

The client sends. Both ends report over a TCP connection to the same port as the data: a published
port must be published for both protocols, as `server` requests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, check_integers, check_positive
from labkit.tools.parsing import reading, shortfall, version

TOOL = "iperf3"
PORT = 5201
#: The ends in the report's words.
_ENDS = {"client": "host", "server": "remote"}


def probe(host: Host) -> str:
    """Return iperf3's version on the host."""
    return version(host, (TOOL, "--version"), r"iperf (\d\S*)")


def server() -> Workload:
    """Return the server, which takes one test after the other."""
    argv = (TOOL, "--server", "-4", "--port", str(PORT))
    return Workload(argv, PORT, "tcp", "apps", second_protocol="udp")


def tcp(address: str, *, seconds: int) -> Client:
    """Return the client that sends one TCP stream as fast as it can for whole seconds."""
    check_integers(TOOL, seconds=seconds)
    return Client(_client(address, seconds), address, seconds + 2.0, parse)


def udp(address: str, *, seconds: int, mbit_per_s: float) -> Client:
    """Return the client that sends datagrams at a rate for whole seconds.

    Parameters
    ----------
    address : str
        The server's address.
    seconds : int
        How long is measured.
    mbit_per_s : float
        Of payload, sent in equal parts each millisecond. The receiver's losses are what is
        measured; only a sender that was too slow is flagged. With 0 it sends as fast as it can.
    """
    check_integers(TOOL, seconds=seconds)
    if mbit_per_s != 0:
        check_positive(TOOL, mbit_per_s=mbit_per_s)
    argv = (*_client(address, seconds), "--udp", "--bitrate", str(round(mbit_per_s * 1e6)))
    reader = partial(parse, mbit_per_s=mbit_per_s or None)
    return Client(argv, address, seconds + 2.0, reader, protocols=("tcp", "udp"))


def _client(address: str, seconds: int) -> tuple[str, ...]:
    argv = (TOOL, "--client", address, "-4", "--port", str(PORT), "--json")
    return (*argv, "--time", str(seconds))


def parse(stdout: str, log: str = "", *, mbit_per_s: float | None = None) -> Measurement:
    """Read the JSON object that both ends report at the end.

    Returns
    -------
    Measurement
        ``throughput_mbit_per_s``, received, and ``sent_mbit_per_s``. Of each end
        ``tool_client_cpu``, ``..._user``, ``..._system`` and the same of ``server``: the share of
        one CPU that the tool reports. Of TCP ``retransmits``; of UDP ``jitter_ns``,
        ``datagrams``, ``datagrams_lost`` and ``loss``, their share; ``requested_mbit_per_s``.
    """
    with reading(TOOL, stdout):
        report = json.loads(stdout)
        if "error" in report:
            raise ValueError(str(report["error"]))
        end = report["end"]
        datagrams = report["start"]["test_start"]["protocol"] == "UDP"
        metrics = _udp(end) if datagrams else _tcp(end)
        metrics |= _cpu(end["cpu_utilization_percent"])
        if not metrics["sent_mbit_per_s"] > 0 or not all(map(math.isfinite, metrics.values())):
            raise ValueError("nothing was sent, or a number is missing")
    flags: tuple[str, ...] = ()
    if mbit_per_s:
        metrics["requested_mbit_per_s"] = float(mbit_per_s)
        missed = shortfall(metrics["sent_mbit_per_s"], mbit_per_s)
        flags = tuple(f"{flag} (Mbit, sent)" for flag in missed)
    return Measurement({}, metrics, int(metrics.get("datagrams", 0)), flags)


def _tcp(end: Mapping[str, Any]) -> dict[str, float]:
    sent, received = end["sum_sent"], end["sum_received"]
    return {
        "throughput_mbit_per_s": received["bits_per_second"] / 1e6,
        "sent_mbit_per_s": sent["bits_per_second"] / 1e6,
        "retransmits": float(sent["retransmits"]),
    }


def _udp(end: Mapping[str, Any]) -> dict[str, float]:
    total = end["sum"]
    return {
        "throughput_mbit_per_s": end["sum_received"]["bits_per_second"] / 1e6,
        "sent_mbit_per_s": end["sum_sent"]["bits_per_second"] / 1e6,
        "jitter_ns": total["jitter_ms"] * 1e6,
        "datagrams": float(total["packets"]),
        "datagrams_lost": float(total["lost_packets"]),
        "loss": total["lost_percent"] / 100,
    }


def _cpu(use: Mapping[str, float]) -> dict[str, float]:
    metrics = {}
    for end, theirs in _ENDS.items():
        for name in ("total", "user", "system"):
            suffix = "" if name == "total" else f"_{name}"
            metrics[f"tool_{end}_cpu{suffix}"] = use[f"{theirs}_{name}"] / 100
    return metrics
