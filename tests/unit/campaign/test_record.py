"""The record of a trial: shortened commands, errors, validity rules."""

from __future__ import annotations

import pytest

from labkit.campaign.counters import validity
from labkit.campaign.trial import brief


def test_a_long_argument_is_recorded_by_its_digest() -> None:
    text = "x" * 5000
    assert brief(("python3", "-c", text)) == ["python3", "-c", brief([text])[0]]
    assert brief([text])[0].startswith("<5000 characters, sha256 ")
    assert brief([text + "y"]) != brief([text])


@pytest.mark.parametrize(
    ("mechanisms", "flag"),
    [
        ({"steal_worst": 0.02}, "steal 2.0% of a CPU"),
        (
            {"cache_line_ratio": 2.7},
            "the CPUs of generator and SUT shared no cache before or after the window",
        ),
        ({"Udp.RcvbufErrors": 3}, "3 datagrams dropped at the socket"),
        (
            {"group_cpu_use": 902.0, "cpu_use": 1.9, "cpu0_idle": 0.0, "cpu1_idle": 0.0},
            "impossible: group_cpu_use is 902.00 of 2 CPUs",
        ),
    ],
)
def test_broken_validity_rules_are_flags(mechanisms: dict[str, float], flag: str) -> None:
    assert validity(mechanisms) == [flag]
    assert validity({"migrations": 9, "steal_worst": 0.001, "cache_line_ratio": 1.3}) == []


@pytest.mark.parametrize(("seconds", "flagged"), [(0.4, False), (30.0, True)])
def test_a_short_window_on_a_busy_machine_is_not_impossible(seconds: float, flagged: bool) -> None:
    """Within the time that reading takes, both CPUs may have worked for the group."""
    used = {"group_cpu_use": 2.4, "group_cpu_ns": 2.4e9 * seconds}
    assert bool(validity(used | {"cpu0_idle": 0.0, "cpu1_idle": 0.0})) == flagged
