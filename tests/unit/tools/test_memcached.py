"""The load on memcached: its program against memcached, and answers that it refuses."""

from __future__ import annotations

import json
import shutil
import struct
from typing import Any

import numpy as np
import pytest
from recordings import ran, serving

from labkit.tools import memcached
from labkit.tools.base import python

PROGRAM: dict[str, Any] = {"__name__": "program"}
exec(compile(python("memcached_load", "main")[2], "memcached_load", "exec"), PROGRAM)
PORT = 21_211
PROTOCOLS = ("text", "binary")


@pytest.mark.skipif(not shutil.which("memcached"), reason="memcached is not installed")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_operation_is_counted_and_timed(protocol: str) -> None:
    options = {"seconds": 0.2, "threads": 2, "connections": 3, "keys": 40}
    client = memcached.load("127.0.0.1", protocol=protocol, **options)
    with serving(f"memcached -u nobody -l 127.0.0.1 -p {PORT} -U 0".split(), PORT):
        ended = ran(client.argv, port=PORT)
    measurement = client.parse(ended.stdout, "")
    metrics, samples = measurement.metrics, measurement.samples
    start, latency, kind = map(np.array, json.loads(ended.stdout)["samples"].values())
    assert metrics["sets"] + metrics["gets"] == len(start) < measurement.messages - 40
    assert metrics["gets"] == pytest.approx(10 * metrics["sets"], abs=150)
    assert metrics["operations_per_s"] == pytest.approx(len(start) * 1e9 / (start + latency).max())
    for number, name in ((1, "set_"), (0, "get_")):
        own = np.sort(latency[kind == number])
        ends = [metrics[f"{name}latency_ns_{end}"] for end in ("min", "median", "max")]
        assert ends == [own[0], own[(len(own) + 1) // 2 - 1], own[-1]]
    assert (start >= 0).all() and start.max() < 0.2e9
    assert (np.diff(samples["start_ns"]) >= 0).all() and len(samples["set"]) <= 2 * memcached.KEPT
    assert np.isin(samples["latency_ns"], latency).all()


def test_a_load_without_a_server_fails_with_a_reason() -> None:
    ended = ran(memcached.load("127.0.0.1", protocol="text", seconds=1).argv, port=PORT)
    assert ended.returncode == 1 and "ConnectionRefusedError" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_only_the_whole_right_answer_is_accepted(protocol: str) -> None:
    key, value = b"labkit-00000007", b"x" * 32
    header = struct.Struct("!BBHBBHIIQ")
    stored, found = b"STORED\r\n", b"VALUE %b 0 32\r\n%b\r\nEND\r\n" % (key, value)
    nothing = b"END\r\n"
    if protocol == "binary":
        stored = header.pack(0x81, 1, 0, 0, 0, 0, 0, 0, 9)
        found = header.pack(0x81, 0, 0, 4, 0, 0, 36, 0, 9) + bytes(4) + value
        nothing = header.pack(0x81, 0, 0, 0, 0, 1, 9, 0, 0) + b"Not found"
    for kind, answer in ((1, stored), (0, found)):
        _, *expected = PROGRAM["operation"](protocol, kind, key, value)
        PROGRAM["check"](answer, *expected)
        for wrong in (answer[:-1], answer + b"?", b"ERROR\r\n", b"", nothing):
            with pytest.raises(ValueError, match="memcached answered"):
                PROGRAM["check"](wrong, *expected)
