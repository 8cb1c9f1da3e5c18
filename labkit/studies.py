"""The studies of a project: notebooks with parameters, measured here or on many rigs."""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labkit import notebooks
from labkit.campaign.runner import write
from labkit.data import load, refuse_unknown
from labkit.design import digest
from labkit.errors import DryRun, HostLost, LabkitError, RigInUse, TimeOver, UsageError
from labkit.paths import project
from labkit.process import TERMINAL, holder, say
from labkit.rig import LOCK

#: How often a study is executed where hosts are lost.
_OPENINGS = 10
#: Where campaigns of many rigs are collected, and in ``worker`` where workers keep theirs.
FLEET = "data/local/fleet"
#: The command line that measures a block.
COMMAND = (sys.executable, "-m", "labkit.cli")


@dataclass(frozen=True)
class Run:
    """A campaign to measure: a study's notebook with its parameters."""

    notebook: Path
    profile: str
    parameters: Mapping[str, Any]

    @property
    def study(self) -> str:
        """Name of the study."""
        return _name(self.notebook)

    @property
    def folder(self) -> Path:
        """Folder of the study's campaigns."""
        return project(self.parameters.get("data", "data/local")) / self.study


def _name(notebook: Path) -> str:
    """Return a study's name: that of its notebook without the leading number."""
    return notebook.stem.partition("-")[2]


def plan_runs(names: Sequence[str], profile: str, parameters: Mapping[str, Any]) -> list[Run]:
    """Return the campaigns to measure, of all studies without `names`; check all parameters."""
    paths = sorted(project("notebooks/studies").glob("[0-9]*.ipynb"))
    known = {name: path for path in paths for name in (_name(path), path.stem, path.stem[:2])}
    refuse_unknown("study", names, known)
    runs = []
    for notebook in [known[name] for name in names] or paths:
        given = {**_profile(notebook, profile), **parameters}
        notebooks.check(notebook, given)
        runs.append(Run(notebook, profile, given))
    return runs


def _profile(notebook: Path, profile: str) -> dict[str, Any]:
    """Return the parameters of a profile: one of notebooks/profiles, or a YAML file's path."""
    path = Path(profile)
    if path.suffix not in (".yaml", ".yml"):
        files = sorted(project("notebooks/profiles").glob(f"{notebook.stem}.*.yaml"))
        known = {file.name.split(".")[1]: file for file in files}
        refuse_unknown(f"profile of {_name(notebook)}", [profile], known)
        path = known[profile]
    try:
        found = dict(notebooks.values(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        what, where = "a profile cannot be read", str(path)
        remedy = "write lines such as `messages: 5000`, as in notebooks/profiles"
        raise UsageError(what, where=where, why=str(error), remedy=remedy) from None
    return {"data": f"data/local/{Path(profile).stem}"} | found


def measure(run: Run, *, wait: bool = False) -> Path:
    """Execute a study's notebook, again where a host is lost, and return the executed one."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = project("data/local/notebooks") / f"{stamp}-{run.notebook.stem}.ipynb"
    say(f"measuring {run.study} ({run.profile})")
    # The kernel writes its progress to this process's standard error between trials; passing it
    # through papermill would wake this process inside windows.
    os.environ[TERMINAL] = f"/proc/{os.getpid()}/fd/2"
    with contextlib.suppress(OSError):  # two processes write to one file then
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)
    given, openings = dict(run.parameters), 1
    while True:
        while wait and holder(LOCK):
            time.sleep(1)
        try:
            notebooks.execute(run.notebook, output, given, cwd=project())
            check_complete(run)
            return output
        except DryRun as plan:
            say(plan.what)
            return output
        except RigInUse:
            if not wait:
                raise
        except HostLost as error:
            openings += 1
            if openings > _OPENINGS:
                raise
            say(f"{error.what}; the rig is opened again, and the campaign goes on")
            given.pop("new", None)


def check_complete(run: Run) -> None:
    """Raise `LabkitError` if planned trials of a run's newest campaign did not succeed."""
    campaign, only = load(run.folder), run.parameters.get("only")
    order = enumerate(campaign.plan["order"], start=1)
    planned = sum(len(block) for number, block in order if not only or number in only)
    rows = campaign.trials[campaign.trials["block"].isin(only)] if only else campaign.trials
    succeeded = rows["status"].eq("ok").groupby([rows["block"], rows["position"]]).any()
    failed, left = int((~succeeded).sum()), planned - len(succeeded)
    if not failed and not left:
        return
    counts = [f"{failed} failed"] * (failed > 0) + [f"{left} are left"] * (left > 0)
    kind = TimeOver if left and run.parameters.get("minutes") else LabkitError
    what, where = f"of {planned} planned trials {' and '.join(counts)}", str(campaign.path)
    remedy = "the same command, without --new, goes on with them; measured trials are kept"
    raise kind(what, where=where, remedy=remedy)


def measure_all(runs: Sequence[Run], wait: bool) -> Iterator[tuple[Run, Path | LabkitError]]:
    """Measure runs in turn, and yield each with its executed notebook, or its error."""
    for run in runs:
        try:
            yield run, measure(run, wait=wait)
        except LabkitError as error:
            yield run, error


def worker_argv(scheduler: str, rig: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a worker that offers a rig; `options` are those of `dask worker`."""
    argv = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--no-dashboard"]
    # No nanny: a worker that is killed is lost at once. One task at a time has the rig.
    argv += ["--no-nanny", "--nthreads", "1", "--resources", "rig=1"]
    return [*argv, "--name", f"{rig}@{os.uname().nodename}-{os.getpid()}", *options]


def measure_block(
    number: int, *, study: str, parameters: Mapping[str, Any], name: str
) -> dict[str, bytes]:
    """Measure one block on this worker's rig by `labkit run`, and return its files."""
    from distributed import get_worker

    spec = str(get_worker().name).rpartition("@")[0]
    rig = f"{Path(spec).stem.replace(':', '-')}-{os.uname().nodename}"
    folder = project(FLEET) / "worker" / rig / name
    profile, given = folder / f"{study}.yaml", {"rig": spec, "data": str(folder), "only": [number]}
    write(profile, json.dumps({**parameters, **given}, ensure_ascii=False).encode())
    # A worker that is killed must not leave a process that has the rig.
    argv = ["setpriv", "--pdeathsig", "TERM", *COMMAND, "run", study, "--wait", "-P", str(profile)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        what, why = f"block {number} of {study} failed on rig {rig}", ended.stderr.strip()[-1500:]
        raise LabkitError(what, why=why)
    campaign, trials = load(folder / study).path, f"b{number:02d}-*"
    patterns = ("plan.json", "sessions.json", f"samples.parquet/{trials}", f"trials/{trials}/*")
    paths = [path for pattern in patterns for path in campaign.glob(pattern)]
    return {f"{rig}/{path.relative_to(campaign.parent)}": path.read_bytes() for path in paths}


def store(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files of a block; a trial is there when its ``trial.json`` is."""
    for name in sorted(files, key=lambda name: name.endswith("/trial.json")):
        target = folder / name
        # Sessions are added to, and blocks may come out of order.
        if not target.exists() or target.stat().st_size <= len(files[name]):
            write(target, files[name])


def measure_on_rigs(run: Run, scheduler: str) -> Path:
    """Measure the blocks that are left on the rigs of a scheduler; return the folder."""
    from distributed import Client, KilledWorker, as_completed

    kept = {key: value for key, value in run.parameters.items() if key not in ("rig", "data")}
    # Blocks of other parameters are another campaign.
    name = f"{Path(run.profile).stem}-{digest(kept)}"
    folder = project(FLEET) / name / run.study
    todo = {*range(1, kept["blocks"] + 1)}
    for plan in folder.glob("*/*/plan.json"):
        todo -= {*load(plan.parent).complete_blocks}
    try:
        client = Client(scheduler, timeout="20s")
    except (OSError, ValueError) as error:
        what = f"the scheduler {scheduler} cannot be reached"
        remedy = "start one with `dask scheduler`, and workers with `labkit worker`"
        raise LabkitError(what, why=str(error), remedy=remedy) from None
    with client:
        say(f"blocks go to the workers of {scheduler}; dashboard: {client.dashboard_link}")
        task = partial(measure_block, study=run.study, parameters=kept, name=name)
        send = partial(client.submit, task, resources={"rig": 1}, retries=1, pure=False)
        numbers, failed = {send(number): number for number in sorted(todo)}, list[str]()
        deaths = Counter[int]()
        try:
            for future in (coming := as_completed([*numbers])):
                number = numbers.pop(future)
                # A block that was lost with its worker by now is measured again: this waits for it.
                why = "cancelled" if future.cancelled() else future.exception()
                # Dask counts a death of a worker against all blocks that wait for it.
                killed = isinstance(why, KilledWorker)
                deaths[number] += killed
                if killed and deaths[number] < _OPENINGS:
                    numbers[again := send(number)] = number
                    coming.add(again)
                elif why:
                    failed.append(f"block {number}: {why}")
                else:
                    store(future.result(), folder)
                    future.release()  # or the block is measured again as its worker dies
                    say(f"block {number} was measured; {len(numbers)} are left")
        finally:
            client.cancel([*numbers])
    if failed:
        what, reasons = f"{len(failed)} of {len(todo)} blocks failed", "; ".join(failed)[:1500]
        raise LabkitError(what, where=str(folder), why=reasons, remedy="the same command goes on")
    return folder
