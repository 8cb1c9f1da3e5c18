"""Benchmark tools: ``from labkit.tools import services, thrift_rpc``; and applications.

An application is a server, and a load on it whose metrics have the same names for every tool. By
default the loads time every operation; `with_tools` takes those of the papers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from labkit.data import refuse_unknown
from labkit.errors import ToolOutput
from labkit.placement import Placement, Workload, waiting
from labkit.tools import iperf3, memcached, nginx, pgbench
from labkit.tools.base import Client, Measurement, first_built, flag
from labkit.tools.ping_pong import sockperf

__all__ = ["APPLICATIONS", "Client", "Measurement", "ToolOutput", "families", "measure_in_turn"]
__all__ += ["sockperf", "waiting", "with_tools"]
Loads = Mapping[str, Mapping[str, Any]]
#: Modules with `SERVER`, `LOADS` (the client of each tool, the default first), and
#: `APPLICATIONS` (options of the load by name).
FAMILIES = {"iperf3": iperf3, "memcached": memcached, "nginx": nginx, "postgresql": pgbench}


@dataclass(frozen=True)
class Application:
    """A server that a family shares, and the load on it, by its tool."""

    name: str
    family: str
    tool: str
    server: Workload
    load: Callable[..., Client]

    def client(self, address: str, *, seconds: int, **options: Any) -> Client:
        """Return the load on a server, to be run inside a placement; options are the load's."""
        client = self.load(address, seconds=seconds, **options)

        def parse(stdout: str, log: str) -> Measurement:
            found = client.parse(stdout, log)
            share = found.metrics.get("tool_cpu", 0.0)
            limit = f"the load used {share:.0%} of its CPUs: it may be the limit"
            flags = (*found.flags, *flag(limit, share > 0.95))
            return replace(found, flags=tuple(f"{self.name}: {text}" for text in flags))

        return replace(client, parse=parse)


def with_tools(tools: Mapping[str, str]) -> dict[str, Application]:
    """Return every application by its name, with other tools: ``{"nginx": "wrk2 or h2load"}``."""
    refuse_unknown("family", tools, FAMILIES)
    found = {}
    for family, module in FAMILIES.items():
        tool = first_built(tools.get(family, next(iter(module.LOADS))), module.LOADS)
        label = f"the load on {family}" if tool == "labkit" else tool
        for name, options in module.APPLICATIONS.items():
            load = partial(module.LOADS[tool], **options)
            found[name] = Application(name, family, label, module.SERVER, load)
    return found


#: Every application by its name, in the order of their families, with the default tools.
APPLICATIONS: Mapping[str, Application] = with_tools({})


def families(names: Iterable[str]) -> dict[str, list[Application]]:
    """Return applications by family, in the order in which they were named."""
    grouped: dict[str, list[Application]] = {}
    for name in names:
        grouped.setdefault(APPLICATIONS[name].family, []).append(APPLICATIONS[name])
    return grouped


def measure_in_turn(
    trial: Any, placement: Placement, members: Sequence[Application], *, seconds: int, loads: Loads
) -> Measurement:
    """Measure members of a family with one server, and one client on the second host.

    They take turns from block to block. The trial's row is that of the first; the others are rows,
    too. `loads` are options by family and by application.
    """
    order, measured = deque(members), dict[str, Measurement]()
    order.rotate(-trial.turn)
    at = {"name": "client", "at": "peer", "cpus": trial.cpus("peer")}
    with (
        trial.serve(order[0].server, placement) as server,
        trial.serve(waiting("apps"), placement, **at) as client,
    ):
        for one in order:
            options = {**loads.get(one.family, {}), **loads.get(one.name, {})}
            load = one.client(server.address, seconds=seconds, **options)
            found = trial.repeated(trial.measure, load, inside=client)
            measured[one.name] = replace(found, metrics=trial.mechanisms | dict(found.metrics))
    main = measured.pop(members[0].name)
    also = tuple(({"application": name}, one.metrics) for name, one in measured.items())
    return replace(main, also=also)
