"""An sshd on the loopback interface for tests, and helpers that inspect processes."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.hosts import SshHost

#: The marks of modules that start an sshd.
MARKS = [
    pytest.mark.rig,
    pytest.mark.apart,
    pytest.mark.skipif(os.geteuid() != 0, reason="starts sshd, which needs root"),
    pytest.mark.skipif(shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="no sshd"),
]


@dataclass(frozen=True)
class Server:
    """An sshd and what a client needs to reach it."""

    pid: int
    port: int
    key: Path
    known_hosts: Path

    def host(self, **changes: object) -> SshHost:
        """Return a host, not yet connected."""
        arguments: dict[str, object] = {"port": self.port, "user": getpass.getuser()}
        arguments |= {"key": self.key, "known_hosts": self.known_hosts} | changes
        return SshHost("loop", "127.0.0.1", **arguments)  # type: ignore[arg-type]


def make_key(path: Path) -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for_port(port: int) -> None:
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise AssertionError("sshd does not listen")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def running(directory: Path) -> Iterator[Server]:
    """Run an sshd that keeps its files in a directory."""
    host_key, user_key = directory / "host", directory / "user"
    shown = make_key(host_key)
    (directory / "authorized").write_text(make_key(user_key))
    port = free_port()
    known = directory / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {shown}")
    Path("/run/sshd").mkdir(exist_ok=True)
    options = [
        "ListenAddress=127.0.0.1",
        f"AuthorizedKeysFile={directory}/authorized",
        f"PidFile={directory}/pid",
        "StrictModes=no",
        "UseDNS=no",
        "Subsystem=sftp internal-sftp",
        "SetEnv=SHLVL=1",  # keeps bash from its start-up files
    ]
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    assert program
    line = [program, "-D", "-f", "/dev/null", "-h", str(host_key), "-p", str(port)]
    for option in options:
        line += ["-o", option]
    with subprocess.Popen(line, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_port(port)
            yield Server(process.pid, port, user_key, known)
        finally:
            for child in children(process.pid):
                os.kill(child, signal.SIGTERM)
            process.terminate()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def outlives(pid: int) -> bool:
    """Return whether a process still runs after ten seconds."""
    for _ in range(100):
        if not alive(pid):
            return False
        time.sleep(0.1)
    return True
