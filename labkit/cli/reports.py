"""Commands that analyse campaigns: the report and the ledger."""

from __future__ import annotations

from pathlib import Path

import click

from labkit.cli.options import NEW, WAIT, interruptible, say
from labkit.paths import project

DATA = click.argument("data", required=False, type=click.Path(exists=True, path_type=Path))


@click.command(epilog="Examples: labkit report data/reference | labkit report --measure -P quick")
@click.option("--measure", is_flag=True, help="Measure every study first.")
@click.option(
    "--profile",
    "-P",
    default="ask",
    show_default=True,
    help="With --measure: ask (half an hour), quick (hours), decide or paper (weeks).",
)
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
@DATA
def report(measure: bool, profile: str, new: bool, output: Path, data: Path | None) -> None:
    """Analyse the campaigns in DATA, and write a page a study, the ledger and the index.

    Without DATA a study is shown as measured here if 6 blocks or more are complete, else with the
    reference. Prints the answers and the path of the index.

    Exit codes: 0 every page was built; 1 a study or a page failed; 2 wrong use.
    """
    interruptible()
    from labkit import studies
    from labkit.analysis import publish

    failures = []
    reason = studies.rig_here()[1] if measure else ""
    if reason:
        say(f"cannot measure here: {reason}")
    elif measure:
        runs = studies.plan_runs([], profile, [], {"new": new})
        outcomes = studies.measure_all(runs, seconds=24 * 3600, say=say)
        failures = [f"{one.run.study} failed: {one.error}" for one in outcomes if one.error]
    folder = project(output)
    for answer in publish.report(folder, data, say=say):
        if "error" in answer:
            failures.append(f"{answer['page']} failed: {answer['error']}")
        for sentence in answer.get("sentences", []):
            click.echo(sentence + (" (reference)" if answer["source"] != "here" else ""))
    for failure in failures:
        say(failure)
    click.echo(f"report: {folder / 'index.html'}")
    if failures:
        raise SystemExit(1)


@click.command(epilog="Examples: labkit ledger --paper struye2017 | labkit ledger --csv ledger.csv")
@DATA
@click.option("--paper", multiple=True, metavar="KEY", help="Only of this paper, such as jha2018.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write the claims to a file.")
def ledger(data: Path | None, paper: tuple[str, ...], csv: Path | None) -> None:
    """Evaluate the papers' claims on the campaigns in DATA; print the findings.

    Without DATA a finding is judged by the reference, or by a campaign measured here once that has
    12 blocks of all its claims.
    """
    import pandas as pd

    from labkit.analysis import claims
    from labkit.data import refuse_unknown

    known = [one.source for one in claims.load_papers()]
    refuse_unknown("paper", paper, known)
    folders = [data] if data else [project("data/reference"), project("data/local")]
    rows = claims.ledger(*folders)
    rows = rows[rows["source"].isin(paper or known)]
    if csv is not None:
        rows.to_csv(csv, index=False, lineterminator="\n")
    for finding in claims.findings(rows).to_dict("records"):
        click.echo(f"{finding['verdict']:18}  {finding['says']} ({finding['source']})")
        click.echo(f"{'':18}  {finding['needs'] or finding['why']}")
    counts = pd.crosstab(rows["verdict"], rows["source"], rownames=[""], colnames=["claims"])
    click.echo(f"\n{counts.to_string()}")


COMMANDS = (report, ledger)
