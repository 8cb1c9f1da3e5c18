"""The command that makes a working folder."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import click

from labkit.errors import UsageError
from labkit.paths import PACKAGED, SHIPPED


@click.command(epilog="Example: labkit init lab && cd lab && labkit lab")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Make DIR a working folder: notebooks, profiles, claims, containers and the reference dataset.

    Every other command finds this folder from within it, or with `labkit --project DIR COMMAND`.
    Measurements go to DIR/data/local, reports to DIR/reports.

    Exit codes: 0 it was made; 2 DIR is not empty.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        content = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be a folder", why=str(error)) from None
    if content:
        raise UsageError(
            f"{folder} is not empty",
            where=str(folder.resolve()),
            why=f"it has {', '.join(content[:3])}{', ...' if content[3:] else ''}",
            remedy="name a new folder",
        )
    for name in _contents():
        source, target = SHIPPED / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
        else:
            shutil.copy2(source, target)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    click.echo(f"made {folder}: {', '.join(_contents())} ({size / 1e6:.0f} MB)")
    click.echo(f"next: cd {folder}, then labkit doctor, labkit lab or labkit report")


def _contents() -> list[str]:
    """Return the names of what a working folder holds; in a clone pyproject.toml lists them."""
    if PACKAGED is not None:
        return sorted(path.name for path in PACKAGED.iterdir())
    settings = tomllib.loads((SHIPPED / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    return sorted({*wheel["only-include"], *wheel["force-include"]} - {"labkit"})


COMMANDS = (init,)
