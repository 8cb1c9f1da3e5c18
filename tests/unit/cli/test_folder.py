"""`labkit init`, from a clone and from an installed wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from labkit import cli
from labkit.paths import MARK, SHIPPED, VARIABLE


def test_a_working_folder_has_what_the_clone_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "lab"
    cli.main(["init", str(folder)])
    assert f"next: cd {folder}" in capsys.readouterr().out
    for name in (MARK, "notebooks", "containers", "data/published", "rig.example.toml"):
        ours, theirs = SHIPPED / name, folder / name
        assert theirs.exists() and theirs.is_file() == ours.is_file()
    assert not (folder / "data/local").exists() and not (folder / "labkit").exists()
    with pytest.raises(SystemExit) as caught:
        cli.main(["init", str(folder)])
    assert caught.value.code == 2
    assert "CITATION.cff, containers, data, ..." in capsys.readouterr().err
    # The variable stays set, as kernels inherit it: monkeypatch restores it.
    monkeypatch.setenv(VARIABLE, "")
    cli.main(["--project", str(folder), "status"])
    assert "no campaign here" in capsys.readouterr().out


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this clone, and return the folder that it is installed into."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=SHIPPED, check=True, capture_output=True)
    (wheel,) = folder.glob("labkit-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-compile", "--target", str(folder / "site"), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    return folder / "site"


def labkit(site: Path, here: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the installed labkit in a folder."""
    env = {**os.environ, "PYTHONPATH": str(site)}
    env.pop(VARIABLE, None)
    command = [sys.executable, str(site / "bin" / "labkit"), *argv]
    return subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, check=False)


def test_the_wheel_carries_a_project_and_nothing_of_this_machine(installed: Path) -> None:
    project = installed / "labkit" / "project"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=SHIPPED, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    carried = {
        path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()
    }
    settings = tomllib.loads((SHIPPED / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    parts = {*wheel["only-include"], *wheel["force-include"]} - {"labkit"}
    wanted = {
        name
        for name in tracked
        if any(name == part or name.startswith(f"{part}/") for part in parts)
    }
    # Of files that git does not have yet there may be some in a clone that is worked on.
    assert carried >= wanted - {"containers/apps/local/.gitignore"}
    assert not [name for name in carried if "data/local" in name or "checkpoints" in name]


def test_an_installed_labkit_works_in_a_folder_of_its_own(installed: Path, tmp_path: Path) -> None:
    outside = labkit(installed, tmp_path, "ledger")
    assert outside.returncode == 2
    assert "there is no labkit folder here" in outside.stderr
    assert outside.stderr.count("remedy: labkit init DIR") == 1

    made = labkit(installed, tmp_path, "init", "lab")
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "lab"
    # One study is enough: its page, the ledger and the index.
    for notebook in folder.glob("notebooks/*/[1-9]*.ipynb"):
        if "rps" not in notebook.name and "ledger" not in notebook.name:
            notebook.unlink()
    for campaign in (folder / "data/reference").iterdir():
        if campaign.is_dir() and campaign.name != "rps":
            shutil.rmtree(campaign)
    report = labkit(installed, folder / "notebooks", "report")
    assert report.returncode == 0, report.stderr
    pages = {path.name for path in (folder / "reports").glob("*.html")}
    assert pages == {"65-rps.html", "90-ledger.html", "index.html"}
    assert "data/reference/rps" in (folder / "reports" / "65-rps.html").read_text()
    refused = labkit(installed, folder, "run", "65", "-p", "blocks", "two")
    assert refused.returncode == 2 and "cannot be 'two'" in refused.stderr
