"""The two forms of a campaign on disk.

As it is measured (`TrialFolders`), a directory for each attempt::

    sessions/01.json                    facts of every host, one file a session
    trials/b01-p03-a1/trial.json        commands, verification, evidence, outcome
    trials/b01-p03-a1/samples.parquet   integer columns, one row a sample
    trials/b01-p03-a1/tool.out, ...     output of the programs
    logs/01.log                         the log of a run, with times (UTC)

Packed (`PackedTables`), as ``labkit dataset pack`` writes it::

    sessions.json      all sessions
    trials.parquet     one row an attempt; nested values are JSON
    samples.parquet    one row a sample, one row group an attempt; every page has a checksum
    raw.tar.xz         trials/*/tool.out and logs/*.log, by their names above

Both have plan.json: identity, settings, factors, conditions, order, infeasible, rig; and looks.json
where looks are planned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from labkit.dataset import schema
from labkit.dataset.archive import read_archive, write_archive
from labkit.dataset.files import check_format, digest_of, files_of, read_json
from labkit.dataset.schema import check
from labkit.errors import DatasetError, suggestion
from labkit.process import in_threads

Record = dict[str, Any]
SESSIONS, TRIALS, SAMPLES, RAW = "sessions.json", "trials.parquet", "samples.parquet", "raw.tar.xz"
#: The remedy where the samples of a trial cannot be read.
REST = (
    "`trials` and the samples of other trials can still be read; restore the file from a backup, "
    "or remove its directory: the same run measures it again"
)
#: The key of a record with the digest of each other file in its directory.
DIGESTS = "sha256s"
#: The column of trials.parquet with the names of the measured columns, in their order.
_SAMPLED = "sampled"
_JSON = pa.json_()
_SAMPLES = {pa.int64(), pa.int32(), pa.float64()}
_TYPES = {pa.int64(), pa.float64(), pa.string(), _JSON}
#: A table may declare this many values, and this many more for each byte of its file. Without a
#: limit, a small file of repeated values could declare billions.
_VALUES, _VALUES_PER_BYTE = 4_000_000, 64
#: A table of trials may take this many bytes of memory, and this many more for each byte of its
#: file, which stores a repeated text once; they are counted each time so many rows were read.
_BYTES, _BYTES_PER_BYTE, _ROWS_AT_ONCE = 2**28, 1000, 64
#: Columns of samples.parquet that say which attempt a row is of.
KEYS = ("trial", "attempt")


@dataclass(frozen=True)
class Part:
    """The samples of one attempt: types by column, number of rows, function that reads columns."""

    where: str
    types: Mapping[str, Any]
    rows: int
    read: Callable[[list[str]], Any]


class TrialFolders:
    """A campaign as it is measured, a directory for each attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The digests of the files in each directory that was read, by name.
        self._digests: dict[str, dict[str, str]] = {}

    def sessions(self) -> list[Record]:
        """Return every session with the facts of its hosts, in order."""
        paths = (self.path / "sessions").glob("[0-9]*.json")
        in_order = sorted(paths, key=lambda path: int(path.stem))
        return [check(read_json(path), schema.Session, str(path)) for path in in_order]

    def records(self) -> list[Record]:
        """Return the record of every attempt, with the name of its directory."""
        return [self.record(path) for path in (self.path / "trials").glob("b*-p*-a*")]

    def record(self, directory: Path) -> Record:
        """Return the record in an attempt's directory, with the directory's name."""
        path = directory / "trial.json"
        record = check(read_json(path), schema.Record, str(path)) | {"directory": directory.name}
        self._digests[directory.name] = record.pop(DIGESTS, {})
        return record

    def where(self, record: Record) -> str:
        """Return the file that holds a record."""
        return str(self.path / "trials" / record["directory"] / "trial.json")

    def parts(self, records: Sequence[Record]) -> list[Part]:
        """Return the samples of attempts, reading only digests and the files' footers."""
        return in_threads(lambda one: _file(*self._with_digest(one["directory"], SAMPLES)), records)

    def raw(self) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of every output file and log."""
        for name in sorted(files_of(self.path, self.path)):
            top, _, rest = name.partition("/")
            if top == "logs":
                yield name, (self.path / name).read_bytes()
            elif top == "trials" and not name.endswith(("/trial.json", f"/{SAMPLES}")):
                path, digest = self._with_digest(*rest.split("/", 1))
                _check_digest(path, digest)
                yield name, path.read_bytes()

    def _with_digest(self, directory: str, name: str) -> tuple[Path, str | None]:
        """Return a file of an attempt, and its digest; None where it was written without."""
        folder = self.path / "trials" / directory
        if directory not in self._digests:
            self.record(folder)
        return folder / name, self._digests[directory].get(name)


def _check_digest(path: Path, digest: str | None) -> None:
    """Raise `DatasetError` unless a file has the digest in its trial's record, if it has one."""
    if digest and digest_of(path) != digest:
        raise DatasetError(
            "a file of a trial is damaged",
            where=str(path),
            why="it was altered: it has another digest than in its trial.json",
            remedy=REST,
        )


def _file(path: Path, digest: str | None) -> Part:
    def read(names: list[str]) -> Any:
        # The first call of read_table would spend a second on imports.
        return _reading(str(path), lambda: parquet.ParquetFile(path).read(names, use_threads=False))

    def checked() -> Any:
        _check_digest(path, digest)
        return _footer_of(path)

    metadata = _reading(str(path), checked)
    types = _reading(str(path), lambda: _types(metadata.schema.to_arrow_schema()))
    return Part(str(path), types, metadata.num_rows, read)


def _footer_of(path: Path) -> Any:
    """Return a table's footer; raise `ValueError` if it declares more than it can hold."""
    footer, size = parquet.read_metadata(path), path.stat().st_size
    if not 0 <= footer.num_rows * footer.num_columns <= _VALUES + _VALUES_PER_BYTE * size:
        declared = f"{footer.num_rows} rows of {footer.num_columns} columns"
        raise ValueError(f"it declares {declared} in {size} bytes")
    return footer


def _bounded_table(path: Path) -> Any:
    """Return a table; raise `ValueError` if it holds far more than its file."""
    footer, size = _footer_of(path), path.stat().st_size
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    file = parquet.ParquetFile(path, metadata=footer, page_checksum_verification=True)
    _check_bytes(sum(group.total_byte_size for group in groups), size)
    batches, held = [], 0
    for batch in file.iter_batches(_ROWS_AT_ONCE):
        batches.append(batch)
        held += batch.nbytes
        _check_bytes(held, size)
    return pa.Table.from_batches(batches, file.schema_arrow)


def _check_bytes(held: int, size: int) -> None:
    if held > _BYTES + _BYTES_PER_BYTE * size:
        raise ValueError(f"it holds {held} bytes or more in {size}")


def _types(fields: Any) -> dict[str, Any]:
    """Return the types of columns by name; raise `ValueError` for others than labkit writes."""
    types = {field.name: field.type for field in fields}
    odd = [name for name, kind in types.items() if name not in KEYS and kind not in _SAMPLES]
    if odd or len(types) < len(fields):
        raise ValueError(f"columns that are no samples: {', '.join(odd) or 'two of one name'}")
    return types


def _reading(where: str, read: Callable[[], Any]) -> Any:
    """Call `read`, and raise its errors as `DatasetError` with the file and a remedy."""
    try:
        return read()
    except FileNotFoundError:
        raise DatasetError("a trial has lost its samples", where=where, remedy=REST) from None
    except (OSError, ValueError, NotImplementedError) as error:  # the bases of pyarrow's errors
        raise DatasetError(
            "the samples of a trial are damaged", where=where, why=str(error), remedy=REST
        ) from None


class PackedTables:
    """A campaign as ``labkit dataset pack`` writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sessions(self) -> list[Record]:
        """Return every session with the facts of its hosts, in order."""
        where = self.path / SESSIONS
        data = check(read_json(where), schema.Sessions, str(where))
        sessions = [check_format(one, str(where)) for one in data["sessions"]]
        return [check(one, schema.Session, str(where)) for one in sessions]

    @cached_property
    def _rows(self) -> list[tuple[Record, tuple[str, ...]]]:
        """Record and measured columns of every attempt."""
        path = self.path / TRIALS
        try:
            table = _bounded_table(path)
            if unknown := set(table.schema.types) - _TYPES:
                raise ValueError(f"columns of type {', '.join(map(str, unknown))}")
            nested = [one.name for one in table.schema if one.type == _JSON]
            rows = []
            for row in table.to_pylist():
                record = {name: value for name, value in row.items() if value is not None}
                record |= {name: json.loads(record[name]) for name in nested if name in record}
                sampled = record.pop(_SAMPLED)
                if not isinstance(sampled, list) or not all(isinstance(x, str) for x in sampled):
                    raise ValueError(f"{_SAMPLED} has no names of columns")
                rows.append((record, tuple(sampled)))
        except (OSError, ValueError, LookupError, NotImplementedError) as error:
            raise DatasetError(
                "the table of trials is damaged",
                where=str(path),
                why=str(error),
                remedy="restore it from a backup; samples.parquet names the trial of each sample",
            ) from None
        for record, _ in rows:
            check(check_format(record, str(path)), schema.Record, str(path))
            record["directory"] = directory_of(record)
        return rows

    def records(self) -> list[Record]:
        """Return the record of every attempt, with the name of its former directory."""
        return [dict(record) for record, _ in self._rows]

    def where(self, record: Record) -> str:
        """Return the table and attempt of a record."""
        return f"{self.path / TRIALS}, {record['directory']}"

    @cached_property
    def _footer(self) -> Any:
        path = self.path / SAMPLES
        return _reading(str(path), lambda: _footer_of(path))

    @cached_property
    def _groups(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Row group and measured columns of each attempt with samples."""
        named = [(record["directory"], sampled) for record, sampled in self._rows if sampled]
        return {name: (number, sampled) for number, (name, sampled) in enumerate(named)}

    def parts(self, records: Sequence[Record]) -> list[Part]:
        """Return the samples of attempts, reading only the file's footer."""
        footer, where = self._footer, str(self.path / SAMPLES)
        types = _reading(where, lambda: _types(footer.schema.to_arrow_schema()))
        return [self._part(record, types) for record in records]

    def _part(self, record: Record, types: Mapping[str, Any]) -> Part:
        path, footer = self.path / SAMPLES, self._footer
        where = f"{path}, {record['directory']}"
        number, names = self._groups.get(record["directory"], (footer.num_row_groups, ()))
        if number >= footer.num_row_groups or not {*names, *KEYS} <= set(types):
            raise DatasetError("a trial has lost its samples", where=where, remedy=REST)

        def read(columns: list[str]) -> Any:
            # As a dictionary, a name that every row repeats is held once.
            file = parquet.ParquetFile(
                path, metadata=footer, page_checksum_verification=True, read_dictionary=KEYS[:1]
            )
            # The caller has threads of its own.
            table = file.read_row_group(number, [*KEYS, *columns], use_threads=False)
            for key in KEYS:
                if table[key].unique().to_pylist() != [record[key]]:
                    raise ValueError(f"these are samples of another {key}")
            return table.select(columns)

        sampled = {name: types[name] for name in names}
        rows = footer.row_group(number).num_rows
        return Part(where, sampled, rows, lambda columns: _reading(where, lambda: read(columns)))

    def raw(self) -> Iterator[tuple[str, bytes]]:
        """Yield name and content of every file in the archive of raw output."""
        path = self.path / RAW
        return read_archive(path) if path.is_file() else iter(())


def storage_of(path: Path) -> TrialFolders | PackedTables:
    """Return the reader of the campaign in a folder."""
    return PackedTables(path) if (path / TRIALS).is_file() else TrialFolders(path)


def directory_of(record: Mapping[str, Any]) -> str:
    """Return the name of an attempt's directory."""
    return f"{record['trial']}-a{record['attempt']}"


def read_samples(
    parts: Sequence[Part],
    records: Sequence[Record],
    columns: Sequence[str] | None,
    reduce: Callable[[NDArray[Any]], Any] | None = None,
) -> tuple[list[int], dict[str, NDArray[Any]]]:
    """Return the number of samples of each trial, and each column of all trials.

    A column is allocated once and filled by threads, so that there is no second copy. With `reduce`
    a column has what it returns for each trial, and a thread holds the samples of one trial.
    """
    shared = [name for name in parts[0].types if all(name in part.types for part in parts)]
    names = shared if columns is None else list(columns)
    for part, record in zip(parts, records, strict=True):
        if missing := [name for name in names if name not in part.types]:
            raise DatasetError(
                f"{', '.join(map(repr, missing))} was not measured",
                where=part.where,
                remedy=suggestion(missing[0], part.types),
            )
        check_rows(part, record)
    counts = [part.rows for part in parts]
    types = {
        name: np.result_type(*[part.types[name].to_pandas_dtype() for part in parts])
        for name in names
    }
    size = len(parts) if reduce else sum(counts)
    arrays: dict[str, NDArray[Any]] = {
        name: np.empty(size, object if reduce else types[name]) for name in names
    }
    ends = np.cumsum(counts)

    def fill(number: int) -> None:
        table = parts[number].read(names)
        for name in names:
            if table[name].null_count:
                where = parts[number].where
                raise DatasetError("samples are missing in a trial", where=where, why=name)
            if reduce:
                array = table[name].to_numpy().astype(types[name], copy=False)
                arrays[name][number] = reduce(array)
                continue
            start = ends[number] - len(table)
            for chunk in table[name].chunks:
                arrays[name][start : start + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
                start += len(chunk)

    in_threads(fill, range(len(parts)))
    return counts, arrays


def check_rows(part: Part, record: Record) -> None:
    """Raise `DatasetError` unless an attempt has as many samples as its record says."""
    if part.rows != record["n_samples"]:
        raise DatasetError(
            "samples of a trial are missing",
            where=part.where,
            why=f"{part.rows} rows, but {record['n_samples']} in the trial's record",
            remedy=REST,
        )


# -- writing the packed form


def write_packed(
    source: TrialFolders | PackedTables, records: Sequence[Record], target: Path
) -> None:
    """Write the packed form of a campaign without its plan; equal data give equal bytes."""
    target.mkdir(parents=True, exist_ok=True)
    sessions = {"format": 1, "sessions": source.sessions()}
    (target / SESSIONS).write_text(json.dumps(sessions, indent=1) + "\n")
    sampled = [one for one in records if one["n_samples"]]
    parts = dict(zip(map(directory_of, sampled), source.parts(sampled), strict=True))
    names = {directory: list(part.types) for directory, part in parts.items()}
    table = _trials_table(records, names)
    parquet.write_table(
        table, target / TRIALS, compression="zstd", compression_level=19, write_page_checksum=True
    )
    if parts:
        _write_samples(sampled, list(parts.values()), target / SAMPLES)
    write_archive(source.raw(), target / RAW)


def _trials_table(records: Sequence[Record], sampled: Mapping[str, list[str]]) -> Any:
    """Return records as a table of numbers, strings, and JSON for other values."""
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(key for record in records for key in record if key != "directory"):
        kinds = {type(record[name]) for record in records if name in record}
        plain = {int: pa.int64(), float: pa.float64(), str: pa.string()}
        kind = plain.get(next(iter(kinds))) if len(kinds) == 1 else None
        values = [record.get(name) for record in records]
        if kind is None:
            kind = _JSON
            values = [json.dumps(one[name]) if name in one else None for one in records]
        columns[name] = pa.array(values, kind)
    names = [json.dumps(sampled.get(directory_of(record), [])) for record in records]
    columns[_SAMPLED] = pa.array(names, _JSON)
    return pa.table(columns)


def _write_samples(records: Sequence[Record], parts: Sequence[Part], path: Path) -> None:
    """Write the samples of all attempts, one row group each, one attempt in memory at a time."""
    types: dict[str, Any] = {}
    for part in parts:
        for name, kind in part.types.items():
            if name in KEYS or types.setdefault(name, kind) != kind:
                raise DatasetError(f"samples cannot be packed: {name}: {kind}", where=part.where)
    schema = pa.schema([("trial", pa.string()), ("attempt", pa.int32()), *types.items()])
    with parquet.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=19,
        use_dictionary=list(KEYS),
        column_encoding=_encodings(parts, types),
        write_statistics=list(KEYS),
        write_page_checksum=True,
    ) as writer:
        for record, part in zip(records, parts, strict=True):
            check_rows(part, record)
            table = part.read(list(part.types))
            columns = {name: table[name] for name in part.types}
            columns["trial"] = pa.array([record["trial"]] * part.rows, pa.string())
            columns["attempt"] = pa.array([record["attempt"]] * part.rows, pa.int32())
            absent = {
                name: pa.nulls(part.rows, types[name]) for name in types if name not in columns
            }
            rows = pa.table({name: (columns | absent)[name] for name in schema.names})
            writer.write_table(rows, row_group_size=part.rows)


def _encodings(parts: Sequence[Part], types: Mapping[str, Any]) -> dict[str, str]:
    """Return the encoding of each column: deltas for increasing times, else byte streams."""
    encodings = {}
    for name in types:
        part = next(part for part in parts if name in part.types)
        values = part.read([name])[name].to_numpy()
        rising = pa.types.is_integer(types[name]) and bool(np.all(values[1:] >= values[:-1]))
        encodings[name] = "DELTA_BINARY_PACKED" if rising else "BYTE_STREAM_SPLIT"
    return encodings
