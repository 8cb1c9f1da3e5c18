"""Measure time and memory of the analysis of up to 600 million samples, and compare with pandas.

Writes campaigns of 6 conditions x 10 blocks as a study stores them, with an A/A replicate of the
baseline in each block (a sixth more samples than the size says). Each is analysed in a new process,
with its files dropped from the page cache: from Parquet to summary tables, comparisons, intervals
and figures. Then pandas makes the same tables of a smaller campaign. Prints; no time is a failure.

600 million samples take 3 GB of disk while they are analysed.

Example: make bench, or: .venv/bin/python benchmarks/scale.py --most 600 --repeats 1
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.signal import lfilter

from labkit import load
from labkit.analysis.quantiles import pooled_quantile
from labkit.analysis.summary import combined, summarise
from labkit.analysis.trials import sort_samples
from labkit.campaign.store import Store

SIZES = (1, 6, 20, 60, 200, 600)
BLOCKS, CONDITIONS = 10, 6
FACTORS = {"placement": ["bare clean", "docker host", "docker bridge"], "wait": ["block", "spin"]}
CHILD = Path(__file__).with_name("scaled_campaign.py")


#: What a person waits for: the code of a new process, and the target in seconds.
WAITS = {
    "import labkit; load, compare": ("import labkit; labkit.load, labkit.compare", 2.0),
    "labkit ledger --help": ("from labkit.cli import main; main(['ledger', '--help'])", 2.0),
    "labkit ledger data/reference": (
        "from labkit.cli import main; from labkit.paths import project; "
        "main(['ledger', str(project('data/reference'))])",
        2.0,
    ),
}


def say(text: str) -> None:
    """Write a line of progress."""
    print(text, file=sys.stderr, flush=True)


def round_trips(rng: np.random.Generator, n: int, level: float) -> np.ndarray:
    """Return `n` dependent, log-normal round trips in whole nanoseconds, with a rare slow mode."""
    shocks = lfilter([0.06], [1, -0.8], rng.standard_normal(n, dtype=np.float32))
    values = level * np.exp(shocks)
    values[rng.random(n, dtype=np.float32) < 2e-3] *= 8
    return values.astype(np.int64)


def generate(folder: Path, per_trial: int, blocks: int = BLOCKS) -> Path:
    """Write a campaign in the dataset's own format; return its directory."""
    plan = {"identity": {"settings": {"messages": per_trial}}, "factors": FACTORS}
    plan["rig"] = {"name": "synthetic", "kind": "virtual"}
    store, rng = Store.resume_or_begin(folder, plan, new=False), np.random.default_rng(2015)
    cells = [(place, wait, 1) for place in FACTORS["placement"] for wait in FACTORS["wait"]]
    cells.append((*cells[0][:2], 2))
    fixed = {"attempt": 1, "session": 1, "status": "ok", "error": None, "seconds": 1.0}
    fixed |= {"started_ns": 1, "metrics": {}, "flags": [], "n_samples": per_trial}
    for block in range(1, blocks + 1):
        for position, number in enumerate(rng.permutation(len(cells)), 1):
            place, wait, replicate = cells[number]
            level = {"block": 30_000, "spin": 9_000}[wait] * (1 + 0.02 * (place != "bare clean"))
            values = round_trips(rng, per_trial, level * np.exp(rng.normal(0, 0.01)))
            names = {
                "trial": f"b{block:02d}-p{position:02d}",
                "block": block,
                "replicate": replicate,
            }
            names |= {"position": position, "levels": {"placement": place, "wait": wait}}
            switches = {"context_switches": (4 if wait == "block" else 0.01) + 0.001 * block}
            store.add(fixed | names | {"mechanisms": switches}, {"rtt_ns": values}, {})
    return store.path


def forget(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    os.sync()
    for path in folder.rglob("*.*"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def cold(folder: Path) -> dict:
    """Analyse a campaign in a new process, with its files dropped from the page cache."""
    forget(folder)
    began = time.monotonic()
    argv = [sys.executable, str(CHILD), str(folder), str(began)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout) | {"wall": time.monotonic() - began}


def grow(most: int, repeats: int, scratch: Path) -> list[list[dict]]:
    """Return the results of the runs of each size."""
    found = []
    for size in [size for size in SIZES if size <= most]:
        say(f"{size} M samples: writing")
        folder = generate(scratch / str(size), round(size * 1e6 / BLOCKS / CONDITIONS))
        runs = []
        for number in range(repeats):
            runs.append(cold(folder))
            say(f"{size} M samples: run {number + 1} of {repeats}, {runs[-1]['wall']:.2f} s")
        shutil.rmtree(scratch / str(size))
        found.append(runs)
    return found


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, and its result."""
    began = time.perf_counter()
    made = function()
    return time.perf_counter() - began, made


def plain_tables(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Summarise a campaign by trial and by condition with pandas alone."""
    frames = []
    for one in load(path).records:
        frame = pd.read_parquet(path / "trials" / one["directory"] / "samples.parquet")
        frames.append(frame.assign(trial=one["trial"], **one["levels"]))
    whole = pd.concat(frames, ignore_index=True)

    def table(keys: list[str]) -> pd.DataFrame:
        groups = whole.groupby(keys)["rtt_ns"]
        found = groups.agg(["min", "median", "mean", "std"])
        more = groups.quantile([0.95, 0.99]).unstack()
        return found.assign(p95=more[0.95], p99=more[0.99])

    return table(["trial"]), table(list(FACTORS))


def our_tables(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make the same tables with labkit."""
    samples = load(path).series(["rtt_ns"], reduce=sort_samples)
    return summarise(samples, by=["trial"]), combined(samples, by=list(FACTORS))


def table_ratio(repeats: int, scratch: Path) -> list[tuple[float, float]]:
    """Return the seconds of the summary tables of 6 M samples, (pandas, labkit) by repeat."""
    path, found = generate(scratch / "plain", 100_000), []
    for number in range(repeats):
        plain, theirs = timed(lambda: plain_tables(path))
        ours, made = timed(lambda: our_tables(path))
        found.append((plain, ours))
        say(f"summary tables: run {number + 1} of {repeats}, plain {plain:.2f} s")
    apart = 0.0
    for one, other, keys in zip(theirs, made, (["trial"], list(FACTORS)), strict=True):
        both = other.set_index(keys)[list(one.columns)].astype(float)
        both.index = both.index.map(lambda key: key)
        apart = max(apart, float((both.loc[one.index] / one - 1).abs().to_numpy().max()))
    print(f"  summary tables, largest relative difference to pandas: {apart:.1g}")
    return found


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median and the range of some runs."""
    shown = [f"{x:,.{digits}f}" for x in (np.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def show_growth(found: list[list[dict]]) -> None:
    """Print a column for each size, and the linear growth."""
    parts = list(found[0][0]["parts"])
    rows = {}
    for runs in found:
        rows[f"{runs[0]['samples'] / 1e6:.1f} M"] = {
            "seconds, cold": spread([run["wall"] for run in runs]),
            "seconds of CPU": spread([run["cpu"] for run in runs]),
            "peak MiB": f"{max(run['peak'] for run in runs) / 2**20:,.0f}",
            "read from disk MiB": f"{min(run['disk'] for run in runs) / 2**20:,.0f}",
            **{name: f"{np.median([run['parts'][name] for run in runs]):.2f}" for name in parts},
        }
    print(pd.DataFrame(rows).to_string(), end="\n\n")
    for name, what in (("wall", "seconds"), ("cpu", "seconds of CPU")):
        if len(found) > 1:  # the fastest run of each size is the one that was disturbed least
            best = [min(run[name] for run in runs) for runs in found]
            fit = stats.linregress([runs[0]["samples"] for runs in found], best)
            said = f"{fit.intercept:.2f} + {fit.slope * 1e9:.1f} ns a sample"
            print(f"Growth, {what} of the fastest run of each size: {said}, r = {fit.rvalue:.3f}.")
    print("What bounds it: imports and figures, which do not grow; then decoding, one sort a")
    print(
        "trial, and the ranks inside a trial. Memory is that of the trials that are read at a time."
    )


def waited(code: str) -> tuple[float, float]:
    """Return seconds and CPU seconds of a new process."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, cpu


def hierarchical() -> tuple[float, float]:
    """Return seconds and CPU seconds of the interval of p99 of 2 conditions x 10 trials x 1 M."""
    rng = np.random.default_rng(2015)
    conditions = [
        [np.sort(round_trips(rng, 1_000_000, 30_000 * level)) for level in rng.normal(1, 0.02, 10)]
        for _ in range(2)
    ]
    pooled_quantile([trial[:1000] for trial in conditions[0]], 0.99)  # its imports
    began, cpu = time.monotonic(), time.process_time()
    for trials in conditions:
        pooled_quantile(trials, 0.99)
    return time.monotonic() - began, time.process_time() - cpu


def show_waits(repeats: int) -> None:
    """Print what was measured, its target, and what came out: the least of the repeats."""
    rows = {}
    for name, (code, target) in WAITS.items():
        rows[name] = (target, *np.min([waited(code) for _ in range(repeats)], axis=0))
    name = "interval of p99, 2 x 10 trials x 1 M samples"
    rows[name] = (0.3, *np.min([hierarchical() for _ in range(repeats)], axis=0))
    columns = ["target, s", "s", "s of CPU"]
    print(pd.DataFrame.from_dict(rows, orient="index", columns=columns).round(2), end="\n\n")


def show_ratio(name: str, found: list[tuple[float, float]]) -> None:
    """Print how much longer pandas takes."""
    ratios = [plain / ours for plain, ours in found]
    ours = spread([1e3 * ours for _, ours in found], 1)
    plain = spread([plain for plain, _ in found])
    print(f"{name}: plain {plain} s, labkit {ours} ms, ratio {spread(ratios, 0)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--most", type=int, default=60, help=f"largest size in millions, of {SIZES} (default 60)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each (default 3)")
    given = parser.parse_args()
    show_waits(given.repeats)
    with tempfile.TemporaryDirectory(prefix="labkit-scale-") as folder:
        print("From Parquet to tables, comparisons and figures: median (and range) of cold runs,")
        print(f"then the seconds of each part; {given.repeats} runs of each size, ", end="")
        print(f"{os.cpu_count()} CPUs, load average before them {os.getloadavg()[0]:.1f}.\n")
        show_growth(grow(given.most, given.repeats, Path(folder)))
        print("\nBeside the plain way (pandas), same answers:")
        tables = table_ratio(given.repeats, Path(folder))
    show_ratio("summary tables of 7 M samples from Parquet", tables)


if __name__ == "__main__":
    sys.exit(main())
