"""A campaign's files while it is measured: each is whole or absent, whenever the process dies.

The files are those of `labkit.data`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import operator
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from labkit.data import FORMAT, load
from labkit.design import digest, refuse_to_mix
from labkit.errors import LabkitError, UsageError
from labkit.status import LOCK

#: How a campaign's name begins; names sort as campaigns were begun.
_TIME = "%Y%m%d-%H%M%S"
#: Seconds without a trial after which another session begins.
PAUSE = 1800
#: The folder in which an attempt is gathered before it is renamed.
_PART = ".attempt"


def sync(path: Path) -> None:
    """Write a file or directory through to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with the format's version."""
    # Numbers of numpy are not JSON.
    text = json.dumps({"format": FORMAT, **data}, indent=1, default=operator.methodcaller("item"))
    write(path, f"{text}\n".encode())


def write_samples(
    path: Path, trial: str, attempt: int, columns: Mapping[str, NDArray[np.int64]]
) -> None:
    """Write an attempt's samples atomically, as deltas, which compress well."""
    count = max(map(len, columns.values()))
    keys = {
        "trial": pa.array([trial] * count, pa.string()),
        "attempt": pa.array([attempt] * count, pa.int32()),
    }
    buffer = BytesIO()
    encoding = dict.fromkeys(["attempt", *columns], "DELTA_BINARY_PACKED")
    options = {"compression": "zstd", "use_dictionary": ["trial"], "column_encoding": encoding}
    parquet.write_table(pa.table({**keys, **columns}), buffer, **options)
    write(path, buffer.getvalue())


def newest(folder: Path) -> Path | None:
    """Return the newest campaign in a study's folder, or None."""
    return max((plan.parent for plan in folder.glob("*/plan.json")), default=None)


def _stamp(last: Path | None) -> str:
    """Return the time as the name of a campaign after another, whatever the clock says."""
    now = datetime.now()
    if last is not None:
        with contextlib.suppress(ValueError):  # a folder that somebody named otherwise
            now = max(now, datetime.strptime(last.name[:15], _TIME) + timedelta(seconds=1))
    return now.strftime(_TIME)


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock that the kernel releases, on shared storage too, when its process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            handle.seek(0)
            raise UsageError(
                "another process measures this campaign",
                where=str(folder),
                why=handle.read(),
                remedy="let it end, or begin another campaign: --new, or another folder",
            ) from None
        except OSError as error:
            what, remedy = "a campaign cannot be locked", "measure into another file system"
            raise LabkitError(what, where=str(folder), why=str(error), remedy=remedy) from None
        handle.truncate(0)
        handle.write(f"process {os.getpid()} on {platform.node()}")
        handle.flush()
        try:
            yield
        finally:
            handle.truncate(0)


class Store:
    """One campaign's directory; open one with `resume_or_begin`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def resume_or_begin(cls, folder: Path, plan: Mapping[str, Any], *, new: bool) -> Store:
        """Return the newest campaign in a study's folder, or a new one.

        Raises `PlanMismatch` where it has another plan, and `UsageError` where it is packed.
        """
        with _locked(folder, wait=True):
            last = newest(folder)
            if last is None or new:
                store = cls(folder / f"{_stamp(last)}-{digest(plan['identity'])}")
                write_json(store.path / "plan.json", plan)
                return store
            refuse_to_mix(load(last).plan["identity"], plan["identity"], str(last))
            if (last / "trials.parquet").is_file():
                what, remedy = "a packed campaign cannot be continued", "begin another: --new"
                raise UsageError(what, where=str(last), remedy=remedy)
            return cls(last)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing, after removing the files of interrupted writes."""
        with _locked(self.path, wait=False):
            for path in self.path.rglob(".*.tmp"):
                path.unlink()
            shutil.rmtree(self.path / _PART, ignore_errors=True)
            stored = {path.name for path in self.path.glob("trials/*")}
            for path in self.path.glob("samples.parquet/*"):
                if path.stem not in stored:
                    path.unlink()
            yield

    def attempts(self) -> list[dict[str, Any]]:
        """Return the first row of every attempt, in the order of trials and attempts."""
        paths = self.path.glob("trials/*/trial.json")
        rows = [json.loads(path.read_text())["rows"][0] for path in paths]
        return sorted(rows, key=lambda row: (row["trial"], row["attempt"]))

    def session(self, facts: Mapping[str, Any], boot: str) -> int:
        """Return the session's number; write its facts if it is new.

        A boot, or a pause of more than `PAUSE` seconds, begins another session.
        """
        sessions = load(self.path).sessions
        ends = [path.stat().st_mtime for path in self.path.glob("trials/*")]
        paused = bool(ends) and time.time() - max(ends) > PAUSE
        if sessions and sessions[-1]["boot"] == boot and not paused:
            return int(sessions[-1]["session"])
        number = len(sessions) + 1
        session = {"session": number, "boot": boot, "facts": facts}
        session["began"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        write_json(self.path / "sessions.json", {"sessions": [*sessions, session]})
        return number

    def add(
        self,
        record: Mapping[str, Any],
        samples: Mapping[str, NDArray[np.int64]],
        logs: Mapping[str, str],
    ) -> None:
        """Store an attempt: its record with its rows, its samples, the output of its programs."""
        trial, attempt = (record["rows"][0][key] for key in ("trial", "attempt"))
        name, part = f"{trial}-a{attempt}", self.path / _PART
        if samples:
            path = self.path / "samples.parquet" / f"{name}.parquet"
            write_samples(path, trial, attempt, samples)
        part.mkdir()
        for log, text in logs.items():
            if text:
                (part / log).write_text(text)
                sync(part / log)
        write_json(part / "trial.json", record)
        trials = self.path / "trials"
        trials.mkdir(exist_ok=True)
        part.rename(trials / name)
        sync(trials)
        sync(self.path)
