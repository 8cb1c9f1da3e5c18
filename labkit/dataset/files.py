"""Files of a dataset: JSON with the version of the format, folders of campaigns, digests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from labkit.dataset import schema
from labkit.dataset.archive import is_inside
from labkit.dataset.schema import RESTORE
from labkit.errors import DatasetError

FORMAT = 1
#: The digest of every file, as ``sha256sum`` writes and checks them.
SUMS = "SHA256SUMS"
#: What was decided at the planned looks of a campaign.
LOOKS = "looks.json"
#: Most bytes that a JSON file or a list of digests may have: a sparse file could fill the memory.
_BYTES = 32 << 20
_Item = TypeVar("_Item")


def progress(items: Iterable[_Item], title: str) -> Iterable[_Item]:
    """Iterate behind a progress bar on standard error, which appears after two seconds."""
    import tqdm

    # tqdm's monitor is a thread that would wake up during a measurement of this process.
    tqdm.tqdm.monitor_interval = 0
    bar: Iterable[_Item] = tqdm.tqdm(
        items, f"labkit: {title}", unit="file", delay=2, leave=False, dynamic_ncols=True
    )
    return bar


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file of this dataset format."""
    try:
        data = parse_json(_text(path))
    except FileNotFoundError:
        raise DatasetError(
            "a file of the dataset is missing", where=str(path), remedy="see `labkit run --help`"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(
            "a file of the dataset is damaged", where=str(path), why=str(error), remedy=RESTORE
        ) from None
    return check_format(data, str(path))


#: How a JSON file of a campaign begins: the digest of all that follows.
_DIGEST = re.compile(r'\{\n "sha256": "([^"\n]*)",\n')


def json_text(data: Mapping[str, Any], default: Callable[[Any], Any] | None = None) -> str:
    """Return a JSON object as `parse_json` reads it, beginning with the digest of the rest."""
    plain = {name: value for name, value in data.items() if name != "sha256"}
    text = json.dumps(plain, indent=1, default=default)[2:] + "\n"
    return f'{{\n "sha256": "{hashlib.sha256(text.encode()).hexdigest()}",\n{text}'


def parse_json(text: str) -> Any:
    """Return JSON data; raise `ValueError` where they are not those of the digest before them."""
    match = _DIGEST.match(text)
    if match and hashlib.sha256(text[match.end() :].encode()).hexdigest() != match[1]:
        raise ValueError("it was altered: its contents have another digest")
    data = json.loads(text)
    if isinstance(data, dict):
        data.pop("sha256", None)
    return data


def _text(path: Path, errors: str = "strict") -> str:
    """Return a file's text; raise `ValueError` where it is larger than any that labkit writes."""
    with path.open("rb") as file:
        content = file.read(_BYTES + 1)
    if len(content) > _BYTES:
        raise ValueError(f"it has more than {_BYTES >> 20} MiB")
    return content.decode(errors=errors)


def read_looks(campaign: Path) -> list[dict[str, Any]]:
    """Return the looks that a campaign took, the first one first; [] where none was."""
    path = campaign / LOOKS
    if not path.is_file():
        return []
    return list(schema.check(read_json(path), schema.Looks, str(path))["looks"])


def check_format(data: Any, where: str) -> dict[str, Any]:
    """Return a JSON object if this labkit reads its format, else raise `DatasetError`."""
    number = data.get("format") if isinstance(data, dict) else None
    if type(number) is not int:
        raise DatasetError("not a file of a labkit dataset", where=where, why="no format")
    if number > FORMAT:
        raise DatasetError(
            f"dataset format {number} is newer than this labkit reads ({FORMAT})",
            where=where,
            remedy="update labkit",
        )
    return dict(data)


def campaigns(folder: Path | str) -> list[Path]:
    """Return the campaign directories in a study's folder, oldest first."""
    return sorted(plan.parent for plan in Path(folder).glob("*/plan.json"))


def by_time(path: Path) -> tuple[str, Path]:
    """Return a key that sorts campaigns as they were begun, whichever folders they are in."""
    return path.name, path


def campaigns_within(folder: Path) -> list[Path]:
    """Return every campaign directory in a folder, at any depth, and the folder itself."""
    refuse_archive(folder)
    paths = sorted((plan.parent for plan in folder.rglob("plan.json")), key=by_time)
    if not paths:
        raise DatasetError(
            "no campaign here",
            where=str(folder),
            why="there is no plan.json at any depth",
            remedy="measure one first: labkit run --profile tiny",
        )
    return paths


def refuse_archive(path: Path) -> None:
    """Raise `DatasetError` if `path` is a file or inside one, such as an archive."""
    archive = next((part for part in (path, *path.parents) if part.is_file()), None)
    if archive is not None:
        folder = archive.name.partition(".tar")[0]
        raise DatasetError(
            "a dataset is read from a folder, and this is a file",
            where=str(archive),
            remedy=f"unpack it: tar -xf {archive}; then give the folder {folder}",
        )


def files_of(folder: Path, within: Path) -> Iterator[str]:
    """Yield the names of the files in `within`, relative to `folder`, without hidden ones."""
    for path in within.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in name.parts):
            yield name.as_posix()


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(path: Path) -> dict[str, str]:
    """Return the digest of every file that SHA256SUMS lists, by its name."""
    try:
        text = _text(path, "replace")
    except (OSError, ValueError) as error:
        raise DatasetError(
            "a dataset without SHA256SUMS cannot be verified",
            where=str(path),
            why=getattr(error, "strerror", None) or str(error),
            remedy=f"labkit dataset describe {path.parent} writes it; the data can be read without",
        ) from None
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        digest, gap, name = line.partition("  ")
        if len(digest) != 64 or not gap or not is_inside(name):
            raise DatasetError(
                "the list of files is damaged",
                where=f"{path}, line {number}",
                why=f"{line[:100]!r} is not a digest and a name",
                remedy="labkit.load still reads the folder of each campaign",
            )
        sums[name] = digest
    return sums


def write_sums(path: Path, sums: dict[str, str]) -> None:
    """Write the list of files as ``sha256sum --check`` reads it, sorted by name."""
    path.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
