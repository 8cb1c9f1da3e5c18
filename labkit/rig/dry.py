"""The dry rig: a virtual rig as it was recorded. It shows plans, without root, and runs nothing.

``dry.json`` is what this printed on a machine with two CPUs::

    with Rig.open("virtual") as rig:
        print(json.dumps({"rig": rig.describe(), "facts": rig.facts()["sut"]}))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from typing import Any

from labkit.hosts import Host, Result
from labkit.hosts.target import Target
from labkit.placement import RELEASES
from labkit.rig import netns, virtual
from labkit.rig.base import Additions, Rig
from labkit.rig.images import Say


class DryHost(Host):
    """A host that runs nothing, and has what a plan asks for."""

    def __init__(self, name: str, facts: dict[str, Any]) -> None:
        super().__init__(name)
        self.facts = facts

    def run(self, *argv: str, **options: Any) -> Result:
        """Return the result of a command that succeeds and prints nothing."""
        return Result(argv, self.name, 0, "", "", 0.0)

    def call(self, function: str, **arguments: Any) -> Any:
        """Return the recorded facts, or that a device has one queue and its offloads."""
        queue = {"/sys/class/net/lab0/queues/rx-0/rps_cpus": "0"}
        return {"facts": self.facts, "files": queue, "get_value": "on"}.get(function)


def check(spec: str) -> None:
    """Accept every machine and user."""


@contextmanager
def opened(spec: str, added: Additions, say: Say) -> Iterator[Rig]:
    """Yield the recorded rig, with the hosts that a study adds."""
    recorded = json.loads(resources.files("labkit.rig").joinpath("dry.json").read_text("utf-8"))
    rig, roles = recorded["rig"], virtual.roles_with(added)
    engines = dict.fromkeys(["sut", netns.PEER, *RELEASES], "unix:///dry")
    targets = {}
    for role in roles:
        host, address = DryHost(role, recorded["facts"]), netns.address(role)
        target = Target(host, address, engines.get(role), addresses=(address,))
        targets[role] = replace(target, interfaces=("lab0",))
    yield Rig(
        name="dry",
        kind="dry",
        targets=targets,
        cpu_map=virtual.with_added(rig["cpu_map"], roles),
        shared_kernel=True,
        links=tuple(rig["links"]),
        caveats=tuple(rig["caveats"]),
        missing=rig["capabilities"],
    )
