"""Notebooks executed by papermill: their parameters checked before, failures kept."""

from __future__ import annotations

import ast
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit import errors
from labkit.errors import LabkitError, UsageError, suggestion

#: Seconds that an interrupted notebook has to clean up.
GRACE = 60
#: Types that an annotation names before a bracket; others take any value.
_TYPES: dict[str, Any] = {"int": int, "float": int | float, "str": str, "bool": bool}
_TYPES |= {"list": list, "dict": dict}


def values(text: str) -> Any:
    """Return the value of a text in YAML 1.2: ``010`` is 10, ``12:30`` a text, and keys differ."""
    from ruamel.yaml import YAML

    try:
        return YAML(typ="safe", pure=True).load(text)
    except Exception as error:  # its constructors raise others, such as KeyError of `!!bool x`
        problem, mark = getattr(error, "problem", error), getattr(error, "problem_mark", "")
        why = " ".join(f"{problem} {mark}".split())
        raise ValueError(f"not YAML: {why}") from None


def check(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Raise `UsageError` where a notebook has no such parameter, or one of another type."""
    try:
        types = _declared(notebook)
    except (ValueError, LookupError, TypeError, SyntaxError) as error:  # such as a conflict in git
        raise UsageError(f"cannot read the notebook {notebook}", why=str(error)) from None
    for name, value in parameters.items():
        if name not in types:
            what = f"{notebook.name} has no parameter {name!r}"
            raise UsageError(what, remedy=suggestion(name, types))
        kind = types[name].partition("[")[0]
        number = not isinstance(value, bool) or kind not in ("int", "float")
        fits = number and isinstance(value, _TYPES.get(kind, object))
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):  # such as a date, or nan
            fits = False
        if not fits or (isinstance(value, int | float) and value < 0):
            what = f"the parameter {name} of {notebook.name} cannot be {value!r}"
            remedy = f"write it as {types[name]}; a number is finite and not negative"
            raise UsageError(what, remedy=remedy)


def _declared(notebook: Path) -> dict[str, str]:
    """Return the parameters of a notebook's tagged cells, each with its annotation, if any."""
    cells, types = json.loads(notebook.read_text("utf-8"))["cells"], dict[str, str]()
    tagged = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", ())]
    for node in ast.parse("\n".join("".join(cell["source"]) for cell in tagged)).body:
        if isinstance(node, ast.AnnAssign):
            types[ast.unparse(node.target)] = ast.unparse(node.annotation).strip("'")
        elif isinstance(node, ast.Assign):
            types |= {ast.unparse(target): "a value" for target in node.targets}
    return types


def execute(notebook: Path, output: Path, parameters: Mapping[str, Any], *, cwd: Path) -> None:
    """Execute a notebook in a kernel of this environment and the folder `cwd`; keep it as `output`.

    A failed one is kept as ``<output>.failed.ipynb``; an error of labkit is raised as itself.
    """
    import papermill
    from traitlets.config import Config

    logging.getLogger("papermill").setLevel(logging.ERROR)
    # Arrow's own pool keeps what was freed: 100 MB after the samples of a page.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # An interrupted cell has time to clean up.
    grace = {"transport_encryption": "auto", "shutdown_wait_time": GRACE}
    options: dict[str, Any] = {"config": Config(KernelManager=grace), "iopub_timeout": GRACE}
    options |= {"kernel_name": "python3", "language": "python", "progress_bar": False}
    # A kernel that takes the rig down when its client has gone would print a traceback.
    options["extra_arguments"] = ["--IPKernelApp.log_level=CRITICAL"]
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.stem}.unfinished.ipynb")
    failed = output.with_name(f"{output.stem}.failed.ipynb")
    try:
        papermill.execute_notebook(notebook, unfinished, dict(parameters), cwd=cwd, **options)
    except BaseException as error:
        if unfinished.exists():
            unfinished.replace(failed)
        name, text = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
        if name in ("Interrupted", "KeyboardInterrupt"):
            # The task of the cell, which nobody awaits any more, ends with the kernel.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            raise KeyboardInterrupt from error
        where = str(failed if failed.exists() else notebook)
        where += f", cell [{error.exec_count}]" if hasattr(error, "exec_count") else ""
        kind = getattr(errors, name, None)
        if not (isinstance(kind, type) and issubclass(kind, LabkitError)):
            raise LabkitError("a notebook failed", where=where, why=f"{name}: {text}") from error
        own: dict[str, Any] = LabkitError.fields(str(text))
        own["where"] = "; ".join(filter(None, [own.get("where"), where]))
        raise kind(**own) from error
    unfinished.replace(output)
    failed.unlink(missing_ok=True)
