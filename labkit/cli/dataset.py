"""Commands that describe, verify, pack, cite and compare datasets; `labkit.cli` adds them."""

from __future__ import annotations

from pathlib import Path

import click

from labkit.paths import project

_ANY = click.Path(path_type=Path)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group()
def dataset() -> None:
    """Describe a dataset, verify that it is whole, pack it into a few files."""


@dataset.command(epilog="Example: labkit dataset describe data/local/quick")
@click.argument("folder", type=_FOLDER)
def describe(folder: Path) -> None:
    """Write the description of the campaigns in FOLDER, beside the data, and say what they are.

    datapackage.json has the schema of every table (Frictionless), ro-crate-metadata.json the
    provenance, SHA256SUMS the digest of every file; trials.csv is the table of the trials.
    """
    from labkit.dataset.describe import describe as write_description
    from labkit.dataset.files import SUMS

    description = write_description(folder)
    click.echo("\n".join([description.title, *description.campaigns]))
    click.echo(f"fingerprint: sha256 {description.fingerprint} of {folder / SUMS}")


@dataset.command(epilog="Example: labkit dataset verify data/reference")
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
def verify(folder: Path) -> None:
    """Check every file of FOLDER, a described dataset; exit with 1 where one is damaged.

    Prints each problem with its file, then which trials are whole.
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
    help="An archive (NAME.tar), or a new folder; FOLDER.tar beside FOLDER when omitted.",
)
def pack(folder: Path, output: Path | None) -> None:
    """Write the campaigns in FOLDER as a few files each, described: the same data, the same bytes.

    labkit.load reads the packed form as it reads FOLDER, which stays as it is; an archive is
    unpacked first (tar -xf).
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
    help="Which style.",
)
def cite(datasets: tuple[Path, ...], form: str) -> None:
    """Print how to cite labkit, DATASETS (the reference when omitted) and the studies it repeats.

    A described dataset is identified by the fingerprint of its files.
    """
    from labkit import citation
    from labkit.dataset.describe import read_description
    from labkit.dataset.files import refuse_archive

    folders = datasets or (project("data/reference"),)
    for folder in folders:
        refuse_archive(folder)
    entries = [citation.software(), *(read_description(one).entry() for one in folders)]
    entries += citation.studies()
    if form in ("apa", "both"):
        click.echo("\n\n".join(entry.apa() for entry in entries))
    if form == "both":
        click.echo()
    if form in ("bibtex", "both"):
        click.echo("\n\n".join(entry.bibtex() for entry in entries))


@click.command(
    "compare-datasets",
    epilog="Example: labkit compare-datasets data/reference/cpu-quota theirs/cpu-quota "
    "--value latency_ns_p99 --csv both.csv",
)
@click.argument("first", type=_ANY, metavar="A")
@click.argument("second", type=_ANY, metavar="B")
@click.option("--value", multiple=True, metavar="NAME", help="What to compare; else the medians.")
@click.option("--margin", default=0.02, show_default=True, help="Ratios within it count as equal.")
@click.option("--csv", type=_ANY, help="Write the rows to a file, too.")
@click.option("--all", "whole", is_flag=True, help="Show every difference between the rigs.")
def compare_datasets(
    first: Path, second: Path, value: tuple[str, ...], margin: float, csv: Path | None, whole: bool
) -> None:
    """Compare the same study of two rigs: the campaigns in the folders A and B.

    First the differences in rig, settings and versions; then each effect in both, with its
    interval, and their ratio.
    """
    from labkit.analysis import two_rigs
    from labkit.dataset import load

    data = [load(path) for path in (first, second)]
    table = two_rigs.compare_datasets(*data, values=value, margin=margin)
    for side, path, one in zip("AB", (first, second), data, strict=True):
        caveats = "; ".join(one.rig.get("caveats", []))
        click.echo(f"{side}: {path}, rig {one.rig.get('name')}" + f" ({caveats})" * bool(caveats))
    click.echo(
        "\n".join(two_rigs.difference_lines(two_rigs.differences(*data), None if whole else 25))
    )
    click.echo("\n".join(two_rigs.table_lines(table)))
    if left_out := two_rigs.without_ratio(*data) if not value else []:
        click.echo(
            f"\nleft out, since values that may be zero have no ratio: {', '.join(left_out)}"
        )
    if csv is not None:
        table.to_csv(csv, index=False, lineterminator="\n")


COMMANDS = (dataset, cite, compare_datasets)
