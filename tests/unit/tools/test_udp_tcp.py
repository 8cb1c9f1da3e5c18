"""A message in as UDP, its answer over TCP: both ends on loopback, and output that is broken."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import ToolOutput
from labkit.hosts import LocalHost, script
from labkit.tools import udp_tcp
from labkit.tools.base import Client, Measurement

ADDRESS = "127.0.0.1"
_LISTENS = """
while ! ss -Hltn "sport = :$1" | grep -q .; do sleep 0.02; done
"""


def free_port() -> int:
    with socket.create_server((ADDRESS, 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def serving(wait: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    argv = udp_tcp.server(wait, port=port).argv
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        LocalHost().run(*script(_LISTENS, str(port)))
        yield process
        process.kill()


def run(client: Client, folder: Path) -> Measurement:
    log = folder / "log"
    argv = [word.replace("{log}", str(log)) for word in client.argv]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True)
    return client.parse(ended.stdout, log.read_text())


@pytest.mark.parametrize("size", [8, 64, 20_000])
@pytest.mark.parametrize("wait", udp_tcp.WAITS)
def test_every_message_is_answered_and_timed(tmp_path: Path, wait: str, size: int) -> None:
    port = free_port()
    with serving(wait, port):
        client = udp_tcp.ask(ADDRESS, messages=200, size=size, wait=wait, port=port)
        measurement = run(client, tmp_path)
    rtt = measurement.samples["rtt_ns"]
    assert rtt.dtype == np.int64 and len(rtt) == 200 and rtt.min() > 0
    assert measurement.messages == 200 + udp_tcp.WARMUP and measurement.flags == ()
    assert measurement.metrics == {"dropped": 0.0}


def test_a_message_that_is_lost_is_counted_and_the_next_one_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    with (
        socket.create_server((ADDRESS, 0)) as listening,
        socket.socket(type=socket.SOCK_DGRAM) as taker,
    ):
        port = int(listening.getsockname()[1])
        taker.bind((ADDRESS, port))

        def forgetful() -> None:
            answers, _ = listening.accept()
            with answers:
                for number in range(udp_tcp.WARMUP + 3):
                    message = taker.recv(100)
                    assert int.from_bytes(message[:8], "big") == number
                    if number != udp_tcp.WARMUP + 1:
                        answers.sendall(message)

        thread = threading.Thread(target=forgetful, daemon=True)
        thread.start()
        client = udp_tcp.ask(ADDRESS, messages=3, size=64, wait="block", port=port)
        measurement = run(client, tmp_path)
        thread.join()
    assert len(measurement.samples["rtt_ns"]) == 2 and measurement.metrics == {"dropped": 1.0}
    assert measurement.flags == (
        "lossy: 1 of 503 messages without an answer",
        "short: 2 of 3 messages",
    )


def test_a_server_that_is_not_there_is_said_in_its_own_words(tmp_path: Path) -> None:
    client = udp_tcp.ask(ADDRESS, messages=3, size=64, wait="spin", port=free_port())
    ended = subprocess.run(client.argv, capture_output=True, text=True, check=False)
    assert ended.returncode != 0 and "Connection refused" in ended.stderr
    with pytest.raises(ToolOutput, match="no result"):
        client.parse(ended.stdout, "")


@pytest.mark.parametrize(
    "log", ["", "rtt_ns\n", "rtt_ns\n12\n", "rtt_ns\n12\n0\n", "12\n13\n", "rtt_ns\n12\n1x\n"]
)
def test_a_log_that_is_not_whole_is_an_error(log: str) -> None:
    said = json.dumps({"messages": 502, "rows": 2, "lost": 0})
    assert udp_tcp.parse(said, "rtt_ns\n12\n13\n").samples["rtt_ns"].tolist() == [12, 13]
    with pytest.raises(ToolOutput):
        udp_tcp.parse(said, log)
