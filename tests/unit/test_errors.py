"""Errors, and remedies that name what was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import suggestion


@pytest.mark.parametrize(
    ("given_name", "known", "remedy"),
    [
        ("placment", ["placement", "wait"], "did you mean 'placement'? One of placement, wait"),
        ("RTT_NS", ["rtt_ns"], "did you mean 'rtt_ns'? One of rtt_ns"),
        ("other", ["placement", "wait"], "one of placement, wait"),
        (20, [2, 20, 20], "did you mean '20'? One of 2, 20"),
        ("any", [], "there is none"),
    ],
)
def test_the_nearest_name_comes_first(given_name: object, known: list[str], remedy: str) -> None:
    assert suggestion(given_name, known) == remedy


def test_long_lists_are_cut_and_counted() -> None:
    assert suggestion("x", range(100)).endswith("38, 39, ... (100 in all)")


@given(st.text(), st.lists(st.text()))
def test_any_name_has_a_remedy(name: str, known: list[str]) -> None:
    remedy = suggestion(name, known)
    assert remedy and (name not in known or not name or f"did you mean {name!r}" in remedy)
