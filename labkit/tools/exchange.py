"""Ping-pong: messages one at a time over UDP or TCP, by either tool, with or without a capture.

A protocol asks for an `Exchange` by name, and needs to know neither which tool can do it nor how
that tool's messages look on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any

import numpy as np

from labkit import pcap
from labkit.errors import ToolOutput
from labkit.hosts import Host
from labkit.hosts.target import Target
from labkit.placement import Placement, Workload, docker, waiting
from labkit.tools import base, sfnt_pingpong, sockperf, thrift_rpc
from labkit.tools.base import Client, Measurement, one_of

#: Transports of messages and their answers.
EXCHANGES = ("udp", "tcp")
TOOLS: dict[str, ModuleType] = {"sockperf": sockperf, sfnt_pingpong.TOOL: sfnt_pingpong}
#: Background loads on the server's host.
LOADS = ("none", "containers")
#: Networks on which the generator reaches a container.
NETWORKS = ("host", "bridge", "nat", "macvlan")
#: The largest payload in bytes that is one packet on each of these networks.
ONE_PACKET = 1398
#: Seconds that a capture adds to a trial.
_CAPTURE_SECONDS = 2.8


@dataclass(frozen=True)
class Exchange:
    """Round trips of `size` bytes between one client and one server, one at a time.

    `exchange` is the transport, `tool` a name of `TOOLS`; both ends wait alike ("block", "spin",
    and for sockperf "busy_poll"). A trial with the capture "on" takes longer.
    """

    exchange: str
    tool: str
    messages: int
    size: int
    wait: str
    capture: str = "off"

    @classmethod
    def of(cls, values: Any) -> Exchange:
        """Return the exchange of a trial, or of what else has these attributes."""
        return cls(*(getattr(values, field.name) for field in fields(cls)))

    def __post_init__(self) -> None:
        one_of("exchange", self.exchange, EXCHANGES)
        one_of("tool", self.tool, tuple(TOOLS))

    def server(self) -> Workload:
        """Return the server to place."""
        if self.tool == sfnt_pingpong.TOOL:
            return sfnt_pingpong.server()
        return sockperf.server(self.wait, protocol=self.exchange)

    def client(self, address: str) -> Client:
        """Return the client of a server at an address."""
        options: dict[str, Any] = {"messages": self.messages, "size": self.size, "wait": self.wait}
        client: Client = TOOLS[self.tool].ping_pong(address, protocol=self.exchange, **options)
        return client

    def seconds(self) -> float:
        """Return how long the window of a trial is expected to take."""
        return self.client("").seconds + (_CAPTURE_SECONDS if self.capture == "on" else 0.0)

    def infeasible(self, placement: Placement, lacking: Mapping[str, str]) -> str | None:
        """Return why the exchange cannot be measured at a placement that the rig can run, or None.

        `lacking` has the reason for each place where the tool is missing: see `lacking`.
        """
        network = placement.network
        if self.capture == "on" and self.size > ONE_PACKET:
            return f"a message of more than {ONE_PACKET} bytes may be several packets"
        if network not in NETWORKS:
            return f"the generator has no end of the network {network}"
        waits = TOOLS[self.tool].WAITS
        if self.wait not in waits:
            return f"the tool of this exchange waits in other ways: {', '.join(waits)}"
        if self.tool == sfnt_pingpong.TOOL and network == "nat":
            return sfnt_pingpong.BEHIND_NAT
        home = {"clean": "clean", "rules": "sut"}.get(placement.baseline_level, "image")
        return next((lacking[end] for end in ("generator", home) if end in lacking), None)

    def with_residence_times(
        self, measurement: Measurement, capture: Any, address: str
    ) -> Measurement:
        """Add how long messages stayed at the server's host, by a capture at the switch.

        ``residence_ns`` lasts from the arrival of a message at the host until its answer leaves,
        both stamped by one clock. The capture (of `Trial.capture`) holds more messages than there
        are round trips, so that both are reduced to one number of samples, evenly spread over the
        window: the two values of a row belong to one window, not to one message.
        """
        if not capture.packets:
            return measurement
        seen, drops = pcap.read(capture.packets), pcap.parse_drops(capture.summary)
        arrivals, answers = (
            found.select(found.fields.payload_length == self.size)  # others open or acknowledge
            for found in (
                seen.where(dst=address, protocol=self.exchange),
                seen.where(src=address, protocol=self.exchange),
            )
        )
        # Messages of sfnt-pingpong have no number; as one is under way at a time, order suffices.
        key = pcap.number() if self.tool == "sockperf" else pcap.alike
        pairs = pcap.pair(arrivals, answers, key, in_turn=True)
        if not len(pairs):
            raise ToolOutput("the capture holds no message", why=capture.summary[-400:])
        rtt, residence = measurement.samples["rtt_ns"], pairs.residence_ns
        if self.tool == "sockperf":
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
        samples = {"rtt_ns": rtt, "residence_ns": residence}
        return replace(
            measurement,
            samples={n: x[np.arange(count) * len(x) // count] for n, x in samples.items()},
            metrics={**measurement.metrics, **counts},
            flags=tuple(flags),
        )


def first_built(tool: str) -> str:
    """Return the tool, of several the first that the rig's images have."""
    return base.first_built(tool, tuple(TOOLS))


def probes(tool: str) -> dict[str, Callable[[Host], str]]:
    """Return the version probe of a tool, as `Study` takes it."""
    one_of("tool", tool, tuple(TOOLS))
    return {tool: TOOLS[tool].probe}


def lacking(tool: str, targets: Mapping[str, Target]) -> dict[str, str]:
    """Return where on a rig a tool is missing that no distribution packages, with the reason."""
    return sfnt_pingpong.lacking(targets) if tool == sfnt_pingpong.TOOL else {}


def background(
    kind: str, *, count: int = 0, busy: bool = False, cpus: str = ""
) -> list[dict[str, Any]]:
    """Return `count` containers beside the server on its host: arguments of ``serve_all``.

    They are on the host's network and send nothing; if busy they compute all the time.
    """
    one_of("load", kind, LOADS)
    workload = thrift_rpc.busy() if busy else waiting("python")
    return [
        {"workload": workload, "placement": docker("host"), "name": f"load{number}", "cpus": cpus}
        for number in range(count if kind == "containers" else 0)
    ]
