"""Notebook parameters: one that the notebook does not declare is an error before anything runs."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from labkit.errors import UsageError

#: How papermill heads the cell that it injects after the notebook's own parameters.
_INJECTED = "# Parameters\n"


def assigned(source: str) -> set[str]:
    """Return the names that a cell assigns at its top level."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return set()
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    names = [name for target in targets for name in ast.walk(target)]
    return {name.id for name in names if isinstance(name, ast.Name)}


def check_parameters(cells: Sequence[str]) -> None:
    """Refuse an injected parameter that the notebook does not declare; papermill only warns.

    Parameters
    ----------
    cells : sequence of str
        What ran so far: IPython's ``In``. The cell before the injected one declares.

    Raises
    ------
    UsageError
        It names the parameter, and those that there are.
    """
    for number, source in enumerate(cells):
        if not source.startswith(_INJECTED):
            continue
        declared = assigned(cells[number - 1]) if number else set()
        unknown = sorted(assigned(source) - declared)
        if unknown:
            raise UsageError(
                f"the notebook has no parameter called {', '.join(unknown)}",
                remedy=f"it declares {', '.join(sorted(declared))}",
            )
