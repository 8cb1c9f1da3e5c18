"""Ping-pong: messages of UDP one at a time, by either tool, with or without a capture."""

from dataclasses import replace
from ipaddress import IPv4Address
from types import ModuleType
from typing import Any

import numpy as np

from labkit import pcap
from labkit.errors import ToolOutput
from labkit.placement import Placement
from labkit.tools import base, sfnt_pingpong, sockperf
from labkit.tools.base import Measurement
from labkit.tools.parsing import flag

#: Each has `server`, `ping_pong`, `WAITS`, `WARM_UP_NS` and `COOL_DOWN_NS`.
TOOLS: dict[str, ModuleType] = {sockperf.TOOL: sockperf, sfnt_pingpong.TOOL: sfnt_pingpong}
#: Networks on which the generator reaches a container.
NETWORKS = ("host", "bridge", "nat", "macvlan")


def first_built(tool: str) -> str:
    """Return the tool, of several the first that the rig's images have."""
    return base.first_built(tool, TOOLS)


def infeasible(tool: str, wait: str, placement: Placement) -> str | None:
    """Return why a server of a tool cannot be measured at a placement, or None."""
    waits, network = TOOLS[tool].WAITS, placement.network
    if network not in NETWORKS:
        return f"the generator has no end of the network {network}"
    if wait not in waits:
        return f"{tool} waits in other ways: {', '.join(waits)}"
    if tool == sfnt_pingpong.TOOL and network == "nat":
        return "sfnt-pingpong exchanges its messages on ports that are not published"
    if placement.baseline_level not in ("clean", "rules") and not base.is_built(tool):
        return f"{tool} is not in the image apps: put it into containers/apps/local"
    return None


def with_residence_times(
    measurement: Measurement, captured: Any, *, tool: str, address: str, size: int
) -> Measurement:
    """Add ``residence_ns``, from a message's arrival at the host until its answer leaves it.

    The switch stamps both. A capture holds more messages than there are round trips: both are
    reduced to one number of samples, evenly spread: a row belongs to a window, not to a message.
    """
    if not captured.packets:
        return measurement
    capture = pcap.read(captured.packets, captured.summary)
    seen = capture.packets[capture.packets["size"] == size]
    own = int(IPv4Address(address))
    pairs, flags = pcap.pair(seen[seen["dst"] == own], seen[seen["src"] == own], in_turn=True)
    if pairs.empty:
        raise ToolOutput("the capture holds no message", why=captured.summary[-400:])
    # The tool leaves out both ends of its run.
    first = seen["time_ns"].min() + TOOLS[tool].WARM_UP_NS
    last = seen["time_ns"].max() - TOOLS[tool].COOL_DOWN_NS
    inside = pairs["time_ns"].between(first, last)
    rtt, residence = measurement.samples["rtt_ns"], pairs["residence_ns"][inside].to_numpy()
    count = min(len(rtt), len(residence))
    left_out = f"{len(rtt) - count} of {len(rtt)} round trips left out beside the capture"
    counts = {"captured": len(capture.packets), "capture_drops": capture.dropped}
    counts |= {"paired": len(pairs), "unpaired": len(seen) - 2 * len(pairs)}
    samples = {"rtt_ns": rtt, "residence_ns": residence}
    return replace(
        measurement,
        samples={n: x[np.arange(count) * len(x) // count] for n, x in samples.items()},
        metrics={**measurement.metrics, **counts},
        flags=measurement.flags + capture.flags + flags + flag(left_out, count < len(rtt)),
    )
