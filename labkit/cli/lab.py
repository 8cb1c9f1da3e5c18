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

#: The notebook that JupyterLab opens, and its path in JupyterLab.
START = "notebooks/00-start.ipynb"
URL = f"/lab/tree/{START}"


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
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(port: int | None, no_browser: bool, arguments: tuple[str, ...]) -> None:
    """Open JupyterLab at the first notebook, which measures a small study and evaluates claims.

    ARGUMENTS after -- are passed to JupyterLab. The address with its token is printed. Without a
    display, as over SSH, no browser is opened. Ctrl-C ends JupyterLab, after a question.

    Exit codes: 0 it was ended; 1 it could not be started; 2 wrong use.
    """
    if find_spec("jupyterlab") is None:
        raise LabkitError(
            "JupyterLab is not installed",
            why=f"{sys.executable} has no module jupyterlab",
            remedy="run make setup, then .venv/bin/labkit lab",
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
    """Return the command that starts JupyterLab."""
    display = sys.platform == "darwin" or env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")
    options = [f"--ServerApp.root_dir={ROOT}", f"--LabApp.default_url={URL}"]
    options += ["--log-level=WARN"]  # so that the address is the last line
    options += [f"--port={port}", "--port-retries=0"] if port else []
    options += [] if browser and display else ["--no-browser"]
    options += ["--allow-root"] if root else []
    replaced = {argument.partition("=")[0] for argument in arguments}
    options = [option for option in options if option.partition("=")[0] not in replaced]
    return [sys.executable, "-m", "jupyterlab", *options, *arguments]


def _become(argv: Sequence[str]) -> NoReturn:
    """Replace this process, so that signals, terminal and exit code are JupyterLab's."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], list(argv))


COMMANDS = (lab,)
