"""iperf3: throughput of TCP, or of UDP at a rate, as the receiver counts it; Mbit/s of 10^6 bits.

The client sends. Both ends report over a TCP connection to the port that the data goes to as well:
behind a published port, UDP needs that port published for both protocols, as `server` has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, above_zero, whole
from labkit.tools.log_capture import shortfall
from labkit.tools.parsing import unreadable, version

TOOL = "iperf3"
PORT = 5201
#: Of one CPU, as each end tells of itself.
_USE = {"client": "host", "server": "remote"}


def probe(host: Host) -> str:
    """Return iperf3's version on the host; raise `ToolMissing` where it is not."""
    return version(host, (TOOL, "--version"), r"iperf (\d\S*)")


def server(*, port: int = PORT, image: str = "apps") -> Workload:
    """Return the server, which takes one test after the other."""
    whole(TOOL, port=port)
    argv = (TOOL, "--server", "-4", "--port", str(port))
    return Workload(argv, port, "tcp", image, beside="udp")


def tcp(address: str, *, seconds: int, streams: int = 1, omit: int = 0, port: int = PORT) -> Client:
    """Return the client that sends as much as TCP lets it.

    Parameters
    ----------
    address : str
        The server's address.
    seconds : int
        How long is measured, in whole seconds.
    streams : int
        Connections at once, of one thread.
    omit : int
        Seconds before that, which are left out: TCP's slow start.
    port : int
        The server's port.
    """
    whole(TOOL, seconds=seconds, streams=streams, port=port)
    whole(TOOL, least=0, omit=omit)
    argv = (*_client(address, seconds, omit, port), "--parallel", str(streams))
    return Client(argv, address, seconds + omit + 2.0, parse)


def udp(
    address: str,
    *,
    seconds: int,
    mbit_per_s: float,
    size: int = 0,
    omit: int = 0,
    port: int = PORT,
) -> Client:
    """Return the client that sends datagrams at a rate.

    Parameters
    ----------
    address : str
        The server's address.
    seconds : int
        How long is measured, in whole seconds.
    mbit_per_s : float
        Of payload. The tool sends so much in each millisecond; what the receiver loses of it is
        what is measured, and only a sender that was too slow is flagged. With 0 it sends as fast
        as it can.
    size : int
        Payload of a datagram in bytes; 0 for what the tool makes of the path's segment size.
    omit : int
        Seconds before that, which are left out.
    port : int
        The server's port.
    """
    whole(TOOL, seconds=seconds, port=port)
    whole(TOOL, least=0, size=size, omit=omit)
    if mbit_per_s != 0:
        above_zero(TOOL, mbit_per_s=mbit_per_s)
    argv = (*_client(address, seconds, omit, port), "--udp")
    argv += ("--bitrate", str(round(mbit_per_s * 1e6)))
    argv += ("--length", str(size)) if size else ()
    reader = partial(parse, mbit_per_s=mbit_per_s or None)
    planned = seconds + omit + 2.0
    return Client(argv, address, planned, reader, protocols=("tcp", "udp"))


def _client(address: str, seconds: int, omit: int, port: int) -> tuple[str, ...]:
    argv = (TOOL, "--client", address, "-4", "--port", str(port), "--json")
    return (*argv, "--time", str(seconds), "--omit", str(omit))


def parse(stdout: str, log: str = "", *, mbit_per_s: float | None = None) -> Measurement:
    """Read what both ends report at the end.

    Parameters
    ----------
    stdout, log : str
        The JSON object that the client printed; it has no log.
    mbit_per_s : float, optional
        The rate that was asked for.

    Returns
    -------
    Measurement
        ``throughput_mbit_per_s``, received, and ``sent_mbit_per_s``. Of each end
        ``tool_client_cpu``, ``..._user``, ``..._system`` and the same of ``server``: the share of
        one CPU that the tool says it took. Of TCP ``retransmits``; of UDP ``jitter_ns``,
        ``datagrams``, ``datagrams_lost`` and ``loss``, their share.

    Raises
    ------
    ToolOutput
        It is no whole JSON object of iperf3's, or holds an error.
    """
    try:
        report = json.loads(stdout)
        if "error" in report:
            raise ValueError(str(report["error"]))
        end = report["end"]
        datagrams = report["start"]["test_start"]["protocol"] == "UDP"
        metrics = _udp(end) if datagrams else _tcp(end)
        metrics |= _cpu(end["cpu_utilization_percent"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(TOOL, repr(error), stdout) from None
    if not metrics["sent_mbit_per_s"] > 0 or not all(map(math.isfinite, metrics.values())):
        raise unreadable(TOOL, "nothing was sent, or a number is none", stdout)
    flags = shortfall(metrics["sent_mbit_per_s"], mbit_per_s) if mbit_per_s else ()
    metrics |= {"requested_mbit_per_s": float(mbit_per_s)} if mbit_per_s else {}
    flags = tuple(f"{flag} (Mbit, sent)" for flag in flags)
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
    for end, theirs in _USE.items():
        for name in ("total", "user", "system"):
            suffix = "" if name == "total" else f"_{name}"
            metrics[f"tool_{end}_cpu{suffix}"] = use[f"{theirs}_{name}"] / 100
    return metrics
