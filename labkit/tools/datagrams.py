"""UDP datagrams at a set rate, numbered, and the sink in which they end.

The generator is sockperf's client of version 3.7 in the mode ``throughput``: an open loop that
waits for no answer and counts what it sent. It keeps to a schedule, spinning on its CPU in between:
what was late for any reason follows at once, so that the mean rate is the requested one unless the
CPU is exhausted. A datagram begins with its number (8 bytes in network byte order, from 1 on), 2
bytes of flags and 4 of its length. The tool first sleeps for two seconds, which no option shortens:
`Trial.prepare` lets that happen before the window. Options that it rejects end with status 0, so
only a result counts as success.

(trafgen would bypass the host's network stack: the addresses of the next hop and the checksums go
into its configuration, its counters in a payload have one byte, and it changes the host's
interrupts and buffers without a journal. Nor is it faster here: at a set rate it too sends one
frame per system call.)

The sink is a socket that drops everything by a filter, and so counts it: no answer goes out, no
datagram is queued, no process wakes up. It needs neither firewall rules, which a clean host must
not have, nor an action of ``tc``, of which the one that drops (gact) is not in every kernel. Its
count is the column ``socket_drops`` of the mechanism evidence, prefixed with the sink's name unless
it was placed first; `watch` counts for a part of the window.
"""

from __future__ import annotations

import re
from functools import partial

from labkit.errors import ToolOutput, UsageError
from labkit.hosts import Host, script, sockets
from labkit.placement import Workload
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement, Prestart, check_integers, python
from labkit.tools.parsing import NOT_REACHED, unreadable

#: Bytes of the tool's header.
_HEADER = 14
#: The highest rate that the tool accepts, in messages per second.
_MOST = 1 << 30
#: What fits into an Ethernet frame of 1,500 bytes with the headers of IP and UDP.
_LARGEST = 1472
#: A rate that falls short by more than this share was not reached.
_SHORT = 0.01
#: Slept before, and waited after, in seconds; and what it has printed when it begins to sleep.
_BEFORE, _AFTER = 2.0, 0.1
_SLEEPS = "Warmup stage"
#: Left out at the end of what is sent where a rate is measured, in seconds.
_END = 0.2
#: Bytes on the wire around a UDP payload: UDP, IP, Ethernet with its check sum, preamble and gap.
_AROUND, _PREAMBLE_AND_GAP, _SMALLEST = 8 + 20 + 18, 20, 64

# Waits until the sink's counts have not changed for 0.3 s, for 10 s at most: on a busy machine a
# hop may wait for its CPU for longer than 0.1 s.
_DRAIN = """
tries=0 same=0 now=$(sockets "$1")
while [ "$same" -lt 3 ] && [ "$tries" -lt 100 ]; do
    sleep 0.1
    then=$now now=$(sockets "$1")
    tries=$((tries + 1)) same=$((same + 1))
    [ "$now" = "$then" ] || same=0
done
"""


def probe(host: Host) -> str:
    """Return sockperf's version on the host; raise `ToolMissing` where it is not."""
    return sockperf.probe(host)


def line_rate(size: int, bits_per_s: float = 1e9) -> float:
    """Return how many datagrams per second fill an Ethernet link.

    Parameters
    ----------
    size : int
        UDP payload in bytes.
    bits_per_s : float
        The link's rate. Each frame also takes its preamble and the gap after it, so that 1,454
        bytes at 1 Gbit/s are 82,237 per second and not the 83,333 of the frames alone.
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
        Datagrams per second; a trial that fell short of it by more than 1 % is flagged.
    size : int
        UDP payload in bytes: the tool's header of 14 bytes at least, one frame at most.
    seconds : int
        How long, in whole seconds, the tool's own unit.
    """
    check_integers("sockperf", rate=rate, size=size, seconds=seconds, port=port)
    if rate > _MOST or port >= 1 << 16:
        raise UsageError(f"sockperf: invalid rate or port: rate={rate}, port={port}")
    if not _HEADER <= size <= _LARGEST:
        raise UsageError(
            f"sockperf: invalid payload size: {size} bytes",
            remedy=f"from {_HEADER} to {_LARGEST} bytes",
        )
    argv: tuple[str, ...] = ("sockperf", "throughput", "-i", address, "-p", str(port))
    argv += ("--mps", str(rate), "-m", str(size), "-t", str(seconds))
    prestart, reader = Prestart(_BEFORE, _SLEEPS), partial(parse, rate=rate)
    return Client(argv, address, _BEFORE + seconds + _AFTER, reader, prestart=prestart)


def parse(stdout: str, log: str = "", *, rate: int | None = None) -> Measurement:
    """Read ``sent``, ``sent_per_s`` and ``send_seconds``; ``messages`` is the number sent."""
    text = sockperf.plain(stdout)
    total = re.search(
        r"^sockperf: Total of (\d+) messages sent in (\d+\.\d{3}) sec"
        r"(?: \((\d+) messages skipped\))?\s*$",
        text,
        re.MULTILINE,
    )
    last = re.search(r"^sockperf: Summary: BandWidth is \d+\.\d+ MBps", text, re.MULTILINE)
    if not total or not last or not float(total[2]):
        raise unreadable("sockperf", "there is no total of datagrams sent", text)
    sent, seconds = int(total[1]), float(total[2])
    reached = sent / seconds
    flags = []
    if rate is not None and reached < (1 - _SHORT) * rate:
        flags.append(f"{NOT_REACHED}: {reached:,.0f} of {rate:,} datagrams a second")
    if total[3]:
        flags.append(f"{total[3]} datagrams were not sent in their turn")
    metrics = {"sent": float(sent), "sent_per_s": reached, "send_seconds": seconds}
    return Measurement({}, metrics, sent, tuple(flags))


def sink(port: int) -> Workload:
    """Return the sink: it takes what arrives at a port, drops it, and lets the kernel count.

    On the generator it is placed as any server is, before the chain whose last hop sends there, and
    on the generator's CPU, which it does not use::

        trial.serve(sink(port), bare("clean"), name="sink", at="generator",
                    cpus=trial.cpus("generator"))
    """
    return Workload(python("datagram_sink", str(port)), port, image="python")


def watch(sink: str, pid: int, seconds: float, settle: float = 0.2) -> Client:
    """Return a client that counts what a sink takes while `send` sends to it, and no longer.

    A chain that cannot keep up goes on emptying its queues once nothing is sent any more: what
    arrives then is not part of its rate. It reads the kernel's count and the clock twice, while a
    prepared generator sends from the beginning of the window. Then it waits until nothing arrives
    any more, so that all that was sent has arrived or is lost.

    Parameters
    ----------
    sink, pid : str, int
        The sink's address and process.
    seconds : float
        How long the generator sends.
    settle : float
        Seconds before the first count. Until the queues of a chain are full it takes in more than
        it carries.
    """
    middle = seconds - settle - _END
    if not (settle > 0 and middle > 0):
        raise UsageError(
            f"nothing is left of {seconds:g} s to count in",
            why=f"{settle:g} s are left out at the beginning and {_END:g} s at the end",
            remedy="send for longer",
        )
    text = f'{sockets.SHOW}\nlook() {{ date +%s%N; sockets "$1"; echo @@; }}\n'
    text += 'sleep "$2"; look "$1"; sleep "$3"; look "$1"; sleep "$4"\n' + _DRAIN
    argv = script(text, str(pid), f"{settle:.2f}", f"{middle:.2f}", f"{_END:.2f}")
    return Client(tuple(argv), sink, seconds + _AFTER, parse_watch)


def parse_watch(stdout: str, log: str = "") -> Measurement:
    """Read ``packets_per_s`` between the two counts of `watch`."""
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
        One shows no socket, or another one: the sink did not run all the time.
    """
    first, then = sockets.drops(before), sockets.drops(after)
    if len(then) != 1 or set(first) != set(then):
        raise ToolOutput(
            "the sink did not run during the whole measurement",
            why=f"its sockets were {sorted(first)} before and {sorted(then)} after",
            evidence={"before": before[-2000:], "after": after[-2000:]},
        )
    return sockets.dropped_between(first, then)
