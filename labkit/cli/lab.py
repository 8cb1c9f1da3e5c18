"""The command that opens JupyterLab."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from labkit.errors import LabkitError
from labkit.paths import project

#: The notebook that JupyterLab opens.
START = "notebooks/00-start.ipynb"
#: In a clone, the folder of working copies of the notebooks, which git ignores.
COPIES = "lab"


@click.command(
    epilog="Examples: labkit lab | labkit lab --port 9000 --no-browser "
    "| labkit lab -- --ServerApp.ip=198.18.0.3"
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port to listen on; by default the first free one from 8888.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--fresh", is_flag=True, help="In a clone: begin with new copies of the notebooks.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(port: int | None, no_browser: bool, fresh: bool, arguments: tuple[str, ...]) -> None:
    """Open JupyterLab at the first notebook, which measures a small study and evaluates claims.

    In a clone it opens copies of the notebooks, in lab/, since JupyterLab saves outputs into what
    it opens and git tracks notebooks/. Copies that are there already are kept; with --fresh the
    folder is put aside, and they are made again.

    ARGUMENTS after -- are passed to JupyterLab. The address with its token is printed. Without a
    display, as over SSH, no browser is opened. Ctrl-C ends JupyterLab, after a question.

    Exit codes: 0 it was ended; 1 it could not be started; 2 wrong use.
    """
    if find_spec("jupyterlab") is None:
        raise LabkitError(
            "JupyterLab is not installed",
            why=f"{sys.executable} has no module jupyterlab",
            remedy=f"{sys.executable} -m pip install jupyterlab",
        )
    home, start = project(), START
    if (home / ".git").exists():
        for line in copy_notebooks(home, fresh=fresh):
            click.echo(f"labkit: {line}", err=True)
        start = START.replace("notebooks", COPIES, 1)
    argv = command(
        arguments,
        home=home,
        start=start,
        port=port,
        browser=not no_browser,
        root=os.geteuid() == 0,
        env=os.environ,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    # JupyterLab replaces this process, so that signals, terminal and exit code are its own.
    os.execv(argv[0], argv)


def copy_notebooks(home: Path, *, fresh: bool = False) -> list[str]:
    """Copy the notebooks that have no copy yet; return what there is to say about the copies."""
    notebooks, copies = home / "notebooks", home / COPIES
    said = [f"JupyterLab opens copies of notebooks/ in {COPIES}/, which git ignores"]
    if fresh and copies.is_dir():
        aside = home / "data/local" / f"{COPIES}-{time.strftime('%Y%m%d-%H%M%S')}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        copies.rename(aside)
        said.append(f"the earlier copies are in {aside.relative_to(home)}")
    newer = []
    for source in sorted(notebooks.rglob("*")):
        name = source.relative_to(notebooks)
        # Notebooks, and the page of parameters that they link to.
        if source.suffix not in (".ipynb", ".md") or ".ipynb_checkpoints" in name.parts:
            continue
        copy = copies / name
        if not copy.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)  # as old as the copying is
        elif source.stat().st_mtime > copy.stat().st_mtime:
            newer.append(str(name))
    if newer:
        said.append(f"changed since they were copied: {', '.join(newer)} (--fresh copies them)")
    return said


def command(
    arguments: Sequence[str],
    *,
    home: Path,
    start: str,
    port: int | None,
    browser: bool,
    root: bool,
    env: Mapping[str, str],
) -> list[str]:
    """Return the command that starts JupyterLab."""
    display = sys.platform == "darwin" or env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")
    options = [f"--ServerApp.root_dir={home}", f"--LabApp.default_url=/lab/tree/{start}"]
    options += ["--log-level=WARN"]  # so that the address is the last line
    options += [f"--port={port}", "--port-retries=0"] if port else []
    options += [] if browser and display else ["--no-browser"]
    options += ["--allow-root"] if root else []
    replaced = {argument.partition("=")[0] for argument in arguments}
    options = [option for option in options if option.partition("=")[0] not in replaced]
    return [sys.executable, "-m", "jupyterlab", *options, *arguments]


COMMANDS = (lab,)
