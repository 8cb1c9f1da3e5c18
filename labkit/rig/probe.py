"""Questions to a host before labkit uses it: ``python3 -IS - REQUEST`` there, answered in JSON.

It needs Python 3.9 and its standard library. Only the scratch directory is changed: it is made.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def run(*argv: str) -> tuple[str, str]:
    """Return a command's output, and why it failed; both empty where it is not there or hangs."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return done.stdout, done.stderr.strip()[-200:] if done.returncode else ""


def probe(
    scratch: str, programs: list[str], addresses: list[str], engine: str, network: str
) -> dict[str, Any]:
    """Return the answers.

    Parameters
    ----------
    scratch : str
        The directory to make.
    programs : list of str
        Programs, and files by their path, that may be absent.
    addresses : list of str
        The addresses to which routes are looked up.
    engine, network : str
        A Docker Engine's socket, and the name of a network of it.
    """
    os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"
    place = Path(scratch)
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
    writable = os.access(place, os.W_OK)
    while not place.is_dir():
        place = place.parent
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    return {
        "clock_ns": time.time_ns(),
        "python": platform.python_version(),
        "user": os.geteuid(),
        "processes": str(Path("/proc/self/ns/pid").readlink()),
        "scratch": writable,
        "free_gib": shutil.disk_usage(place).free / (1 << 30),
        "absent": [name for name in programs if not shutil.which(name) and not Path(name).exists()],
        "links": json.loads(run("ip", "-j", "addr", "show")[0] or "[]"),
        "routes": {
            address: json.loads(run("ip", "-j", "route", "get", address)[0] or "[]")
            for address in addresses
        },
        "rules": any(
            run(*argv)[0] for argv in (["nft", "list", "ruleset"], ["iptables-legacy-save"])
        ),
        "real_time": run("chrt", "--fifo", "1", "true")[1],
        "filters": actions.read_text().split() if actions.exists() else [],
        "filtered": "\nSeccomp:\t2\n" in Path("/proc/self/status").read_text(),
        "network": json.loads(
            run("docker", "--host", engine, "network", "inspect", network)[0] or "[]"
        ),
    }


if __name__ == "__main__":
    json.dump(probe(**json.loads(sys.argv[1])), sys.stdout)
