"""Applications whose server and client are in containers of two hosts, in short windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from programs import needs

from labkit.campaign.counters import KINDS
from labkit.campaign.treatments import ENDS
from labkit.campaign.trial import Trial
from labkit.errors import ManipulationError
from labkit.placement import Placement, cpu_set, docker, waiting
from labkit.rig.base import Rig
from labkit.runtimes import docker as engine
from labkit.tools.applications import APPLICATIONS, Application, families, with_tools
from labkit.tools.base import Measurement

pytestmark = pytest.mark.rig
OPEN = {"peer": ("apps",), "networks": ("overlay",)}
Left = Callable[[], list[str]]
Make = Callable[..., Trial]
Measure = Callable[..., Measurement]
FAMILIES = families(APPLICATIONS)
#: The time in which pgbench opens its connections, beyond what is planned for it, is lost to its
#: window: on a busy machine a hundred take seconds.
FEW = {"postgresql": {"connections": 10, "seconds": 2}}
MANY = {"connections": 100, "seconds": 6}


@contextmanager
def pair(trial: Trial, place: Placement, application: Application) -> Iterator[Measure]:
    """Place both ends, and yield a function that measures an application of the family."""
    peer = {"name": "client", "at": "peer", "cpus": trial.cpus("peer")}
    with (
        trial.serve(application.server(), place) as server,
        trial.serve(waiting("apps"), place, **peer) as client,
    ):

        def measure(application: Application, **options: Any) -> Measurement:
            given = {"seconds": 1} | FEW.get(application.family, {}) | options
            return trial.measure(application.client(server.address, **given), inside=client)

        yield measure


def busy(trial: Trial, cpus: str) -> float:
    """Return the share of its time in which a CPU was busy in the window, from the evidence."""
    evidence = trial.record["evidence"]
    before, after = (evidence[when]["cpu"][f"cpu{cpus}"] for when in ("before", "after"))
    spent = {kind: after[i] - before[i] for i, kind in enumerate(KINDS)}
    used = sum(spent[kind] for kind in ("user", "nice", "system", "irq", "softirq"))
    return used / sum(spent.values())


def test_without_tunnel_offload_a_stream_is_cut_into_packets(lab: Rig, make_trial: Make) -> None:
    folder = f"{lab.targets['sut'].sysfs}/class/net/lab0/statistics"

    def received() -> list[int]:
        text = lab.hosts["sut"].run("cat", f"{folder}/rx_bytes", f"{folder}/rx_packets").stdout
        return [int(number) for number in text.split()]

    sizes = {}
    for level in ("as found", "off", "as found"):
        trial = make_trial(docker("overlay"), tunnel_offload=level)
        application = APPLICATIONS["iperf3 tcp"]
        with trial.treated(), pair(trial, docker("overlay"), application) as measure:
            before = received()
            measure(application)
            count, packets = (b - a for a, b in zip(before, received(), strict=True))
        sizes.setdefault(level, []).append(count / packets)
    assert max(sizes["off"]) <= 1600 < 3 * 1600 < min(sizes["as found"])


def test_a_host_takes_in_its_packets_on_its_own_cpu(lab: Rig, make_trial: Make) -> None:
    shares = {}
    for level in ("as found", "own"):
        trial = make_trial(docker("nat"), receiving_cpu=level)
        application = APPLICATIONS["iperf3 udp"]
        with trial.treated(), pair(trial, docker("nat"), application) as measure:
            # What a busy machine can send without a loss.
            measure(application, mbit_per_s=50)
        sut, peer = (
            sum(trial.mechanisms[f"cpu{cpu}_packets"] for cpu in cpu_set(lab.cpus(role, "split")))
            for role in ENDS
        )
        shares[level] = sut / (sut + peer)
    # Datagrams go from the client to the server alone, and are queued before the server's
    # interface too, which is the sender's work in any case.
    assert shares["as found"] < 0.1 and shares["own"] > 0.3


# Networks do not differ by application: one over the network of the host is enough.
@pytest.mark.parametrize(
    ("family", "network"), [*((family, "nat") for family in FAMILIES), ("iperf3", "host")]
)
def test_every_application_is_measured(
    make_trial: Make, left: Left, family: str, network: str
) -> None:
    trial = make_trial(docker(network))
    with pair(trial, docker(network), FAMILIES[family][0]) as measure:
        for application in FAMILIES[family]:
            metrics = measure(application).metrics
            mechanisms = trial.mechanisms
            rates = ("throughput_mbit_per_s", "transactions_per_s")
            assert max(metrics.get(name, 0) for name in rates) > 0, application.name
            assert metrics.get("latency_ns_mean", 1) > 0 and metrics.get("not_200", 0) == 0
            if application.name == "nginx 1 MB":
                assert metrics["body_b"] == 1 << 20
            if family == "nginx" and network == "nat":
                # All requests of a connection go over it; one more had the first request.
                assert mechanisms["Tcp.PassiveOpens"] == 101
            ends = trial.record["verification"], trial.record["verifications"]["client"]
            cpus_of = [end["allowed CPUs"] for end in ends]
            for side, cpus in zip(("server", "client"), cpus_of, strict=True):
                assert mechanisms[f"{side}_cpu"] == pytest.approx(busy(trial, cpus), abs=0.02)
            assert cpus_of == ["1", "0"]
    assert left() == []


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        pytest.param(name, tool, marks=needs(tool))
        for name, tool in {"memcached text": "memtier_benchmark", "nginx 1 KB": "wrk2"}.items()
    ],
)
def test_the_paper_s_own_loads(make_trial: Make, left: Left, name: str, tool: str) -> None:
    application = with_tools({name.split()[0]: tool})[name]
    trial = make_trial(docker("host"))
    with pair(trial, docker("host"), application) as measure:
        metrics = measure(application, **({"rate": 500} if tool == "wrk2" else {})).metrics
    assert metrics["requests_per_s"] > 0 and metrics["latency_ns_p99"] > 0
    # So that a load that is the limit itself is known. memtier_benchmark runs for longer than the
    # second in which it sends, and what it does before and after counts too.
    assert 0 < metrics["tool_cpu"] <= (1.05 if tool == "wrk2" else 2.5)
    assert left() == []


@pytest.mark.parametrize(
    ("name", "options"),
    [("nginx 1 MB", {"rate": 30_000}), ("postgresql 500/s", {"rate": 50_000} | MANY)],
)
def test_a_rate_that_cannot_be_reached_is_flagged(
    make_trial: Make, left: Left, name: str, options: dict[str, int]
) -> None:
    trial, application = make_trial(docker("host")), APPLICATIONS[name]
    with pair(trial, docker("host"), application) as measure:
        overloaded = measure(application, **options)
        again = measure(application)  # the server still works
    assert 0 < overloaded.metrics["reached"] < 0.9
    assert any(f"{name}: rate not reached" in flag for flag in trial.record["flags"])
    assert again.metrics["latency_ns_mean"] > 0
    assert left() == []


def test_a_port_that_is_published_for_one_transport_only_is_noticed(
    make_trial: Make, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, application = make_trial(docker("nat")), APPLICATIONS["iperf3 udp"]
    network = engine.Docker.network
    monkeypatch.setattr(engine.Docker, "network", lambda *of: network(*of)[:4])
    error = pytest.raises(ManipulationError, match=r"NAT from .* udp: none, not to it")
    with error, pair(trial, docker("nat"), application):
        pass
    assert left() == []
