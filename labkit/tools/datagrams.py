"""UDP datagrams at a set rate, numbered; the hops that forward them; and the sink at their end.

The generator is sockperf's mode ``throughput``: an open loop that spins until a datagram is due and
sends at once what is late. The sink drops everything by a filter of its socket, which counts
(``socket_drops`` of the evidence), and not by firewall rules, which a clean host must not have.
"""

import re
from functools import partial

from labkit.errors import UsageError
from labkit.placement import Workload
from labkit.tools import base
from labkit.tools.base import Client, Measurement, python

#: Slept before, waited after, and not counted at the end of sending, in seconds.
_BEFORE, _AFTER, _END = 2.0, 0.1, 0.2
_TOTAL = r"^sockperf: Total of (\d+) messages sent in (\d+\.\d{3}) sec(?: \((\d+) .*skipped\))?\s*$"
_RATE = r"^sockperf: Summary: Message Rate is (\d+) \[msg/sec\].*\nsockperf: .* \d+\.\d+ MBps"

probe = base.prober(r"socat version (\S+)", "socat", "-V")


def line_rate(size: int, bits_per_s: float = 1e9) -> float:
    """Return how many datagrams per second with `size` bytes of payload fill an Ethernet link."""
    # 46 bytes are around it (UDP, IP, Ethernet with its check sum) in a frame of at least 64, and
    # 20 are preamble and gap: 1,454 bytes at 1 Gbit/s are 82,237 a second, and not 83,333.
    return bits_per_s / (8 * (max(size + 46, 64) + 20))


def send(address: str, *, rate: int, size: int, seconds: int, port: int) -> Client:
    """Return the generator: datagrams of `size` bytes at a constant rate, for whole seconds."""
    if not 14 <= size <= 1472:
        raise UsageError(f"{size} bytes are no payload of one frame", remedy="14 to 1472 bytes")
    argv = f"sockperf throughput -i {address} -p {port} --mps {rate} -m {size} -t {seconds}".split()
    reader, whole = partial(parse, rate=rate), _BEFORE + seconds + _AFTER
    # It first sleeps, before the window (`Trial.prepare`), and prints the text as it begins to.
    return Client(tuple(argv), address, whole, reader, prestart=(_BEFORE, "Warmup stage"))


def parse(stdout: str, log: str = "", *, rate: int = 0) -> Measurement:
    """Read ``sent``, ``sent_per_s`` and ``send_seconds``; ``messages`` is the number sent."""
    text = base.plain(stdout)
    with base.reading("sockperf", text):
        ((total, time, skipped),) = re.findall(_TOTAL, text, re.MULTILINE)
        (last,) = re.findall(_RATE, text, re.MULTILINE)
        sent, seconds = int(total), float(time)
        reached = sent / seconds
        if abs(reached - float(last)) > 0.01 * reached + 2:
            raise ValueError(f"{sent} messages in {seconds} s are not {last} per second")
    flags = base.shortfall(reached, rate)
    flags += base.flag(f"{skipped} datagrams were not sent in their turn", skipped)
    metrics = {"sent": float(sent), "sent_per_s": reached, "send_seconds": seconds}
    return Measurement({}, metrics, sent, flags)


def forwarder(port: int, next_address: str, next_port: int) -> Workload:
    """Return a hop: what arrives at its UDP port goes on to the next, in new datagrams."""
    # It takes any payload of an Ethernet frame. No end connects: UDP-LISTEN would keep to the first
    # sender or fork for each, and with UDP4 a next hop that is not up yet would end the process.
    ends = (f"UDP4-RECV:{port}", f"UDP4-SENDTO:{next_address}:{next_port}")
    return Workload(("socat", "-u", "-b", "1500", *ends), port, image="net")


def sink(port: int) -> Workload:
    """Return the sink, which is placed on the generator, before the chain that sends there."""
    return Workload(python("datagram_sink", "hold", port=port), port, image="python")


def watch(sink: str, pid: int, seconds: float, settle: float = 0.2) -> Client:
    """Return a client that counts what a sink (a process) takes while `send` sends to it.

    Until its queues are full (`settle` seconds) a chain takes in more than it carries, and later it
    empties them: its rate is counted in between.
    """
    middle = seconds - settle - _END
    if not (settle > 0 and middle > 0):
        what = f"nothing is left of {seconds:g} s without {settle:g} s before and {_END:g} s after"
        raise UsageError(what, remedy="send for longer")
    argv = python("datagram_sink", "count", pid=pid, settle=settle, middle=middle, end=_END)
    return Client(argv, sink, seconds + _AFTER, parse_watch)


def parse_watch(stdout: str, log: str = "") -> Measurement:
    """Read ``packets_per_s`` between the two counts of `watch`."""
    with base.reading("the sink's counter", stdout):
        (began, before), (ended, after) = base.json_in(stdout)["looks"]
        if len(before) != 1 or set(before) != set(after) or began >= ended:
            raise ValueError(f"the sink did not run all the time: {before} before, {after} after")
        (inode,) = before
        taken = (after[inode] - before[inode]) % 2**32  # the kernel's counter has 32 bits
    return Measurement({}, {"packets_per_s": taken * 1e9 / (ended - began)})
