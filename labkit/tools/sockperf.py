"""sockperf: ping-pong over UDP or TCP with the time of every message.

The client runs for whole seconds: it sleeps for two, leaves out 400 ms of warm-up and 50 ms at the
end, and logs every round trip of the rest. A number of messages is therefore requested as a
duration that certainly holds them, and so many are kept, spread evenly over the run.
"""

from __future__ import annotations

import io
import math
import re
from functools import partial

import numpy as np
import pandas as pd

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, one_of
from labkit.tools.parsing import Column, paused, reading, too_few, version

TOOL, PORT = "sockperf", 11111
PROTOCOLS = ("udp", "tcp")
#: How an end waits for a packet, with its options: it sleeps, it polls, or the socket polls, which
#: asks the device for 50 us before the thread sleeps.
_WAITS = {"block": (), "spin": ("--nonblocked",), "busy_poll": ("--lls", "50")}
WAITS = tuple(_WAITS)
#: Left out by the tool itself at the beginning and at the end of its run, in ns.
WARM_UP_NS, COOL_DOWN_NS = 400_000_000, 50_000_000
#: The same together, and what is slept before it, in seconds.
_TRIMMED, _ASLEEP = (WARM_UP_NS + COOL_DOWN_NS) / 1e9, 2.25
#: An upper bound of the mean round trip, in seconds.
_BUDGET = {"block": 100e-6, "spin": 60e-6, "busy_poll": 100e-6}
_LOST = r"dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)"
_HEAD = "packet, txTime(sec), rxTime(sec)"


def plain(text: str) -> str:
    """Return sockperf's output without its colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def probe(host: Host) -> str:
    """Return sockperf's version on the host."""
    return plain(version(host, (TOOL, "--version"), r"(\d+\.\d+\S*)"))


def _options(wait: str, protocol: str) -> tuple[str, ...]:
    one_of("way to wait", wait, WAITS)
    one_of("protocol", protocol, PROTOCOLS)
    return (*_WAITS[wait], *(("--tcp",) if protocol == "tcp" else ()))


def server(wait: str, *, protocol: str = "udp") -> Workload:
    """Return the echo server; it waits as its client does, as both ends did in the paper."""
    argv = (TOOL, "server", "-i", "0.0.0.0", "-p", str(PORT), *_options(wait, protocol))
    return Workload(argv, PORT, protocol)


def duration(messages: int, wait: str) -> int:
    """Return the whole seconds of a run that certainly holds so many messages."""
    return max(1, math.ceil(_TRIMMED + messages * _BUDGET[wait]))


def ping_pong(
    address: str, *, messages: int, size: int, wait: str, protocol: str = "udp"
) -> Client:
    """Return the client: one message of `size` bytes (14 or more) at a time, each trip logged.

    So many messages are kept, spread evenly over the run; both ends wait alike.
    """
    options = _options(wait, protocol)
    seconds = duration(messages, wait)
    argv: tuple[str, ...] = (TOOL, "ping-pong", "-i", address, "-p", str(PORT), "-m", str(size))
    argv += ("-t", str(seconds), *options, "--full-log", "{log}")
    reader = partial(parse, messages=messages)
    return Client(argv, address, seconds + _ASLEEP, reader, log_rows=messages)


def parse(stdout: str, log: str = "", *, messages: int | None = None) -> Measurement:
    """Read ``rtt_ns`` from sending to receiving (the tool's own summary shows half of it)."""
    text = plain(stdout)
    with reading(TOOL, text, log, needs="sockperf 3.5"):
        total, valid, lost = (
            re.search(pattern, text)
            for pattern in (
                r"\[Total Run\].*?SentMessages=(\d+); ReceivedMessages=\d+",
                r"\[Valid Duration\].*?SentMessages=(\d+); ReceivedMessages=(\d+)",
                _LOST,
            )
        )
        if not total or not valid or not lost:
            raise ValueError("sockperf printed no complete result: is the server reachable?")
        _, head, table = log.partition(_HEAD)
        if not head:
            raise ValueError(f"its log has no column {_HEAD}")
        sent, rtt = _round_trips(table.partition("\n")[2].partition("-----")[0])
        dropped, duplicated, reordered = (int(count) for count in lost.groups())
        if int(valid[1]) - int(valid[2]) > dropped + 1:
            raise ValueError(f"{valid[2]} of {valid[1]} messages came back, and {dropped} dropped")
        metrics = {"dropped": float(dropped), "valid_messages": float(valid[2])}
        rtt = rtt[:messages]
        flags = (*too_few(len(rtt), messages), *paused(sent))
    if dropped or duplicated or reordered:
        flags += (f"lossy: {dropped} dropped, {duplicated} duplicated, {reordered} reordered",)
    return Measurement({"rtt_ns": rtt}, metrics, int(total[1]), flags)


def _round_trips(table: str) -> tuple[Column, Column]:
    """Return tx and rx - tx of each row in ns, as integers: a float cannot hold both."""
    frame = pd.read_csv(io.StringIO(table), header=None, usecols=[1, 2], dtype=str)
    times = []
    for column in (1, 2):
        text = frame[column].str.strip()
        if not (valid := text.str.fullmatch(r"\d+\.\d{9}").fillna(False)).all():
            wrong = text[~valid].iloc[0]
            raise ValueError(f"not a time in seconds with nine digits: {wrong!r}")
        times.append(text.str.replace(".", "").astype("int64").to_numpy())
    sent, received = times
    if (received <= sent).any():
        raise ValueError("a round trip is not positive")
    return np.asarray(sent), np.asarray(received - sent)
