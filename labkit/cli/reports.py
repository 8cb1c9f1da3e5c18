"""Commands that analyse campaigns: the report and the ledger of claims."""

from __future__ import annotations

from pathlib import Path

import click

from labkit.cli.options import MEASURED, NEW, interruptible, say
from labkit.paths import project


@click.command(epilog="Example: labkit report --measure --profile quick")
@click.option(
    "--measure", is_flag=True, help="Measure every study first (profile quick by default)."
)
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
    """Analyse the newest campaign of each study, and write the pages and their index.

    A study that was not measured here is shown with the reference dataset. Prints the headlines
    and the path of the index.

    Exit codes: 0 every page was built; 1 a study or a page failed; 2 wrong use.
    """
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
@click.option("--source", multiple=True, metavar="KEY", help="Show only claims of this paper.")
@click.option("--result", multiple=True, metavar="WORDS", help="Show only claims with this result.")
@click.option("--csv", type=click.Path(path_type=Path), help="Also write these rows to a file.")
@click.option(
    "--arithmetic",
    is_flag=True,
    help="Also list numbers of the papers that their own tables do not give.",
)
def ledger(
    datasets: tuple[Path, ...],
    profile: str | None,
    source: tuple[str, ...],
    result: tuple[str, ...],
    csv: Path | None,
    arithmetic: bool,
) -> None:
    """Evaluate every published claim by DATASETS, and print the results.

    When omitted, DATASETS are the newest campaign of each study, or its reference dataset.

    Exit codes: 0 every claim was evaluated; 1 the evaluation of one failed; 2 wrong use.
    """
    from labkit import studies
    from labkit.claims import ledger as claim_ledger
    from labkit.claims.schema import load_claims

    claims = load_claims()
    paths = datasets or studies.measured_here(profile, claims.studies)
    rows = claim_ledger.ledger(paths, claims=claims)
    shown = claim_ledger.select_rows(rows, source, result)
    lines = claim_ledger.format_rows(shown)
    if arithmetic:
        lines += claim_ledger.format_arithmetic(source or claims.sources)
    click.echo("\n".join(lines))
    if csv is not None:
        shown.to_csv(csv, index=False, lineterminator="\n")
    if (rows["result"] == "error").any():
        raise SystemExit(1)


COMMANDS = (report, ledger)
