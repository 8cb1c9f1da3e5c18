"""Applications over networks: servers and clients in containers of two hosts, and services."""

import pytest

from labkit.errors import CommandFailed
from labkit.placement import docker, waiting
from labkit.tools import APPLICATIONS, families, measure_in_turn, repeat, services

pytestmark = pytest.mark.rig
FAMILIES = families(APPLICATIONS)


# Networks do not differ by application: one over each of the others is enough.
@pytest.mark.parametrize(
    ("family", "network"),
    [*((family, "nat") for family in FAMILIES), ("iperf3", "host"), ("iperf3", "weave")],
)
def test_every_application_is_measured(lab, make_trial, family, network):
    place, members = docker(network), FAMILIES[family]
    if reason := lab.infeasible(place):
        pytest.skip("weaver is not on PATH" if network == "weave" else reason)
    # On a busy machine a hundred connections of pgbench take seconds to open.
    few = {"postgresql": {"connections": 10}}
    trial, seconds = make_trial(place), 2 if family in few else 1
    found = measure_in_turn(trial, place, members, seconds=seconds, loads=few)
    for metrics in (found.metrics, *(one for _, one in found.also)):
        rates = ("throughput_mbit_per_s", "transactions_per_s")
        assert max(metrics.get(name, 0) for name in rates) > 0
        assert metrics.get("latency_ns_mean", 1) > 0 and metrics.get("not_200", 0) == 0
        # All requests of a connection go over it.
        assert metrics["Tcp.PassiveOpens"] == 100 or family != "nginx"
        assert metrics["server_cpu"] > 0 and metrics["client_cpu"] > 0
    ends = trial.record["verification"], trial.record["verifications"]["client"]
    assert [end["allowed CPUs"] for end in ends] == ["1", "0"]
    for end, other in zip(ends, ("peer", "sut"), strict=True) if network == "weave" else ():
        assert end[f"router to {lab.targets[other].address}"] in ("sleeve", "fastdp")


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
