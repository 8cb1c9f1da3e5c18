"""The metrics that labkit records: unit, which way is better, and what the number is."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.errors import UsageError


@dataclass(frozen=True)
class Metric:
    """One measured quantity.

    Parameters
    ----------
    name : str
        Column name in the dataset.
    unit : str
        Unit as stored (``ns``, ``1/s``, ``1``).
    better : {"lower", "higher", "neither"}
        The direction a user wants.
    text : str
        What is measured, for axes and tables.
    """

    name: str
    unit: str
    better: str
    text: str


_METRICS = (
    Metric("rtt_ns", "ns", "lower", "round-trip time"),
    Metric("latency_ns", "ns", "lower", "latency of a call"),
    Metric("slow_calls", "1", "lower", "calls of more than 1,000 us"),
    Metric("slow_product_us", "us", "neither", "slow calls times the quota"),
    Metric("cpu_use", "1", "neither", "CPU time of the server, as a share of one CPU"),
    Metric("nr_throttled", "1", "lower", "periods in which the server was cut off"),
    Metric("messages_per_s", "1/s", "higher", "messages per second"),
    Metric("context_switches", "1/message", "lower", "context switches of all CPUs per message"),
    Metric("server_switches", "1/message", "lower", "voluntary switches of the server per message"),
    Metric("idle_exits", "1/message", "lower", "wake-ups from idle of all CPUs per message"),
    Metric("softirqs", "1/message", "neither", "network softirqs of all CPUs per message"),
    Metric("steal", "1", "lower", "share of CPU time stolen by the hypervisor"),
)

METRICS = {metric.name: metric for metric in _METRICS}


def metric(name: str) -> Metric:
    """Return the metric called `name`; raise `UsageError` with the known names otherwise."""
    try:
        return METRICS[name]
    except KeyError:
        raise UsageError(f"unknown metric {name!r}", remedy=f"one of {sorted(METRICS)}") from None
