"""`labkit dataset`, `cite` and `compare-datasets`: what they print and write, and exit codes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from small_datasets import write_campaign

from labkit import cli
from labkit.citation import studies
from labkit.dataset.files import SUMS


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command."""
    code = 0
    try:
        cli.main([str(word) for word in argv])
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_campaign(tmp_path / "data" / "echo", blocks=6)
    return tmp_path / "data"


def test_describe_pack_and_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "dataset", "describe", folder)
    assert code == 0 and "echo: 12 attempts at trials in 6 blocks" in out
    assert (folder / SUMS).is_file() and "fingerprint: sha256 " in out
    packed = folder.parent / "packed"
    code, out, _ = run(capsys, "dataset", "pack", folder, "-o", packed)
    assert code == 0 and f"packed: {packed}" in out and "fingerprint sha256" in out
    for path in (folder, packed):
        code, out, _ = run(capsys, "dataset", "verify", path)
        assert code == 0 and "no problems\nwhole: echo: 12 of 12 trials" in out


def test_pack_writes_an_archive_beside_the_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent / "elsewhere")
    code, out, _ = run(capsys, "dataset", "pack", "../data")
    archive = folder.parent / "data.tar"
    assert code == 0 and archive.is_file() and f"packed: {archive.resolve()}, " in out
    assert not list((folder.parent / "elsewhere").iterdir())
    for command in (["dataset", "verify"], ["cite"], ["compare-datasets", folder / "echo"]):
        code, _, err = run(capsys, *command, archive)
        assert code == 1 and "tar -xf" in err


def test_verify_ends_with_1_and_names_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "dataset", "verify", folder)
    assert code == 1 and "labkit dataset describe" in err
    run(capsys, "dataset", "describe", folder)
    (folder / "echo" / "trials" / "b01-p01-a1" / "tool.out").unlink()
    code, out, _ = run(capsys, "dataset", "verify", folder)
    assert code == 1 and "echo/trials/b01-p01-a1/tool.out: missing" in out
    assert "whole: echo: 11 of 12 trials" in out
    code, _, err = run(capsys, "dataset", "pack", folder, "-o", folder.parent / "it.tar")
    assert code == 1 and "missing or altered" in err
    assert not (folder.parent / "it.tar").exists()


def test_used_wrongly_it_ends_with_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "dataset", "describe", folder / "nosuch")[0] == 2
    assert run(capsys, "dataset", "pack", folder, "-o", folder / "it.tar")[0] == 2
    assert run(capsys, "cite", "--format", "word")[0] == 2
    write_campaign(folder / "other", study="other")
    assert run(capsys, "compare-datasets", folder / "echo", folder / "other")[0] == 2


def test_a_folder_that_is_missing_is_an_error_without_a_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "nosuch" / "rows.csv"
    argv = ("compare-datasets", folder / "echo", folder / "echo", "--csv", path)
    code, _, err = run(capsys, *argv)
    assert code == 1 and err.startswith("labkit: ") and "nosuch" in err and "Traceback" not in err


def test_cite_prints_software_dataset_and_studies(capsys: pytest.CaptureFixture[str]) -> None:
    code, both, _ = run(capsys, "cite")
    assert code == 0 and "[Computer software]" in both and "[Data set]" in both
    assert both.count("\n@") == 7
    assert all(one.apa() in both and one.bibtex() in both for one in studies())
    assert (
        run(capsys, "cite", "-f", "apa")[1] + "\n" + run(capsys, "cite", "-f", "bibtex")[1] == both
    )


def test_cite_takes_a_described_dataset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "cite", folder)
    assert code == 1 and "labkit dataset describe" in err
    run(capsys, "dataset", "describe", folder)
    cited = run(capsys, "cite", folder)[1]
    # Nobody is named as its author, so that its title takes the author's place.
    assert "Container performance measured with labkit: echo (Version " in cited
    assert "[Data set]. (2023)." in cited


def test_effects_over_three_rigs_are_printed_and_drawn(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv, plot = tmp_path / "over.csv", tmp_path / "over.svg"
    write_campaign(tmp_path / "other" / "echo" / "one", blocks=6, effect=1.7)
    names = [folder / "echo", folder / "echo", tmp_path / "other" / "echo"]
    code, out, _ = run(capsys, "compare-datasets", *names, "--csv", csv, "--plot", plot)
    assert code == 0 and "effects over rigs" in out and "another rig" in out
    assert "n_rigs" in csv.read_text().splitlines()[0]
    assert plot.read_text().startswith("<?xml")


def test_compare_datasets_says_what_differs_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_campaign(folder.parent / "other", blocks=6, identity={"labkit": "0.2.0"})
    csv = folder.parent / "both.csv"
    code, out, _ = run(capsys, "compare-datasets", folder / "echo", other, "--csv", csv)
    assert code == 0
    assert out.index("labkit: 0.1.0 | 0.2.0") < out.index("rtt_ns_median: levels, in ns")
    assert "(one kernel)" in out.splitlines()[0]
    table = pd.read_csv(csv)
    assert table["kind"].tolist() == ["level", "effect"]
    assert table["ratio"].tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize(
    "argv",
    [
        ("dataset", "describe"),
        ("dataset", "verify"),
        ("dataset", "pack"),
        ("cite",),
        ("compare-datasets",),
    ],
    ids=" ".join,
)
def test_every_command_has_an_example(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *argv, "--help")
    assert code == 0 and f": labkit {' '.join(argv)}" in out
