"""sockperf: ping-pong over UDP or TCP with the time of every message.

The client of version 3.7 runs for whole seconds, of which it leaves out 400 ms of warm-up at the
start and 50 ms at the end; before them it sleeps for two seconds. A number of messages is therefore
requested as a duration that certainly holds them, and so many of the valid round trips are kept,
spread evenly over the run.
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
from labkit.tools.base import Client, Measurement, check_integers, one_of
from labkit.tools.parsing import Column, paused, too_few, version

PORT = 11111
PROTOCOLS = ("udp", "tcp")
#: How an end waits for a packet: it sleeps, it polls, or the socket polls.
WAITS = ("block", "spin", "busy_poll")
#: Microseconds that SO_BUSY_POLL asks the device for, before the thread sleeps.
BUSY_POLL_US = 50
#: Left out by the tool itself at the beginning and at the end of its run, in ns.
WARM_UP_NS, COOL_DOWN_NS = 400_000_000, 50_000_000
#: The same together, and what is slept before it, in seconds.
_TRIMMED, _ASLEEP = (WARM_UP_NS + COOL_DOWN_NS) / 1e9, 2.25
#: An upper bound of the mean round trip, in seconds.
_BUDGET = {"block": 100e-6, "spin": 60e-6, "busy_poll": 100e-6}
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


def plain(text: str) -> str:
    """Return sockperf's output without its colours."""
    return _COLOURS.sub("", text)


def probe(host: Host) -> str:
    """Return sockperf's version on the host."""
    return plain(version(host, ("sockperf", "--version"), r"(\d+\.\d+\S*)"))


def _options(wait: str, protocol: str) -> tuple[str, ...]:
    one_of("way to wait", wait, WAITS)
    one_of("protocol", protocol, PROTOCOLS)
    waiting = {"block": (), "spin": ("--nonblocked",), "busy_poll": ("--lls", str(BUSY_POLL_US))}
    return (*waiting[wait], *(("--tcp",) if protocol == "tcp" else ()))


def server(wait: str, *, protocol: str = "udp", port: int = PORT) -> Workload:
    """Return the echo server; it waits as its client does, as both ends did in the paper."""
    argv = ("sockperf", "server", "-i", "0.0.0.0", "-p", str(port), *_options(wait, protocol))
    return Workload(argv, port, protocol)


def duration(messages: int, wait: str) -> int:
    """Return the whole seconds of a run that certainly holds so many messages."""
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
    address, port : str, int
        The server's.
    messages : int
        Round trips to keep, spread evenly over the run; flagged when there were fewer.
    size : int
        Payload in bytes, at least 14 (the tool's own header).
    wait : {"block", "spin", "busy_poll"}
        How the client waits for the echo.
    protocol : {"udp", "tcp"}
        As the server's; the tool sets TCP_NODELAY.
    """
    check_integers("sockperf", messages=messages)
    check_integers("sockperf", least=14, size=size)
    seconds = duration(messages, wait)
    argv: tuple[str, ...] = ("sockperf", "ping-pong", "-i", address, "-p", str(port))
    argv += ("-m", str(size), "-t", str(seconds), *_options(wait, protocol), "--full-log", "{log}")
    reader = partial(parse, messages=messages)
    return Client(argv, address, seconds + _ASLEEP, reader, log_rows=messages)


def parse(stdout: str, log: str, *, messages: int | None = None) -> Measurement:
    """Read the tool's summary and the file of ``--full-log``; keep the first `messages`.

    Returns
    -------
    Measurement
        ``rtt_ns``: from sending to receiving, in ns (the tool's own summary shows half of it).
    """
    text = plain(stdout)
    total = re.search(r"\[Total Run\].*?SentMessages=(\d+); ReceivedMessages=(\d+)", text)
    valid = re.search(r"\[Valid Duration\].*?ReceivedMessages=(\d+)", text)
    losses = re.search(
        r"dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)",
        text,
    )
    head = log.find("packet, txTime(sec), rxTime(sec)")
    if not total or not valid or not losses or head < 0:
        raise ToolOutput(
            "sockperf printed no complete result",
            why=(text.strip() or log.strip() or "(no output)")[-600:],
            remedy="see the trial's tool.out; is the server reachable?",
            evidence={"stdout": text[-4000:], "log": log[:2000]},
        )
    sent, rtt = _round_trips(log[head:])
    rtt = rtt[:messages]
    flags = (*too_few(len(rtt), messages), *paused(sent))
    dropped, duplicated, reordered = (int(count) for count in losses.groups())
    if dropped or duplicated or reordered:
        flags += (f"lossy: {dropped} dropped, {duplicated} duplicated, {reordered} reordered",)
    metrics = {"dropped": float(dropped), "valid_messages": float(valid[1])}
    return Measurement({"rtt_ns": rtt}, metrics, int(total[1]), flags)


def _round_trips(table: str) -> tuple[Column, Column]:
    """Return tx and rx - tx of each row in ns, as integers: a float cannot hold both."""
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
            "cannot read sockperf's log", why=str(error), evidence={"log": body[:2000]}
        ) from None
    rtt = received - sent
    if (rtt <= 0).any():
        raise ToolOutput("sockperf's log has a round trip that is not positive", why=body[:400])
    return sent, rtt


def _nanoseconds(column: pd.Series[str]) -> Column:
    parts = column.str.strip().str.extract(r"^(\d+)\.(\d{9})$")
    if parts.isna().to_numpy().any():
        wrong = column[parts[0].isna()].iloc[0]
        raise ValueError(f"not a time in seconds with nine digits: {wrong!r}")
    seconds, fraction = (parts[index].astype("int64").to_numpy() for index in (0, 1))
    return np.asarray(seconds * 1_000_000_000 + fraction, dtype=np.int64)
