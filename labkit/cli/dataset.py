"""Commands that describe, verify, pack, cite and compare datasets."""

from __future__ import annotations

from pathlib import Path

import click

from labkit.paths import project

_ANY = click.Path(path_type=Path)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group()
def dataset() -> None:
    """Describe a dataset, verify its files, or pack it into a few files."""


@dataset.command(epilog="Example: labkit dataset describe data/local/quick")
@click.argument("folder", type=_FOLDER)
def describe(folder: Path) -> None:
    """Write a description of the campaigns in FOLDER into that folder, and print a summary.

    datapackage.json has the schema of every table (Frictionless), ro-crate-metadata.json the
    provenance, SHA256SUMS the digest of every file, and trials.csv the table of trials.
    """
    from labkit.dataset.describe import describe as write_description
    from labkit.dataset.files import SUMS

    description = write_description(folder)
    click.echo("\n".join([description.title, *description.campaigns]))
    click.echo(f"fingerprint: sha256 {description.fingerprint} of {folder / SUMS}")


@dataset.command(epilog="Example: labkit dataset verify data/reference")
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def verify(folder: Path) -> None:
    """Check every file of FOLDER, a described dataset.

    Prints each problem with its file, then how many trials of each campaign are undamaged.

    Exit codes: 0 no problem; 1 a file is damaged, missing or not listed; 2 wrong use.
    """
    from labkit.dataset.package import verify as check

    verified = check(folder)
    click.echo("\n".join(verified.lines()))
    if verified.problems:
        raise SystemExit(1)


@dataset.command(
    epilog="Examples: labkit dataset pack data/local/quick | "
    "labkit dataset pack data/local/quick -o data/mine"
)
@click.argument("folder", type=_FOLDER)
@click.option(
    "--output",
    "-o",
    type=_ANY,
    help="A new archive (NAME.tar) or folder; FOLDER.tar when omitted.",
)
def pack(folder: Path, output: Path | None) -> None:
    """Pack each campaign in FOLDER into a few files, and describe them.

    FOLDER is not changed. The same data give the same bytes. labkit.load reads the packed form too;
    unpack an archive first (tar -xf).
    """
    from labkit.dataset.files import digest_of
    from labkit.dataset.package import pack as write

    home = folder.resolve()
    output = output or home.with_name(f"{home.name}.tar")
    description = write(folder, output)
    click.echo("\n".join([description.title, *description.campaigns]))
    if output.is_dir():
        size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
        digest = f"fingerprint sha256 {description.fingerprint}"
    else:
        size, digest = output.stat().st_size, f"sha256 {digest_of(output)}"
    click.echo(f"packed: {output}, {size / 1e6:.1f} MB, {digest}")


@click.command(epilog="Examples: labkit cite | labkit cite data/local/quick --format bibtex")
@click.argument("datasets", nargs=-1, type=_ANY)
@click.option(
    "--format",
    "-f",
    "form",
    type=click.Choice(["apa", "bibtex", "both"]),
    default="both",
    show_default=True,
    help="Style of the citations.",
)
def cite(datasets: tuple[Path, ...], form: str) -> None:
    """Print citations of labkit, of DATASETS (the reference when omitted) and of repeated studies.

    The version of a described dataset is the fingerprint of its files.
    """
    from labkit import citation
    from labkit.dataset.describe import read_description
    from labkit.dataset.files import refuse_archive

    folders = datasets or (project("data/reference"),)
    for folder in folders:
        refuse_archive(folder)
    entries = [citation.software(), *(read_description(folder).entry() for folder in folders)]
    entries += citation.studies()
    if form in ("apa", "both"):
        click.echo("\n\n".join(entry.apa() for entry in entries))
    if form == "both":
        click.echo()
    if form in ("bibtex", "both"):
        click.echo("\n\n".join(entry.bibtex() for entry in entries))


@click.command(
    "compare-datasets",
    epilog="Examples: labkit compare-datasets data/reference/cpu-quota theirs/cpu-quota "
    "--value latency_ns_p99 --csv both.csv | labkit compare-datasets rigs/*/cpu-quota --plot "
    "rigs.svg",
)
@click.argument("datasets", type=_ANY, nargs=-1, required=True, metavar="A B ...")
@click.option(
    "--value", multiple=True, metavar="NAME", help="Column to compare; the medians when omitted."
)
@click.option(
    "--margin", default=0.02, show_default=True, help="Relative difference that counts as equal."
)
@click.option("--csv", type=_ANY, help="Also write the rows to a file.")
@click.option("--plot", type=_ANY, help="Also draw each effect on each rig, as SVG, PNG or PDF.")
@click.option("--all", "every", is_flag=True, help="Show every difference between the rigs.")
def compare_datasets(
    datasets: tuple[Path, ...],
    value: tuple[str, ...],
    margin: float,
    csv: Path | None,
    plot: Path | None,
    every: bool,
) -> None:
    """Compare campaigns of a study on different rigs, in the folders A, B and more.

    Of two it prints the differences in rig, settings and versions, then each effect in both with
    its interval, and the ratio of the effects. Of three or more it prints each effect over rigs:
    its mean with an interval, what another rig would show, and whether the rigs differ.
    """
    from labkit.dataset import load, rigs
    from labkit.errors import UsageError

    if len(datasets) < 2:
        raise UsageError("one campaign cannot be compared", remedy="name two or more")
    data = [load(path) for path in datasets]
    lines = []
    for number, (path, campaign) in enumerate(zip(datasets, data, strict=True)):
        side = "AB"[number] if len(data) == 2 else str(number + 1)
        caveats = "; ".join(campaign.rig.get("caveats", []))
        name = campaign.rig.get("name")
        lines.append(f"{side}: {path}, rig {name}" + (f" ({caveats})" if caveats else ""))
    over, each = rigs.over_rigs(data, values=value, margin=margin)
    if len(data) == 2:
        table = rigs.compare_datasets(*data, values=value, margin=margin)
        lines += rigs.difference_lines(rigs.differences(*data), None if every else 25)
        lines += rigs.table_lines(table)
    else:
        table = over
        lines += rigs.over_lines(over)
    if plot is not None:
        from labkit.plots import rig_plot

        rig_plot(over, each).savefig(plot)
    if left_out := rigs.without_ratio(*data) if not value else []:
        lines += [
            "",
            f"left out, since values that may be zero have no ratio: {', '.join(left_out)}",
        ]
    click.echo("\n".join(lines))
    if csv is not None:
        table.to_csv(csv, index=False, lineterminator="\n")


COMMANDS = (dataset, cite, compare_datasets)
