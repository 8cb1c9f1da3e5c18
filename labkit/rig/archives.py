"""Images that the engine of this machine made, sent to engines that lack them as archives."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labkit.errors import RigError
from labkit.hosts import Host, LocalHost, SshHost, script
from labkit.rig import engine, images, kernel_probe, lock
from labkit.rig.images import Say
from labkit.status import duration_text


def lacking(host: Host, socket: str) -> list[Path]:
    """Return the folders of the images that an engine lacks."""
    return [
        folder
        for folder in images.folders()
        if not engine.digests(host, socket, [images.tag(folder)])
    ]


def file_name(folder: Path) -> str:
    """Return the name of the archive of an image."""
    return f"{images.tag(folder).replace('/', '-').replace(':', '-')}.tar"


def no_engine() -> str:
    """Return why this machine and user cannot make images, or ""."""
    if not lock.is_root():
        return "this user is not root"
    return "" if kernel_probe.find_tool("dockerd") else "no dockerd is on this machine"


def bring_images(
    engines: Mapping[str, tuple[SshHost, str]], say: Say, *, store: Path | None = None
) -> None:
    """Bring images of ``containers/`` to the engines that lack them.

    Parameters
    ----------
    engines : mapping of str to tuple
        The host and the socket of each engine, by role.
    say : callable
        Receives a line before each step.
    store : path, optional
        A folder where archives are kept for the next time, and those of other images are not.

    Raises
    ------
    RigError
        An image is missing, and this machine and user cannot make it.
    """
    wanted = {role: lacking(*engines[role]) for role in engines}
    folders = [f for f in images.folders() if any(f in of for of in wanted.values())]
    with ExitStack() as stack:
        socket = ""
        place = store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-")))
        place.mkdir(parents=True, exist_ok=True)
        for old in {*place.iterdir()} - {place / file_name(f) for f in images.folders()}:
            old.unlink()
        for folder in folders:
            archive = place / file_name(folder)
            if not archive.exists():
                socket = socket or stack.enter_context(_engine(say))
                partial = archive.with_suffix(".part")
                save = ("docker", "save", "--output", str(partial), images.tag(folder))
                LocalHost().run(*save, env={"DOCKER_HOST": socket}, timeout=600)
                partial.rename(archive)
            for role in [role for role in engines if folder in wanted[role]]:
                say(f"image {folder.name} ({archive.stat().st_size / 1e6:.0f} MB) goes to {role}")
                began = time.monotonic()
                _send(*engines[role], archive, say)
                say(f"image {folder.name}: {duration_text(time.monotonic() - began)}")
            if store is None:
                archive.unlink()


@contextmanager
def _engine(say: Say) -> Iterator[str]:
    """Yield the socket of an engine of this machine that has every image."""
    if why := no_engine():
        raise RigError(
            "this machine cannot make the images of containers",
            why=why,
            remedy="as root: apt-get install docker.io",
        )
    local = LocalHost()
    images.ensure_images(local, say)
    with engine.building_daemon(local) as socket:
        yield socket


# A folder that only the user of the connection can read, since `sudo` would make it root's.
_PRIVATE = """
folder=$(mktemp -d /var/tmp/labkit-XXXXXXXX)
chown "${SUDO_USER:-$(id -un)}" "$folder"
echo "$folder"
"""
#: Seconds between two lines of progress.
_PROGRESS_SECONDS = 10.0


def _send(host: SshHost, socket: str, archive: Path, say: Say) -> None:
    """Load an archive of images into an engine of a host."""
    began = said = time.monotonic()

    def progress(done: int, size: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said > _PROGRESS_SECONDS and done:
            said = now
            left = duration_text((now - began) / done * (size - done))
            say(f"  {done / 1e6:.0f} of {size / 1e6:.0f} MB, {left} left")

    folder = host.run(*script(_PRIVATE)).stdout.strip()
    try:
        host.put(archive, f"{folder}/{archive.name}", progress=progress)
        load = ("docker", "load", "--quiet", "--input", f"{folder}/{archive.name}")
        host.run(*load, env={"DOCKER_HOST": socket}, timeout=1800)
    finally:
        host.run("rm", "-rf", "--", folder)
