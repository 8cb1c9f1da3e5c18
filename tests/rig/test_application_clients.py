"""Applications over networks: servers and clients in containers of two hosts, and services."""

from contextlib import contextmanager

import pytest

from labkit.campaign.window import KINDS
from labkit.errors import CommandFailed
from labkit.placement import docker, waiting
from labkit.tools import APPLICATIONS, families, repeat, services

pytestmark = pytest.mark.rig
FAMILIES = families(APPLICATIONS)
#: The time in which pgbench opens its connections, beyond what is planned for it, is lost to its
#: window: on a busy machine a hundred take seconds.
FEW = {"postgresql": {"connections": 10, "seconds": 2}}
MANY = {"connections": 100, "seconds": 6}


@contextmanager
def pair(trial, place, application):
    """Place both ends, and yield a function that measures an application of the family."""
    peer = {"name": "client", "at": "peer", "cpus": trial.cpus("peer")}
    with (
        trial.serve(application.server, place) as server,
        trial.serve(waiting("apps"), place, **peer) as client,
    ):

        def measure(application, **options):
            given = {"seconds": 1} | FEW.get(application.family, {}) | options
            return trial.measure(application.client(server.address, **given), inside=client)

        yield measure


def busy(trial, cpus):
    """Return the share of its time in which a CPU was busy in the window, from the evidence."""
    evidence = trial.record["evidence"]
    before, after = (evidence[when]["cpu"][f"cpu{cpus}"] for when in ("before", "after"))
    spent = {kind: after[i] - before[i] for i, kind in enumerate(KINDS)}
    used = sum(spent[kind] for kind in ("user", "nice", "system", "irq", "softirq"))
    return used / sum(spent.values())


# Networks do not differ by application: one over each of the others is enough.
@pytest.mark.parametrize(
    ("family", "network"),
    [*((family, "nat") for family in FAMILIES), ("iperf3", "host"), ("iperf3", "weave")],
)
def test_every_application_is_measured(lab, make_trial, family, network):
    if reason := lab.infeasible(docker(network)):
        pytest.skip("weaver is not on PATH" if network == "weave" else reason)
    trial = make_trial(docker(network))
    with pair(trial, docker(network), FAMILIES[family][0]) as measure:
        for application in FAMILIES[family]:
            metrics, mechanisms = measure(application).metrics, trial.mechanisms
            rates = ("throughput_mbit_per_s", "transactions_per_s")
            assert max(metrics.get(name, 0) for name in rates) > 0, application.name
            assert metrics.get("latency_ns_mean", 1) > 0 and metrics.get("not_200", 0) == 0
            # All requests of a connection go over it.
            assert mechanisms["Tcp.PassiveOpens"] == 100 or family != "nginx"
            ends = trial.record["verification"], trial.record["verifications"]["client"]
            assert [end["allowed CPUs"] for end in ends] == ["1", "0"]
            for side, cpus in (("server", "1"), ("client", "0")):
                assert mechanisms[f"{side}_cpu"] == pytest.approx(busy(trial, cpus), abs=0.02)
    for end, other in zip(ends, ("peer", "sut"), strict=True) if network == "weave" else ():
        assert end[f"router to {lab.targets[other].address}"] in ("sleeve", "fastdp")


@pytest.mark.parametrize(
    ("name", "options"),
    [("nginx 1 MB", {"rate": 30_000}), ("postgresql 500/s", {"rate": 50_000} | MANY)],
)
def test_a_rate_that_cannot_be_reached_is_flagged(make_trial, name, options):
    trial, application = make_trial(docker("host")), APPLICATIONS[name]
    with pair(trial, docker("host"), application) as measure:
        overloaded = measure(application, **options)
        again = measure(application)  # the server still works
    assert 0 < overloaded.metrics["reached"] < 0.9
    assert any(f"{name}: rate not reached" in flag for flag in trial.flags)
    assert again.metrics["latency_ns_mean"] > 0


# The tools of the image `services`.


def test_each_service_prints_what_its_parser_reads(make_trial):
    trial = make_trial()
    cpu = trial.cpus("sut")
    placement = docker("nat").limited(cpuset=cpu, memory=2**26)
    with trial.serve(waiting("services"), placement, cpus=cpu) as server:
        stream = trial.measure(services.stream(100_000, times=3), inside=server)
        linpack = trial.measure(services.linpack(300), inside=server)
        printed = trial.logs["tool.out"]
        bonnie = trial.measure(services.bonnie(16), inside=server)
        flags = server.host.run("cat", "/proc/cpuinfo").stdout
    assert stream.metrics["triad_gb_per_s"] > 0 and linpack.metrics["gflops"] > 0
    # As many threads as it may use CPUs, and AVX where the processor has it: an OpenBLAS that does
    # not know a processor would take kernels without.
    assert linpack.metrics["linpack_threads"] == 1
    assert printed.startswith("linpack: dgesv of OpenBLAS")
    assert "Prescott kernels" not in printed or " avx2 " not in flags
    # However fast the disk is, each phase has a number or says that it was too short.
    assert len(bonnie.metrics) + len(bonnie.flags) == len(services.COLUMNS)


def test_two_tools_run_in_one_window(make_trial):
    trial = make_trial()
    # Long enough for the pauses between its runs to be a small share of the other's run.
    once = services.stream(500_000, times=30)
    with (
        trial.serve(waiting("services"), docker("nat"), name="server") as server,
        trial.serve(services.netserver(), docker("nat"), name="netserver") as peer,
    ):
        sender = services.netperf(peer.own_address, seconds=1)
        found = trial.measure_all(
            {
                "stream": (repeat.repeated(once, seconds=1.5, grace=1.5), server),
                "netperf": (repeat.repeated(sender, seconds=1.5, grace=1.5), server),
            }
        )
        nobody = services.netperf(server.own_address, seconds=1, port=9)
        with pytest.raises(CommandFailed, match="netserver listening"):
            trial.measure(repeat.repeated(nobody, seconds=2, grace=0), inside=server)
    one, other = found["stream"], found["netperf"]
    measurement = repeat.combine([("stream", one), ("netperf", other)])
    assert measurement.metrics["iterations"] > 0 and measurement.metrics["neighbour_mbit_per_s"] > 0
    assert measurement.also[0][1]["mbit_per_s"] > 0
    # One second of netperf began in the window, and what began after it is late.
    assert not measurement.also[0][1]["iterations_cut"] and other.iterations["late"].iloc[-1]
    # Both clocks are one: each began before the other had ended.
    for mine, theirs in ((one.iterations, other.iterations), (other.iterations, one.iterations)):
        assert mine["start_ns"].iloc[0] < theirs["end_ns"].iloc[-1]
