"""sockperf: ping-pong over UDP or TCP with the time of every message.

The client of version 3.7 runs for whole seconds, of which it leaves out 400 ms of warm-up at the
start and 50 ms at the end; before them it sleeps for two seconds. So a number of messages is asked
for as the seconds that surely hold them, and so many of the valid round trips are kept, spread
evenly over the run.
"""

from __future__ import annotations

import io
import math
import re
from functools import partial

import numpy as np
import pandas as pd

from labkit.errors import ToolOutput
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, one_of, whole
from labkit.tools.parsing import version

PORT = 11111
PROTOCOLS = ("udp", "tcp")
#: How an end waits for a packet: it sleeps, it asks again and again, or the socket does so.
WAITS = ("block", "spin", "busy_poll")
#: Microseconds that SO_BUSY_POLL asks the device for, before the thread sleeps.
BUSY_POLL_US = 50
#: Left out by the tool itself at both ends of its run, and slept before it, in seconds.
_TRIMMED, _ASLEEP = 0.45, 2.25
#: A round trip that is taken as certain not to be exceeded on average, in seconds.
_BUDGET = {"block": 100e-6, "spin": 60e-6, "busy_poll": 100e-6}


def probe(host: Host) -> str:
    """Return sockperf's version on the host; raise `ToolMissing` where it is not."""
    found = version(host, ("sockperf", "--version"), r"(\d+\.\d+\S*)")
    return re.sub(r"\x1b\[[\d;]*m", "", found)


def _waiting(wait: str) -> tuple[str, ...]:
    one_of("way to wait", wait, WAITS)
    options = {"block": (), "spin": ("--nonblocked",), "busy_poll": ("--lls", str(BUSY_POLL_US))}
    return options[wait]


def server(wait: str, *, protocol: str = "udp", port: int = PORT) -> Workload:
    """Return the echo server; it waits as its client does, as both ends did in the paper."""
    argv = ("sockperf", "server", "-i", "0.0.0.0", "-p", str(port), *_waiting(wait))
    return Workload((*argv, *_over(protocol)), port, protocol)


def _over(protocol: str) -> tuple[str, ...]:
    one_of("protocol", protocol, PROTOCOLS)
    return ("--tcp",) if protocol == "tcp" else ()


def duration(messages: int, wait: str) -> int:
    """Return the whole seconds of a run that surely holds so many messages."""
    return max(1, math.ceil(_TRIMMED + messages * _BUDGET[wait]))


def ping_pong(
    address: str,
    *,
    messages: int,
    size: int,
    wait: str,
    protocol: str = "udp",
    port: int = PORT,
) -> Client:
    """Return the client: one message at a time, each round trip logged.

    Parameters
    ----------
    address : str
        The server's address.
    messages : int
        Round trips to keep, spread evenly over the run; flagged when there were fewer.
    size : int
        Payload in bytes, at least 14 (the tool's own header).
    wait : {"block", "spin", "busy_poll"}
        How the client waits for the echo.
    protocol : {"udp", "tcp"}
        What carries the messages, of the server too; the tool has TCP delay none of them.
    """
    whole("sockperf", messages=messages)
    whole("sockperf", least=14, size=size)
    seconds = duration(messages, wait)
    argv: tuple[str, ...] = ("sockperf", "ping-pong", "-i", address, "-p", str(port))
    argv += ("-m", str(size))
    argv += ("-t", str(seconds), *_waiting(wait), *_over(protocol), "--full-log", "{log}")
    reader = partial(parse, messages=messages)
    return Client(argv, address, seconds + _ASLEEP, reader, log_rows=messages)


def parse(stdout: str, log: str, *, messages: int | None = None) -> Measurement:
    """Read the tool's summary and full log.

    Parameters
    ----------
    stdout, log : str
        What the tool printed, and the file that ``--full-log`` wrote.
    messages : int, optional
        Keep the first so many round trips only.

    Returns
    -------
    Measurement
        ``rtt_ns``: from sending to receiving, in ns (the tool's own summary shows half of it).

    Raises
    ------
    ToolOutput
        There is no summary or no packet, with what there was.
    """
    plain = re.sub(r"\x1b\[[\d;]*m", "", stdout)
    total = re.search(r"\[Total Run\].*?SentMessages=(\d+); ReceivedMessages=(\d+)", plain)
    valid = re.search(r"\[Valid Duration\].*?ReceivedMessages=(\d+)", plain)
    losses = re.search(
        r"dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)",
        plain,
    )
    head = log.find("packet, txTime(sec), rxTime(sec)")
    if not total or not valid or not losses or head < 0:
        raise ToolOutput(
            "sockperf printed no complete result",
            why=(plain.strip() or log.strip() or "(no output)")[-600:],
            remedy="see the trial's tool.out; is the server reachable?",
            evidence={"stdout": plain[-4000:], "log": log[:2000]},
        )
    rtt = _round_trips(log[head:])
    kept = rtt[:messages]
    flags = []
    if messages is not None and len(kept) < messages:
        flags.append(f"short: {len(kept)} of {messages} messages")
    dropped, duplicated, reordered = (int(number) for number in losses.groups())
    if dropped or duplicated or reordered:
        flags.append(f"lossy: {dropped} dropped, {duplicated} duplicated, {reordered} reordered")
    metrics = {"dropped": float(dropped), "valid_messages": float(valid[1])}
    return Measurement({"rtt_ns": kept}, metrics, int(total[1]), tuple(flags))


def _round_trips(table: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return rx - tx of each row in ns, computed in integers: a float cannot hold both."""
    body = table.partition("\n")[2].partition("-----")[0]
    if not body.strip():
        raise ToolOutput("sockperf's log has no packet", why=table[:400])
    try:
        frame = pd.read_csv(
            io.StringIO(body), header=None, usecols=[1, 2], dtype=str, skipinitialspace=True
        )
        sent, received = (_nanoseconds(frame[column]) for column in (1, 2))
    except (ValueError, TypeError) as error:
        raise ToolOutput(
            "cannot read sockperf's log",
            why=str(error),
            evidence={"log": body[:2000]},
        ) from None
    rtt = received - sent
    if (rtt <= 0).any():
        raise ToolOutput("sockperf's log has a round trip that is not positive", why=body[:400])
    return rtt


def _nanoseconds(column: pd.Series[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    parts = column.str.strip().str.extract(r"^(\d+)\.(\d{9})$")
    if parts.isna().to_numpy().any():
        raise ValueError(
            f"not a time in seconds with nine digits: {column[parts[0].isna()].iloc[0]!r}"
        )
    whole, fraction = (parts[index].astype("int64").to_numpy() for index in (0, 1))
    return np.asarray(whole * 1_000_000_000 + fraction, dtype=np.int64)
