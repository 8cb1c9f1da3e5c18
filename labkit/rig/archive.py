"""Archives as ``docker save`` writes and ``docker load`` reads them, with layers of ours added."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import RigError
from labkit.rig.layers import Contents, LayeredImage, Stream, archive_size, layer_name

#: Marks layered images in every engine.
LABEL = {"labkit.image": "layers"}


@dataclass(frozen=True)
class Saved:
    """An image in an archive of ``docker save``: its configuration and its layers' members."""

    config: Mapping[str, Any]
    text: bytes
    members: tuple[str, ...]


def read_saved(archive: tarfile.TarFile) -> dict[str, Saved]:
    """Return the images of an archive of ``docker save`` by reference.

    Raises
    ------
    RigError
        It is not such an archive.
    """
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
    """Write an archive for ``docker load``: base images, and layered ones over them.

    Parameters
    ----------
    bases : Path
        An archive of ``docker save`` with every base; all of its images are in the result too.
    images : sequence of (LayeredImage, str, str)
        Each with its own reference and its base's.
    out : Path
        Where to write.

    Returns
    -------
    dict of str to str
        The digest of each layered image, by reference.
    """
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
