"""Every engine on every possible network of the real rig, and placements broken on purpose.

Infeasible pairs must raise an error; in CI, all pairs whose packages `make test` installs must be
feasible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from echoes import echoes
from programs import needs
from tampering import assert_untampered

from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError, PlacementError, RigError
from labkit.hosts.target import Target
from labkit.placement import ENGINES as ALL_ENGINES
from labkit.placement import Limits, Placement, Workload, container
from labkit.rig.base import Rig
from labkit.runtimes import RUNTIMES, Instance
from labkit.runtimes.base import Started
from labkit.runtimes.daemonless import withdraw
from labkit.runtimes.networks import NEVER
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
#: Those that a package installs; rkt has none.
ENGINES = tuple(name for name in ALL_ENGINES if name != "rkt")
RKT = pytest.param("rkt", marks=needs("rkt"))
CREATED = ("macvlan", "nat", "overlay")
#: Placements that need no network made for them; `test_placements.py` has their trials.
ELSEWHERE = [container("docker", network) for network in ("host", "bridge", "nat")]
PAIRS = [
    container(engine, network)
    for engine in ENGINES
    for network in ("host", "bridge", *CREATED)
    if not RUNTIMES[engine].infeasible(network) and container(engine, network) not in ELSEWHERE
]
PAIRS += [
    pytest.param(container("rkt", network), marks=needs("rkt"))
    for network in ("host", "bridge", "nat", "macvlan")
]
LIMITS = Limits("1", 512, 10_000, 5_000, 200_000_000)
#: Networks of containers only, on which the generator has no address.
ENGINES_ONLY = ("overlay",)
Left = Callable[[], list[str]]


@pytest.fixture(scope="module")
def networked(lab: Rig) -> Iterator[Rig]:
    with lab.peer(images=["net"]), lab.networks(CREATED):
        yield lab


def infeasible(lab: Rig, trial: Trial, placement: Placement) -> bool:
    """Return whether a placement is infeasible; if so, check that it raises an error."""
    reason = lab.infeasible(placement)
    if reason:
        serving = trial.serve(sockperf.server("block"), placement)
        with pytest.raises(RigError, match=re.escape(reason)), serving:
            pass
    return bool(reason)


@pytest.mark.skipif(not os.environ.get("LABKIT_REQUIRE_RIG"), reason="only in CI")
def test_installed_engines_are_feasible(lab: Rig) -> None:
    there = {engine for engine in ENGINES if not lab.infeasible(container(engine, "nat"))}
    assert there == set(ENGINES)
    created = {name for name in CREATED if not lab.infeasible(container("docker", name))}
    assert created == set(CREATED)


def ping_pong(address: str) -> Client:
    """Return a client for the inside of a placement, which has no log: its summary will do."""
    argv = ("sockperf", "ping-pong", "-i", address, "-p", "11111", "-t", "1")

    def parse(stdout: str, log: str) -> Measurement:
        received = re.search(r"\[Total Run\].*?ReceivedMessages=(\d+)", stdout)
        assert received, stdout
        return Measurement({}, {}, int(received[1]))

    return Client(argv, address, 4.0, parse)


@pytest.mark.parametrize("placement", PAIRS, ids=str)
def test_trial_on_each_engine_and_network(
    networked: Rig, make_trial: Callable[..., Trial], left: Left, placement: Placement
) -> None:
    trial = make_trial(placement)
    if infeasible(networked, trial, placement):
        return
    with trial.serve(sockperf.server("block"), placement) as server:
        assert networked.owns(server.address)
        if placement.network in ENGINES_ONLY:
            waits = Workload(("sleep", "infinity"), 0)
            far = trial.serve(waits, placement, name="client", at="peer")
            with far as client:
                measurement = trial.measure(ping_pong(server.address), inside=client)
        else:
            measurement = trial.measure(echoes(server.address, 500))
        assert left() != []
    assert measurement.messages > 0
    if placement.network not in ENGINES_ONLY:
        assert_untampered(trial)
    if placement.runtime in ENGINES:
        assert "sockperf" in trial.logs["server.log"]
    assert trial.record["verification"]["command"]
    assert not Path(f"/proc/{server.pid}").is_dir()
    assert left() == []


@pytest.mark.parametrize("engine", [*ENGINES, RKT])
def test_limits_on_each_engine(
    networked: Rig, make_trial: Callable[..., Trial], left: Left, engine: str
) -> None:
    placement = container(engine, "nat", LIMITS)
    trial = make_trial(placement)
    if infeasible(networked, trial, placement):
        return
    with trial.serve(sockperf.server("block"), placement):
        pass  # verification reads the limits
    assert left() == []


@pytest.mark.parametrize("engine", [*ENGINES, RKT])
def test_a_failing_container_raises_its_error(
    networked: Rig, make_trial: Callable[..., Trial], left: Left, engine: str
) -> None:
    placement = container(engine, "nat")
    trial = make_trial(placement)
    if infeasible(networked, trial, placement):
        return
    wrong = Workload(("sockperf", "server", "--no-such-option"), 11111)
    with (
        pytest.raises(Exception, match=r"did not (start|become ready)|ended at once"),
        trial.serve(wrong, placement),
    ):
        pass
    assert left() == []


def wrong_runtime(
    engine: str, network: str, after: Callable[[Target, Started], Any] | None = None
) -> Any:
    """Return a runtime that starts a container on another network than the placement says."""
    kind = type(RUNTIMES[engine])

    class Wrong(kind):  # type: ignore[misc, valid-type]
        def start(self, instance: Instance) -> Started:
            really = container(engine, network or instance.placement.network)
            started = super().start(replace(instance, placement=really))
            if after:
                after(instance.target, started)
            return started  # type: ignore[no-any-return]

    return Wrong()


BROKEN = [
    ("docker", "macvlan", "bridge", "macvlan of lab0: none"),
    ("docker", "bridge", "macvlan", "bridge labbr0: none"),
    ("docker", "overlay", "bridge", "tunnel: none"),
    ("docker", "nat", "bridge", "NAT from 198.18.0.3 udp: none"),
    ("lxc", "macvlan", "bridge", "macvlan of lab0: none"),
    ("lxc", "bridge", "host", "network: the host's"),
    pytest.param("rkt", "nat", "host", "network: the host's", marks=needs("rkt")),
]


@pytest.mark.parametrize(("engine", "label", "really", "why"), BROKEN)
def test_a_wrong_network_is_rejected(
    networked: Rig,
    make_trial: Callable[..., Trial],
    left: Left,
    engine: str,
    label: str,
    really: str,
    why: str,
) -> None:
    placement = container(engine, label)
    trial = make_trial(placement)
    if infeasible(networked, trial, placement):
        return
    trial._runtimes[engine] = wrong_runtime(engine, really)
    with (
        pytest.raises(ManipulationError, match=why),
        trial.serve(sockperf.server("block"), placement),
    ):
        pass
    assert left() == []


def unpublish(target: Target, started: Started) -> None:
    # As for what a killed campaign has left.
    assert withdraw(target.host, "trial-other") == []
    assert withdraw(target.host, "trial-")


def test_a_port_that_is_no_longer_published_is_rejected(
    networked: Rig, make_trial: Callable[..., Trial]
) -> None:
    placement = container("lxc", "nat")
    trial = make_trial(placement)
    if infeasible(networked, trial, placement):
        return
    trial._runtimes["lxc"] = wrong_runtime("lxc", "", unpublish)
    with (
        pytest.raises(ManipulationError, match=r"NAT from 198\.18\.0\.3 udp: none"),
        trial.serve(sockperf.server("block"), placement),
    ):
        pass


@pytest.mark.parametrize("network", sorted(NEVER))
def test_networks_that_cannot_be_measured(lab: Rig, network: str) -> None:
    for engine in ENGINES:
        assert lab.infeasible(container(engine, network)) == NEVER[network]


def test_a_network_that_is_not_set_up(
    lab: Rig, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = container("docker", "macvlan")
    target = replace(lab.targets["sut"], networks={})
    monkeypatch.setattr(lab, "targets", {**lab.targets, "sut": target})
    trial = make_trial(placement)
    with (
        pytest.raises(PlacementError, match="is not set up"),
        trial.serve(sockperf.server("block"), placement),
    ):
        pass
