"""The tools of the image `services`, alone and two at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from labkit.campaign.trial import Trial
from labkit.errors import ToolOutput
from labkit.placement import docker, waiting
from labkit.tools import repeat, services
from labkit.tools.base import Measurement
from labkit.tools.repeat import Repeated

pytestmark = pytest.mark.rig
Make = Callable[..., Trial]
Left = Callable[[], list[str]]
ONCE = {
    "linpack": (services.linpack(300), "gflops"),
    "stream": (services.stream(100_000, times=3), "triad_gb_per_s"),
}


@pytest.mark.parametrize("name", ONCE)
def test_each_tool_prints_what_its_parser_reads(make_trial: Make, name: str) -> None:
    trial = make_trial()
    client, metric = ONCE[name]
    with trial.serve(waiting("services"), docker("nat")) as server:
        assert trial.measure(client, inside=server).metrics[metric] > 0


def test_bonnie_prints_the_format_that_is_read(make_trial: Make) -> None:
    trial = make_trial()
    with trial.serve(waiting("services"), docker("nat").limited(memory=2**26)) as server:
        measurement = trial.measure(services.bonnie(16), inside=server)
    # However fast the disk is, each phase has a number or says that it was too short.
    assert len(measurement.metrics) + len(measurement.flags) == len(services.COLUMNS)


def test_linpack_takes_as_many_threads_as_it_may_use_cpus(make_trial: Make) -> None:
    trial = make_trial()
    cpu = trial.cpus("sut")
    with trial.serve(waiting("services"), docker("nat").limited(cpuset=cpu), cpus=cpu) as server:
        found = trial.measure(services.linpack(300), inside=server)
    assert found.metrics["linpack_threads"] == 1


def test_linpack_uses_avx_where_the_processor_has_it(make_trial: Make) -> None:
    """An OpenBLAS that does not know a processor would take kernels without."""
    printed = []

    def keep(stdout: str, log: str) -> Measurement:
        printed.append(stdout)
        return services.parse_linpack(stdout, log)

    trial = make_trial()
    with trial.serve(waiting("services"), docker("nat")) as server:
        trial.measure(replace(services.linpack(300), parse=keep), inside=server)
        flags = server.host.run("cat", "/proc/cpuinfo").stdout
    (text,) = printed
    assert text.startswith("linpack: dgesv of OpenBLAS")
    assert "Prescott kernels" not in text or " avx2 " not in flags


def test_two_tools_run_in_one_window(make_trial: Make, left: Left) -> None:
    trial = make_trial()
    once = services.stream(500_000, times=3)
    with trial.serve(waiting("services"), docker("nat"), name="server") as server:
        workload = services.netserver()
        with trial.serve(workload, docker("nat"), name="netserver") as peer:
            sender = services.netperf(peer.own_address, seconds=1)
            found = trial.measure_all(
                {
                    "stream": (repeat.repeated(once, seconds=1.5, grace=1.5), server),
                    "netperf": (repeat.repeated(sender, seconds=1.5, grace=1.5), server),
                }
            )
    one, other = found["stream"], found["netperf"]
    assert isinstance(one, Repeated) and isinstance(other, Repeated)
    measurement = repeat.combine([("stream", one), ("netperf", other)])
    assert measurement.metrics["iterations"] > 0 and measurement.metrics["neighbour_mbit_per_s"] > 0
    assert measurement.also[0][1]["mbit_per_s"] > 0
    # One second of netperf began in the window, and what began after it is late.
    assert not measurement.also[0][1]["iterations_cut"] and other.iterations["late"].iloc[-1]
    # Both clocks are one: each began before the other had ended.
    for mine, theirs in ((one.iterations, other.iterations), (other.iterations, one.iterations)):
        assert mine["start_ns"].iloc[0] < theirs["end_ns"].iloc[-1]
    assert not left()


def test_the_error_of_a_repeated_tool_is_reported(make_trial: Make) -> None:
    trial = make_trial()
    with trial.serve(waiting("services"), docker("nat")) as server:
        nobody = services.netperf(server.own_address, seconds=1, port=9)
        with pytest.raises(ToolOutput, match="netserver listening"):
            trial.measure(repeat.repeated(nobody, seconds=2, grace=0), inside=server)
