"""The generator of datagrams, the hops of a chain and the sink: commands, parsers, real sockets."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
from recordings import read

from labkit.errors import PlacementError, ToolMissing, ToolOutput, UsageError
from labkit.hosts import LocalHost, script, sockets
from labkit.runtimes.base import Started, wait_ready
from labkit.tools import datagrams, socat

WHOLE = read("sockperf-throughput.txt")
SHORT = read("sockperf-throughput-short.txt")


def test_what_was_sent_is_read_to_the_number() -> None:
    measurement = datagrams.parse(WHOLE, rate=2000)
    words = WHOLE[WHOLE.index("Total of") :].split()
    assert measurement.messages == int(words[2]) == measurement.metrics["sent"]
    assert measurement.metrics["send_seconds"] == float(words[6])
    rate = int(WHOLE.split("Message Rate is ")[1].split()[0])  # the tool's own, rounded
    assert measurement.metrics["sent_per_s"] == pytest.approx(rate, abs=1.5)
    assert not measurement.samples and measurement.flags == ()


def test_a_rate_that_was_not_reached_is_a_flag_and_no_error() -> None:
    asked = int(SHORT.split("mps=")[1].split(".")[0])
    measurement = datagrams.parse(SHORT, rate=asked)
    (flag,) = measurement.flags
    reached = measurement.metrics["sent_per_s"]
    assert flag == f"rate not reached: {reached:,.0f} of {asked:,} datagrams a second"
    assert datagrams.parse(SHORT).flags == ()
    assert datagrams.parse(SHORT, rate=int(reached * 1.009)).flags == ()
    assert datagrams.parse(SHORT, rate=int(reached * 1.012)).flags != ()


def test_datagrams_that_were_skipped_are_a_flag() -> None:
    text = WHOLE.replace(" sec\n", " sec (7 messages skipped)\n", 1)
    assert datagrams.parse(text).flags == ("7 datagrams were not sent in their turn",)


def test_the_command_is_an_argument_list_for_the_payloads_of_the_paper() -> None:
    for size in (28, 1454):
        client = datagrams.send("198.18.0.3", rate=332_446, size=size, seconds=3, port=7001)
        line = " ".join(client.argv)
        assert line == (f"sockperf throughput -i 198.18.0.3 -p 7001 --mps 332446 -m {size} -t 3")
        assert client.target == "198.18.0.3" and client.seconds > 3
        assert client.parse(WHOLE, "").flags[0].startswith("rate not reached")


def test_the_rate_of_a_link() -> None:
    assert datagrams.line_rate(1454) == pytest.approx(82_237, abs=1)
    assert datagrams.line_rate(28) == pytest.approx(1_329_787, abs=1)
    # The smallest frame carries 18 bytes, so that less is not faster.
    assert datagrams.line_rate(14) == datagrams.line_rate(18) == pytest.approx(1_488_095, abs=1)
    assert datagrams.line_rate(28, 10e9) == pytest.approx(10 * datagrams.line_rate(28))


def test_a_hop_is_a_workload_that_connects_nowhere() -> None:
    hop = socat.forwarder(7001, "198.18.0.5", 7002)
    assert hop.argv == (
        *("socat", "-u", "-b", "1500"),
        *("UDP4-RECV:7001", "UDP4-SENDTO:198.18.0.5:7002"),
    )
    assert (hop.port, hop.protocol, hop.image) == (7001, "udp", "net")


def free_port() -> int:
    """Return a UDP port that is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def started(argv: tuple[str, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL)


@pytest.fixture
def sink() -> Iterator[tuple[int, int]]:
    """Hold a sink on this machine; its port and process."""
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("there is no /usr/bin/python3")
    workload = datagrams.sink(free_port())
    with started(workload.argv) as process:
        wait_ready(LocalHost(), Started(process.pid), workload)
        yield workload.port, process.pid
        process.kill()


def reading(pid: int) -> str:
    return LocalHost().run(*script(sockets.SHOW + 'sockets "$1"', str(pid))).stdout


def counted_until(before: str, pid: int, expected: int) -> int:
    """Return the sink's count, once it is the expected one or ten seconds are over."""
    count = -1
    for _ in range(500):
        count = datagrams.counted(before, reading(pid))
        if count >= expected:
            break
        time.sleep(0.02)
    return count


def test_a_sink_counts_every_datagram_and_answers_none(sink: tuple[int, int]) -> None:
    port, pid = sink
    before = reading(pid)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port))  # an answer of ICMP would be an error of the next send
        for size in (14, 28, 1454) * 100:
            sender.send(bytes(size))
    assert counted_until(before, pid, 300) == 300
    rows = [line.split() for line in reading(pid).splitlines() if f":{port:04X} " in line]
    assert [row[4] for row in rows] == ["00000000:00000000"]  # nothing waits in its queue


def test_a_sink_that_was_not_there_all_the_time_is_an_error(sink: tuple[int, int]) -> None:
    _, pid = sink
    running, nobody = reading(pid), reading(1 << 22)
    assert datagrams.counted(running, running) == 0
    for pair in ((running, nobody), (nobody, running), (nobody, nobody), (running, "")):
        with pytest.raises(ToolOutput, match="did not run during"):
            datagrams.counted(*pair)


@pytest.fixture
def host() -> LocalHost:
    """Return this machine, if it has socat."""
    try:
        socat.probe(LocalHost())
    except ToolMissing as error:
        pytest.skip(str(error))
    return LocalHost()


def test_a_chain_of_hops_brings_every_datagram_to_the_sink(
    host: LocalHost, sink: tuple[int, int]
) -> None:
    following, pid = sink
    processes = []
    try:
        for _ in range(3):
            hop = socat.forwarder(free_port(), "127.0.0.1", following)
            processes.append(started(hop.argv))
            wait_ready(host, Started(processes[-1].pid), hop)
            following = hop.port
        before = reading(pid)
        for _ in range(3):  # each from a port of its own: no hop keeps to one sender
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for size in (14, 28, 1454):
                    sender.sendto(bytes(size), ("127.0.0.1", following))
        assert counted_until(before, pid, 9) == 9
        assert all(process.poll() is None for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_hop_goes_on_while_the_next_is_not_there(host: LocalHost) -> None:
    following = free_port()
    hop = socat.forwarder(free_port(), "127.0.0.1", following)
    with started(hop.argv) as process:
        wait_ready(host, Started(process.pid), hop)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(5):
                sender.sendto(b"to nobody", ("127.0.0.1", hop.port))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
                taker.bind(("127.0.0.1", following))
                taker.settimeout(10)
                sender.sendto(b"to somebody", ("127.0.0.1", hop.port))
                while taker.recv(100) != b"to somebody":
                    continue
        process.kill()


def test_a_hop_whose_port_is_taken_says_so(host: LocalHost) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("0.0.0.0", 0))
        hop = socat.forwarder(one.getsockname()[1], "127.0.0.1", free_port())
        with started(hop.argv) as process:
            with pytest.raises(PlacementError, match="did not become ready"):
                wait_ready(host, Started(process.pid), hop, seconds=0.5)
            assert process.wait(timeout=60) != 0


LOOK = """{clock}
socket:[77]
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
  101: 00000000:4E1F 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 77 2 0 {drops}
@@
"""


def looks(*pairs: tuple[int, int]) -> str:
    return "".join(LOOK.format(clock=clock, drops=drops) for clock, drops in pairs)


def test_a_rate_is_what_arrives_between_two_looks() -> None:
    text = looks((1_000_000_000, 500), (1_600_000_000, 3_500))
    assert datagrams.parse_watch(text).metrics == {"packets_per_s": 5000.0}


@pytest.mark.parametrize(
    "text",
    ["", looks((10, 1)), looks((10, 1), (9, 2)), looks((10, 1), (20, 2)).replace("10", "now", 1)],
    ids=["nothing", "one look", "a clock that goes back", "no clock"],
)
def test_looks_that_cannot_be_read_are_shown(text: str) -> None:
    with pytest.raises(ToolOutput):
        datagrams.parse_watch(text)


def test_the_looks_lie_within_what_is_sent() -> None:
    client = datagrams.watch("198.18.0.2", 4242, 3)
    assert client.target == "198.18.0.2"
    assert client.argv[-4:] == ("4242", "0.20", "2.60", "0.20")
    assert datagrams.watch("198.18.0.2", 4242, 3, 1.0).argv[-4:] == ("4242", "1.00", "1.80", "0.20")
    with pytest.raises(UsageError, match="nothing is left of 1 s"):
        datagrams.watch("198.18.0.2", 4242, 1, 1.0)
    assert client.seconds < datagrams.send("198.18.0.2", rate=1, size=28, seconds=3, port=1).seconds
