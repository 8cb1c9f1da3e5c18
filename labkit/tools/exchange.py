"""One message at a time, over UDP, TCP or both: the tool for it, and what a capture adds.

A protocol asks for an `Exchange` by name, and needs to know neither which tool can do it nor how
that tool's messages look on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from labkit import pcap
from labkit.errors import ToolOutput
from labkit.hosts import Host
from labkit.hosts.target import Target
from labkit.placement import Placement, Workload, docker, waiting
from labkit.tools import base, sfnt_pingpong, sockperf, stress_ng, thrift_rpc, udp_tcp
from labkit.tools.base import Client, Measurement, one_of

MIXED = "udp in, tcp out"
#: The transport of messages to the server, and of its answers, by exchange.
EXCHANGES = {"udp": ("udp", "udp"), "tcp": ("tcp", "tcp"), MIXED: ("udp", "tcp")}
#: The tools for messages over one transport; the mixed exchange has `udp_tcp` with either.
TOOLS: dict[str, ModuleType] = {"sockperf": sockperf, sfnt_pingpong.TOOL: sfnt_pingpong}
#: What may run on the server's host at the same time.
LOADS = ("none", "containers", "stress-ng")
#: Networks on which the generator reaches a container.
NETWORKS = ("host", "bridge", "nat", "macvlan")
#: The largest payload in bytes that is one packet on each of these networks.
ONE_PACKET = 1398
#: Seconds that a capture adds to a trial.
_CAPTURE_SECONDS = 2.8


class Capture(Protocol):
    """A capture file as tcpdump wrote it, and what tcpdump said when it ended."""

    packets: bytes
    summary: str


@dataclass(frozen=True)
class Exchange:
    """Messages between one client and one server, one at a time.

    Parameters
    ----------
    kind : str
        A name of `EXCHANGES`.
    tool : str
        A name of `TOOLS`; unused where the kind is "udp in, tcp out".
    messages : int
        Round trips to measure.
    size : int
        Payload in bytes.
    wait : str
        How both ends wait for a message: "block", "spin", and for sockperf "busy_poll".
    capture : {"off", "on"}
        Whether the trial is captured, which takes longer.

    Raises
    ------
    UsageError
        The kind or the tool is unknown.
    """

    kind: str
    tool: str
    messages: int
    size: int
    wait: str
    capture: str = "off"

    @classmethod
    def of(cls, values: Any) -> Exchange:
        """Return the exchange of a trial, or of what else has its levels and settings.

        Attributes are ``exchange``, ``tool``, ``messages``, ``size``, ``wait`` and ``capture``.
        """
        names = ("exchange", "tool", "messages", "size", "wait", "capture")
        return cls(*(getattr(values, name) for name in names))

    def __post_init__(self) -> None:
        one_of("exchange", self.kind, tuple(EXCHANGES))
        one_of("tool", self.tool, tuple(TOOLS))

    def server(self) -> Workload:
        """Return the server to place."""
        if self.kind == MIXED:
            return udp_tcp.server(self.wait)
        if self.tool == sfnt_pingpong.TOOL:
            return sfnt_pingpong.server()
        return sockperf.server(self.wait, protocol=self.kind)

    def client(self, address: str) -> Client:
        """Return the client of a server at an address."""
        options: dict[str, Any] = {"messages": self.messages, "size": self.size, "wait": self.wait}
        if self.kind == MIXED:
            return udp_tcp.ask(address, **options)
        client: Client = TOOLS[self.tool].ping_pong(address, protocol=self.kind, **options)
        return client

    def seconds(self) -> float:
        """Return how long the window of a trial is expected to take."""
        return self.client("").seconds + (_CAPTURE_SECONDS if self.capture == "on" else 0.0)

    def infeasible(self, placement: Placement, lacking: Mapping[str, str]) -> str | None:
        """Return why the exchange cannot be measured at a placement, or None.

        Parameters
        ----------
        placement : Placement
            The server's; one that the rig can run.
        lacking : mapping of str to str
            Where the tool is missing, with the reason: see `lacking`.
        """
        network = placement.network
        if self.capture == "on" and self.size > ONE_PACKET:
            return f"a message of more than {ONE_PACKET} bytes may be several packets"
        if network not in NETWORKS:
            return f"the generator has no end of the network {network}"
        waits = (udp_tcp if self.kind == MIXED else TOOLS[self.tool]).WAITS
        if self.wait not in waits:
            return f"the tool of this exchange waits in other ways: {', '.join(waits)}"
        if self.kind == MIXED:
            two = "a port is published for one protocol, and this exchange needs two"
            return two if network == "nat" else None
        if self.tool == sfnt_pingpong.TOOL and network == "nat":
            return sfnt_pingpong.BEHIND_NAT
        home = {"clean": "clean", "rules": "sut"}.get(placement.baseline_level, "image")
        return next((lacking[end] for end in ("generator", home) if end in lacking), None)

    def with_residence_times(
        self, measurement: Measurement, capture: Capture, address: str
    ) -> Measurement:
        """Add how long messages stayed at the server's host, by a capture at the switch.

        A residence time lasts from the arrival of a message at the host until its answer leaves,
        both stamped by one clock. The capture holds more messages than there are round trips, so
        that both are reduced to one number of samples, evenly spread over the window: the two
        values of a row belong to one window, not to one message.

        Parameters
        ----------
        measurement : Measurement
            With the sample ``rtt_ns``.
        capture : Capture
            What `Trial.capture` gave; without packets where nothing was captured.
        address : str
            The server's.

        Returns
        -------
        Measurement
            With the sample ``residence_ns`` in ns, the metrics ``captured``, ``capture_drops``,
            ``paired`` and ``unpaired``, and a flag for whatever is missing. The same measurement
            where nothing was captured.

        Raises
        ------
        ToolOutput
            The capture cannot be read, or holds no message.
        """
        if not capture.packets:
            return measurement
        seen, drops = pcap.read(capture.packets), pcap.parse_drops(capture.summary)
        to_server, to_client = EXCHANGES[self.kind]
        arrivals = self._messages(seen.where(dst=address, protocol=to_server))
        answers = self._messages(seen.where(src=address, protocol=to_client))
        # Messages of sfnt-pingpong have no number; as one is under way at a time, order suffices.
        numbered = self.kind == MIXED or self.tool == "sockperf"
        key = pcap.number() if numbered else pcap.alike
        pairs = pcap.pair(arrivals, answers, key, in_turn=True)
        if not len(pairs):
            raise ToolOutput("the capture holds no message", why=capture.summary[-400:])
        rtt, residence = measurement.samples["rtt_ns"], pairs.residence_ns
        if self.tool == "sockperf" and self.kind != MIXED:
            # Its round trips leave out both ends of the run.
            at = arrivals.times_ns[pairs.arrival]
            first, last = at[0] + sockperf.WARM_UP_NS, at[-1] - sockperf.COOL_DOWN_NS
            residence = residence[(at >= first) & (at <= last)]
        count = min(len(rtt), len(residence))
        flags = [*measurement.flags, *seen.flags, *drops.flags, *pairs.flags]
        if count < len(rtt):
            missing = len(rtt) - count
            flags.append(f"{missing} of {len(rtt)} round trips left out beside the capture")
        counts = {
            "captured": drops.captured,
            "capture_drops": drops.kernel + drops.interface,
            "paired": len(pairs),
            "unpaired": sum(pairs.unmatched),
        }
        return replace(
            measurement,
            samples={"rtt_ns": _spread(rtt, count), "residence_ns": _spread(residence, count)},
            metrics={**measurement.metrics, **counts},
            flags=tuple(flags),
        )

    def _messages(self, packets: pcap.Packets) -> pcap.Packets:
        """Return the packets that hold a message; others open a connection or acknowledge."""
        return packets.select(packets.fields.payload_length == self.size)


def _spread(values: pcap.Ints, count: int) -> pcap.Ints:
    """Return `count` of the values, evenly spread over all of them."""
    spread: pcap.Ints = values[np.arange(count) * len(values) // count]
    return spread


def first_built(tool: str) -> str:
    """Return the tool, of several the first that the rig's images have.

    Examples
    --------
    >>> from labkit.tools import exchange
    >>> exchange.first_built("sockperf")
    'sockperf'
    """
    return base.first_built(tool, tuple(TOOLS))


def probes(tool: str, kinds: str | list[str]) -> dict[str, Callable[[Host], str]]:
    """Return the version probes of what one or several exchanges need, as `Study` takes them."""
    one_of("tool", tool, tuple(TOOLS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for kind in kinds:
        one_of("exchange", kind, tuple(EXCHANGES))
    needed = {tool: TOOLS[tool].probe} if set(kinds) - {MIXED} else {}
    return needed | ({"python3": udp_tcp.probe} if MIXED in kinds else {})


def lacking(tool: str, targets: Mapping[str, Target]) -> dict[str, str]:
    """Return where on a rig a tool is missing that no distribution packages, with the reason."""
    return sfnt_pingpong.lacking(targets) if tool == sfnt_pingpong.TOOL else {}


def background(
    kind: str, *, count: int = 0, busy: bool = False, cpus: str = ""
) -> list[dict[str, Any]]:
    """Return what runs at the same time as the server, on its host: arguments of ``serve_all``.

    It is on the host's network and sends nothing: what it takes is CPU time and memory.

    Parameters
    ----------
    kind : {"none", "containers", "stress-ng"}
        Nothing, `count` containers, or one container with `count` workers of stress-ng.
    count : int
        How many.
    busy : bool
        Whether containers compute all the time, or only wait.
    cpus : str
        The CPU list of all of them.
    """
    one_of("load", kind, LOADS)
    workloads: list[Workload] = []
    if kind == "containers":
        workloads = [thrift_rpc.busy() if busy else waiting("python")] * count
    elif kind == "stress-ng":
        workloads = [stress_ng.busy(count)]
    return [
        {"workload": workload, "placement": docker("host"), "name": f"load{number}", "cpus": cpus}
        for number, workload in enumerate(workloads)
    ]
