"""Tuning of the real kernel: settings of a network namespace, and settings that revert."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from labkit.errors import RigError
from labkit.hosts import LocalHost, Tuning, labelled, restore, stop_labelled
from labkit.hosts.host import Result
from labkit.hosts.journal import Journal
from labkit.hosts.sysfs import same_value

pytestmark = [
    pytest.mark.rig,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is missing"),
]
ROUTE = ("unreachable", "198.18.0.0/15")


class NamespaceHost(LocalHost):
    """This machine inside a network namespace, whose sysctl files are its own."""

    def run(self, *argv: str, **options: object) -> Result:
        """Run a command in the namespace."""
        return super().run("nsenter", f"--net=/run/netns/{self.name}", *argv, **options)  # type: ignore[arg-type]


@pytest.fixture
def host() -> Iterator[NamespaceHost]:
    name = f"lkt-{uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield NamespaceHost(name)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.fixture
def book(tmp_path: Path) -> str:
    return str(tmp_path / "journal")


@pytest.fixture
def label() -> Iterator[str]:
    name = f"lkt-{uuid4().hex[:8]}"
    yield name
    stop_labelled(LocalHost(), name)


def value(host: NamespaceHost, path: str) -> str:
    return host.run("cat", path).stdout.strip()


TTL, RANGE = "/proc/sys/net/ipv4/ip_default_ttl", "/proc/sys/net/ipv4/ip_local_port_range"


def test_sysctls(host: NamespaceHost, book: str, label: str) -> None:
    before = value(host, TTL), value(host, RANGE)
    assert before[0] != "77"
    with Tuning(host, label, journal=book) as tuning:
        assert tuning.set_files({TTL: 77, RANGE: "20000 30000"}) == {TTL: True, RANGE: True}
        assert value(host, TTL) == "77"
        assert value(host, RANGE).split() == ["20000", "30000"]
    assert (value(host, TTL), value(host, RANGE)) == before


def offload_of(host: NamespaceHost) -> str:
    text = host.run("ethtool", "-k", "lkt0").stdout
    return next(line.split(": ")[1] for line in text.splitlines() if OFFLOAD in line)


OFFLOAD = "tx-udp_tnl-segmentation"


def test_an_offload_of_a_device(host: NamespaceHost, book: str, label: str) -> None:
    host.run("ip", "link", "add", "lkt0", "type", "veth", "peer", "name", "lkt1")
    assert offload_of(host) == "on"
    with Tuning(host, label, journal=book) as tuning:
        assert tuning.set_offload("lkt0", OFFLOAD, "off")
        assert offload_of(host) == "off"
        assert tuning.set_offload("lkt0", OFFLOAD, "off") and len(tuning.entries) == 1
        assert not tuning.set_offload("lkt0", "no-such", "off")
        assert not tuning.set_offload("lkt2", OFFLOAD, "off") and len(tuning.notes) == 2
    assert offload_of(host) == "on" and not Journal(host, book).load().pending
    # What a killed process left is restored from the journal; a device may be gone by then.
    for gone, state in ((False, "restored"), (True, "gone")):
        left = Tuning(host, label, journal=book)
        assert left.set_offload("lkt0", OFFLOAD, "off")
        if gone:
            host.run("ip", "link", "del", "lkt0")
        (outcome,) = restore(host, journal=book)
        assert (outcome.state, outcome.kind) == (state, "offload")
        assert gone or offload_of(host) == "on"


def test_a_value_that_the_kernel_rejects(host: NamespaceHost, book: str, label: str) -> None:
    before = value(host, TTL)
    with Tuning(host, label, journal=book) as tuning:
        assert not tuning.set_file(TTL, 100_000)
        assert not tuning.set_file("/proc/sys/net/ipv4/no_such", 1)
    assert len(tuning.notes) == 2
    assert "was not taken" in tuning.notes[0]
    assert value(host, TTL) == before


def test_a_sysctl_changed_by_somebody_else(host: NamespaceHost, book: str, label: str) -> None:
    with pytest.raises(RigError), Tuning(host, label, journal=book) as tuning:
        tuning.set_files({TTL: 77, RANGE: "20000 30000"})
        host.run("sh", "-c", f"echo 99 >{TTL}")
    assert value(host, TTL) == "99"
    assert value(host, RANGE).split() != ["20000", "30000"]


def routes(host: NamespaceHost) -> str:
    return host.run("ip", "route", "show").stdout


@pytest.mark.parametrize(
    "spec",
    [
        ROUTE,
        ("198.18.5.0/24", "dev", "lo", "table", "77"),
        ("198.18.6.0/24", "dev", "lo", "metric", "5"),
        ("blackhole", "2001:2::/48"),
    ],
)
def test_a_route(host: NamespaceHost, book: str, label: str, spec: tuple[str, ...]) -> None:
    def seen() -> str:
        family = "-6" if "2001:2::/48" in spec else "-4"
        return host.run("ip", family, "route", "show", "table", "all").stdout

    target = next(word for word in spec if "/" in word)
    assert target not in seen()
    with Tuning(host, label, journal=book) as tuning:
        assert tuning.add_route(*spec)
        assert target in seen()
    assert target not in seen()
    assert tuning.notes == []


def test_an_existing_route_is_kept(host: NamespaceHost, book: str, label: str) -> None:
    host.run("ip", "route", "add", *ROUTE)
    with Tuning(host, label, journal=book) as tuning:
        assert not tuning.add_route(*ROUTE)
    assert ROUTE[1] in routes(host)
    assert len(tuning.notes) == 1


def test_a_removed_route(host: NamespaceHost, book: str, label: str) -> None:
    tuning = Tuning(host, label, journal=book)
    assert tuning.add_route(*ROUTE)
    host.run("ip", "route", "del", *ROUTE)
    assert [outcome.state for outcome in tuning.restore()] == ["unchanged"]


def test_an_invalid_route_is_a_note(host: NamespaceHost, book: str, label: str) -> None:
    with Tuning(host, label, journal=book) as tuning:
        assert not tuning.add_route("198.18.0.0/15", "dev", "no-such")
    assert len(tuning.notes) == 1
    assert Journal(host, book).load().pending == ()


KILLED = """
import os, signal, sys
from labkit.hosts import LocalHost, Tuning
book, label, ttl = sys.argv[1:]
with Tuning(LocalHost(), label, journal=book) as tuning:
    tuning.set_file(ttl, 77)
    tuning.add_route("unreachable", "198.18.0.0/15")
    tuning.hold_idle()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_restore_after_a_kill(host: NamespaceHost, book: str, label: str) -> None:
    before = value(host, TTL)
    killed = host.run(sys.executable, "-c", KILLED, book, label, TTL, check=False)
    assert killed.status == 137
    assert value(host, TTL) == "77"
    assert ROUTE[1] in routes(host)
    outcomes = restore(host, journal=book, label=label)
    assert {outcome.state for outcome in outcomes} == {"restored"}
    kinds = [outcome.kind for outcome in outcomes]
    assert kinds in (["job", "route", "file"], ["route", "file"])  # not every kernel has the device
    assert value(host, TTL) == before
    assert ROUTE[1] not in routes(host)
    assert labelled(host, label) == []
    assert restore(host, journal=book) == []


@pytest.mark.skipif(
    not os.access("/dev/cpu_dma_latency", os.W_OK), reason="the kernel has no cpu_dma_latency"
)
def test_hold_idle(book: str, label: str) -> None:
    host = LocalHost()

    def lowest() -> int:
        words = ("od", "-An", "-td4", "-N4", "/dev/cpu_dma_latency")
        return int(host.run(*words).stdout)

    if lowest() == 0:
        pytest.skip("another process restricts idle states")
    with Tuning(host, label, journal=book) as tuning:
        assert tuning.hold_idle()
        assert lowest() == 0
        assert tuning.notes == []
    assert lowest() > 0
    assert labelled(host, label) == []
    assert [path.name for path in Path(book).iterdir()] == ["lock"]


@pytest.mark.skipif(not list(Path("/proc/irq").glob("[0-9]*")), reason="no interrupts to be seen")
def test_move_irqs(book: str, label: str) -> None:
    paths = sorted(Path("/proc/irq").glob("[0-9]*/smp_affinity_list"))
    before = {path: path.read_text() for path in paths}
    with Tuning(LocalHost(), label, journal=book) as tuning:
        moved = tuning.move_irqs("0")
        moved_paths = [path for path in paths if same_value(path.read_text(), "0")]
        assert moved == len(moved_paths) == len(paths) - len(tuning.notes)
    assert {path: path.read_text() for path in paths} == before
