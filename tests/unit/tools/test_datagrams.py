"""The generator of datagrams, the hops of a chain and the sink: commands, parsers, real sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from recordings import ADDRESS, read

from labkit.errors import ToolOutput, UsageError
from labkit.hosts import LocalHost
from labkit.placement import Workload
from labkit.runtimes.base import Started, wait_ready
from labkit.tools import datagrams, socat
from labkit.tools.base import python

WHOLE = read("sockperf-throughput.txt")
SHORT = read("sockperf-throughput-short.txt")


def test_the_number_sent_is_exact_and_a_rate_that_was_not_reached_flagged() -> None:
    measurement = datagrams.parse(WHOLE, rate=2000)
    words = WHOLE[WHOLE.index("Total of") :].split()
    assert measurement.messages == int(words[2]) == measurement.metrics["sent"]
    assert measurement.metrics["send_seconds"] == float(words[6]) and measurement.flags == ()
    reached = datagrams.parse(SHORT).metrics["sent_per_s"]
    (flag,) = datagrams.parse(SHORT, rate=50_000_000).flags
    assert flag == f"rate not reached: {reached:,.0f} of 50,000,000 datagrams a second"
    assert datagrams.parse(SHORT, rate=int(reached * 1.009)).flags == ()
    text = WHOLE.replace(" sec\n", " sec (7 messages skipped)\n", 1)
    assert datagrams.parse(text).flags == ("7 datagrams were not sent in their turn",)


def test_commands_are_argument_lists_for_the_payloads_of_the_paper() -> None:
    client = datagrams.send(ADDRESS, rate=332_446, size=1454, seconds=3, port=7001)
    line = f"sockperf throughput -i {ADDRESS} -p 7001 --mps 332446 -m 1454 -t 3"
    assert " ".join(client.argv) == line and client.target == ADDRESS and client.seconds > 3
    assert client.parse(WHOLE, "").flags[0].startswith("rate not reached")
    for size in (13, 1473):
        with pytest.raises(UsageError, match="no payload of one frame"):
            datagrams.send(ADDRESS, rate=1, size=size, seconds=1, port=1)
    hop = socat.forwarder(7001, "198.18.0.5", 7002)
    ends = ("UDP4-RECV:7001", "UDP4-SENDTO:198.18.0.5:7002")
    assert hop == Workload(("socat", "-u", "-b", "1500", *ends), 7001, "udp", "net")


@pytest.mark.parametrize(
    ("size", "bits", "rate"),
    [(1454, 1e9, 82_237), (28, 1e9, 1_329_787), (14, 1e9, 1_488_095), (18, 1e9, 1_488_095)],
)
def test_the_rate_of_a_link(size: int, bits: float, rate: int) -> None:
    assert datagrams.line_rate(size, bits) == pytest.approx(rate, abs=1)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def started(stack: ExitStack, workload: Workload) -> int:
    """Start a workload until the end of a block; return its process."""
    process = stack.enter_context(subprocess.Popen(workload.argv, stdin=subprocess.DEVNULL))
    stack.callback(process.kill)
    wait_ready(LocalHost(), Started(process.pid), workload)
    return process.pid


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("there is no /usr/bin/python3")
    with ExitStack() as stack:
        yield stack


def send(port: int, sizes: list[int]) -> None:
    """Send datagrams; an answer of ICMP would be an error of the next one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port))
        for size in sizes:
            sender.send(bytes(size))


def test_a_sink_counts_every_datagram_and_answers_none(stack: ExitStack) -> None:
    workload = datagrams.sink(free_port())
    pid = started(stack, workload)
    watch = datagrams.watch(ADDRESS, pid, 60)
    argv = (*watch.argv[:-3], "0.2", "3", "0")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as counting:
        assert counting.stdout is not None
        for _ in range(4):  # some before the first count, all before the second
            send(workload.port, [14, 28, 1454] * 100)
        printed = counting.stdout.read()
    (_, before), (_, after) = json.loads(printed)["looks"]
    (inode,) = before
    assert after[inode] == 1200 and 0 <= before[inode] <= 1200
    assert datagrams.parse_watch(printed).metrics["packets_per_s"] >= 0
    table = Path("/proc/net/udp").read_text().splitlines()
    rows = [line.split() for line in table if f":{workload.port:04X} " in line]
    assert [row[4] for row in rows] == ["00000000:00000000"]  # nothing waits in its queue


def test_a_process_without_a_socket_is_not_counted() -> None:
    argv = python("datagram_sink", "count", str(1 << 22), "0", "0", "0")
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    with pytest.raises(ToolOutput, match="did not run all the time"):
        datagrams.parse_watch(printed)


@pytest.mark.parametrize(
    ("first", "then", "rate"),
    [
        ((1_000_000_000, {"77": 500}), (1_600_000_000, {"77": 3_500}), 5000.0),
        ((0, {"77": 2**32 - 1000}), (1_000_000_000, {"77": 1000}), 2000.0),
        ((0, {"77": 1}), (1_000_000_000, {"78": 2}), None),
        ((0, {}), (1_000_000_000, {"78": 2}), None),
        ((5, {"77": 1}), (5, {"77": 2}), None),
        ((9, {"77": 1}), (5, {"77": 2}), None),
    ],
)
def test_a_rate_is_the_change_of_one_counter_on_one_clock(
    first: object, then: object, rate: float | None
) -> None:
    text = json.dumps({"looks": [first, then]}) + "\n"
    if rate is not None:
        assert datagrams.parse_watch(text).metrics == {"packets_per_s": rate}
        text = text[:30]
    with pytest.raises(ToolOutput):
        datagrams.parse_watch(text)


def test_the_counts_lie_within_the_time_of_sending() -> None:
    client = datagrams.watch("198.18.0.2", 4242, 3)
    assert client.target == "198.18.0.2"
    assert client.argv[-4:] == ("4242", "0.20", "2.60", "0.20")
    assert datagrams.watch("198.18.0.2", 4242, 3, 1.0).argv[-4:] == ("4242", "1.00", "1.80", "0.20")
    with pytest.raises(UsageError, match="nothing is left of 1 s"):
        datagrams.watch("198.18.0.2", 4242, 1, 1.0)
    assert client.seconds < datagrams.send("198.18.0.2", rate=1, size=28, seconds=3, port=1).seconds
