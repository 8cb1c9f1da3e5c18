"""Facts about a host, by which a campaign recognises its machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.hosts.host import Host


def collect_facts(
    host: Host,
    *,
    interfaces: Sequence[str] = (),
    engine_socket: str | None = None,
    directory: str = "",
) -> dict[str, Any]:
    """Return the facts of a host: ``stable`` ones, and ``volatile`` ones that change by themselves.

    `directory` is where it keeps data other than the engine's.
    """
    engine = engine_socket or ""
    engine = f"unix://{engine}" if engine.startswith("/") else engine
    facts: dict[str, Any] = host.call(
        "facts", interfaces=list(interfaces), engine=engine, directory=directory, timeout=120
    )
    return facts
