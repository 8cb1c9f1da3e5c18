"""Applications: a server, a load on it, and one set of metric names for every load's tool.

Applications of a family share a server. The papers' loads on memcached and nginx, memtier_benchmark
and wrk2, are taken where a study asks for them (`with_tools`); otherwise labkit's own load, and
h2load, which keep the latency of every operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools import h2load, iperf3, memcached, memtier, nginx, pgbench, wrk2
from labkit.tools.base import Client, Measurement, first_built, one_of
from labkit.tools.parsing import Column

#: Default options of the loads, those of the paper where it states them.
LOADS: Mapping[str, Mapping[str, Any]] = {
    "iperf3": {"mbit_per_s": 0.0},  # UDP as fast as it can
    "memcached": {"threads": 4, "connections": 50, "sets": 1, "gets": 10},
    "nginx": {"rate": 3000, "connections": 100},
    "postgresql": {"connections": 100, "threads": 4},
}
#: The tools that a study may ask for, by family; the first is the default.
TOOLS: Mapping[str, Mapping[str, ModuleType]] = {
    "memcached": {"labkit": memcached, memtier.TOOL: memtier},
    "nginx": {h2load.TOOL: h2load, wrk2.TOOL: wrk2},
}
#: The quantiles of `latency`, by the last part of their names.
QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Application:
    """One application: a server, the load that measures it, and the module of the load's tool.

    Applications of a family share a server. `load` takes (address, seconds=, and the options of
    `LOADS`); `rename` takes the tool's measurement and returns metrics under the common names.
    """

    name: str
    family: str
    module: ModuleType
    server: Callable[..., Workload]
    load: Callable[..., Client]
    rename: Callable[[Measurement], dict[str, float]]

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return str(self.module.TOOL)

    def probe(self, host: Host) -> str:
        """Return the tool's version on a host."""
        return str(self.module.probe(host))

    def client(self, address: str, *, seconds: int, **options: Any) -> Client:
        """Return the load on a server, to be run inside a placement; options replace `LOADS`.

        Its metrics are ``throughput_mbit_per_s`` (of memcached and nginx what their connections
        carried), ``requests_per_s`` or ``transactions_per_s``; ``offered_per_s`` and ``reached``,
        the achieved share of it, where there is a schedule; ``lost_share`` of datagrams; statistics
        of ``latency_ns``, ``set_latency_ns`` and ``get_latency_ns``; and the tool's.
        """
        client = self.load(address, seconds=seconds, **{**LOADS[self.family], **options})
        return replace(client, parse=lambda out, log: self._read(client.parse(out, log)))

    def _read(self, measurement: Measurement) -> Measurement:
        metrics = {**measurement.metrics, **self.rename(measurement)}
        flags = tuple(f"{self.name}: {flag}" for flag in measurement.flags)
        return replace(measurement, metrics=metrics, flags=flags)


def latency(values: Column, name: str = "latency_ns") -> dict[str, float]:
    """Return mean, extremes and `QUANTILES` of latencies in ns, each name after `name`.

    A quantile is the smallest latency up to which its share lies. Without latencies there are none.
    """
    if not len(values):
        return {}
    statistics = {"mean": values.mean(), "min": values.min(), "max": values.max()}
    for label, share in QUANTILES.items():
        statistics[label] = np.quantile(values, share, method="inverted_cdf")
    return {f"{name}_{label}": float(value) for label, value in statistics.items()}


def _scheduled(metrics: Mapping[str, float], name: str) -> dict[str, float]:
    achieved, offered = metrics["achieved_per_s"], metrics["requested_per_s"]
    return {name: achieved, "offered_per_s": offered, "reached": achieved / offered}


def _iperf3(measurement: Measurement) -> dict[str, float]:
    tool = measurement.metrics
    metrics = {"lost_share": tool["loss"]} if "loss" in tool else {}
    if "requested_mbit_per_s" in tool:
        metrics["reached"] = tool["sent_mbit_per_s"] / tool["requested_mbit_per_s"]
    return metrics


def _memcached(measurement: Measurement) -> dict[str, float]:
    return {"requests_per_s": measurement.metrics["operations_per_s"]}


def _nginx(measurement: Measurement) -> dict[str, float]:
    tool = measurement.metrics
    metrics = _scheduled(tool, "requests_per_s")
    if "body_b" in tool:
        metrics["throughput_mbit_per_s"] = tool["body_b"] * tool["achieved_per_s"] * 8e-6
    if "late_ns" in measurement.samples:
        took, late = (measurement.samples[name] for name in ("latency_ns", "late_ns"))
        metrics |= latency(took) | latency(took + late, "due_latency_ns")
    return metrics


def _postgresql(measurement: Measurement) -> dict[str, float]:
    metrics = _scheduled(measurement.metrics, "transactions_per_s")
    took, lag = (measurement.samples[name] for name in ("latency_ns", "lag_ns"))
    return metrics | latency(took - lag, "service_latency_ns") | latency(took)


def _iperf3_tcp(address: str, *, seconds: int, mbit_per_s: float) -> Client:
    return iperf3.tcp(address, seconds=seconds)


def with_tools(tools: Mapping[str, str]) -> dict[str, Application]:
    """Return every application by its name, those of some families with other tools.

    A tool of `TOOLS` by family, or several, as in ``"wrk2 or h2load"``: the first installed one.

    Examples
    --------
    >>> from labkit.tools import with_tools
    >>> with_tools({"nginx": "wrk2"})["nginx 1 KB"].tool, with_tools({})["nginx 1 KB"].tool
    ('wrk2', 'h2load')
    """
    for family in tools:
        one_of("family with several tools", family, tuple(TOOLS))
    defaults = {family: next(iter(several)) for family, several in TOOLS.items()}
    cache, web = (
        TOOLS[family][first_built({**defaults, **tools}[family], tuple(TOOLS[family]))]
        for family in ("memcached", "nginx")
    )
    found = [
        Application("iperf3 tcp", "iperf3", iperf3, iperf3.server, _iperf3_tcp, _iperf3),
        Application("iperf3 udp", "iperf3", iperf3, iperf3.server, iperf3.udp, _iperf3),
    ]
    for protocol in memcached.PROTOCOLS:
        load, name = partial(cache.closed_loop, protocol=protocol), f"memcached {protocol}"
        found.append(Application(name, "memcached", cache, memcached.server, load, _memcached))
    for size, file in {"1 KB": "1k", "1 MB": "1m"}.items():
        load, name = partial(web.constant_rate, file=file), f"nginx {size}"
        found.append(Application(name, "nginx", web, nginx.server, load, _nginx))
    for rate in (300, 500):
        load, name = partial(pgbench.transactions, rate=rate), f"postgresql {rate}/s"
        found.append(Application(name, "postgresql", pgbench, pgbench.server, load, _postgresql))
    return {application.name: application for application in found}


#: Every application by its name, in the order of their families, with the default tools.
APPLICATIONS: Mapping[str, Application] = with_tools({})


def families(names: Iterable[str]) -> dict[str, list[Application]]:
    """Return applications by family, in the order in which they were named."""
    grouped: dict[str, list[Application]] = {}
    for name in names:
        grouped.setdefault(APPLICATIONS[name].family, []).append(APPLICATIONS[name])
    return grouped
