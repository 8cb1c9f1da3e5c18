"""Execute notebooks with papermill: parameters checked, a time limit, failures kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit import errors
from labkit.errors import Interrupted, LabkitError, UsageError
from labkit.parameters import check_values

#: Seconds that a notebook may take by default.
TIMEOUT = 3600.0
#: Seconds that an interrupted notebook has to clean up.
GRACE = 60.0
#: Names of the exception of an interrupt: with a rig, and without.
_INTERRUPTED = (Interrupted.__name__, KeyboardInterrupt.__name__)


def parameters_source(notebook: Path) -> str:
    """Return the source of a notebook's parameters cell."""
    # Its JSON schemas take seconds to import, and every notebook imports this module.
    import nbformat

    try:
        cells = nbformat.read(notebook, as_version=4).cells
        tagged = (c.source for c in cells if "parameters" in c.get("metadata", {}).get("tags", []))
        return str(next(tagged, ""))
    except Exception as error:  # nbformat raises whatever an odd file leads to
        why = f"{type(error).__name__}: {error}"[:400]
        raise UsageError(f"cannot read the notebook {notebook}", why=why) from error


def check_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    """Raise `UsageError` where a notebook does not declare a parameter, or declares another type.

    papermill itself only warns, and a misspelt parameter would measure something else.
    """
    check_values(parameters, parameters_source(notebook), notebook.name)


def execute(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    timeout: float = TIMEOUT,
    cwd: Path | None = None,
) -> Path:
    """Execute a notebook with papermill and keep the result as `output`."""
    parameters = dict(parameters or {})
    check_parameters(notebook, parameters)
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f".{output.stem}.unfinished.ipynb")
    failed = output.with_name(f"{output.stem}.failed.ipynb")
    began = time.monotonic()
    try:
        _run(notebook, unfinished, parameters, timeout, cwd or notebook.parent)
    except BaseException as error:
        if unfinished.exists():
            unfinished.replace(failed)
        if not isinstance(error, Exception):
            raise
        # A cell that times out is interrupted, too; papermill counts whole seconds.
        timed_out = time.monotonic() - began > timeout - 1
        if getattr(error, "ename", "") in _INTERRUPTED and not timed_out:
            raise KeyboardInterrupt from error
        raise _failure(notebook, failed, error) from error
    unfinished.replace(output)
    failed.unlink(missing_ok=True)
    return output


def _run(
    notebook: Path,
    output: Path,
    parameters: dict[str, Any],
    timeout: float,
    cwd: Path,
) -> None:
    """Execute a notebook with papermill; raises its errors and those of the kernel's client."""
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
        # For the kernel's client: each cell may take the time that is left, and is then
        # interrupted, so that it can still clean up.
        config=config,
        # A kernel that still takes the rig down when its client has gone cannot answer, and would
        # print a traceback. Errors of notebooks do not come this way.
        extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
        timeout_func=lambda cell: max(1, int(end - time.monotonic())),
        interrupt_on_timeout=True,
        iopub_timeout=int(GRACE),
        error_on_timeout={
            "ename": "TimeoutError",
            "evalue": f"the notebook took longer than {timeout:g} s",
            "traceback": [f"TimeoutError: the notebook took longer than {timeout:g} s"],
        },
    )


def _failure(notebook: Path, failed: Path, error: Exception) -> LabkitError:
    """Return the error of a notebook, with the failing cell as evidence."""
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", None)
    text = f"{name}: {error if value is None else value}".strip()
    cell = getattr(error, "exec_count", None)
    kept = str(failed) if failed.exists() else ""
    evidence = {
        "notebook": kept or None,
        "cell": cell,
        "source": getattr(error, "source", None),
        "error": text,
    }
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, LabkitError):  # it says itself why
        raised = kind(**LabkitError.fields(str(value)), evidence=evidence)
        place = f"{kept or notebook}, cell [{cell}]"
        raised.where = "; ".join(filter(None, [raised.where, place]))
        return raised
    return LabkitError(
        f"the notebook {notebook.name} failed" + (f" in cell [{cell}]" if cell else ""),
        where=str(notebook),
        why=text,
        remedy=f"{kept} holds it with the error" if kept else "",
        evidence=evidence,
    )
