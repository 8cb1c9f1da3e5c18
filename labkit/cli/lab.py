"""The command that opens JupyterLab."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import NoReturn

import click

from labkit.errors import LabkitError
from labkit.paths import ROOT

#: The notebook that JupyterLab opens at, and its place in JupyterLab.
START = "notebooks/00-start.ipynb"
URL = f"/lab/tree/{START}"


@click.command(
    epilog="Examples: labkit lab | labkit lab --port 9000 --no-browser "
    "| labkit lab -- --ServerApp.ip=198.18.0.3"
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Listen there, or fail; by default on 8888, or on the next that is free.",
)
@click.option("--no-browser", is_flag=True, help="Open no browser: print the address only.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(port: int | None, no_browser: bool, arguments: tuple[str, ...]) -> None:
    """Open JupyterLab at the first notebook, which measures one small study and decides.

    ARGUMENTS after -- are JupyterLab's own. The address with its token is printed, and where there
    is no display, as over SSH, no browser is opened. Ctrl-C ends it: JupyterLab asks first.

    Exit codes: 0 it was ended; 1 it could not be started; 2 wrong use.
    """
    if find_spec("jupyterlab") is None:
        raise LabkitError(
            "JupyterLab is not installed",
            why=f"{sys.executable} has no module jupyterlab",
            remedy="make setup brings it, in .venv; then .venv/bin/labkit lab",
        )
    root = os.geteuid() == 0
    _become(command(arguments, port=port, browser=not no_browser, root=root, env=os.environ))


def command(
    arguments: Sequence[str] = (),
    *,
    port: int | None,
    browser: bool,
    root: bool,
    env: Mapping[str, str],
) -> list[str]:
    """Return what starts JupyterLab."""
    display = sys.platform == "darwin" or env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")
    found = [f"--ServerApp.root_dir={ROOT}", f"--LabApp.default_url={URL}"]
    # The address is the last that is printed, and stays in sight.
    found += ["--log-level=WARN"]
    found += [f"--port={port}", "--port-retries=0"] if port else []
    found += [] if browser and display else ["--no-browser"]
    found += ["--allow-root"] if root else []
    given = {one.partition("=")[0] for one in arguments}
    own = [one for one in found if one.partition("=")[0] not in given]
    return [sys.executable, "-m", "jupyterlab", *own, *arguments]


def _become(argv: Sequence[str]) -> NoReturn:
    """Replace this process: signals, the terminal and the exit code are JupyterLab's."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], list(argv))


COMMANDS = (lab,)
