"""Where the project's files are, whatever the working directory of a kernel is."""

from __future__ import annotations

import os
from pathlib import Path

from labkit.errors import UsageError

#: The environment variable that names the project's folder; `labkit --project` sets it.
VARIABLE = "LABKIT_PROJECT"
#: The file that a project's folder is known by.
MARK = "notebooks/00-start.ipynb"

_PACKAGE = Path(__file__).resolve().parent
#: What a wheel carries of the project; None in a clone.
PACKAGED = _PACKAGE / "project" if (_PACKAGE / "project").is_dir() else None
#: The files that come with this labkit: in a wheel, or the clone.
SHIPPED = PACKAGED or _PACKAGE.parent


def project(path: str | Path = ".") -> Path:
    """Return `path`, taken from the project's folder when it is relative.

    JupyterLab starts a notebook in the notebook's folder and papermill in yours; a relative
    ``data`` parameter means the same place in both. The project's folder is the one that
    ``LABKIT_PROJECT`` names; else the nearest folder, from the working directory upwards, that
    `labkit init` made or that is a clone; else the clone that this labkit runs from.

    Raises
    ------
    UsageError
        There is no such folder.

    Examples
    --------
    >>> from labkit import project
    >>> project("data/reference").is_dir()
    True
    """
    return _home() / path


def relative(path: Path, folder: Path) -> Path:
    """Return a path relative to a folder if it is inside it, else unchanged."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _home() -> Path:
    """Return the project's folder."""
    if named := os.environ.get(VARIABLE):
        if (folder := Path(named).resolve()).joinpath(MARK).is_file():
            return folder
        raise UsageError(
            "the project's folder is not one of labkit",
            where=f"{folder}, from --project or {VARIABLE}",
            why=f"it has no {MARK}",
            remedy=f"labkit init {named}",
        )
    here = Path.cwd()
    for folder in (here, *here.parents):
        # Path.is_file raises where the user may not look.
        if os.path.isfile(folder / MARK):  # noqa: PTH113
            return folder
    if PACKAGED is None:
        return SHIPPED
    raise UsageError(
        "there is no labkit folder here",
        where=str(here),
        why=f"neither this folder nor one above it has {MARK}",
        remedy="labkit init DIR makes one with notebooks, claims and containers; then run this in "
        "DIR, or with labkit --project DIR",
    )
