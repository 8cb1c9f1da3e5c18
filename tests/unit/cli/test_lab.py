"""`labkit lab`: what it starts JupyterLab with, and that it stands at the first notebook."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from labkit.cli.lab import COPIES, START, command, copy_notebooks
from labkit.paths import project


def test_what_the_user_gives_stands_instead_of_what_labkit_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    given = ["--log-level=INFO", "--port=9000"]
    found = command(given, project(), f"notebooks/{START}")
    assert found[:3] == [sys.executable, "-m", "jupyterlab"] and found[-2:] == given
    assert "--log-level=WARN" not in found
    assert project(f"notebooks/{START}").is_file()
    assert ("--allow-root" in found) == (os.geteuid() == 0)
    assert ("--no-browser" in found) == (sys.platform != "darwin")
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert "--no-browser" not in command(given, project(), START)


def test_copies_of_notebooks_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "notebooks/studies/10-one.ipynb"
    source.parent.mkdir(parents=True)
    source.write_text("first")
    (tmp_path / "notebooks/parameters.md").write_text("a page")
    copy_notebooks(tmp_path)
    assert (tmp_path / COPIES / "parameters.md").is_file()
    copy = tmp_path / COPIES / "studies/10-one.ipynb"
    assert copy.read_text() == "first"
    copy.write_text("executed")
    assert len(copy_notebooks(tmp_path)) == 1 and copy.read_text() == "executed"
    source.write_text("second")
    os.utime(source, (time.time() + 60,) * 2)
    assert "10-one.ipynb has changed" in copy_notebooks(tmp_path)[-1]
    assert copy.read_text() == "executed"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start ``labkit lab`` without a display, as over SSH; it leaves nothing in the home folder."""
    folders = {
        f"JUPYTER_{name}_DIR": str(tmp_path / name) for name in ("RUNTIME", "CONFIG", "DATA")
    }
    env = {name: one for name, one in os.environ.items() if not name.endswith("DISPLAY")} | folders
    env |= {"JUPYTERLAB_WORKSPACES_DIR": str(tmp_path / "spaces"), "HOME": str(tmp_path)}
    home = tmp_path / "clone"
    (home / ".git").mkdir(parents=True)
    shutil.copytree(project("notebooks"), home / "notebooks")
    argv = [sys.executable, "-m", "labkit.cli", "--project", str(home), "lab"]
    with subprocess.Popen(
        argv, cwd=tmp_path, env=env, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


def asked(url: str) -> Any:
    """Ask a server that says where it is just before it listens there."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)
        except URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_it_prints_its_address_and_serves_the_project(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    said = ""
    assert server.stderr is not None
    while not (found := re.search(r"(http://127\.0\.0\.1:\d+)(/\S+)\?token=(\w+)", said)):
        line = server.stderr.readline()
        assert line, said
        said += line
    base, path, token = found.groups()
    copy = f"{COPIES}/{START}"
    assert path == f"/lab/tree/{copy}"
    assert " W " not in said and " I " not in said, "the address is not lost among other lines"
    about = f"{base}/api/contents/{copy}?content=0&token={token}"
    assert asked(about)["type"] == "notebook"
    server.send_signal(signal.SIGTERM)
    server.stderr.read()
    assert server.wait(timeout=60) in (0, -signal.SIGTERM)
    assert not list((tmp_path / "RUNTIME").glob("jpserver-*.json"))
