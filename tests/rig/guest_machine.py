"""A machine on this one whose labkit makes guests beside the tests on the rig.

It has files, locks, namespaces and processes of its own, and no interface: the lab of this machine
is neither seen nor touched. When its first process is killed, everything in it ends.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from labkit.paths import SHIPPED
from labkit.rig import archives, images, qemu

_UNSHARED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# The image, of which there is one on this machine, is at its place in the other's files.
# The namespace has a copy of every mount: that of a lab would keep its loop device beyond its end.
_BEGIN = """
cut -d ' ' -f 2 /proc/mounts | grep '^/var/lib/labkit/' | tac |
    while read -r mount; do umount --lazy "$mount"; done
for folder in /run/labkit /run/netns; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done
[ -z "$2" ] || { mkdir -p "$1/guests/${2##*/}"; mount --bind "$2" "$1/guests/${2##*/}"; }
mkdir -p /var/lib/labkit
mount --rbind "$1" /var/lib/labkit
ip link set lo up 2>/dev/null || true
shift 2
exec "$@"
"""
_MAKE_IMAGE = (
    "from labkit.hosts import LocalHost\nfrom labkit.rig import qemu\n"
    "qemu.ensure_image(LocalHost(), print)\nqemu.remove(LocalHost())\n"
)
# The first process is no shell, so that ended ones stay listed.
_LEFT = """
grep -Ls '^State:.Z' /proc/[0-9]*/status | while read -r path; do head -n 1 $path; done 2>/dev/null
ls /run/netns /run/labkit /var/lib/labkit/guests
"""
#: What labkit runs in a container of the image for networks.
_PROGRAMS = ("sockperf", "sh", "env", "sleep", "cat", "true", "taskset", "chrt", "setsid", "ip")


def ensure_image() -> Path:
    """Return the folder of the guests' image, made where no lab of this machine can remove it."""
    folder = qemu.image_folder()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        place = folder.parent / f"test-{os.getpid()}"
        place.mkdir()
        try:
            argv = [*_UNSHARED, "sh", "-euc", _BEGIN, "make", str(place), ""]
            subprocess.run([*argv, sys.executable, "-c", _MAKE_IMAGE], check=True)
            (place / "guests" / folder.name).rename(folder)
        finally:
            shutil.rmtree(place)
    return folder


def project(folder: Path) -> Path:
    """Make a project whose only image of containers is that for networks."""
    for name in (
        "notebooks",
        "data/claims",
        "data/published",
        "data/reference",
        "containers/net",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(SHIPPED / name)
    return folder


def write_image(folder: Path, archive: Path) -> None:
    """Write what `docker save` would write of an image, with a few programs of this machine."""
    listed = subprocess.run(
        ["ldd", *filter(None, map(shutil.which, _PROGRAMS))], capture_output=True, text=True
    )
    words = {word for word in listed.stdout.split() if word.startswith("/") and ".so" in word}
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w", dereference=True) as tar:
        for path in sorted(words):
            tar.add(path)
        for name in _PROGRAMS:
            if path := shutil.which(name):
                tar.add(path, f"usr/bin/{name}")
        for name in ("bin", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "usr/bin"
            tar.addfile(link)
        for name in ("tmp", "proc", "sys", "dev", "etc", "run"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [
        {"Config": "config.json", "RepoTags": [images.tag(folder)], "Layers": ["layer.tar"]}
    ]
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w") as tar:
        for name, data in (
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
            ("layer.tar", layer.getvalue()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@dataclass
class Machine:
    """The machine: its first process, and its project."""

    pid: int
    home: Path

    def command(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command there, with a process group of its own."""
        return subprocess.Popen(
            ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "LABKIT_PROJECT": str(self.home)},
            cwd=self.home,
            start_new_session=True,
        )

    def labkit(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command of labkit there."""
        return self.command(sys.executable, "-m", "labkit.cli", *argv)

    def left(self) -> list[str]:
        """Return the processes, namespaces and files that guests have left there."""
        said, _ = self.command("sh", "-c", _LEFT).communicate(timeout=60)
        known = ("Name:\tsleep", "Name:\tsh", "Name:\tgrep", "lock", "image-", "archives", "/")
        return [line for line in said.splitlines() if line and not line.startswith(known)]


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Make the machine, with the image of guests and that for networks."""
    state, home = folder / "state", project(folder / "project")
    net = home / "containers" / "net"
    write_image(net, state / "guests" / "archives" / archives.file_name(net))
    image = ensure_image()
    argv = [*_UNSHARED, "--net", "sh", "-euc", _BEGIN, "begin", str(state), str(image)]
    first = subprocess.Popen([*argv, "sleep", "infinity"])
    try:
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children")
        while not (pids := children.read_text().split()):
            time.sleep(0.01)
        while Path(f"/proc/{pids[0]}/comm").read_text().strip() != "sleep":
            time.sleep(0.01)
        yield Machine(int(pids[0]), home)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
