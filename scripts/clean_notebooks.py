"""Bring notebooks into the form in which they are committed (a pre-commit hook).

Only cells that the tests compare, tagged ``nbval-check-output``, keep their outputs. Every notebook
loses execution times and what an editor or papermill noted; tags stay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat

KEPT = ("tags", "alt")
COMPARED = "nbval-check-output"


def clean(notebook: Any) -> Any:
    """Return the notebook as it is committed."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": kernel, "language_info": {"name": "python"}}
    )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict(
            {key: value for key, value in cell.metadata.items() if key in KEPT}
        )
        if cell.cell_type == "code":
            kept = COMPARED in cell.metadata.get("tags", [])
            cell.outputs = [_uncounted(output) for output in cell.outputs] if kept else []
            # nbval refuses outputs of a cell that has no number.
            cell.execution_count = number if cell.outputs else None
    return notebook


def _uncounted(output: Any) -> Any:
    if "execution_count" in output:
        output.execution_count = None
    return output


def main(paths: list[str]) -> int:
    """Rewrite what is not clean; return 1 where something was."""
    changed = 0
    for path in map(Path, paths):
        before = path.read_text(encoding="utf-8")
        after = nbformat.writes(clean(nbformat.reads(before, as_version=4))) + "\n"
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"cleaned {path}")
            changed = 1
    return changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
