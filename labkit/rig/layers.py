"""Images of many layers of generated files: the same layers, byte for byte, on every machine.

An engine builds a layer from a tar archive, whose times it keeps. Each layer is an image of its
own over the one below, so that images share the layers that they have in common.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath

from labkit.hosts.target import Image, Target
from labkit.rig import engine
from labkit.rig.images import Say, build

#: The files of a layer: sizes in bytes by path below ``/data``, None for a directory.
Layer = Mapping[str, int | None]
#: The image of ``containers/`` below every layer.
BASE = "python"
#: Part of each image's name; raise it when the files of an image change.
_FORMAT = 2
#: Modification time of the layer below the lowest, in seconds. Each layer's files are a second
#: younger, so that a driver that compares a layer with the one below sees that all files are new.
_EPOCH = 1_000_000_000
_FAN_OUT = 8


@dataclass(frozen=True)
class LayeredImage:
    """An image of generated layers over `BASE`.

    Parameters
    ----------
    name : str
        The image name in a workload.
    layers : tuple of mappings of str to int or None
        Lowest first: sizes in bytes by path below ``/data``, None for a directory. A file hides a
        file of the same path in a lower layer.
    """

    name: str
    layers: tuple[Layer, ...]

    def references(self, base_digest: str) -> list[str]:
        """Return the engine's name of each layer's image; it changes with anything below it."""
        names, below = [], base_digest
        for layer in self.layers:
            below = hashlib.sha256(f"{_FORMAT} {below} {dict(layer)}".encode()).hexdigest()[:12]
            names.append(f"labkit/layers:{below}")
        return names


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
        folders.append(f"{folders[(number - 1) // _FAN_OUT]}/d{number:04}")
    names = [f"{folders[number % directories]}/f{number:05}" for number in range(files)]
    weights = [1 + hashlib.sha256(name.encode()).digest()[0] for name in names]
    total = sum(weights)
    ends = [0, *(size_b * part // total for part in accumulate(weights))]
    sizes = (end - start for start, end in pairwise(ends))
    return dict.fromkeys(folders) | dict(zip(names, sizes, strict=True))


def write_layer(layer: Layer, number: int, archive: Path) -> None:
    """Write a layer as a tar archive, with the time of its number; the lowest is 1."""
    paths = [PurePosixPath("data", path) for path in layer]
    folders = {str(parent): None for path in paths for parent in path.parents[:-1]}
    entries = folders | {f"data/{path}": size for path, size in layer.items()}
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as out:
        for path, size in sorted(entries.items()):
            info = tarfile.TarInfo(path)
            info.mtime = _EPOCH + number
            if size is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            info.size = size or 0
            # A pattern that depends on the path only.
            pattern = hashlib.sha256(path.encode()).digest() * (info.size // 32 + 1)
            out.addfile(info, io.BytesIO(pattern))


def ensure_layers(target: Target, image: LayeredImage) -> Image:
    """Return a layered image of the target's engine, building the layers that it lacks."""
    host, socket, base = target.host, str(target.engine), target.images[BASE]
    references = image.references(base.digest)
    found = engine.digests(host, socket, references[-1:])
    lower = base.reference
    for number, reference in enumerate([] if found else references, start=1):
        if not engine.digests(host, socket, [reference]):
            with tempfile.TemporaryDirectory() as folder:
                write_layer(image.layers[number - 1], number, Path(folder, "layer.tar"))
                Path(folder, "Dockerfile").write_text(f"FROM {lower}\nADD layer.tar /\n")
                build(host, socket, reference, Path(folder), parent=target.cgroup_parent)
        lower = reference
    found = engine.digests(host, socket, references[-1:], check=True)
    return Image(image.name, references[-1], found[references[-1]], "")


def with_layers(target: Target, wanted: Sequence[LayeredImage], say: Say) -> Target:
    """Return a target with layered images, building those that its engine lacks."""
    if not wanted or not target.engine:
        return target
    say("building layered images where the engine lacks them (the first time takes minutes)")
    built = {image.name: ensure_layers(target, image) for image in wanted}
    return replace(target, images={**target.images, **built})
