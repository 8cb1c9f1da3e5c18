"""Where the project's files are, whatever the working directory of a kernel is."""

from __future__ import annotations

from pathlib import Path

#: The clone: the folder that holds ``labkit/``, ``notebooks/`` and ``data/``.
ROOT = Path(__file__).resolve().parents[1]
#: The file of a campaign that says how far it is, and which process runs it.
PROGRESS = ".progress.json"


def project(path: str | Path = ".") -> Path:
    """Return `path`, taken from the project's folder when it is relative.

    JupyterLab starts a notebook in the notebook's folder and papermill in yours; a relative
    ``data`` parameter means the same place in both.
    """
    return ROOT / path
