"""Every engine on every possible network of the real rig, and placements broken on purpose.

Infeasible pairs must raise an error; in CI, all pairs whose packages `make test` installs must be
feasible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from broken import broken
from echoes import echoes
from programs import needs
from tampering import assert_untampered

from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError, PlacementError, RigError
from labkit.hosts.target import Target
from labkit.placement import ENGINES as ALL_ENGINES
from labkit.placement import Limits, Placement, Workload, container, waiting
from labkit.rig.base import Rig
from labkit.runtimes import RUNTIMES
from labkit.runtimes.base import Started
from labkit.runtimes.jobs import withdraw
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
CREATED = ("macvlan", "nat", "overlay")
OPEN = {"peer": ("net",), "networks": CREATED}
RKT = needs("rkt")
ENGINES = [pytest.param(name, marks=[RKT] if name == "rkt" else []) for name in ALL_ENGINES]
#: Docker's placements on networks that need no creating are in `test_placements.py`.
ELSEWHERE = [container("docker", network) for network in ("host", "bridge", "nat")]
PAIRS = [
    pytest.param(placement, marks=[RKT] if engine == "rkt" else [])
    for engine in ALL_ENGINES
    for network in ("host", "bridge", *CREATED)
    if network not in RUNTIMES[engine].impossible
    if (placement := container(engine, network)) not in ELSEWHERE
]
LIMITS = Limits("1", 512, 10_000, 5_000, 200_000_000)
Left = Callable[[], list[str]]


def infeasible(lab: Rig, trial: Trial, placement: Placement) -> bool:
    """Return whether a placement is infeasible; if so, check that it raises an error."""
    reason = lab.infeasible(placement)
    if reason:
        serving = trial.serve(sockperf.server("block"), placement)
        with pytest.raises(RigError, match=re.escape(reason)), serving:
            pass
    return bool(reason)


@pytest.mark.skipif(not os.environ.get("LABKIT_REQUIRE_RIG"), reason="only in CI")
def test_installed_engines_and_networks_are_feasible(lab: Rig) -> None:
    pairs = [("lxc", "nat"), *(("docker", name) for name in CREATED)]
    assert {pair: lab.infeasible(container(*pair)) for pair in pairs} == dict.fromkeys(pairs)
    assert lab.infeasible(container("lxc", "overlay"))


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
    lab: Rig, make_trial: Callable[..., Trial], left: Left, placement: Placement
) -> None:
    trial = make_trial(placement)
    if infeasible(lab, trial, placement):
        return
    with trial.serve(sockperf.server("block"), placement) as server:
        assert lab.owns(server.address)
        if placement.network == "overlay":  # the generator has no address there
            with trial.serve(waiting("net"), placement, name="client", at="peer") as client:
                measurement = trial.measure(ping_pong(server.address), inside=client)
        else:
            measurement = trial.measure(echoes(server.address, 500))
        assert left() != []
    assert measurement.messages > 0
    if placement.network != "overlay":
        assert_untampered(trial)
    assert "sockperf" in trial.logs["server.log"]
    assert not Path(f"/proc/{server.pid}").is_dir()
    assert left() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_limits_and_failures_on_each_engine(
    lab: Rig, make_trial: Callable[..., Trial], left: Left, engine: str
) -> None:
    placement = container(engine, "nat", LIMITS)
    trial = make_trial(placement)
    if infeasible(lab, trial, placement):
        return
    with trial.serve(sockperf.server("block"), placement):
        pass  # verification reads the limits
    wrong = Workload(("sockperf", "server", "--no-such-option"), 11111)
    failure = pytest.raises(PlacementError, match=r"did not (start|become ready)|ended at once")
    with failure, trial.serve(wrong, placement):
        pass
    assert left() == []


def unpublish(target: Target, started: Started) -> None:
    # As for what a killed campaign has left.
    assert withdraw(target.host, "trial-other") == []
    assert withdraw(target.host, "trial-")


NO_NAT = "NAT from 198.18.0.3 udp: none"
BROKEN = [
    ("docker", "macvlan", "bridge", "macvlan of lab0: none"),
    ("docker", "bridge", "macvlan", "bridge labbr0: none"),
    ("docker", "overlay", "bridge", "tunnel: none"),
    ("docker", "nat", "bridge", NO_NAT),
    ("lxc", "macvlan", "bridge", "macvlan of lab0: none"),
    ("lxc", "bridge", "host", "network: the host's"),
    ("lxc", "nat", "unpublished", NO_NAT),
    pytest.param("rkt", "nat", "host", "network: the host's", marks=RKT),
]


@pytest.mark.parametrize(("engine", "network", "really", "why"), BROKEN)
def test_a_wrong_network_is_rejected(
    lab: Rig,
    make_trial: Callable[..., Trial],
    left: Left,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    network: str,
    really: str,
    why: str,
) -> None:
    placement = container(engine, network)
    trial = make_trial(placement)
    if infeasible(lab, trial, placement):
        return
    another = None if really == "unpublished" else container(engine, really)
    after = unpublish if really == "unpublished" else None
    monkeypatch.setitem(RUNTIMES, engine, broken(engine, another, after=after))
    serving = trial.serve(sockperf.server("block"), placement)
    with pytest.raises(ManipulationError, match=re.escape(why)), serving:
        pass
    assert left() == []


def test_a_network_that_is_not_set_up(
    lab: Rig, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(lab.targets["sut"], networks={})
    monkeypatch.setattr(lab, "targets", {**lab.targets, "sut": target})
    placement = container("docker", "macvlan")
    serving = make_trial(placement).serve(sockperf.server("block"), placement)
    with pytest.raises(PlacementError, match="is not set up"), serving:
        pass
    assert RUNTIMES["lxc"].impossible["overlay"] == lab.infeasible(container("lxc", "overlay"))
