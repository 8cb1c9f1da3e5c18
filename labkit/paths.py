"""Where the project's files are, whatever the working directory of a kernel is."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.errors import UsageError

#: The clone that this labkit runs from.
SHIPPED = Path(__file__).resolve().parents[1]
#: The file that a project's folder is known by.
MARK = "notebooks/00-start.ipynb"


def project(path: str | Path = ".") -> Path:
    """Return `path`, taken from the project's folder when it is relative.

    That is the nearest folder, from the working directory upwards, that is a clone, else the clone
    that this labkit runs from: JupyterLab starts a notebook in the notebook's folder, and papermill
    in yours.

    Examples
    --------
    >>> from labkit import project
    >>> project("data/reference").is_dir()
    True
    """
    here = Path.cwd()
    for folder in (here, *here.parents, SHIPPED):
        # Path.is_file raises where the user may not look.
        if os.path.isfile(folder / MARK):  # noqa: PTH113
            return folder / path
    what, why = "there is no clone of labkit here", f"no folder above has {MARK}"
    remedy = "run this in a clone, which has the notebooks, claims and containers"
    raise UsageError(what, where=str(here), why=why, remedy=remedy)


def relative(path: Path, folder: Path) -> Path:
    """Return a path relative to a folder if it is inside it, else unchanged."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path
