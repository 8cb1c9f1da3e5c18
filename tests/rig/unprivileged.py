"""A user without root, an engine of its own and a namespace with nothing but loopback.

All of it is made for a test module, and nothing of it is left afterwards.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from labkit import Rig
from labkit.hosts import LocalHost, start_job, stop_labelled
from labkit.paths import ROOT
from labkit.rig import engine, virtual

LOCAL = LocalHost()
NAME = f"lkt{uuid4().hex[:6]}"


@dataclass(frozen=True)
class User:
    """A user without root, and how to run Python as that user."""

    name: str
    home: Path
    socket: str

    def python(self, code: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run code as the user in the namespace, with this clone and this environment's packages.

        The interpreter may lie where only root may look, so it is bound to where the user may, in
        a mount namespace that ends with the command.
        """
        script = self.home / f"{uuid4().hex}.py"
        script.write_text(code)
        script.chmod(0o644)
        places = {"python": sys.base_prefix, "site": sysconfig.get_paths()["purelib"]}
        places["clone"] = str(ROOT)
        for name in places:
            (self.home / name).mkdir(exist_ok=True)
        binds = [word for name, path in places.items() for word in (path, str(self.home / name))]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        variables = {
            "HOME": str(self.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LD_LIBRARY_PATH": f"{self.home}/python/lib",
            "PYTHONPATH": f"{self.home}/clone:{self.home}/site",
            "PYTHONDONTWRITEBYTECODE": "1",
            "DOCKER_HOST": self.socket,
            "MPLCONFIGDIR": str(self.home),
        } | env
        enter = 'while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift; exec "$@"'
        command = ["nsenter", f"--net=/run/netns/{NAME}", "unshare", "--mount", "sh", "-euc", enter]
        command += ["sh", *binds, "--", "setpriv", f"--reuid={self.name}", f"--regid={self.name}"]
        command += ["--init-groups", "--no-new-privs", "env", "-i"]
        command += [f"{name}={value}" for name, value in variables.items()]
        command += [f"{self.home}/python/bin/{version}", str(script), *argv]
        return subprocess.run(
            command, cwd=self.home, capture_output=True, text=True, timeout=900, check=False
        )


def _images(socket: str) -> None:
    """Give an engine the images that stand on this machine, so that it needs no way out."""
    env = {"DOCKER_HOST": socket}
    for dockerfile in sorted(virtual.CONTAINERS.glob("*/Dockerfile")):
        image = engine.stored(dockerfile.parent)
        assert image is not None
        pack = 'tar -C "$1" -c . | docker import - "$2"'
        LOCAL.run("sh", "-euc", pack, "sh", image.rootfs, image.reference, env=env, timeout=300)


def groups() -> set[Path]:
    """Return the parents of control groups that an engine or a rig made."""
    base = Path("/sys/fs/cgroup")
    return {path for name in ("docker", "labkit-host") for path in base.glob(f"*/{name}")} | {
        path for name in ("docker", "labkit-host") if (path := base / name).is_dir()
    }


def _empty(socket: str) -> None:
    """Remove every container, so that the engine ends at once and leaves no mount."""
    env = {"DOCKER_HOST": socket}
    left = LOCAL.run("docker", "ps", "--all", "--quiet", env=env, check=False).stdout.split()
    LOCAL.run("docker", "rm", "--force", "none", *left, env=env, check=False)


@contextmanager
def working_folder() -> Iterator[Path]:
    """A folder that everybody may look into; with it goes whatever an engine left below it."""
    folder = Path(tempfile.mkdtemp(prefix="labkit-one-host-"))
    folder.chmod(0o755)
    before = groups()
    try:
        yield folder
    finally:
        _remove(folder, before)


def _remove(folder: Path, before: set[Path]) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((one for one in mounts if one.startswith(f"{folder}/")), reverse=True):
        LOCAL.run("umount", point)  # an engine leaves some, of networks of its own
    shutil.rmtree(folder)
    for group in groups() - before:
        group.rmdir()


@contextmanager
def standing(place: Path) -> Iterator[User]:
    """A user in the group of an engine's socket, in a namespace with nothing but loopback."""
    home, socket = place / "home", f"unix://{place}/docker.sock"
    keys = {path: path.read_text() for path in Path("/proc/sys/kernel/keys").glob("root_max*")}
    if any(engine.stored(path.parent) is None for path in virtual.CONTAINERS.glob("*/Dockerfile")):
        with Rig.open("virtual", patience=600):
            pass  # it has built the images; from here on the user's own campaigns take the lock
    subprocess.run(["useradd", "--create-home", "--home-dir", home, NAME], check=True)
    home.chmod(0o755)
    LOCAL.run("ip", "netns", "add", NAME)
    try:
        LOCAL.run("ip", "-n", NAME, "link", "set", "lo", "up")
        options = ["--data-root", f"{place}/data", "--exec-root", f"{place}/exec"]
        options += ["--pidfile", f"{place}/pid", "--host", socket, "--group", NAME]
        options += ["--exec-opt", "native.cgroupdriver=cgroupfs", "--bip", "198.19.77.1/24"]
        options += ["--default-address-pool", "base=198.19.128.0/17,size=24"]
        argv = ["nsenter", f"--net=/run/netns/{NAME}", "dockerd", *options]
        job = start_job(LOCAL, argv, directory=f"{place}/dockerd", label=NAME)
        try:
            engine.await_daemon(LOCAL, socket, place / "dockerd" / "stderr")
            _images(socket)
            yield User(NAME, home, socket)
        finally:
            _empty(socket)
            job.stop(grace=60.0)
    finally:
        stop_labelled(LOCAL, NAME)
        LOCAL.run("ip", "netns", "del", NAME)
        subprocess.run(["userdel", "--remove", NAME], check=True, capture_output=True)
        for path, value in keys.items():
            path.write_text(value)
