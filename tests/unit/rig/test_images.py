"""Layered images for engines: what is loaded where, and what is not loaded again."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import RigError, UsageError
from labkit.hosts import LocalHost, Result
from labkit.hosts.target import Image, Target
from labkit.rig.images import bring_images
from labkit.rig.layers import File, LayeredImage, read_saved

BASE = Image("minimal", "labkit/minimal:1", "sha256:base", "")
ONE, TWO = (LayeredImage(name, ((File(name, 100),),)) for name in ("one", "two"))


class Engines(LocalHost):
    """This machine with engines that only record what they load; one has wrong digests."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__("sut")
        self.wrong = wrong
        self.loaded: dict[str, dict[str, str]] = {}
        self.saved: list[list[str]] = []

    def run(self, *argv: str, **options: Any) -> Result:
        images = self.loaded.setdefault((options.get("env") or {}).get("DOCKER_HOST", ""), {})
        text, status = "", 0
        if argv[:3] == ("docker", "image", "inspect"):
            digests = [images.get(name, "") for name in argv[5:]]
            text, status = "\n".join(digests), int("" in digests)
        elif argv[:2] == ("docker", "save"):
            self.saved.append(list(argv[4:]))
            _save(Path(argv[3]), argv[4:])
        elif argv[:2] == ("docker", "load"):
            wrong = images is self.loaded.get(self.wrong)
            with tarfile.open(argv[-1]) as archive:
                for name, image in read_saved(archive).items():
                    images[name] = "sha256:odd" if wrong else f"sha256:{len(image.config)}"
        else:
            return super().run(*argv, **options)
        return Result(argv, self.name, status, text, "", 0.0)


def _save(path: Path, references: tuple[str, ...]) -> None:
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": []}, "os": "linux"}).encode()
    rows = [{"Config": "c.json", "RepoTags": [name], "Layers": []} for name in references]
    with tarfile.open(path, "w") as out:
        for name, data in (("c.json", config), ("manifest.json", json.dumps(rows).encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))


@pytest.fixture
def target(tmp_path: Path) -> Target:
    images = {"minimal": BASE}
    return Target(LocalHost("sut"), "198.18.0.3", engine="own", images=images, disk=str(tmp_path))


def test_each_engine_loads_what_it_lacks_once(target: Target, tmp_path: Path) -> None:
    host, lines = Engines(), list[str]()
    needs = {"a": [ONE, TWO], "b": [ONE, TWO], "c": [ONE]}
    images = bring_images(host, target, needs, lines.append)
    assert set(images) == {"one", "two"} and len(lines) == 1
    assert images["one"].reference == ONE.reference("sha256:base")
    assert images["one"].digest == host.loaded["a"][images["one"].reference]
    assert {name: len(host.loaded[name]) for name in "abc"} == {"a": 3, "b": 3, "c": 2}
    assert host.saved == [[BASE.reference]], "the base is saved once for all"
    assert list(tmp_path.rglob("*")) == []
    assert bring_images(host, target, needs, lines.append) == images
    assert len(lines) == 1 and len(host.saved) == 1


def test_engines_with_different_images_are_an_error(target: Target, tmp_path: Path) -> None:
    with pytest.raises(RigError, match="same images"):
        bring_images(Engines(wrong="b"), target, {"a": [ONE], "b": [ONE]})
    assert list(tmp_path.rglob("*")) == []


def test_a_missing_base_is_an_error(target: Target) -> None:
    with pytest.raises(UsageError, match="no image other"):
        bring_images(Engines(), target, {"a": [LayeredImage("x", (), base="other")]})
