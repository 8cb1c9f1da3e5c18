"""Rates of virtual links: how they are written, and what is no rate."""

from __future__ import annotations

import pytest

from labkit.errors import UsageError
from labkit.rig import Rig, netns


@pytest.mark.parametrize(
    ("rate", "found"), [("1gbit", 10**9), ("250mbit", 250 * 10**6), ("64kbit", 64_000)]
)
def test_rates_are_written_as_tc_writes_them(rate: str, found: int) -> None:
    assert netns.bits_per_second(rate) == found


@pytest.mark.parametrize("rate", ["1", "0gbit", "1 gbit", "1.5gbit", "1Gbit", "fast", "-1gbit"])
def test_what_is_no_rate_is_refused_before_anything_is_made(rate: str) -> None:
    with pytest.raises(UsageError, match="invalid rate") as caught, Rig.open(f"virtual:{rate}"):
        pass
    assert "virtual:1gbit" in caught.value.remedy
    assert caught.value.exit_code == 2


def test_a_rig_says_the_rate_of_its_links() -> None:
    assert "1000 Mbit/s each way" in netns.rate_text("1gbit")
    assert "token buckets, not wires" in netns.rate_caveats("1gbit")[0]
    assert netns.rate_text("") == "" and netns.rate_caveats("") == ()
