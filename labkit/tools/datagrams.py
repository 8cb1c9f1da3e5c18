"""UDP datagrams at a set rate, numbered, and the sink in which they end.

The generator is sockperf's mode ``throughput``: an open loop that keeps to a schedule, spinning on
its CPU in between, and sends at once what is late, so that the mean rate is the requested one
unless the CPU is exhausted. A datagram begins with its number (8 bytes in network byte order, from
1 on), 2 bytes of flags and 4 of its length. The tool first sleeps for two seconds, which
`Trial.prepare` lets happen before the window. Options that it rejects end with status 0, so only a
result counts as success.

The sink is a socket that drops everything by a filter, and so counts it: no answer goes out, no
datagram is queued, no process wakes up. It needs neither firewall rules, which a clean host must
not have, nor an action of ``tc`` that not every kernel has. Its count is the column
``socket_drops`` of the evidence; `watch` counts for a part of the window.
"""

from __future__ import annotations

import re
from functools import partial

from labkit.errors import UsageError
from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement, Prestart, python
from labkit.tools.parsing import NOT_REACHED, REACHED, json_in, reading

#: Payloads that the tool can send in one Ethernet frame: its header, and what is left of 1,500.
_SIZES = range(14, 1473)
#: Slept before, and waited after, in seconds; and what it has printed when it begins to sleep.
_BEFORE, _AFTER = 2.0, 0.1
_SLEEPS = "Warmup stage"
#: Left out at the end of what is sent where a rate is measured, in seconds.
_END = 0.2
#: Bytes on the wire around a UDP payload: UDP, IP, Ethernet with its check sum, preamble and gap.
_AROUND, _PREAMBLE_AND_GAP, _SMALLEST = 8 + 20 + 18, 20, 64
_TOTAL = re.compile(
    r"^sockperf: Total of (\d+) messages sent in (\d+\.\d{3}) sec"
    r"(?: \((\d+) messages skipped\))?\s*$",
    re.MULTILINE,
)
_LAST = re.compile(
    r"^sockperf: Summary: Message Rate is (\d+) \[msg/sec\].*\n"
    r"sockperf: Summary: BandWidth is \d+\.\d+ MBps",
    re.MULTILINE,
)


def probe(host: Host) -> str:
    """Return sockperf's version on the host; raise `ToolMissing` where it is not."""
    return sockperf.probe(host)


def line_rate(size: int, bits_per_s: float = 1e9) -> float:
    """Return how many datagrams per second with `size` bytes of payload fill an Ethernet link.

    Each frame also takes its preamble and the gap after it, so that 1,454 bytes at 1 Gbit/s are
    82,237 per second and not the 83,333 of the frames alone.
    """
    frame = max(size + _AROUND, _SMALLEST) + _PREAMBLE_AND_GAP
    return bits_per_s / (8 * frame)


def send(address: str, *, rate: int, size: int, seconds: int, port: int) -> Client:
    """Return the generator: numbered datagrams of `size` bytes at a constant rate, one way.

    The tool's unit of time is whole seconds. A rate that fell short by more than 1 % is flagged.
    """
    if size not in _SIZES:
        raise UsageError(f"{size} bytes are no payload of one frame", remedy="14 to 1472 bytes")
    argv: tuple[str, ...] = ("sockperf", "throughput", "-i", address, "-p", str(port))
    argv += ("--mps", str(rate), "-m", str(size), "-t", str(seconds))
    prestart, reader = Prestart(_BEFORE, _SLEEPS), partial(parse, rate=rate)
    return Client(argv, address, _BEFORE + seconds + _AFTER, reader, prestart=prestart)


def parse(stdout: str, log: str = "", *, rate: int | None = None) -> Measurement:
    """Read ``sent``, ``sent_per_s`` and ``send_seconds``; ``messages`` is the number sent."""
    text = sockperf.plain(stdout)
    with reading("sockperf", text):
        total = _TOTAL.search(text)
        last = _LAST.search(text)
        if total is None or last is None:
            raise ValueError("there is no total of datagrams sent")
        sent, seconds = int(total[1]), float(total[2])
        reached = sent / seconds
        if abs(reached - float(last[1])) > 0.01 * reached + 2:
            raise ValueError(f"{sent} messages in {seconds} s are not {last[1]} per second")
    flags = []
    if rate is not None and reached < REACHED * rate:
        flags.append(f"{NOT_REACHED}: {reached:,.0f} of {rate:,} datagrams a second")
    if total[3]:
        flags.append(f"{total[3]} datagrams were not sent in their turn")
    metrics = {"sent": float(sent), "sent_per_s": reached, "send_seconds": seconds}
    return Measurement({}, metrics, sent, tuple(flags))


def sink(port: int) -> Workload:
    """Return the sink, which is placed on the generator, before the chain that sends there."""
    return Workload(python("datagram_sink", "hold", str(port)), port, image="python")


def watch(sink: str, pid: int, seconds: float, settle: float = 0.2) -> Client:
    """Return a client that counts what a sink (a process) takes while `send` sends to it.

    A chain that cannot keep up goes on emptying its queues once nothing is sent any more: what
    arrives then is not part of its rate. Until its queues are full it takes in more than it
    carries: `settle` seconds. The kernel's count and the clock are read twice in between, while a
    prepared generator sends for so many seconds from the beginning of the window. Then the client
    waits until nothing arrives any more, so that all that was sent has arrived or is lost.
    """
    middle = seconds - settle - _END
    if not (settle > 0 and middle > 0):
        raise UsageError(
            f"nothing is left of {seconds:g} s to count in",
            why=f"{settle:g} s are left out at the beginning and {_END:g} s at the end",
            remedy="send for longer",
        )
    parts = (f"{part:.2f}" for part in (settle, middle, _END))
    argv = python("datagram_sink", "count", str(pid), *parts)
    return Client(argv, sink, seconds + _AFTER, parse_watch)


def parse_watch(stdout: str, log: str = "") -> Measurement:
    """Read ``packets_per_s`` between the two counts of `watch`."""
    with reading("the sink's counter", stdout):
        (began, before), (ended, after) = json_in(stdout)["looks"]
        if len(before) != 1 or set(before) != set(after):
            raise ValueError(f"the sink did not run all the time: {before} before, {after} after")
        (inode,) = before
        taken = (after[inode] - before[inode]) % 2**32  # the kernel's counter has 32 bits
        rate = taken * 1e9 / (ended - began)
        if rate < 0:
            raise ValueError("its times are not in order")
    return Measurement({}, {"packets_per_s": rate})
