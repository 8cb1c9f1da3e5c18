"""Applications whose server and client are in containers of two hosts, measured for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from labkit.campaign.evidence import KINDS
from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError
from labkit.placement import docker, waiting
from labkit.rig.base import Rig
from labkit.runtimes import networks
from labkit.tools.applications import APPLICATIONS, Application, families
from labkit.tools.base import Measurement

pytestmark = pytest.mark.rig
Left = Callable[[], list[str]]
Make = Callable[..., Trial]
Measure = Callable[..., Measurement]
FAMILIES = families(APPLICATIONS)


@pytest.fixture(scope="module", autouse=True)
def with_peer(lab: Rig) -> Iterator[None]:
    with lab.peer(images=["apps"]):
        yield


@contextmanager
def pair(trial: Trial, application: Application) -> Iterator[Measure]:
    """Place both ends; give what measures an application of the family for a second."""
    there = {"name": "client", "at": "peer", "cpus": trial.cpus("peer")}
    with (
        trial.serve(application.server(), trial.placement) as server,
        trial.serve(waiting("apps"), trial.placement, **there) as client,
    ):

        def measure(one: Application, **options: Any) -> Measurement:
            load = one.client(server.address, seconds=1, **options)
            return trial.measure(load, inside=client)

        yield measure


def busy(trial: Trial, cpus: str) -> float:
    """Return the share of its time in which a CPU was busy in the window, from the evidence."""
    found = trial.record["evidence"]
    before, after = (found[one]["cpu"][f"cpu{cpus}"] for one in ("before", "after"))
    spent = {kind: after[i] - before[i] for i, kind in enumerate(KINDS)}
    used = sum(spent[kind] for kind in ("user", "nice", "system", "irq", "softirq"))
    return used / sum(spent.values())


@pytest.mark.parametrize("network", ["host", "nat"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_application_is_measured(
    make_trial: Make, left: Left, family: str, network: str
) -> None:
    trial = make_trial(docker(network))
    with pair(trial, FAMILIES[family][0]) as measure:
        for one in FAMILIES[family]:
            metrics = measure(one).metrics
            found = trial.mechanisms
            rates = ("throughput_mbit_per_s", "transactions_per_s")
            assert max(metrics.get(name, 0) for name in rates) > 0, one.name
            assert metrics.get("latency_ns_mean", 1) > 0 and metrics.get("not_200", 0) == 0
            if one.name == "nginx 1 MB":
                assert metrics["body_b"] == 1 << 20
            if family == "nginx" and network == "nat":
                # All requests of a connection go over it; one more had the first request.
                assert found["Tcp.PassiveOpens"] == 101
            held = trial.record["verification"], trial.record["verifications"]["client"]
            own = [one["status"]["Cpus_allowed_list"] for one in held]
            for side, cpus in zip(("server", "client"), own, strict=True):
                assert found[f"{side}_cpu"] == pytest.approx(busy(trial, cpus), abs=0.02)
            assert own == ["1", "0"]
    assert left() == []


@pytest.mark.parametrize(
    ("name", "options"),
    [("nginx 1 MB", {"rate": 30_000}), ("postgresql 500/s", {"rate": 50_000})],
)
def test_what_cannot_be_reached_ends_as_planned_and_is_shown(
    make_trial: Make, left: Left, name: str, options: dict[str, int]
) -> None:
    trial, application = make_trial(docker("host")), APPLICATIONS[name]
    with pair(trial, application) as measure:
        found = measure(application, **options)
        # The server is not the worse for it: what it can do is done next.
        again = measure(application)
    assert 0 < found.metrics["reached"] < 0.9
    assert any(f"{name}: rate not reached" in flag for flag in trial.record["flags"])
    assert again.metrics["latency_ns_mean"] > 0
    assert left() == []


def test_a_port_that_is_published_for_one_transport_only_is_noticed(
    make_trial: Make, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, application = make_trial(docker("nat")), APPLICATIONS["iperf3 udp"]
    whole = networks.published
    monkeypatch.setattr(networks, "published", lambda *of: whole(*of)[:2])
    refused = pytest.raises(ManipulationError, match="port 5201/udp, to it")
    with refused, pair(trial, application):
        pass
    assert left() == []
