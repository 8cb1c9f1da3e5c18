"""`labkit lab`: what it starts JupyterLab with, and that it stands at the first notebook."""

from __future__ import annotations

import json
import os
import re
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
from labkit.cli.lab import START, command
from labkit.paths import ROOT

SCREEN = {"DISPLAY": ":0"}


def test_it_opens_the_first_notebook_in_the_project() -> None:
    found = command(port=None, browser=True, root=False, env=SCREEN)
    assert found[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={ROOT}" in found
    assert f"--LabApp.default_url=/lab/tree/{START}" in found and (ROOT / START).is_file()
    assert not {"--allow-root", "--no-browser"} & set(found)
    assert not [one for one in found if one.startswith("--port")]


def test_root_is_let_in_and_a_port_is_that_port() -> None:
    found = command(port=9000, browser=True, root=True, env=SCREEN)
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
    found = command(port=None, browser=browser, root=False, env=env)
    assert ("--no-browser" not in found) == opened


def test_what_the_user_gives_stands_instead_of_what_labkit_gives() -> None:
    given = ["--log-level=INFO", "--no-browser", "--ServerApp.ip=127.0.0.1"]
    found = command(given, port=None, browser=True, root=False, env={})
    assert found[-3:] == given
    assert "--log-level=WARN" not in found and found.count("--no-browser") == 1


def test_without_jupyterlab_it_says_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    with pytest.raises(SystemExit) as caught:
        cli.main(["lab"])
    said = capsys.readouterr().err
    assert caught.value.code == 1
    assert "JupyterLab is not installed" in said and "make setup" in said


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
    argv = [sys.executable, "-m", "labkit.cli", "lab"]
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
    assert path == f"/lab/tree/{START}"
    assert " W " not in said and " I " not in said, "the address is not lost among other lines"
    about = f"{base}/api/contents/{START}?content=0&token={token}"
    assert asked(about)["type"] == "notebook"
    server.send_signal(signal.SIGTERM)
    server.stderr.read()
    assert server.wait(timeout=60) in (0, -signal.SIGTERM)
    assert not list((tmp_path / "RUNTIME").glob("jpserver-*.json"))
