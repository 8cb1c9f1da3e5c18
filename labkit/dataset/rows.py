"""An attempt's record as rows of the table of trials."""

from __future__ import annotations

from typing import Any


def rows_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the row of an attempt, and of each further condition that it measured."""
    rows = [_row(record)]
    for number, other in enumerate(record.get("also", []), start=1):
        changed = {
            "trial": f"{record['trial']}/{number}",
            "levels": record["levels"] | other["levels"],
            "metrics": other["metrics"],
        }
        rows.append(_row(record | changed))
    return rows


def _row(record: dict[str, Any]) -> dict[str, Any]:
    plain = ("trial", "attempt", "block", "position")
    outcome = ("copy", "status", "n_samples", "started_ns", "seconds", "session")
    error = record.get("error") or {}
    return {
        **{name: record[name] for name in plain},
        **record["levels"],
        **{name: record[name] for name in outcome},
        "flags": "; ".join(record.get("flags", [])),
        "problems": error.get("what", ""),
        # What a protocol says of a window of its own goes before what the last window was.
        **record.get("mechanisms", {}),
        **record.get("metrics", {}),
    }
