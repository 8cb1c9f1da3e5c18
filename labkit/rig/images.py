"""Images on engines: built from ``containers/``, and layered ones brought to every engine."""

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

from labkit.errors import CommandFailed, RigError, UsageError
from labkit.hosts import Host, LocalHost, script
from labkit.hosts.target import Image, Target
from labkit.rig import engine
from labkit.rig.layers import LayeredImage, write_images

BASE = "debian:bookworm-slim"


def tag(folder: Path) -> str:
    """Return the name of the image made from a folder: it changes with any file in it."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"labkit/{folder.name}:{digest.hexdigest()[:12]}"


def ensure_images(local: LocalHost, containers: Path) -> dict[str, Image]:
    """Return every image below ``containers/``, building those that do not stand yet."""
    folders = [path.parent for path in sorted(containers.glob("*/Dockerfile"))]
    missing = [folder for folder in folders if stored(folder) is None]
    if missing:
        with engine.building_daemon(local) as socket:
            for folder in missing:
                ensure_image(local, socket, folder, store=str(engine.IMAGES), parent="/labkit")
    found = {folder.name: stored(folder) for folder in folders}
    return {name: image for name, image in found.items() if image}


def stored(folder: Path) -> Image | None:
    """Return the image made from a folder as it is now, or None where it is still to be built."""
    record = engine.IMAGES / tag(folder).replace("/", "-").replace(":", "-") / "image.json"
    return Image(**json.loads(record.read_text())) if record.is_file() else None


def ensure_image(
    host: Host, socket: str, folder: Path, *, store: str = "", parent: str = ""
) -> Image:
    """Return an image that an engine has, building it there where it is still to be built."""
    reference, env = tag(folder), {"DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"}
    inspect = ("docker", "image", "inspect", "-f", "{{.Id}}", reference)
    found = host.run(*inspect, env=env, check=False)
    if found.status != 0:
        ensure_base(host, socket)
        options = ["--network", "host", "--tag", reference]
        options += ["--cgroup-parent", parent] if parent else []
        host.run("docker", "build", *options, "-", input=_context(folder), env=env, timeout=1200)
        found = host.run(*inspect, env=env)
    image = Image(folder.name, reference, found.stdout.strip(), "")
    return _unpacked(host, env, image, store) if store else image


def _context(folder: Path) -> str:
    """Return a folder as an archive that only a change of its content changes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            data = path.read_bytes()
            info.size, info.mode = len(data), 0o755 if path.stat().st_mode & 0o111 else 0o644
            archive.addfile(info, io.BytesIO(data))
    # A host's input is text, in which any byte is preserved like this.
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
    place = f"{store}/{image.reference.replace('/', '-').replace(':', '-')}"
    whole = replace(image, rootfs=f"{place}/rootfs")
    record = json.dumps(whole.__dict__)
    if host.run("cat", f"{place}/image.json", check=False).stdout == record:
        return whole
    host.run(*script(_UNPACK, place, image.reference), env=env, timeout=600)
    host.run(*script(_RECORD, f"{place}/image.json"), input=record)
    return whole


def ensure_base(host: Host, socket: str) -> None:
    """Bring the base image: made from the machine's own Debian mirror, or else pulled."""
    env = {"DOCKER_HOST": socket}
    if host.run("docker", "image", "inspect", BASE, env=env, check=False).status == 0:
        return
    # On Debian no registry is needed, so none is asked; elsewhere the keys for it may be missing.
    debian = "ID=debian" in host.run("cat", "/etc/os-release").stdout.splitlines()
    ways = [_bootstrap, _pull] if debian else [_pull, _bootstrap]
    reasons = []
    for way in ways:
        try:
            way(host, env)
            return
        except CommandFailed as error:
            reasons.append(error.why or error.what)
    raise RigError(
        f"the base image {BASE} can neither be built nor pulled",
        where=f"host {host.name}",
        why=" / ".join(reasons)[-1500:],
        remedy="install mmdebstrap, or give the engine a registry it can reach",
    )


_BOOTSTRAP = """
archive=$(mktemp --suffix=.tar)
trap 'rm -f "$archive"' EXIT
mmdebstrap --quiet --variant=minbase bookworm "$archive"
docker import "$archive" "$1"
"""


def _bootstrap(host: Host, env: dict[str, str]) -> None:
    host.run(*script(_BOOTSTRAP, BASE), env=env, timeout=600)


def _pull(host: Host, env: dict[str, str]) -> None:
    host.run("docker", "pull", BASE, env=env, timeout=300)


Say = Callable[[str], None]
#: An image, its own reference, and its base's.
Referred = tuple[LayeredImage, str, str]


@dataclass(frozen=True)
class _Need:
    """What an engine is to have.

    Parameters
    ----------
    bases : tuple of str
        References of images of ``containers/``.
    layered : tuple
        Layered images, each with its own reference and its base's.
    """

    bases: tuple[str, ...]
    layered: tuple[Referred, ...]

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
    """See that engines have images, and return the layered ones by name."""
    asked = {socket: _need(target, images) for socket, images in needs.items()}
    lacking = {one: need for one, need in asked.items() if not _digests(host, one, need.references)}
    if lacking:
        say(f"layered images go to {len(lacking)} engine(s); later runs find them there")
        _load_each(host, target, lacking)
    found: dict[str, str] = {}
    for socket, need in asked.items():
        digests = _digests(host, socket, need.references)
        known = {name: found[name] for name in digests if name in found}
        if not digests or any(digests[name] != digest for name, digest in known.items()):
            raise RigError("engines do not have the same images", where=socket, why=str(digests))
        found |= digests
    layered = {one[0].name: one for need in asked.values() for one in need.layered}
    return {
        name: Image(name, reference, found[reference], "")
        for name, (_, reference, _) in layered.items()
    }


def _need(target: Target, images: Sequence[LayeredImage | str]) -> _Need:
    bases = sorted({one if isinstance(one, str) else one.base for one in images})
    if absent := [name for name in bases if name not in target.images]:
        raise UsageError(
            f"no image {', '.join(absent)} stands on the rig", remedy=f"one of {[*target.images]}"
        )
    under = {name: target.images[name] for name in bases}
    layered = {
        one.name: (one, one.reference(under[one.base].digest), under[one.base].reference)
        for one in images
        if not isinstance(one, str)
    }
    return _Need(tuple(one.reference for one in under.values()), tuple(layered.values()))


def _digests(host: Host, socket: str, references: Sequence[str]) -> dict[str, str]:
    """Return the digest of each image that an engine has; nothing where it lacks one."""
    argv = ("docker", "image", "inspect", "--format", "{{.Id}}", *references)
    result = host.run(*argv, env={"DOCKER_HOST": socket}, check=False)
    if result.status != 0:
        return {}
    return dict(zip(references, result.stdout.split(), strict=True))


def _load_each(host: Host, target: Target, lacking: Mapping[str, _Need]) -> None:
    """Load what engines lack; those that need the same share an archive."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for socket, need in lacking.items():
        groups.setdefault(tuple(need.references), []).append(socket)
    place, saved = f"{target.disk}/archives", set[tuple[str, ...]]()
    try:
        with ThreadPoolExecutor(2) as pool:
            loads = []
            for number, engines in enumerate(groups.values()):
                archive = f"{place}/{number}.tar"
                need = lacking[engines[0]]
                bases = f"{place}/{'-'.join(one.rpartition(':')[2] for one in need.bases)}.bases"
                if need.bases not in saved:
                    _save(host, target, need.bases, bases)
                    saved.add(need.bases)
                _write(host, need, bases, archive)
                loads += [pool.submit(_load, host, socket, archive) for socket in engines]
            for one in loads:
                one.result()
    finally:
        host.run("rm", "-rf", "--", place)


def _save(host: Host, target: Target, bases: Sequence[str], archive: str) -> None:
    """Save images of the target's own engine."""
    host.run("mkdir", "-p", str(Path(archive).parent))
    argv = ("docker", "save", "--output", archive, *bases)
    host.run(*argv, env={"DOCKER_HOST": str(target.engine)}, timeout=600)


def _write(host: Host, need: _Need, bases: str, archive: str) -> None:
    """Put layers over saved images, in an archive on the host."""
    if isinstance(host, LocalHost):
        write_images(Path(bases), need.layered, Path(archive))
        return
    with tempfile.TemporaryDirectory() as folder:
        saved, whole = Path(folder) / "bases.tar", Path(folder) / "images.tar"
        host.get(bases, saved)
        write_images(saved, need.layered, whole)
        host.put(whole, archive)


def _load(host: Host, socket: str, archive: str) -> None:
    argv = ("docker", "load", "--quiet", "--input", archive)
    host.run(*argv, env={"DOCKER_HOST": socket}, timeout=7200)
