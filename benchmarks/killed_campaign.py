"""The campaign that `kills.py` kills; it prints each phase that it enters, and "/" on leaving.

It wraps functions of the library that correspond to phases. With the name of a study, it runs the
cells of that study's notebook with the profile tiny.

Example: .venv/bin/python benchmarks/killed_campaign.py FOLDER BLOCKS [STUDY]
"""

import linecache
import os
import sys
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path

import nbformat

from labkit import Rig, Study, bare, docker, studies
from labkit.campaign import runner, store, study, trial
from labkit.rig import base, virtual
from labkit.tools import sockperf

#: The output for phases, apart from that of a notebook's cells.
PHASES = sys.stdout


def announced(phase, function):
    """Return a function that prints the phase around `function`."""

    def wrapper(*args, **kwargs):
        print(phase, file=PHASES, flush=True)
        try:
            return function(*args, **kwargs)
        finally:
            print("/", file=PHASES, flush=True)

    return wrapper


def announced_entry(phase, function):
    """Return a function whose context prints the phase while it is entered."""

    @contextmanager
    def wrapper(*args, **kwargs):
        with ExitStack() as stack:
            yield announced(phase, stack.enter_context)(function(*args, **kwargs))

    return wrapper


def ping(trial):
    """Measure two hundred messages, which is short."""
    with trial.serve(sockperf.server("spin"), trial.placement) as server:
        client = sockperf.ping_pong(server.address, messages=200, size=64, wait="spin")
        return trial.measure(client)


def announce():
    """Make the library print its phases."""
    base.Rig.storage = announced_entry("setting up", base.Rig.storage)
    base.Rig.peer = announced_entry("setting up", base.Rig.peer)
    base.Rig.networks = announced_entry("setting up", base.Rig.networks)
    base.Rig.collector = announced_entry("setting up", base.Rig.collector)
    runner.Trial.serve = announced_entry("placing", trial.Trial.serve)
    runner.Trial.serve_all = announced_entry("placing", trial.Trial.serve_all)
    runner.Trial.churn = announced_entry("placing", trial.Trial.churn)
    runner.Trial.steer = announced_entry("steering", trial.Trial.steer)
    runner.Trial.measure_all = announced("measuring", trial.Trial.measure_all)
    store.Store.add = announced("recording", store.Store.add)
    virtual.down = announced("taking down", virtual.down)
    virtual.restore = announced("restoring", virtual.restore)


def run_notebook(name, folder, blocks):
    """Run the cells of a study's notebook in this process."""
    (path,) = studies.find([name])
    given = studies.profile_of(path, "tiny") | {"data": folder, "blocks": blocks}
    names = {"In": [], "__name__": "notebook"}
    plan = announced("planning", study.Study.plan)
    study.Study.plan = plan
    for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
        if cell.cell_type != "code":
            continue
        source, place = cell.source, f"<cell {number}>"
        # A plan reads the source of its protocol from here.
        linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
        exec(compile(source, place, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            names |= given


def run_own(folder, blocks):
    """Run a campaign of three short trials a block."""
    placements = [bare("clean"), bare("cgroup"), docker("bridge")]
    factors = {"placement": placements, "affinity": ["split"], "wait": ["spin"]}
    short = Study("killed", ping, factors=factors, settings={"idle": "held"})
    print("planning", file=PHASES, flush=True)
    with Rig.open("virtual", say=lambda text: None, patience=600) as lab, lab.idle("held"):
        plan = short.plan(lab, blocks=blocks, seed=1)
        print("/", file=PHASES, flush=True)
        plan.run(into=folder)


if __name__ == "__main__":
    announce()
    if len(sys.argv) > 3:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            run_notebook(sys.argv[3], sys.argv[1], int(sys.argv[2]))
    else:
        run_own(sys.argv[1], int(sys.argv[2]))
