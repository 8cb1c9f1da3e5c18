"""Images of ``containers/``: their names, and the files that an engine builds them from."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from labkit.hosts import LocalHost
from labkit.rig import images


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program in place of docker's that keeps what it is given; return where."""
    program, saved = tmp_path / "bin" / "docker", tmp_path / "context"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncat >"{saved}"\necho "$@" >"{saved}.arguments"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return saved


def make_folder(folder: Path, time: int) -> Path:
    (folder / "sub").mkdir(parents=True)
    for name, mode in (("Dockerfile", 0o600), ("sub/run.sh", 0o700)):
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
        os.utime(folder / name, (time, time))
    return folder


def test_an_engine_gets_the_same_bytes_for_the_same_files(tmp_path: Path, context: Path) -> None:
    found = []
    for time in (1, 2):
        folder = make_folder(tmp_path / str(time) / "probe", time)
        images.build(LocalHost(), "unix:///e", images.tag(folder), folder, parent="/group")
        found.append((images.tag(folder), context.read_bytes()))
    assert found[0] == found[1]
    with tarfile.open(fileobj=io.BytesIO(found[0][1])) as opened:
        modes = {member.name: member.mode for member in opened if member.isfile()}
    assert modes == {"./Dockerfile": 0o644, "./sub/run.sh": 0o755}
    arguments = (tmp_path / "context.arguments").read_text()
    assert f"--cgroup-parent /group --tag {found[0][0]} -" in arguments


def test_a_name_changes_with_any_file(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "probe", 1)
    names = [images.tag(folder)]
    (folder / "sub" / "run.sh").write_text("other")
    names.append(images.tag(folder))
    (folder / "sub" / "run.sh").rename(folder / "run.sh")
    names.append(images.tag(folder))
    assert len({*names}) == 3 and all(name.startswith("labkit/probe:") for name in names)


def test_a_file_that_is_sent_is_removed_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with images.sent(LocalHost(), str(tmp_path / "file")) as remote:
        assert Path(remote).read_text() == "text"
    assert not Path(remote).exists()
