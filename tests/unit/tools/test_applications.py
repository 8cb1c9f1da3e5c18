"""The applications of the network studies: commands, common names, recorded numbers, flags."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import ADDRESS, HTTP, RECORDINGS, Prints, read

from labkit.errors import ToolMissing, ToolOutput, UsageError
from labkit.tools import base, h2load, iperf3, memcached, memtier, pgbench, wrk2
from labkit.tools.applications import APPLICATIONS, LOADS, families, latency, with_tools
from labkit.tools.base import Measurement
from labkit.tools.parsing import own_cpu, saturated, split
from labkit.units import column

#: What a recording was given, where that is not what the studies give.
RECORDED = {"nginx": {"rate": 100, "connections": 10}}
#: What each application printed, and its log.
PRINTED = {
    "iperf3 tcp": ("iperf3-tcp.json", ""),
    "iperf3 udp": ("iperf3-udp-lossy.json", ""),
    "memcached text": ("memcached-text.txt", "memcached-text.log"),
    "memcached binary": ("memcached-binary.txt", "memcached-binary.log"),
    "nginx 1 MB": ("h2load-1m-inside.txt", ""),
    "postgresql 500/s": ("pgbench.txt", "pgbench.log"),
}


def measurement(name: str) -> Measurement:
    one = APPLICATIONS[name]
    client = one.client(ADDRESS, seconds=1, **RECORDED.get(one.family, {}))
    return client.parse(*map(read, PRINTED[name]))


def test_applications_of_a_family_share_a_server_with_a_port_of_its_own() -> None:
    found = families(APPLICATIONS)
    assert list(found) == ["iperf3", "memcached", "nginx", "postgresql"] == list(LOADS)
    for several in found.values():
        assert len(several) == 2 and len({one.server() for one in several}) == 1
    servers = [several[0].server() for several in found.values()]
    assert len({server.port for server in servers}) == 4
    assert {(server.protocol, server.image) for server in servers} == {("tcp", "apps")}
    assert iperf3.server().protocols == ("tcp", "udp")
    assert all("\nexec " in server.argv[2] for server in servers[2:])  # it replaces the shell


LOADED = {
    "iperf3 tcp": "--client 198.18.0.3 --time 7 --json",
    "iperf3 udp": "--time 7 --udp --bitrate 0",
    "memcached text": "text workers=4 connections=50 sets=1 gets=10 keys=10000",
    "memcached binary": "binary workers=4 connections=50 sets=1 gets=10",
    "nginx 1 KB": "--clients=100 --rps=30 --rate=3 --rate-period=1ms --requests=22500 "
    "http://198.18.0.3:8080/1k.html",
    "nginx 1 MB": "--clients=100 --rps=30 http://198.18.0.3:8080/1m.html",
    "postgresql 300/s": "--client=100 --jobs=4 --rate=300 --time=9",
    "postgresql 500/s": "--client=100 --jobs=4 --rate=500 --time=9",
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_load_is_that_of_the_paper(name: str) -> None:
    client = APPLICATIONS[name].client(ADDRESS, seconds=7)
    assert set(LOADED[name].split()) <= set(client.argv)
    assert client.target == ADDRESS and 7 <= client.seconds < 15
    # A client in a container can write no log that the harness sees.
    assert not any("{log}" in part for part in client.argv if len(part) < 100)
    assert client.protocols == (("tcp", "udp") if name == "iperf3 udp" else ("",))


def test_the_papers_tools_are_taken_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "wrk2").touch(mode=0o755)
    monkeypatch.setattr(base, "project", lambda path: tmp_path)
    wanted = {"memcached": "memtier_benchmark or labkit", "nginx": "wrk2 or h2load"}
    found = with_tools(wanted)
    assert list(found) == list(APPLICATIONS)
    assert found["nginx 1 MB"].tool == wrk2.TOOL
    assert found["memcached text"].tool == memcached.TOOL
    with pytest.raises(UsageError, match="unknown tool 'wrk'"):
        with_tools({"nginx": "wrk"})
    with pytest.raises(UsageError, match="unknown family"):
        with_tools({"iperf3": "iperf3"})


PAPERS = with_tools({"memcached": "memtier_benchmark", "nginx": "wrk2"})


def test_the_papers_tools_have_the_options_of_the_others() -> None:
    client = PAPERS["memcached binary"].client(ADDRESS, seconds=3)
    line = " ".join(client.argv[3:])
    assert "-P memcache_binary -d 32 --key-maximum=10000" in line and "-t 4 -c 50" in line
    assert "--ratio=1:10 --test-time=3 --print-percentiles=50,90,95,99,99.9" in line
    first = json.loads(client.argv[3])["first"]  # it stores every key before it measures
    assert {"--key-pattern=P:P", "allkeys", "--ratio=1:0", "8"} <= set(first)
    assert "wrk2 --latency -t 2 -c 100 -d 3s -R 3000" in " ".join(
        PAPERS["nginx 1 KB"].client(ADDRESS, seconds=3).argv[4:]
    )


@pytest.mark.parametrize("name", PRINTED)
def test_metrics_have_the_names_of_the_studies(name: str) -> None:
    found = measurement(name)
    assert [one for one in found.metrics if column(one).kind == "other"] == []
    assert all(flag.startswith(f"{name}: ") for flag in found.flags)
    ends = {f"latency_ns_{one}" for one in ("mean", "min", "median", "p90", "p99", "p999", "max")}
    assert (ends <= set(found.metrics)) == (not name.startswith("iperf3"))


def test_each_family_has_its_own_metrics() -> None:
    tcp, udp = measurement("iperf3 tcp").metrics, measurement("iperf3 udp").metrics
    assert tcp["throughput_mbit_per_s"] > 1000 and "lost_share" not in tcp
    assert 0.49 < udp["lost_share"] < 0.5 and "reached" not in udp
    text = measurement("memcached text").metrics
    assert text["requests_per_s"] == text["operations_per_s"] and "reached" not in text
    assert {"set_latency_ns_mean", "get_latency_ns_p99"} <= set(text)
    slow = measurement("postgresql 500/s")
    assert slow.metrics["offered_per_s"] == 500 and 0 < slow.metrics["reached"] < 0.5
    assert slow.flags[0].startswith("postgresql 500/s: rate not reached")
    took, lag = (slow.samples[one].mean() for one in ("latency_ns", "lag_ns"))
    assert slow.metrics["service_latency_ns_mean"] == pytest.approx(took - lag)
    whole = measurement("nginx 1 MB").metrics
    assert whole["body_b"] == 1_048_576 and whole["not_200"] == 0
    carried = 1_048_576 * 8e-6 * whole["requests_per_s"]
    assert whole["throughput_mbit_per_s"] == pytest.approx(carried)


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=50))
def test_latencies_are_in_order_and_were_measured(values: list[int]) -> None:
    found = latency(np.array(values, dtype=np.int64))
    names = ("min", "median", "p90", "p95", "p99", "p999", "max")
    ordered = [found[f"latency_ns_{one}"] for one in names]
    assert ordered == sorted(ordered) and set(ordered) <= set(map(float, values))
    assert ordered[0] <= found["latency_ns_mean"] * (1 + 1e-12)
    assert latency(np.empty(0, dtype=np.int64)) == {}


def test_iperf3_has_what_was_received_and_its_cpu_time() -> None:
    metrics = RECORDINGS["iperf3 tcp"].measurement().metrics
    end = json.loads(read("iperf3-tcp.json"))["end"]
    assert metrics["throughput_mbit_per_s"] == end["sum_received"]["bits_per_second"] / 1e6
    assert metrics["retransmits"] == end["sum_sent"]["retransmits"]
    both = metrics["tool_client_cpu_user"] + metrics["tool_client_cpu_system"]
    assert metrics["tool_client_cpu"] == pytest.approx(both, rel=0.01)
    slow = iperf3.parse(read("iperf3-udp.json"), mbit_per_s=200)
    assert slow.metrics["jitter_ns"] > 0 and slow.metrics["requested_mbit_per_s"] == 200
    assert slow.flags == ("rate not reached: 100.1 of 200.0 per second (Mbit, sent)",)


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
    log = read("h2load.log")
    measured = RECORDINGS["h2load"].measurement()
    lines = np.array([line.split("\t") for line in log.splitlines()], dtype=np.int64)
    lines = lines[np.argsort(lines[:, 0], kind="stable")]
    first = lines[0, 0] + 500_000
    kept = lines[(lines[:, 0] >= first) & (lines[:, 0] < first + 1_000_000)]
    assert (measured.samples["latency_ns"] == kept[:, 2] * 1000).all()
    starts = np.diff(measured.samples["start_ns"])
    # Ten connections with 20 requests each in a second: one every 5 ms, not ten every 50 ms.
    assert (starts >= 0).all() and np.median(starts) == pytest.approx(5e6, rel=0.5)
    assert measured.metrics["achieved_per_s"] == pytest.approx(200, rel=0.02)
    assert measured.messages == len(lines) == 300 and measured.flags == ()


def test_h2load_s_rate_and_other_answers_are_flagged() -> None:
    text, log = read("h2load-rate-not-reached.txt"), read("h2load-rate-not-reached.log")
    slow = h2load.parse(text, log, rate=10_000, seconds=0.2, connections=100, warmup=0.1)
    assert "finished in" not in text and slow.metrics["achieved_per_s"] == 1410
    assert slow.flags[0].startswith("rate not reached: ") and slow.metrics["held_up"] > 0
    assert "whose wait is in no latency" in slow.flags[-1]
    other = HTTP(read("h2load-404.txt"), read("h2load-404.log"))
    answers = len(other.samples["latency_ns"])
    assert other.flags == (f"{answers} of {answers} answers were not the file",)
    inside = HTTP(read("h2load-404-inside.txt"), "", rate=100).metrics
    # The rate is reached and no request fails: only this tells a page of 153 bytes from the file.
    assert inside["body_b"] == 153 and inside["not_200"] == 100 == inside["achieved_per_s"]


def test_requests_that_never_reach_the_log_are_flagged() -> None:
    text = read("h2load.txt").replace("0 errored, 0 timeout", "3 errored, 2 timeout")
    assert HTTP(text, read("h2load.log")).flags == ("5 requests failed before they were logged",)


def requests(*rows: str, **options: Any) -> Measurement:
    given = {"rate": 1000, "seconds": 1, "connections": 1} | options
    log = "".join(f"{row}\n" for row in rows)
    return h2load.parse("starting benchmark...", log.replace(" ", "\t"), **given)


def test_a_request_is_late_by_the_rate() -> None:
    found = requests("0 200 10", "1000 200 10", "5000 200 2000", "7000 200 10")
    assert found.samples["late_ns"].tolist() == [0, 0, 3_000_000, 4_000_000]
    assert "body_b" not in found.metrics
    named = APPLICATIONS["nginx 1 KB"].rename(found)
    assert named["due_latency_ns_max"] == 5_000_000 and named["latency_ns_max"] == 2_000_000
    # One answer in the measured time, to a request from before it; the next has none.
    waiting = requests("0 200 500000", "500000 -1 400000", warmup=0.3)
    assert waiting.metrics["achieved_per_s"] == 1 and waiting.metrics["failed"] == 1
    assert not len(waiting.samples["latency_ns"]) and "latency_ns_mean" not in waiting.metrics
    assert APPLICATIONS["nginx 1 MB"].rename(waiting)["reached"] == 0.001


@pytest.mark.parametrize("step", [-900_000, 0, 20_000, 1_000_000])
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
    assert found.metrics["achieved_per_s"] == 1000
    expected = (f"the clock was set forward by {step / 1000:,.0f} ms",) if step else ()
    assert found.flags == expected


@given(st.integers(1, 20_000), st.integers(1, 500))
def test_connections_of_h2load_open_at_the_rate(rate: int, connections: int) -> None:
    at_once, period = h2load._opening(rate, connections)
    assert 1 <= at_once <= connections and period >= 1
    if 1000 * at_once != rate * period:
        # Only where no period of up to 20 ms has a whole number of connections.
        assert all(rate * p % 1000 or rate * p // 1000 > connections for p in range(1, 21))


def test_pgbench_s_lines_are_samples_in_the_order_of_their_ends() -> None:
    text, log = read("pgbench.txt"), read("pgbench.log")
    whole = pgbench.parse(text, log, rate=100)
    lines = np.array([line.split() for line in log.splitlines()], dtype=np.int64)
    assert sorted(whole.samples["latency_ns"]) == sorted(lines[:, 2] * 1000)
    assert (np.diff(whole.samples["end_ns"]) >= 0).all() and whole.flags == ()
    assert (whole.samples["lag_ns"] <= whole.samples["latency_ns"]).all()
    printed = float(text.partition("latency average = ")[2].split()[0])
    assert whole.metrics["latency_ns_mean"] == pytest.approx(printed * 1e6, abs=600)
    late = pgbench.parse(text, log, rate=100, warmup=1.0)
    assert 80 < len(late.samples["latency_ns"]) < 130 and late.samples["end_ns"].min() > 0
    with pytest.raises(ToolOutput, match="no transaction began"):
        pgbench.parse(text, log, rate=100, warmup=60.0)
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
    metrics = memtier.parse(read(f"{name}.txt"), read(f"{name}.json"), besides=7)
    stats = json.loads(read(f"{name}.json"))["ALL STATS"]
    for prefix, key in (("set_", "Sets"), ("get_", "Gets"), ("", "Totals")):
        printed = stats[key]["Percentile Latencies"]
        for mine, theirs in (("median", "p50.00"), ("p99", "p99.00"), ("p999", "p99.90")):
            value = metrics.metrics[f"{prefix}latency_ns_{mine}"]
            assert value == pytest.approx(printed[theirs] * 1e6)
    assert metrics.metrics["operations_per_s"] == stats["Totals"]["Ops/sec"]
    carried = stats["Totals"]["KB/sec"] * 8192e-6
    assert metrics.metrics["throughput_mbit_per_s"] == pytest.approx(carried)
    assert metrics.metrics["latency_ns_mean"] == pytest.approx(mean, rel=0.01)
    assert metrics.messages == stats["Totals"]["Count"] + 7
    assert metrics.flags == ("100% of the GETs found nothing",)


def test_wrk2_s_quantiles_are_read_as_exactly_as_they_are_printed() -> None:
    measured = RECORDINGS["wrk2"].measurement()
    values = [measured.metrics[f"latency_ns_{one}"] for one in ("median", "p90", "p99", "p999")]
    assert values == [884_000, 1_455_000, 1_980_000, 2_790_000]
    assert measured.metrics["latency_ns_mean"] == 894_000
    assert measured.metrics["latency_ns_max"] == 4_034_000
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
    ("old", "new", "seconds", "name", "value"),
    [
        ("in 5.00s,", "in 999.80ms,", 1, "throughput_mbit_per_s", 17.68 * 2**20 * 8e-6 / 0.9998),
        ("17.68MB", "1.05TB", 5, "answer_b", 1.05 * 2**40 / 14_677),
        ("read\n", "read\n  Socket errors: connect 1, read 2, write 0, timeout 9\n", 5, "", 12),
    ],
)
def test_wrk2_s_units_and_errors_are_read(
    old: str, new: str, seconds: int, name: str, value: float
) -> None:
    text = read("wrk2-1k.txt").replace(old, new)
    if seconds == 1:
        text = text.replace("2935.69", f"{14_677 / 0.9998:.2f}")
    found = wrk2.parse(text, rate=3000, seconds=seconds)
    assert found.metrics[name or "socket_errors"] == pytest.approx(value)
    assert ("12 of 14677 errors" in found.flags) == (not name)


def test_debian_s_wrk_is_not_taken_for_wrk2() -> None:
    wrk = "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\nUsage: wrk\n  -c\n"
    with pytest.raises(ToolMissing, match="wrk2"):
        wrk2.probe(Prints(wrk))
    usage = "wrk 4.0.0 [epoll] Copyright\nUsage: wrk\n    -R, --rate  <T>  work rate\n"
    assert wrk2.probe(Prints(usage)) == "4.0.0"


# Tools that are wrapped.


def run(argv: tuple[str, ...], log: Path | str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(part.replace("{log}", str(log)) for part in argv[1:])]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("destination", ["-", "{log}"])
def test_files_become_the_log_wherever_the_tool_runs(tmp_path: Path, destination: str) -> None:
    writes = ("sh", "-c", "echo $LC_ALL; echo 1 >a; echo 2 >b; mkdir c")
    first = ("sh", "-c", "echo one; echo two")
    ended = run(base.wrapped(writes, log=destination, first=first), tmp_path / "log")
    log = "" if destination == "-" else (tmp_path / "log").read_text()
    printed, files = split(ended.stdout, log)
    assert files == "1\n2\n" and printed.splitlines()[:3] == ["once: one", "once: two", "C"]
    assert [path.name for path in tmp_path.iterdir()] == ([] if destination == "-" else ["log"])


def test_a_tool_that_is_ended_in_the_planned_time_is_read_and_a_failure_fails(
    tmp_path: Path,
) -> None:
    late = ("sh", "-c", "echo 1 >a; exec sleep 60")
    ended = run(base.wrapped(late, limit=2))
    assert ended.returncode == 0 and split(ended.stdout, "")[1] == "1\n"
    for status, limit in ((7, 0), (7, 5), (124, 0)):
        argv = base.wrapped(("sh", "-c", f"exit {status}"), log="{log}", limit=limit)
        assert run(argv, tmp_path / "log").returncode == status
    missing = run(base.wrapped(("no-such-tool",)))
    assert missing.returncode == 1 and missing.stderr == "no-such-tool: No such file or directory\n"
    assert not list(tmp_path.iterdir())


def test_a_wrapped_tool_s_cpu_time_is_a_share_of_its_own_cpus() -> None:
    ended = run(base.wrapped(("sh", "-c", "seq 3000000 >/dev/null; echo hi")))
    share = own_cpu(ended.stdout, 1)
    assert ended.stdout.startswith("hi\n") and share is not None and 0 < share <= 1.1
    assert own_cpu("hi\n", 1) is None and saturated(None) == saturated(0.9) == ()


@pytest.mark.parametrize(("threads", "share"), [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.25)])
def test_a_load_cannot_use_more_cpus_than_it_has_threads(threads: int, share: float) -> None:
    spent = '\n@@ spent {"cpus": 4, "elapsed_ns": 10000000000, "cpu_ns": 10000000000}\n'
    assert own_cpu(spent, threads) == pytest.approx(share)


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
    spent = {"cpus": 1, "elapsed_ns": elapsed * 1e9, "cpu_ns": cpu * 1e9}
    text = f"{read(files[0])}\n@@ spent {json.dumps(spent)}\n\n@@ log\n{read(files[1])}"
    client = PAPERS[name].client(ADDRESS, seconds=3 if files[1] else 5)
    measured = client.parse(text, "")
    assert measured.metrics["tool_cpu"] == pytest.approx(expected, abs=0.011)
    assert any("it may be the limit" in flag for flag in measured.flags) == (expected > 0.95)
