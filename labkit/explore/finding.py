"""Which campaigns there are to explore: in a folder, in an archive, or loaded already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labkit.dataset import Dataset
from labkit.dataset.archive import opened
from labkit.dataset.files import campaigns_within
from labkit.errors import DatasetError
from labkit.paths import project


@dataclass(frozen=True)
class Source:
    """A campaign of which nothing was read yet.

    Parameters
    ----------
    name : str
        How it is listed.
    home : str
        The path to it, as the reader would write it.
    dataset : Dataset
        The campaign.
    """

    name: str
    home: str
    dataset: Dataset


def find(where: str | Path | Dataset) -> list[Source]:
    """Return every campaign in a folder or an archive, by name; see `labkit.explore.explore`.

    Raises
    ------
    DatasetError
        There is none, there is no such folder, or an archive is damaged.
    """
    if isinstance(where, Dataset):
        return [Source(where.path.name, str(where.path), where)]
    path = project(Path(where).expanduser())
    folder = opened(path)
    if not folder.is_dir():
        raise DatasetError(
            "there is no such folder or archive",
            where=str(path),
            why="" if Path(where).is_absolute() else "a relative path starts at the project",
            remedy="name a folder with campaigns (data/reference, data/local), one campaign, or an "
            "archive of `labkit dataset pack`",
        )
    found = []
    for campaign in campaigns_within(folder):
        inside = campaign.relative_to(folder).as_posix()
        name, home = (path.name, str(where)) if inside == "." else (inside, f"{where}/{inside}")
        found.append(Source(name, home, Dataset(campaign)))
    return found
