"""Interrupts off the server's CPU: which CPUs they are moved to, and what is said of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest

from labkit.errors import UsageError
from labkit.rig import interrupts as module

MAP = {"all": "0-3", "generator": "0", "sut": "3", "clean": "3"}
APART = {"all.sut": "0-3,8", "all.clean": "0-1", "sut": "3,8", "clean": "1"}


class Lever:
    """Stands for a host's `Tuning`, and writes down what it is asked."""

    asked: ClassVar[list[str]] = []

    def __init__(self, host, label):
        self.host, self.notes = host, [f"{label} on {host}: one is managed"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.asked.append(f"{self.host} put back")

    def move_irqs(self, cpus):
        self.asked.append(f"{self.host} to {cpus}")
        return 7


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setattr(module, "Tuning", Lever)
    monkeypatch.setattr(Lever, "asked", [])
    return Lever.asked


def rig(cpu_map, **options):
    roles = ("generator", "sut", "clean")
    return SimpleNamespace(
        hosts={role: role for role in roles},
        cpu_map=cpu_map,
        cpus=lambda role, affinity: cpu_map[role],
        **options,
    )


def test_one_kernel_is_asked_once_and_put_back(asked) -> None:
    with module.interrupts(rig(MAP, shared_kernel=True), "moved") as said:
        assert asked == ["sut to 0,1,2"]
    assert said == [
        "sut: 7 interrupts on CPUs 0,1,2",
        "sut: interrupts on sut: one is managed",
    ]
    assert asked[1:] == ["sut put back"]


def test_machines_of_their_own_are_asked_each(asked) -> None:
    with module.interrupts(rig(APART, shared_kernel=False), "moved"):
        assert asked == ["sut to 0,1,2", "clean to 0"]
    assert asked[2:] == ["clean put back", "sut put back"]


def test_nothing_is_moved_where_there_is_nowhere_or_no_wish(asked) -> None:
    with module.interrupts(rig(MAP, shared_kernel=True), "as found") as said:
        assert said == ["sut: interrupts as found"]
    with module.interrupts(rig({"all": "0", "sut": "0"}, shared_kernel=True), "moved") as said:
        assert "one CPU" in said[0]
    assert asked == []
    with pytest.raises(UsageError), module.interrupts(rig(MAP, shared_kernel=True), "gone"):
        pass
