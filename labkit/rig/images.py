"""Images of ``containers/``: built, unpacked as root file systems, and sent to other engines."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.errors import CommandFailed, RigError
from labkit.hosts import Host, LocalHost, script
from labkit.hosts.target import Image
from labkit.paths import project
from labkit.rig import engine

BASE = "debian:bookworm-slim"
Say = Callable[[str], None]


def folders() -> list[Path]:
    """Return the directories of ``containers/`` that an image is built from, but for the lab's."""
    paths = sorted(project("containers").glob("*/Dockerfile"))
    return [path.parent for path in paths if path.parent.name != "lab"]


def tag(folder: Path) -> str:
    """Return the name of the image built from a directory; it changes with any file in it."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"labkit/{folder.name}:{digest.hexdigest()[:12]}"


def stored(folder: Path) -> Image | None:
    """Return the image of a directory on this machine, or None where it has not been built."""
    record = Path(_unpacked(str(engine.IMAGES), tag(folder)), "image.json")
    return Image(**json.loads(record.read_text())) if record.is_file() else None


def _unpacked(store: str, reference: str) -> str:
    """Return the directory of an unpacked image."""
    return f"{store}/{reference.replace('/', '-').replace(':', '-')}"


def ensure_images(local: LocalHost, say: Say) -> dict[str, Image]:
    """Return every image of ``containers/`` on this machine, building those that are missing."""
    if missing := [folder for folder in folders() if stored(folder) is None]:
        say("building images (the first time takes about a minute)")
        with engine.building_daemon(local) as socket:
            for folder in missing:
                ensure_image(local, socket, folder, str(engine.IMAGES), "/labkit")
    images = {folder.name: stored(folder) for folder in folders()}
    return {name: image for name, image in images.items() if image}


def ensure_image(host: Host, socket: str, folder: Path, store: str, parent: str) -> Image:
    """Return an image of an engine, built and unpacked where that is missing.

    Its root file system is unpacked below `store`, a directory of the host. `parent` is the control
    group of the build.
    """
    reference = tag(folder)
    digests = engine.digests(host, socket, [reference])
    if not digests:
        ensure_base(host, socket)
        build(host, socket, reference, folder, parent=parent)
        digests = engine.digests(host, socket, [reference], check=True)
    place = _unpacked(store, reference)
    image = Image(folder.name, reference, digests[reference], f"{place}/rootfs")
    record = json.dumps(image.__dict__)
    if host.run("cat", f"{place}/image.json", check=False).stdout != record:
        env = {"DOCKER_HOST": socket}
        host.run(*script(_UNPACK, place, reference, record), env=env, timeout=600)
    return image


# The directory gets its name last, so that an unfinished one is never used.
_UNPACK = """
rm -rf "$1" "$1.new" && mkdir -p "$1.new/rootfs"
id=$(docker create --label labkit=image "$2" true)
docker export "$id" | tar -x -C "$1.new/rootfs" && docker rm "$id" >/dev/null
printf %s "$3" >"$1.new/image.json"
sync -f "$1.new" && mv "$1.new" "$1"
"""


def build(host: Host, socket: str, reference: str, folder: Path, *, parent: str) -> None:
    """Build an image from a directory of this machine, whose files the engine gets as they are."""
    options = ["--no-cache", "--network", "host", "--cgroup-parent", parent, "--tag", reference]
    env = {"DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"}
    with tempfile.NamedTemporaryFile(suffix=".tar") as context:
        with tarfile.open(fileobj=context, mode="w") as archive:
            archive.add(folder, arcname=".", filter=_plain)
        context.flush()
        with sent(host, Path(context.name)) as remote:
            argv = script('archive=$1; shift; docker build "$@" - <"$archive"', remote, *options)
            host.run(*argv, env=env, timeout=1200)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out whose a file is and when it was changed, so that images have the same files."""
    info.mode = 0o755 if info.isdir() or info.mode & 0o111 else 0o644
    info.uid, info.gid, info.uname, info.gname, info.mtime = 0, 0, "", "", 0
    return info


# A folder that only the user of the connection can read, since `sudo` would make it root's.
_PRIVATE = """
folder=$(mktemp -d /var/tmp/labkit-XXXXXXXX)
chown "${SUDO_USER:-$(id -un)}" "$folder"
echo "$folder"
"""


@contextmanager
def sent(host: Host, path: Path) -> Iterator[str]:
    """Yield the path of a copy of a file on a host."""
    folder = host.run(*script(_PRIVATE)).stdout.strip()
    try:
        host.put(path, f"{folder}/{path.name}")
        yield f"{folder}/{path.name}"
    finally:
        host.run("rm", "-rf", "--", folder)


def forget_logs(host: Host, store: str) -> None:
    """Remove the logs that clients of a killed campaign left in unpacked images."""
    host.run(*script('rm -rf -- "$1"/*/rootfs/run/trial-*', store))


_BOOTSTRAP = """
archive=$(mktemp --suffix=.tar)
trap 'rm -f "$archive"' EXIT
# As in the registry's image: a crash loses what is built again, so no file waits for the disk.
mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io bookworm "$archive"
docker import "$archive" "$1"
"""


def ensure_base(host: Host, socket: str) -> None:
    """Make the base image where an engine lacks it, or pull it."""
    if engine.digests(host, socket, [BASE]):
        return
    reasons = []
    for argv in (script(_BOOTSTRAP, BASE), ("docker", "pull", BASE)):
        try:
            host.run(*argv, env={"DOCKER_HOST": socket}, timeout=600)
            return
        except CommandFailed as error:
            reasons.append(error.why or error.what)
    raise RigError(
        f"the base image {BASE} can neither be built nor pulled",
        where=f"host {host.name}",
        why=" / ".join(reasons)[-1500:],
        remedy="install mmdebstrap, or give the engine a registry it can reach",
    )
