"""Verification: an engine's expectation and two observations of a placement, all flat mappings.

The agent's `observe` reads a placement where it runs. When it starts, it is compared with what its
label says; at the end of a window, with what was observed at its beginning. In the second
comparison every fact counts, but for the flows that address translation has counted.

Of a host without a placement, `observe_host` reads links, rules and settings. Not comparable are
the host's ends of other containers, which come and go, and a client inside a container: its engine
starts it elsewhere, so that nothing but its control group is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from labkit.errors import ManipulationError

#: The words for each fact that is expected; one of several for a tuple.
Facts = Mapping[str, str | tuple[str, ...]]
#: Facts that count what a window may add.
COUNTED = "flows "
#: Differences that a message lists.
LISTED = 4


def differences(expected: Facts, observed: Mapping[str, str]) -> list[str]:
    """Return every fact that is not as expected, in words; a fact that is not there is "none"."""
    found = []
    for name, wanted in expected.items():
        words = (wanted,) if isinstance(wanted, str) else wanted
        actual = observed.get(name, "none")
        if actual not in words:
            found.append(f"{name}: {actual}, not {' or '.join(words)}")
    return found


def check_unchanged(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise `ManipulationError` if a placement is not what it was at the window's beginning.

    Parameters
    ----------
    name : str
        Of the placement.
    before, after : mapping of str to str
        Observations of it (`labkit.runtimes.Server.observe`).
    """
    lasting = {key: text for key, text in before.items() if not key.startswith(COUNTED)}
    raise_different(f"{name} did not stay as it was in the window", differences(lasting, after))


def check_translated(
    before: Mapping[str, str], after: Mapping[str, str], protocols: Iterable[str]
) -> None:
    """Raise `ManipulationError` where no flow of a window took the rules of a published port.

    The engine's proxy answers on the port too, and nothing translates its traffic. There must be a
    flow of each transport; "" is any.
    """
    found = []
    for protocol in protocols:
        first, last = (
            sum(int(x) for name, x in one.items() if name.startswith(COUNTED + protocol))
            for one in (before, after)
        )
        if last <= first:
            found.append(f"{protocol or 'any'} flows: {last}, as before the window")
    raise_different("the load did not pass the address translation", found)


def raise_different(
    problem: str, found: list[str], *, where: str = "", why: str = "", **details: Any
) -> None:
    """Raise `ManipulationError` with what was found, if anything; `details` are its evidence."""
    if found:
        more = f"; and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise ManipulationError(
            f"{problem}: {'; '.join(found[:LISTED])}{more}",
            where=where,
            why=why,
            remedy="the trial is discarded; leave the rig alone while it measures",
            evidence={"problems": found, **details},
        )
