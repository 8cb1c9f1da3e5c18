"""What services that run side by side cost each other: interference ratios, advice, and a model.

The interference ratio of a service beside a neighbour is IR = (mean beside - mean alone) / mean
alone: negative for a loss (Jha et al. 2018, equation 1). Here the means are geometric and paired by
block, so that the interval holds the uncertainty of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from labkit.analysis.compare import adjust_family, contrasts, decide, log_table
from labkit.analysis.estimates import Estimate
from labkit.analysis.power import least_blocks
from labkit.analysis.trials import require_columns
from labkit.errors import UsageError

Floats = NDArray[np.float64]

#: Columns of the model, as `write_model` writes them.
MODEL = (
    *("service", "neighbour", "case", "metric", "ir", "ir_low", "ir_high"),
    *("alone", "beside", "n_blocks", "verdict"),
)
#: Between neighbour and case in the name of a cell; in neither of them.
_JOIN = " | "
_KEYS = ("service", "neighbour", "case", "metric")
#: Bytes that a kernel of STREAM moves for each element, by STREAM's own count.
_ELEMENT = {"copy": 16, "scale": 16, "add": 24, "triad": 24}
#: Phases of Bonnie++ that pass over the whole file.
_PHASES = ("output", "rewrite", "input")


def interference_ratios(
    trials: pd.DataFrame,
    *,
    metrics: Mapping[str, Sequence[str]],
    alone: tuple[str, str],
    margin: float,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Return the interference ratio of every service beside every neighbour in every case.

    Parameters
    ----------
    trials : DataFrame
        One row a service of a trial, with the columns ``service``, ``neighbour``, ``case`` and
        ``block``.
    metrics : mapping of str to sequence of str
        For each service the columns that measure it; greater is better.
    alone : (str, str)
        Neighbour and case of the service alone: the denominator.
    margin : float
        Relative difference up to which two count as equal.
    alpha : float
        Level of the tests; intervals have 1 - `alpha`.

    Returns
    -------
    DataFrame
        A row a service, neighbour, case and metric that were measured, without the service alone
        as given: these four; ``n_blocks``; ``alone`` and ``beside``, geometric means in the
        metric's unit; ``ir, ir_low, ir_high``; ``estimate, low, high``, the same as ratios;
        ``p_adjusted`` (Holm over all rows) and ``verdict`` of
        `labkit.analysis.compare`; ``needed_blocks``; ``error`` and ``df``, standard error of the
        log ratio and its degrees of freedom; ``note``. A metric without values alone has no rows.

    Raises
    ------
    UsageError
        For missing columns, or values that have no logarithm.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/interference").ok
    >>> metrics = {"linpack": ["gflops"], "netperf": ["mbit_per_s"]}
    >>> options = {"alone": ("none", "1"), "margin": 0.05}
    >>> found = analysis.interference_ratios(trials, metrics=metrics, **options)
    >>> limited = found.query("neighbour == 'netperf' and case == '3b'").set_index("service")
    >>> limited["verdict"].to_dict()
    {'linpack': 'equivalent', 'netperf': 'undecided'}
    """
    require_columns(trials, [*_KEYS[:3], "block"])
    rows: list[dict[str, Any]] = []
    cells = trials["neighbour"].astype("str") + _JOIN + trials["case"].astype("str")
    for service, names in metrics.items():
        own = trials.assign(cell=cells)[(trials["service"].astype("str") == service).to_numpy()]
        for metric in names:
            rows += _rows(own, service, metric, _JOIN.join(alone), margin, alpha)
    table = decide(rows, alpha=alpha, keys=_KEYS)
    extra = ["alone", "beside", "error", "df"]
    table[extra] = pd.DataFrame(rows, columns=extra)
    return table.assign(
        ir=table["estimate"] - 1, ir_low=table["low"] - 1, ir_high=table["high"] - 1
    )


def _rows(
    own: pd.DataFrame, service: str, metric: str, alone: str, margin: float, alpha: float
) -> list[dict[str, Any]]:
    """Return the comparisons of one metric of one service, uncorrected."""
    if metric not in own or not own.loc[own["cell"] == alone, metric].notna().any():
        return []
    table = log_table(own, value=metric, condition="cell")
    level = _geometric(table.logs[alone])
    rows: list[dict[str, Any]] = []
    for cell, row in contrasts(table, alone, margin=margin, alpha=alpha).items():
        neighbour, _, case = str(cell).partition(_JOIN)
        names = {"service": service, "neighbour": neighbour, "case": case, "metric": metric}
        rows.append(names | {"alone": level, "beside": _geometric(table.logs[cell])} | row)
    return rows


def _geometric(logs: pd.Series[float]) -> float:
    return math.exp(float(logs.mean())) if logs.notna().any() else math.nan


def advice(
    table: pd.DataFrame,
    *,
    limit: float,
    alpha: float = 0.05,
    planned: Iterable[tuple[str, str, str]] = (),
) -> pd.DataFrame:
    """Return for each pair and case whether the two may run side by side.

    Each service's loss beside the other is tested against the limit on the log scale. A pair ``may
    share`` where every metric of both services is shown to lose less than `limit`: all of them have
    to pass, so the largest p-value counts (Berger 1982). It is to ``keep apart`` where one of them
    is shown to lose more: the smallest p-value, times the number of metrics (Bonferroni). Both are
    corrected by Holm over the pairs. Everything else is ``open``: pairs on too few blocks for
    `alpha` (`least_blocks`), and pairs of which a service has no number.

    Parameters
    ----------
    table : DataFrame
        What `interference_ratios` returned.
    limit : float
        Loss that is accepted (0.1 for 10 %).
    alpha : float
        Level of each of the two families of pairs.
    planned : iterable of (service, neighbour, case)
        Pairs that have a row even if nothing was measured of them.

    Returns
    -------
    DataFrame
        ``pair, case, advice``; ``service, metric, ir`` of the metric that decides (the one that
        loses most where none does), with the one-sided bounds ``ir_low`` and ``ir_high`` at the
        level that the advice rests on; ``p_share, p_apart``, adjusted; ``rows``, metrics of both
        services together.

    Raises
    ------
    UsageError
        For a limit that is not between 0 and 1.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> trials = load("data/reference/interference").ok
    >>> metrics = {"linpack": ["gflops"], "netperf": ["mbit_per_s"]}
    >>> options = {"alone": ("none", "1"), "margin": 0.05}
    >>> found = analysis.interference_ratios(trials, metrics=metrics, **options)
    >>> advised = analysis.advice(found, limit=0.1).set_index(["case", "pair"])
    >>> advised.loc[("2", "linpack + netperf"), "advice"]
    'keep apart'
    """
    if not 0 < limit < 1:
        raise UsageError(f"invalid limit: {limit!r}", remedy="0.1 for 10 %")
    pairs = [
        " + ".join(sorted(pair))
        for pair in zip(table["service"].astype(str), table["neighbour"].astype(str), strict=True)
    ]
    keyed = table.assign(pair=pairs, **_loss_tests(table, limit, alpha))
    parts: list[pd.DataFrame] = []
    rows: list[dict[str, Any]] = []
    for (pair, case), part in keyed.groupby(["pair", "case"], sort=False):
        services = str(pair).split(" + ")
        if "none" in services:
            continue
        complete = set(part["service"].astype(str)) == set(services)
        share = float(part["p_less"].max(skipna=False)) if complete else math.nan
        apart = float(np.minimum(1.0, len(part) * part["p_more"].min()))  # NaN stays NaN
        parts.append(part)
        rows.append(
            {"pair": pair, "case": case, "p_share": share, "p_apart": apart, "rows": len(part)}
        )
    nothing = np.zeros(len(rows), dtype=bool)
    families = {
        name: adjust_family(np.array([row[name] for row in rows], dtype=float), nothing, alpha)
        for name in ("p_share", "p_apart")
    }
    for place, (row, part) in enumerate(zip(rows, parts, strict=True)):
        p_share, p_apart = (float(family.adjusted[place]) for family in families.values())
        advised = "keep apart" if p_apart < alpha else "may share" if p_share < alpha else "open"
        # A single metric keeps a pair apart at its share of the pair's level.
        level = float(families["p_share"].levels[place])
        if advised != "may share":
            level = float(families["p_apart"].levels[place]) / len(part)
        deciding = {"keep apart": "p_more", "may share": "p_less"}.get(advised)
        order = part[deciding or "ir"] * (-1 if deciding == "p_less" else 1)
        worst = part.iloc[int(np.argmin(order.fillna(math.inf)))]
        bounds = _bounds(worst, level, alpha)
        row |= {"advice": advised, "p_share": p_share, "p_apart": p_apart, **bounds}
        row |= {name: worst[name] for name in ("service", "metric", "ir")}
    compared = {(row["pair"], row["case"]) for row in rows}
    expected = [(" + ".join(sorted(two)), case) for *two, case in planned if "none" not in two]
    missing = [key for key in dict.fromkeys(expected) if key not in compared]
    empty = {"advice": "open", "service": "", "metric": "", "rows": 0}
    rows += [{"pair": pair, "case": case, **empty} for pair, case in missing]
    names = ["pair", "case", "advice", "service", "metric", "ir", "ir_low", "ir_high"]
    return pd.DataFrame(rows, columns=[*names, "p_share", "p_apart", "rows"])


def _loss_tests(table: pd.DataFrame, limit: float, alpha: float) -> dict[str, Floats]:
    """Return one-sided p-values of a smaller (``p_less``) and of a larger loss than the limit.

    NaN on too few blocks.
    """
    logs = np.log1p(table["ir"].to_numpy(dtype=np.float64)) - math.log1p(-limit)
    error, df = (table[name].to_numpy(dtype=np.float64) for name in ("error", "df"))
    enough = table["n_blocks"].to_numpy(dtype=np.int64) >= least_blocks(alpha)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(enough, logs / error, np.nan)
    return {"p_less": special.stdtr(df, -t), "p_more": special.stdtr(df, t)}


def _bounds(row: pd.Series[Any], level: float, alpha: float) -> dict[str, float]:
    """Return the one-sided bounds of a ratio at a level; NaN on too few blocks."""
    if row["n_blocks"] < least_blocks(alpha):
        return {"ir_low": math.nan, "ir_high": math.nan}
    log = Estimate(math.log1p(row["ir"]), row["error"], row["df"])
    low, high = log.interval(2 * level)
    return {"ir_low": math.expm1(low), "ir_high": math.expm1(high)}


def iterations(records: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> pd.DataFrame:
    """Return every iteration that trials kept in their records, a row each.

    ``seconds`` is what the tool's own clock measured (`timed_seconds`), and ``timed`` its share.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> campaign = load("data/reference/interference")
    >>> found = analysis.iterations(campaign.records, campaign.plan["settings"])
    >>> sorted(found["service"].unique())
    ['bonnie', 'linpack', 'netperf', 'stream']
    """
    rows: list[dict[str, object]] = []
    for record in records:
        sides = (record.get("details") or {}).get("sides", [])
        names = [side["name"] for side in sides]
        for side, other in zip(sides, names[::-1] if len(names) > 1 else ["none"], strict=False):
            for iteration in side["iterations"]:
                seconds = (iteration["end_ns"] - iteration["start_ns"]) / 1e9
                clock = timed_seconds(iteration, settings)
                timed = min(clock / seconds, 1.0) if seconds else math.nan
                least = max(0.0, 1 - (1 - iteration["overlap"]) / timed) if timed > 0 else math.nan
                about = {"trial": record["trial"], "service": side["name"], "neighbour": other}
                about |= {"case": record["levels"]["case"], "timed": timed, "beside": least}
                about |= {name: bool(iteration.get(name)) for name in ("cut", "late")}
                about |= {"block": record["block"], "seconds": clock}
                rows.append(about | {"overlap": iteration["overlap"]})
    kinds: dict[str, type] = {"cut": bool, "late": bool}
    kinds |= dict.fromkeys(("overlap", "seconds", "timed", "beside"), float)
    return pd.DataFrame(rows, columns=["trial", "block", *_KEYS[:3], *kinds]).astype(kinds)


def timed_seconds(iteration: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
    """Return how much of an iteration the tool's own clock measured, from what it printed.

    Linpack and Netperf print it. STREAM's is the bytes of all passes but the first over their mean
    rates, Bonnie++'s the file over the rates of its three block phases, without its seeks. NaN for
    other tools, and where a number or a size is missing.
    """
    for name in ("linpack_seconds", "netperf_seconds"):
        if name in iteration:
            return float(iteration[name])
    stream, bonnie = settings.get("stream_size", {}), settings.get("bonnie_size", {})
    parts = []
    if "copy_mean_gb_per_s" in iteration and stream:
        passes = (stream["times"] - 1) * stream["elements"]
        for kernel, size in _ELEMENT.items():
            parts.append(size * passes / 1e9 / iteration[f"{kernel}_mean_gb_per_s"])
    elif "block_output_mb_per_s" in iteration and bonnie:
        rates = [iteration.get(f"block_{name}_mb_per_s", math.nan) for name in _PHASES]
        parts = [bonnie["megabytes"] * 2**20 / 1e6 / rate for rate in rates]
    return math.fsum(parts) if parts else math.nan


def write_model(table: pd.DataFrame, path: Path | str) -> Path:
    """Write the interference model as a CSV that a scheduler can read.

    A row a service, neighbour, case and metric: the columns of `MODEL`. ``ir`` times ``alone`` is
    what the service gains (or, negative, loses) beside that neighbour, in the unit that the
    metric's name ends with; an empty number was not measured. Numbers have a decimal point, the
    encoding is UTF-8, the first row holds the names.

    Examples
    --------
    >>> from labkit import analysis, load
    >>> import tempfile
    >>> trials = load("data/reference/interference").ok
    >>> metrics = {"linpack": ["gflops"]}
    >>> options = {"alone": ("none", "1"), "margin": 0.05}
    >>> found = analysis.interference_ratios(trials, metrics=metrics, **options)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = analysis.write_model(found, f"{folder}/model.csv")
    ...     print(file.read_text().splitlines()[0])
    service,neighbour,case,metric,ir,ir_low,ir_high,alone,beside,n_blocks,verdict
    """
    require_columns(table, list(MODEL))
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    table[list(MODEL)].to_csv(file, index=False, float_format="%.6g", lineterminator="\n")
    return file
