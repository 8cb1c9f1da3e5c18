"""Interrupts off the server's CPU: which CPUs they are moved to, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from small_rig import make_rig

from labkit.errors import UsageError
from labkit.hosts import LocalHost, Tuning, restore
from labkit.hosts.journal import Journal
from labkit.rig import Rig, base, virtual
from labkit.version import MEASUREMENT_VERSION

MAP = {"all": "0-3", "generator": "0", "sut": "3", "clean": "3"}
APART = {"all.sut": "0-3,8", "all.clean": "0-1", "sut": "3,8", "clean": "1"}


class Lever:
    """Stands for a host's `Tuning`, and writes down what it is asked."""

    asked: ClassVar[list[str]] = []
    labels: ClassVar[list[str]] = []

    def __init__(self, host, label):
        self.host, self.label, self.notes = host, label, [f"{label} on {host}: one is managed"]
        self.labels.append(label)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.asked.append(f"{self.host} put back")

    def move_irqs(self, cpus):
        self.asked.append(f"{self.host} to {cpus}")
        return 7


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setattr(base, "Tuning", Lever)
    monkeypatch.setattr(Lever, "asked", [])
    monkeypatch.setattr(Lever, "labels", [])
    return Lever.asked


def rig(cpu_map: dict[str, str], shared_kernel: bool = True) -> Rig:
    hosts: dict[str, Any] = {role: role for role in ("generator", "sut", "clean")}
    return make_rig(hosts=hosts, cpu_map=cpu_map, shared_kernel=shared_kernel)


def test_one_kernel_is_asked_once_and_put_back(asked) -> None:
    with rig(MAP).interrupts("moved") as said:
        assert asked == ["sut to 0,1,2"]
    assert said == [
        "sut: 7 interrupts on CPUs 0,1,2",
        "sut: trial-interrupts on sut: one is managed",
    ]
    assert asked[1:] == ["sut put back"]


def test_machines_of_their_own_are_asked_each(asked) -> None:
    with rig(APART, shared_kernel=False).interrupts("moved"):
        assert asked == ["sut to 0,1,2", "clean to 0"]
    assert asked[2:] == ["clean put back", "sut put back"]


def test_nothing_is_moved_where_there_is_nowhere_or_no_wish(asked) -> None:
    with rig(MAP).interrupts("as found") as said:
        assert said == ["sut: interrupts as found"]
    with rig({"all": "0", "sut": "0"}).interrupts("moved") as said:
        assert "one CPU" in said[0]
    assert asked == []
    with pytest.raises(UsageError), rig(MAP).interrupts("gone"):
        pass


@pytest.mark.parametrize("standing", [True, False], ids=["a rig stands", "no rig"])
def test_what_a_killed_campaign_moved_is_put_back(monkeypatch, tmp_path: Path, standing) -> None:
    with rig(MAP).interrupts("moved"):
        (label,) = Lever.labels
    lever, book = tmp_path / "lever", str(tmp_path / "journal")
    lever.write_text("as found\n")
    # As a kill -9 leaves it: set, written down, and nobody there to put it back.
    Tuning(LocalHost(), label, journal=book).set_file(str(lever), "moved")
    assert lever.read_text().strip() == "moved"
    assert [entry.label for entry in Journal(LocalHost(), book).load().pending] == [label]
    found = {"ready": True, "keep": True, "version": MEASUREMENT_VERSION} if standing else None
    monkeypatch.setattr(virtual.lock, "is_root", lambda: True)
    monkeypatch.setattr(virtual.lock, "read_state", lambda: found)
    monkeypatch.setattr(virtual.netns, "existing", list)
    for where, name in (
        *((virtual, "stop_labelled"), (virtual.engine, "remove_containers")),
        # A rig of somebody else's may stand, with a peer and a collector.
        *((virtual.extra_hosts, "remove_peer"), (virtual.extra_hosts, "remove_collector")),
        *((virtual.storage, "remove_daemons"), (virtual.storage, "remove_temporary")),
        *((virtual.teardown, "remove_trial_leftovers"), (virtual.teardown, "remove_holds")),
    ):
        monkeypatch.setattr(where, name, lambda *given: [])
    monkeypatch.setattr(
        virtual, "restore", lambda host, label: restore(host, journal=book, label=label)
    )
    assert virtual.clean() == [f"{lever}: restored"]
    assert lever.read_text().strip() == "as found"
    assert Journal(LocalHost(), book).load().pending == ()
