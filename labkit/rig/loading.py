"""Images brought to engines: those of ``containers/`` copied, layers put over them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import RigError, UsageError
from labkit.hosts import Host, LocalHost
from labkit.hosts.site import Image, Site
from labkit.rig.archive import write_images
from labkit.rig.layers import LayeredImage

Say = Callable[[str], None]
#: An image, its own reference, and its base's.
Referred = tuple[LayeredImage, str, str]


@dataclass(frozen=True)
class Need:
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


def bring(
    host: Host,
    site: Site,
    needs: Mapping[str, Sequence[LayeredImage | str]],
    say: Say = lambda text: None,
) -> dict[str, Image]:
    """See that engines have images, and return the layered ones by name.

    Parameters
    ----------
    host : Host
        The way to the site's host by which files are moved.
    site : Site
        It has the bases, and an engine that has them too.
    needs : mapping of str to sequence
        Images by engine, as ``DOCKER_HOST`` wants it.
    say : callable
        Receives a line where something has to be loaded.

    Raises
    ------
    RigError
        Engines have something else under the same name.
    """
    asked = {engine: _need(site, images) for engine, images in needs.items()}
    lacking = {one: need for one, need in asked.items() if not _digests(host, one, need.references)}
    if lacking:
        say(f"layered images go to {len(lacking)} engine(s); later runs find them there")
        _load_each(host, site, lacking)
    found: dict[str, str] = {}
    for engine, need in asked.items():
        digests = _digests(host, engine, need.references)
        known = {name: found[name] for name in digests if name in found}
        if not digests or any(digests[name] != digest for name, digest in known.items()):
            raise RigError("engines do not have the same images", where=engine, why=str(digests))
        found |= digests
    layered = {one[0].name: one for need in asked.values() for one in need.layered}
    return {
        name: Image(name, reference, found[reference], "")
        for name, (_, reference, _) in layered.items()
    }


def _need(site: Site, images: Sequence[LayeredImage | str]) -> Need:
    bases = sorted({one if isinstance(one, str) else one.base for one in images})
    if absent := [name for name in bases if name not in site.images]:
        raise UsageError(
            f"no image {', '.join(absent)} stands on the rig", remedy=f"there is {[*site.images]}"
        )
    under = {name: site.images[name] for name in bases}
    layered = {
        one.name: (one, one.reference(under[one.base].digest), under[one.base].reference)
        for one in images
        if not isinstance(one, str)
    }
    return Need(tuple(one.reference for one in under.values()), tuple(layered.values()))


def _digests(host: Host, engine: str, references: Sequence[str]) -> dict[str, str]:
    """Return the digest of each image that an engine has; nothing where it lacks one."""
    argv = ("docker", "image", "inspect", "--format", "{{.Id}}", *references)
    result = host.run(*argv, env={"DOCKER_HOST": engine}, check=False)
    if result.status != 0:
        return {}
    return dict(zip(references, result.stdout.split(), strict=True))


def _load_each(host: Host, site: Site, lacking: Mapping[str, Need]) -> None:
    """Load what engines lack; those that need the same share an archive."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for engine, need in lacking.items():
        groups.setdefault(tuple(need.references), []).append(engine)
    place, saved = f"{site.disk}/archives", set[tuple[str, ...]]()
    try:
        with ThreadPoolExecutor(2) as pool:
            loads = []
            for number, engines in enumerate(groups.values()):
                archive = f"{place}/{number}.tar"
                need = lacking[engines[0]]
                bases = f"{place}/{'-'.join(one.rpartition(':')[2] for one in need.bases)}.bases"
                if need.bases not in saved:
                    _save(host, site, need.bases, bases)
                    saved.add(need.bases)
                _write(host, need, bases, archive)
                loads += [pool.submit(_load, host, engine, archive) for engine in engines]
            for one in loads:
                one.result()
    finally:
        host.run("rm", "-rf", "--", place)


def _save(host: Host, site: Site, bases: Sequence[str], archive: str) -> None:
    """Save images of the site's own engine."""
    host.run("mkdir", "-p", str(Path(archive).parent))
    argv = ("docker", "save", "--output", archive, *bases)
    host.run(*argv, env={"DOCKER_HOST": str(site.engine)}, timeout=600)


def _write(host: Host, need: Need, bases: str, archive: str) -> None:
    """Put layers over saved images, in an archive on the host."""
    if isinstance(host, LocalHost):
        write_images(Path(bases), need.layered, Path(archive))
        return
    with tempfile.TemporaryDirectory() as folder:
        saved, whole = Path(folder) / "bases.tar", Path(folder) / "images.tar"
        host.get(bases, saved)
        write_images(saved, need.layered, whole)
        host.put(whole, archive)


def _load(host: Host, engine: str, archive: str) -> None:
    argv = ("docker", "load", "--quiet", "--input", archive)
    host.run(*argv, env={"DOCKER_HOST": engine}, timeout=7200)
