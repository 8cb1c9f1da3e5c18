"""Linpack, STREAM, Bonnie++, Netperf, fio, sysbench and stress-ng: recorded numbers, commands."""

import json

import pytest
from recordings import ADDRESS, RECORDINGS, read

from labkit.errors import ToolOutput
from labkit.tools import bonnie, fio, linpack, netperf, stream, stress_ng, sysbench


def metrics(name):
    return RECORDINGS[name].measurement().metrics


def test_linpack_s_rate_is_that_of_its_operations_and_its_time():
    linpack = metrics("linpack")
    n = 1000
    rate = (2 / 3 * n**3 + 2 * n**2) / linpack["linpack_seconds"] / 1e9
    assert linpack["gflops"] == pytest.approx(rate, rel=1e-6)
    assert linpack["linpack_threads"] == 2


def test_stream_has_the_best_rate_and_the_mean():
    stream_rates = metrics("stream")
    assert stream_rates["copy_gb_per_s"] == pytest.approx(49.7531)
    assert stream_rates["triad_mean_gb_per_s"] == pytest.approx(32.001371)
    for kernel in stream.KERNELS:
        assert stream_rates[f"{kernel}_gb_per_s"] >= stream_rates[f"{kernel}_mean_gb_per_s"]


def test_bonnie_s_kibibytes_become_megabytes_of_a_million_bytes():
    measurement = RECORDINGS["bonnie"].measurement()
    assert measurement.metrics == {
        "block_output_mb_per_s": pytest.approx(545_626 * 1024 / 1e6),
        "block_rewrite_mb_per_s": pytest.approx(588_740 * 1024 / 1e6),
        "block_input_mb_per_s": pytest.approx(1_609_591 * 1024 / 1e6),
        "seeks_per_s": 4881,
    }
    assert measurement.flags == ()


def test_a_phase_that_was_too_short_has_no_number():
    measurement = bonnie.parse(read("bonnie-short.txt"))
    assert measurement.metrics == {}
    assert measurement.flags == tuple(
        f"bonnie++ found {name} too short to time"
        for name in ("block_output", "block_rewrite", "block_input", "seeks")
    )
    part = bonnie.parse(read("bonnie.txt").replace(",4881,", ",+++++,"))
    assert set(part.metrics) == set(bonnie.COLUMNS) - {"seeks_per_s"}


def test_netperf_reads_megabits_of_a_million_bits():
    assert metrics("netperf") == {"mbit_per_s": 15_446.70, "netperf_seconds": 1.0}
    assert netperf.parse(read("netperf-de.txt")).metrics["mbit_per_s"] == 18_639.74


def test_fio_reads_only_directions_with_requests():
    rates = metrics("fio")
    assert set(rates) == {"fio_read_mb_per_s", "fio_read_requests_per_s"}
    # A request has 4096 bytes.
    size = rates["fio_read_mb_per_s"] * 1e6 / rates["fio_read_requests_per_s"]
    assert size == pytest.approx(4096, rel=0.01)


def test_sysbench_and_stress_ng_have_their_rate():
    assert metrics("sysbench cpu") == {"sysbench_cpu_events_per_s": 2208.30}
    memory = {"sysbench_memory_mb_per_s": pytest.approx(5300.67 * 2**20 / 1e6)}
    assert metrics("sysbench memory") == memory
    assert metrics("stress_ng") == {"stress_cpu_per_s": 1634.50}


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("linpack", "check=passed", "check=failed", "failed"),
        ("linpack", "residual=0.00183027", "residual=17.2", "17.2"),
        ("linpack", "=0.0018", "=nan", "nan"),
        ("stream", "check=passed", "check=failed", "expected values"),
        ("bonnie", "1.98,", "1.97,", r"format 1\.97"),
        ("fio", '"error" : 0', '"error" : 5', "error is 5"),
        ("stress_ng", " cpu ", " vm ", "no whole result of cpu"),
    ],
)
def test_a_wrong_result_is_an_error(name, old, new, words):
    with pytest.raises(ToolOutput, match=words):
        RECORDINGS[name].parse(RECORDINGS[name].texts()[0].replace(old, new), "")


def test_commands_have_their_sizes():
    assert linpack.solve(2000, alignment=4096).argv == ("linpack", "2000", "4096", "0")
    assert stream.kernels(1000, times=10).argv == ("stream", "1000", "10")
    assert "-s 1280:131072" in " ".join(bonnie.disk(1280, chunk=131_072).argv)
    assert bonnie.disk(64).argv[0] == "bonnie++"
    client = netperf.tcp_stream(ADDRESS, seconds=2, port=12866)
    assert client.target == ADDRESS and "-p 12866" in " ".join(client.argv)
    assert netperf.server(port=12866).protocol == "tcp"
    assert "--size=16M" in fio.disk("read", seconds=1, megabytes=16).argv
    assert "--memory-total-size=100T" in sysbench.run("memory", seconds=1).argv
    load = stress_ng.busy(2)
    assert load.argv == ("stress-ng", "--cpu", "2", "--timeout", "0") and load.port == 0


def test_repeated_output_has_linpack_s_form():
    first = json.loads(read("repeat-linpack.txt").splitlines()[0])
    assert "gflops" in linpack.parse(first["stdout"]).metrics
