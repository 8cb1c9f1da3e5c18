"""An idle policy, held on every machine of a rig."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from labkit.errors import RigError, UsageError
from labkit.hosts import Tuning

if TYPE_CHECKING:
    from labkit.rig.base import Rig


@contextmanager
def held(rig: Rig, policy: str) -> Iterator[None]:
    """Hold an idle policy for the duration of a ``with`` block; see `labkit.rig.base.Rig.idle`."""
    if policy not in ("as found", "held"):
        raise UsageError(f"unknown idle policy {policy!r}", remedy='"as found" or "held"')
    roles = [] if policy == "as found" else ["sut"] if rig.shared_kernel else list(rig.hosts)
    with ExitStack() as stack:
        for role in roles:
            tuning = stack.enter_context(Tuning(rig.hosts[role], "trial-idle"))
            if not tuning.hold_idle():
                raise RigError(
                    "the idle policy cannot be held",
                    where=f"host {role}",
                    why="; ".join(tuning.notes),
                    remedy='measure with idle="as found"',
                )
        yield
