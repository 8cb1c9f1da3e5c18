"""The analysis that `scale.py` times: one campaign, Parquet to tables, intervals and figures.

Runs in a process of its own, because memory's peak and a cold start are a process's. Prints JSON.
"""

import json
import sys
import time
from pathlib import Path

from labkit import load, plots
from labkit.analysis import checks, quantiles
from labkit.analysis.compare import compare, factor_effect, shift
from labkit.analysis.noise import noise_floor
from labkit.analysis.summary import combined, summarise
from labkit.analysis.trials import join_factors, sort_samples

FACTORS = ["placement", "wait"]
STATISTICS = ("min", "median", "mean", "p95", "p99", "q0.999", "std")


class Laps:
    """Seconds between calls, by name."""

    def __init__(self, began: float) -> None:
        self.last, self.seconds = began, {}

    def __call__(self, name: str) -> None:
        """End a part of the work."""
        now = time.monotonic()
        self.seconds[name] = now - self.last
        self.last = now


def analyse(folder: Path, lap: Laps) -> dict:
    """Do what an analysis notebook does with a campaign; figures go to `folder`."""
    campaign = load(folder)
    samples = campaign.series(["rtt_ns"], reduce=sort_samples)
    samples["condition"] = join_factors(samples, FACTORS)
    lap("read and sort")
    campaign.series(["rtt_ns"], reduce=checks.inside)
    lap("inside trials")
    combined(samples, by=["condition"], statistics=STATISTICS)
    keys = ["trial", "block", *FACTORS, "condition", "replicate"]
    trials = summarise(samples, by=keys, statistics=STATISTICS)
    lap("tables")
    found = comparisons(samples, trials)
    lap("comparisons")
    intervals(samples)
    lap("quantile intervals")
    figures(samples, trials, found, folder)
    lap("figures")
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    return {"samples": int(samples["n"].sum()), "peak": peak, "cpu": time.process_time()}


def comparisons(samples, trials) -> dict:
    """Compare conditions, waits, copies and quantiles, each with intervals over blocks."""
    base = trials["condition"].cat.categories[0]
    names = {"condition": "condition", "baseline": base}
    found = {value: compare(trials, value=value, **names) for value in ("mean", "median", "p99")}
    found["waits"] = factor_effect(trials, "wait", ["block", "spin"], ["placement"], value="median")
    found["floor"] = noise_floor(trials, value="median", condition="condition")
    found["shift"] = shift(samples, condition="condition", baseline=base)
    return found


def intervals(samples) -> None:
    """Bound p99 and p99.9 of the trials of each condition, pooled and a trial each."""
    for _, part in samples.groupby("condition", observed=True):
        trials = list(part["rtt_ns"])
        for level in (0.99, 0.999):
            quantiles.pooled_quantile(trials, level)
            quantiles.trial_quantile(trials, level)


def figures(samples, trials, found: dict, folder: Path) -> None:
    """Draw every kind of figure of samples and trials to a file."""
    base = trials["condition"].cat.categories[0]
    together = {"hue": "placement", "col": "wait", "trials": False}
    drawn = [
        plots.ecdf(samples, hue="wait", col="placement"),
        plots.ecdf(samples, **together),
        plots.ecdf(samples, **together, tail=True),
        plots.block_plot(
            trials.rename(columns={"p99": "rtt_ns_p99"}),
            value="rtt_ns_p99",
            hue="wait",
            col="placement",
        ),
        plots.interval_plot(found["p99"], margin=0.02, baseline=base),
        plots.shift_plot(found["shift"], baseline=base),
    ]
    for number, figure in enumerate(drawn):
        figure.savefig(folder / f"{number}.png")


def main(folder: str, began: str) -> None:
    """Analyse; `began` is when the process was asked for, by the monotonic clock."""
    lap = Laps(float(began))
    lap("imports")
    made = analyse(Path(folder), lap)
    made["disk"] = int(Path("/proc/self/io").read_text().split("read_bytes:")[1].split()[0])
    print(json.dumps(made | {"parts": lap.seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
