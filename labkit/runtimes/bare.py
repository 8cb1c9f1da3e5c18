"""Processes without an engine: the ladder of baselines, from a clean host to a control group."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.runtimes import verify
from labkit.runtimes.base import Instance, Started
from labkit.runtimes.jobs import Jobs, in_group


class Bare(Jobs):
    """Starts processes on the host itself."""

    def command(self, instance: Instance, argv: Sequence[str]) -> list[str]:
        level = instance.placement.baseline_level
        inside = ["chroot", instance.image.rootfs] if level in ("chroot", "cgroup") else []
        return in_group(instance, [*inside, *argv]) if level == "cgroup" else [*inside, *argv]

    enter = command

    def expect(self, instance: Instance, started: Started) -> verify.Facts:
        level = instance.placement.baseline_level
        limited = verify.of_limits(instance.placement.limits) if level == "cgroup" else {}
        # Even an empty table of rules costs time for every packet.
        rules = {"rules of the host": "none"} if level == "clean" else {"engine rules": "yes"}
        return {
            **verify.of_process(instance, None),
            "mounts": "the host's",
            "seccomp filter": "none",
            "root": instance.image.rootfs if level in ("chroot", "cgroup") else "/",
            "control group": instance.group if level == "cgroup" else "none",
            **limited,
            **rules,
        }
