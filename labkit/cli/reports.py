"""Commands that analyse: the report, and the ledger of claims."""

from __future__ import annotations

from pathlib import Path

import click

from labkit.cli.options import MEASURED, NEW, interruptible, say
from labkit.paths import project


@click.command(epilog="Example: labkit report --measure --profile quick")
@click.option("--measure", is_flag=True, help="Measure first what is missing (quick by default).")
@MEASURED
@NEW
@click.option(
    "--output",
    "-o",
    default="reports",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the pages.",
)
def report(measure: bool, profile: str | None, new: bool, output: Path) -> None:
    """Analyse what was measured and write reports/index.html."""
    interruptible()
    from labkit import studies

    index, headlines, failures = studies.report(
        (profile or "quick") if measure else profile,
        project(output),
        measure=measure,
        new=new,
        say=say,
    )
    for line in headlines:
        click.echo(line)
    click.echo(f"report: {index}")
    if failures:
        raise SystemExit(1)


@click.command(
    epilog="Examples: labkit ledger | labkit ledger --source jha2018 --result contradicted | "
    "labkit ledger data/reference/affinity-spinning --csv ledger.csv"
)
@click.argument("datasets", nargs=-1, type=click.Path(path_type=Path))
@MEASURED
@click.option("--source", multiple=True, metavar="KEY", help="Only claims of this document.")
@click.option("--result", multiple=True, metavar="WORDS", help="Only claims with this result.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write these rows to a file, too.")
@click.option("--arithmetic", is_flag=True, help="List what the papers' own tables do not give.")
def ledger(
    datasets: tuple[Path, ...],
    profile: str | None,
    source: tuple[str, ...],
    result: tuple[str, ...],
    csv: Path | None,
    arithmetic: bool,
) -> None:
    """Hold every claim against DATASETS: the newest campaign of each study, or the reference."""
    from labkit import studies
    from labkit.claims import ledger as words
    from labkit.claims.ledger import ledger as held
    from labkit.claims.schema import load_claims

    claims = load_claims()
    rows = held(datasets or studies.measured_here(profile, claims.studies), claims=claims)
    shown = words.select_rows(rows, source, result)
    lines = words.format_rows(shown)
    if arithmetic:
        lines += words.format_arithmetic(source or claims.sources)
    click.echo("\n".join(lines))
    if csv is not None:
        shown.to_csv(csv, index=False, lineterminator="\n")
    if (rows["result"] == "error").any():
        raise SystemExit(1)


COMMANDS = (report, ledger)
