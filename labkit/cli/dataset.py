"""Commands that pack, describe, verify, cite and compare datasets."""

from __future__ import annotations

from pathlib import Path

import click

from labkit.paths import SHIPPED

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group()
def dataset() -> None:
    """Pack a dataset into a few files, describe it, or verify its files."""


@dataset.command(epilog="Example: labkit dataset describe data/reference")
@click.argument("folder", type=_FOLDER)
def describe(folder: Path) -> None:
    """Write the description of the packed campaigns in FOLDER, and print what they are."""
    from labkit.analysis import package

    click.echo(package.describe(folder).to_string(index=False))


@dataset.command(epilog="Example: labkit dataset verify data/reference")
@click.argument("folder", type=_FOLDER)
def verify(folder: Path) -> None:
    """Check every file of FOLDER, a described dataset, and print each problem.

    Exit codes: 0 no problem; 1 a file is damaged, missing or not listed; 2 wrong use.
    """
    from labkit.analysis import package

    problems = package.verify(folder)
    click.echo("\n".join(problems or ["no problem"]))
    raise SystemExit(bool(problems))


@dataset.command(epilog="Example: labkit dataset pack data/local -o data/mine")
@click.argument("folder", type=_FOLDER)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), required=True, help="A new folder."
)
def pack(folder: Path, output: Path) -> None:
    """Pack each campaign in FOLDER into a few files, and describe them."""
    from labkit.analysis import package

    package.pack(folder, output)
    click.echo(f"packed: {output}")


@click.command(epilog="Examples: labkit cite | labkit cite data/reference")
@click.argument("folder", type=_FOLDER, default=SHIPPED)
def cite(folder: Path) -> None:
    """Print citations from CITATION.cff: of labkit and the repeated studies, or of a dataset."""
    from labkit.analysis import package

    click.echo(package.cite(folder / "CITATION.cff"))


@click.command(
    "compare-datasets", epilog="Example: labkit compare-datasets data/reference/rps theirs/rps"
)
@click.argument("first", type=_FOLDER)
@click.argument("second", type=_FOLDER)
@click.option("--value", default="", help="Column of trials; the plan's first outcome if omitted.")
@click.option("--margin", default=0.02, show_default=True, help="Difference that counts as none.")
def compare_datasets(first: Path, second: Path, value: str, margin: float) -> None:
    """Compare two campaigns of one study: its baselines, and ratios to them.

    Exit codes: 0 no difference beyond the margin is shown; 1 one is shown; 2 wrong use.
    """
    from labkit.analysis.rigs import compare_datasets as compare
    from labkit.data import load

    table = compare(load(first), load(second), value=value, margin=margin)
    click.echo(table.to_string(index=False))
    raise SystemExit(bool(table["differs"].any()))


COMMANDS = (dataset, cite, compare_datasets)
