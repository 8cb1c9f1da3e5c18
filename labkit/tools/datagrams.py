"""UDP datagrams at a set rate, numbered, and the sink in which they end.

The generator is sockperf's client of version 3.7 in the mode ``throughput``: it sends in an open
loop, waits for no answer, and counts what it sent. It keeps to a schedule, spinning on its CPU in
between: what was late for any reason follows at once, so that the mean rate is the one that was set
unless the CPU is exhausted. Each datagram begins with `HEADER`, in network byte order; numbers
begin at 1, and nothing is sent to a single address before. It sleeps for two seconds first, which
no option shortens: `Trial.prepare` has it do that before its window. What it refuses ends with
status 0, so that only a result counts as one.

(trafgen would send frames past the host's own network stack: the addresses of the next hop and the
check sums go into its configuration, its counters in a payload have one byte, and it sets the
host's interrupts and buffers without any journal. Nor is it faster here: at a set rate it sends one
frame a system call too.)

The sink is a socket that drops all it gets by a filter of its own, and so counts it: no answer goes
out, no datagram is queued, no process wakes up. It needs neither firewall rules, which a clean host
must not have, nor an action of ``tc``, of which the one that drops (gact) is not in every kernel.
Its count is the column ``socket_drops`` of the mechanism evidence, with the sink's name before it
unless it was placed first; `watch` counts for a part of the window.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from labkit.errors import ToolOutput, UsageError
from labkit.hosts import Host, script, sockets
from labkit.placement import Workload
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement, Prestart, python, whole
from labkit.tools.parsing import unreadable

#: What a datagram begins with: its number from 1 on, flags, and its length.
HEADER = np.dtype([("sequence", ">u8"), ("flags", ">u2"), ("length", ">u4")])
#: So many messages a second are the most that the tool can be asked for.
_MOST = 1 << 30
#: What fits into an Ethernet frame of 1,500 bytes beside the headers of IP and UDP.
_LARGEST = 1472
#: The rate was not reached that fell short by more than this share.
_SHORT = 0.01
#: Slept before, and waited after, in seconds; and what it has printed when it begins to sleep.
_BEFORE, _AFTER = 2.0, 0.1
_SLEEPS = "Warmup stage"
#: Left out at both ends of what is sent, where a rate is looked at, in seconds.
_SETTLED = 0.2
#: Bytes on the wire around a UDP payload: UDP, IP, Ethernet with its check sum, preamble and gap.
_AROUND, _PREAMBLE_AND_GAP, _SMALLEST = 8 + 20 + 18, 20, 64

# Nothing arrives any more once the sink's counts stay as they are for a while, of 10 s at most.
_DRAINED = """
tries=0 then= now=$(sockets "$1")
while [ "$now" != "$then" ] && [ "$tries" -lt 100 ]; do
    sleep 0.1
    tries=$((tries + 1)) then=$now now=$(sockets "$1")
done
"""


def probe(host: Host) -> str:
    """Return sockperf's version on the host; raise `ToolMissing` where it is not."""
    return sockperf.probe(host)


def line_rate(size: int, bits_per_s: float = 1e9) -> float:
    """Return how many datagrams a second fill an Ethernet link.

    Parameters
    ----------
    size : int
        UDP payload in bytes.
    bits_per_s : float
        The link's rate. Each frame takes its preamble and the gap after it too, so that 1,454 bytes
        at 1 Gbit/s are 82,237 a second and not the 83,333 of the frames alone.
    """
    frame = max(size + _AROUND, _SMALLEST) + _PREAMBLE_AND_GAP
    return bits_per_s / (8 * frame)


def send(address: str, *, rate: int, size: int, seconds: int, port: int) -> Client:
    """Return the generator: numbered datagrams at a constant rate, one way.

    Parameters
    ----------
    address, port : str, int
        The first hop.
    rate : int
        Datagrams a second; a trial that fell short of it by more than 1 % is flagged.
    size : int
        UDP payload in bytes: the tool's header of 14 bytes at least, one frame at most.
    seconds : int
        How long, in whole seconds, the tool's own unit.
    """
    whole("sockperf", rate=rate, size=size, seconds=seconds, port=port)
    if rate > _MOST or port >= 1 << 16:
        raise UsageError(f"sockperf: invalid rate or port: rate={rate}, port={port}")
    if not HEADER.itemsize <= size <= _LARGEST:
        raise UsageError(
            f"sockperf: invalid payload size: {size} bytes",
            remedy=f"from {HEADER.itemsize} to {_LARGEST} bytes",
        )
    argv: tuple[str, ...] = ("sockperf", "throughput", "-i", address, "-p", str(port))
    argv += ("--mps", str(rate), "-m", str(size), "-t", str(seconds))
    length, reader = _BEFORE + seconds + _AFTER, partial(parse, rate=rate)
    return Client(argv, address, length, reader, prestart=Prestart(_BEFORE, _SLEEPS))


def parse(stdout: str, log: str = "", *, rate: int | None = None) -> Measurement:
    """Read how many datagrams were sent, and how fast.

    Parameters
    ----------
    stdout, log : str
        What the tool printed; it writes no log.
    rate : int, optional
        What was asked for, a second.

    Returns
    -------
    Measurement
        ``sent``, ``sent_per_s`` and ``send_seconds``; ``messages`` is what was sent.

    Raises
    ------
    ToolOutput
        There is no result, with what there was.
    """
    plain = re.sub(r"\x1b\[[\d;]*m", "", stdout)
    total = re.search(
        r"^sockperf: Total of (\d+) messages sent in (\d+\.\d{3}) sec"
        r"(?: \((\d+) messages skipped\))?\s*$",
        plain,
        re.MULTILINE,
    )
    last = re.search(r"^sockperf: Summary: BandWidth is \d+\.\d+ MBps", plain, re.MULTILINE)
    if not total or not last or not float(total[2]):
        raise unreadable("sockperf", "there is no total of datagrams sent", plain)
    sent, seconds = int(total[1]), float(total[2])
    reached = sent / seconds
    flags = []
    if rate is not None and reached < (1 - _SHORT) * rate:
        flags.append(f"rate not reached: {reached:,.0f} of {rate:,} datagrams a second")
    if total[3]:
        flags.append(f"{total[3]} datagrams were not sent in their turn")
    metrics = {"sent": float(sent), "sent_per_s": reached, "send_seconds": seconds}
    return Measurement({}, metrics, sent, tuple(flags))


def sink(port: int, *, image: str = "python") -> Workload:
    """Return the sink: it takes what arrives at a port, drops it, and lets the kernel count.

    On the generator it is placed as any server is, before the chain whose last hop sends there, and
    on the generator's CPU, which it does not use::

        trial.serve(sink(port), bare("clean"), name="sink", at="generator",
                    cpus=trial.cpus("generator"))
    """
    return Workload(python("datagram_sink", str(port)), port, image=image)


def watch(sink: str, pid: int, seconds: int) -> Client:
    """Return a client that counts what a sink takes while `send` sends to it, and no longer.

    A chain that cannot keep up goes on emptying its queues once nothing is sent any more: what
    arrives then is no part of its rate. It looks twice, at the kernel's count and the clock; the
    generator is one that was prepared, and sends from the beginning of the window. Then it waits
    until nothing arrives any more, so that all that was sent has arrived or is lost.

    Parameters
    ----------
    sink : str
        The sink's address.
    pid : int
        Its process.
    seconds : int
        For how long the generator sends.
    """
    text = f'{sockets.SHOW}\nlook() {{ date +%s%N; sockets "$1"; echo @@; }}\n'
    text += 'sleep "$2"; look "$1"; sleep "$3"; look "$1"; sleep "$2"\n' + _DRAINED
    middle = seconds - 2 * _SETTLED
    argv = script(text, str(pid), f"{_SETTLED:.2f}", f"{middle:.2f}")
    return Client(tuple(argv), sink, seconds + _AFTER, parse_watch)


def parse_watch(stdout: str, log: str = "") -> Measurement:
    """Read the two measurements of `watch`.

    Returns
    -------
    Measurement
        ``packets_per_s``, between the two.
    """
    looks = [part.strip() for part in stdout.split("@@") if part.strip()]
    clocks = [look.partition("\n")[0] for look in looks]
    if len(looks) != 2 or not all(clock.isdigit() for clock in clocks):
        raise unreadable("the sink's counters", "there are not two measurements", stdout)
    elapsed = int(clocks[1]) - int(clocks[0])
    taken = counted(looks[0], looks[1])
    if elapsed <= 0:
        raise unreadable("the sink's counters", "the clock went back", stdout)
    return Measurement({}, {"packets_per_s": taken * 1e9 / elapsed})


def counted(before: str, after: str) -> int:
    """Return how many datagrams a sink took between two outputs of `labkit.hosts.sockets.SHOW`.

    Raises
    ------
    ToolOutput
        A reading shows no socket, or another one: the sink was not there all the time.
    """
    first, then = sockets.drops(before), sockets.drops(after)
    if len(then) != 1 or set(first) != set(then):
        raise ToolOutput(
            "the sink did not run during the whole measurement",
            why=f"its sockets were {sorted(first)} before and {sorted(then)} after",
            evidence={"before": before[-2000:], "after": after[-2000:]},
        )
    return sockets.dropped_between(first, then)
