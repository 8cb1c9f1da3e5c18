"""Writing a campaign, with every file and trial complete or absent whenever the process dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from labkit.dataset import FORMAT, campaigns, read_json
from labkit.dataset.files import LOOKS, digest_of, json_text
from labkit.dataset.storage import DIGESTS, TRIALS, directory_of
from labkit.design import digest, refuse_to_mix
from labkit.errors import LabkitError, UsageError

#: How a campaign's name begins; names sort as campaigns were begun.
_TIME = "%Y%m%d-%H%M%S"


def sync(path: Path) -> None:
    """Write a file or directory through to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with the format's version and the digest of its contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json_text({"format": FORMAT, **data}, _plain))
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON data")


def write_samples(path: Path, columns: Mapping[str, NDArray[np.int64]]) -> None:
    """Write integer columns as deltas, which compress well."""
    table = pa.table(
        {name: values.astype(np.int64, casting="safe") for name, values in columns.items()}
    )
    parquet.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=False,
        column_encoding=dict.fromkeys(columns, "DELTA_BINARY_PACKED"),
    )


def _refuse_packed(path: Path) -> None:
    """Raise `UsageError` where a campaign is stored as tables, which cannot grow."""
    if (path / TRIALS).is_file():
        raise UsageError(
            "a packed campaign cannot be continued",
            where=str(path),
            remedy="measure into another folder (--into), or begin another campaign (--new)",
        )


def _stamp(paths: Sequence[Path]) -> str:
    """Return the time as the name of a campaign that is the newest, whatever the clock says."""
    now = datetime.now()
    for path in paths:
        with contextlib.suppress(ValueError):  # a folder that somebody named otherwise
            last = datetime.strptime(path.name[:15], _TIME)
            now = max(now, last + timedelta(seconds=1))
    return now.strftime(_TIME)


#: Seconds without a trial after which another session begins.
PAUSE = 1800


#: Locked by the process that writes to a folder; it names that process.
_LOCK = ".lock"


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock that the kernel releases, on shared storage too, when its process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            handle.seek(0)
            raise UsageError(
                "another process measures this campaign",
                where=str(path.parent),
                why=handle.read(),
                remedy="let it end, or begin another campaign: --new, or another folder",
            ) from None
        except OSError as error:
            raise LabkitError(
                "the folder of a campaign cannot be locked",
                where=str(path.parent),
                why=str(error),
                remedy="measure into a folder whose file system has locks",
            ) from None
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {platform.node()}")
        handle.flush()
        yield


class Store:
    """One campaign's directory; open one with `resume_or_begin`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def resume_or_begin(cls, folder: Path, plan: Mapping[str, Any], *, new: bool) -> Store:
        """Return the newest campaign in a study's folder, or a new one.

        Raises
        ------
        PlanMismatch
            The newest campaign has another plan, and `new` is false.
        UsageError
            It is packed.
        """
        with _locked(folder / _LOCK, wait=True):
            return cls._resume_or_begin(folder, plan, new=new)

    @classmethod
    def _resume_or_begin(cls, folder: Path, plan: Mapping[str, Any], *, new: bool) -> Store:
        for torn in folder.glob("*/.plan.json.tmp"):  # killed before it was a campaign
            if [path.name for path in torn.parent.iterdir()] == [torn.name]:
                shutil.rmtree(torn.parent)
        paths = campaigns(folder)
        if paths and not new:
            stored = read_json(paths[-1] / "plan.json")
            refuse_to_mix(stored["identity"], plan["identity"], str(paths[-1]))
            _refuse_packed(paths[-1])
            return cls(paths[-1])
        store = cls(folder / f"{_stamp(paths)}-{digest(plan['identity'])}")
        write_json(store.path / "plan.json", plan)
        return store

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes, also of other machines, from writing to the campaign.

        The files of interrupted writes are removed first.
        """
        with _locked(self.path / _LOCK, wait=False):
            self.sweep()
            yield

    def sweep(self) -> None:
        """Remove the files of interrupted writes."""
        for path in [*self.path.rglob(".*.tmp"), *self.path.rglob(".*.part")]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def write_looks(self, looks: Sequence[Mapping[str, Any]]) -> None:
        """Store the looks that were taken."""
        write_json(self.path / LOOKS, {"looks": looks})

    def attempts(self) -> dict[str, list[str]]:
        """Return the status of every attempt, by trial, in the order of the attempts."""
        records = [read_json(path) for path in self.path.glob("trials/b*-p*-a*/trial.json")]
        statuses: dict[str, list[str]] = {}
        for record in sorted(records, key=lambda one: (one["trial"], one["attempt"])):
            statuses.setdefault(record["trial"], []).append(record["status"])
        return statuses

    def last_attempt(self, trial: str) -> int:
        """Return the number of the last attempt at a trial, or 0."""
        paths = (self.path / "trials").glob(f"{trial}-a*")
        return max((int(path.name.rpartition("-a")[2]) for path in paths), default=0)

    def session(self, facts: Mapping[str, Any], boot: str) -> int:
        """Return the session's number; write its facts if it is new.

        A boot, or a pause of more than `PAUSE` seconds, begins another session.
        """
        folder = self.path / "sessions"
        numbers = sorted(int(path.stem) for path in folder.glob("[0-9]*.json"))
        trials = [path.stat().st_mtime for path in (self.path / "trials").glob("b*")]
        paused = bool(trials) and time.time() - max(trials) > PAUSE
        last = read_json(folder / f"{numbers[-1]:02d}.json")["boot"] if numbers else None
        if last == boot and not paused:
            return numbers[-1]
        number = numbers[-1] + 1 if numbers else 1
        began = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        record = {"session": number, "boot": boot, "began": began, "facts": facts}
        write_json(folder / f"{number:02d}.json", record)
        return number

    def add(
        self,
        record: Mapping[str, Any],
        samples: Mapping[str, NDArray[np.int64]],
        logs: Mapping[str, str],
    ) -> Path:
        """Store an attempt; its directory is renamed into place when all of it is on disk."""
        name = directory_of(record)
        folder = self.path / "trials"
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        if samples:
            write_samples(part / "samples.parquet", samples)
        for log, text in logs.items():
            if text:
                (part / log).write_text(text)
        digests = {path.name: digest_of(path) for path in sorted(part.iterdir())}
        write_json(part / "trial.json", {**record, DIGESTS: digests})
        for path in part.iterdir():
            sync(path)
        final = folder / name
        part.rename(final)
        sync(folder)
        return final
