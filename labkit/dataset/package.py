"""Packing a dataset into a few files or an archive, and verifying a described dataset."""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.dataset.archive import add_file
from labkit.dataset.describe import (
    CITATION,
    LICENCE,
    LICENSE,
    PACKAGE,
    PACKED_FILES,
    README,
    Campaign,
    Description,
    campaigns_of,
    describe,
    kinds_of,
    refuse_changed,
    table_types,
)
from labkit.dataset.files import (
    LOOKS,
    SUMS,
    campaigns_within,
    digest_of,
    files_of,
    progress,
    read_json,
    read_sums,
    refuse_archive,
)
from labkit.dataset.storage import (
    RAW,
    SAMPLES,
    SESSIONS,
    TRIALS,
    PackedTables,
    TrialFolders,
    check_rows,
    storage_of,
    write_packed,
)
from labkit.errors import DatasetError, UsageError
from labkit.paths import SHIPPED


def pack(folder: Path, output: Path) -> Description:
    """Write the packed form of the campaigns in a folder, with description, README and licence.

    Equal data and library versions give equal bytes: times, owners and modes in an archive are
    fixed, and its files sorted. It is a plain tar, as its files are compressed.

    Parameters
    ----------
    folder : Path
        The folder with the campaigns, which is not changed.
    output : Path
        An archive if its name ends in ``.tar``, else a new folder.

    Raises
    ------
    UsageError
        The output exists already, or is in `folder`.
    DatasetError
        The output cannot be written, or data are missing or altered since they were described.
    """
    folder, output = folder.resolve(), output.resolve()
    if output.is_relative_to(folder):
        raise UsageError("the output cannot be in the folder that is packed", where=str(output))
    if output.exists():
        raise UsageError("the output exists already", where=str(output))
    refuse_changed(folder)
    part = output.with_name(f".{output.name}.part")
    # The name of the packed folder is part of its description.
    packed = part / (folder.name if output.suffix == ".tar" else output.name)
    try:
        shutil.rmtree(part, ignore_errors=True)
        packed.mkdir(parents=True)
        description = _fill(folder, packed)
        if output.suffix == ".tar":
            _archive(packed, part / output.name)
        (part / output.name).rename(output)
    except OSError as error:
        raise DatasetError(
            "the packed dataset cannot be written", where=str(output), why=str(error)
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return description


def _fill(folder: Path, target: Path) -> Description:
    campaigns = campaigns_of(folder)
    for campaign in progress(campaigns, "packing"):
        home, data = target / campaign.home, campaign.data
        if campaign.packed:
            hidden = shutil.ignore_patterns(".*")
            shutil.copytree(data.path, home, dirs_exist_ok=True, ignore=hidden)
        else:
            write_packed(storage_of(data.path), data.records, home)
            for name in ("plan.json", LOOKS):
                if (data.path / name).is_file():
                    shutil.copyfile(data.path / name, home / name)
    (target / README).write_text(_readme(target.name, campaigns))
    shutil.copyfile(SHIPPED / "data/LICENSE", target / LICENSE)
    if (folder / CITATION).is_file():
        shutil.copyfile(folder / CITATION, target / CITATION)
    return describe(target)


def _archive(folder: Path, path: Path) -> None:
    names = [SUMS, *read_sums(folder / SUMS)]
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            add_file(archive, f"{folder.name}/{name}", (folder / name).read_bytes())


def _readme(name: str, campaigns: list[Campaign]) -> str:
    rows = [
        f"| `{one.home or '.'}` | {one.study} | {one.measured()} | {one.counted()} |"
        for one in campaigns
    ]
    table = "\n".join(rows)
    files = "\n".join(f"| `{name}` | {text} |" for name, text in PACKED_FILES.items())
    return f"""# {name}

The performance of containers, measured with labkit.

| folder | study | measured | contents |
| --- | --- | --- | --- |
{table}

Each of these folders is a campaign:

| file | contents |
| --- | --- |
{files}

`looks.json` is there where a plan had looks, `samples.parquet` where a study keeps samples,
`raw.tar.xz` where programs printed something. `datapackage.json` describes every column, with its
unit (Frictionless Data Package); `ro-crate-metadata.json` says what was measured when and with
what, and by whom where `CITATION.cff` says so (RO-Crate).

    sha256sum --check SHA256SUMS        # is every file as it was?

    import pandas
    trials = pandas.read_csv("trials.csv")                  # of one campaign
    samples = pandas.read_parquet("samples.parquet")

    import labkit
    data = labkit.load("FOLDER")                            # data.trials, data.samples()

Trials are flagged, never deleted: a failed attempt is a row. The trial is the unit of replication;
the samples of a trial are not independent replicates.

Licence: {LICENCE["title"]} ({LICENCE["name"]}), {LICENCE["path"]}; its text is in `LICENSE`.
"""


# -- verifying


@dataclass
class Verified:
    """The digest of every listed file, the problems by file, and the trials by plan.

    `trials` has the numbers of attempts, and of those that are damaged; None where the table of
    trials cannot be read.
    """

    folder: Path
    sums: Mapping[str, str]
    problems: dict[str, str] = field(default_factory=dict)
    trials: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return a line for each problem, then one for each campaign."""
        problems = [f"{name}: {what}" for name, what in sorted(self.problems.items())]
        head = f"{self.folder}: {len(self.sums)} files, {len(problems) or 'no'} problem"
        whole = [self._whole(plan) for plan in sorted(self.trials)]
        return [head + "s" * (len(problems) != 1), *problems, *whole]

    def _whole(self, plan: str) -> str:
        """Return how many trials of a campaign are whole."""
        counts, home = self.trials[plan], plan.removesuffix("plan.json").rstrip("/")
        count = "no trials" if counts is None else f"{counts[0] - counts[1]} of {counts[0]} trials"
        line = f"whole: {home or 'the campaign'}: {count}"
        return line + (", but not its plan" if plan in self.problems else "")


def verify(folder: Path) -> Verified:
    """Check every file of a described folder: its digest, its contents, its schema.

    Raises
    ------
    DatasetError
        The folder was never described, its list of files is damaged, or it is an archive.
    """
    refuse_archive(folder)
    verified = Verified(folder, read_sums(folder / SUMS))
    problems = verified.problems
    for name in progress(list(verified.sums), "digests"):
        if problem := _file_problem(folder / name, verified.sums[name]):
            problems[name] = problem
    for name in _unlisted(folder, verified.sums):
        problems[name] = "not listed: `labkit dataset describe` adds files measured since"
    resources = _resources(folder, verified)
    schemas = {path: one["schema"] for path, one in resources.items()}
    plans = [name for name in verified.sums if name.rpartition("/")[2] == "plan.json"]
    for plan in progress(plans, "contents"):
        home = plan.removesuffix("plan.json")
        with _noted(verified, plan):
            read_json(folder / plan)
        check = _check_tables if f"{home}{TRIALS}" in verified.sums else _check_folders
        verified.trials[plan] = check(home, verified, schemas)
    _check_csv(verified, resources)
    return verified


@contextlib.contextmanager
def _noted(verified: Verified, name: str) -> Iterator[None]:
    """Note an error under the name of a file; the first problem of a file is kept."""
    try:
        yield
    except DatasetError as error:
        why = f" ({error.why})" if error.why else ""
        verified.problems.setdefault(name, f"{error.what}{why}")


def _file_problem(path: Path, digest: str) -> str:
    try:
        return "" if digest_of(path) == digest else "altered"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _unlisted(folder: Path, sums: Mapping[str, str]) -> set[str]:
    """Return the files of campaigns that are not listed; other files may be anywhere."""
    try:
        homes = campaigns_within(folder)
    except DatasetError:  # every plan is missing, which is already a problem
        return set()
    return {name for one in homes for name in files_of(folder, one)} - {*sums, SUMS}


def _resources(folder: Path, verified: Verified) -> dict[str, dict[str, Any]]:
    """Return the data package's resource of each file of a table, by its name."""
    if PACKAGE in verified.problems or PACKAGE not in verified.sums:
        return {}
    try:
        return {
            path: resource
            for resource in json.loads((folder / PACKAGE).read_text())["resources"]
            if resource.get("type") == "table"
            for path in (
                [resource["path"]] if isinstance(resource["path"], str) else resource["path"]
            )
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        verified.problems[PACKAGE] = f"cannot be read: {error}"
        return {}


_Schemas = Mapping[str, Mapping[str, Any]]


def _check_types(name: str, types: Mapping[str, str], schemas: _Schemas) -> None:
    """Raise `DatasetError` if a table does not have the columns of its schema."""
    if name in schemas:
        expected = {field["name"]: field["type"] for field in schemas[name]["fields"]}
        if expected != types:
            raise DatasetError(
                "the table has other columns than the data package says",
                where=name,
                why=f"{types} and {expected}",
            )


def _check_folders(home: str, verified: Verified, schemas: _Schemas) -> tuple[int, int]:
    """Check every record and its samples; return the number of attempts, and of damaged ones."""
    folder, storage = verified.folder, TrialFolders(verified.folder / home)
    names = [name for name in verified.sums if name.startswith(home)]
    for name in names:
        if name.startswith(f"{home}sessions/"):
            with _noted(verified, name):
                read_json(folder / name)
        if not name.startswith(f"{home}trials/") or not name.endswith("/trial.json"):
            continue
        samples = name.replace("trial.json", SAMPLES)
        record: dict[str, Any] = {"n_samples": 0}
        if name not in verified.problems:
            with _noted(verified, name):
                record = storage.record((folder / name).parent)
        if record["n_samples"] and samples not in verified.problems:
            with _noted(verified, samples):
                part = storage.parts([record])[0]
                check_rows(part, record)
                _check_types(samples, kinds_of(part.types), schemas)
    prefix = f"{home}trials/"
    attempts, damaged = (
        {name.removeprefix(prefix).partition("/")[0] for name in of if name.startswith(prefix)}
        for of in (verified.sums, verified.problems)
    )
    return len(attempts), len(attempts & damaged)


def _check_tables(home: str, verified: Verified, schemas: _Schemas) -> tuple[int, int] | None:
    """Check the tables of a packed campaign, against each other and their schemas.

    Returns the number of attempts, and of those whose samples cannot be read.
    """
    trials, samples = f"{home}{TRIALS}", f"{home}{SAMPLES}"
    storage = PackedTables(verified.folder / home)
    records: list[dict[str, Any]] | None = None
    with _noted(verified, f"{home}{SESSIONS}"):
        storage.sessions()
    with _noted(verified, trials):
        records = storage.records()
    sampled = [record for record in records or [] if record["n_samples"]]
    if sampled and not {trials, samples} & verified.problems.keys():
        with _noted(verified, samples):
            for record, part in zip(sampled, storage.parts(sampled), strict=True):
                check_rows(part, record)
    with _noted(verified, f"{home}{RAW}"):
        for _ in storage.raw():
            pass
    for name in (trials, samples):
        if name in verified.sums and name not in verified.problems:
            with _noted(verified, name):
                _check_types(name, table_types(verified.folder / name), schemas)
    if records is None:
        return None
    if samples not in verified.problems:
        return len(records), 0
    return len(records), sum(not _is_readable(storage, record) for record in sampled)


def _is_readable(storage: PackedTables, record: dict[str, Any]) -> bool:
    try:
        part = storage.parts([record])[0]
        part.read(list(part.types))
        check_rows(part, record)
    except DatasetError:
        return False
    return True


def _check_csv(verified: Verified, resources: Mapping[str, Mapping[str, Any]]) -> None:
    """Validate the CSV tables by their schemas."""
    import frictionless

    names = [
        name
        for name, resource in resources.items()
        if resource.get("format") == "csv"
        and name in verified.sums
        and name not in verified.problems
    ]
    for name in progress(names, "tables"):
        table = frictionless.Resource.from_descriptor(
            dict(resources[name]), basepath=str(verified.folder)
        )
        if notes := table.validate().flatten(["type", "note"]):
            kind, note = notes[0]
            verified.problems[name] = f"{kind}: {note} (of {len(notes)} problems)"
