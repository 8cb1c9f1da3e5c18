"""Rigs: the hosts of an experiment, whatever they are made of."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labkit.errors import Interrupted, RigError, UsageError
from labkit.hosts import LocalHost, restore, stop_labelled
from labkit.process import ended_as_by_ctrl_c
from labkit.rig import (
    collector,
    daemons,
    ending,
    engine,
    inventory,
    kinds,
    netns,
    onehost,
    peer,
    rates,
    state,
    storage,
    virtual,
)
from labkit.rig.base import AFFINITIES, Rig
from labkit.runtimes.docker import PREFIX
from labkit.version import MEASUREMENT_VERSION

__all__ = ["AFFINITIES", "Rig", "auto", "clean", "open_rig"]


@contextmanager
def open_rig(
    spec: str | Path = "virtual",
    *,
    say: Callable[[str], None] = print,
    patience: float = 0.0,
) -> Iterator[Rig]:
    """Hold a rig for the duration of a ``with`` block; SIGTERM ends it as Ctrl-C does.

    Parameters
    ----------
    spec : str or Path
        - ``"virtual"``: this machine as several hosts. A standing rig (``labkit rig up``) is used
          as it is and left standing; otherwise one is brought up here and taken down at the end.
        - ``"virtual:1gbit"``: the same, with links of that rate (`labkit.rig.rates`).
        - ``"one-host"``: this machine as both ends, with its Docker Engine and without root.
        - ``"auto"``: the first of these two that this machine and user can have.
        - a path that ends in ``.toml``: the machines of that inventory file.
    say : callable
        Receives a line before each step that takes seconds.
    patience : float
        Seconds to wait for another process that uses the rig.

    Raises
    ------
    RigError
        It cannot be brought up, or another process uses it.
    Interrupted
        Ctrl-C, SIGTERM or a kernel's interrupt, once it is taken down.
    """
    kind = auto() if str(spec) == "auto" else str(spec)
    rate = kind.partition("virtual:")[2] if kind.startswith("virtual:") else ""
    if rate and rates.bits(rate):
        kind = "virtual"
    if kind not in ("virtual", "one-host") and not kind.endswith(".toml"):
        raise UsageError(
            f"no rig called {kind!r}",
            remedy='use "virtual", "virtual:1gbit" (any rate), "one-host", "auto", or the path of '
            "an inventory (rig.toml)",
        )
    try:
        with ended_as_by_ctrl_c(signal.SIGTERM), state.locked(patience), ExitStack() as stack:
            yield _stand(stack, kind, rate, say)
    except KeyboardInterrupt as error:
        raise Interrupted(str(error)) from error


def _stand(stack: ExitStack, kind: str, rate: str, say: Callable[[str], None]) -> Rig:
    """Bring a rig up where none stands that can be used; the stack undoes it."""
    if kind == "virtual":
        clean(say=say)
        found = state.read()
        if not (found and found.get("ready")):
            virtual.up(keep=False, say=say)
            stack.callback(virtual.down, say=say)
        rig = virtual.attach(rate)
    else:
        rig = onehost.attach(say=say) if kind == "one-host" else inventory.attach(kind, say=say)
    stack.callback(rig.close)
    return rig


def auto() -> str:
    """Return the rig that this machine and user can have: ``"virtual"``, or else ``"one-host"``.

    Raises
    ------
    RigError
        Neither can be had; it says why, and what to do for each.
    """
    lacking = sorted(set(virtual.missing_tools().values()))
    first = kinds.no_namespaces()
    if not first and lacking:
        first = f"packages are missing ({', '.join(lacking)})"
    if not first:
        return "virtual"
    why = onehost.unreachable()
    if not why:
        return "one-host"
    raise RigError(
        "this machine and user can have no rig",
        why=f"virtual: {first}; one-host: {why}",
        remedy="as root `make setup` brings what the virtual rig needs; for the one-host rig start "
        "a Docker Engine and join the group docker; or name other machines in a rig.toml",
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
    if found and found.get("version") != MEASUREMENT_VERSION:
        say("the standing rig was made by another version of labkit")
        virtual.down(say=say)
        return ["a virtual rig made by another version of labkit"]
    if found and found.get("laid"):
        virtual.down(say=say)
        return [f"a virtual rig with {', '.join(found['laid'])}, whose owner is gone"]
    done = [f"process {line}" for line in stop_labelled(local, "trial-")]
    if found:
        done += [f"container {name} ({PREFIX}...)" for name in engine.remove_containers(local)]
        done += peer.remove(local) + collector.remove(local)
        done += daemons.take_down(local)
        storage.remove_passing()
        done += ending.remove_trial_leftovers()
    # The settings of a standing rig are its own; those of trials have lost their owner.
    done += [str(outcome) for outcome in restore(local, label="trial-" if found else None)]
    ending.remove_holds(local)
    return done
