"""Ping-pong: messages one at a time over UDP or TCP, by either tool, with or without a capture."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from labkit import pcap
from labkit.errors import ToolMissing, ToolOutput
from labkit.hosts.target import Target
from labkit.placement import Placement, Workload
from labkit.tools import base, sfnt_pingpong, sockperf
from labkit.tools.base import Client, Measurement, one_of
from labkit.tools.parsing import flag

TOOLS: dict[str, ModuleType] = {sockperf.TOOL: sockperf, sfnt_pingpong.TOOL: sfnt_pingpong}
#: Networks on which the generator reaches a container.
NETWORKS = ("host", "bridge", "nat", "macvlan")
#: The largest payload in bytes that is one packet on each of these networks.
ONE_PACKET = 1398


@dataclass(frozen=True)
class Exchange:
    """Round trips of `size` bytes, one at a time; both ends wait alike for a message.

    `exchange` is the transport, "udp" or "tcp", `tool` a name of `TOOLS`, and `wait` "block",
    "spin", or for sockperf "busy_poll".
    """

    exchange: str
    tool: str
    messages: int
    size: int
    wait: str
    capture: str = "off"

    def __post_init__(self) -> None:
        one_of("exchange", self.exchange, ("udp", "tcp"))
        one_of("tool", self.tool, tuple(TOOLS))

    def server(self) -> Workload:
        """Return the server to place."""
        workload: Workload = TOOLS[self.tool].server(self.wait, protocol=self.exchange)
        return workload

    def client(self, address: str) -> Client:
        """Return the client of a server at an address."""
        client: Client = TOOLS[self.tool].ping_pong(
            address,
            wait=self.wait,
            messages=self.messages,
            size=self.size,
            protocol=self.exchange,
        )
        return client

    def seconds(self) -> float:
        """Return how long the window of a trial is expected to take."""
        return self.client("").seconds + (2.8 if self.capture == "on" else 0.0)

    def infeasible(self, placement: Placement, lacking: Mapping[str, str]) -> str | None:
        """Return why the exchange cannot be measured at a placement, or None; see `lacking`."""
        waits, network = TOOLS[self.tool].WAITS, placement.network
        if self.capture == "on" and self.size > ONE_PACKET:
            return f"a message of more than {ONE_PACKET} bytes may be several packets"
        if network not in NETWORKS:
            return f"the generator has no end of the network {network}"
        if self.wait not in waits:
            return f"the tool of this exchange waits in other ways: {', '.join(waits)}"
        if self.tool == sfnt_pingpong.TOOL and network == "nat":
            return "sfnt-pingpong exchanges its messages on ports that are not published"
        home = {"clean": "clean", "rules": "sut"}.get(placement.baseline_level, "image")
        return next((lacking[end] for end in ("generator", home) if end in lacking), None)

    def with_residence_times(
        self, measurement: Measurement, capture: Any, address: str
    ) -> Measurement:
        """Add ``residence_ns``, how long messages stayed at the server's host, by a capture.

        It lasts from a message's arrival until its answer leaves, both stamped by the switch. A
        capture holds more messages than there are round trips: both are reduced to one number of
        samples, evenly spread, so that the values of a row belong to one window, not one message.
        """
        if not capture.packets:
            return measurement
        seen, drops = pcap.read(capture.packets), pcap.parse_drops(capture.summary)
        seen = seen.where(protocol=self.exchange)
        seen = seen.select(seen.fields.payload_length == self.size)  # others open or acknowledge
        arrivals, answers = seen.where(dst=address), seen.where(src=address)
        # Messages of sfnt-pingpong have no number; as one is under way at a time, order suffices.
        key = pcap.number() if self.tool == sockperf.TOOL else pcap.alike
        pairs = pcap.pair(arrivals, answers, key, in_turn=True)
        if not len(pairs):
            raise ToolOutput("the capture holds no message", why=capture.summary[-400:])
        rtt, residence = measurement.samples["rtt_ns"], pairs.residence_ns
        if self.tool == sockperf.TOOL:
            # Its round trips leave out both ends of the run.
            at = arrivals.times_ns[pairs.arrival]
            first, last = at[0] + sockperf.WARM_UP_NS, at[-1] - sockperf.COOL_DOWN_NS
            residence = residence[(at >= first) & (at <= last)]
        count = min(len(rtt), len(residence))
        left_out = f"{len(rtt) - count} of {len(rtt)} round trips left out beside the capture"
        flags = (*measurement.flags, *seen.flags, *drops.flags, *pairs.flags)
        counts = {"captured": drops.captured, "capture_drops": drops.kernel + drops.interface}
        counts |= {"paired": len(pairs), "unpaired": sum(pairs.unmatched)}
        samples = {"rtt_ns": rtt, "residence_ns": residence}
        return replace(
            measurement,
            samples={n: x[np.arange(count) * len(x) // count] for n, x in samples.items()},
            metrics={**measurement.metrics, **counts},
            flags=flags + flag(left_out, count < len(rtt)),
        )


def first_built(tool: str) -> str:
    """Return the tool, of several the first that the rig's images have."""
    return base.first_built(tool, tuple(TOOLS))


def lacking(tool: str, targets: Mapping[str, Target]) -> dict[str, str]:
    """Return where on a rig an unpackaged tool is missing, and why: a host, or the image."""
    reasons: dict[str, str] = {}
    if tool not in base.UNPACKAGED:
        return reasons
    for role in sorted(targets.keys() & {"generator", "clean", "sut"}):
        try:
            TOOLS[tool].probe(targets[role].host)
        except ToolMissing as error:
            reasons[role] = f"{error.what} ({error.where}): {error.remedy}"
    if not base.is_built(tool):
        reasons["image"] = f"{tool} is not in the image apps: put it into containers/apps/local"
    return reasons
