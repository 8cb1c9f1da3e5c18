"""Settings of the real kernel: those of a network namespace, and settings that revert."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from labkit.hosts import LocalHost, Settings, labelled, restore, stop_labelled
from labkit.hosts.agent import same
from labkit.hosts.host import Result

pytestmark = [
    pytest.mark.rig,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is missing"),
]


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


TTL, RANGE = "/proc/sys/net/ipv4/ip_default_ttl", "/proc/sys/net/ipv4/ip_local_port_range"


def offload_of(host: NamespaceHost) -> str:
    text = host.run("ethtool", "-k", "lkt0").stdout
    return next(line.split(": ")[1] for line in text.splitlines() if OFFLOAD in line)


OFFLOAD = "tx-udp_tnl-segmentation"


def test_an_offload_of_a_device(host: NamespaceHost, book: str, label: str) -> None:
    host.run("ip", "link", "add", "lkt0", "type", "veth", "peer", "name", "lkt1")
    assert offload_of(host) == "on"
    with Settings(host, label, journal=book) as tuning:
        assert tuning.set_offload("lkt0", OFFLOAD, "off")
        assert offload_of(host) == "off"
        assert (
            tuning.set_offload("lkt0", OFFLOAD, "off")
            and len(host.call("pending", journal=book)) == 1
        )
        assert not tuning.set_offload("lkt0", "no-such", "off")
        assert not tuning.set_offload("lkt2", OFFLOAD, "off") and len(tuning.notes) == 2
    assert offload_of(host) == "on" and not host.call("pending", journal=book)
    # What a killed process left is restored from the journal; a device may be gone by then.
    for gone, state in ((False, "restored"), (True, "gone")):
        left = Settings(host, label, journal=book)
        assert left.set_offload("lkt0", OFFLOAD, "off")
        if gone:
            host.run("ip", "link", "del", "lkt0")
        (outcome,) = restore(host, journal=book)
        assert outcome.state == state
        assert gone or offload_of(host) == "on"


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
    with Settings(host, label, journal=book) as tuning:
        assert tuning.hold_idle()
        assert lowest() == 0
        assert tuning.notes == []
    assert lowest() > 0
    assert labelled(host, label) == []
    assert list(Path(book).iterdir()) == []


@pytest.mark.skipif(not list(Path("/proc/irq").glob("[0-9]*")), reason="no interrupts to be seen")
def test_move_irqs(book: str, label: str) -> None:
    paths = sorted(Path("/proc/irq").glob("[0-9]*/smp_affinity_list"))
    before = {path: path.read_text() for path in paths}
    with Settings(LocalHost(), label, journal=book) as tuning:
        moved = tuning.move_irqs("0")
        moved_paths = [path for path in paths if same(path.read_text(), "0")]
        assert moved == len(moved_paths) == len(paths) - len(tuning.notes)
    assert {path: path.read_text() for path in paths} == before
