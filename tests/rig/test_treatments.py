"""Treatments on the real rig: set, verified in the window, restored; and captures."""

import os
import re
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from loads import echoes, needs, shell
from notebook_studies import declared

from labkit.campaign import treatments
from labkit.campaign.trial import Trial
from labkit.errors import CommandFailed, ManipulationError, ToolOutput
from labkit.hosts import Host, Settings
from labkit.hosts.agent import LATENCY
from labkit.placement import bare, cpu_mask, docker, waiting
from labkit.rig import netns
from labkit.tools import APPLICATIONS, sockperf, thrift_rpc

pytestmark = pytest.mark.rig
HOST, NAT, RULES = docker("host"), docker("nat"), bare("rules")
TCP = Path("/proc/sys/net/ipv4")

# Congestion control.

# Opens a connection, and prints the algorithm of both of its ends.
CONNECT = """
exec 3<>"/dev/tcp/$1/$2"
sleep 0.1
ss -tinH dst "$1:$2" | grep -E 'cubic|reno|bbr'
nsenter -t "$3" -n ss -tinH state established sport ":$2" | grep -E 'cubic|reno|bbr'
"""


def control(name):
    return (TCP / f"tcp_{name}").read_text().split()


def controls(lab):
    """Return the algorithms of the hosts, and what the machine uses and allows."""
    argv = ("cat", str(TCP / "tcp_congestion_control"))
    hosts = {role: host.run(*argv).stdout.strip() for role, host in lab.hosts.items()}
    return hosts, control("congestion_control"), control("allowed_congestion_control")


@pytest.mark.parametrize("placement", [bare("clean"), HOST, NAT], ids=str)
def test_both_ends_use_a_congestion_control_and_it_is_restored(lab, make_trial, placement):
    before, allowed = controls(lab), control("allowed_congestion_control")
    others = {*control("available_congestion_control")} - {*control("congestion_control")}
    if not others:
        pytest.skip("the kernel has one algorithm")
    # If possible one that the machine restricts.
    algorithm = min(others, key=lambda name: name in allowed)
    trial = make_trial(placement, congestion_control=algorithm)
    with trial.treated():
        assert set(controls(lab)[0].values()) == {algorithm}
        with trial.serve(thrift_rpc.server(), placement) as server:
            generator, place = lab.hosts["generator"], (server.address, str(server.port))
            argv = ("bash", "-c", CONNECT, "bash", *place, str(server.pid))
            ends = re.findall("cubic|reno|bbr", generator.run(*argv).stdout)
    assert trial.record["verification"]["congestion control"] == algorithm
    assert len(ends) == 2 and set(ends) == {algorithm}
    assert controls(lab) == before


@pytest.mark.parametrize("placement", [bare("cgroup"), HOST], ids=str)
def test_a_server_may_save_up_a_part_of_its_quota(lab, make_trial, placement):
    if reason := treatments.QuotaBurst().feasibility(lab, 2_000, {}):
        pytest.skip(reason)
    limited = placement.limited(quota_us=4_000, period_us=10_000)
    trial = make_trial(limited, burst_us=2_000)
    with trial.serve(sockperf.server("block"), limited) as server:
        trial.measure(echoes(server.address))
        facts = Host().call("observe", pid=server.pid)
    groups = [text for name, text in facts.items() if name.startswith("control group /")]
    assert any(re.search(r"cpu\.\S*burst\S* 2000", text) for text in groups)


# Steering of packets.


def steered_to(lab):
    """Return the mask to which the first interface of each receiving host is steered."""
    targets = [lab.targets[role] for role in treatments.ENDS]
    paths = [f"{one.sysfs}/class/net/lab0/queues/rx-0/rps_cpus" for one in targets]
    return [one.host.run("cat", path).stdout for one, path in zip(targets, paths, strict=True)]


def test_received_packets_are_steered_during_a_trial(lab, make_trial):
    before, trial = steered_to(lab), make_trial(RULES, rps="on")
    with trial.serve(sockperf.server("block"), RULES) as server:
        # Without its settings, as if something else had undone them.
        with pytest.raises(ManipulationError, match="no packet was steered"):
            trial.measure(echoes(server.address))
        with trial.treated():
            own = [cpu_mask(lab.cpus(role, "split")) for role in treatments.ENDS]
            assert [int(text, 16) for text in steered_to(lab)] == [int(mask, 16) for mask in own]
            messages = trial.measure(echoes(server.address)).messages
    # An interrupt may be for several packets, but here packets come one by one.
    assert trial.mechanisms["rps_ipis"] > messages / 2 > 0
    assert steered_to(lab) == before


# What a stream of iperf3 between two hosts shows.


def streamed(lab, trial, place, name, **options):
    """Stream for a second from a client to a server; return bytes per packet that came in."""
    application, statistics = APPLICATIONS[name], f"{lab.targets['sut'].sysfs}/class/net/lab0"
    files = [f"{statistics}/statistics/{one}" for one in ("rx_bytes", "rx_packets")]
    before = lab.hosts["sut"].run("cat", *files).stdout.split()
    peer = {"name": "client", "at": "peer", "cpus": trial.cpus("peer")}
    with (
        trial.treated(),
        trial.serve(application.server, place) as server,
        trial.serve(waiting("apps"), place, **peer) as client,
    ):
        load = application.client(server.address, **{"seconds": 1} | options)
        trial.measure(load, inside=client)
    after = lab.hosts["sut"].run("cat", *files).stdout.split()
    count, packets = (int(b) - int(a) for a, b in zip(before, after, strict=True))
    return count / packets


def test_without_tunnel_offload_a_stream_is_cut_into_packets(lab, make_trial):
    def offloads():
        return [lab.hosts[role].run("ethtool", "-k", "lab0").stdout for role in treatments.ENDS]

    place, before = docker("overlay"), offloads()
    cut, whole = (
        streamed(lab, make_trial(place, tunnel_offload=level), place, "iperf3 tcp")
        for level in ("off", "as found")
    )
    assert cut <= 1600 < 3 * 1600 < whole
    assert "tx-udp_tnl-segmentation: on" in before[0] and offloads() == before


def test_a_host_takes_in_its_packets_on_its_own_cpu(lab, make_trial):
    shares = {}
    for level in ("as found", "own"):
        trial = make_trial(NAT, rps=level)
        streamed(lab, trial, NAT, "iperf3 udp", mbit_per_s=50)  # without a loss on a busy machine
        sut, peer = (
            trial.mechanisms[f"cpu{lab.cpus(role, 'split')}_packets"] for role in treatments.ENDS
        )
        shares[level] = sut / (sut + peer)
    # Datagrams go from the client to the server alone, and are queued before the server's
    # interface too, which is the sender's work in any case.
    assert shares["as found"] < 0.1 and shares["own"] > 0.3


# Settings of the machine.


def test_idle_states_are_held_for_a_trial(make_trial):
    def request():
        return int.from_bytes(Path(LATENCY).read_bytes()[:4], "little", signed=True)

    before, trial = request(), make_trial(HOST, idle="held")
    with trial.treated(), trial.serve(waiting("net"), HOST) as server:
        assert request() == before, "CPUs that are to come to share a cache go idle"
        trial.measure(shell("sleep 0.1"), inside=server)
        assert request() == 0
    assert trial.mechanisms["latency_request_us"] == 0
    # Without its treatment the window is refused, unless another program holds the same.
    trial = make_trial(HOST, idle="held")
    with trial.serve(waiting("net"), HOST) as server:
        refused = pytest.raises(ManipulationError, match="held") if before > 0 else nullcontext()
        with refused:
            trial.measure(shell("sleep 0.1"), inside=server)
    assert request() == before


@pytest.mark.skipif(not list(Path("/proc/irq").glob("[0-9]*")), reason="no interrupts to be seen")
def test_interrupts_are_moved_and_come_back(tmp_path):
    paths = sorted(Path("/proc/irq").glob("[0-9]*/smp_affinity_list"))
    before = {path: path.read_text() for path in paths}
    rig = SimpleNamespace(hosts={"sut": Host()}, shared_kernel=True)
    rig.cpus = lambda role, affinity: {"free": "0-1", "split": "1"}[affinity]
    with Settings(Host(), "lkt", journal=str(tmp_path)) as tuning:
        treatments.Interrupts().apply(rig, "moved", lambda host: tuning)
        moved = [path for path in paths if path.read_text().strip() == "0"]
        assert len(moved) == len(paths) - len(tuning.notes)
    assert {path: path.read_text() for path in paths} == before


# Captures of the first study's exchanges.


def exchanged(rig, label, place, capture, tool="sockperf"):
    """Return messages, trial and measurement; of more messages where the machine is busy.

    sockperf is given a time for them, in which some have to come back.
    """
    levels = {"placement": place, "wait": "spin", "size": 64, "seccomp": "default", "tool": tool}
    treated = {"capture": treatments.PacketCapture()}
    ping, failure = declared("10-affinity-spinning.ipynb")["ping"], Exception()
    for messages in (500, 5_000, 50_000):
        trial = Trial(rig, {"capture": capture}, label, treatments=treated)
        try:
            return messages, trial, ping(trial, **levels, messages=messages)
        except (CommandFailed, ToolOutput) as error:
            if isinstance(error, ToolOutput) and "no complete result" not in str(error):
                raise
            failure = error
    raise failure


@pytest.mark.parametrize(
    ("place", "tool"),
    [
        (bare("clean"), "sockperf"),
        (docker("bridge"), "sockperf"),
        pytest.param(docker("bridge"), "sfnt-pingpong", marks=needs("sfnt-pingpong")),
    ],
    ids=str,
)
def test_a_captured_trial_has_round_trip_and_residence_times(lab, label, place, tool):
    messages, trial, measurement = exchanged(lab, label, place, "on", tool)
    rtt, inside = measurement.samples["rtt_ns"], measurement.samples["residence_ns"]
    # On a busy machine fewer are exchanged in the time that the tool takes.
    assert 0 < len(rtt) == len(inside) <= messages and inside.min() > 0
    assert np.median(inside) < np.median(rtt)
    found = measurement.metrics
    assert found["paired"] >= len(rtt) and found["captured"] >= 2 * found["paired"]
    assert found["capture_drops"] == found["unpaired"] == 0, trial.flags
    # Nothing is mirrored any more.
    queues = Host().run("nsenter", f"--net=/run/netns/{netns.SWITCH}", "tc", "qdisc").stdout
    assert "clsact" not in queues and Host().call("labelled", prefix=label) == []


def test_a_trial_without_capture_is_not_mirrored(lab, label, monkeypatch):
    monkeypatch.setattr(netns, "mirrored", None)
    _, _, measurement = exchanged(lab, label, bare("clean"), "off")
    assert list(measurement.samples) == ["rtt_ns"] and len(measurement.samples["rtt_ns"])


def test_a_capture_that_dies_fails_its_trial(make_trial):
    trial = make_trial(bare("clean"), capture="on")
    with pytest.raises(ToolOutput, match="tcpdump ended while it captured"), trial.capture():
        pids = Host().run("ip", "netns", "pids", "labkit-collector").stdout.split()
        (capture,) = [pid for pid in map(int, pids) if psutil.Process(pid).name() == "tcpdump"]
        os.kill(capture, signal.SIGKILL)
