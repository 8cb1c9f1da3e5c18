"""sockperf: ping-pong over UDP with the time of every message.

The client runs for whole seconds: it sleeps for two, leaves out 400 ms of warm-up and 50 ms at the
end, and logs every round trip of the rest. A number of messages is therefore requested as a
duration that certainly holds them, and so many are kept, spread evenly over the run.
"""

import math
import re
from functools import partial

import numpy as np

from labkit.placement import Workload
from labkit.tools.base import Client, Measurement, one_of, prober
from labkit.tools.parsing import flag, paused, plain, reading

TOOL, PORT = "sockperf", 11111
#: How an end waits for a packet: it sleeps, it polls, or the socket polls, which asks the device
#: for 50 us before the thread sleeps. With its options, and an upper bound of the mean round trip.
WAITS = {
    "block": ((), 100e-6),
    "spin": (("--nonblocked",), 60e-6),
    "busy_poll": (("--lls", "50"), 100e-6),
}
#: Left out by the tool itself at the beginning and at the end of its run.
WARM_UP_NS, COOL_DOWN_NS = 400_000_000, 50_000_000
_ROW = re.compile(r"\d+(?:, *\d+\.\d{9}){2}(?:,.*)?", re.ASCII)
_COUNTS = (
    r"\[Total Run\].*?SentMessages=(\d+); ReceivedMessages=\d+.*"
    r"\[Valid Duration\].*?SentMessages=(\d+); ReceivedMessages=(\d+).*"
    r"dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)"
)

probe = prober(r"(\d+\.\d+\S*)", TOOL, "--version")


def server(wait: str) -> Workload:
    """Return the echo server; it waits as its client does, as both ends did in the paper."""
    one_of("way to wait", wait, WAITS)
    return Workload((*f"sockperf server -i 0.0.0.0 -p {PORT}".split(), *WAITS[wait][0]), PORT)


def duration(messages: int, wait: str) -> int:
    """Return the whole seconds of a run that certainly holds so many messages."""
    return max(1, math.ceil((WARM_UP_NS + COOL_DOWN_NS) / 1e9 + messages * WAITS[wait][1]))


def ping_pong(address: str, *, messages: int, size: int, wait: str) -> Client:
    """Return the client: `messages` round trips of `size` bytes (14 or more), one at a time."""
    one_of("way to wait", wait, WAITS)
    seconds = duration(messages, wait)
    argv = f"sockperf ping-pong -i {address} -p {PORT} -m {size} -t {seconds}".split()
    argv += [*WAITS[wait][0], "--full-log", "{log}"]
    reader = partial(parse, messages=messages)
    return Client(tuple(argv), address, seconds + 2.25, reader, log_rows=messages)


def parse(stdout: str, log: str = "", *, messages: int = 0) -> Measurement:
    """Read ``rtt_ns`` from sending to receiving (the tool's own summary shows half of it)."""
    with reading(TOOL, stdout, log, needs="sockperf 3.5"):
        result = re.search(_COUNTS, plain(stdout), re.DOTALL)
        _, head, table = log.partition("packet, txTime(sec), rxTime(sec)")
        if not result or not head:
            raise ValueError("sockperf printed no complete result: is the server reachable?")
        total, valid, back, dropped, duplicated, reordered = map(int, result.groups())
        lines = table.partition("\n")[2].partition("-----")[0].splitlines()
        wrong = [line for line in lines if not _ROW.fullmatch(line)]
        if wrong:
            raise ValueError(f"not two times in seconds with nine digits: {wrong[0]!r}")
        # As integers: a float cannot hold a time since 1970 in ns.
        times = [line.replace(".", "").split(",")[1:3] for line in lines]
        sent, received = np.array(times, dtype=np.int64).T
        if (received <= sent).any():
            raise ValueError("a round trip is not positive")
        if valid - back > dropped + 1:
            raise ValueError(f"{back} of {valid} messages came back, and {dropped} dropped")
    rtt = (received - sent)[: messages or None]
    flags = flag(f"short: {len(rtt)} of {messages} messages", len(rtt) < messages) + paused(sent)
    losses = f"lossy: {dropped} dropped, {duplicated} duplicated, {reordered} reordered"
    flags += flag(losses, dropped or duplicated or reordered)
    metrics = {"dropped": float(dropped), "valid_messages": float(back)}
    return Measurement({"rtt_ns": rtt}, metrics, total, flags)
