"""Errors, and remedies that name what was meant."""

from __future__ import annotations

import pytest

from labkit.errors import LabkitError, RigError, suggestion


@pytest.mark.parametrize(
    ("given_name", "known", "remedy"),
    [
        ("placment", ["placement", "wait"], "did you mean 'placement'? One of placement, wait"),
        ("RTT_NS", ["rtt_ns"], "did you mean 'rtt_ns'? One of rtt_ns"),
        ("other", ["placement", "wait"], "one of placement, wait"),
        (20, [2, 20, 20], "did you mean '20'? One of 2, 20"),
        ("any", [], "there is none"),
        ("x", range(100), f"one of {', '.join(map(str, range(40)))}, ..."),
    ],
)
def test_the_nearest_name_comes_first(given_name: object, known: list[str], remedy: str) -> None:
    assert suggestion(given_name, known) == remedy


def test_an_error_is_read_again_from_its_text() -> None:
    fields = {"what": "it failed", "where": "host sut", "why": "a\nb", "remedy": "try again"}
    error = RigError(fields["what"], **{name: fields[name] for name in ("where", "why", "remedy")})
    assert LabkitError.fields(str(error)) == fields
    assert error.as_record() == {"type": "RigError", **fields, "evidence": {}}
