"""Commands that analyse campaigns: the report, the papers and the ledger."""

from __future__ import annotations

from pathlib import Path

import click

from labkit.cli.options import MEASURED, NEW, WAIT, interruptible, say
from labkit.paths import project


@click.command(epilog="Examples: labkit report | labkit report --measure --profile quick")
@click.option(
    "--measure",
    is_flag=True,
    help="Measure every study first, with the profile given or else `ask`: about half an hour.",
)
@MEASURED
@NEW
@WAIT
@click.option(
    "--output",
    "-o",
    default="reports",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the pages.",
)
def report(measure: bool, profile: str | None, new: bool, output: Path) -> None:
    """Choose the campaigns that count, analyse them, and write the pages and their index.

    A study is shown with the reference dataset where what was measured here decides nothing.
    Prints the headlines, which campaigns count and why, and the path of the index.

    Exit codes: 0 every page was built; 1 a study or a page failed; 2 wrong use.
    """
    interruptible()
    from labkit import studies

    index, headlines, failures = studies.report(
        profile,
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
    """Evaluate every published claim on DATASETS, and print the results.

    Without DATASETS, the campaigns that count for each study are taken; the last lines say which,
    and why.

    Exit codes: 0 every claim was evaluated; 1 the evaluation of one failed; 2 wrong use.
    """
    from labkit import studies
    from labkit.claims import ledger as claim_ledger
    from labkit.claims.schema import load_claims

    chosen = [] if datasets else studies.datasets(profile)
    paths = datasets or [path for one in chosen for path in one.campaigns]
    claims = load_claims()
    rows = claim_ledger.ledger(paths, claims=claims)
    shown = claim_ledger.select_rows(rows, source, result)
    lines = claim_ledger.format_rows(shown)
    if arithmetic:
        lines += claim_ledger.format_arithmetic(source or claims.sources)
    counted = [one for one in chosen if one.study in set(shown["study"])]
    lines += ["", *map(str, counted)] if counted else []
    click.echo("\n".join(lines))
    if csv is not None:
        shown.to_csv(csv, index=False, lineterminator="\n")
    if (rows["result"] == "error").any():
        raise SystemExit(1)


@click.command(epilog="Examples: labkit reproduction | labkit reproduction -o /tmp/report")
@click.option(
    "--data",
    default="data/reference",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the campaigns, described by labkit dataset describe.",
)
@click.option(
    "--output",
    "-o",
    default="reports/release",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the report; an earlier report in it is replaced.",
)
def reproduction(data: Path, output: Path) -> None:
    """Write the report of the five papers beside what was measured, without measuring.

    A page a paper, the ledger, all of it as one PDF (with Chromium), citations, and the digest of
    every file. With SOURCE_DATE_EPOCH the same data give the same bytes.

    Exit codes: 0 all was written; 1 a page failed, or there is no PDF; 2 wrong use.
    """
    interruptible()
    from labkit.report.release import build_release

    index, missing = build_release(project(output), project(data), say=say)
    click.echo("\n".join([*missing, f"report: {index}"]))
    if missing:
        raise SystemExit(1)


COMMANDS = (report, reproduction, ledger)
