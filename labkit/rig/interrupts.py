"""Interrupts off the CPU of the system under test, for as long as a campaign runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from labkit.errors import UsageError
from labkit.hosts import Tuning
from labkit.placement import cpu_set

if TYPE_CHECKING:
    from labkit.rig.base import Rig

POLICIES = ("as found", "moved")


@contextmanager
def interrupts(rig: Rig, policy: str) -> Iterator[list[str]]:
    """Hold interrupts off the server's CPU on every machine of a rig that has another CPU."""
    if policy not in POLICIES:
        raise UsageError(f"unknown interrupt policy {policy!r}", remedy=f"one of {POLICIES}")
    roles = ["sut"] if rig.shared_kernel else [one for one in ("sut", "clean") if one in rig.hosts]
    said = [f"{role}: interrupts as found" for role in roles if policy == "as found"]
    with ExitStack() as stack:
        for role in roles if policy == "moved" else []:
            every = cpu_set(rig.cpu_map["all" if rig.shared_kernel else f"all.{role}"])
            others = ",".join(map(str, sorted(every - cpu_set(rig.cpus(role, "split")))))
            if not others:
                said.append(f"{role}: interrupts as found, since there is one CPU only")
                continue
            # Settings of trials are what is restored after a kill, on a standing rig too.
            tuning = stack.enter_context(Tuning(rig.hosts[role], "trial-interrupts"))
            said.append(f"{role}: {tuning.move_irqs(others)} interrupts on CPUs {others}")
            said += [f"{role}: {note}" for note in tuning.notes]
        yield said
