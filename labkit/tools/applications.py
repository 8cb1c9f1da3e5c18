"""Applications: a server, a load on it, and one set of metric names whatever the load's tool.

Applications of a family share a server. Where memtier_benchmark and wrk2 were built for the image
(``containers/apps/local``), these are the tools; otherwise labkit's own load on memcached, and
h2load.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.hosts import Host
from labkit.paths import project
from labkit.placement import Workload
from labkit.tools import h2load, iperf3, memcached, memtier, nginx, pgbench, wrk2
from labkit.tools.base import Client, Measurement

#: Default options of the loads, those of the paper where it states them.
LOADS: Mapping[str, Mapping[str, Any]] = {
    # As fast as it can.
    "iperf3": {"mbit_per_s": 0.0},
    "memcached": {"threads": 4, "connections": 50, "sets": 1, "gets": 10},
    "nginx": {"rate": 3000, "connections": 100},
    "postgresql": {"connections": 100, "threads": 4},
}
#: Seconds of load before what is measured, where the tool has such a time.
WARMUP = 0.5
#: Operations of memcached of which samples are kept; metrics are those of all.
KEPT = 5_000


@dataclass(frozen=True)
class Application:
    """One application: a server, and the load that measures it.

    Parameters
    ----------
    name : str
        As claims name it.
    family : str
        ``iperf3``, ``memcached``, ``nginx`` or ``postgresql``: what shares a server.
    tool : str
        What makes the load.
    server : callable
        Takes the options of the family's server; returns its `Workload`.
    load : callable
        Takes (address, seconds=, and the options of `LOADS`); returns the tool's own `Client`.
    rename : callable
        Takes the tool's `Measurement`; returns metrics under the common names.
    probe : callable
        Takes a `Host`; returns the tool's version there.
    """

    name: str
    family: str
    tool: str
    server: Callable[..., Workload]
    load: Callable[..., Client]
    rename: Callable[[Measurement], dict[str, float]]
    probe: Callable[[Host], str]

    def client(self, address: str, *, seconds: int, **options: Any) -> Client:
        """Return the load on a server, which is to run inside a placement.

        Parameters
        ----------
        address : str
            The server's address.
        seconds : int
            How long is measured.
        **options
            Of `LOADS`, where others than there are wanted.

        Returns
        -------
        Client
            Its measurement has the metrics ``throughput_mbit_per_s`` (10^6 bits; of memcached and
            nginx what their connections carried), ``requests_per_s`` or ``transactions_per_s``;
            ``offered_per_s`` and ``reached``, the share of it that was achieved, where there is a
            schedule; ``lost_share`` of datagrams; ``latency_ns_mean``, ``_min``, ``_median``,
            ``_p90``, ``_p95``, ``_p99``, ``_p999``, ``_max`` and the same as ``set_latency_ns`` and
            ``get_latency_ns``, all in ns; and the tool's own. Samples are the tool's.
            Each flag begins with the application's name.
        """
        client = self.load(address, seconds=seconds, **{**LOADS[self.family], **options})
        return replace(client, parse=lambda out, log: self._read(client.parse(out, log)))

    def _read(self, measurement: Measurement) -> Measurement:
        metrics = {**measurement.metrics, **self.rename(measurement)}
        flags = tuple(f"{self.name}: {flag}" for flag in measurement.flags)
        return replace(measurement, metrics=metrics, flags=flags)


def built(program: str) -> bool:
    """Tell whether a program without a package was built for the image."""
    return os.access(project("containers/apps/local") / program, os.X_OK)


def latency(values: Any, name: str = "latency_ns") -> dict[str, float]:
    """Return mean, ends and quantiles of latencies; nothing of none.

    Parameters
    ----------
    values : ndarray of int64, shape (n,)
        Latencies in ns. A quantile is the smallest of them up to which its share lies.
    name : str
        What the names begin with.
    """
    if not len(values):
        return {}
    statistics = {
        "mean": float(values.mean()),
        "min": float(values.min()),
        "max": float(values.max()),
    }
    for label, share in memtier.QUANTILES.items():
        statistics[label] = float(np.quantile(values, share, method="inverted_cdf"))
    return {f"{name}_{label}": value for label, value in statistics.items()}


def _scheduled(achieved: float, offered: float) -> dict[str, float]:
    return {"offered_per_s": offered, "reached": achieved / offered}


def _iperf3(measurement: Measurement) -> dict[str, float]:
    own = measurement.metrics
    metrics = {"lost_share": own["loss"]} if "loss" in own else {}
    if "requested_mbit_per_s" in own:
        metrics["reached"] = own["sent_mbit_per_s"] / own["requested_mbit_per_s"]
    return metrics


def _memcached(measurement: Measurement) -> dict[str, float]:
    return {"requests_per_s": measurement.metrics["operations_per_s"]}


def _nginx(measurement: Measurement) -> dict[str, float]:
    own = measurement.metrics
    metrics = {"requests_per_s": own["achieved_per_s"]}
    metrics |= _scheduled(own["achieved_per_s"], own["requested_per_s"])
    if "body_b" in own:
        metrics["throughput_mbit_per_s"] = own["body_b"] * own["achieved_per_s"] * 8e-6
    if "late_ns" in measurement.samples:
        took, late = (measurement.samples[name] for name in ("latency_ns", "late_ns"))
        metrics |= latency(took) | latency(took + late, "due_latency_ns")
    return metrics


def _postgresql(measurement: Measurement) -> dict[str, float]:
    own = measurement.metrics
    metrics = {"transactions_per_s": own["achieved_per_s"]}
    metrics |= _scheduled(own["achieved_per_s"], own["requested_per_s"])
    metrics |= latency(
        measurement.samples["latency_ns"] - measurement.samples["lag_ns"], "service_latency_ns"
    )
    return metrics | latency(measurement.samples["latency_ns"])


def _tcp(address: str, *, seconds: int, mbit_per_s: float) -> Client:
    return iperf3.tcp(address, seconds=seconds)


def _udp(address: str, *, seconds: int, mbit_per_s: float) -> Client:
    return iperf3.udp(address, seconds=seconds, mbit_per_s=mbit_per_s)


def _iperf3_of(name: str, load: Callable[..., Client]) -> Application:
    return Application(name, "iperf3", "iperf3", iperf3.server, load, _iperf3, iperf3.probe)


def _memcached_of(protocol: str) -> Application:
    paper = built("memtier_benchmark")

    def load(address: str, *, seconds: int, **options: Any) -> Client:
        arguments: dict[str, Any] = {
            "protocol": protocol,
            "seconds": seconds,
            "inside": True,
        } | options
        if paper:
            return memtier.closed_loop(address, **arguments)
        return memcached.closed_loop(address, warmup=WARMUP, kept=KEPT, **arguments)

    name, tool = f"memcached {protocol}", memtier if paper else memcached
    return Application(name, "memcached", tool.TOOL, memcached.server, load, _memcached, tool.probe)


def _nginx_of(size: str, file: str) -> Application:
    paper = built("wrk2")

    def load(address: str, *, seconds: int, **options: Any) -> Client:
        if paper:
            return wrk2.constant_rate(address, file=file, seconds=seconds, **options)
        arguments: dict[str, Any] = {"file": file, "seconds": seconds, "warmup": WARMUP} | options
        return h2load.constant_rate(address, inside=True, **arguments)

    tool = wrk2 if paper else h2load
    return Application(f"nginx {size}", "nginx", tool.TOOL, nginx.server, load, _nginx, tool.probe)


def _postgresql_of(rate: int) -> Application:
    def load(address: str, *, seconds: int, **options: Any) -> Client:
        arguments: dict[str, Any] = {"rate": rate, "seconds": seconds} | options
        return pgbench.transactions(address, inside=True, **arguments)

    name = f"postgresql {rate}/s"
    return Application(
        name, "postgresql", pgbench.TOOL, pgbench.server, load, _postgresql, pgbench.probe
    )


#: Every application, by its name; those of a family stand together.
APPLICATIONS: Mapping[str, Application] = {
    one.name: one
    for one in (
        _iperf3_of("iperf3 tcp", _tcp),
        _iperf3_of("iperf3 udp", _udp),
        *(_memcached_of(protocol) for protocol in memcached.PROTOCOLS),
        _nginx_of("1 KB", "1k"),
        _nginx_of("1 MB", "1m"),
        *(_postgresql_of(rate) for rate in (300, 500)),
    )
}


def families(names: Any) -> dict[str, list[Application]]:
    """Return applications by family, in the order in which they were named."""
    grouped: dict[str, list[Application]] = {}
    for name in names:
        grouped.setdefault(APPLICATIONS[name].family, []).append(APPLICATIONS[name])
    return grouped
