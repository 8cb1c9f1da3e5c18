"""The generator of datagrams and the sink: parsers, and real sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from recordings import ran, read

from labkit.errors import ToolOutput
from labkit.hosts import LocalHost
from labkit.runtimes.base import wait_ready
from labkit.tools import datagrams
from labkit.tools.base import python


def test_what_was_not_sent_in_its_turn_is_flagged() -> None:
    whole = read("sockperf-throughput.txt")
    text = whole.replace(" sec\n", " sec (7 messages skipped)\n", 1)
    assert datagrams.parse(text).flags == ("7 datagrams were not sent in their turn",)


@pytest.mark.parametrize(("size", "rate"), [(1454, 82_237), (28, 1_329_787), (14, 1_488_095)])
def test_the_rate_of_a_link(size: int, rate: int) -> None:
    assert datagrams.line_rate(size, 1e9) == pytest.approx(rate, abs=1)


def looks(pid: int, middle: float) -> list[str]:
    return [*python("datagram_sink", "count", pid=pid, settle=0.2, middle=middle, end=0)]


@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="no /usr/bin/python3")
def test_a_sink_counts_every_datagram_and_answers_none() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        port = int(one.getsockname()[1])
    workload = datagrams.sink(port)
    with subprocess.Popen(workload.argv, stdin=subprocess.DEVNULL) as process:
        reading = {"pid": process.pid, "port": workload.port, "protocol": workload.protocol}
        wait_ready(LocalHost(), reading, workload)
        with (
            subprocess.Popen(looks(process.pid, 3), stdout=subprocess.PIPE, text=True) as counting,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            sender.connect(("127.0.0.1", port))
            for size in [14, 28, 1454] * 400:  # an answer of ICMP would be an error of the next
                sender.send(bytes(size))
            printed = counting.communicate()[0]
        table = Path("/proc/net/udp").read_text().splitlines()
        process.kill()
    (_, before), (_, after) = json.loads(printed)["looks"]
    (inode,) = before
    assert after[inode] == 1200 and 0 <= before[inode] <= 1200
    assert datagrams.parse_watch(printed).metrics["packets_per_s"] >= 0
    rows = [line.split() for line in table if f":{port:04X} " in line]
    assert [row[4] for row in rows] == ["00000000:00000000"]  # nothing waits in its queue
    ended = ran(looks(1 << 22, 0))  # a process that is not there
    with pytest.raises(ToolOutput, match="did not run all the time"):
        datagrams.parse_watch(ended.stdout)


@pytest.mark.parametrize(
    ("first", "then", "rate"),
    [
        ((1_000_000_000, {"77": 500}), (1_600_000_000, {"77": 3_500}), 5000.0),
        ((0, {"77": 2**32 - 1000}), (1_000_000_000, {"77": 1000}), 2000.0),
        ((0, {"77": 1}), (1_000_000_000, {"78": 2}), None),
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
