"""The campaign that `kills.py` kills; it prints each phase that it enters, and "/" on leaving.

The phases are announced around the library's own functions, which are otherwise left as they are.

Example: .venv/bin/python benchmarks/killed_campaign.py FOLDER BLOCKS
"""

import sys
from contextlib import ExitStack, contextmanager

from labkit import Rig, Study, bare, docker, sockperf
from labkit.campaign import runner, store, trial
from labkit.rig import virtual


def announced(phase, function):
    """Return the function, which now says when it begins and ends."""

    def wrapper(*args, **kwargs):
        print(phase, flush=True)
        try:
            return function(*args, **kwargs)
        finally:
            print("/", flush=True)

    return wrapper


def announced_entry(phase, function):
    """Return the function that makes a context, which now says when its entry begins and ends."""

    @contextmanager
    def wrapper(*args, **kwargs):
        with ExitStack() as stack:
            yield announced(phase, stack.enter_context)(function(*args, **kwargs))

    return wrapper


def ping(trial):
    """Two hundred messages, so that a trial is short."""
    with trial.serve(sockperf.server("spin"), trial.placement) as server:
        client = sockperf.ping_pong(server.address, messages=200, size=64, wait="spin")
        return trial.measure(client)


def main(folder, blocks):
    """Run the campaign, or what is left of it."""
    runner.Trial.serve = announced_entry("placing", trial.Trial.serve)
    runner.Trial.measure = announced("measuring", trial.Trial.measure)
    store.Store.add = announced("recording", store.Store.add)
    virtual.down = announced("taking down", virtual.down)
    virtual.restore = announced("restoring", virtual.restore)
    placements = [bare("clean"), bare("cgroup"), docker("bridge")]
    factors = {"placement": placements, "affinity": ["split"], "wait": ["spin"]}
    study = Study("killed", ping, factors=factors, settings={"idle": "held"})
    print("planning", flush=True)
    with Rig.open("virtual", say=lambda text: None, patience=600) as lab, lab.idle("held"):
        plan = study.plan(lab, blocks=blocks, seed=1)
        print("/", flush=True)
        plan.run(into=folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
