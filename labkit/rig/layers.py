"""Images of many layers of generated files: the same bytes on every machine.

An image is written in the format of ``docker load``, so that every engine gets the same layers
with the same digests, whatever its storage driver. ``docker build`` would write its own times into
every layer, so that digests would differ between engines.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

from labkit.errors import RigError, UsageError

#: Part of each image's name; raise it when the files of an image change.
_FORMAT = 1
#: Directory of the files of layers, which storages mount.
ROOT = "data"
#: Modification time of the layer below the lowest, in seconds. Each layer's files are a second
#: younger, so that a driver that compares a layer with the one below sees that all files are new.
_EPOCH = 1_000_000_000
_FAN_OUT = 8


@dataclass(frozen=True)
class File:
    """A generated file: its path below `ROOT` and its size in bytes."""

    path: str
    size_b: int


@dataclass(frozen=True)
class Tree:
    """A generated directory tree.

    Parameters
    ----------
    path : str
        Its root, below `ROOT`.
    directories, files : int
        Number of each, the root included; a directory has at most 8 subdirectories.
    size_b : int
        Total size of the files in bytes; a file has up to about twice the mean size.

    Raises
    ------
    UsageError
        A number is not a positive integer.
    """

    path: str
    directories: int
    files: int
    size_b: int

    def __post_init__(self) -> None:
        numbers = (self.directories, self.files, self.size_b)
        if any(not isinstance(number, int) for number in numbers) or min(numbers) < 1:
            raise UsageError(f"{self}: a tree has at least one directory, one file and one byte")


@dataclass(frozen=True)
class LayeredImage:
    """An image of generated layers over an image of ``containers/``.

    Parameters
    ----------
    name : str
        The image name in a workload.
    layers : tuple of tuples of `File` and `Tree`
        Lowest first. A file hides a file of the same path in a lower layer.
    base : str
        The image of ``containers/`` below them.
    merged : bool
        Whether the image has one layer instead, with the visible files of all of them.
    """

    name: str
    layers: tuple[tuple[File | Tree, ...], ...]
    base: str = "minimal"
    merged: bool = False

    def contents(self) -> list[Contents]:
        """Return the contents of its layers, lowest first."""
        layers = [contents(parts, number) for number, parts in enumerate(self.layers, start=1)]
        if not self.merged:
            return layers
        visible: Contents = {}
        for layer in layers:
            visible |= layer
        return [visible]

    def reference(self, base_digest: str) -> str:
        """Return its name on an engine, which changes with anything in the image."""
        content = (self.layers, self.merged, base_digest, _FORMAT)
        return f"labkit/{self.name}:{hashlib.sha256(repr(content).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Entry:
    """A path of a layer: its size in bytes (None for a directory) and its modification time."""

    size_b: int | None
    changed: int


#: The entries of a layer by path; a directory comes before what is in it.
Contents = dict[str, Entry]


def contents(parts: Iterable[File | Tree], number: int) -> Contents:
    """Return the contents of a layer; the lowest has the number 1."""
    changed = _EPOCH + number
    layer: Contents = {ROOT: Entry(None, changed)}
    for part in parts:
        files = [(part.path, part.size_b)] if isinstance(part, File) else _files(part)
        folders = _folders(part) if isinstance(part, Tree) else []
        for path, size in [*((path, None) for path in folders), *files]:
            for folder in reversed(Path(ROOT, path).parents[:-1]):
                layer.setdefault(folder.as_posix(), Entry(None, changed))
            layer[f"{ROOT}/{path}"] = Entry(size, changed)
    return layer


def _folders(tree: Tree) -> list[str]:
    """Return the directories, each after its parent."""
    folders = [tree.path]
    for number in range(1, tree.directories):
        folders.append(f"{folders[(number - 1) // _FAN_OUT]}/d{number:04}")
    return folders


def _files(tree: Tree) -> list[tuple[str, int]]:
    """Return path and size of each file, spread evenly over the directories."""
    folders = _folders(tree)
    names = [f"{folders[n % len(folders)]}/f{n:05}" for n in range(tree.files)]
    weights = [1 + hashlib.sha256(name.encode()).digest()[0] for name in names]
    total = sum(weights)
    ends = [0, *(tree.size_b * part // total for part in accumulate(weights))]
    return [(name, ends[n + 1] - ends[n]) for n, name in enumerate(names)]


def _bytes(path: str, size: int, piece: int = 1 << 20) -> Iterator[bytes]:
    """Yield a file's bytes: a pattern that depends on the path only."""
    pattern = hashlib.sha256(path.encode()).digest() * (min(size, piece) // 32 + 1)
    for start in range(0, size, piece):
        yield pattern[: min(piece, size - start)]


def archive_bytes(layer: Contents) -> Iterator[bytes]:
    """Yield a layer as a tar archive, piece by piece."""
    for path, entry in layer.items():
        info = tarfile.TarInfo(path)
        info.mtime, info.mode = entry.changed, 0o644
        if entry.size_b is None:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
        info.size = entry.size_b or 0
        yield info.tobuf(tarfile.USTAR_FORMAT)
        yield from _bytes(path, info.size)
        yield b"\0" * (-info.size % 512)
    yield b"\0" * 1024


def write_folder(layer: Contents, folder: Path) -> None:
    """Write a layer's files into a directory, which takes the place of `ROOT`."""
    for path, entry in layer.items():
        target = folder / Path(path).relative_to(ROOT)
        if entry.size_b is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        with target.open("wb") as out:
            out.writelines(_bytes(path, entry.size_b))


def layer_name(layer: Contents) -> str:
    """Return a name that layers with the same files share."""
    rows = (f"{path}\0{entry.size_b}\0{entry.changed}\n" for path, entry in layer.items())
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:16]


#: Marks layered images in every engine.
LABEL = {"labkit.image": "layers"}
#: Time of everything that is written here, so that equal images have equal digests.
_CREATED = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class Saved:
    """An image in an archive of ``docker save``: its configuration and the names of its layers."""

    config: bytes
    members: tuple[str, ...]


def read_saved(archive: tarfile.TarFile) -> dict[str, Saved]:
    """Return the images of an archive of ``docker save`` by reference."""
    images: dict[str, Saved] = {}
    try:
        for row in json.loads(_member(archive, "manifest.json").read()):
            saved = Saved(_member(archive, row["Config"]).read(), tuple(row["Layers"]))
            images |= dict.fromkeys(row["RepoTags"] or (), saved)
    except (KeyError, ValueError, TypeError) as error:
        raise RigError("the engine's saved image cannot be read", why=str(error)) from None
    return images


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """Return a file of an archive; a link is followed."""
    handle = archive.extractfile(name)
    if handle is None:
        raise KeyError(name)
    return handle


def write_images(
    saved: Path, bases: Sequence[str], images: Sequence[tuple[LayeredImage, str, str]], out: Path
) -> dict[str, str]:
    """Write an archive for ``docker load``; return the digests of the layered images.

    It holds the images `bases` of the archive `saved`, and layered images over them, each given
    with its reference and that of its base.
    """
    manifest, digests = [], {}
    diff_ids: dict[str, str] = {}
    with tarfile.open(saved) as source, tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as target:
        stored = read_saved(source)
        for reference in bases:
            for member in stored[reference].members:
                if member not in target.getnames():
                    _add(target, member, _member(source, member))
            manifest.append(_manifest_row(target, reference, stored[reference]))
        for image, reference, under in images:
            names = []
            for layer in image.contents():
                names.append(f"labkit-{layer_name(layer)}.tar")
                if names[-1] not in diff_ids:
                    diff_ids[names[-1]] = _add_layer(target, names[-1], layer, out.parent)
            base = stored[under]
            config = _config(json.loads(base.config), [diff_ids[name] for name in names])
            layered = Saved(config, (*base.members, *names))
            manifest.append(_manifest_row(target, reference, layered))
            digests[reference] = "sha256:" + hashlib.sha256(config).hexdigest()
        _add(target, "manifest.json", io.BytesIO(json.dumps(manifest).encode()))
    return digests


def _manifest_row(archive: tarfile.TarFile, reference: str, image: Saved) -> dict[str, Any]:
    """Add an image's configuration to an archive, and return its row of the manifest."""
    name = hashlib.sha256(image.config).hexdigest() + ".json"
    if name not in archive.getnames():
        _add(archive, name, io.BytesIO(image.config))
    return {"Config": name, "RepoTags": [reference], "Layers": list(image.members)}


def _add(archive: tarfile.TarFile, name: str, data: IO[bytes]) -> None:
    info = tarfile.TarInfo(name)
    info.size = data.seek(0, io.SEEK_END)
    data.seek(0)
    archive.addfile(info, data)


def _add_layer(archive: tarfile.TarFile, name: str, layer: Contents, scratch: Path) -> str:
    """Add a layer to an archive, by a temporary file in `scratch`; return its digest."""
    digest = hashlib.sha256()
    with tempfile.TemporaryFile(dir=scratch) as data:
        for piece in archive_bytes(layer):
            digest.update(piece)
            data.write(piece)
        _add(archive, name, data)
    return "sha256:" + digest.hexdigest()


def _config(base: Mapping[str, Any], diff_ids: Sequence[str]) -> bytes:
    """Return the configuration of an image with further layers; the same for the same layers."""
    settings = {**base.get("config", {})}
    settings["Labels"] = {**(settings.get("Labels") or {}), **LABEL}
    history = [
        {"created": _CREATED, "created_by": f"labkit layer {number}"}
        for number, _ in enumerate(diff_ids, start=1)
    ]
    config = {
        **{name: base[name] for name in ("architecture", "os") if name in base},
        "created": _CREATED,
        "config": settings,
        "history": [*base.get("history", []), *history],
        "rootfs": {"type": "layers", "diff_ids": [*base["rootfs"]["diff_ids"], *diff_ids]},
    }
    return json.dumps(config, sort_keys=True).encode()
