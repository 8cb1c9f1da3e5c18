"""Reads a study notebook up to where it runs, with other parameters."""

import linecache
from typing import Any

import nbformat

from labkit.paths import project


def declared(name: str, **parameters: Any) -> dict[str, Any]:
    """Return the names that a study's notebook defines before it runs."""
    names: dict[str, Any] = {}
    for cell in nbformat.read(project("notebooks/studies") / name, 4).cells:
        if cell.cell_type != "code":
            continue
        if "study.run(" in cell.source:
            break
        # A plan reads the source of its protocol back.
        file, lines = f"<{name} {cell.id}>", cell.source.splitlines(keepends=True)
        linecache.cache[file] = (len(cell.source), None, lines, file)
        exec(compile(cell.source, file, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            unknown = set(parameters) - set(names)
            assert not unknown, f"the notebook has no {unknown}"
            names.update(parameters)
    return names
