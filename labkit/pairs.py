"""Which engine can have which network: measured, possible, or impossible with the reason.

The table of the README is made from this, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pandas as pd

from labkit.placement import ENGINES, NETWORKS
from labkit.runtimes import RUNTIMES

#: What an engine or a network needs that no machine has by itself.
ELSEWHERE = {
    "rkt": "rkt is packaged nowhere any more: put its binary on PATH",
    "weave": "Weave Net is packaged nowhere any more: launch it on both hosts with an engine",
}


def pairs(measured: Collection[str]) -> pd.DataFrame:
    """Return every pair of an engine and a network.

    Parameters
    ----------
    measured : collection of str
        Labels of the placements that a dataset holds, such as ``docker nat``.

    Returns
    -------
    DataFrame
        ``engine``, ``network``, ``state`` (``measured``, ``possible`` or ``impossible``) and
        ``reason``, why it is impossible, or what it takes elsewhere.
    """
    held = {" ".join(label.split()[:2]) for label in measured}
    rows = []
    for engine in ENGINES:
        for network in NETWORKS:
            reason, state = RUNTIMES[engine].refusal(network), "possible"
            if reason:
                state = "impossible"
            elif f"{engine} {network}" in held:
                state = "measured"
            else:
                reason = ELSEWHERE.get(engine) or ELSEWHERE.get(network, "")
            rows.append((engine, network, state, reason))
    return pd.DataFrame(rows, columns=["engine", "network", "state", "reason"])


def markdown(table: pd.DataFrame) -> str:
    """Return the pairs as a table of Markdown, an engine a column, with its reasons below."""
    notes: dict[str, int] = {}
    engines, networks = _unique(table["engine"]), _unique(table["network"])
    lines = [f"| network | {' | '.join(engines)} |", "| --- " * (len(engines) + 1) + "|"]
    words = {"measured": "measured", "possible": "possible", "impossible": "no"}
    cells = table.set_index(["network", "engine"])
    for network in networks:
        row = []
        for engine in engines:
            state, reason = (str(cells.at[(network, engine), one]) for one in ("state", "reason"))
            number = notes.setdefault(reason, len(notes) + 1) if reason else 0
            row.append(words[state] + (f" ({number})" if number else ""))
        lines.append(f"| {network} | {' | '.join(row)} |")
    told = [f"{number}. {reason}." for reason, number in notes.items()]
    return "\n".join([*lines, "", *told])


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
