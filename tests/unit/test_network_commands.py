"""The commands of the application study's tools: what they carry, and what is refused."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from labkit.errors import ToolMissing, ToolOutput, UsageError
from labkit.hosts import LocalHost
from labkit.placement import Workload
from labkit.tools import h2load, iperf3, memcached, memtier, nginx, pgbench, wrk2
from labkit.tools.log_capture import logged, rows, split
from labkit.tools.parsing import unreadable

ADDRESS = "198.18.0.3"


def test_iperf3_s_command_carries_what_is_asked_for() -> None:
    client = iperf3.tcp(ADDRESS, seconds=2, streams=3, omit=1)
    text = " ".join(client.argv)
    assert f"--client {ADDRESS}" in text and "--time 2 --omit 1" in text and "--json" in text
    assert "--parallel 3" in text and client.target == ADDRESS and client.seconds >= 3
    udp = " ".join(iperf3.udp(ADDRESS, seconds=2, mbit_per_s=12.5, size=1200).argv)
    assert "--udp --bitrate 12500000 --length 1200" in udp
    assert "--length" not in iperf3.udp(ADDRESS, seconds=2, mbit_per_s=1).argv


def test_h2load_s_command_spreads_the_connections_over_their_interval() -> None:
    client = h2load.constant_rate(ADDRESS, file="1m", rate=3000, seconds=5, warmup=1)
    assert {"--rps=30", "--rate=3", "--rate-period=1ms", "--requests=18000"} <= set(client.argv)
    assert client.argv[-1] == f"http://{ADDRESS}:8080/1m.html"
    slow = h2load.constant_rate(ADDRESS, file="1k", rate=200, seconds=5, connections=10)
    assert {"--rps=20", "--rate=1", "--rate-period=5ms"} <= set(slow.argv)


def test_the_loads_on_memcached_are_asked_for_the_same() -> None:
    mine = memcached.closed_loop(ADDRESS, protocol="binary", seconds=2, inside=True)
    assert {"binary", "workers=4", "connections=50", "sets=1", "gets=10", "log=-"} <= set(mine.argv)
    theirs = memtier.closed_loop(ADDRESS, protocol="binary", seconds=2)
    text = " ".join(theirs.argv)
    assert "-P memcache_binary -t 4 -c 50 --ratio=1:10 --test-time=2 -d 32" in text


def test_servers_listen_where_they_are_told_and_become_the_server_itself() -> None:
    assert "0.0.0.0:8081;" in " ".join(nginx.server(port=8081).argv)
    assert "worker_processes 3;" in " ".join(nginx.server(workers=3).argv)
    for workload in (nginx.server(), pgbench.server()):
        assert "\nexec " in workload.argv[2]
    assert "fsync=off" in pgbench.server(durable=False).argv
    assert "fsync=off" not in pgbench.server().argv
    made: list[Workload] = [iperf3.server(), memcached.server(), nginx.server(), pgbench.server()]
    assert {one.protocol for one in made} == {"tcp"} and {one.image for one in made} == {"apps"}
    assert len({one.port for one in made}) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: iperf3.tcp(ADDRESS, seconds=1.5),
        lambda: iperf3.tcp(ADDRESS, seconds=1, streams=0),
        lambda: iperf3.udp(ADDRESS, seconds=1, mbit_per_s=-1),
        lambda: iperf3.udp(ADDRESS, seconds=1, mbit_per_s=float("nan")),
        lambda: h2load.constant_rate(ADDRESS, file="2k", rate=10, seconds=1),
        lambda: h2load.constant_rate(ADDRESS, file="1k", rate=1e3, seconds=1),
        lambda: h2load.constant_rate(ADDRESS, file="1k", rate=10, seconds=1, connections=100),
        lambda: h2load.constant_rate(ADDRESS, file="1k", rate=10, seconds=0),
        lambda: wrk2.constant_rate(ADDRESS, file="1k", rate=10, seconds=1.5),
        lambda: wrk2.constant_rate(ADDRESS, file="1k", rate=10, seconds=1, connections=1),
        lambda: memcached.closed_loop(ADDRESS, protocol="udp", seconds=1),
        lambda: memcached.closed_loop(ADDRESS, protocol="text", seconds=1, size=100_000),
        lambda: memcached.closed_loop(ADDRESS, protocol="text", seconds=1, keys=10_000_000),
        lambda: memtier.closed_loop(ADDRESS, protocol="text", seconds=0.5),
        lambda: memcached.server(threads=0),
        lambda: nginx.server(workers=-1),
        lambda: pgbench.transactions(ADDRESS, rate=0, seconds=1),
        lambda: pgbench.transactions(ADDRESS, rate=10, seconds=1, connections=2),
        lambda: pgbench.server(directory="/"),
        lambda: pgbench.server(directory="/data/../etc"),
        lambda: pgbench.server(directory="relative/one"),
    ],
)
def test_what_a_tool_would_misread_is_refused(make) -> None:
    with pytest.raises(UsageError):
        make()


class _Without(LocalHost):
    """A host on which no program is found."""

    def run(self, *argv, **options):
        return super().run("/bin/sh", "-c", "echo not found >&2; exit 127", **options)


class _Says(LocalHost):
    """A host on which every program prints the same."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def run(self, *argv, **options):
        return super().run("/bin/printf", "%s", self.text, **options)


@pytest.mark.parametrize("tool", [h2load, iperf3, memcached, memtier, nginx, pgbench, wrk2])
def test_a_tool_that_is_not_there_is_said(tool) -> None:
    with pytest.raises(ToolMissing, match="is not installed"):
        tool.probe(_Without())


def test_debian_s_wrk_is_not_taken_for_wrk2() -> None:
    wrk = "wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Will Glozer\nUsage: wrk\n  -c\n"
    with pytest.raises(ToolMissing, match="wrk2"):
        wrk2.probe(_Says(wrk))
    told = "wrk 4.0.0 [epoll] Copyright\nUsage: wrk\n    -R, --rate  <T>  work rate\n"
    assert wrk2.probe(_Says(told)) == "4.0.0"


def run(argv: tuple[str, ...], log: Path) -> subprocess.CompletedProcess[str]:
    command = [part.replace("{log}", str(log)) for part in argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


WRITES = ("sh", "-c", "echo said; echo 1 >a; echo 2 >b; mkdir c")


@pytest.mark.parametrize("inside", [True, False])
def test_files_become_the_log_wherever_the_tool_runs(tmp_path: Path, inside: bool) -> None:
    ended = run(logged(WRITES, inside=inside), tmp_path / "log")
    log = "" if inside else (tmp_path / "log").read_text()
    printed, files = split(ended.stdout, log)
    assert (printed.strip(), files) == ("said", "1\n2\n")
    assert [path.name for path in tmp_path.iterdir()] == ([] if inside else ["log"])


def test_what_is_ended_in_the_planned_time_is_read_and_a_failure_fails(tmp_path: Path) -> None:
    late = ("sh", "-c", "echo 1 >a; exec sleep 60")
    ended = run(logged(late, limit=0.2), tmp_path / "log")
    assert ended.returncode == 0 and (tmp_path / "log").read_text() == "1\n"
    for limit in (0, 5):
        failed = run(logged(("sh", "-c", "exit 7"), limit=limit), tmp_path / "none")
        assert failed.returncode == 7 and not (tmp_path / "none").exists()
    own = run(logged(("sh", "-c", "exit 124")), tmp_path / "none")
    assert own.returncode == 124


def test_rows_are_whole_numbers_in_whole_lines() -> None:
    found = rows("1 2\n3 4\n", ("a", "b"), " ", tool="a tool")
    assert found["a"].tolist() == [1, 3] and found["b"].dtype == "int64"
    for wrong in ("", "1 2", "1 2\n3\n", "1 2\n3 4 5\n", "1 2.5\n", "1 \n", "\n\n", "1 2\n\n"):
        with pytest.raises(ToolOutput):
            rows(wrong, ("a", "b"), " ", tool="a tool")
    assert "a tool" in str(unreadable("a tool", "why", ""))


needs_nginx = pytest.mark.skipif(
    LocalHost().run("sh", "-c", "command -v nginx && command -v h2load", check=False).status != 0,
    reason="nginx and nghttp2-client are not installed",
)


@needs_nginx
def test_nginx_serves_both_files_to_h2load(tmp_path: Path) -> None:
    port = 28_080
    with subprocess.Popen(nginx.server(port=port).argv) as server:
        try:
            for _ in range(500):
                with socket.socket() as one:
                    if one.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.01)
            for file in nginx.FILES:
                client = h2load.constant_rate(
                    "127.0.0.1", file=file, rate=100, seconds=0.5, connections=5, port=port
                )
                ended = run(client.argv, tmp_path / file)
                measurement = client.parse(ended.stdout, (tmp_path / file).read_text())
                assert measurement.metrics["not_200"] == 0 and len(
                    measurement.samples["latency_ns"]
                )
        finally:
            server.terminate()
            server.wait()
            shutil.rmtree(f"/tmp/labkit-nginx-{port}", ignore_errors=True)
