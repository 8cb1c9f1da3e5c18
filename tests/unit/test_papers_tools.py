"""`make papers-tools`: what is fetched, checked, built once, linked, and removed again.

The functions of the script build a toy from a snapshot; nothing is installed or downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from labkit import doctor

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "papers-tools.sh"
COMMIT = "0123456789ab"

_TOY = r"""
source "$1"
folder=$2 tree=$3
shift 3
FOLDER=$folder/built LINKS=$folder/bin LOCAL=$folder/local SOURCES=$folder/sources
TOOLS=("toy toy nobody/toy 0123456789ab $tree")
PROGRAMS=(toy other)
IN_IMAGE=(toy)
mkdir -p "$LINKS" "$LOCAL"
provide() { :; }
id() { echo 0; }
build_toy() { echo built >>"$OUTSIDE"; test -f greeting && install -D greeting "$1/toy"; }
export SOURCES OUTSIDE=$folder/count
main "$@"
"""


def tree(folder: Path) -> str:
    """Return git's digest of a folder."""

    def git(*argv: str) -> str:
        command = ["git", "-C", str(folder), *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", "--all", "--force", ".")
    return git("write-tree")


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    source, out = tmp_path / "toy", tmp_path / "sources"
    source.mkdir()
    out.mkdir()
    (source / "greeting").write_text("#!/bin/sh\necho hello\n")
    with tarfile.open(out / f"toy-{COMMIT}.tar.gz", "w:gz") as archive:
        archive.add(source, "toy")
    return tree(source)


def run(folder: Path, digest: str, *argv: str, ok: bool = True) -> str:
    command = ["bash", "-c", _TOY, "bash", str(SCRIPT), str(folder), digest, *argv]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"TMPDIR": folder}
    )
    assert (ended.returncode == 0) == ok, ended.stderr
    assert not list(folder.glob("tmp.*")), "no working folder is left"
    return ended.stderr


def test_it_builds_once_links_and_is_undone(tmp_path: Path, snapshot: str) -> None:
    said = run(tmp_path, snapshot)
    assert re.search(r"toy built in \d+ s \(\S+\)", said)
    program, local = tmp_path / "bin" / "toy", tmp_path / "local" / "toy"
    assert subprocess.check_output([program], text=True) == "hello\n"
    assert local.resolve() == program.resolve() == tmp_path / "built" / "toy" / "toy"
    assert "toy stands" in run(tmp_path, snapshot)
    assert (tmp_path / "count").read_text() == "built\n"
    users = tmp_path / "bin" / "other"
    users.symlink_to("/bin/true")
    run(tmp_path, snapshot, "--clean")
    assert not program.is_symlink() and not local.is_symlink() and users.exists()
    assert not (tmp_path / "built").exists()


def test_other_sources_are_not_built(tmp_path: Path, snapshot: str) -> None:
    said = run(tmp_path, "0" * 40, ok=False)
    assert f"its tree is {snapshot}, not {'0' * 40}" in said and "not built: toy" in said
    assert not (tmp_path / "count").exists() and not (tmp_path / "bin" / "toy").exists()


def test_a_missing_snapshot_says_how_it_must_be_called(tmp_path: Path, snapshot: str) -> None:
    (tmp_path / "sources" / f"toy-{COMMIT}.tar.gz").unlink()
    said = run(tmp_path, snapshot, ok=False)
    assert f"has no toy-{COMMIT}.tar.*" in said and "SOURCES=DIR" in said


def test_a_users_own_program_stays(tmp_path: Path, snapshot: str) -> None:
    own = tmp_path / "bin" / "toy"
    own.parent.mkdir()
    own.write_text("mine")
    assert "is not ours and stays" in run(tmp_path, snapshot)
    assert own.read_text() == "mine"


def test_a_name_that_no_tool_has_is_an_error(tmp_path: Path, snapshot: str) -> None:
    assert "unknown: tyo" in run(tmp_path, snapshot, "tyo", ok=False)


def test_patches_have_their_reason_and_doctor_knows_every_program() -> None:
    for patch in (ROOT / "scripts" / "papers-tools").glob("*.patch"):
        reason, _, _ = patch.read_text().partition("diff --git")
        assert len(reason.split()) > 20, patch
    listed = re.search(r"^PROGRAMS=\((.*)\)$", SCRIPT.read_text(), re.MULTILINE)
    assert listed and set(listed[1].split()) == set(doctor.PAPERS_TOOLS)
