"""Write the table of engines and networks into the README, from data/reference and the engines.

    .venv/bin/python scripts/readme_table.py

Run it after a campaign was added to data/reference, or an engine or a network to labkit.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path

import pandas as pd

import labkit
from labkit.errors import UsageError
from labkit.placement import ENGINES, NETWORKS
from labkit.runtimes import RUNTIMES
from labkit.runtimes.networks import EXTERNAL

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- pairs -->", "<!-- /pairs -->"


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
    labels = {" ".join(label.split()[:2]) for label in measured}
    rows = []
    for engine in ENGINES:
        for network in NETWORKS:
            runtime = RUNTIMES[engine]
            reason, state, source = runtime.infeasible(network), "possible", runtime.source
            if reason:
                state = "impossible"
            elif f"{engine} {network}" in labels:
                state = "measured"
            else:
                reason = EXTERNAL.get(network) or (f"{engine}: {source}" if source else "")
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
    reasons = [f"{number}. {reason}." for reason, number in notes.items()]
    return "\n".join([*lines, "", *reasons])


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def measured(reference: Path) -> set[str]:
    """Return the labels of all placements of which a campaign below a folder has a trial."""
    found: set[str] = set()
    for plan in sorted(reference.glob("*/plan.json")):
        trials = labkit.load(plan.parent).trials
        if "placement" in trials:
            found |= set(trials.loc[trials["status"] == "ok", "placement"].dropna())
    return found


def written(readme: str, table: str) -> str:
    """Return the README with the table between its marks.

    Raises
    ------
    UsageError
        The marks are not there exactly once, in their order.
    """
    before, *rest = readme.split(BEGIN)
    after = "".join(rest).split(END)
    if len(rest) != 1 or len(after) != 2 or END in before:
        raise UsageError(f"the README needs {BEGIN} and then {END}, once each")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after[1]}"


def main() -> int:
    """Write the table; return 1 where the README had another."""
    path = ROOT / "README.md"
    readme = path.read_text(encoding="utf-8")
    table = markdown(pairs(measured(ROOT / "data" / "reference")))
    changed = written(readme, table)
    path.write_text(changed, encoding="utf-8")
    return int(changed != readme)


if __name__ == "__main__":
    sys.exit(main())
