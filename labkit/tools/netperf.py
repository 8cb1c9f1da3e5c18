"""Netperf: TCP_STREAM between a client and its server, in Mbit/s (10^6 bits).

The server (netserver) and the client hold a control connection, which carries nothing while the
data connection is measured.
"""

from __future__ import annotations

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, check_integers
from labkit.tools.parsing import fields, numbers, unreadable, version

PORT = 12865
_UNIT = "10^6bits/s"
#: The fields that the client prints, a line each.
_KEYS = ("THROUGHPUT", "THROUGHPUT_UNITS", "ELAPSED_TIME", "LOCAL_SEND_SIZE", "PROTOCOL")


def probe(host: Host) -> str:
    """Return netperf's version on the host."""
    package = "netperf (Debian has it in its component non-free)"
    return version(host, ("netperf", "-V"), r"Netperf version (\S+)", install=package)


def server(*, port: int = PORT) -> Workload:
    """Return netserver in the foreground; it serves any number of clients, a process each."""
    argv = ("netserver", "-D", "-4", "-p", str(port))
    return Workload(argv, port, protocol="tcp", image="services")


def tcp_stream(address: str, *, seconds: int, port: int = PORT) -> Client:
    """Return the client that sends one TCP stream to a server for whole seconds."""
    check_integers("netperf", seconds=seconds)
    argv: tuple[str, ...] = ("netperf", "-4", "-H", address, "-p", str(port))
    argv += ("-t", "TCP_STREAM", "-P", "0")
    argv += ("-l", str(seconds), "-f", "m", "--", "-k", ",".join(_KEYS))
    return Client(argv, address, seconds + 2.0, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read ``mbit_per_s``, the throughput, and ``netperf_seconds``, over which it was measured."""
    values = numbers(stdout, ("THROUGHPUT", "ELAPSED_TIME"), tool="netperf")
    texts = fields(stdout)
    if texts.get("THROUGHPUT_UNITS") != _UNIT or texts.get("PROTOCOL") != "TCP":
        raise unreadable("netperf", f"it is not TCP in {_UNIT}", stdout)
    metrics = {"mbit_per_s": values["THROUGHPUT"], "netperf_seconds": values["ELAPSED_TIME"]}
    return Measurement({}, metrics)
