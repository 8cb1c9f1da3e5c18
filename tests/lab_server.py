"""A JupyterLab server for tests, with separate settings, reachable on this machine only."""

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

#: All cells stay in the page, and no request leaves the machine.
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
#: Seconds to wait for a server, a kernel or a page.
PATIENCE = 120.0
#: Seconds in which a campaign cleans up after its kernel was interrupted.
TAKES_DOWN = 90.0
#: An interrupted kernel must be idle, and the rig unused, in so many checks in a row.
STEADY = 10


@dataclass(frozen=True)
class Server:
    """A running JupyterLab server."""

    url: str
    token: str
    process: subprocess.Popen[bytes]

    def ask(self, path: str, method: str = "GET") -> Any:
        """Return the answer of the server's API."""
        request = urllib.request.Request(f"{self.url}api/{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def state(self, name: str) -> str:
        """Return the state of a notebook's kernel, such as ``busy`` or ``idle``."""
        sessions = self.ask("sessions")
        return next(
            (entry["kernel"]["execution_state"] for entry in sessions if entry["path"] == name), ""
        )

    def end_kernels(self) -> None:
        """End the kernels, each interrupted first, so that a campaign can clean up.

        A busy kernel may report itself idle while it answers on its control channel, so the end of
        a campaign is recognised by the rig being unused.
        """
        kernels = [f"kernels/{kernel['id']}" for kernel in self.ask("kernels")]
        for path in kernels:
            self.ask(f"{path}/interrupt", "POST")
        deadline, free = time.monotonic() + TAKES_DOWN, 0
        while kernels and free < STEADY and time.monotonic() < deadline:
            busy = [path for path in kernels if self.ask(path)["execution_state"] == "busy"]
            free = 0 if busy or self._measures() else free + 1
            time.sleep(0.2)
        for path in kernels:
            self.ask(path, "DELETE")

    def _measures(self) -> bool:
        """Tell whether one of its kernels uses the machine's rig."""
        try:
            stat = Path(f"/proc/{lock.current_holder()}/stat").read_text()
        except FileNotFoundError:  # nobody uses it, or the process has ended
            return False
        return int(stat.rpartition(")")[2].split()[1]) == self.process.pid


@contextmanager
def jupyterlab(folder: Path) -> Iterator[Server]:
    """Run a JupyterLab server for the duration of a ``with`` block.

    Parameters
    ----------
    folder : Path
        An empty folder: the server shows ``notebooks`` in it, and keeps its files in ``jupyter``.
    """
    folders = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "share"}
    folders |= {"JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython"}
    settings = {name: str(folder / "jupyter" / path) for name, path in folders.items()}
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
        # In another session, so that Ctrl-C in a terminal does not reach it directly.
        process = subprocess.Popen(
            argv,
            env=os.environ | settings | {"JUPYTER_TOKEN": token},
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
    # A server that does not answer is terminated, too, and its kernels end with it.
    with suppress(OSError):
        server.end_kernels()
    server.process.terminate()
    try:
        server.process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()
