"""Commands that describe, check, pack, cite and compare datasets; `labkit.cli` adds them."""

from __future__ import annotations

from pathlib import Path

import click

from labkit.paths import project

_ANY = click.Path(path_type=Path)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.group()
def dataset() -> None:
    """Describe a dataset, verify that it is whole, pack it for a repository."""


@dataset.command(epilog="Example: labkit dataset describe data/local/quick")
@click.argument("folder", type=_FOLDER)
def describe(folder: Path) -> None:
    """Write the description of the campaigns in FOLDER, beside the data, and say what they are.

    datapackage.json has the schema of every table (Frictionless), ro-crate-metadata.json the
    provenance, SHA256SUMS the digest of every file; trials.csv is the table of the trials.
    """
    from labkit.dataset import describing, files

    about = describing.describe(folder)
    click.echo("\n".join([about.title, *about.campaigns]))
    click.echo(f"fingerprint: sha256 {about.fingerprint} of {folder / files.SUMS}")


@dataset.command(
    epilog="Examples: labkit dataset verify data/reference | labkit dataset verify reference.tar"
)
@click.argument("path", type=click.Path(path_type=Path, exists=True))
def verify(path: Path) -> None:
    """Check every file of PATH, a described folder or an archive; exit with 1 where one is amiss.

    Each problem names its file, and then it is said what is still whole.
    """
    from labkit.dataset import verifying

    found = verifying.verify(path)
    click.echo("\n".join(found.lines()))
    if found.problems:
        raise SystemExit(1)


@dataset.command(
    epilog="Example: labkit dataset pack data/reference -o reference.tar; then labkit.load takes "
    "reference.tar/cpu-quota as it takes a folder"
)
@click.argument("folder", type=_FOLDER)
@click.option("--output", "-o", type=_ANY, help="The archive; FOLDER.tar when omitted.")
def pack(folder: Path, output: Path | None) -> None:
    """Describe FOLDER, and write it as an archive: the same data give the same bytes."""
    from labkit.dataset import packing
    from labkit.dataset.files import digest_of

    archive = output or Path(f"{folder.resolve().name}.tar")
    about = packing.pack(folder, archive)
    click.echo("\n".join([about.title, *about.campaigns]))
    size = archive.stat().st_size / 1e6
    click.echo(f"packed: {archive}, {size:.1f} MB, sha256 {digest_of(archive)}")


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
    from labkit.dataset.archive import opened
    from labkit.dataset.describing import about

    folders = datasets or (project("data/reference"),)
    entries = [citation.software(), *(about(opened(one)).entry() for one in folders)]
    entries += citation.studies()
    if form in ("apa", "both"):
        click.echo("\n\n".join(entry.apa() for entry in entries))
    if form == "both":
        click.echo()
    if form in ("bibtex", "both"):
        click.echo("\n\n".join(entry.bibtex() for entry in entries))


@click.command(
    "compare-datasets",
    epilog="Example: labkit compare-datasets data/reference/cpu-quota theirs.tar/cpu-quota "
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
    """Put the same study of two rigs, A and B, side by side; each is a folder or an archive.

    First what differs in rig, settings and versions; then each effect in both, with its interval,
    and their ratio.
    """
    from labkit.analysis import two_rigs
    from labkit.dataset import load

    data = [load(path) for path in (first, second)]
    table = two_rigs.compare_datasets(*data, values=value, margin=margin)
    for side, path, one in zip("AB", (first, second), data, strict=True):
        caveats = "; ".join(one.rig.get("caveats", []))
        click.echo(f"{side}: {path}, rig {one.rig.get('name')}" + f" ({caveats})" * bool(caveats))
    click.echo("\n".join(two_rigs.told(two_rigs.differences(*data), None if whole else 25)))
    click.echo("\n".join(two_rigs.lines(table)))
    if left_out := two_rigs.without_ratio(*data) if not value else []:
        click.echo(
            f"\nleft out, since values that may be zero have no ratio: {', '.join(left_out)}"
        )
    if csv is not None:
        table.to_csv(csv, index=False, lineterminator="\n")


COMMANDS = (dataset, cite, compare_datasets)
