"""The applications of the network studies: common names, recorded numbers, flags, the wrapper."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from recordings import ADDRESS, HTTP, RECORDINGS, as_run, ran, read

from labkit.errors import ToolOutput
from labkit.tools import h2load, iperf3, memtier, pgbench, repeat, wrk2
from labkit.tools.applications import APPLICATIONS, with_tools
from labkit.tools.base import Client, Measurement
from labkit.units import column

PAPERS = with_tools({"memcached": "memtier_benchmark", "nginx": "wrk2"})
#: The output and log of an application, what its load was given, and what is read.
PRINTED: dict[str, tuple[tuple[str, str], dict[str, Any], dict[str, float]]] = {
    "iperf3 tcp": (("iperf3-tcp.json", ""), {}, {"throughput_mbit_per_s": 17_424.1}),
    "iperf3 udp": (("iperf3-udp-lossy.json", ""), {}, {"lost_share": 0.4974}),
    "memcached binary": (("memcached-binary.json", ""), {}, {"requests_per_s": 42_331.7}),
    "nginx 1 MB": (
        ("h2load-1m-run.json", ""),
        {"rate": 100, "connections": 10},
        {"throughput_mbit_per_s": 838.9, "requests_per_s": 100, "offered_per_s": 100, "reached": 1},
    ),
    "postgresql 500/s": (
        ("pgbench.txt", "pgbench.log"),
        {},
        {"transactions_per_s": 103.57, "offered_per_s": 500},
    ),
}


@pytest.mark.parametrize("name", PRINTED)
def test_metrics_have_the_names_of_the_studies(name: str) -> None:
    texts, options, expected = PRINTED[name]
    client = APPLICATIONS[name].client(ADDRESS, seconds=1, **options)
    printed, log = map(read, texts)
    measured = client.parse(as_run(printed, log) if log else printed, "")
    metrics = measured.metrics
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, rel=1e-2)
    assert [one for one in metrics if column(one).kind == "other"] == []
    assert all(flag.startswith(f"{name}: ") for flag in measured.flags)
    if "latency_ns" in measured.samples and "latency_ns_p99" in metrics:
        timed = [metrics[f"latency_ns_{one}"] for one in ("min", "median", "p99", "max")]
        assert timed == sorted(timed)
    if name == "nginx 1 MB":  # what held up the next request counts from when it was due
        assert metrics["due_latency_ns_mean"] > metrics["latency_ns_mean"]
    if name == "postgresql 500/s":
        assert metrics["service_latency_ns_mean"] < metrics["latency_ns_mean"]


def test_datagrams_that_were_on_their_way_at_the_end_are_no_contradiction() -> None:
    """As an overloaded receiver had them: its count ends before the last that were sent."""
    report = json.loads(read("iperf3-udp-lossy.json"))
    end, size = report["end"], 16_000
    end["sum"] |= {"packets": 126_790, "lost_packets": 89_194, "lost_percent": 70.35}
    end["sum_sent"]["bytes"] = 126_790 * size
    end["sum_received"] |= {"packets": 114_972, "lost_packets": 89_194}
    end["sum_received"]["bytes"] = (114_972 - 89_194) * size
    assert iperf3.parse(json.dumps(report)).metrics["loss"] == pytest.approx(0.7035)


def test_h2load_s_lines_are_samples_of_the_measured_time() -> None:
    measured = RECORDINGS["h2load"].measurement()
    lines = np.array([line.split() for line in read("h2load.log").splitlines()], dtype=np.int64)
    lines = lines[np.argsort(lines[:, 0], kind="stable")]
    first = lines[0, 0] + 500_000
    kept = lines[(lines[:, 0] >= first) & (lines[:, 0] < first + 1_000_000)]
    assert (measured.samples["latency_ns"] == kept[:, 2] * 1000).all()
    assert measured.metrics["achieved_per_s"] == pytest.approx(200, rel=0.02)
    assert measured.messages == len(lines) == 300 and measured.flags == ()


def test_h2load_s_rate_and_other_answers_are_flagged() -> None:
    text, log = read("h2load-rate-not-reached.txt"), read("h2load-rate-not-reached.log")
    slow = h2load.parse(text, log, rate=10_000, seconds=0.2, connections=100, warmup=0.1)
    assert "finished in" not in text and slow.metrics["achieved_per_s"] == 1410
    assert slow.flags[0].startswith("rate not reached: ")
    assert "whose wait is in no latency" in slow.flags[-1] and slow.metrics["held_up"] > 0
    load = h2load.load(ADDRESS, file="none", seconds=1, rate=100, connections=10)
    inside = load.parse(read("h2load-404-run.json"), "")
    # The rate is reached and no request fails: only this tells a page of 153 bytes from the file.
    assert inside.metrics["body_b"] == 153 and inside.metrics["achieved_per_s"] == 100
    assert inside.flags == ("100 of 100 answers were not the file",)
    failed = read("h2load.txt").replace("0 errored, 0 timeout", "3 errored, 2 timeout")
    assert HTTP(failed, read("h2load.log")).flags == ("5 requests failed before they were logged",)


def requests(*rows: str, **options: Any) -> Measurement:
    given = {"rate": 1000, "seconds": 1, "connections": 1} | options
    log = "".join(f"{row}\n" for row in rows)
    return h2load.parse("starting benchmark...", log.replace(" ", "\t"), **given)


def test_a_request_is_late_by_the_rate() -> None:
    found = requests("0 200 10", "1000 200 10", "5000 200 2000", "7000 200 10")
    assert found.samples["late_ns"].tolist() == [0, 0, 3_000_000, 4_000_000]
    metrics = found.metrics
    assert metrics["due_latency_ns_max"] == 5_000_000 and metrics["latency_ns_max"] == 2_000_000
    # One answer in the measured time, to a request from before it; the next has none.
    waiting = requests("0 200 500000", "500000 -1 400000", warmup=0.3)
    assert waiting.metrics["achieved_per_s"] == 1 and waiting.metrics["failed"] == 1
    assert not len(waiting.samples["latency_ns"]) and "latency_ns_mean" not in waiting.metrics


@pytest.mark.parametrize("step", [-900_000, 0, 20_000])
def test_a_step_of_the_wall_clock_is_taken_out_of_the_log_or_refused(step: int) -> None:
    # After 0.1 s nothing is sent for 20 ms, and then what was due meanwhile.
    starts = [120_000 if 100 <= n < 120 else n * 1000 for n in range(1000)]
    rows = [f"{start + (step if n >= 500 else 0)} 200 300" for n, start in enumerate(starts)]
    if step < 0:
        with pytest.raises(ToolOutput, match="go back"):
            requests(*rows, connections=10)
        return
    found = requests(*rows, connections=10)
    assert found.metrics["late_ns_mean"] == pytest.approx(210_000)
    assert found.flags == (("the clock was set forward by 20 ms",) if step else ())


def test_pgbench_s_lines_are_samples_in_the_order_of_their_ends() -> None:
    text, log = read("pgbench.txt"), read("pgbench.log")
    whole = pgbench.parse(text, log, rate=100)
    lines = np.array([line.split() for line in log.splitlines()], dtype=np.int64)
    assert sorted(whole.samples["latency_ns"]) == sorted(lines[:, 2] * 1000)
    assert (np.diff(whole.samples["end_ns"]) >= 0).all() and whole.flags == ()
    printed = float(text.partition("latency average = ")[2].split()[0])
    assert whole.metrics["latency_ns_mean"] == pytest.approx(printed * 1e6, abs=600)
    failed = text.replace("failed transactions: 0 (", "failed transactions: 2 (")
    rest = "5 3 failed 0 1795223951 5 7\n6 3 failed 0 1795223951 5 7\n"
    found = pgbench.parse(failed, log + rest, rate=100)
    assert found.metrics["failed"] == 2 and "2 of" in found.flags[0]
    assert len(found.samples["latency_ns"]) == log.count("\n")


def test_pgbench_s_rate_is_flagged_and_a_backlog_has_samples() -> None:
    text, log = read("pgbench-rate-not-reached.txt"), read("pgbench-rate-not-reached.log")
    found = pgbench.parse(text, log, rate=20_000, warmup=0.5)
    assert found.flags[0].startswith("rate not reached: ") and "of 20,000.0" in found.flags[0]
    # What waits for a connection is late, and its latency includes that.
    assert found.metrics["lag_ns_mean"] > 0.5 * found.metrics["latency_ns_mean"]
    due = found.samples["end_ns"] - found.samples["latency_ns"]
    assert len(due) and (due < 0).all()


def closing(transactions: int) -> tuple[str, str]:
    """Return what pgbench says of a run of 3.3 s whose end is slow, since connections close."""
    due = np.arange(0, 3_300_000, 10_000)[:transactions]
    took = np.where(due < 2_300_000, 2_000, 400_000)
    ends = enumerate(zip(took, due + took, strict=True))
    log = "".join(f"0 {n} {slow} 0 5 {end} 0\n" for n, (slow, end) in ends)
    said = f"number of transactions actually processed: {len(due)}\n"
    said += "number of failed transactions: 0 (0.000%)\n"
    return said + "tps = 99.000000 (without initial connection time)\n", log


def test_the_end_of_pgbench_in_which_connections_close_is_left_out() -> None:
    found = pgbench.parse(*closing(330), rate=100, warmup=1.0, connections=100)
    # The last transaction begins at 3.29 s; a hundred connections at 100/s close from 2.29 s on.
    assert found.metrics["latency_ns_mean"] == 2_000_000 and found.flags == ()
    assert found.metrics["achieved_per_s"] == pytest.approx(100, abs=1)
    part = pgbench.parse(*closing(330), rate=100, warmup=1.0, seconds=1.0, connections=100)
    assert len(part.samples["latency_ns"]) == 101 and part.samples["end_ns"].max() <= 1.002e9
    with pytest.raises(ToolOutput, match="no transaction began"):
        pgbench.parse(*closing(150), rate=100, warmup=1.0, connections=100)


@pytest.mark.parametrize(("protocol", "mean"), [("text", 290e3), ("binary", 242e3)])
def test_memtier_s_latencies_are_those_of_its_file(protocol: str, mean: float) -> None:
    name = f"memtier-memcache_{protocol}"
    found = memtier.parse(read(f"{name}.txt"), read(f"{name}.json"), stored=7)
    stats = json.loads(read(f"{name}.json"))["ALL STATS"]
    for prefix, key in (("set_", "Sets"), ("get_", "Gets"), ("", "Totals")):
        printed = stats[key]["Percentile Latencies"]
        for mine, theirs in (("median", "p50.00"), ("p99", "p99.00"), ("p999", "p99.90")):
            value = found.metrics[f"{prefix}latency_ns_{mine}"]
            assert value == pytest.approx(printed[theirs] * 1e6)
    assert found.metrics["operations_per_s"] == stats["Totals"]["Ops/sec"]
    carried = stats["Totals"]["KB/sec"] * 8192e-6
    assert found.metrics["throughput_mbit_per_s"] == pytest.approx(carried)
    assert found.metrics["latency_ns_mean"] == pytest.approx(mean, rel=0.01)
    assert found.messages == stats["Totals"]["Count"] + 7
    assert found.flags == ("100% of the GETs found nothing",)


def test_wrk2_s_quantiles_are_read_as_exactly_as_they_are_printed() -> None:
    measured = RECORDINGS["wrk2"].measurement()
    names = ("median", "p90", "p99", "p999", "mean", "max")
    values = [measured.metrics[f"latency_ns_{one}"] for one in names]
    assert values == [884_000, 1_455_000, 1_980_000, 2_790_000, 894_000, 4_034_000]
    assert measured.metrics["throughput_mbit_per_s"] == pytest.approx(29.66, rel=1e-3)
    assert measured.metrics["answer_b"] == pytest.approx(1263, rel=1e-2)
    # Its connections began one after the other: 2,926.5 a second were to be had.
    assert measured.metrics["achieved_per_s"] == 2935.69 and measured.flags == ()
    slow = RECORDINGS["wrk2"].parse(read("wrk2-1m-rate-not-reached.txt"), "")
    assert slow.metrics["latency_ns_p999"] == 2.1e9
    assert slow.metrics["latency_ns_median"] == 578_559_000
    assert slow.flags == ("rate not reached: 1,965.0 of 2,926.5 per second",)
    other = wrk2.parse(read("wrk2-404.txt"), rate=3000, seconds=3)
    assert other.flags == ("8678 of 8678 answers were not the file",)


@pytest.mark.parametrize(
    ("name", "files", "elapsed", "cpu", "expected"),
    [
        ("nginx 1 KB", ("wrk2-1k.txt", ""), 1.0, 0.7, 0.7),
        ("nginx 1 KB", ("wrk2-1k.txt", ""), 62.0, 61.2, 0.987),
        # As measured: 8.87 s of CPU time in a process of 10 s that sent for 3 s in 3 threads.
        ("memcached text", ("memtier-memcache_text.txt", "memtier-memcache_text.json"), 4, 2.97, 1),
    ],
)
def test_a_load_that_has_no_cpu_time_left_is_flagged(
    name: str, files: tuple[str, str], elapsed: float, cpu: float, expected: float
) -> None:
    text = as_run(read(files[0]), read(files[1]), elapsed, cpu)
    measured = PAPERS[name].client(ADDRESS, seconds=3 if files[1] else 5).parse(text, "")
    assert measured.metrics["tool_cpu"] == pytest.approx(expected, abs=0.011)
    assert any("it may be the limit" in flag for flag in measured.flags) == (expected > 0.95)


def test_what_a_tool_writes_is_its_log_and_a_failure_fails() -> None:
    def texts(stdout: str, log: str) -> Measurement:
        assert (stdout, log) == ("once: one\nonce: two\nC\n", "1\n2\n")
        return Measurement({}, {"read": 1.0})

    writes = ("sh", "-c", "echo $LC_ALL; echo 1 >a; echo 2 >b; mkdir c; exec sleep 60")
    client = repeat.once(
        Client(writes, "", 1.0, texts), limit=1, first=("sh", "-c", "echo one; echo two")
    )
    # It is ended in the planned time, and read all the same.
    assert client.parse(ran(client.argv).stdout, "").metrics == {"read": 1.0}
    missing = ran(repeat.once(Client(("no-such-tool",), "", 1.0, texts)).argv)
    assert missing.returncode == 1 and "directory: 'no-such-tool'" in missing.stderr
