"""Ping-pong: messages of UDP one at a time, by either tool, with or without a capture."""

import math
import re
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from typing import Any, ClassVar

import numpy as np

from labkit import pcap
from labkit.data import refuse_unknown
from labkit.errors import ToolOutput
from labkit.placement import Placement, Workload
from labkit.tools import base
from labkit.tools.base import Client, Measurement, flag
from labkit.tools.repeat import once

_ROW = re.compile(r"\d+(?:, *\d+\.\d{9}){2}(?:,.*)?", re.ASCII)
_COUNTS = (
    r"\[Total Run\].*?SentMessages=(\d+); ReceivedMessages=\d+.*"
    r"\[Valid Duration\].*?SentMessages=(\d+); ReceivedMessages=(\d+).*"
    r"dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)"
)


class Sockperf:
    """A tool that runs for whole seconds; of its round trips the requested number is kept."""

    PORT = 11111
    #: Ways to wait, with the options of each, and an upper bound of the mean round trip (s). An end
    #: sleeps, it polls, or the socket asks the device for 50 us before the thread sleeps.
    WAITS: ClassVar = {
        "block": ((), 100e-6),
        "spin": (("--nonblocked",), 60e-6),
        "busy_poll": (("--lls", "50"), 100e-6),
    }
    #: The ends of a run, which it leaves out.
    WARM_UP_NS, COOL_DOWN_NS = 400_000_000, 50_000_000
    probe = staticmethod(base.prober(r"(\d+\.\d+\S*)", "sockperf", "--version"))

    def server(self, wait: str) -> Workload:
        """Return the echo server; it waits as its client does, as both ends did in the paper."""
        refuse_unknown("way to wait", [wait], self.WAITS)
        argv = f"sockperf server -i 0.0.0.0 -p {self.PORT}".split()
        return Workload((*argv, *self.WAITS[wait][0]), self.PORT)

    def ping_pong(self, address: str, *, messages: int, size: int, wait: str) -> Client:
        """Return the client: `messages` round trips of `size` bytes (14 or more)."""
        refuse_unknown("way to wait", [wait], self.WAITS)
        (options, longest), left_out = self.WAITS[wait], (self.WARM_UP_NS + self.COOL_DOWN_NS) / 1e9
        seconds = max(1, math.ceil(left_out + messages * longest))
        argv = f"sockperf ping-pong -i {address} -p {self.PORT} -m {size} -t {seconds}".split()
        argv += [*options, "--full-log", "{log}"]
        reader = partial(self.parse, messages=messages)
        # Before its first packet it sleeps for two seconds.
        return Client(tuple(argv), address, seconds + 2.25, reader, log_rows=messages)

    def parse(self, stdout: str, log: str = "", *, messages: int = 0) -> Measurement:
        """Read ``rtt_ns`` from sending to receiving (the tool's own summary shows half of it)."""
        with base.reading("sockperf", stdout, log, needs="sockperf 3.5"):
            result = re.search(_COUNTS, base.plain(stdout), re.DOTALL)
            _, head, table = log.partition("packet, txTime(sec), rxTime(sec)")
            once = stdout.count("[Total Run]") == 1 and "packet, " not in table
            if not (result and head and once):
                raise ValueError("sockperf printed no complete result: is the server reachable?")
            total, valid, back, dropped, duplicated, reordered = map(int, result.groups())
            lines = table.partition("\n")[2].partition("-----")[0].splitlines()
            if wrong := [line for line in lines if not _ROW.fullmatch(line)]:
                raise ValueError(f"not two times in seconds with nine digits: {wrong[0]!r}")
            # As integers: a float cannot hold a time since 1970 in ns.
            times = [line.replace(".", "").split(",")[1:3] for line in lines]
            sent, received = np.array(times, dtype=np.int64).T
            if (received <= sent).any():
                raise ValueError("a round trip is not positive")
            if not valid - dropped - 1 <= back <= valid + duplicated or valid > total:
                raise ValueError(f"{back} of {valid} messages came back, and {dropped} dropped")
            lossy = dropped or duplicated or reordered
            if not lossy and (sent[1:] < received[:-1]).any():
                raise ValueError("a message of its log was sent before the last one came back")
        rtt = (received - sent)[: messages or None]
        flags = flag(f"short: {len(rtt)} of {messages} messages", len(rtt) < messages)
        losses = f"lossy: {dropped} dropped, {duplicated} duplicated, {reordered} reordered"
        flags += base.paused(sent) + flag(losses, lossy)
        metrics = {"dropped": float(dropped), "valid_messages": float(back)}
        return Measurement({"rtt_ns": rtt}, metrics, total, flags)


class SfntPingPong:
    """The tool of the first study's paper, which exchanges exactly the requested messages."""

    PORT = 2048
    WAITS: ClassVar = {"block": ((), 150e-6), "spin": (("--spin",), 60e-6)}
    #: Messages of one byte before the sample; its warm-up by time would hide how many there are.
    WARMUP = 10_000
    WARM_UP_NS = COOL_DOWN_NS = 0
    probe = staticmethod(base.prober(r"version: (\S+)", "sfnt-pingpong", "--version"))

    def server(self, wait: str) -> Workload:
        """Return the server, which takes one client, waits as that tells it, and ends with it."""
        argv = ("sfnt-pingpong", f"--port={self.PORT}")
        return Workload(argv, self.PORT, ("tcp",), "apps", ends_with_client=True)

    def ping_pong(self, address: str, *, messages: int, size: int, wait: str) -> Client:
        """Return the client: `messages` round trips of `size` bytes after the warm-up."""
        options, longest = self.WAITS[wait]
        # By default the tool would pin both ends to CPU 1.
        argv = f"sfnt-pingpong --port={self.PORT} --affinity=any;any --rtt --raw=rtt --sizes={size}"
        argv += f" --miniter={messages} --maxiter={messages} --warmupms=0"
        command = (*argv.split(), f"--warmupiter={self.WARMUP}", *options, "udp", address)
        seconds = 1 + (self.WARMUP + messages) * longest
        reader = partial(self.parse, size=size, messages=messages)
        return once(Client(command, address, seconds, reader, samples_in_stdout=True))

    def parse(self, stdout: str, log: str = "", *, size: int, messages: int = 0) -> Measurement:
        """Read ``rtt_ns``, whole round trips of one size, from the summary and the log."""
        with base.reading("sfnt-pingpong", stdout, log):
            found = re.findall(rf"^\t{size}((?:\t\d+){{7}})$", stdout, re.MULTILINE)
            ((_, least, _, most, _, _, count),) = (line.split() for line in found)
            (values,) = base.rows(log, 1, "\t")
            ends = (len(values), values.min(), values.max())
            if ends != (int(count), int(least), int(most)) or values.min() <= 0:
                raise ValueError("its raw file holds {:,} values from {} to {} ns".format(*ends))
            (trips,) = re.findall(r"^# reporting: (RTT|1/2 RTT)$", stdout, re.MULTILINE)
        rtt = values if trips == "RTT" else values * 2  # halves are rounded down to a ns
        flags = flag(f"short: {len(rtt)} of {messages} messages", len(rtt) < messages)
        return Measurement({"rtt_ns": rtt}, messages=len(rtt) + self.WARMUP, flags=flags)


sockperf, sfnt_pingpong = Sockperf(), SfntPingPong()
TOOLS: dict[str, Sockperf | SfntPingPong] = {"sockperf": sockperf, "sfnt-pingpong": sfnt_pingpong}
first_built = partial(base.first_built, known=TOOLS)


def infeasible(tool: str, wait: str, placement: Placement) -> str | None:
    """Return why a server of a tool cannot be measured at a placement, or None."""
    waits, network = TOOLS[tool].WAITS, placement.network
    if network not in ("host", "bridge", "nat", "macvlan"):
        return f"the generator has no end of the network {network}"
    if wait not in waits:
        return f"{tool} waits in other ways: {', '.join(waits)}"
    # The kernel assigns the ports, and its client asks for the server's own address.
    if tool == "sfnt-pingpong" and network == "nat":
        return "sfnt-pingpong exchanges its messages on ports that are not published"
    if placement.baseline_level not in ("clean", "rules") and not base.is_built(tool):
        return f"{tool} is not in the image apps: put it into containers/apps/local"
    return None


def with_residence_times(
    measurement: Measurement, captured: Any, *, tool: str, address: str, size: int
) -> Measurement:
    """Add ``residence_ns``, from a message's arrival at the host until its answer leaves it.

    Both columns are reduced to one number of samples, evenly spread: a row is no message.
    """
    if not captured.packets:
        return measurement
    capture = pcap.read(captured.packets, captured.summary, size)
    seen = capture.packets[capture.packets["size"] == size]
    own = int(IPv4Address(address))
    pairs, flags = pcap.pair(seen[seen["dst"] == own], seen[seen["src"] == own], in_turn=True)
    if pairs.empty:
        raise ToolOutput("the capture holds no message", why=captured.summary[-400:])
    first = seen["time_ns"].min() + TOOLS[tool].WARM_UP_NS
    last = seen["time_ns"].max() - TOOLS[tool].COOL_DOWN_NS
    inside = pairs["time_ns"].between(first, last)
    rtt, residence = measurement.samples["rtt_ns"], pairs["residence_ns"][inside].to_numpy()
    count = min(len(rtt), len(residence))
    left_out = f"{len(rtt) - count} of {len(rtt)} round trips left out beside the capture"
    metrics = {**measurement.metrics, "captured": len(capture.packets), "paired": len(pairs)}
    metrics |= {"capture_drops": capture.dropped, "unpaired": len(seen) - 2 * len(pairs)}
    flags = measurement.flags + capture.flags + flags + flag(left_out, count < len(rtt))
    samples = {"rtt_ns": rtt, "residence_ns": residence}
    samples = {n: x[np.arange(count) * len(x) // count] for n, x in samples.items()}
    return replace(measurement, samples=samples, metrics=metrics, flags=flags)
