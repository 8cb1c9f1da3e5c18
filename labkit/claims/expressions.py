"""Expressions over the values of a published table, as stated files and claims write them.

An expression is evaluated by simpleeval: arithmetic, comparisons (chained too), ``and or not``,
conditions, lists and comprehensions, and the functions of `FUNCTIONS`. Nothing else can be called
or reached. A name stands for a constant, a list of them, or the rows that a selector chooses.
"""

from __future__ import annotations

import ast
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from simpleeval import EvalWithCompoundTypes  # type: ignore[import-untyped]

from labkit.errors import UsageError

#: What a name stands for: one number, or the numbers of several rows in the order of the file.
Value = float | list[float]


def _neighbours(values: Iterable[float], holds: Callable[[float, float], bool]) -> bool:
    ordered = list(values)
    if len(ordered) < 2:
        raise ValueError("fewer than two values have no order")
    return all(holds(a, b) for a, b in itertools.pairwise(ordered))


def increasing(values: Iterable[float]) -> bool:
    """Return whether each value is above the one before it."""
    return _neighbours(values, lambda a, b: a < b)


def decreasing(values: Iterable[float]) -> bool:
    """Return whether each value is below the one before it."""
    return _neighbours(values, lambda a, b: a > b)


def _zip(*lists: Sequence[float]) -> list[tuple[float, ...]]:
    return list(zip(*lists, strict=True))


#: All that an expression may call. ``zip`` refuses lists of different lengths.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "sum": sum,
    "abs": abs,
    "round": round,
    "sqrt": math.sqrt,
    "log": math.log,
    "len": len,
    "sorted": sorted,
    "zip": _zip,
    "all": all,
    "any": any,
    "increasing": increasing,
    "decreasing": decreasing,
}


def evaluate(expression: str, names: Mapping[str, Value]) -> float | bool:
    """Return what an expression comes to.

    Parameters
    ----------
    expression : str
        One expression; see the module's head.
    names : mapping
        What each name in it stands for.

    Returns
    -------
    float or bool
        A finite number, or a truth when the expression is a comparison.

    Raises
    ------
    UsageError
        If it is no expression, uses what is not known, divides by zero, or comes to anything else.
    """
    unknown = sorted(names_in(expression) - names.keys())
    if unknown:  # also where evaluation would not reach it, behind an `and`
        raise UsageError(f"cannot compute {expression!r}", why=f"{unknown[0]!r} is not defined")
    evaluator = EvalWithCompoundTypes(allowed_attrs={})
    # That class adds functions of its own; only those named here are wanted.
    evaluator.functions, evaluator.names = dict(FUNCTIONS), dict(names)
    try:
        result = evaluator.eval(_one_line(expression))
    except Exception as error:  # an expression can raise whatever its functions raise
        raise UsageError(f"cannot compute {expression!r}", why=str(error)) from error
    if isinstance(result, bool):
        return result
    if not isinstance(result, int | float) or not math.isfinite(result):
        raise UsageError(f"{expression!r} comes to {result!r}, not to a finite number or a truth")
    return float(result)


def _one_line(expression: str) -> str:
    """Return an expression that a file may have broken into lines as Python would read it."""
    return " ".join(expression.split())


def names_in(expression: str) -> set[str]:
    """Return the names that an expression takes from outside; functions are not among them."""
    try:
        nodes = list(ast.walk(ast.parse(_one_line(expression), mode="eval")))
    except SyntaxError as error:
        raise UsageError(f"{expression!r} is no expression", why=str(error.msg)) from None
    used = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in used if isinstance(node.ctx, ast.Store)}
    return {node.id for node in used} - own - FUNCTIONS.keys()


def check_names(expressions: Iterable[str], given: Iterable[str]) -> list[str]:
    """Return what is wrong between the names that expressions use and those that are given."""
    given = set(given)
    used = set().union(*(names_in(expression) for expression in expressions))
    found = [f"{name!r} is used and not given in from" for name in sorted(used - given)]
    found += [f"{name!r} is given in from and not used" for name in sorted(given - used)]
    taken = sorted(given & FUNCTIONS.keys())
    return found + [f"{name!r} is the name of a function: choose another" for name in taken]


def resolve(given: Mapping[str, Any], table: pd.DataFrame) -> tuple[dict[str, Value], list[str]]:
    """Return what each name stands for, and the problems of those that stand for nothing."""
    found: dict[str, Value] = {}
    problems = []
    for name, source in given.items():
        try:
            if isinstance(source, Mapping):
                found[name] = select(table, source)
            else:
                found[name] = _constant(source)
        except UsageError as error:
            problems.append(f"{name}: {error.what}" + (f" ({error.why})" if error.why else ""))
    return found, problems


def select(table: pd.DataFrame, selector: Mapping[str, Any]) -> Value:
    """Return the value of the one row that a selector chooses, or the values of ``rows = "all"``.

    Parameters
    ----------
    table : DataFrame
        A published table.
    selector : mapping
        Columns with the value that they must have; with ``rows = "all"`` also with a list of
        values, of which they have one. An empty string chooses what is empty.

    Raises
    ------
    UsageError
        If a column is unknown, no row matches, or more than one does and not all were asked for.
    """
    every = selector.get("rows") == "all"
    if not every and "rows" in selector:
        raise UsageError(f"rows = {selector['rows']!r} is unknown", why='it can only be "all"')
    chosen = np.ones(len(table), dtype=bool)
    for column, wanted in selector.items():
        if column == "rows":
            continue
        if column not in table.columns:
            raise UsageError(f"no column {column!r}", why=f"there are {list(table.columns)}")
        if isinstance(wanted, list) and not every:
            raise UsageError(f"{column} is a list", why='only with rows = "all"')
        options = wanted if isinstance(wanted, list) else [wanted]
        matches = chosen & np.any([_is(table[column], option) for option in options], axis=0)
        if not matches.any():
            there = sorted({str(item) for item in table.loc[chosen, column]})
            raise UsageError(f"no row has {column} = {wanted!r}", why=f"there are {there[:12]}")
        chosen = matches
    values = [float(value) for value in table["value"].to_numpy()[chosen]]
    if every:
        return values
    if len(values) != 1:
        free = [c for c in table.columns if table.loc[chosen, c].nunique(dropna=False) > 1]
        raise UsageError(f"{len(values)} rows match", why=f"they differ in {free}; name one")
    return values[0]


def _is(column: pd.Series[Any], wanted: object) -> NDArray[np.bool_]:
    """Return where a column has a value; numbers in a column of text are compared as text."""
    number = pd.api.types.is_numeric_dtype(column)
    if wanted == "":
        return np.asarray(column.isna() if number else column == "", dtype=bool)
    if not number:
        return np.asarray(column == str(wanted), dtype=bool)
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        raise UsageError(f"{column.name} is a number and not {wanted!r}")
    # What is empty is NaN here, and equals nothing.
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan) == wanted, dtype=bool)


def _constant(source: Any) -> Value:
    numbers = source if isinstance(source, list) else [source]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        raise UsageError(f"{source!r} is neither a number nor a selector")
    return [float(n) for n in numbers] if isinstance(source, list) else float(numbers[0])
