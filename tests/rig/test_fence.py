"""The fence: no lab packet on a real interface, no load to an address that the rig does not own."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from echoes import echoes
from hypothesis import given
from hypothesis import strategies as st

from labkit.campaign.trial import Trial
from labkit.errors import FenceError, UsageError
from labkit.placement import bare, docker
from labkit.rig.base import Rig
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
OPEN = {"networks": ("macvlan",), "collector": ("sut", "clean")}

# Counts, with a socket filter in the kernel, the frames on every interface but lo whose IPv4 or
# ARP addresses are in 198.18.0.0/15; prints "ready", and at the end of its input the counts.
COUNTER = r"""
import ctypes, json, socket, struct, sys
ACCEPT, REJECT = 17, 18
LAB, MASK = 0xC6120000, 0xFFFE0000
def lab_at(offset, at):  # load a word; accept when it is an address of the lab
    return [(0x20, 0, 0, offset), (0x54, 0, 0, MASK), (0x15, ACCEPT - at - 3, 0, LAB)]
program = [(0x28, 0, 0, 12), (0x15, 0, 7, 0x0800), *lab_at(26, 2), *lab_at(30, 5)]
program += [(0x06, 0, 0, 0), (0x15, 0, REJECT - 10, 0x0806), *lab_at(28, 10), *lab_at(38, 13)]
program += [(0x06, 0, 0, 0), (0x06, 0, 0, 65535), (0x06, 0, 0, 0)]
code = b"".join(struct.pack("HBBI", *line) for line in program)
buffer = ctypes.create_string_buffer(code)
fprog = struct.pack("HL", len(program), ctypes.addressof(buffer))
sockets = {}
for _, name in socket.if_nameindex():
    if name == "lo":
        continue
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    one.setsockopt(socket.SOL_SOCKET, 26, fprog)  # SO_ATTACH_FILTER, before it hears anything
    one.bind((name, 3))  # ETH_P_ALL: what leaves is heard too
    sockets[name] = one
print("ready", flush=True)
sys.stdin.read()
counts = {}
for name, one in sockets.items():
    # PACKET_STATISTICS: what passed the filter, also what did not fit into the buffer
    counts[name] = struct.unpack("II", one.getsockopt(263, 6, 8))[0]
print(json.dumps(counts))
"""


class Counter:
    """Counts of lab frames by interface, set when the ``with`` block ends."""

    counts: dict[str, int]


@contextmanager
def counting(namespace: str = "") -> Iterator[Counter]:
    enter = ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []
    argv = [*enter, sys.executable, "-c", COUNTER]
    counter = Counter()
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "ready\n"
        yield counter
        process.stdin.close()
        counter.counts = json.loads(process.stdout.read())


def ip(*argv: str) -> None:
    subprocess.run(["ip", *argv], check=True)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace with a veth pair and permanent neighbours."""
    name = f"lkt-{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two")
        for link in ("one", "two"):
            ip("-n", name, "link", "set", link, "up")
        ip("-n", name, "addr", "add", "198.18.77.1/24", "dev", "one")
        ip("-n", name, "addr", "add", "192.0.2.1/24", "dev", "one")
        for neighbour in ("198.18.77.2", "192.0.2.2"):
            ip("-n", name, "neigh", "add", neighbour, "lladdr", "02:00:00:00:00:02", "dev", "one")
        yield name
    finally:
        ip("netns", "del", name)


SEND = """
import socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind((sys.argv[1], 0))
one.sendto(b"x", (sys.argv[2], 9))
"""


@pytest.mark.parametrize(
    ("source", "target", "frames"),
    [
        ("198.18.77.1", "198.18.77.2", 1),
        ("198.18.77.1", "192.0.2.2", 1),
        ("192.0.2.1", "198.18.77.2", 1),
        ("192.0.2.1", "192.0.2.2", 0),
    ],
)
def test_the_counter_sees_a_lab_packet_and_only_that(
    namespace: str, source: str, target: str, frames: int
) -> None:
    enter = ["nsenter", f"--net=/run/netns/{namespace}"]
    with counting(namespace) as counter:
        subprocess.run([*enter, sys.executable, "-c", SEND, source, target], check=True)
    assert counter.counts == {"one": frames, "two": frames}


def test_no_lab_packet_is_on_a_real_interface(
    lab: Rig, make_trial: Callable[..., Trial], left: Callable[[], list[str]]
) -> None:
    real = {name for _, name in socket.if_nameindex()} - {"lo"}
    assert real, "this machine has no interface that a packet could leave by"
    with counting() as outside, counting("labkit-switch") as inside:
        for network in ("host", "bridge", "nat", "macvlan"):
            trial = make_trial(docker(network))
            with trial.serve(sockperf.server("block"), docker(network)) as server:
                trial.measure(echoes(server.address, 500))
    assert set(outside.counts) >= real
    assert sum(outside.counts.values()) == 0, outside.counts
    assert max(inside.counts.values()) > 1000  # there was load
    assert left() == []


@pytest.mark.parametrize("address", ["198.18.0.3", "198.18.1.10", "198.19.0.2", "198.19.255.254"])
def test_the_lab_is_unreachable_from_outside_its_namespaces(lab: Rig, address: str) -> None:
    shown = subprocess.run(
        ["ip", "route", "show", "198.18.0.0/15"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("unreachable 198.18.0.0/15")
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        with socket.socket(socket.AF_INET, kind) as one, pytest.raises(OSError) as caught:
            one.connect((address, sockperf.PORT))
        assert caught.value.errno == errno.EHOSTUNREACH


def never_parsed(stdout: str, log: str) -> Measurement:
    raise AssertionError("there is nothing to parse")


@pytest.mark.parametrize(
    ("target", "what"),
    [
        *((one, f"no load is sent to {one!r}") for one in ("198.18.77.1", "192.0.2.1")),
        *((one, f"no load is sent to {one!r}") for one in ("127.0.0.1", "localhost")),
        ("", "a client on the generator has no target"),
    ],
)
def test_no_load_is_sent_to_addresses_outside_the_rig(
    lab: Rig, make_trial: Callable[..., Trial], tmp_path: Path, target: str, what: str
) -> None:
    trial, mark = make_trial(bare("clean")), tmp_path / "ran"
    client = Client(("touch", str(mark)), target, 1.0, never_parsed)
    with pytest.raises(FenceError, match=what):
        trial.measure(client)
    assert not mark.exists()
    assert trial.record["commands"] == [] and trial.logs == {}


def test_load_needs_a_placement_of_the_trial(
    lab: Rig, make_trial: Callable[..., Trial], tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    client = Client(("touch", str(mark)), lab.addresses["sut"][0], 1.0, never_parsed)
    with pytest.raises(UsageError, match="needs a placement"):
        make_trial(bare("clean")).measure(client)
    assert not mark.exists()


@given(st.one_of(st.ip_addresses().map(str), st.text(max_size=20)))
def test_the_rig_owns_its_addresses_and_no_others(lab: Rig, address: str) -> None:
    own = {text for texts in lab.addresses.values() for text in texts} | {"198.18.1.10"}
    assert lab.owns(address) == (address in own)
    assert all(map(lab.owns, own))
