"""Archives of images: which engines get which, and from where, without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import RigError
from labkit.hosts import Result
from labkit.rig import archives, engine, images

FOLDERS = [Path("containers/net"), Path("containers/python")]


class Far:
    """A host whose engine has some images."""

    name = "sut"

    def __init__(self, *has: str) -> None:
        self.has, self.got, self.ran = has, [], []  # type: ignore[var-annotated]

    def run(self, *argv: str, **options: Any) -> Result:
        self.ran.append(argv)
        lacks = argv[:3] == ("docker", "image", "inspect") and argv[-1] not in self.has
        return Result(argv, self.name, int(lacks), "/var/tmp/labkit-1\n", "", 0.0, False)

    def put(self, local: Path, remote: str, **options: Any) -> None:
        self.got.append(Path(local).name)


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Two images, and an engine of this machine; returns what it saved, with its socket."""
    found: list[tuple[str, str]] = []

    class Local(Far):
        def run(self, *argv: str, **options: Any) -> Result:
            found.append((argv[-1], options["env"]["DOCKER_HOST"]))
            Path(argv[3]).write_text("an archive")
            return Result(argv, "local", 0, "", "", 0.0, False)

    @contextmanager
    def daemon(local: object) -> Iterator[str]:
        yield "unix:///building"

    monkeypatch.setattr(images, "folders", lambda: FOLDERS)
    monkeypatch.setattr(images, "tag", lambda folder: f"labkit/{folder.name}:1")
    monkeypatch.setattr(images, "ensure_images", lambda local, say: {})
    monkeypatch.setattr(engine, "building_daemon", daemon)
    monkeypatch.setattr(archives, "LocalHost", Local)
    monkeypatch.setattr(archives, "no_engine", lambda: "")
    return found


def bring(*hosts: Far, **options: Any) -> None:
    engines = {f"host{number}": (host, "unix:///far") for number, host in enumerate(hosts)}
    archives.bring_images(engines, lambda text: None, **options)  # type: ignore[arg-type]


def test_each_engine_gets_what_it_lacks_and_an_image_is_saved_once(
    saved: list[tuple[str, str]],
) -> None:
    has_one, has_none = Far("labkit/net:1"), Far()
    bring(has_one, has_none)
    assert has_one.got == ["labkit-python-1.tar"]
    assert has_none.got == ["labkit-net-1.tar", "labkit-python-1.tar"]
    assert saved == [(f"labkit/{name}:1", "unix:///building") for name in ("net", "python")]
    assert has_none.ran[-1][:2] == ("rm", "-rf")  # nothing stays there but the image


def test_nothing_is_saved_where_nothing_is_missing(saved: list[tuple[str, str]]) -> None:
    bring(Far("labkit/net:1", "labkit/python:1"))
    assert not saved


def test_an_archive_that_is_kept_needs_no_engine(
    saved: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "labkit-net-0.tar").touch()  # of the image as it was before
    bring(Far(), store=tmp_path)
    assert len(saved) == 2
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["labkit-net-1.tar", "labkit-python-1.tar"]
    monkeypatch.setattr(archives, "no_engine", lambda: "no dockerd is on this machine")
    again = Far()
    bring(again, store=tmp_path)
    assert len(saved) == 2 and len(again.got) == 2
    with pytest.raises(RigError, match="cannot make the images") as raised:
        bring(Far())
    assert raised.value.why == "no dockerd is on this machine"
