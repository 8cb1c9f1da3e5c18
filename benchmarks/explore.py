"""Time each interaction with the explorer, with a million samples a trial.

It writes a campaign of 6 conditions (and an A/A replicate of the baseline), opens the explorer on
it, and asks for one view after the other. The times include numbers, figure, image and HTML. The
first answer reads and sorts the samples. Times are printed, and not judged.

Example: make bench, or: .venv/bin/python benchmarks/explore.py --samples 100000 --blocks 3
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scale import generate, say

from labkit.dataset import load
from labkit.explore import VIEWS, Choice, Study, render


def steps(study: Study) -> Iterator[tuple[str, str, Choice]]:
    """Yield interactions by name, each with a view and a choice that were not shown before."""
    quantity = study.quantities[0]
    baselines = list(dict.fromkeys(study.trials["all factors"]))
    spin = {"wait": ("spin",)}
    for view in VIEWS:
        for statistic in ("p99", "mean", "median"):
            yield f"statistic, {view}", view, Choice(quantity, statistic)
        yield f"baseline, {view}", view, Choice(quantity, baseline=baselines[1])
        yield f"conditions, {view}", view, Choice(quantity, levels=spin)
    yield "tail", "Distribution", Choice(quantity, tail=True)
    yield "no logarithmic axis", "Distribution", Choice(quantity, log=False)


def answers(study: Study) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of every interaction, elapsed and of CPU, by its name."""
    times: dict[str, list[tuple[float, float]]] = {}
    for name, view, choice in steps(study):
        began, busy = time.perf_counter(), time.process_time()
        shown = render(study, view, choice)
        spent = (time.perf_counter() - began, time.process_time() - busy)
        times.setdefault(name, []).append(spent)
        if 'role="alert"' in shown:
            raise SystemExit(f"{name}: {shown}")
    return times


def main() -> None:
    """Make a campaign, explore it, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--samples", type=int, default=1_000_000, help="samples a trial (default 1000000)"
    )
    parser.add_argument(
        "--blocks", type=int, default=6, help="blocks of 7 trials (default 6: 42 trials)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="labkit-explore-") as folder:
        say(f"writing {7 * options.blocks} trials of {options.samples:,} samples")
        path = generate(Path(folder), options.samples, options.blocks)
        began = time.perf_counter()
        study = Study(load(path))
        render(study, "Distribution", Choice(study.quantities[0]))
        first = time.perf_counter() - began
        times = answers(study)
    print(
        f"{7 * options.blocks} trials of {options.samples:,} samples, {os.cpu_count()} CPUs, ",
        end="",
    )
    print(f"load average {os.getloadavg()[0]:.1f}, ", end="")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:,.0f} MiB.")
    print(f"{'the first answer, which reads and sorts':40} {first:6.2f} s")
    every = [one for several in times.values() for one in several]
    for name, spent in [*times.items(), ("all after the first", every)]:
        wall, busy = np.array(spent).T
        print(f"{name:40} {np.median(wall):6.2f} s, at most {wall.max():.2f} s ", end="")
        print(f"({busy.max():.2f} s of CPU) in {len(spent)}")


if __name__ == "__main__":
    main()
