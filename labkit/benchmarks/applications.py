"""The applications of the studies over networks: a server, a load on it, and one set of words.

Those of a family share a server. Whatever the tool of a load calls what it measured, a `Reading`
from here has the words of ``data/claims.toml``. Where their user has built memtier_benchmark and
wrk2 for the image (``containers/apps/local``), as in the paper, these are the tools; the load on
memcached that is part of labkit, and h2load, are otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from labkit.benchmarks import h2load, iperf3, memcached, memtier, nginx, pgbench, wrk2
from labkit.benchmarks.base import Client, Reading
from labkit.hosts import Host
from labkit.paths import project
from labkit.placement import Workload

#: What the paper gave its loads, where it says so; `Application.client` takes others.
LOADS: Mapping[str, Mapping[str, Any]] = {
    # What the paper's UDP was offered it does not say, but more than went through.
    "iperf3": {"mbit_per_s": 0.0},
    "memcached": {"threads": 4, "connections": 50, "sets": 1, "gets": 10},
    "nginx": {"rate": 3000, "connections": 100},
    "postgresql": {"connections": 100, "threads": 4},
}
#: Seconds of load before what is measured, where the tool has such a time.
WARMUP = 0.5
#: Operations of memcached of which rows are kept; what is said of a window is of all.
KEPT = 5_000
_QUANTILES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Application:
    """One application, as both studies measure it.

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
    words : callable
        Takes the tool's `Reading`; returns its metrics in the words of the studies.
    probe : callable
        Takes a `Host`; returns the tool's version there.
    """

    name: str
    family: str
    tool: str
    server: Callable[..., Workload]
    load: Callable[..., Client]
    words: Callable[[Reading], dict[str, float]]
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
            Its Reading has the metrics ``throughput_mbit_per_s`` (10^6 bits; of memcached and nginx
            what their connections carried), ``requests_per_s`` or ``transactions_per_s``;
            ``offered_per_s`` and ``reached``, the share of it that was achieved, where there is a
            schedule; ``lost_share`` of datagrams; ``latency_ns_mean``, ``_min``, ``_median``,
            ``_p90``, ``_p95``, ``_p99``, ``_p999``, ``_max`` and the same as ``set_latency_ns`` and
            ``get_latency_ns``, all in ns; and whatever else the tool says. Samples are the tool's.
            Each flag begins with the application's name.
        """
        given = {**LOADS[self.family], **options}
        made = self.load(address, seconds=seconds, **given)
        return replace(made, parse=lambda out, log: self._read(made.parse(out, log)))

    def _read(self, found: Reading) -> Reading:
        metrics = {**found.metrics, **self.words(found)}
        flags = tuple(f"{self.name}: {flag}" for flag in found.flags)
        return replace(found, metrics=metrics, flags=flags)


def built(program: str) -> bool:
    """Tell whether a program that no package has was built for the image."""
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
    found = {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}
    for label, share in _QUANTILES.items():
        found[label] = float(np.quantile(values, share, method="inverted_cdf"))
    return {f"{name}_{label}": value for label, value in found.items()}


def _scheduled(achieved: float, offered: float) -> dict[str, float]:
    return {"offered_per_s": offered, "reached": achieved / offered}


def _iperf3(found: Reading) -> dict[str, float]:
    own = found.metrics
    words = {"lost_share": own["loss"]} if "loss" in own else {}
    if "requested_mbit_per_s" in own:
        words["reached"] = own["sent_mbit_per_s"] / own["requested_mbit_per_s"]
    return words


def _memcached(found: Reading) -> dict[str, float]:
    return {"requests_per_s": found.metrics["operations_per_s"]}


def _nginx(found: Reading) -> dict[str, float]:
    own = found.metrics
    words = {"requests_per_s": own["achieved_per_s"]}
    words |= _scheduled(own["achieved_per_s"], own["requested_per_s"])
    if "body_b" in own:
        words["throughput_mbit_per_s"] = own["body_b"] * own["achieved_per_s"] * 8e-6
    if "late_ns" in found.samples:
        took, late = (found.samples[name] for name in ("latency_ns", "late_ns"))
        words |= latency(took) | latency(took + late, "due_latency_ns")
    return words


def _postgresql(found: Reading) -> dict[str, float]:
    own = found.metrics
    words = {"transactions_per_s": own["achieved_per_s"]}
    words |= _scheduled(own["achieved_per_s"], own["requested_per_s"])
    words |= latency(found.samples["latency_ns"] - found.samples["lag_ns"], "service_latency_ns")
    return words | latency(found.samples["latency_ns"])


def _tcp(address: str, *, seconds: int, mbit_per_s: float) -> Client:
    return iperf3.tcp(address, seconds=seconds)


def _udp(address: str, *, seconds: int, mbit_per_s: float) -> Client:
    return iperf3.udp(address, seconds=seconds, mbit_per_s=mbit_per_s)


def _iperf3_of(name: str, load: Callable[..., Client]) -> Application:
    return Application(name, "iperf3", "iperf3", iperf3.server, load, _iperf3, iperf3.probe)


def _memcached_of(protocol: str) -> Application:
    paper = built("memtier_benchmark")

    def load(address: str, *, seconds: int, **options: Any) -> Client:
        given: dict[str, Any] = {"protocol": protocol, "seconds": seconds, "inside": True} | options
        if paper:
            return memtier.closed_loop(address, **given)
        return memcached.closed_loop(address, warmup=WARMUP, kept=KEPT, **given)

    name, tool = f"memcached {protocol}", memtier if paper else memcached
    return Application(name, "memcached", tool.TOOL, memcached.server, load, _memcached, tool.probe)


def _nginx_of(size: str, file: str) -> Application:
    paper = built("wrk2")

    def load(address: str, *, seconds: int, **options: Any) -> Client:
        if paper:
            return wrk2.constant_rate(address, file=file, seconds=seconds, **options)
        given: dict[str, Any] = {"file": file, "seconds": seconds, "warmup": WARMUP} | options
        return h2load.constant_rate(address, inside=True, **given)

    tool = wrk2 if paper else h2load
    return Application(f"nginx {size}", "nginx", tool.TOOL, nginx.server, load, _nginx, tool.probe)


def _postgresql_of(rate: int) -> Application:
    def load(address: str, *, seconds: int, **options: Any) -> Client:
        given: dict[str, Any] = {"rate": rate, "seconds": seconds} | options
        return pgbench.transactions(address, inside=True, **given)

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
    found: dict[str, list[Application]] = {}
    for name in names:
        found.setdefault(APPLICATIONS[name].family, []).append(APPLICATIONS[name])
    return found
