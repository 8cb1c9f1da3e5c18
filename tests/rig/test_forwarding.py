"""A chain of forwarders, on one host and on two: datagrams counted and captured."""

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import pytest
from loads import needs

from labkit import pcap
from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.errors import HostUnreachable
from labkit.hosts import Host
from labkit.placement import bare, container, docker
from labkit.tools import datagrams

pytestmark = pytest.mark.rig
FIRST, SINK, RATE = 20000, 19999, 2000
CLEAN, NAT, MACVLAN = bare("clean"), docker("nat"), docker("macvlan")


def placed(trial, stack, place, hosts, hops):
    """Place the sink and the chain before it, all hops at once; return the sink and the hops."""
    cpus = {"cpus": trial.cpus("generator")}
    sink = trial.serve(datagrams.sink(SINK), bare("clean"), name="sink", at="generator", **cpus)
    end = stack.enter_context(sink)
    roles = ["peer" if hosts == 2 and hop % 2 else "" for hop in range(hops)]
    ends = [(trial.address(place, after=n, at=at), FIRST + n) for n, at in enumerate(roles)]
    wanted = [
        {"workload": datagrams.forwarder(FIRST + n, *following), "placement": place}
        | {"name": f"hop{n}", "at": roles[n]}
        for n, following in enumerate([*ends[1:], (end.address, SINK)])
    ]
    chain = stack.enter_context(trial.serve_all(wanted))
    assert [one.address for one in chain] == [address for address, _ in ends]
    return [end, *chain]


@contextmanager
def sender(trial, place, rate=RATE):
    """Start a sender before its chain; yield what sends for a second, and returns its metrics."""
    load = datagrams.send(trial.address(place, after=1), rate=rate, size=28, seconds=1, port=FIRST)
    with trial.prepare(load, name="load") as sending:

        def send(sink):
            watch = datagrams.watch(sink.address, sink.pid, 1)
            found = trial.measure_all({"send": (sending(), None), "watch": (watch, None)})
            assert found["watch"].metrics["packets_per_s"] > 0
            return {**found["send"].metrics, **found["watch"].metrics}

        yield send


def drops(trial):
    """Return the datagrams that arrived, which the sink drops, and those that hops dropped."""
    found = {name: x for name, x in trial.mechanisms.items() if name.endswith("socket_drops")}
    arrived = found["sink_socket_drops"]
    return arrived, sum(found.values()) - arrived


@pytest.mark.parametrize(
    ("place", "hosts"),
    [
        *((NAT, hosts) for hosts in (1, 2)),
        *((place, 2) for place in (CLEAN, MACVLAN, container("lxc", "nat"))),
        pytest.param(container("rkt", "macvlan"), 2, marks=needs("rkt")),
    ],
    ids=str,
)
def test_every_datagram_is_counted_and_captured(lab, label, make_trial, place, hosts):
    second = treatments.SecondHost(at=2, spread=True)
    assert second.feasibility(lab, hosts, {"placement": place}) is None
    mirrored = replace(lab, mirrors=("generator",))
    trial = Trial(mirrored, {"placement": place}, label)
    with ExitStack() as stack:
        send = stack.enter_context(sender(trial, place))
        sink, *chain = placed(trial, stack, place, hosts, 3)
        assert len({one.host.name for one in chain}) == hosts
        # Each hop was verified, not only the first.
        assert len(trial.record["verifications"]) == 3
        with trial.capture(f"udp port {FIRST} or udp port {SINK}") as captured:
            sent = send(sink)["sent"]
    arrived, dropped = drops(trial)
    assert arrived + dropped == sent and arrived > 0
    capture = pcap.read(captured.packets, captured.summary)
    ways = [capture.packets[capture.packets["dport"] == port] for port in (FIRST, SINK)]
    pairs, _ = pcap.pair(*ways)
    assert len(pairs) == arrived and capture.dropped == 0
    assert len(pairs) < 10 or pairs["residence_ns"].min() > 0


@pytest.mark.parametrize("place", [CLEAN, NAT], ids=str)
def test_an_overloaded_chain_is_measured_with_its_loss(make_trial, place):
    trial = make_trial(place)
    with ExitStack() as stack:
        send = stack.enter_context(sender(trial, place, rate=10_000_000))
        sink, *_ = placed(trial, stack, place, 1, 5)
        metrics = send(sink)
    # It ended by itself: a window that goes on too long is a failed trial.
    arrived, dropped = drops(trial)
    assert 0 < metrics["packets_per_s"] < metrics["sent"]
    assert 0 < arrived < metrics["sent"] and dropped > 0
    if place == CLEAN:
        # Every datagram that did not arrive was dropped where drops are counted.
        assert arrived + dropped == metrics["sent"]
    assert any("rate not reached" in flag for flag in trial.flags)


def test_drops_of_sockets_are_read_on_each_host(lab, label):
    """As on separate machines: three hosts as if each had a kernel."""
    every = {f"all.{role}": lab.cpu_map["all"] for role in lab.hosts}
    rig = replace(lab, shared_kernel=False, cpu_map={**lab.cpu_map, **every})
    levels = {"placement": NAT, "affinity": "free"}
    trial = Trial(rig, levels, label, treatments={"affinity": treatments.Pinning()})
    with ExitStack() as stack:
        send = stack.enter_context(sender(trial, NAT))
        sent = send(placed(trial, stack, NAT, 2, 3)[0])["sent"]
    arrived, dropped = drops(trial)
    assert arrived + dropped == sent and arrived > 0
    hosts = {lab.hosts[role].name for role in ("generator", "peer")}
    assert hosts == set(trial.record["evidence"]) - {"before", "after"}


def test_a_connection_lost_while_a_chain_is_stopped_leaves_nothing(make_trial, monkeypatch):
    """The hops share the host's connection: it is lost for all of them."""
    trial, call, lost = make_trial(CLEAN), Host.call, []

    def cut(host, function, **arguments):
        if function == "stop_placement" and "-hop1" in arguments["folder"] and not lost:
            lost.append(host)
            host.close()
            raise HostUnreachable("the connection dropped during a command")
        return call(host, function, **arguments)

    monkeypatch.setattr(Host, "call", cut)
    # The loss is an error of the trial where it meets the reading of another hop's output.
    with suppress(HostUnreachable), ExitStack() as stack:
        placed(trial, stack, CLEAN, 1, 5)
    assert lost
