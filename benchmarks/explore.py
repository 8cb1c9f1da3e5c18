"""Does the explorer answer at once? The time of each interaction, with a million samples a trial.

Makes a campaign of 6 conditions (and a second copy of the baseline) on disk as a study stores it,
opens the explorer on it, and sets its controls one after the other, as a person would. What is
timed is the whole answer: numbers, figure, its picture, and the HTML that goes to the browser. The
first answer reads and sorts the samples. Prints; it decides nothing by a time.

Example: make bench, or: .venv/bin/python benchmarks/explore.py --samples 100000 --blocks 3
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scale import generate, say

from labkit.explore import Explorer, explore


def steps(panel: Explorer) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what a person does, in turn, each time to something that was not shown before."""
    tabs = {name: number for number, name in enumerate(panel.pages)}

    def to(control: Any, value: Any, trait: str = "value") -> Callable[[], Any]:
        return lambda: setattr(control, trait, value)

    for name, number in tabs.items():
        for statistic in ("p99", "mean", "median"):
            yield f"statistic, {name}", to(panel.statistic, statistic)
        others = [one for _, one in panel.baseline.options]
        yield f"baseline, {name}", to(panel.baseline, others[1])
        yield f"conditions, {name}", to(panel.levels["wait"], ("spin",))
        yield f"conditions, {name}", to(panel.levels["wait"], ())
        if name == "Distribution":
            yield "tail", to(panel.tail, value=True)
            yield "no logarithmic axis", to(panel.log, value=False)
            yield "no single trials", to(panel.single, value=False)
        following = (number + 1) % len(tabs)
        yield f"to {list(tabs)[following]}", to(panel.tabs, following, "selected_index")


def answers(panel: Explorer) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of every step, and those of CPU, by what it was."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, do in steps(panel):
        began, busy = time.perf_counter(), time.process_time()
        do()
        spent = (time.perf_counter() - began, time.process_time() - busy)
        found.setdefault(name, []).append(spent)
        if "alert" in panel.said.value:
            raise SystemExit(f"{name}: {panel.said.value}")
    return found


def main() -> None:
    """Make a campaign, explore it, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--samples", type=int, default=1_000_000, help="samples a trial (default 1000000)"
    )
    parser.add_argument(
        "--blocks", type=int, default=6, help="blocks of 7 trials (default 6: 42 trials)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="labkit-explore-") as folder:
        say(f"writing {7 * given.blocks} trials of {given.samples:,} samples")
        path = generate(Path(folder), given.samples, given.blocks)
        began = time.perf_counter()
        panel = explore(path)
        first = time.perf_counter() - began
        found = answers(panel)
    print(
        f"{7 * given.blocks} trials of {given.samples:,} samples, {os.cpu_count()} CPUs, ", end=""
    )
    print(f"load average {os.getloadavg()[0]:.1f}, ", end="")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:,.0f} MiB.")
    print(f"{'the first answer, which reads and sorts':40} {first:6.2f} s")
    every = [one for several in found.values() for one in several]
    for name, spent in [*found.items(), ("all after the first", every)]:
        wall, busy = np.array(spent).T
        print(f"{name:40} {np.median(wall):6.2f} s, at most {wall.max():.2f} s ", end="")
        print(f"({busy.max():.2f} s of CPU) in {len(spent)}")


if __name__ == "__main__":
    main()
