"""The applications of the network studies: common names, recorded numbers, flags, the wrapper."""

import json
import math

import numpy as np
import pytest
from recordings import ADDRESS, RECORDINGS, as_run, read

from labkit.errors import ToolOutput
from labkit.tools import APPLICATIONS, iperf3, nginx, pgbench, with_tools

PAPERS = with_tools({"memcached": "memtier_benchmark", "nginx": "wrk2"})


def test_datagrams_that_were_on_their_way_at_the_end_are_no_contradiction():
    """As an overloaded receiver had them: its count ends before the last that were sent."""
    report = json.loads(read("iperf3-udp-lossy.json"))
    end, size = report["end"], 16_000
    end["sum"] |= {"packets": 126_790, "lost_packets": 89_194, "lost_percent": 70.35}
    end["sum_sent"]["bytes"] = 126_790 * size
    end["sum_received"] |= {"packets": 114_972, "lost_packets": 89_194}
    end["sum_received"]["bytes"] = (114_972 - 89_194) * size
    for one in (end["sum_sent"], end["sum_received"]):
        one["bits_per_second"] = one["bytes"] * 8 / one["seconds"]
    assert iperf3.parse(json.dumps(report)).metrics["loss"] == pytest.approx(0.7035, abs=1e-4)


def test_an_application_names_its_flags():
    load = APPLICATIONS["nginx 1 KB"].client(ADDRESS, seconds=1, rate=100, connections=10)
    found = load.parse(read("h2load-404-run.json"), "")
    # The rate is reached and no request fails, but pages of 153 bytes are no throughput.
    assert found.metrics["throughput_mbit_per_s"] == 0 and found.metrics["requests_per_s"] == 100
    assert found.flags == ("nginx 1 KB: 100 of 100 answers were not the file",)


def requests(*rows, **options):
    given = {"rate": 1000, "seconds": 1, "connections": 1, "warmup": 0, "size": 1} | options
    log = "".join(f"{row}\n" for row in rows)
    return nginx.parse_h2load("starting benchmark...", log.replace(" ", "\t"), **given)


def test_a_request_is_late_by_the_rate():
    found = requests("0 200 10", "1000 200 10", "5000 200 2000", "7000 200 10")
    assert found.samples["late_ns"].tolist() == [0, 0, 3_000_000, 4_000_000]
    metrics = found.metrics
    assert metrics["due_latency_ns_max"] == 5_000_000 and metrics["latency_ns_max"] == 2_000_000
    # One answer in the measured time, to a request from before it; the next has none.
    waiting = requests("0 200 500000", "500000 -1 400000", warmup=0.3)
    assert waiting.metrics["requests_per_s"] == 1 and waiting.metrics["failed"] == 1
    assert not len(waiting.samples["latency_ns"]) and "latency_ns_mean" not in waiting.metrics


def test_a_step_of_the_wall_clock_is_an_error_and_a_pause_is_not():
    # After 0.1 s nothing is sent for 20 ms, and then what was due meanwhile.
    starts = [120_000 if 100 <= n < 120 else n * 1000 for n in range(1000)]
    found = requests(*(f"{start} 200 300" for start in starts), connections=10)
    assert found.metrics["late_ns_mean"] == pytest.approx(210_000) and not found.flags
    for step in (20_000, -900_000):
        rows = [f"{start + (step if n >= 500 else 0)} 200 300" for n, start in enumerate(starts)]
        with pytest.raises(ToolOutput, match="was set while it ran"):
            requests(*rows, connections=10)


def test_failed_transactions_have_no_latency_and_are_flagged():
    text, log = read("pgbench.txt"), read("pgbench.log")
    failed = text.replace("failed transactions: 0 (", "failed transactions: 2 (")
    rest = "5 3 failed 0 1795223951 5 7\n6 3 failed 0 1795223951 5 7\n"
    found = RECORDINGS["pgbench"].parse(failed, log + rest)
    assert found.metrics["failed"] == 2 and "2 of" in found.flags[0]
    assert (np.diff(found.samples["end_ns"]) >= 0).all()
    assert len(found.samples["latency_ns"]) == log.count("\n")


def test_the_end_of_pgbench_in_which_connections_close_is_left_out():
    def closing(transactions, seconds=math.inf):
        due = range(0, 10_000 * transactions, 10_000)
        took = [2_000 if start < 2_300_000 else 400_000 for start in due]
        rows = enumerate(zip(due, took, strict=True))
        log = "".join(f"{n} 1 {slow} 0 5 {start + slow} 0\n" for n, (start, slow) in rows)
        said = f"number of transactions actually processed: {transactions}\n"
        said += "number of failed transactions: 0 (0.000%)\n"
        said += "tps = 88.000000 (without initial connection time)\n"
        about = {"rate": 100, "warmup": 1.0, "seconds": seconds, "connections": 100}
        return pgbench.parse(said, log, **about)

    found = closing(330)  # 3.3 s
    # The last transaction begins at 3.29 s; a hundred connections at 100/s close from 2.29 s on.
    assert found.metrics["latency_ns_mean"] == 2_000_000 and found.flags == ()
    assert found.metrics["transactions_per_s"] == pytest.approx(100, abs=1)
    part = closing(330, seconds=1.0).samples
    assert len(part["latency_ns"]) == 101 and part["end_ns"].max() <= 1.002e9
    with pytest.raises(ToolOutput, match="no transaction began"):
        closing(150)


@pytest.mark.parametrize(
    ("name", "files", "elapsed", "cpu", "expected"),
    [
        ("nginx 1 KB", ("wrk2-1k.txt", ""), 62.0, 61.2, 0.987),
        # As measured: 8.87 s of CPU time in a process of 10 s that sent for 3 s in 3 threads.
        ("memcached text", ("memtier-memcache_text.txt", "memtier-memcache_text.json"), 4, 2.97, 1),
    ],
)
def test_a_load_that_has_no_cpu_time_left_is_flagged(name, files, elapsed, cpu, expected):
    text = as_run(read(files[0]), read(files[1]), elapsed, cpu)
    measured = PAPERS[name].client(ADDRESS, seconds=3 if files[1] else 5).parse(text, "")
    assert measured.metrics["tool_cpu"] == pytest.approx(expected, abs=0.011)
    assert any("it may be the limit" in flag for flag in measured.flags) == (expected > 0.95)
