"""The rows of an attempt: levels, statistics of samples, a saturated load, further conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.campaign.rows import make_rows, saturated
from labkit.design import Condition
from labkit.placement import docker
from labkit.tools.base import Measurement
from labkit.tools.parsing import NOT_REACHED

KEYS = {"trial": "b01-p02", "attempt": 1, "block": 1, "position": 2, "session": 1}
OUTCOME = {"status": "ok", "problem": "", "started_ns": 5, "seconds": 0.5}
CONDITION = Condition((("placement", docker("host")), ("size_b", 64)), repeat=2)


def rows(measurement: Measurement, **record: Any) -> list[dict[str, Any]]:
    record = {"flags": ["odd", "late"], "mechanisms": {"steal": 0.1}} | record
    return make_rows(KEYS, CONDITION, OUTCOME, record, measurement)


def test_a_row_has_levels_flags_counters_metrics_and_statistics() -> None:
    samples = {"rtt_ns": np.arange(1, 21), "start_ns": np.arange(20), "set": np.arange(20)}
    (row,) = rows(Measurement(samples, {"rate": 2.5, "steal": 0.2, "unknown": None}))
    assert list(row)[:8] == [*KEYS, "repeat", "placement", "size_b"]
    assert (row["placement"], row["size_b"], row["repeat"]) == ("docker host", "64", 2)
    assert (row["flags"], row["n_samples"], row["steal"]) == ("odd; late", 20, 0.2)
    found = {name: value for name, value in row.items() if name.startswith("rtt_ns")}
    assert found["rtt_ns_median"] == 10.5 and found["rtt_ns_p95"] == np.quantile(range(1, 21), 0.95)
    assert found["rtt_ns_std"] == np.std(range(1, 21), ddof=1) and "rtt_ns_p99" not in found
    assert not {"start_ns_mean", "set_mean", "unknown", "loaded_saturated"} & set(row)
    assert row["router"] == ""


def test_further_conditions_of_a_trial_are_rows() -> None:
    also = (({"size_b": 128}, {"rate": 3.0}),)
    own, other = rows(Measurement({}, {"rate": 2.0}, also=also))
    assert [row["trial"] for row in (own, other)] == ["b01-p02", "b01-p02/1"]
    assert [row["size_b"] for row in (own, other)] == ["64", "128"]
    assert [row["rate"] for row in (own, other)] == [2.0, 3.0]
    assert other["placement"] == "docker host" and other["steal"] == 0.1


def test_the_data_path_of_routers_is_in_a_row() -> None:
    verified = {"verification": {"router to 198.18.0.5": "sleeve"}, "verifications": {"client": {}}}
    assert rows(Measurement({}), **verified)[0]["router"] == "sleeve"


@pytest.mark.parametrize(
    ("numbers", "flags", "expected"),
    [
        ({}, "", False),
        ({"tool_cpu": 0.91}, "", True),
        ({"tool_cpu": 0.9, "client_delay": 0.05}, "", False),
        ({"client_delay": 0.06}, "", True),
        ({"reached": 0.9}, "", False),
        ({"reached": 0.9}, f"{NOT_REACHED}: 9 of 10", True),
        ({"reached": 0.96}, NOT_REACHED, False),
        ({"sent_per_s": 90.0, "offered_per_s": 100}, NOT_REACHED, True),
        ({"sent_per_s": 90.0}, NOT_REACHED, False),
    ],
)
def test_a_load_generator_may_be_the_limit(
    numbers: dict[str, float], flags: str, expected: bool
) -> None:
    assert saturated(numbers, flags) is expected


def test_the_window_at_the_offered_rate_has_its_own_limit() -> None:
    numbers = {"sent_per_s": 99.0, "loaded_sent_per_s": 80.0, "offered_per_s": 100}
    (row,) = rows(Measurement({}, numbers), flags=[NOT_REACHED])
    assert (row["saturated"], row["loaded_saturated"]) == (False, True)
