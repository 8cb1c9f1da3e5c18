"""Execute notebooks with papermill: parameters checked first, a time limit, failures kept."""

from __future__ import annotations

import ast
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import nbformat

from labkit.errors import Interrupted, LabkitError, UsageError

#: A notebook may not run for longer than this many seconds unless it is told otherwise.
TIMEOUT = 3600.0
#: How long an interrupted notebook has to take down what it put up.
GRACE = 60.0
#: How a kernel calls its interrupt: beside a rig, and anywhere else.
_INTERRUPTED = (Interrupted.__name__, KeyboardInterrupt.__name__)


def parameter_statements(notebook: Path) -> list[ast.stmt]:
    """Return what a notebook's parameters cell does; raise `UsageError` where it is unreadable."""
    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"cannot read the notebook {notebook}", why=str(error)) from error
    tagged = (c.source for c in cells if "parameters" in c.get("metadata", {}).get("tags", []))
    return ast.parse(next(tagged, "")).body


def declared_parameters(notebook: Path) -> list[str]:
    """Return the names that a notebook's parameters cell assigns, in their order."""
    names: list[str] = []
    for node in parameter_statements(notebook):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Raise `UsageError` where a notebook does not declare one of the parameters.

    papermill itself only warns, and a misspelt parameter would measure something else.
    """
    declared = declared_parameters(notebook)
    unknown = [name for name in parameters if name not in declared]
    if unknown:
        raise UsageError(
            f"{notebook.name} has no parameter {', '.join(map(repr, unknown))}",
            where=str(notebook),
            remedy=f"it declares {', '.join(declared) or 'none'}",
        )


def execute(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    timeout: float = TIMEOUT,
    cwd: Path | None = None,
    echo: TextIO | None = None,
) -> Path:
    """Execute a notebook with papermill and keep the result as `output`.

    Parameters
    ----------
    notebook, output : Path
        What is executed and where the executed notebook goes; it appears complete or not at all.
    parameters : mapping, optional
        Values for names that the notebook's parameters cell declares.
    timeout : float
        Seconds that the whole notebook may take.
    cwd : Path, optional
        Working directory; by default the notebook's own, as in JupyterLab.
    echo : text stream, optional
        Where the notebook's printed output and progress go while it runs.

    Raises
    ------
    UsageError
        A parameter that the notebook does not declare; nothing has run then.
    LabkitError
        A cell failed or time was up; the broken notebook is kept as ``NAME.failed.ipynb`` beside
        `output`, and the evidence holds its path, the cell and the error.
    KeyboardInterrupt
        Also where its kernel alone was interrupted.
    """
    parameters = dict(parameters or {})
    check_parameters(notebook, parameters)
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.stem}.unfinished.ipynb")
    broken = output.with_name(f"{output.stem}.failed.ipynb")
    began = time.monotonic()
    try:
        _run(notebook, unfinished, parameters, timeout, cwd or notebook.parent, echo)
    except BaseException as error:
        if unfinished.exists():
            unfinished.replace(broken)
        if not isinstance(error, Exception):
            raise
        # A cell's limit is in whole seconds, and interrupts it too.
        late = time.monotonic() - began > timeout - 1
        if getattr(error, "ename", "") in _INTERRUPTED and not late:
            raise KeyboardInterrupt from error
        raise _failure(notebook, broken, error) from error
    unfinished.replace(output)
    broken.unlink(missing_ok=True)
    return output


def _run(
    notebook: Path,
    output: Path,
    parameters: dict[str, Any],
    timeout: float,
    cwd: Path,
    echo: TextIO | None,
) -> None:
    """Execute a notebook, or raise what papermill or the kernel's client raises."""
    import papermill  # slow to import, and needed by nothing else
    from traitlets.config import Config

    logging.getLogger("papermill").setLevel(logging.ERROR)
    end = time.monotonic() + timeout
    config = Config()
    config.KernelManager.transport_encryption = "auto"
    config.KernelManager.shutdown_wait_time = GRACE
    papermill.execute_notebook(
        str(notebook),
        str(output),
        parameters=parameters,
        kernel_name="python3",
        language="python",
        progress_bar=False,
        cwd=str(cwd),
        stdout_file=echo,
        stderr_file=echo,
        # Given on to the kernel's client: what is left of the time is each cell's limit, and a cell
        # that reaches it is interrupted, so that it can still take down what it put up.
        config=config,
        timeout_func=lambda cell: max(1, int(end - time.monotonic())),
        interrupt_on_timeout=True,
        iopub_timeout=int(GRACE),
        error_on_timeout={
            "ename": "TimeoutError",
            "evalue": f"the notebook's time of {timeout:g} s was up",
            "traceback": [f"TimeoutError: the notebook's time of {timeout:g} s was up"],
        },
    )


def _failure(notebook: Path, broken: Path, error: Exception) -> LabkitError:
    """Return the error of a notebook, with the failing cell as evidence."""
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", None)
    text = f"{name}: {error if value is None else value}".strip()
    cell = getattr(error, "exec_count", None)
    return LabkitError(
        f"the notebook {notebook.name} failed" + (f" in cell [{cell}]" if cell else ""),
        where=str(notebook),
        why=text,
        remedy=f"{broken} holds it with the error" if broken.exists() else "",
        evidence={
            "notebook": str(broken) if broken.exists() else None,
            "cell": cell,
            "source": getattr(error, "source", None),
            "error": text,
        },
    )
