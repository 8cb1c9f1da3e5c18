"""Images of many layers, whose files are generated: the same bytes on every machine.

An image is written as ``docker load`` takes it, so that every engine gets the same layers under the
same digest, whatever its storage driver, and none of them has to run a build. A Dockerfile gives
neither: the build writes times of its own into every layer, so digests differ between engines.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import RigError, UsageError

#: Part of each image's name. Raise it when the files of an image change.
_FORMAT = 1
#: Where the files of layers are: what is measured is below it, whatever is mounted there.
ROOT = "data"
#: Seconds since the epoch of the lowest layer's files. Each layer's are a second younger: a driver
#: that compares a layer with the one below must see that all of it is new.
_BORN = 1_000_000_000
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
        How many of each, the root included; a directory has at most 8 others directly in it.
    size_b : int
        Bytes of all files together; single ones differ, up to about twice the mean.
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
        By which a workload asks for it.
    layers : tuple of tuples of `File` and `Tree`
        Lowest first. A path that a layer has too hides that of the layers below.
    base : str
        The image below them.
    merged : bool
        Whether one layer is made of them, with what would be seen of them all.
    """

    name: str
    layers: tuple[tuple[File | Tree, ...], ...]
    base: str = "minimal"
    merged: bool = False

    def contents(self) -> list[Contents]:
        """Return the layers as they are made, lowest first."""
        every = [contents(parts, number) for number, parts in enumerate(self.layers, start=1)]
        if not self.merged:
            return every
        seen: Contents = {}
        for layer in every:
            seen |= layer
        return [seen]

    def reference(self, base_digest: str) -> str:
        """Return the name that engines have it under: it changes with anything in the image."""
        made = (self.layers, self.merged, base_digest, _FORMAT)
        return f"labkit/{self.name}:{hashlib.sha256(repr(made).encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Entry:
    """What is at a path: its size in bytes (None: a directory) and its time of change."""

    size_b: int | None
    changed: int


#: Entries by path; those that hold others come before them.
Contents = dict[str, Entry]


def contents(parts: Iterable[File | Tree], number: int) -> Contents:
    """Return what the layer of that number (the lowest is 1) holds."""
    found: Contents = {ROOT: Entry(None, _BORN + number)}
    for part in parts:
        files = [(part.path, part.size_b)] if isinstance(part, File) else _files(part)
        folders = _folders(part) if isinstance(part, Tree) else []
        for path, size in [*((path, None) for path in folders), *files]:
            above = Path(ROOT, path).parents
            for folder in [one.as_posix() for one in reversed(above) if one.as_posix() != "."]:
                found.setdefault(folder, Entry(None, _BORN + number))
            found[f"{ROOT}/{path}"] = Entry(size, _BORN + number)
    return found


def _folders(tree: Tree) -> list[str]:
    """Return the directories: each holds at most eight others, and those above come first."""
    found = [tree.path]
    for number in range(1, tree.directories):
        found.append(f"{found[(number - 1) // _FAN_OUT]}/d{number:04}")
    return found


def _files(tree: Tree) -> list[tuple[str, int]]:
    """Return path and size of each file, spread evenly over the directories."""
    folders = _folders(tree)
    names = [f"{folders[n % len(folders)]}/f{n:05}" for n in range(tree.files)]
    weights = [1 + hashlib.sha256(name.encode()).digest()[0] for name in names]
    ends, total, seen = [0], sum(weights), 0
    for weight in weights:
        seen += weight
        ends.append(tree.size_b * seen // total)
    return [(name, ends[n + 1] - ends[n]) for n, name in enumerate(names)]


def _bytes(path: str, size: int, piece: int = 1 << 20) -> Iterator[bytes]:
    """Yield a file's bytes: a pattern that only its path decides."""
    pattern = hashlib.sha256(path.encode()).digest() * (min(size, piece) // 32 + 1)
    for start in range(0, size, piece):
        yield pattern[: min(piece, size - start)]


def archive_size(layer: Contents) -> int:
    """Return how many bytes a layer's archive has."""
    whole = (-(-(entry.size_b or 0) // 512) for entry in layer.values())
    return 512 * (len(layer) + sum(whole) + 2)


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


class Stream(io.RawIOBase):
    """A layer's archive as a file to read once; `digest` is that of what was read."""

    def __init__(self, layer: Contents) -> None:
        self._pieces, self._left = archive_bytes(layer), b""
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the next piece reaches."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        self.digest.update(buffer[:count])
        return count


def write_folder(layer: Contents, folder: Path) -> None:
    """Write a layer's files into a folder; `ROOT` itself is the folder."""
    for path, entry in layer.items():
        place = folder / Path(path).relative_to(ROOT)
        if entry.size_b is None:
            place.mkdir(parents=True, exist_ok=True)
            continue
        with place.open("wb") as out:
            for data in _bytes(path, entry.size_b):
                out.write(data)


def layer_name(layer: Contents) -> str:
    """Return a name that layers with the same files share."""
    rows = (f"{path}\0{entry.size_b}\0{entry.changed}\n" for path, entry in layer.items())
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:16]


#: Marks layered images in every engine.
LABEL = {"labkit.image": "layers"}


@dataclass(frozen=True)
class Saved:
    """An image in an archive of ``docker save``: its configuration and its layers' members."""

    config: Mapping[str, Any]
    text: bytes
    members: tuple[str, ...]


def read_saved(archive: tarfile.TarFile) -> dict[str, Saved]:
    """Return the images of an archive of ``docker save`` by reference."""
    try:
        found: dict[str, Saved] = {}
        for one in json.loads(_member(archive, "manifest.json")):
            text = _member(archive, one["Config"])
            saved = Saved(json.loads(text), text, tuple(one["Layers"]))
            found |= dict.fromkeys(one["RepoTags"] or (), saved)
        return found
    except (KeyError, ValueError, TypeError) as error:
        raise RigError("the engine's saved image cannot be read", why=str(error)) from None


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    handle = archive.extractfile(name)
    if handle is None:
        raise KeyError(name)
    return handle.read()


def write_images(
    bases: Path, images: Sequence[tuple[LayeredImage, str, str]], out: Path
) -> dict[str, str]:
    """Write an archive for ``docker load``: base images, and layered ones over them."""
    manifest, digests = [], {}
    made: dict[str, tuple[str, str]] = {}
    with tarfile.open(bases) as saved, tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as archive:
        found = read_saved(saved)
        for reference, base in found.items():
            for member in base.members:
                _copy(saved, archive, member)
            manifest.append(_entry(archive, reference, base.text, base.members))
        for image, reference, under in images:
            names, ids = [], []
            for layer in image.contents():
                key = layer_name(layer)
                if key not in made:
                    made[key] = (f"labkit-{key}.tar", _add_layer(archive, key, layer))
                names.append(made[key][0])
                ids.append(made[key][1])
            text = _config(found[under].config, ids)
            manifest.append(_entry(archive, reference, text, (*found[under].members, *names)))
            digests[reference] = "sha256:" + hashlib.sha256(text).hexdigest()
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    return digests


def _copy(saved: tarfile.TarFile, archive: tarfile.TarFile, member: str) -> None:
    """Copy a layer; one that several images share may be a link to the first."""
    if member in archive.getnames():
        return
    handle = saved.extractfile(member)
    if handle is None:
        raise RigError(f"the engine's saved image has no layer {member}")
    info = tarfile.TarInfo(member)
    info.size = handle.seek(0, io.SEEK_END)
    handle.seek(0)
    archive.addfile(info, handle)


def _entry(
    archive: tarfile.TarFile, reference: str, config: bytes, members: Sequence[str]
) -> dict[str, Any]:
    name = hashlib.sha256(config).hexdigest() + ".json"
    if name not in archive.getnames():
        _add(archive, name, config)
    return {"Config": name, "RepoTags": [reference], "Layers": list(members)}


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def _add_layer(archive: tarfile.TarFile, key: str, layer: Contents) -> str:
    """Stream a layer, whose size is known beforehand, into the archive; return its digest."""
    info, stream = tarfile.TarInfo(f"labkit-{key}.tar"), Stream(layer)
    info.size = archive_size(layer)
    archive.addfile(info, io.BufferedReader(stream, 1 << 20))
    return "sha256:" + stream.digest.hexdigest()


def _config(base: Mapping[str, Any], ids: Sequence[str]) -> bytes:
    """Return the configuration of an image with further layers; the same for the same layers."""
    inner = {**base.get("config", {})}
    inner["Labels"] = {**(inner.get("Labels") or {}), **LABEL}
    history = [*base.get("history", [])]
    history += [
        {"created": "1970-01-01T00:00:00Z", "created_by": f"labkit layer {number}"}
        for number, _ in enumerate(ids, start=1)
    ]
    kept = {name: base[name] for name in ("architecture", "os") if name in base}
    whole = {
        **kept,
        "created": "1970-01-01T00:00:00Z",
        "config": inner,
        "history": history,
        "rootfs": {"type": "layers", "diff_ids": [*base["rootfs"]["diff_ids"], *ids]},
    }
    return json.dumps(whole, sort_keys=True).encode()
