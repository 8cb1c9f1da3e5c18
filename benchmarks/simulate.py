"""Rates of wrong words: verdicts of simulated claims whose truth is known.

The functions of the ledger and of `compare` judge log ratios with the parts, blocks, spreads and
published sizes of the real claims ("as the claims"), or parts of the claims' median spread. Writes
benchmarks/simulate.csv and docs/method-rates.md; a tenth of it: make simulate ARGS=--quick
"""

import argparse
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from labkit.analysis.claims import ALPHA, MARGIN, Evidence, Part, decide, load_claims
from labkit.analysis.stats import Floats, Numbers, holm, row
from labkit.data import campaigns

ROOT = Path(__file__).resolve().parents[1]
#: Experiments, and how many of them Holm's correction takes together.
EXPERIMENTS, FAMILY, SEED = 4_000, 20, 2015
#: Smallest effect of a direction, margin of `compare`, and the median spread of log ratios.
SMALLEST, COMPARED, SPREAD = 1.02, 0.02, 0.05
BOUNDS = {"direction": (SMALLEST, math.inf), "no difference": (1 / (1 + MARGIN), 1 + MARGIN)}
#: Share of slow trials, and their delay in standard deviations: log ratios as skewed (1.3) and as
#: heavy in the tail (excess kurtosis 3.2) as the most extreme tenth of the claims'.
SLOW, DELAY = 0.05, 6.0
#: An effect that every number of blocks shows, in smallest effects.
FAR = 50.0
CLAIMS, PLAIN, SKEWED = "as the claims", "lognormal", "slow trials"
HOLDS, OTHER, FAILS, OPEN = "holds", "holds, other size", "does not hold here", "cannot tell"
DIFFERS, BOTH, EQUIVALENT = "differs", "differs within margin", "equivalent"
ERRORS, POWER, EQUAL = "errors", "(power)", "no effect (A/A)"
MISSED: dict[Any, str] = {"kind": "all", "truth": "any", "word": "(interval misses)"}
INTRODUCTION = f"""\
Wrong words in {EXPERIMENTS:,} simulated experiments each, in percent (±0.7); rows below 2 left out.
**Above 5**: correlated blocks, slow trials, campaigns that end early, "most" of many parts. First
with the claims' parts, blocks and spreads (their blocks show no correlation; fewer than 10 cannot);
slow trials are 5 % of one side's. Then with a spread and effect of 5 %, by blocks ("8, 16, 40":
ended at the first analysis that decides at 5 % / 3).
"""


class Truth(NamedTuple):
    """True effect, in logarithms of the smallest effect, p or the margin; and wrong words.

    With `others` all parts but one have that effect: half of the parts of a claim of most.
    """

    kind: str
    name: str
    effect: float
    wrong: tuple[str, ...] = ()
    others: float | None = None
    by_blocks: str = ""


TRUTHS = [
    Truth("direction", "no effect", 0, (HOLDS,)),
    Truth("direction", "the smallest effect", 1, (HOLDS, FAILS), by_blocks=ERRORS),
    Truth("direction", "the smallest effect in one part too many", 1, (HOLDS,), FAR),
    Truth("direction", "2.5 times the smallest effect", 2.5, (FAILS,), by_blocks=POWER),
    Truth("order", "one step level", 0, (HOLDS,), FAR),
    Truth("order", "each step 2 %", 1, (FAILS,)),
    Truth("size p", "on the other side", -1, (f"{HOLDS} or {OTHER}",)),
    Truth("size p", "no effect", 0, (f"{HOLDS} or {OTHER}",)),
    Truth("size p", "a quarter of p", 0.25, (HOLDS,)),
    Truth("size p", "half of p", 0.5, (FAILS,), by_blocks=ERRORS),
    Truth("size p", "p", 1, (FAILS, OTHER), by_blocks=POWER),
    Truth("size p", "twice p", 2, (FAILS,)),
    Truth("no difference", "no effect", 0, (FAILS,), by_blocks=POWER),
    Truth("no difference", "0.8 of the margin", 0.8, (FAILS,)),
    Truth("no difference", "the margin", 1, (HOLDS,), by_blocks=ERRORS),
    Truth("no difference", "1.5 margins", 1.5, (HOLDS,)),
    Truth("compare", EQUAL, 0, (f"{DIFFERS} or {BOTH}",), by_blocks=ERRORS),
    Truth("compare", "the margin", 1, (f"{EQUIVALENT} or {BOTH}",)),
    Truth("compare", "2.5 margins", 2.5, by_blocks=POWER),
]


class Shape(NamedTuple):
    """Spread of the log ratios and published ratio of a claim's parts; blocks at the analyses."""

    spreads: tuple[float, ...]
    sizes: tuple[float, ...]
    stops: tuple[int, ...]
    analyses: int
    most: bool


class Scenario(NamedTuple):
    """A row of the table."""

    truth: Truth
    parts: str
    blocks: str
    correlation: float = 0.0
    skew: str = PLAIN


def scenarios() -> Iterator[Scenario]:
    """Yield the rows of the table."""
    for truth in TRUTHS:
        for correlation, skew in ((0.0, PLAIN), (0.0, SKEWED), (0.3, PLAIN), (0.6, PLAIN)):
            yield Scenario(truth, CLAIMS, CLAIMS, correlation, skew)
    for truth in (truth for truth in TRUTHS if truth.by_blocks):
        for correlation in (0.0, 0.3, 0.6) if truth.name == EQUAL else (0.0,):
            for blocks in ("5", "10", "20", "40", "8, 16, 40"):
                yield Scenario(truth, "1", blocks, correlation)
    yield from (Scenario(TRUTHS[2], parts, "10") for parts in ("most of 4", "most of 12"))


def claim_shapes(data: Path) -> dict[str, list[Shape]]:
    """Return the shapes of the papers' claims on ratios, by kind of rule."""
    found: dict[str, list[Shape]] = {truth.kind: [] for truth in TRUTHS}
    measured = {one.study: Evidence(one) for one in campaigns(data)}
    for claim in load_claims():
        if claim.line or not (claim.to or claim.order):
            continue
        evidence = measured[claim.study]
        parts = evidence.parts(claim)
        spreads = tuple(one.estimate.error * math.sqrt(one.estimate.n) for one in parts)
        sizes, stops = tuple(one.size for one in parts), (min(one.estimate.n for one in parts),)
        if all(one.estimate.log for one in parts):
            kind = "order" if claim.order else "size p" if claim.size else "direction"
            shape = Shape(spreads, sizes, stops, evidence.analyses, claim.most)
            found["no difference" if claim.within else kind].append(shape)
            found["compare"].append(Shape(spreads[:1], sizes[:1], stops, 1, False))
    return found


def draw(rng: np.random.Generator, scenario: Scenario, shape: Shape) -> tuple[Floats, list[Floats]]:
    """Return the true log ratios, and the logarithms of each part and its baseline by block.

    The parts share their baseline; each step of an order begins where the one before it ends.
    """
    truth, blocks, count = scenario.truth, shape.stops[-1], len(shape.sizes)
    effects = np.full(count, float(truth.effect))
    if truth.others is not None:
        effects[: count // 2 if shape.most else count - 1] = truth.others
    units = {"size p": np.log(shape.sizes), "no difference": math.log1p(MARGIN)}
    effects = effects * units.get(truth.kind, math.log(SMALLEST))
    noise = rng.standard_normal((blocks, count + 1)) / math.sqrt(2)
    noise[1:] *= math.sqrt(1 - scenario.correlation**2)
    noise = lfilter([1], [1, -scenario.correlation], noise, axis=0)
    if scenario.skew == SKEWED:
        noise[:, 1:] += DELAY / math.sqrt(2) * ((rng.random((blocks, count)) < SLOW) - SLOW)
        noise /= math.sqrt(1 + DELAY**2 * SLOW * (1 - SLOW) / 2)
    bases = range(count) if truth.kind == "order" else [0] * count
    pairs = [noise[:, [part + 1, base]] for part, base in enumerate(bases)]
    known = zip(pairs, shape.spreads, effects, strict=True)
    return effects, [pair * spread + [effect, 0.0] for pair, spread, effect in known]


def judge(kind: str, shape: Shape, numbers: Sequence[Numbers]) -> tuple[str, float, Any]:
    """Return word, p-value and 95 % intervals of a claim, or of a row of `compare`."""
    if kind == "compare":
        found = row(numbers[0], COMPARED, ALPHA)
        return found["verdict"], shape.analyses * found["p_value"], [(found["low"], found["high"])]
    (low, high), parts = BOUNDS.get(kind, (1.0, math.inf)), []
    may_fail = (len(numbers) - 1) // 2 if shape.most else 0
    for one, size in zip(numbers, shape.sizes, strict=True):
        mean, inside = one.estimate(), one.p_inside(low, high)
        parts.append(Part("", mean, low, high, size, inside, len(numbers), may_fail))
    word, _, p = decide(parts)
    return word, shape.analyses * p, [part.estimate.interval() for part in parts]


def simulate(scenario: Scenario, shapes: Sequence[Shape], experiments: int) -> dict[str, Any]:
    """Return a row: shares of the words, of the mark •, and of intervals with the truth."""
    truth, most = scenario.truth, "most" in scenario.parts
    if not shapes:
        count, stops = int(scenario.parts.split()[-1]), [*map(int, scenario.blocks.split(", "))]
        sizes = (1 + MARGIN if truth.kind == "size p" else math.nan,) * count
        shapes = [Shape((SPREAD,) * count, sizes, tuple(stops), len(stops), most)]
    rng = np.random.default_rng([SEED, zlib.crc32(repr(scenario).encode())])
    rows = []
    for _ in range(experiments):
        shape = shapes[int(rng.integers(len(shapes)))]
        effects, logs = draw(rng, scenario, shape)
        for stop in shape.stops:
            numbers = [Numbers(one[:stop], True, (0, 0)) for one in logs]
            word, p, intervals = judge(truth.kind, shape, numbers)
            if word != OPEN and p < ALPHA:
                break
        low, high = np.log(intervals).T
        rows.append((word, p, np.mean((low <= effects) & (effects <= high))))
    table = pd.DataFrame(rows, columns=["word", "p", "covered"])
    words = [DIFFERS, BOTH, EQUIVALENT] if truth.kind == "compare" else [HOLDS, OTHER, FAILS]
    shares = {word: (table["word"] == word).mean() for word in (*words, OPEN)}
    p_adjusted = table.groupby(table.index // FAMILY)["p"].transform(holm)
    marked = (p_adjusted < ALPHA) & table["word"].isin([*words[:2], FAILS])
    rates = {**shares, "marked": marked.mean(), "covered": table["covered"].mean()}
    return {"kind": truth.kind, **scenario._asdict(), "truth": truth.name, **rates}


def page(table: pd.DataFrame) -> str:
    """Return the documentation's tables of wrong words and of power, in percent."""
    truths, rates = {(truth.kind, truth.name): truth for truth in TRUTHS}, []
    for one in table.to_dict("records"):
        truth = truths[one["kind"], one["truth"]]
        setting = f"correlation {one['correlation']}" if one["correlation"] else one["skew"]
        one["setting"] = one["parts"] if "most" in one["parts"] else setting
        words = {group: sum(one[word] for word in group.split(" or ")) for group in truth.wrong}
        if one["blocks"] != CLAIMS and truth.by_blocks == POWER:
            words = {POWER: 1 - one[OPEN]}
        rates += [{**one, "word": word, "rate": rate} for word, rate in words.items()]
        rates += [{**one, **MISSED, "rate": 1 - one["covered"]}] * ("most" not in one["parts"])
    long, text = pd.DataFrame(rates), INTRODUCTION
    for columns in ("setting", "blocks"):
        index = ["kind", "truth", "word", *["setting"] * (columns == "blocks")]
        shown = long[(long["blocks"] == CLAIMS) == (columns == "setting")]
        wide = 100 * shown.pivot_table("rate", index, columns, sort=False)
        wide = wide[wide.max(axis=1) >= 2]
        cells = wide.map("{:.1f}".format).replace("nan", "")
        bold = wide.gt(5).mul(wide.index.get_level_values("word") != POWER, axis=0)
        cells = cells.mask(bold, "**" + cells + "**").reset_index()
        lines = [cells.columns, ["---"] * cells.shape[1], *cells.to_numpy()]
        text += "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return text


def main() -> None:
    """Simulate, and write the table and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=ROOT / "data" / "reference")
    parser.add_argument("--quick", action="store_true", help="a tenth, printed")
    given = parser.parse_args()
    shapes, experiments = claim_shapes(given.data), EXPERIMENTS // (10 if given.quick else 1)
    table = pd.DataFrame(
        simulate(one, shapes[one.truth.kind] if one.parts == CLAIMS else [], experiments)
        for one in scenarios()
    ).round(4)
    if given.quick:
        print(page(table))
    else:
        table.to_csv(ROOT / "benchmarks" / "simulate.csv", index=False)
        (ROOT / "docs" / "method-rates.md").write_text(page(table))


if __name__ == "__main__":
    main()
