"""The applications of the network studies: commands, words, and published ports."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import ADDRESS, read

from labkit.errors import ToolOutput, UsageError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.placement import Workload
from labkit.runtimes import networks
from labkit.tools import base, h2load, iperf3, memcached, memtier, pgbench, wrk2
from labkit.tools.applications import APPLICATIONS, LOADS, families, latency, with_tools
from labkit.tools.base import Measurement
from labkit.units import column

PROGRAM = Path(memcached.__file__).parent / "programs" / "memcached_load.py"
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


def test_applications_of_a_family_share_a_server() -> None:
    found = families(APPLICATIONS)
    assert list(found) == ["iperf3", "memcached", "nginx", "postgresql"] == list(LOADS)
    for several in found.values():
        assert len(several) == 2 and len({one.server() for one in several}) == 1
    assert families(["nginx 1 MB"]) == {"nginx": [APPLICATIONS["nginx 1 MB"]]}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_load_is_what_the_paper_gave_it(name: str) -> None:
    client = APPLICATIONS[name].client(ADDRESS, seconds=7)
    said = " ".join(part for part in client.argv if len(part) < 100)
    wanted = {
        "iperf3 tcp": ["--time 7"],
        "iperf3 udp": ["--time 7", "--udp", "--bitrate 0"],
        "memcached text": ["workers=4", "connections=50", "sets=1", "gets=10", " text "],
        "memcached binary": ["workers=4", "connections=50", "sets=1", "gets=10", " binary "],
        "nginx 1 KB": ["--clients=100", "--rps=30", f"/{ADDRESS}:8080/1k.html"],
        "nginx 1 MB": ["--clients=100", "--rps=30", f"/{ADDRESS}:8080/1m.html"],
        "postgresql 300/s": ["--client=100", "--jobs=4", "--rate=300", "--time=9"],
        "postgresql 500/s": ["--client=100", "--jobs=4", "--rate=500", "--time=9"],
    }
    assert all(one in said for one in wanted[name]), said
    assert client.target == ADDRESS and 7 <= client.seconds < 15
    # What runs in a container can write no log that the harness sees.
    assert "{log}" not in said


@pytest.mark.parametrize("name", PRINTED)
def test_what_an_application_says_is_in_the_words_of_the_studies(name: str) -> None:
    found = measurement(name)
    assert [one for one in found.metrics if column(one).kind == "other"] == []
    assert all(flag.startswith(f"{name}: ") for flag in found.flags)
    ends = {f"latency_ns_{one}" for one in ("mean", "min", "median", "p90", "p99", "p999", "max")}
    if name.startswith("iperf3"):
        assert not ends & set(found.metrics) and "requests_per_s" not in found.metrics
    else:
        assert ends <= set(found.metrics)


def test_each_family_has_its_own_words() -> None:
    tcp, udp = measurement("iperf3 tcp").metrics, measurement("iperf3 udp").metrics
    assert tcp["throughput_mbit_per_s"] > 1000 and "lost_share" not in tcp
    assert 0 < udp["lost_share"] < 1 and "reached" not in udp
    text = measurement("memcached text").metrics
    assert text["requests_per_s"] == text["operations_per_s"] and "reached" not in text
    assert {"set_latency_ns_mean", "get_latency_ns_p99"} <= set(text)
    slow = measurement("postgresql 500/s")
    assert slow.metrics["offered_per_s"] == 500 and 0 < slow.metrics["reached"] < 0.5
    assert slow.flags[0].startswith("postgresql 500/s: rate not reached")
    took, lag = (slow.samples[one].mean() for one in ("latency_ns", "lag_ns"))
    assert slow.metrics["service_latency_ns_mean"] == pytest.approx(took - lag)


def test_what_a_request_fetched_is_shown() -> None:
    whole = measurement("nginx 1 MB").metrics
    assert whole["body_b"] == 1_048_576 and whole["not_200"] == 0
    assert whole["throughput_mbit_per_s"] == pytest.approx(
        1_048_576 * 8e-6 * whole["requests_per_s"]
    )
    client = APPLICATIONS["nginx 1 MB"].client(ADDRESS, seconds=1, **RECORDED["nginx"])
    other = client.parse(read("h2load-404-inside.txt"), "")
    # The rate is reached and no request fails: only this tells a page of 153 bytes from the file.
    assert other.metrics["body_b"] == 153 and other.metrics["reached"] == 1
    assert other.metrics["not_200"] == 100 and "were not the file" in other.flags[0]


def test_a_request_is_as_late_as_the_rate_says() -> None:
    rows = ["0\t200\t10", "1000\t200\t10", "5000\t200\t2000", "6000\t200\t10"]
    log = "".join(f"{one}\n" for one in rows)
    found = h2load.parse("starting benchmark...", log, rate=1000, seconds=1, connections=1)
    assert found.samples["late_ns"].tolist() == [0, 0, 3_000_000, 3_000_000]
    assert found.metrics["late_ns_mean"] == 1_500_000 and "body_b" not in found.metrics
    words = APPLICATIONS["nginx 1 KB"].rename(found)
    assert words["due_latency_ns_max"] == 5_000_000 and words["latency_ns_max"] == 2_000_000


def test_transactions_before_the_measured_time_are_left_out() -> None:
    text, log = read("pgbench.txt"), read("pgbench.log")
    whole, late = (pgbench.parse(text, log, rate=100, warmup=one) for one in (0.0, 1.0))
    assert len(whole.samples["latency_ns"]) == 207 == whole.messages == late.messages
    assert 80 < len(late.samples["latency_ns"]) < 130 and late.samples["end_ns"].min() > 0
    assert late.metrics["achieved_per_s"] == pytest.approx(107, abs=15)
    with pytest.raises(ToolOutput, match="no transaction began"):
        pgbench.parse(text, log, rate=100, warmup=60.0)


def closing(transactions: int) -> tuple[str, str]:
    """Return what pgbench says of a run of 3.3 s whose end is slow, since connections close."""
    due = np.arange(0, 3_300_000, 10_000)[:transactions]
    took = np.where(due < 2_300_000, 2_000, 400_000)
    log = "".join(
        f"0 {n} {slow} 0 5 {end} 0\n"
        for n, (slow, end) in enumerate(zip(took, due + took, strict=True))
    )
    said = f"number of transactions actually processed: {len(due)}\n"
    said += "number of failed transactions: 0 (0.000%)\n"
    return said + "tps = 99.000000 (without initial connection time)\n", log


def test_what_closing_its_connections_costs_pgbench_is_left_out() -> None:
    text, log = closing(330)
    found = pgbench.parse(text, log, rate=100, warmup=1.0, connections=100)
    # The last transaction begins at 3.29 s; a hundred connections at 100/s close from 2.29 s on.
    assert found.metrics["latency_ns_mean"] == 2_000_000 and found.flags == ()
    assert found.metrics["achieved_per_s"] == pytest.approx(100, abs=1)
    asked = pgbench.parse(text, log, rate=100, warmup=1.0, seconds=1.0, connections=100)
    assert len(asked.samples["latency_ns"]) == 101 and asked.samples["end_ns"].max() <= 1.002e9
    # Told of neither, it reads the slow end too.
    open_ended = pgbench.parse(text, log, rate=100, warmup=1.0)
    assert open_ended.metrics["latency_ns_mean"] > 100_000_000
    with pytest.raises(ToolOutput, match="no transaction began"):
        pgbench.parse(*closing(150), rate=100, warmup=1.0, connections=100)


def test_a_backlog_has_samples_of_the_measured_time_though_all_were_due_before_it() -> None:
    text, log = read("pgbench-rate-not-reached.txt"), read("pgbench-rate-not-reached.log")
    found = pgbench.parse(text, log, rate=20_000, warmup=0.5)
    due = found.samples["end_ns"] - found.samples["latency_ns"]
    assert len(due) and (due < 0).all()
    assert 0 < found.metrics["achieved_per_s"] < 20_000


def test_requests_that_all_wait_for_earlier_ones_are_measured_without_a_latency() -> None:
    # One answer in the measured time, to a request from before it; the next has none.
    log = "0\t200\t500000\n500000\t-1\t400000\n"
    found = h2load.parse(
        "starting benchmark...", log, rate=1000, seconds=1, connections=1, warmup=0.3
    )
    assert found.metrics["achieved_per_s"] == 1 and found.metrics["failed"] == 1
    assert len(found.samples["latency_ns"]) == 0 and "latency_ns_mean" not in found.metrics
    words = APPLICATIONS["nginx 1 MB"].rename(found)
    assert words["reached"] == 0.001 and "latency_ns_mean" not in words


@pytest.mark.parametrize("protocol", memcached.PROTOCOLS)
@pytest.mark.parametrize("size", [1, 32, 4096])
def test_what_memcached_s_connections_carry_is_counted(protocol: str, size: int) -> None:
    program = runpy.run_path(str(PROGRAM))
    make_set, make_get, answer = program["PROTOCOLS"][protocol]
    key, value = program["key"](7), b"x" * size
    stored, held = b"STORED\r\n", b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, size, value)
    if protocol == "binary":
        head = program["HEADER"]
        stored = head.pack(0x81, program["SET"], 0, 0, 0, 0, 0, 0, 0)
        held = head.pack(0x81, program["GET"], 0, 4, 0, 0, 4 + size, 0, 0) + bytes(4) + value
    # The program's own reader takes them for whole answers.
    assert answer(stored, size) == answer(held, size) == 1
    sent = len(make_set(key, value)) + len(stored), len(make_get(key)) + len(held)
    assert memcached.carried(protocol, size) == sent


def test_the_papers_loads_are_taken_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "wrk2").touch(mode=0o755)
    monkeypatch.setattr(base, "project", lambda path: tmp_path)
    wanted = {"memcached": "memtier_benchmark or labkit", "nginx": "wrk2 or h2load"}
    found = with_tools(wanted)
    assert list(found) == list(APPLICATIONS)
    assert found["nginx 1 MB"].tool == wrk2.TOOL
    assert found["memcached text"].tool == memcached.TOOL
    assert {one.tool for one in with_tools({}).values()} == {
        one.tool for one in APPLICATIONS.values()
    }
    with pytest.raises(UsageError, match="unknown tool 'wrk'"):
        with_tools({"nginx": "wrk"})
    with pytest.raises(UsageError, match="unknown family"):
        with_tools({"iperf3": "iperf3"})


def test_the_papers_loads_say_what_the_others_do() -> None:
    # One that was asked for by name alone is taken, and missed by its probe.
    found = with_tools({"memcached": "memtier_benchmark", "nginx": "wrk2"})
    cached = found["memcached text"]
    assert cached.tool == memtier.TOOL and memtier.TOOL in cached.client(ADDRESS, seconds=3).argv
    client = cached.client(ADDRESS, seconds=3)
    said = client.parse(*(read(f"memtier-memcache_text.{one}") for one in ("txt", "json")))
    # 2,006.72 KiB/s, as the tool printed it.
    assert said.metrics["throughput_mbit_per_s"] == pytest.approx(16.439, rel=1e-4)
    web = found["nginx 1 KB"]
    assert web.tool == wrk2.TOOL
    words = web.client(ADDRESS, seconds=5).parse(read("wrk2-1k.txt"), "").metrics
    assert words["reached"] == pytest.approx(2935 / 3000, rel=1e-2) and words["latency_ns_mean"] > 0
    assert words["throughput_mbit_per_s"] == pytest.approx(29.66, rel=1e-3)
    assert words["answer_b"] == pytest.approx(1263, rel=1e-2)


def cached_for(ms: float) -> str:
    """Return what memtier_benchmark wrote, as if it had sent for so long."""
    report = json.loads(read("memtier-memcache_text.json"))
    report["ALL STATS"]["Runtime"]["Total duration"] = ms
    return json.dumps(report)


@pytest.mark.parametrize(("spent", "flagged"), [("0m0.4s 0m0.3s", False), ("1m0s 0m1.2s", True)])
def test_a_load_that_has_no_cpu_time_left_is_flagged(spent: str, flagged: bool) -> None:
    elapsed = 62_000_000_000 if flagged else 1_000_000_000
    said = f"\n@@ cpu 1 {elapsed}\n0m0.01s 0m0.01s\n{spent}\n"
    found = with_tools({"memcached": "memtier_benchmark", "nginx": "wrk2"})
    for name, text, log in (
        ("memcached text", read("memtier-memcache_text.txt"), cached_for(elapsed / 1e6)),
        ("nginx 1 KB", read("wrk2-1k.txt"), ""),
    ):
        client = found[name].client(ADDRESS, seconds=1)
        measured = client.parse(text + said, log)
        assert measured.metrics["tool_cpu"] == pytest.approx(0.987 if flagged else 0.7, abs=0.001)
        assert any("it may be the limit" in flag for flag in measured.flags) == flagged


def test_a_load_whose_process_outlasts_it_is_flagged_by_the_time_that_it_sent() -> None:
    # As measured: 8.87 s of CPU time in a process of 10 s that sent for 9 s.
    said = "\n@@ cpu 1 10000000000\n0m0.01s 0m0.01s\n0m2.9s 0m5.97s\n"
    client = with_tools({"memcached": "memtier_benchmark"})["memcached text"].client(
        ADDRESS, seconds=9
    )
    measured = client.parse(read("memtier-memcache_text.txt") + said, cached_for(9000))
    assert measured.metrics["tool_cpu"] == pytest.approx(0.9856, abs=1e-4)
    assert any("it may be the limit" in flag for flag in measured.flags)


def test_a_metered_command_tells_its_cpu_time_and_keeps_its_status() -> None:
    ended = LocalHost().run(
        *base.metered(("sh", "-c", "seq 3000000 >/dev/null; echo hi; exit 3")), check=False
    )
    assert ended.status == 3 and ended.stdout.startswith("hi\n")
    share = base.own_cpu(ended.stdout, 1)
    assert share is not None and 0 < share <= 1.1
    assert base.own_cpu("hi\n", 1) is None


@pytest.mark.parametrize(("threads", "share"), [(1, 1.0), (2, 0.5), (4, 0.25), (8, 0.25)])
def test_a_load_cannot_use_more_cpus_than_it_has_threads(threads: int, share: float) -> None:
    said = "\n@@ cpu 4 10000000000\n0m0.01s 0m0.01s\n0m4.0s 0m6.0s\n"
    assert base.own_cpu(said, threads) == pytest.approx(share)


@given(st.integers(1, 20_000), st.integers(1, 500))
def test_connections_of_h2load_open_at_the_rate(rate: int, connections: int) -> None:
    at_once, period = h2load._opening(rate, connections)
    assert 1 <= at_once <= connections and period >= 1
    if rate % 1000 == 0 and rate // 1000 <= connections:
        assert (at_once, period) == (rate // 1000, 1)
    if 1000 * at_once == rate * period:
        return
    # Only where no period of up to 20 ms has a whole number of connections.
    assert all(rate * p % 1000 or rate * p // 1000 > connections for p in range(1, 21))


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=50))
def test_latencies_are_in_order_and_were_measured(values: list[int]) -> None:
    found = latency(np.array(values, dtype=np.int64))
    names = ("min", "median", "p90", "p95", "p99", "p999", "max")
    ordered = [found[f"latency_ns_{one}"] for one in names]
    assert ordered == sorted(ordered) and set(ordered) <= set(map(float, values))
    assert ordered[0] <= found["latency_ns_mean"] * (1 + 1e-12)
    assert latency(np.empty(0, dtype=np.int64)) == {}


# Ports that are published for both transports


SITE = Target(LocalHost(), ADDRESS)


def test_a_port_is_published_for_every_transport_that_it_takes() -> None:
    both, one = iperf3.server(), Workload(("true",), 5201, "tcp")
    options = networks.published(SITE, both)
    assert options == [
        *("--publish", f"{ADDRESS}:5201:5201/tcp"),
        *("--publish", f"{ADDRESS}:5201:5201/udp"),
    ]
    assert networks.published(SITE, one) == options[:2]
    assert networks.published(SITE, Workload(("true",), 0)) == []
