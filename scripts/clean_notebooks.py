"""Bring notebooks into the form in which they are committed (a pre-commit hook).

Studies lose their outputs: data are kept in datasets. Analyses keep them, since the tests compare
them. Every notebook loses execution times and what an editor or papermill noted; tags stay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat

KEPT = ("tags", "alt")


def clean(notebook: Any, *, outputs: bool) -> Any:
    """Return the notebook as it is committed, with its outputs or without."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": kernel, "language_info": {"name": "python"}}
    )
    ran = 0
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.from_dict(
            {key: value for key, value in cell.metadata.items() if key in KEPT}
        )
        if cell.cell_type == "code":
            # nbval takes a cell without a number for one that never ran.
            ran += 1
            cell.execution_count = ran if outputs else None
            cell.outputs = [_uncounted(output) for output in cell.outputs] if outputs else []
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
        notebook = clean(nbformat.reads(before, as_version=4), outputs="analysis" in path.parts)
        after = nbformat.writes(notebook) + "\n"
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"cleaned {path}")
            changed = 1
    return changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
