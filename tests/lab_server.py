"""A real JupyterLab server for tests: with settings of its own, and on this machine only."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.rig import lock

#: All cells stay in the page, and nothing is asked of the world outside.
SETTINGS = {
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension:notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
}
OPTIONS = [
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    "--LabApp.expose_app_in_browser=True",
    "--no-browser",
    "--allow-root",
]
#: Seconds for what takes a few: a server, a kernel, a page.
PATIENCE = 120.0
#: Seconds that a campaign has to take down what it put up, once its kernel is interrupted.
TAKES_DOWN = 90.0
#: So many looks in a row have to find an interrupted kernel idle, and the rig not used.
STEADY = 10


@dataclass(frozen=True)
class Server:
    """A JupyterLab server that stands."""

    url: str
    token: str
    process: subprocess.Popen[bytes]

    def ask(self, path: str, method: str = "GET") -> Any:
        """Return what the server's API answers."""
        asked = urllib.request.Request(f"{self.url}api/{path}", method=method)
        asked.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def state(self, name: str) -> str:
        """Return what the kernel of a notebook does: ``busy``, ``idle``, or another word."""
        sessions = self.ask("sessions")
        return next(
            (one["kernel"]["execution_state"] for one in sessions if one["path"] == name), ""
        )

    def end_kernels(self) -> None:
        """End the kernels, each interrupted first: a campaign takes down what it put up.

        Answers on its control channel make a kernel that works look idle, for moments or for long;
        whether its campaign is over, the rig tells, which nobody uses then.
        """
        kernels = [f"kernels/{one['id']}" for one in self.ask("kernels")]
        for path in kernels:
            self.ask(f"{path}/interrupt", "POST")
        deadline, free = time.monotonic() + TAKES_DOWN, 0
        while kernels and free < STEADY and time.monotonic() < deadline:
            busy = [one for one in kernels if self.ask(one)["execution_state"] == "busy"]
            free = 0 if busy or self._measures() else free + 1
            time.sleep(0.2)
        for path in kernels:
            self.ask(path, "DELETE")

    def _measures(self) -> bool:
        """Tell whether one of its kernels holds the machine's rig."""
        try:
            stat = Path(f"/proc/{lock.current_holder()}/stat").read_text()
        except FileNotFoundError:  # nobody holds it, or who did has gone
            return False
        return int(stat.rpartition(")")[2].split()[1]) == self.process.pid


@contextmanager
def jupyterlab(folder: Path) -> Iterator[Server]:
    """Have a JupyterLab server for the duration of a ``with`` block.

    Parameters
    ----------
    folder : Path
        An empty folder: ``notebooks`` is what the server shows, the rest its own.
    """
    places = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "share"}
    places |= {"JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython"}
    own = {name: str(folder / "jupyter" / place) for name, place in places.items()}
    config = folder / "jupyter" / "config" / "labconfig"
    config.mkdir(parents=True)
    (config / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
    shown = folder / "notebooks"
    shown.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, log = secrets.token_hex(16), folder / "jupyter" / "log"
    argv = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={shown}"]
    argv += [f"--ServerApp.port={port}", *OPTIONS]
    with log.open("wb") as output:
        # A session of its own: Ctrl-C in a terminal is not to reach it, but through what ends it.
        process = subprocess.Popen(
            argv,
            env=os.environ | own | {"JUPYTER_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}/", token, process)
    try:
        _wait_until_it_answers(server, log)
        yield server
    finally:
        _end(server)


def _wait_until_it_answers(server: Server, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            server.ask("status")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab does not answer:\n{log.read_text()[-3000:]}")


def _end(server: Server) -> None:
    """End the server's kernels and the server, by process id."""
    # Where it does not answer, it is ended all the same, and a kernel goes when its server has.
    with suppress(OSError):
        server.end_kernels()
    server.process.terminate()
    try:
        server.process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
