"""Images of ``containers/`` and of generated layers, and the storages of containers."""

import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath
from uuid import uuid4

from labkit.hosts import Host, script
from labkit.hosts.target import Image, Storage, Target
from labkit.paths import project
from labkit.placement import DRIVER, RELEASES, STORAGES, UNIONS
from labkit.process import announce
from labkit.rig import netns

BASE = "debian:bookworm-slim"
# No file waits for the disk (force-unsafe-io): a crash loses only what is built again.
_MAKE_BASE = """
archive=$(mktemp --suffix=.tar)
trap 'rm -f "$archive"' EXIT
mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io bookworm "$archive" &&
    docker import "$archive" "$1" || docker pull "$1"
"""
# The directory gets its name last, so that an unfinished one is never used.
_UNPACK = """
rm -rf "$1" "$1.new" && mkdir -p "$1.new/rootfs"
id=$(docker create --label labkit=image "$2" true)
docker export "$id" | tar -x -C "$1.new/rootfs" && docker rm "$id" >/dev/null
printf %s "$3" >"$1.new/image.json"
sync -f "$1.new" && mv "$1.new" "$1"
"""
# The release file of sid may have expired.
_MAKE_RELEASE = """
rm -rf "$2.new" && mkdir -p "${2%/*}"
mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include=docker.io,iptables \
    --aptopt='Acquire::Check-Valid-Until "false"' "$1" "$2.new" && mv "$2.new" "$2"
"""
_BUILD = 'archive=$1 && shift && DOCKER_BUILDKIT=0 docker build "$@" - <"$archive"'
_FILESYSTEMS = {DRIVER: "overlay", "fuse-overlayfs": "fuse.fuse-overlayfs", "aufs": "aufs"}
_WHY = {
    "fuse-overlayfs": "fuse-overlayfs is not installed, or there is no /dev/fuse",
    "aufs": "the kernel has no aufs",
}
#: Removes what campaigns made for storages ($1), logs of clients in unpacked images ($2), a folder
#: of jobs ($3), and in that of the journal ($4) the folders of jobs that held idle states. The
#: kernel's list of mounts is read, since looking at a union may hang.
CLEAR = """
awk -v place="$1/unions/" 'index($2, place) == 1 { print $2 }' /proc/self/mounts |
    while read -r mount; do umount --lazy "$mount"; done
rm -rf --one-file-system -- "$1/bind" "$1/unions" "$2"/*/rootfs/run/trial-* "$3" "$4"/hold-*
"""


def folders() -> dict[str, Path]:
    """Return the directories of ``containers/`` that images are built from, but for the lab's."""
    paths = sorted(project("containers").glob("*/Dockerfile"))
    return {path.parent.name: path.parent for path in paths if path.parent.name != "lab"}


def tag(folder: Path) -> str:
    """Return the name of the image built from a directory; it changes with any file in it."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return f"labkit/{folder.name}:{digest.hexdigest()[:12]}"


def _unpacked(target: Target, folder: Path) -> Path:
    return Path(target.disk).with_name("images") / re.sub("[/:]", "-", tag(folder))


def ensure_images() -> dict[str, Image]:
    """Return every image of ``containers/`` on this machine, building those that are missing."""
    here = Target(Host(), "", disk=str(netns.STORAGES))
    records = {folder: _unpacked(here, folder) / "image.json" for folder in folders().values()}
    if missing := [folder for folder, record in records.items() if not record.is_file()]:
        announce("building images (the first time takes about a minute)")
        with netns.building_daemon() as socket:
            for folder in missing:
                ensure_image(replace(here, engine=socket), folder)
    return {f.name: Image(**json.loads(record.read_text())) for f, record in records.items()}


def ensure_image(target: Target, folder: Path) -> Image:
    """Return an image of an engine, built, and unpacked beside its `disk`, where it is missing."""
    reference, place = tag(folder), _unpacked(target, folder)
    if not digest_of(target, reference):
        ensure_base(target)
        build(target, reference, folder)
    digest = digest_of(target, reference)
    image = Image(folder.name, reference, digest, f"{place}/rootfs")
    record = json.dumps(image.__dict__)
    if target.host.run("cat", f"{place}/image.json", check=False).stdout != record:
        target.run(*script(_UNPACK, str(place), reference, record), timeout=600)
    return image


def ensure_base(target: Target) -> None:
    """Make the base image where an engine lacks it, or pull it."""
    if not digest_of(target, BASE):
        made = target.run(*script(_MAKE_BASE, BASE), timeout=900, check=False)
        made.check("install mmdebstrap, or give the engine a registry it can reach")


def ensure_release(name: str) -> str:
    """Make the root file system of a release where it is missing; return its distribution."""
    root = netns.ROOTS / name
    if not root.is_dir():
        announce(f"making Docker of {name} from Debian's packages")
        make = script(_MAKE_RELEASE, RELEASES[name], str(root))
        made = Host().run(*make, timeout=900, check=False)
        made.check("install mmdebstrap, and see that Debian's packages can be reached")
    return str(re.findall('PRETTY_NAME="(.*)"', (root / "etc/os-release").read_text())[0])


def digest_of(target: Target, reference: str) -> str:
    """Return an engine's identifier of an image; "" if it lacks the image."""
    inspect = ("docker", "image", "inspect", "--format", "{{.Id}}", reference)
    result = target.run(*inspect, check=False)
    return result.stdout.strip() if result.status == 0 else ""


def build(target: Target, reference: str, folder: Path) -> None:
    """Build an image from a directory of this machine, whose files the engine gets as they are."""
    options = ("--no-cache", "--network", "host", "--cgroup-parent", target.cgroup_parent)
    with tempfile.NamedTemporaryFile(suffix=".tar") as context:
        with tarfile.open(fileobj=context, mode="w") as archive:
            archive.add(folder, arcname=".", filter=_plain)
        context.flush()
        run_with(target, context.name, _BUILD, *options, "--tag", reference)


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out whose a file is and when it was changed, so that images have the same files."""
    info.mode = 0o755 if info.isdir() or info.mode & 0o111 else 0o644
    info.uid, info.gid, info.uname, info.gname, info.mtime = 0, 0, "", "", 0
    return info


def run_with(target: Target, path: str, text: str, *args: str) -> None:
    """Run a script on a host with a copy of a file, whose path there is ``$1``."""
    remote = f"/var/tmp/labkit-{uuid4().hex}"
    try:
        with Path(path).open("rb") as file:
            while part := file.read(1 << 23):
                data = part.decode("utf-8", "surrogateescape")
                target.run(*script('cat >>"$1"', remote), input=data)
        target.run(*script(text, remote, *args), timeout=1800)
    finally:
        target.run("rm", "-f", "--", remote)


def send(source: str, target: Target, references: Sequence[str]) -> None:
    """Send images from an engine of this machine to one of a host."""
    with tempfile.NamedTemporaryFile() as archive:
        save = ("docker", "--host", source, "save", "--output", archive.name, *references)
        Host().run(*save, timeout=1800)
        size = Path(archive.name).stat().st_size >> 20
        announce(f"{len(references)} images ({size} MiB) go to {target.host.name}")
        run_with(target, archive.name, 'docker load --input "$1"')


@dataclass(frozen=True)
class LayeredImage:
    """An image of generated layers over ``containers/python``."""

    #: The image name in a workload.
    name: str
    #: Lowest first, with sizes in bytes by path below ``/data``, None for a directory; a file hides
    #: a file of the same path in a lower layer.
    layers: tuple[Mapping[str, int | None], ...]


def tree(path: str, directories: int, files: int, size_b: int) -> dict[str, int | None]:
    """Return a generated directory tree, as part of a layer.

    Parameters
    ----------
    path : str
        Its root, below ``/data``.
    directories, files : int
        Number of each, the root included; a directory has at most 8 subdirectories.
    size_b : int
        Total size of the files in bytes; a file has up to about twice the mean size.
    """
    folders = [path]
    for number in range(1, directories):
        folders.append(f"{folders[(number - 1) // 8]}/d{number:04}")
    names = [f"{folders[number % directories]}/f{number:05}" for number in range(files)]
    weights = [1 + hashlib.sha256(name.encode()).digest()[0] for name in names]
    total = sum(weights)
    ends = [0, *(size_b * part // total for part in accumulate(weights))]
    sizes = (end - start for start, end in pairwise(ends))
    return dict.fromkeys(folders) | dict(zip(names, sizes, strict=True))


def write_layer(layer: Mapping[str, int | None], number: int, archive: Path) -> None:
    """Write a layer as a tar archive, the same on every machine; the number of the lowest is 1."""
    paths = [PurePosixPath("data", path) for path in layer]
    folders = {str(parent): None for path in paths for parent in path.parents[:-1]}
    entries = folders | {f"data/{path}": size for path, size in layer.items()}
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as out:
        for path, size in sorted(entries.items()):
            info = tarfile.TarInfo(path)
            # A driver that compares a layer with the one below sees that all files are new.
            info.mtime, info.size = 1_000_000_000 + number, size or 0
            if size is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            # A pattern that depends on the path only.
            pattern = hashlib.sha256(path.encode()).digest() * (info.size // 32 + 1)
            out.addfile(info, io.BytesIO(pattern))


def ensure_layers(target: Target, image: LayeredImage) -> Image:
    """Return a layered image of the target's engine; its name changes with anything in it."""
    base = target.images["python"]
    # The number is to be raised when the files of the same layers change.
    content = f"3 {base.digest} {[*map(dict, image.layers)]}"
    reference = f"labkit/layers:{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    if not digest_of(target, reference):
        announce(f"building an image of {len(image.layers)} layers (it may take minutes)")
        with tempfile.TemporaryDirectory() as folder:
            lines = [f"FROM {base.reference}"]
            for number, layer in enumerate(image.layers, start=1):
                write_layer(layer, number, Path(folder, f"{number}.tar"))
                lines.append(f"ADD {number}.tar /")
            Path(folder, "Dockerfile").write_text("\n".join(lines))
            build(target, reference, Path(folder))
    return Image(image.name, reference, digest_of(target, reference), "")


def with_storages(target: Target, layers: Sequence[LayeredImage]) -> tuple[Target, dict[str, str]]:
    """Return a target with layered images and storages, and why it lacks others, by capability."""
    built, disk = {image.name: ensure_layers(target, image) for image in layers}, target.disk
    facts = target.host.call("facts", engine=target.engine, directory=disk, timeout=120)
    driver, (own, other) = facts["stable"]["engine"]["Driver"], facts["stable"]["storage"].values()
    reasons = {name: why for name, why in _WHY.items() if name not in facts["volatile"]["unions"]}
    if driver != DRIVER:
        why = f"the engine has the storage driver {driver}"
        reasons |= dict.fromkeys((DRIVER, *UNIONS), why)
    # On another disk than the engine's data, a mount would differ from its driver by the disk.
    if own != other:
        why = f"{disk} is on {other}, the engine's data on {own}: two disks, not two storages"
        reasons |= dict.fromkeys(("bind", *UNIONS), why)
    storages = {
        name: Storage(name, driver, _FILESYSTEMS.get(name, own.split()[1]))
        for name in STORAGES
        if name not in reasons
    }
    made = replace(target, images={**target.images, **built}, storages=storages)
    return made, {f"storage:{name}": why for name, why in reasons.items()}
