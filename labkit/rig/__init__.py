"""Rigs: the hosts of an experiment, whatever they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labkit.errors import UsageError
from labkit.hosts import LocalHost, restore, stop_labelled
from labkit.rig import engine, netns, state, virtual
from labkit.rig.base import AFFINITIES, Rig
from labkit.runtimes.docker import PREFIX

__all__ = ["AFFINITIES", "Rig", "clean", "open_rig"]


@contextmanager
def open_rig(
    spec: str | Path = "virtual",
    *,
    say: Callable[[str], None] = print,
    patience: float = 0.0,
) -> Iterator[Rig]:
    """Hold a rig for the duration of a ``with`` block.

    Parameters
    ----------
    spec : str or Path
        ``"virtual"``, or the path of an inventory file (``rig.toml``). A standing
        virtual rig (``labkit rig up``) is used as it is and left standing; otherwise one is brought
        up here and taken down at the end.
    say : callable
        Receives a line before each step that takes seconds.
    patience : float
        Seconds to wait for another process that uses the rig.

    Raises
    ------
    RigError
        It cannot be brought up, or another process uses it.
    """
    if str(spec) == "virtual":
        with state.locked(patience):
            clean(say=say)
            found = state.read()
            ours = not (found and found.get("ready"))
            if ours:
                virtual.up(keep=False, say=say)
            try:
                rig = virtual.attach()
                try:
                    yield rig
                finally:
                    rig.close()
            finally:
                if ours:
                    virtual.down(say=say)
    else:
        raise UsageError(
            f"no rig called {str(spec)!r}", remedy='use "virtual", or the path of a rig.toml'
        )


def clean(say: Callable[[str], None] = print) -> list[str]:
    """Remove what a dead campaign left, and only that; return what was removed, in words.

    The caller holds the machine's lock, so whatever carries a campaign's label has lost its owner.
    """
    if not state.is_root():
        return []
    local = LocalHost()
    found = state.read()
    if (found is None and netns.existing()) or (found and not (found["ready"] and found["keep"])):
        virtual.down(say=say)
        return ["a virtual rig whose owner is gone"]
    done = [f"process {line}" for line in stop_labelled(local, "trial-")]
    if found:
        done += _containers(local)
    done += [str(outcome) for outcome in restore(local)] if found is None else []
    return done


def _containers(local: LocalHost) -> list[str]:
    env: dict[str, Any] = {"DOCKER_HOST": engine.SOCKET}
    listing = local.run("docker", "ps", "--all", "--quiet", "--filter", "label=labkit", env=env)
    for container in listing.stdout.split():
        local.run("docker", "rm", "--force", "--volumes", container, env=env)
    return [f"container {container} ({PREFIX}...)" for container in listing.stdout.split()]
