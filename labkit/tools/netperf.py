"""Netperf: TCP_STREAM between a client and its server, in Mbit/s (10^6 bits).

The server (netserver) and the client hold a control connection, which carries nothing while the
data connection, whose port is set too, is measured.
"""

from __future__ import annotations

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, whole
from labkit.tools.parsing import fields, numbers, unreadable, version

PORT = 12865
_UNIT = "10^6bits/s"
#: What the client is asked to print, a line each.
_KEYS = ("THROUGHPUT", "THROUGHPUT_UNITS", "ELAPSED_TIME", "LOCAL_SEND_SIZE", "PROTOCOL")


def probe(host: Host) -> str:
    """Return netperf's version on the host; raise `ToolMissing` where it is not."""
    return version(
        host,
        ("netperf", "-V"),
        r"Netperf version (\S+)",
        install="netperf (Debian has it in its component non-free)",
    )


def server(*, port: int = PORT, image: str = "services") -> Workload:
    """Return netserver in the foreground; it serves any number of clients, a process each."""
    argv = ("netserver", "-D", "-4", "-p", str(port))
    return Workload(argv, port, protocol="tcp", image=image)


def tcp_stream(address: str, *, seconds: int, port: int = PORT) -> Client:
    """Return the client that sends one TCP stream.

    Parameters
    ----------
    address : str
        The server's address.
    seconds : int
        How long, in whole seconds, the tool's own unit.
    port : int
        The server's port.
    """
    whole("netperf", seconds=seconds)
    argv: tuple[str, ...] = ("netperf", "-4", "-H", address, "-p", str(port))
    argv += ("-t", "TCP_STREAM", "-P", "0")
    argv += ("-l", str(seconds), "-f", "m", "--", "-k", ",".join(_KEYS))
    return Client(argv, address, seconds + 2.0, parse)


def parse(stdout: str, log: str = "") -> Measurement:
    """Read the throughput.

    Returns
    -------
    Measurement
        ``mbit_per_s``; ``netperf_seconds``, that were measured.

    Raises
    ------
    ToolOutput
        The output is not whole, or in another unit.
    """
    values = numbers(stdout, ("THROUGHPUT", "ELAPSED_TIME"), tool="netperf")
    texts = fields(stdout)
    if texts.get("THROUGHPUT_UNITS") != _UNIT or texts.get("PROTOCOL") != "TCP":
        raise unreadable("netperf", f"it is not TCP in {_UNIT}", stdout)
    metrics = {"mbit_per_s": values["THROUGHPUT"], "netperf_seconds": values["ELAPSED_TIME"]}
    return Measurement({}, metrics)
