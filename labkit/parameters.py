"""Notebook parameters, checked by their names and declared types before anything runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.errors import UsageError, suggestion

#: How papermill heads the cell that it injects after the notebook's own parameters.
_INJECTED = "# Parameters\n"


def _statements(source: str) -> list[ast.stmt]:
    """Return the statements of a cell; none where it is not Python, such as a magic."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


def _assigned(body: list[ast.stmt]) -> set[str]:
    """Return the names that statements assign."""
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    names = [name for target in targets for name in ast.walk(target)]
    return {name.id for name in names if isinstance(name, ast.Name)}


def check_values(values: Mapping[str, Any], source: str, notebook: str) -> None:
    """Refuse values that a notebook does not declare, or declares with another type.

    Parameters
    ----------
    values : mapping
        Values by parameter.
    source : str
        The parameters cell. Annotations are Python's own types or pydantic's (in quotes, as
        ``"PositiveInt"``); a parameter without one takes any value.
    notebook : str
        What the notebook is called in the error.

    Raises
    ------
    UsageError
        It names the first wrong parameter, and what is possible.
    """
    body = _statements(source)
    declared = sorted(_assigned(body))
    if unknown := [name for name in values if name not in declared]:
        raise UsageError(
            f"{notebook} has no parameter {', '.join(map(repr, unknown))}",
            remedy=suggestion(unknown[0], declared),
        )
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            if name in values:
                _check_value(name, values[name], node, notebook)


def _check_value(name: str, value: Any, node: ast.AnnAssign, notebook: str) -> None:
    import pydantic

    declared = node.annotation
    annotation = str(
        declared.value if isinstance(declared, ast.Constant) else ast.unparse(declared)
    )
    names = re.findall(r"[A-Z]\w+", annotation)
    # The notebook is the project's own code, and runs next.
    declared_type = eval(annotation, {name: getattr(pydantic, name) for name in names})
    try:
        pydantic.TypeAdapter(declared_type).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = name + "".join(f"[{key!r}]" for key in first["loc"])
        default = f", such as {ast.unparse(node.value)}" if node.value else ""
        raise UsageError(
            f"the parameter {name} of {notebook} cannot be {value!r}",
            why=first["msg"].replace("Input", place, 1),
            remedy=f"write it as {annotation}{default}",
        ) from None


def check_parameters(cells: Sequence[str]) -> None:
    r"""Refuse an injected parameter that the notebook does not declare; papermill only warns.

    Parameters
    ----------
    cells : sequence of str
        What ran so far: IPython's ``In``. The cell before the injected one declares.

    Raises
    ------
    UsageError
        It names the parameter, and what is possible.

    Examples
    --------
    >>> from labkit import check_parameters
    >>> check_parameters(["blocks = 5", "# Parameters\nblocks = 10"])
    >>> check_parameters(["blocks = 5", "# Parameters\nblock = 10"])
    Traceback (most recent call last):
        ...
    labkit.errors.UsageError: the notebook has no parameter 'block'
      remedy: did you mean 'blocks'? One of blocks
    """
    for number, source in enumerate(cells):
        if source.startswith(_INJECTED):
            values = dict(_constants(source))
            check_values(values, cells[number - 1] if number else "", "the notebook")


def _constants(source: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that a cell assigns; papermill writes constants."""
    for node in _statements(source):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, _value(node.value)


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return eval(ast.unparse(node), {})  # float('inf'), which papermill writes so
