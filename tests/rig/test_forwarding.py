"""A chain of forwarders, on one host and on two: datagrams counted and captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from programs import needs

from labkit import pcap
from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.errors import HostUnreachable, ManipulationError, RigError
from labkit.hosts import Job, script
from labkit.placement import Placement, bare, container, docker
from labkit.rig import netns
from labkit.rig.base import Rig
from labkit.runtimes import Instance, Server
from labkit.runtimes.docker import Docker
from labkit.tools import datagrams, socat

pytestmark = pytest.mark.rig
OPEN = {
    "peer": ("net",),
    "clean_peer": True,
    "networks": ("nat", "macvlan"),
    "collector": ("generator",),
}
FIRST, SINK, RATE = 20000, 19999, 2000
Left = Callable[[], list[str]]
#: Placements, and hosts of their chain: with two, hops of both are counted and captured.
CHAINS = [
    *((docker("nat"), hosts) for hosts in (1, 2)),
    *((place, 2) for place in (bare("clean"), docker("macvlan"), container("lxc", "nat"))),
    *(
        pytest.param(container("rkt", network), 2, marks=needs("rkt"))
        for network in ("nat", "macvlan")
    ),
]


def placed(trial: Trial, stack: ExitStack, place: Placement, hosts: int, hops: int) -> list[Server]:
    """Place the sink and the chain before it, all hops at once; return the sink and the hops."""
    cpus = {"cpus": trial.cpus("generator")}
    sink = trial.serve(datagrams.sink(SINK), bare("clean"), name="sink", at="generator", **cpus)
    end = stack.enter_context(sink)
    roles = ["peer" if hosts == 2 and hop % 2 else "" for hop in range(hops)]
    ends = [(trial.address(place, after=n, at=at), FIRST + n) for n, at in enumerate(roles)]
    wanted = [
        {"workload": socat.forwarder(FIRST + n, *following), "placement": place}
        | {"name": f"hop{n}", "at": roles[n]}
        for n, following in enumerate([*ends[1:], (end.address, SINK)])
    ]
    chain = stack.enter_context(trial.serve_all(wanted))
    assert [one.address for one in chain] == [address for address, _ in ends]
    return [end, *chain]


@contextmanager
def sender(trial: Trial, place: Placement) -> Iterator[Callable[[Server], float]]:
    """Start a sender before its chain; yield what sends for a second, and returns how much.

    It returns when nothing arrives at the sink any more: on a busy machine hops still forward when
    the sender has ended.
    """
    first = trial.address(place, after=1)
    load = datagrams.send(first, rate=RATE, size=28, seconds=1, port=FIRST)
    with trial.prepare(load, name="load") as sending:

        def send(sink: Server) -> float:
            watch = datagrams.watch(sink.address, sink.pid, 1)
            found = trial.measure_all({"send": (sending.ready(), None), "watch": (watch, None)})
            assert found["watch"].metrics["packets_per_s"] > 0
            return found["send"].metrics["sent"]

        yield send


@pytest.mark.parametrize(("place", "hosts"), CHAINS, ids=str)
def test_every_datagram_is_counted_and_captured(
    lab: Rig, make_trial: Callable[..., Trial], left: Left, place: Placement, hosts: int
) -> None:
    second = treatments.SecondHost(at=2, spread=True)
    assert second.feasibility(lab, hosts, {"placement": place}) is None
    trial = make_trial(place)
    with ExitStack() as stack:
        send = stack.enter_context(sender(trial, place))
        sink, *chain = placed(trial, stack, place, hosts, 3)
        assert len({one.host.name for one in chain}) == hosts
        # Each hop was verified, not only the first.
        assert len(trial.record["verifications"]) == 3
        with trial.capture(f"udp port {FIRST} or udp port {SINK}") as captured:
            sent = send(sink)
        found = trial.mechanisms
        drops = sum(found[name] for name in found if name.endswith("socket_drops"))
    # The sink's socket drops what arrives; the rest was dropped at the sockets of hops.
    assert drops == sent and found["sink_socket_drops"] > 0
    capture = pcap.read(captured.packets, captured.summary)
    ways = [capture.packets[capture.packets["dport"] == port] for port in (FIRST, SINK)]
    pairs, _ = pcap.pair(*ways)
    assert len(pairs) == found["sink_socket_drops"]
    assert len(pairs) < 10 or pairs["residence_ns"].min() > 0
    assert capture.dropped == 0
    assert left() == []


@needs("rkt")
def test_twenty_pods_of_rkt_start_at_once(
    lab: Rig, make_trial: Callable[..., Trial], left: Left
) -> None:
    # Half of such chains failed while systemd in the pod had journald twice.
    pod = container("rkt", "macvlan")
    trial = make_trial(pod)
    with ExitStack() as stack:
        assert len(placed(trial, stack, pod, 1, 20)) == 21
    assert left() == []


@pytest.mark.parametrize("place", [bare("clean"), docker("nat")], ids=str)
def test_an_overloaded_chain_is_measured_with_its_loss(
    lab: Rig, make_trial: Callable[..., Trial], left: Left, place: Placement
) -> None:
    trial = make_trial(place)
    first = trial.address(place, after=1)
    load = datagrams.send(first, rate=10_000_000, size=28, seconds=1, port=FIRST)
    with ExitStack() as stack:
        sender = stack.enter_context(trial.prepare(load, name="load"))
        sink, *_ = placed(trial, stack, place, 1, 5)
        watch = datagrams.watch(sink.address, sink.pid, 1)
        found = trial.measure_all({"send": (sender.ready(), None), "watch": (watch, None)})
    # It ended by itself: a window that goes on too long is a failed trial.
    sent, drops = found["send"].metrics["sent"], trial.mechanisms
    arrived = drops["sink_socket_drops"]
    dropped = sum(drops[name] for name in drops if name.endswith("socket_drops")) - arrived
    assert 0 < found["watch"].metrics["packets_per_s"] < sent
    assert 0 < arrived < sent and dropped > 0
    if place == bare("clean"):
        # Every datagram that did not arrive was dropped where drops are counted.
        assert arrived + dropped == sent
    assert any("rate not reached" in flag for flag in trial.record["flags"])
    assert left() == []


def test_drops_of_sockets_are_read_on_each_host(lab: Rig, label: str, left: Left) -> None:
    """As on separate machines: three hosts as if each had a kernel."""
    every = {f"all.{role}": netns.all_cpus() for role in lab.hosts}
    fields = vars(lab) | {"shared_kernel": False, "cpu_map": lab.cpu_map | every}
    levels = {"placement": docker("nat"), "affinity": "free"}
    rig, pinned = type(lab)(**fields), {"affinity": treatments.Pinning()}
    trial = Trial(rig, levels, label, treatments=pinned)
    with ExitStack() as stack:
        send = stack.enter_context(sender(trial, docker("nat")))
        sent = send(placed(trial, stack, docker("nat"), 2, 3)[0])
        found = trial.mechanisms
    names = ("sink_socket_drops", "socket_drops", "hop1_socket_drops", "hop2_socket_drops")
    assert sum(found[name] for name in names) == sent and found["sink_socket_drops"] > 0
    hosts = {lab.hosts[role].name for role in ("generator", "peer")}
    assert hosts == set(trial.record["evidence"]) - {"before", "after"}
    assert left() == []


def test_a_connection_lost_while_a_chain_is_stopped_leaves_nothing(
    lab: Rig, make_trial: Callable[..., Trial], left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hops share the host's connection: it is lost for all of them."""
    trial, stop, lost = make_trial(bare("clean")), Job.stop, []

    def cut(job: Job, grace: float = 2.0) -> None:
        if "-hop1" in job.directory and not lost:
            lost.append(job)
            job.host.close()
            raise HostUnreachable("the connection dropped during a command")
        stop(job, grace)

    monkeypatch.setattr(Job, "stop", cut)
    # The loss is an error of the trial where it meets the reading of another hop's output.
    with suppress(HostUnreachable), ExitStack() as stack:
        placed(trial, stack, bare("clean"), 1, 5)
    assert lost and left() == []


def test_a_mislabelled_hop_ends_the_chain(
    lab: Rig, make_trial: Callable[..., Trial], left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, options = make_trial(docker("macvlan")), Docker.network

    def wrong(engine: Docker, instance: Instance) -> list[str]:
        lies = instance.workload.port == FIRST + 2
        return ["--network", "host"] if lies else options(engine, instance)

    monkeypatch.setattr(Docker, "network", wrong)
    with ExitStack() as stack, pytest.raises(ManipulationError, match="network: the host's"):
        placed(trial, stack, docker("macvlan"), 1, 4)
    assert left() == []


def test_a_proxy_instead_of_address_translation_is_an_error(
    lab: Rig, make_trial: Callable[..., Trial], left: Left
) -> None:
    trial = make_trial(docker("nat"))
    with ExitStack() as stack:
        placed(trial, stack, docker("nat"), 1, 1)
        target = lab.targets["sut"]
        # Now a process of the host answers on the port, as the engine's proxy would.
        text = "iptables -t nat -S DOCKER | sed -n 's/^-A \\(.*dport 20000.*\\)/-D \\1/p' | " + (
            'while read -r rule; do eval "iptables -t nat $rule"; done'
        )
        target.host.run(*script(text))
        load = datagrams.send(target.address, rate=100, size=28, seconds=1, port=FIRST)
        with pytest.raises(ManipulationError, match=r"NAT from .*: none, not to it"):
            trial.measure(load)
    assert left() == []


def test_the_description_of_the_collector_names_mirrored_roles(lab: Rig) -> None:
    assert lab.describe()["hosts"]["collector"] == {
        "addresses": [],
        "cpus": lab.cpu_map["harness"],
        "engine": False,
        "mirrors": ["generator"],
    }


def test_without_a_collector_nothing_is_captured(
    lab: Rig, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {role: target for role, target in lab.targets.items() if role != "collector"}
    monkeypatch.setattr(lab, "targets", others)
    with pytest.raises(RigError, match="no collector"), make_trial(bare("clean")).capture():
        pass
