"""Write the table of engines and networks into the README, from data/reference and the engines.

    .venv/bin/python scripts/readme_table.py

Run it after a campaign was added to data/reference, or an engine or a network to labkit.
"""

from __future__ import annotations

import sys
from pathlib import Path

import labkit
from labkit.errors import UsageError
from labkit.pairs import markdown, pairs

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- pairs -->", "<!-- /pairs -->"


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
