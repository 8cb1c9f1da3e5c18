"""The samples of trials, from their Parquet files: which columns there are, and their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from labkit.dataset.files import in_threads
from labkit.errors import DatasetError

#: What can be done about a trial whose samples do not read.
REST = (
    "every row of `trials`, and the samples of other trials, still read; take the file from a "
    "backup, or remove its directory: the same run measures it again"
)


def columns_of(paths: list[Path]) -> list[tuple[str, ...]]:
    """Return the measured columns of each file; the samples themselves are not read."""
    schemas = in_threads(lambda path: _reading(path, parquet.read_schema), paths)
    return [tuple(schema.names) for schema in schemas]


def read_columns(
    paths: list[Path], due: list[int], wanted: list[str] | None
) -> tuple[list[int], dict[str, NDArray[Any]]]:
    """Return the number of samples of each trial, and each measured column of all of them.

    A column is allocated once, in large pages, and threads fill it: there is no second copy.
    """
    about = in_threads(lambda path: _reading(path, parquet.read_metadata), paths)
    schemas = [one.schema.to_arrow_schema() for one in about]
    counts = [one.num_rows for one in about]
    shared = [name for name in schemas[0].names if all(name in one.names for one in schemas)]
    names = shared if wanted is None else wanted
    for path, schema in zip(paths, schemas, strict=True):
        if lacking := [name for name in names if name not in schema.names]:
            raise DatasetError(
                f"{lacking} was not measured", where=str(path), remedy=f"there is {schema.names}"
            )
    for path, count, wants in zip(paths, counts, due, strict=True):
        if count != wants:
            why = f"{count} rows, and {wants} in trial.json"
            what = "the samples of a trial are not all there"
            raise DatasetError(what, where=str(path), why=why, remedy=REST)
    columns: dict[str, NDArray[Any]] = {
        name: np.empty(
            sum(counts),
            np.result_type(*[one.field(name).type.to_pandas_dtype() for one in schemas]),
        )
        for name in names
    }
    ends = np.cumsum(counts)

    def fill(number: int) -> None:
        path = paths[number]  # not read_table, whose first call spends a second on imports
        table = _reading(path, lambda path: parquet.ParquetFile(path).read(names))
        for name in names:
            if table[name].null_count:
                raise DatasetError("samples are missing in a trial", where=str(path), why=name)
            start = ends[number] - len(table)
            for chunk in table[name].chunks:
                columns[name][start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
                start += len(chunk)

    in_threads(fill, range(len(paths)))
    return counts, columns


def _reading(path: Path, read: Callable[[Path], Any]) -> Any:
    """Return what `read` makes of a file of samples; what stops it is told with the path."""
    try:
        return read(path)
    except FileNotFoundError:
        raise DatasetError("a trial has lost its samples", where=str(path), remedy=REST) from None
    except (OSError, ValueError, NotImplementedError) as error:  # what pyarrow's derive from
        raise DatasetError(
            "the samples of a trial are damaged",
            where=str(path),
            why=str(error),
            remedy=REST,
        ) from None
