"""The command that opens JupyterLab."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from labkit.paths import project

#: The notebook that JupyterLab opens.
START = "00-start.ipynb"
#: In a clone, the folder of working copies of the notebooks, which git ignores.
COPIES = "lab"


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Examples: labkit lab | labkit lab --port=9000 --no-browser",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(arguments: Sequence[str]) -> None:
    """Open JupyterLab at the first notebook, which measures a small study and evaluates claims.

    In a clone it opens copies of the notebooks, in lab/, since JupyterLab saves outputs into what
    it opens and git tracks notebooks/. Copies that are there already are kept.

    ARGUMENTS are passed to JupyterLab. The address with its token is printed. Without a display, as
    over SSH, no browser is opened. Ctrl-C ends JupyterLab, after a question.
    """
    home, folder = project(), "notebooks"
    if (home / ".git").exists():
        folder = COPIES
        for line in copy_notebooks(home):
            click.echo(f"labkit: {line}", err=True)
    argv = command(arguments, home, f"{folder}/{START}")
    sys.stdout.flush()
    # JupyterLab replaces this process, so that signals, terminal and exit code are its own.
    os.execv(argv[0], argv)


def copy_notebooks(home: Path) -> list[str]:
    """Copy the notebooks that have no copy yet; return messages about the copies."""
    said = [f"JupyterLab opens copies of notebooks/ in {COPIES}/, which git ignores"]
    for source in sorted((home / "notebooks").rglob("*")):
        copy = home / COPIES / source.relative_to(home / "notebooks")
        # Notebooks, and the page of parameters that they link to.
        if source.suffix not in (".ipynb", ".md") or ".ipynb_checkpoints" in source.parts:
            continue
        if not copy.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)  # as old as the copying is
        elif source.stat().st_mtime > copy.stat().st_mtime:
            said.append(f"{source.name} has changed since it was copied: remove {copy} to copy it")
    return said


def command(arguments: Sequence[str], home: Path, start: str) -> list[str]:
    """Return the command that starts JupyterLab; the user's arguments replace those of labkit."""
    display = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}
    options = [f"--ServerApp.root_dir={home}", f"--LabApp.default_url=/lab/tree/{start}"]
    options += ["--log-level=WARN"]  # so that the address is the last line
    options += [] if display else ["--no-browser"]
    options += ["--allow-root"] if os.geteuid() == 0 else []
    given = {argument.partition("=")[0] for argument in arguments}
    options = [option for option in options if option.partition("=")[0] not in given]
    return [sys.executable, "-m", "jupyterlab", *options, *arguments]


COMMANDS = (lab,)
