"""SSH servers for tests."""

import subprocess
from pathlib import Path


def make_key(path, kind="ed25519"):
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text()


def command(host_key, authorized, *options):
    """Return the command of an SSH server, with its options."""
    Path("/run/sshd").mkdir(exist_ok=True)
    given = {
        "HostKey": host_key,
        "AuthorizedKeysFile": authorized,
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "UseDNS": "no",
        "SetEnv": "SHLVL=1",  # keeps bash from its start-up files
    }
    return ["/usr/sbin/sshd", "-f/dev/null", *options, *(f"-o{n}={of}" for n, of in given.items())]
