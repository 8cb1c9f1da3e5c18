"""Can the analysis be trusted? Experiments whose truth is known, thousands of times over.

How often it finds a difference where there is none (A/A), how often it finds one that is there,
how often it calls conditions equal that are or are not, how often each interval holds the truth,
and how often plans, looks and verdicts err. It calls the library as a person does; nothing of a
method is copied here. Prints each rate beside the nominal one, and what a page shows where the
nominal rate is out of reach; the exit code is 1 when a bound is broken.

`--record` keeps the rates in `benchmarks/simulation.csv`, in place of those of the same rows, and
writes docs/simulation.md from all that are kept.

Example: make simulate, or, in about ten minutes: .venv/bin/python benchmarks/simulate.py --quick
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import runpy
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

# Two processes on two CPUs: threads of linear algebra would wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from scipy import signal
from tqdm import tqdm

from labkit.analysis.compare import compare, factor_effect, shift
from labkit.analysis.noise import noise_floor
from labkit.analysis.summary import summarise

Rng = np.random.Generator
#: For each row of the table: found (or held the truth)? And an interval's width, or NaN.
Outcome = Sequence[tuple[bool, float]]

EXPERIMENTS, CHUNK, BLOCKS, SAMPLES = 1000, 50, 10, 500
STATISTICS = ("mean", "median", "p99")
KEYS = ("trial", "block", "condition")
KINDS = ("log-normal", "strong drift", "AR(1) 0.9 and trial effect")
#: Standard deviations on the log scale: of blocks, of trials, of the samples of a trial.
BLOCK_SD, TRIAL_SD, SAMPLE_SD = 0.03, 0.02, 0.2
#: Change of the level a block in a strong drift, half of it between the two trials of a block.
DRIFT = 0.05
PAIRED = {"condition": "condition", "baseline": "base"}


class Row(NamedTuple):
    """A row of the table, and between which rates it must lie.

    `slack` allows three standard errors of the simulation beyond both. `reach` says what a page
    shows where the nominal rate is out of reach.
    """

    section: str
    name: str
    least: float = 0.0
    most: float = 1.0
    slack: bool = False
    nominal: float = math.nan
    reach: str = ""

    def bounds(self, experiments: int, slack: bool = False) -> tuple[float, float]:
        """Return the least and the most that this many experiments may show."""
        errors = [
            3 * math.sqrt(rate * (1 - rate) / experiments) * (self.slack or slack)
            for rate in (self.least, self.most)
        ]
        return max(0.0, self.least - errors[0]), min(1.0, self.most + errors[1])


class Simulation(NamedTuple):
    """Experiments of one kind, each of which feeds one row of the table or several."""

    name: str
    rows: tuple[Row, ...]
    draw: Callable[[Rng], Outcome]
    experiments: int = EXPERIMENTS


def sampled(rng: Rng, kind: str, ratio: float = 1.0) -> np.ndarray:
    """Return samples in ns, shape (blocks, 2 conditions, samples), the baseline first."""
    logs = math.log(30_000) + rng.normal(0, BLOCK_SD, (BLOCKS, 1)) + [0.0, math.log(ratio)]
    logs += rng.normal(0, TRIAL_SD, logs.shape)
    if kind == "strong drift":
        order = rng.permuted(np.tile([0.0, 0.5], (BLOCKS, 1)), axis=1)
        logs += DRIFT * (np.arange(BLOCKS)[:, None] + order)
    noise = rng.normal(size=(*logs.shape, SAMPLES))
    if kind.startswith("AR(1)"):
        start = 0.9 * rng.normal(size=(*logs.shape, 1))
        noise, _ = signal.lfilter([math.sqrt(1 - 0.9**2)], [1, -0.9], noise, zi=start)
    return np.exp(logs[..., None] + SAMPLE_SD * noise).astype(np.int64)


@cache
def layout(each: int) -> pd.DataFrame:
    """Return which trial, block and condition each row is of, `each` rows a trial."""
    trial = np.repeat(np.arange(2 * BLOCKS), each)
    names = np.array(["base", "other"])[trial % 2]
    return pd.DataFrame({"trial": trial, "block": trial // 2, "condition": names})


def frame_of(values: np.ndarray) -> pd.DataFrame:
    """Return one row a value; values as `sampled` returns them, or one a trial."""
    return layout(values.size // (2 * BLOCKS)).assign(value=values.ravel())


def null_samples(rng: Rng, kind: str) -> Outcome:
    """Compare raw samples of two equal conditions."""
    frame = frame_of(sampled(rng, kind))
    table = summarise(frame, value="value", by=KEYS, statistics=STATISTICS)
    return [found(compare(table, value=one, **PAIRED)) for one in STATISTICS]


def null_trials(rng: Rng, kind: str) -> Outcome:
    """Compare two equal conditions of which one number a trial is given."""
    values = sampled(rng, kind)
    reduced = (values.mean(axis=2), np.median(values, axis=2), np.quantile(values, 0.99, axis=2))
    return [found(compare(frame_of(one), value="value", **PAIRED)) for one in reduced]


def found(table: pd.DataFrame, column: str = "differs") -> tuple[bool, float]:
    """Return whether the only row has a verdict; it has no width."""
    return bool(table[column].iloc[0]), math.nan


def trials(rng: Rng, ratio: float, noise: float, drift: float = 0.0) -> np.ndarray:
    """Return one value a trial, shape (blocks, 2), with a level of its own a block."""
    logs = rng.normal(0, BLOCK_SD, (BLOCKS, 1)) + drift * np.arange(BLOCKS)[:, None]
    logs = logs + rng.normal([0.0, math.log(ratio)], noise, (BLOCKS, 2))
    return 30_000 * np.exp(logs)


def verdict(rng: Rng, column: str, ratio: float, noise: float) -> Outcome:
    """Return whether `differs` or `equivalent` holds at a margin of 2 %."""
    table = compare(frame_of(trials(rng, ratio, noise)), value="value", margin=0.02, **PAIRED)
    return [found(table, column)]


def held(truth: float, low: float, high: float) -> tuple[bool, float]:
    """Return whether an interval holds the truth, and its width relative to that."""
    return low <= truth <= high, (high - low) / abs(truth)


def of(row: pd.Series, ratio: float, difference: float | None = None) -> list[tuple[bool, float]]:
    """Return `held` of a row's ratio, and of its difference where that is known."""
    intervals = [held(ratio, row["low"], row["high"])]
    if difference is not None:
        intervals.append(held(difference, row["difference_low"], row["difference_high"]))
    return intervals


def paired(rng: Rng, noise: float, drift: float) -> Outcome:
    """Cover a ratio and a difference, paired by block."""
    frame = frame_of(trials(rng, 1.1, noise, drift))
    row = compare(frame, value="value", **PAIRED).iloc[0]
    level = 30_000 * np.exp(drift * np.arange(BLOCKS) + (BLOCK_SD**2 + noise**2) / 2).mean()
    return of(row, 1.1, 0.1 * level)


def unpaired(rng: Rng) -> Outcome:
    """Cover both where blocks have nothing in common and noise is unequal."""
    noise = np.array([0.02, 0.06])
    values = 30_000 * np.array([1, 1.1]) * np.exp(rng.normal(0, noise, (BLOCKS, 2)))
    row = compare(frame_of(values), value="value", paired=False, **PAIRED).iloc[0]
    means = 30_000 * np.array([1, 1.1]) * np.exp(noise**2 / 2)
    return of(row, 1.1, means[1] - means[0])


def effect(rng: Rng) -> Outcome:
    """Cover the effect of a factor in one cell of another."""
    frames = [frame_of(trials(rng, ratio, 0.03)) for ratio in (1.1, 0.7)]
    frame = pd.concat(frames).assign(affinity=np.repeat(["free", "split"], 2 * BLOCKS))
    table = factor_effect(frame, "condition", ["base", "other"], ["affinity"], value="value")
    return of(table.iloc[1], 0.7)


def floor(rng: Rng) -> Outcome:
    """Cover the ratio of two copies of one condition."""
    frame = frame_of(trials(rng, 1.0, 0.02))
    frame = frame.assign(replicate=frame["condition"].map({"base": 1, "other": 2}), condition="one")
    return of(noise_floor(frame, value="value", condition="condition").iloc[0], 1.0)


def shifted(rng: Rng) -> Outcome:
    """Cover quantiles and means of dependent samples."""
    frame = frame_of(sampled(rng, KINDS[2], ratio=1.1))
    options = {"condition": "condition", "baseline": "base"}
    table = shift(frame, value="value", quantiles=["q0.1", "median", "p99"], **options)
    means = summarise(frame, value="value", by=KEYS, statistics=["mean"])
    mean = compare(means, value="mean", **PAIRED).iloc[0]
    return [one for row in (*table.iloc, mean) for one in of(row, 1.1)]


def listed(rng: Rng, draw: Callable[[Rng], tuple[float, float, float]]) -> Outcome:
    """Cover what an entry of `benchmarks/coverage.py` draws."""
    return [held(*draw(rng))]


def covers(draw: Callable[[Rng], Outcome], *names: str) -> Simulation:
    """Return the simulation of continuous intervals."""
    rows = tuple(Row("coverage", name, 0.93, 0.975, slack=True, nominal=0.95) for name in names)
    return Simulation(names[0], rows, draw)


def neighbour(name: str) -> dict[str, Any]:
    """Return what a module in this folder defines; by path, as packages have the same names."""
    return runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))


def decided(rng: Rng, draw: Callable[[Rng], bool]) -> Outcome:
    """Return what a scenario of `benchmarks/simulate_trials.py` draws."""
    return [(draw(rng), math.nan)]


def scenarios() -> Iterator[Simulation]:
    """Yield the scenarios of the other modules.

    An entry of `simulate_trials.py` is (section, name, least rate, most rate, experiments, draw),
    where `draw` returns whether one experiment counts.
    """
    for section, name, least, most, experiments, draw in neighbour("simulate_trials")["SCENARIOS"]:
        nominal = most if most < 0.5 else math.nan
        row = Row(section, name, least, most, slack=most < 1, nominal=nominal)
        yield Simulation(name, (row,), partial(decided, draw=draw), experiments)
    others = ("simulate_blocks", "simulate_functions")
    for one in itertools.chain.from_iterable(neighbour(name)["SCENARIOS"] for name in others):
        rows = tuple(
            Row(one.section, rate.name, rate.least, rate.most, True, rate.nominal, rate.reach)
            for rate in one.rates
        )
        yield Simulation(rows[0].name, rows, one.draw, one.experiments)


def models() -> Iterator[Simulation]:
    """Yield the intervals of the models, which `benchmarks/coverage.py` lists."""
    for one in neighbour("coverage")["COVERAGE"]:
        most = 1.0 if one.discrete else 0.975
        row = Row("coverage", one.name, 0.93, most, slack=True, nominal=0.95)
        yield Simulation(one.name, (row,), partial(listed, draw=one.draw), one.experiments)


@cache
def simulations() -> dict[str, Simulation]:
    """Return all of them by name, in the order of the table."""
    found: list[Simulation] = []
    sources = {"samples": null_samples, "trials": null_trials}
    for (source, draw), kind in itertools.product(sources.items(), KINDS):
        name = f"A/A {source}, {kind}"
        rows = tuple(
            Row("A/A", f"{name}, {one}", most=0.05, slack=True, nominal=0.05) for one in STATISTICS
        )
        found.append(Simulation(name, rows, partial(draw, kind=kind)))
    for change, noise, column, bounds in (
        # Of 10 blocks one campaign in ten is noted as wandering, and gets a wider interval.
        (5, 2, "differs", {"least": 0.9, "slack": True}),
        (0.2, 1, "equivalent", {"least": 0.9, "slack": True}),
        (2, 1, "equivalent", {"most": 0.05, "slack": True}),
    ):
        name = f"power, {change} % at {noise} % noise: {column}"
        draw = partial(verdict, column=column, ratio=1 + change / 100, noise=noise / 100)
        found.append(Simulation(name, (Row("power", name, **bounds),), draw))
    wild = ", 20 % noise, drift"
    found += [
        covers(partial(paired, noise=0.03, drift=0.0), "ratio", "difference"),
        covers(partial(paired, noise=0.2, drift=0.05), f"ratio{wild}", f"difference{wild}"),
        covers(unpaired, "ratio, unpaired", "difference, unpaired"),
        covers(effect, "factor_effect"),
        covers(floor, "noise_floor"),
        covers(shifted, *(f"shift: {one}" for one in ("q0.1", "median", "p99")), "ratio of means"),
        *models(),
        *scenarios(),
    ]
    return {one.name: one for one in found}


def run(name: str, count: int, seed: int, chunk: int) -> np.ndarray:
    """Return outcomes, shape (count, rows, 2); the same for the same arguments on any machine."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), chunk])
    draw = simulations()[name].draw
    return np.array([draw(rng) for _ in range(count)], dtype=float)


def simulate(
    chosen: Sequence[Simulation], experiments: int | None, seed: int, quick: bool = False
) -> pd.DataFrame:
    """Run simulations on two processes and return a row of the table each, with progress.

    Quick ones have a fortieth of the experiments.
    """
    tasks: dict[Future[np.ndarray], Simulation] = {}
    outcomes: dict[str, list[np.ndarray]] = {one.name: [] for one in chosen}
    with ProcessPoolExecutor(2) as pool:
        for one in chosen:
            total = experiments or (max(20, one.experiments // 40) if quick else one.experiments)
            for chunk, start in enumerate(range(0, total, CHUNK)):
                count = min(CHUNK, total - start)
                tasks[pool.submit(run, one.name, count, seed, chunk)] = one
        with tqdm(total=len(tasks), unit="chunk", desc="simulate", file=sys.stderr) as bar:
            for future in as_completed(tasks):
                outcomes[tasks[future].name].append(future.result())
                bar.update()
    whole = ((one, np.concatenate(outcomes[one.name])) for one in chosen)
    return pd.DataFrame([line for one, drawn in whole for line in lines(one, drawn)])


def simulation_error(rate: float, n: int) -> float:
    """Return the standard error of a simulated rate, above 0 also where it is 0 or 1."""
    near = (rate * n + 2) / (n + 4)
    return math.sqrt(near * (1 - near) / (n + 4))


def lines(one: Simulation, outcomes: np.ndarray) -> Iterator[dict[str, object]]:
    """Yield what each row of the table shows of the experiments that fed it."""
    for row, (hits, widths) in zip(one.rows, outcomes.transpose(1, 2, 0), strict=True):
        known = np.isfinite(widths)
        yield {
            "section": row.section,
            "name": row.name,
            "experiments": len(hits),
            "rate": float(hits.mean()),
            "width": float(widths[known].mean()) if known.any() else math.nan,
            "open": 1 - float(known.mean()),
        }


def judged(table: pd.DataFrame, quick: bool = False) -> pd.DataFrame:
    """Return the table with the errors of the rates, and whether their bounds hold."""
    rows = {row.name: row for one in simulations().values() for row in one.rows}
    known = [rows[name] for name in table["name"]]
    bounds = [
        row.bounds(count, quick) for row, count in zip(known, table["experiments"], strict=True)
    ]
    errors = map(simulation_error, table["rate"], table["experiments"])
    table = table.assign(
        error=list(errors),
        least=[least for least, _ in bounds],
        most=[most for _, most in bounds],
        nominal=[row.nominal for row in known],
        reach=[row.reach for row in known],
    )
    return table.assign(holds=table["rate"].between(table["least"], table["most"]))


#: Sections whose experiments return a number of blocks instead of an interval's width.
IN_BLOCKS = ("plan", "looks")


def as_markdown(table: pd.DataFrame) -> Iterator[str]:
    """Yield the lines of Markdown tables; widths are relative to what is estimated."""
    for section, rows in table.groupby("section", sort=False):
        yield from function_tables(rows) if section == "functions" else rate_table(section, rows)


def function_tables(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a table a scenario: how often functions cover, and are silently wrong.

    Functions with the same numbers share a row: they test the same.
    """
    parts = rows["name"].str.extract(r"(?P<scenario>.*), (?P<blocks>\d+) blocks: (?P<function>.*)")
    rows = rows.join(parts.astype({"blocks": int}))
    for scenario, part in rows.groupby("scenario", sort=False):
        cells = [
            ("refused" if row.open == 1 else f"{row.width:.0%} ({row.rate:.0%})")
            + ("" if row.holds else " BROKEN")
            for row in part.itertuples()
        ]
        shown = part.assign(cell=cells).pivot(index="function", columns="blocks", values="cell")
        shown = shown.loc[list(dict.fromkeys(part["function"]))].fillna("")
        alike: dict[tuple[str, ...], list[str]] = {}
        for name, row in shown.iterrows():
            alike.setdefault(tuple(row), []).append(str(name))
        heads = [f"{scenario} (n = {part['experiments'].min()})", *(f"{n} blocks" for n in shown)]
        yield f"\n| {' | '.join(heads)} |"
        yield "| --- " * (1 + len(shown.columns)) + "|"
        for texts, names in alike.items():
            yield f"| {', '.join(names)} | {' | '.join(texts)} |"
    least = rows["experiments"].min()
    error = simulation_error(0.95, least)
    yield "\nCoverage, and in brackets misses without a note, of n experiments a number. With"
    yield f"the fewest, {least}, a coverage of 95 % is known to within {error:.1%} (one standard"
    yield "error)."


def rate_table(section: str, rows: pd.DataFrame) -> Iterator[str]:
    """Yield a table of rates beside the nominal ones."""
    wide, in_blocks = max(map(len, rows["name"])), section in IN_BLOCKS
    last = "blocks" if in_blocks else "width"
    yield (
        f"\n| {section:<{wide}} |    n |             rate | nominal | {'bound':<16} | {last:>7} "
        "| remark |"
    )
    yield f"| {'-' * wide} | ---: | ---------------: | ------: | ---------------- | ------: | --- |"
    for row in rows.itertuples():
        # Some rates are only told, and have no bound.
        bound = f"{row.least:.1%} to {row.most:.2%}" if row.least > 0 or row.most < 1 else ""
        width = "" if math.isnan(row.width) else f"{row.width:.2%}"
        if width and in_blocks:
            width = f"{row.width:.1f}"
        nominal = "" if math.isnan(row.nominal) else f"{row.nominal:.1%}"
        remarks = ["" if row.holds else "BROKEN"]
        if width and row.open:
            remarks.append(f"{row.open:.1%} open or refused, not in the width")
        if row.reach:
            remarks.append(f"out of reach: {row.reach}")
        rate = f"{100 * row.rate:.2f} ± {100 * row.error:.2f} %"
        yield (
            f"| {row.name:<{wide}} | {row.experiments:4d} | {rate:>16} | {nominal:>7} "
            f"| {bound:<16} | {width:>7} | {'; '.join(filter(None, remarks))} |"
        )


def write_page(table: pd.DataFrame | None = None) -> None:
    """Write the page of the documentation from what is kept, with these rows where given."""
    pages = neighbour("simulate_page")
    names = [row.name for one in simulations().values() for row in one.rows]
    kept = pd.read_csv(pages["KEPT"]) if table is None else pages["record"](table, names)
    pages["PAGE"].write_text(pages["page"](judged(kept), as_markdown), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, help="a simulation (default 80 to 1,000)")
    parser.add_argument("--quick", action="store_true", help="a fortieth, in about ten minutes")
    parser.add_argument("--record", action="store_true", help="keep the rates, write the page")
    parser.add_argument("--seed", type=int, default=2015, help="default 2015")
    parser.add_argument(
        "--only", default="", help="those with this in their section and name, such as shape:"
    )
    given = parser.parse_args(arguments)
    every = simulations().values()
    chosen = [
        one for one in every if any(given.only in f"{row.section}: {row.name}" for row in one.rows)
    ]
    if not chosen or (given.experiments or 1) < 1:
        parser.error(f"nothing to do; names are: {'; '.join(simulations())}")
    table = simulate(chosen, given.experiments, given.seed, given.quick)
    if given.record:
        write_page(table)
    table = judged(table, given.quick)
    print(*as_markdown(table), sep="\n")
    broken = int((~table["holds"]).sum())
    print(f"\n{len(table)} rows, {broken} broken. {BLOCKS} blocks; intervals of 95 %, their widths")
    print("relative to what is estimated; a rate is followed by its standard error, and bounds")
    print("include three of them.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
