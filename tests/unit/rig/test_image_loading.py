"""Images brought to engines: what is loaded where, and what is not loaded again."""

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
from labkit.rig import storage
from labkit.rig.images import bring_images
from labkit.rig.layers import File, LayeredImage, read_saved

BASE = Image("minimal", "labkit/minimal:1", "sha256:base", "")
ONE, TWO = (LayeredImage(name, ((File(name, 100),),)) for name in ("one", "two"))


class Engines(LocalHost):
    """This machine with engines that only remember what was loaded into them."""

    def __init__(self, odd: str = "") -> None:
        super().__init__("sut")
        self.odd = odd
        self.stored: dict[str, dict[str, str]] = {}
        self.saved: list[list[str]] = []

    def run(self, *argv: str, **options: Any) -> Result:
        engine = (options.get("env") or {}).get("DOCKER_HOST", "")
        if argv[:3] == ("docker", "image", "inspect"):
            return self._inspect(argv, engine)
        if argv[:2] == ("docker", "save"):
            self.saved.append(list(argv[4:]))
            _save(Path(argv[3]), argv[4:])
        elif argv[:2] == ("docker", "load"):
            with tarfile.open(argv[-1]) as archive:
                found = {
                    name: f"sha256:{len(one.config)}" for name, one in read_saved(archive).items()
                }
            wrong = dict.fromkeys(found, "sha256:odd") if engine == self.odd else {}
            self.stored.setdefault(engine, {}).update(found | wrong)
        else:
            return super().run(*argv, **options)
        return Result(argv, self.name, 0, "", "", 0.0)

    def _inspect(self, argv: tuple[str, ...], engine: str) -> Result:
        there = self.stored.get(engine, {})
        digests = [there.get(name, "") for name in argv[5:]]
        return Result(argv, self.name, int("" in digests), "\n".join(digests), "", 0.0)


def _save(path: Path, references: tuple[str, ...]) -> None:
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": []}, "os": "linux"}).encode()
    rows = [{"Config": "c.json", "RepoTags": [name], "Layers": []} for name in references]
    with tarfile.open(path, "w") as out:
        for name, data in (("c.json", config), ("manifest.json", json.dumps(rows).encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))


def target(disk: Path) -> Target:
    images = {"minimal": BASE}
    return Target(LocalHost("sut"), "198.18.0.3", engine="own", images=images, disk=str(disk))


def test_each_engine_gets_what_it_lacks_and_only_once(tmp_path: Path) -> None:
    host, said = Engines(), list[str]()
    needs = {"a": [ONE, TWO], "b": [ONE, TWO], "c": [ONE]}
    made = bring_images(host, target(tmp_path), needs, said.append)
    assert set(made) == {"one", "two"} and len(said) == 1
    assert made["one"].reference == ONE.reference("sha256:base")
    assert made["one"].digest == host.stored["a"][made["one"].reference]
    assert {len(there) for there in (host.stored["a"], host.stored["b"])} == {3}
    assert len(host.stored["c"]) == 2
    assert host.saved == [[BASE.reference]], "the base is saved once for all of them"
    assert list(tmp_path.rglob("*")) == []
    assert bring_images(host, target(tmp_path), needs, said.append) == made
    assert len(said) == 1 and len(host.saved) == 1


def test_engines_must_have_the_same_under_one_name(tmp_path: Path) -> None:
    with pytest.raises(RigError, match="same images"):
        bring_images(Engines(odd="b"), target(tmp_path), {"a": [ONE], "b": [ONE]})
    assert list(tmp_path.rglob("*")) == []


def test_a_base_that_does_not_stand_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no image other"):
        bring_images(Engines(), target(tmp_path), {"a": [LayeredImage("x", (), base="other")]})


def test_what_is_kept_between_runs_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "storage"
    monkeypatch.setattr(storage.engine, "STORAGES", place)
    assert storage.forget(LocalHost()) == ""
    for name in (
        "vfs/a",
        "bind/x",
        "unions/t",
        "btrfs.img.new",
        "archives/1",
        "branches/1",
        "branches/2.new",
    ):
        (place / name).mkdir(parents=True)
    storage.remove_temporary()
    assert sorted(path.name for path in place.iterdir()) == ["branches", "vfs"]
    assert [path.name for path in (place / "branches").iterdir()] == ["1"]
    assert str(place) in storage.forget(LocalHost())
    assert not place.exists()
