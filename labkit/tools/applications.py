"""Applications: a server, and a load on it whose metrics have the same names for every tool.

The papers' loads on memcached and nginx, memtier_benchmark and wrk2, are taken where a study asks
for them (`with_tools`); otherwise labkit's own load and h2load, which time every operation.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

from labkit.hosts import Host
from labkit.placement import Workload
from labkit.tools import h2load, iperf3, memcached, memtier, nginx, pgbench, wrk2
from labkit.tools.base import Client, Measurement, first_built, one_of
from labkit.tools.parsing import flag

#: From this share of its CPUs on, a load is flagged as the possible bottleneck.
SATURATED = 0.95
#: The tools that a study may ask for, by family; the first is the default.
TOOLS: Mapping[str, Mapping[str, ModuleType]] = {
    "memcached": {"labkit": memcached, memtier.TOOL: memtier},
    "nginx": {h2load.TOOL: h2load, wrk2.TOOL: wrk2},
}


@dataclass(frozen=True)
class Application:
    """A server, and the load that measures it, with its tool's name and probe.

    Applications of a family share a server. Defaults of a load are the paper's where it has them.
    """

    name: str
    family: str
    tool: str
    probe: Callable[[Host], str]
    server: Callable[[], Workload]
    load: Callable[..., Client]

    def client(self, address: str, *, seconds: int, **options: Any) -> Client:
        """Return the load on a server, to be run inside a placement; options are the load's.

        Its metrics are ``throughput_mbit_per_s`` (of memcached and nginx what their connections
        carried), ``requests_per_s`` or ``transactions_per_s``; with a schedule ``offered_per_s``
        and ``reached``, the achieved share; ``lost_share``; statistics of ``latency_ns``,
        ``set_latency_ns`` and ``get_latency_ns``; and the tool's own.
        """
        client = self.load(address, seconds=seconds, **options)

        def parse(stdout: str, log: str) -> Measurement:
            found = client.parse(stdout, log)
            share = found.metrics.get("tool_cpu", 0.0)
            limit = f"the load used {share:.0%} of its CPUs: it may be the limit"
            flags = (*found.flags, *flag(limit, share > SATURATED))
            return replace(found, flags=tuple(f"{self.name}: {text}" for text in flags))

        return replace(client, parse=parse)


def with_tools(tools: Mapping[str, str]) -> dict[str, Application]:
    """Return every application by its name, those of some families with other tools.

    A tool of `TOOLS` by family, or several, as in ``"wrk2 or h2load"``: the first that images have.
    """
    for family in tools:
        one_of("family with several tools", family, tuple(TOOLS))
    cache, web = (
        known[first_built(tools.get(family, next(iter(known))), tuple(known))]
        for family, known in TOOLS.items()
    )
    found: dict[str, tuple[ModuleType, Callable[[], Workload], Callable[..., Client]]] = {}
    for protocol in ("tcp", "udp"):
        load = partial(iperf3.stream, protocol=protocol)
        found[f"iperf3 {protocol}"] = iperf3, iperf3.server, load
    for protocol in ("text", "binary"):
        load = partial(cache.closed_loop, protocol=protocol)
        found[f"memcached {protocol}"] = cache, memcached.server, load
    for size, file in {"1 KB": "1k", "1 MB": "1m"}.items():
        found[f"nginx {size}"] = web, nginx.server, partial(web.constant_rate, file=file)
    for rate in (300, 500):
        load = partial(pgbench.transactions, rate=rate)
        found[f"postgresql {rate}/s"] = pgbench, pgbench.server, load
    return {
        name: Application(name, name.split()[0], module.TOOL, module.probe, server, load)
        for name, (module, server, load) in found.items()
    }


#: Every application by its name, in the order of their families, with the default tools.
APPLICATIONS: Mapping[str, Application] = with_tools({})


def families(names: Iterable[str]) -> dict[str, list[Application]]:
    """Return applications by family, in the order in which they were named."""
    grouped: dict[str, list[Application]] = {}
    for name in names:
        grouped.setdefault(APPLICATIONS[name].family, []).append(APPLICATIONS[name])
    return grouped
