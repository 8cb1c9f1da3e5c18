"""From a number to its trial: the attempts as a table, and the files of one of them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from labkit.dataset.files import read_json
from labkit.errors import DatasetError
from labkit.explore.part import Part
from labkit.explore.quantity import with_unit
from labkit.explore.study import Explored
from labkit.report.text import number as written

#: As many rows as are shown.
MOST_ROWS = 500


def attempts(part: Part) -> tuple[pd.DataFrame, str]:
    """Return the attempts with the chosen levels as text, by directory, and how many there are.

    Failed ones and those that lack the number are among them.
    """
    study = part.study
    table = study.within(study.attempts, part.choice.levels)
    numbers = dict(zip(part.trials["trial"], part.trials[part.number] * part.scale, strict=True))
    beside = {}
    if counter := study.counters.get(part.choice.counter):
        name = with_unit(counter.text, counter.shown_unit)
        beside[name] = _numbers(table[counter.name], counter.scale)
    ok = (table["status"] == "ok").to_numpy()
    failed, flagged = int((~ok).sum()), int((table["flags"] != "").sum())
    shown = pd.DataFrame(
        {
            "trial": table["trial"].astype(str),
            "block": table["block"].astype(str),
            "copy": table["copy"].astype(str),
            "session": table["session"].astype(str),
            **{name: table[name].astype(str) for name in study.varying},
            "status": table["status"].astype(str),
            with_unit(part.number, part.unit): [
                written(numbers[trial]) if fine and trial in numbers else ""
                for trial, fine in zip(table["trial"], ok, strict=True)
            ],
            **beside,
            "began, UTC": [_time(one) for one in table["started_ns"]],
            "flags": table["flags"].astype(str),
            "problems": table["problems"].astype(str),
        }
    )
    shown.index = pd.Index(directories(table))
    text = f"{len(shown)} attempts, {failed} failed, {flagged} with a flag."
    if len(shown) > MOST_ROWS:
        text += f" The table has the first {MOST_ROWS}: choose fewer levels to see the others."
    return shown.head(MOST_ROWS), text


def directories(table: pd.DataFrame) -> list[str]:
    """Return the directory of each attempt; conditions of one trial share theirs."""
    return [
        f"{trial.partition('/')[0]}-a{attempt}"
        for trial, attempt in zip(table["trial"], table["attempt"], strict=True)
    ]


def _numbers(column: pd.Series[float], scale: float) -> list[str]:
    numbers = pd.to_numeric(column, errors="coerce").astype(float) * scale
    return ["" if pd.isna(one) else written(one) for one in numbers]


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(int(nanoseconds) // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def files(study: Explored, directory: str) -> tuple[pd.DataFrame, str]:
    """Return the files of an attempt as a table by name, and where they lie.

    Raises
    ------
    DatasetError
        The directory is not there.
    """
    folder = study.dataset.path / "trials" / directory
    if not folder.is_dir():
        raise DatasetError("this attempt has no directory", where=str(folder))
    found = sorted(path for path in folder.iterdir() if path.is_file())
    table = pd.DataFrame(
        {
            "bytes": [f"{path.stat().st_size:,}" for path in found],
            "what it is": [_meaning(path) for path in found],
        },
        index=pd.Index([path.name for path in found]),
    )
    commands = [" ".join(one) for one in read_json(folder / "trial.json").get("commands", [])]
    ran = f" It ran: {'; '.join(commands)}." if commands else ""
    return table, f"The files are in {folder}.{ran}"


def _meaning(path: Path) -> str:
    known = {
        "trial.json": "the whole record: levels, readback, evidence, commands, outcome",
        "samples.parquet": f'the samples: pandas.read_parquet("{path}")',
    }
    return known.get(path.name, "what a program printed")
