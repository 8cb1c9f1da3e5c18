"""A user without root, with an engine and a namespace that has only loopback.

They are made for a test module and removed afterwards.
"""

from __future__ import annotations

import os
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
from labkit.hosts import LocalHost, script, start_job, stop_labelled
from labkit.paths import SHIPPED as ROOT
from labkit.rig import images

LOCAL = LocalHost()
NAME = f"lkt{uuid4().hex[:6]}"
#: The images that these tests use; unpacking all would take longer than the tests.
IMAGES = [ROOT / "containers" / name for name in ("minimal", "net")]
AWAIT_ENGINE = "until docker info >/dev/null 2>&1; do sleep 0.1; done"
#: Binds each pair of paths up to "--" in a new mount namespace, and runs the rest there.
ENTER = (
    "unshare",
    "--mount",
    "sh",
    "-euc",
    'while [ "$1" != -- ]; do mount --bind "$1" "$2"; shift 2; done; shift; exec "$@"',
    "sh",
)


@dataclass(frozen=True)
class User:
    """A user without root, and how to run Python as that user."""

    name: str
    home: Path
    socket: str

    @property
    def containers(self) -> Path:
        """A copy of ``containers/`` with these images only."""
        return self.home / "containers"

    def python_of_root(self, code: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run code as root, in the namespace and with the user's engine."""
        script = self.home / "root.py"
        script.write_text(code)
        command = ["nsenter", f"--net=/run/netns/{NAME}", *ENTER, str(self.containers)]
        command += [str(ROOT / "containers"), "--", sys.executable, str(script), *argv]
        env = {**os.environ, "DOCKER_HOST": self.socket, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )

    def python(self, code: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run code as the user in the namespace, with this clone and this environment's packages.

        They may be in directories of root only, so they are bound below the user's home, in a mount
        namespace that ends with the command.
        """
        script = self.home / f"{uuid4().hex}.py"
        script.write_text(code)
        script.chmod(0o644)
        places = {"python": sys.base_prefix, "target": sysconfig.get_paths()["purelib"]}
        places["clone"] = str(ROOT)
        for name in places:
            (self.home / name).mkdir(exist_ok=True)
        binds = [word for name, path in places.items() for word in (path, str(self.home / name))]
        binds += [str(self.containers), f"{self.home}/clone/containers"]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        variables = {
            "HOME": str(self.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LD_LIBRARY_PATH": f"{self.home}/python/lib",
            "PYTHONPATH": f"{self.home}/clone:{self.home}/target",
            "PYTHONDONTWRITEBYTECODE": "1",
            "DOCKER_HOST": self.socket,
            "MPLCONFIGDIR": str(self.home),
        } | env
        command = ["nsenter", f"--net=/run/netns/{NAME}", *ENTER, *binds, "--", "setpriv"]
        command += [f"--reuid={self.name}", f"--regid={self.name}"]
        command += ["--init-groups", "--no-new-privs", "env", "-i"]
        command += [f"{name}={value}" for name, value in variables.items()]
        command += [f"{self.home}/python/bin/{version}", str(script), *argv]
        return subprocess.run(
            command, cwd=self.home, capture_output=True, text=True, timeout=900, check=False
        )


def _give_images(socket: str) -> None:
    """Import this machine's images into an engine, which then needs no registry."""
    pack, env = 'tar -C "$1" -c . | docker import - "$2"', {"DOCKER_HOST": socket}
    for folder in IMAGES:
        image = images.stored(folder)
        assert image is not None
        LOCAL.run("sh", "-euc", pack, "sh", image.rootfs, image.reference, env=env, timeout=300)


def groups() -> set[Path]:
    """Return the parents of control groups that engines and rigs make."""
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
    """Yield a directory that everybody may read; what an engine leaves in it is removed."""
    folder = Path(tempfile.mkdtemp(prefix="labkit-one-host-"))
    folder.chmod(0o755)
    before = groups()
    try:
        yield folder
    finally:
        _remove(folder, before)


def _remove(folder: Path, before: set[Path]) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in sorted((path for path in mounts if path.startswith(f"{folder}/")), reverse=True):
        LOCAL.run("umount", point)  # an engine leaves some of its networks
    shutil.rmtree(folder)
    for group in groups() - before:
        group.rmdir()


@contextmanager
def running_user(place: Path) -> Iterator[User]:
    """Yield a user in the group of an engine's socket, in a namespace with only loopback."""
    home, socket = place / "home", f"unix://{place}/docker.sock"
    keys = {path: path.read_text() for path in Path("/proc/sys/kernel/keys").glob("root_max*")}
    if None in map(images.stored, IMAGES):
        with Rig.open("virtual", patience=600):
            pass  # builds the images; later the user's campaigns take the lock
    subprocess.run(["useradd", "--create-home", "--home-dir", home, NAME], check=True)
    home.chmod(0o755)
    user = User(NAME, home, socket)
    for folder in IMAGES:
        shutil.copytree(folder, user.containers / folder.name)
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
            LOCAL.run(*script(AWAIT_ENGINE), env={"DOCKER_HOST": socket})
            _give_images(socket)
            yield user
        finally:
            _empty(socket)
            job.stop(grace=60.0)
    finally:
        stop_labelled(LOCAL, NAME)
        LOCAL.run("ip", "netns", "del", NAME)
        subprocess.run(["userdel", "--remove", NAME], check=True, capture_output=True)
        for path, value in keys.items():
            path.write_text(value)
