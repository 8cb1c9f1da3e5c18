"""SSH servers for tests, and helpers that inspect processes."""

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path


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
        "Subsystem": "sftp internal-sftp",
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
                os.kill(child, 15)
            process.terminate()


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends as it is read
        return False
    return state != "Z"


def wait_for(condition):
    """Wait up to ten seconds for a condition, a function."""
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about")
