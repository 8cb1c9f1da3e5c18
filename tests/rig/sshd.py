"""SSH servers for tests, and helpers that inspect processes."""

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


def make_key(path, kind="ed25519"):
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


def command(address, port, host_key, authorized):
    """Return the command of an SSH server in the foreground."""
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {
        "ListenAddress": address,
        "Port": port,
        "HostKey": host_key,
        "AuthorizedKeysFile": authorized,
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "UseDNS": "no",
        "SetEnv": "SHLVL=1",  # keeps bash from its start-up files
    }
    given = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    return ["/usr/sbin/sshd", "-D", "-f", "/dev/null", *given]


@contextmanager
def serving(argv):
    """Run an SSH server, and end it with its sessions; yield its process."""
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.pid
        finally:
            for child in children(process.pid):
                os.kill(child, signal.SIGTERM)
            process.terminate()


def children(pid):
    return [child.pid for child in psutil.Process(pid).children()]


def alive(pid):
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_for(condition, seconds=10.0):
    """Wait for a condition, a function."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
