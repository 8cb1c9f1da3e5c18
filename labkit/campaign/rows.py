"""The rows of an attempt at a trial, as `labkit.data` reads them: one for each condition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.design import Condition, level_label
from labkit.tools.base import Measurement
from labkit.tools.parsing import NOT_REACHED

#: Samples of a trial that a quantile needs, so that one is expected beyond it.
_QUANTILES = {"p95": (0.95, 20), "p99": (0.99, 100), "p999": (0.999, 1000)}
#: A load generator that used more of its CPUs than this may be the bottleneck, and so may one that
#: did not reach this share of the rate that was asked of it, and is flagged for that.
SATURATED, REACHED = 0.9, 0.95
#: So may one that waited for its own CPU for more than this share of the time.
WAITED = 0.05
#: The columns of a window with a capture, at the rate that is offered.
_LOADED = "loaded_"
#: Columns of samples that are points in time, or their distance from the schedule.
_TIMES = ("start_ns", "end_ns", "lateness_ns")


def statistics(name: str, samples: NDArray[Any]) -> dict[str, float]:
    """Statistics of one trial's samples, in their unit, as columns of its row.

    A quantile needs so many samples that one is expected beyond it.

    Examples
    --------
    >>> statistics("rtt_ns", np.array([1, 2, 6]))["rtt_ns_median"]
    2.0
    """
    if not len(samples):
        return {}
    values = np.asarray(samples, dtype=np.float64)
    found = {"mean": values.mean(), "median": np.median(values)}
    found |= {"min": values.min(), "max": values.max()}
    if len(values) > 1:
        found["std"] = values.std(ddof=1)
    for quantile, (level, needed) in _QUANTILES.items():
        if len(values) >= needed:
            found[quantile] = np.quantile(values, level)
    return {f"{name}_{statistic}": float(value) for statistic, value in found.items()}


def make_rows(
    keys: Mapping[str, Any],
    condition: Condition,
    outcome: Mapping[str, Any],
    record: Mapping[str, Any],
    measurement: Measurement,
) -> list[dict[str, Any]]:
    """Return the row of a trial's condition, then those of others that the trial measured.

    `keys` are ``trial``, ``attempt``, ``block``, ``position`` and ``session``, `outcome` has
    ``status``, ``problem``, ``started_ns`` and ``seconds``, `record` flags, counters and
    verifications.
    """
    levels = {name: level_label(level) for name, level in condition.levels}
    own = dict(measurement.metrics)
    for name, values in measurement.samples.items():
        if name.endswith("_ns") and name not in _TIMES:
            own |= statistics(name, values)
    rows = []
    for number, (other, metrics) in enumerate([({}, own), *measurement.also]):
        changed = {name: level_label(level) for name, level in other.items()}
        found = {**record["mechanisms"], **metrics}
        numbers = {name: value for name, value in found.items() if value is not None}
        flags = "; ".join(record["flags"])
        row = {
            **keys,
            "trial": f"{keys['trial']}/{number}" if number else keys["trial"],
            "repeat": condition.repeat,
            **levels,
            **changed,
            **outcome,
            "flags": flags,
            "n_samples": max(map(len, measurement.samples.values()), default=0),
            "saturated": saturated(numbers, flags),
            "router": _router(record),
        }
        if any(name.startswith(_LOADED) for name in numbers):
            row[f"{_LOADED}saturated"] = saturated(numbers, flags, _LOADED)
        rows.append(row | numbers)
    return rows


def saturated(numbers: Mapping[str, float], flags: str, prefix: str = "") -> bool:
    """Return whether the load generator, and not the server, may have set the value of a window.

    A tool flags a rate that it did not reach, as it knows how few it may send by chance. `prefix`
    is that of the columns of a second window.
    """
    sent = numbers.get(f"{prefix}sent_per_s", numbers.get("sent_per_s", math.nan))
    offered = numbers.get("offered_per_s", math.nan)
    reached = numbers.get("reached", sent / offered if offered else math.nan)
    return bool(
        numbers.get("tool_cpu", 0.0) > SATURATED
        or numbers.get("client_delay", 0.0) > WAITED
        or (reached < REACHED and NOT_REACHED in flags)
    )


def _router(record: Mapping[str, Any]) -> str:
    """Return the data path of a network's routers, such as Weave's, as verified."""
    verified = [record.get("verification", {}), *record.get("verifications", {}).values()]
    paths = {x for one in verified for name, x in one.items() if name.startswith("router to ")}
    return " and ".join(sorted(paths))
