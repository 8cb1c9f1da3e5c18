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

from labkit.analysis.compare import contrasts, decide, log_table
from labkit.analysis.power import least_blocks
from labkit.analysis.trials import require_columns
from labkit.errors import UsageError

#: Columns of the model, as `write_model` writes them.
MODEL = (
    *("service", "neighbour", "case", "metric", "ir", "ir_low", "ir_high"),
    *("alone", "beside", "n_blocks", "verdict"),
)


#: Between neighbour and case in the name of a cell; in neither of them.
_JOIN = " | "


_KEYS = ("service", "neighbour", "case", "metric")


ADVICE = ("may share", "keep apart", "open")


#: Bytes that a kernel of STREAM moves for each element, by STREAM's own count.
_ELEMENT = {"copy": 16, "scale": 16, "add": 24, "triad": 24}


#: Phases of Bonnie++ that pass over the whole file.
_PHASES = ("output", "rewrite", "input")


def interference(
    trials: pd.DataFrame,
    *,
    metrics: Mapping[str, Sequence[str]],
    alone: tuple[str, str],
    margin: float,
    alpha: float = 0.05,
    block: str = "block",
) -> pd.DataFrame:
    """Return the interference ratio of every service beside every neighbour in every case.

    Parameters
    ----------
    trials : DataFrame
        One row a service of a trial, with the columns ``service, neighbour, case``.
    metrics : mapping of str to sequence of str
        For each service the columns that measure it; greater is better.
    alone : (str, str)
        Neighbour and case of the service alone: the denominator.
    margin : float
        Relative difference up to which two count as equal.
    alpha : float
        Level of the tests; intervals have 1 - `alpha`.
    block : str
        Column of the block.

    Returns
    -------
    DataFrame
        A row a service, neighbour, case and metric that were measured, without the service alone
        as given: these four; ``n_blocks``; ``alone`` and ``beside``, geometric means in the
        metric's unit; ``ir, ir_low, ir_high``; ``estimate, low, high``, the same as ratios;
        ``p_adjusted`` (Holm over all rows) and ``verdict`` of `labkit.analysis.compare`;
        ``needed_blocks``; ``note``. A metric without values alone has no rows.

    Raises
    ------
    UsageError
        For missing columns, or values that have no logarithm.
    """
    require_columns(trials, [*_KEYS[:3], block])
    rows: list[dict[str, object]] = []
    cells = trials["neighbour"].astype("str") + _JOIN + trials["case"].astype("str")
    for service, names in metrics.items():
        own = trials.assign(cell=cells)[(trials["service"].astype("str") == service).to_numpy()]
        for metric in names:
            rows += _rows(own, service, metric, _JOIN.join(alone), (margin, alpha), block)
    table = decide(rows, alpha=alpha, keys=_KEYS)
    extra = pd.DataFrame(rows, columns=["alone", "beside"])
    table = table.assign(alone=extra["alone"], beside=extra["beside"])
    return table.assign(
        ir=table["estimate"] - 1, ir_low=table["low"] - 1, ir_high=table["high"] - 1
    )


def _rows(
    own: pd.DataFrame,
    service: str,
    metric: str,
    alone: str,
    options: tuple[float, float],
    block: str,
) -> list[dict[str, object]]:
    """Return the comparisons of one metric of one service, uncorrected."""
    if metric not in own or not own.loc[own["cell"] == alone, metric].notna().any():
        return []
    table = log_table(own, value=metric, condition="cell", block=block)
    level = _geometric(table.logs[alone])
    contrasts_of_cells = contrasts(table, alone, margin=options[0], alpha=options[1])
    rows: list[dict[str, object]] = []
    for cell, row in contrasts_of_cells.items():
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

    The rule: ``may share`` where for both services and every metric the interval of IR lies above
    ``-limit``; ``keep apart`` where for one of them it lies below ``-limit``; otherwise ``open``,
    which it always is on too few blocks for `alpha` (`least_blocks`), and where one of the two has
    no number.
    """
    if not 0 < limit < 1:
        raise UsageError(f"invalid limit: {limit!r}", remedy="0.1 for 10 %")
    both = [
        " + ".join(sorted(pair))
        for pair in zip(table["service"].astype(str), table["neighbour"].astype(str), strict=True)
    ]
    rows: list[dict[str, object]] = []
    for (pair, case), part in table.assign(pair=both).groupby(["pair", "case"], sort=False):
        services = str(pair).split(" + ")
        if "none" in services:
            continue
        known = part[part["ir_low"].notna() & (part["n_blocks"] >= least_blocks(alpha))]
        apart = (known["ir_high"] < -limit).any()
        complete = len(known) == len(part) and set(known["service"].astype(str)) == set(services)
        share = complete and (known["ir_low"] > -limit).all()
        verdict = "keep apart" if apart else "may share" if share else "open"
        lowest = part["ir_low"].fillna(part["ir"]).fillna(math.inf).to_numpy(dtype=np.float64)
        worst = part.iloc[int(np.argmin(lowest))]
        numbers = {name: worst[name] for name in ("service", "metric", "ir", "ir_low", "ir_high")}
        rows.append({"pair": pair, "case": case, "advice": verdict, **numbers, "rows": len(part)})
    compared = {(row["pair"], row["case"]) for row in rows}
    asked = [(" + ".join(sorted(two)), case) for *two, case in planned if "none" not in two]
    missing = [key for key in dict.fromkeys(asked) if key not in compared]
    empty = {"advice": "open", "service": "", "metric": "", "rows": 0}
    rows += [{"pair": pair, "case": case, **empty} for pair, case in missing]
    names = ["pair", "case", "advice", "service", "metric", "ir", "ir_low", "ir_high", "rows"]
    return pd.DataFrame(rows, columns=names)


def iterations(records: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> pd.DataFrame:
    """Return every iteration that trials kept in their records, a row each."""
    rows: list[dict[str, object]] = []
    for record in records:
        sides = (record.get("details") or {}).get("sides", [])
        names = [side["name"] for side in sides]
        for side, other in zip(sides, names[::-1] if len(names) > 1 else ["none"], strict=False):
            for iteration in side["iterations"]:
                seconds = (iteration["end_ns"] - iteration["start_ns"]) / 1e9
                timed = (
                    min(timed_seconds(iteration, settings) / seconds, 1.0) if seconds else math.nan
                )
                least = max(0.0, 1 - (1 - iteration["overlap"]) / timed) if timed > 0 else math.nan
                about = {"trial": record["trial"], "service": side["name"], "neighbour": other}
                about |= {"case": record["levels"]["case"], "timed": timed, "beside": least}
                about |= {name: bool(iteration.get(name)) for name in ("cut", "late")}
                rows.append(about | {"overlap": iteration["overlap"]})
    kinds = {"cut": bool, "late": bool, "overlap": float, "timed": float, "beside": float}
    return pd.DataFrame(rows, columns=["trial", *_KEYS[:3], *kinds]).astype(kinds)


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
    """
    require_columns(table, list(MODEL))
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    table[list(MODEL)].to_csv(file, index=False, float_format="%.6g", lineterminator="\n")
    return file
