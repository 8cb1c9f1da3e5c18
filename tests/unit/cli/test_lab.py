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

from labkit import cli
from labkit.cli.lab import COPIES, START, command, copy_notebooks
from labkit.paths import project

SCREEN = {"DISPLAY": ":0"}


def started(*arguments: str, **options: Any) -> list[str]:
    given: dict[str, Any] = {"port": None, "browser": True, "root": False, "env": SCREEN}
    return command(arguments, home=project(), start=START, **given | options)


def test_it_opens_the_first_notebook_in_the_project() -> None:
    found = started()
    assert found[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={project()}" in found
    assert f"--LabApp.default_url=/lab/tree/{START}" in found and project(START).is_file()
    assert not {"--allow-root", "--no-browser"} & set(found)
    assert not [one for one in found if one.startswith("--port")]


def test_root_is_let_in_and_a_port_is_that_port() -> None:
    found = started(port=9000, root=True)
    assert "--allow-root" in found
    assert {"--port=9000", "--port-retries=0"} <= set(found)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac always has a display")
@pytest.mark.parametrize(
    ("browser", "env", "opened"),
    [(True, {}, False), (False, SCREEN, False), (True, {"WAYLAND_DISPLAY": "wayland-0"}, True)],
)
def test_a_browser_is_opened_where_there_is_a_display(
    browser: bool, env: dict[str, str], opened: bool
) -> None:
    found = started(browser=browser, env=env)
    assert ("--no-browser" not in found) == opened


def test_what_the_user_gives_stands_instead_of_what_labkit_gives() -> None:
    given = ["--log-level=INFO", "--no-browser", "--ServerApp.ip=127.0.0.1"]
    found = started(*given, env={})
    assert found[-3:] == given
    assert "--log-level=WARN" not in found and found.count("--no-browser") == 1


def test_copies_of_notebooks_are_kept_until_new_ones_are_asked_for(tmp_path: Path) -> None:
    source = tmp_path / "notebooks/studies/10-one.ipynb"
    source.parent.mkdir(parents=True)
    source.write_text("first")
    (tmp_path / "notebooks/parameters.md").write_text("what a notebook links to")
    copy_notebooks(tmp_path)
    assert (tmp_path / COPIES / "parameters.md").is_file()
    copy = tmp_path / COPIES / "studies/10-one.ipynb"
    assert copy.read_text() == "first"
    copy.write_text("executed")
    assert len(copy_notebooks(tmp_path)) == 1 and copy.read_text() == "executed"
    source.write_text("second")
    os.utime(source, (time.time() + 60,) * 2)
    assert "10-one.ipynb (--fresh" in copy_notebooks(tmp_path)[-1]
    assert copy.read_text() == "executed" and source.read_text() == "second"
    copy_notebooks(tmp_path, fresh=True)
    (aside,) = (tmp_path / "data/local").glob(f"{COPIES}-*/studies/10-one.ipynb")
    assert copy.read_text() == "second" and aside.read_text() == "executed"


def test_without_jupyterlab_it_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    with pytest.raises(SystemExit) as caught:
        cli.main(["lab"])
    said = capsys.readouterr().err
    assert caught.value.code == 1
    assert "JupyterLab is not installed" in said and "pip install jupyterlab" in said


def test_wrong_use_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--port", "0"], ["--nosuch"]):
        with pytest.raises(SystemExit) as caught:
            cli.main(["lab", *wrong])
        assert caught.value.code == 2
    assert "No such option" in capsys.readouterr().err


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
    copy = START.replace("notebooks", COPIES, 1)
    assert path == f"/lab/tree/{copy}"
    assert " W " not in said and " I " not in said, "the address is not lost among other lines"
    about = f"{base}/api/contents/{copy}?content=0&token={token}"
    assert asked(about)["type"] == "notebook"
    server.send_signal(signal.SIGTERM)
    server.stderr.read()
    assert server.wait(timeout=60) in (0, -signal.SIGTERM)
    assert not list((tmp_path / "RUNTIME").glob("jpserver-*.json"))
