"""The tools of the application study: recorded numbers, flags and commands."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from recordings import ADDRESS, RECORDINGS, read

from labkit.errors import ToolMissing
from labkit.hosts import LocalHost
from labkit.hosts.host import Result
from labkit.placement import Workload
from labkit.tools import h2load, iperf3, memcached, memtier, nginx, pgbench, wrk2


def pair(name: str) -> tuple[str, str]:
    return read(f"{name}.txt"), read(f"{name}.log")


def test_iperf3_has_what_was_received_and_its_cpu_time() -> None:
    metrics = iperf3.parse(read("iperf3-tcp.json")).metrics
    end = json.loads(read("iperf3-tcp.json"))["end"]
    assert metrics["throughput_mbit_per_s"] == end["sum_received"]["bits_per_second"] / 1e6
    assert metrics["retransmits"] == end["sum_sent"]["retransmits"]
    assert metrics["tool_client_cpu"] == pytest.approx(
        metrics["tool_client_cpu_user"] + metrics["tool_client_cpu_system"], rel=0.01
    )
    assert 0 < metrics["tool_server_cpu"] < 2


def test_iperf3_over_udp_has_what_was_lost() -> None:
    measurement = iperf3.parse(read("iperf3-udp.json"), mbit_per_s=100)
    metrics = measurement.metrics
    assert metrics["sent_mbit_per_s"] == pytest.approx(100, rel=0.02)
    received = metrics["sent_mbit_per_s"] * (1 - metrics["loss"])
    assert metrics["throughput_mbit_per_s"] == pytest.approx(received, rel=0.02)
    assert metrics["datagrams_lost"] == pytest.approx(metrics["loss"] * metrics["datagrams"], abs=1)
    assert metrics["jitter_ns"] > 0 and metrics["requested_mbit_per_s"] == 100
    late = iperf3.parse(read("iperf3-udp.json"), mbit_per_s=200)
    assert late.flags[0].startswith("rate not reached: ") and "of 200.0" in late.flags[0]


def test_iperf3_that_lost_most_is_a_measured_condition() -> None:
    measurement = iperf3.parse(read("iperf3-udp-lossy.json"), mbit_per_s=20_000)
    assert 0.01 < measurement.metrics["loss"] < 1
    assert measurement.metrics["throughput_mbit_per_s"] < measurement.metrics["sent_mbit_per_s"]


def test_h2load_s_lines_are_samples_of_the_measured_time() -> None:
    text, log = pair("h2load")
    measurement = RECORDINGS["h2load"].parse(text, log)
    lines = np.array([line.split("\t") for line in log.splitlines()], dtype=np.int64)
    lines = lines[np.argsort(lines[:, 0], kind="stable")]
    first = lines[0, 0] + 500_000
    kept = lines[(lines[:, 0] >= first) & (lines[:, 0] < first + 1_000_000)]
    assert (measurement.samples["latency_ns"] == kept[:, 2] * 1000).all()
    assert (np.diff(measurement.samples["start_ns"]) >= 0).all()
    assert measurement.metrics["achieved_per_s"] == pytest.approx(200, rel=0.02)
    assert measurement.metrics["not_200"] == measurement.metrics["failed"] == 0
    assert measurement.messages == len(lines) == 300 and measurement.flags == ()


def test_h2load_s_requests_are_spread_over_the_interval() -> None:
    starts = RECORDINGS["h2load"].parse(*pair("h2load")).samples["start_ns"]
    # Ten connections with 20 requests each in a second: one every 5 ms, not ten every 50 ms.
    assert np.median(np.diff(starts)) == pytest.approx(5e6, rel=0.5)


def test_h2load_that_was_ended_has_its_lines_and_the_rate_is_flagged() -> None:
    text, log = pair("h2load-rate-not-reached")
    measurement = h2load.parse(text, log, rate=10_000, seconds=0.2, connections=100, warmup=0.1)
    assert "finished in" not in text
    assert measurement.metrics["achieved_per_s"] == 1410
    assert measurement.flags[0].startswith("rate not reached: ")
    assert (
        measurement.metrics["held_up"] > 0
        and "whose wait is in no latency" in measurement.flags[-1]
    )


def test_h2load_s_other_answers_are_flagged_and_kept() -> None:
    measurement = RECORDINGS["h2load"].parse(*pair("h2load-404"))
    answers = len(measurement.samples["latency_ns"])
    assert measurement.metrics["not_200"] == answers > 0
    assert measurement.flags == (f"{answers} of {answers} answers were not the file",)


def test_pgbench_s_lines_are_samples_in_the_order_of_their_ends() -> None:
    text, log = pair("pgbench")
    measurement = RECORDINGS["pgbench"].parse(text, log)
    lines = np.array([line.split() for line in log.splitlines()], dtype=np.int64)
    assert sorted(measurement.samples["latency_ns"]) == sorted(lines[:, 2] * 1000)
    assert (np.diff(measurement.samples["end_ns"]) >= 0).all()
    assert (measurement.samples["lag_ns"] <= measurement.samples["latency_ns"]).all()
    printed = float(text.partition("latency average = ")[2].split()[0])
    assert measurement.metrics["latency_ns_mean"] == pytest.approx(printed * 1e6, abs=600)
    assert measurement.metrics["requested_per_s"] == 100 and measurement.flags == ()


def test_pgbench_s_rate_is_flagged_beyond_what_a_draw_may_bring() -> None:
    text, log = pair("pgbench-rate-not-reached")
    measurement = pgbench.parse(text, log, rate=20_000)
    assert (
        measurement.flags[0].startswith("rate not reached: ")
        and "of 20,000.0" in measurement.flags[0]
    )
    # What waits for a connection is late, and its latency includes that.
    assert measurement.metrics["lag_ns_mean"] > 0.5 * measurement.metrics["latency_ns_mean"]


def test_pgbench_s_failed_transactions_are_counted_and_are_no_samples() -> None:
    text, log = pair("pgbench")
    text = text.replace("failed transactions: 0 (", "failed transactions: 2 (")
    measurement = RECORDINGS["pgbench"].parse(
        text, log + "5 3 failed 0 1795223951 5 7\n6 3 failed 0 1795223951 5 7\n"
    )
    assert measurement.metrics["failed"] == 2 and "2 of" in measurement.flags[0]
    assert len(measurement.samples["latency_ns"]) == log.count("\n")


@pytest.mark.parametrize("protocol", ["text", "binary"])
def test_memtier_s_latencies_are_those_of_its_file(protocol: str) -> None:
    name = f"memtier-memcache_{protocol}"
    measurement = memtier.parse(read(f"{name}.txt"), read(f"{name}.json"))
    stats = json.loads(read(f"{name}.json"))["ALL STATS"]
    for prefix, key in (("set_", "Sets"), ("get_", "Gets"), ("", "Totals")):
        printed = stats[key]["Percentile Latencies"]
        for mine, theirs in (("median", "p50.00"), ("p99", "p99.00"), ("p999", "p99.90")):
            value = measurement.metrics[f"{prefix}latency_ns_{mine}"]
            assert value == pytest.approx(printed[theirs] * 1e6)
    assert measurement.metrics["sets"] == stats["Sets"]["Count"]
    assert measurement.metrics["operations_per_s"] == stats["Totals"]["Ops/sec"]
    assert measurement.metrics["latency_ns_mean"] == pytest.approx(
        290e3 if protocol == "text" else 242e3, rel=0.01
    )
    assert measurement.messages == stats["Totals"]["Count"]
    assert measurement.flags == ("100% of the GETs found nothing",)


def test_wrk2_s_quantiles_are_read_as_exactly_as_they_are_printed() -> None:
    measurement = RECORDINGS["wrk2"].measurement()
    metrics = measurement.metrics
    assert metrics["latency_ns_median"] == 884_000 and metrics["latency_ns_p90"] == 1_455_000
    assert metrics["latency_ns_p99"] == 1_980_000 and metrics["latency_ns_p999"] == 2_790_000
    assert (metrics["latency_ns_mean"], metrics["latency_ns_max"]) == (894_000, 4_034_000)
    assert metrics["achieved_per_s"] == 2935.69 and measurement.messages == 14_677
    # Its connections began one after the other: 2,926.5 a second were to be had.
    assert measurement.flags == ()


def test_wrk2_s_run_of_less_than_a_second_is_read() -> None:
    text = read("wrk2-1k.txt").replace("requests in 5.00s,", "requests in 999.80ms,")
    found = RECORDINGS["wrk2"].parse(text, "").metrics["throughput_mbit_per_s"]
    assert found == pytest.approx(17.68 * 2**20 * 8e-6 / 0.9998)


def test_wrk2_s_rate_that_was_not_reached_is_flagged() -> None:
    measurement = RECORDINGS["wrk2"].parse(read("wrk2-1m-rate-not-reached.txt"), "")
    assert measurement.metrics["latency_ns_p999"] == 2.1e9
    assert measurement.metrics["latency_ns_median"] == 578_559_000
    assert measurement.flags == ("rate not reached: 1,965.0 of 2,926.5 per second",)


def test_wrk2_s_other_answers_are_flagged() -> None:
    measurement = wrk2.parse(read("wrk2-404.txt"), rate=3000, seconds=3)
    assert measurement.flags == ("8678 of 8678 answers were not the file",)


def test_iperf3_s_commands() -> None:
    client = iperf3.tcp(ADDRESS, seconds=2)
    text = " ".join(client.argv)
    assert f"--client {ADDRESS}" in text and "--time 2" in text and "--json" in text
    assert client.target == ADDRESS and client.seconds >= 3
    udp = " ".join(iperf3.udp(ADDRESS, seconds=2, mbit_per_s=12.5).argv)
    assert "--udp --bitrate 12500000" in udp


def test_h2load_spreads_its_connections_over_their_interval() -> None:
    client = h2load.constant_rate(ADDRESS, file="1m", rate=3000, seconds=5, warmup=1)
    assert {"--rps=30", "--rate=3", "--rate-period=1ms", "--requests=18000"} <= set(client.argv)
    assert client.argv[-1] == f"http://{ADDRESS}:8080/1m.html"
    slow = h2load.constant_rate(ADDRESS, file="1k", rate=200, seconds=5, connections=10)
    assert {"--rps=20", "--rate=1", "--rate-period=5ms"} <= set(slow.argv)


def test_the_loads_on_memcached_have_the_same_options() -> None:
    program = memcached.closed_loop(ADDRESS, protocol="binary", seconds=2)
    assert {"binary", "workers=4", "connections=50", "sets=1", "gets=10"} <= set(program.argv)
    tool = " ".join(memtier.closed_loop(ADDRESS, protocol="binary", seconds=2).argv)
    assert "-P memcache_binary -t 4 -c 50 --ratio=1:10 --test-time=2 -d 32" in tool
    assert "--print-percentiles=50,90,95,99,99.9" in tool
    # Both store every key before they measure.
    assert "keys=10000" in program.argv and "--key-maximum=10000" in tool
    assert "--key-pattern=P:P -n allkeys" in tool
    assert f"labkit {ADDRESS} 11211 binary 32 10000" in tool


def test_servers_have_ports_of_their_own_and_replace_the_shell() -> None:
    assert "0.0.0.0:8081;" in " ".join(nginx.server(port=8081).argv)
    for workload in (nginx.server(), pgbench.server()):
        assert "\nexec " in workload.argv[2]
    servers: list[Workload] = [tool.server() for tool in (iperf3, memcached, nginx, pgbench)]
    assert {server.protocol for server in servers} == {"tcp"}
    assert {server.image for server in servers} == {"apps"}
    assert len({server.port for server in servers}) == 4


class Prints(LocalHost):
    """A host on which every program prints the same."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def run(self, *argv: str, **options: object) -> Result:
        return Result(argv, self.name, 0, self.text, "", 0.0)


def test_debian_s_wrk_is_not_taken_for_wrk2() -> None:
    wrk = "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\nUsage: wrk\n  -c\n"
    with pytest.raises(ToolMissing, match="wrk2"):
        wrk2.probe(Prints(wrk))
    usage = "wrk 4.0.0 [epoll] Copyright\nUsage: wrk\n    -R, --rate  <T>  work rate\n"
    assert wrk2.probe(Prints(usage)) == "4.0.0"


needs_nginx = pytest.mark.skipif(
    LocalHost().run("sh", "-c", "command -v nginx && command -v h2load", check=False).status != 0,
    reason="nginx and nghttp2-client are not installed",
)


@needs_nginx
def test_nginx_serves_both_files_to_h2load_from_its_work_folder() -> None:
    port = 28_080
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # its worker is another user
    with subprocess.Popen(nginx.server(port=port).argv, cwd=folder) as server:
        try:
            assert not Path(f"/tmp/labkit-nginx-{port}").exists()
            for _ in range(500):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.01)
            for file in nginx.FILES:
                client = h2load.constant_rate(
                    "127.0.0.1", file=file, rate=100, seconds=0.5, connections=5, port=port
                )
                ended = subprocess.run(client.argv, capture_output=True, text=True, check=True)
                measurement = client.parse(ended.stdout, "")
                assert measurement.metrics["not_200"] == 0
                assert len(measurement.samples["latency_ns"])
        finally:
            server.terminate()
            server.wait()
            assert [path.name for path in folder.iterdir()] == [f"nginx-{port}"]
            shutil.rmtree(folder)
