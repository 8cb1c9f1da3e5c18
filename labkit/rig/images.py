"""Images on engines: built from ``containers/``, and layered images loaded into every engine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.errors import CommandFailed, RigError, UsageError, suggestion
from labkit.hosts import Host, LocalHost, script
from labkit.hosts.target import Image, Target
from labkit.paths import project
from labkit.rig import engine
from labkit.rig.layers import LayeredImage, write_images

BASE = "debian:bookworm-slim"
Say = Callable[[str], None]


def folders() -> list[Path]:
    """Return the directories of ``containers/`` that an image is built from."""
    return [path.parent for path in sorted(project("containers").glob("*/Dockerfile"))]


def tag(folder: Path) -> str:
    """Return the name of the image built from a directory; it changes with any file in it."""
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"labkit/{folder.name}:{digest.hexdigest()[:12]}"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def ensure_images(local: LocalHost, say: Say) -> dict[str, Image]:
    """Return every image of ``containers/`` on this machine, building those that are missing."""
    if missing := [folder for folder in folders() if stored(folder) is None]:
        say("building images (the first time takes about a minute)")
        options = {"store": str(engine.IMAGES), "parent": "/labkit"}
        with engine.building_daemon(local) as socket:
            ensure_base(local, socket)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda one: ensure_image(local, socket, one, **options), missing))
    else:
        say("the images exist")
    images = {folder.name: stored(folder) for folder in folders()}
    return {name: image for name, image in images.items() if image}


def stored(folder: Path) -> Image | None:
    """Return the image of a directory as it is now, or None where it has not been built."""
    record = Path(_store(str(engine.IMAGES), tag(folder)), "image.json")
    return Image(**json.loads(record.read_text())) if record.is_file() else None


def _store(store: str, reference: str) -> str:
    """Return the directory of an unpacked image."""
    return f"{store}/{reference.replace('/', '-').replace(':', '-')}"


def ensure_image(
    host: Host, socket: str, folder: Path, *, store: str = "", parent: str = ""
) -> Image:
    """Return an image of an engine, building it there where it is missing.

    With a `store`, a directory on the host, the image's root file system is unpacked there too.
    `parent` is the control group that the build runs in.
    """
    reference, env = tag(folder), {"DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"}
    digests = engine.digests(host, socket, [reference])
    if not digests:
        ensure_base(host, socket)
        options = ["--network", "host", "--tag", reference]
        options += ["--cgroup-parent", parent] if parent else []
        host.run("docker", "build", *options, "-", input=_context(folder), env=env, timeout=1200)
        digests = engine.digests(host, socket, [reference], check=True)
    image = Image(folder.name, reference, digests[reference], "")
    return _unpacked(host, env, image, store) if store else image


def _context(folder: Path) -> str:
    """Return a directory as a tar archive, the same for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in _files(folder):
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            data = path.read_bytes()
            info.size, info.mode = len(data), 0o755 if path.stat().st_mode & 0o111 else 0o644
            archive.addfile(info, io.BytesIO(data))
    # The input of a host's command is text, which preserves any byte in this encoding.
    return buffer.getvalue().decode("utf-8", "surrogateescape")


_UNPACK = """
rm -rf "$1"
mkdir -p "$1/rootfs"
id=$(docker create --label labkit=image "$2" true)
trap 'docker rm "$id" >/dev/null' EXIT
docker export "$id" | tar -x -C "$1/rootfs"
"""
_RECORD = 'cat >"$1.tmp" && sync "$1.tmp" && mv "$1.tmp" "$1"'


def _unpacked(host: Host, env: dict[str, str], image: Image, store: str) -> Image:
    """Unpack an image's root file system on its host, unless that was done before."""
    folder = _store(store, image.reference)
    unpacked = replace(image, rootfs=f"{folder}/rootfs")
    record = json.dumps(unpacked.__dict__)
    if host.run("cat", f"{folder}/image.json", check=False).stdout != record:
        host.run(*script(_UNPACK, folder, image.reference), env=env, timeout=600)
        host.run(*script(_RECORD, f"{folder}/image.json"), input=record)
    return unpacked


_FORGET = 'rm -rf -- "$1"/*/rootfs/run/trial-*'


def forget_logs(host: Host, store: str) -> None:
    """Remove the logs that clients of a killed campaign left in unpacked images."""
    host.run(*script(_FORGET, store))


_BOOTSTRAP = """
archive=$(mktemp --suffix=.tar)
trap 'rm -f "$archive"' EXIT
# As in the registry's image: a crash loses what is built again, so no file waits for the disk.
mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io bookworm "$archive"
docker import "$archive" "$1"
"""


def ensure_base(host: Host, socket: str) -> None:
    """Make or pull the base image where an engine lacks it."""
    if engine.digests(host, socket, [BASE]):
        return
    env = {"DOCKER_HOST": socket}
    attempts = [script(_BOOTSTRAP, BASE), ("docker", "pull", BASE)]
    # Debian has the keys to bootstrap without a registry; elsewhere they may be missing.
    if "ID=debian" not in host.run("cat", "/etc/os-release").stdout.splitlines():
        attempts.reverse()
    reasons = []
    for argv in attempts:
        try:
            host.run(*argv, env=env, timeout=600)
            return
        except CommandFailed as error:
            reasons.append(error.why or error.what)
    raise RigError(
        f"the base image {BASE} can neither be built nor pulled",
        where=f"host {host.name}",
        why=" / ".join(reasons)[-1500:],
        remedy="install mmdebstrap, or give the engine a registry it can reach",
    )


@dataclass(frozen=True)
class _Need:
    """The images that an engine needs.

    Parameters
    ----------
    bases : tuple of str
        References of images of ``containers/``.
    layered : tuple
        Layered images, each with its reference and its base's.
    """

    bases: tuple[str, ...]
    layered: tuple[tuple[LayeredImage, str, str], ...]

    @property
    def references(self) -> list[str]:
        """Every reference, bases first."""
        return [*self.bases, *(reference for _, reference, _ in self.layered)]


def bring_images(
    host: Host,
    target: Target,
    needs: Mapping[str, Sequence[LayeredImage | str]],
    say: Say = lambda text: None,
) -> dict[str, Image]:
    """Load images into engines that lack them; return the layered ones by name.

    `needs` holds the images of each engine by its socket; a text names one of ``containers/``.
    """
    needed = {socket: _need(target, images) for socket, images in needs.items()}
    lacking: dict[_Need, list[str]] = {}
    for socket, need in needed.items():
        if not engine.digests(host, socket, need.references):
            lacking.setdefault(need, []).append(socket)
    if lacking:
        count = sum(map(len, lacking.values()))
        say(f"layered images go to {count} engine(s); later runs find them there")
        _load(host, target, lacking)
    digests: dict[str, str] = {}
    for socket, need in needed.items():
        loaded = engine.digests(host, socket, need.references)
        if not loaded or any(
            digests.setdefault(name, loaded[name]) != loaded[name] for name in loaded
        ):
            raise RigError(
                "engines do not have the same images",
                where=socket,
                why=str(loaded),
                remedy=f"remove {', '.join(need.references)} there, and open the rig again",
            )
    return {
        image.name: Image(image.name, reference, digests[reference], "")
        for need in needed.values()
        for image, reference, _ in need.layered
    }


def _need(target: Target, images: Sequence[LayeredImage | str]) -> _Need:
    names = sorted({image if isinstance(image, str) else image.base for image in images})
    if absent := [name for name in names if name not in target.images]:
        raise UsageError(
            f"the rig has no image {', '.join(absent)}", remedy=suggestion(absent[0], target.images)
        )
    bases = {name: target.images[name] for name in names}
    layered = {
        image.name: (image, image.reference(base.digest), base.reference)
        for image in images
        if not isinstance(image, str) and (base := bases[image.base])
    }
    return _Need(tuple(base.reference for base in bases.values()), tuple(layered.values()))


def _load(host: Host, target: Target, lacking: Mapping[_Need, Sequence[str]]) -> None:
    """Load what engines lack; engines with the same needs share an archive."""
    folder = f"{target.disk}/archives"
    saved = f"{folder}/bases.tar"
    bases = sorted({reference for need in lacking for reference in need.bases})
    try:
        host.run("mkdir", "-p", folder)
        argv = ("docker", "save", "--output", saved, *bases)
        host.run(*argv, env={"DOCKER_HOST": str(target.engine)}, timeout=600)
        # Files are copied as the user of the connection, who may not be the one that commands have.
        host.run(*script('chown -R "${SUDO_USER:-$(id -un)}" "$1"', folder))
        with ThreadPoolExecutor(2) as pool:
            loads = []
            for number, (need, sockets) in enumerate(lacking.items()):
                archive = f"{folder}/{number}.tar"
                _write(host, need, saved, archive)
                load = ("docker", "load", "--quiet", "--input", archive)
                for socket in sockets:
                    env = {"DOCKER_HOST": socket}
                    loads.append(pool.submit(host.run, *load, env=env, timeout=7200))
            for job in loads:
                job.result()
    finally:
        host.run("rm", "-rf", "--", folder)


def _write(host: Host, need: _Need, saved: str, archive: str) -> None:
    """Write the archive of what an engine needs on the host."""
    if isinstance(host, LocalHost):
        write_images(Path(saved), need.bases, need.layered, Path(archive))
        return
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "bases.tar", Path(folder) / "images.tar"
        host.get(saved, source)
        write_images(source, need.bases, need.layered, out)
        host.put(out, archive)
