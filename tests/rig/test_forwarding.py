"""A chain of forwarders on the real rig: on one host and on two, counted and captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from labkit.benchmarks import datagrams, socat
from labkit.campaign.trial import Trial
from labkit.capture import number, pair, parse_drops, read
from labkit.errors import ManipulationError, RigError
from labkit.hosts import script
from labkit.placement import Placement, bare, container, docker
from labkit.rig.base import Rig

pytestmark = pytest.mark.rig
FIRST, SINK, RATE = 20000, 19999, 2000
Left = Callable[[], list[str]]
PLACES = [bare("clean"), docker("nat"), docker("macvlan"), container("lxc", "nat")]


@pytest.fixture(scope="module")
def watched(lab: Rig) -> Iterator[Rig]:
    with lab.peer(images=["net"]), lab.networks(["nat", "macvlan"]), lab.collector("generator"):
        yield lab


def placed(trial: Trial, stack: ExitStack, place: Placement, hosts: int, hops: int) -> str:
    """Place the sink and the chain before it; return the address of the first hop."""
    cpus = {"cpus": trial.cpus("generator")}
    sink = trial.serve(datagrams.sink(SINK), bare("clean"), name="sink", at="generator", **cpus)
    following, port = stack.enter_context(sink).address, SINK
    for hop in reversed(range(hops)):
        workload = socat.forwarder(FIRST + hop, following, port)
        away = {"at": "peer", "cpus": trial.cpus("peer")} if hosts == 2 and hop % 2 else {}
        serving = trial.serve(workload, place, name=f"hop{hop}", **away)
        following, port = stack.enter_context(serving).address, FIRST + hop
    return following


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_every_datagram_is_counted_and_captured(
    watched: Rig, make_trial: Callable[..., Trial], left: Left, place: Placement, hosts: int
) -> None:
    if hosts == 2 and place == bare("clean"):
        reason = watched.refuse({"placement": place, "hosts": 2})
        assert reason == "the rig has one host without an engine"
        return
    trial = make_trial(place)
    with ExitStack() as stack:
        first = placed(trial, stack, place, hosts, 3)
        load = datagrams.send(first, rate=RATE, size=28, seconds=1, port=FIRST)
        with trial.capture(f"udp port {FIRST} or udp port {SINK}") as captured:
            reading = trial.measure(load)
        found = trial.mechanisms
        drops = sum(found[name] for name in found if name.endswith("socket_drops"))
    # What arrived is what the sink's socket dropped; the rest was dropped at the sockets of hops.
    assert drops == reading.metrics["sent"] and found["sink_socket_drops"] > 0
    seen = read(captured.packets)
    pairs = pair(seen.where(dport=FIRST), seen.where(dport=SINK), number())
    assert len(pairs) == found["sink_socket_drops"]
    assert len(pairs) < 10 or pairs.residence_ns.min() > 0
    assert parse_drops(captured.summary).flags == ()
    assert left() == []


def test_a_proxy_in_the_way_is_seen(
    watched: Rig, make_trial: Callable[..., Trial], left: Left
) -> None:
    trial = make_trial(docker("nat"))
    with ExitStack() as stack:
        placed(trial, stack, docker("nat"), 1, 1)
        site = watched.sites["sut"]
        # What answers on the port now is a process of the host, as the engine's proxy would be.
        text = "iptables -t nat -S DOCKER | sed -n 's/^-A \\(.*dport 20000.*\\)/-D \\1/p' | " + (
            'while read -r rule; do eval "iptables -t nat $rule"; done'
        )
        site.host.run(*script(text))
        load = datagrams.send(site.address, rate=100, size=28, seconds=1, port=FIRST)
        with pytest.raises(ManipulationError, match="did not pass the address translation"):
            trial.measure(load)
    assert left() == []


def test_without_a_collector_nothing_is_captured(
    lab: Rig, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {role: site for role, site in lab.sites.items() if role != "collector"}
    monkeypatch.setattr(lab, "sites", others)
    with pytest.raises(RigError, match="no collector"), make_trial(bare("clean")).capture():
        pass
