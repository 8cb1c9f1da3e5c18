"""Errors, and remedies that name what was meant."""

from __future__ import annotations

from labkit.errors import LabkitError, RigError, suggestion


def test_the_nearest_name_comes_first() -> None:
    known = ["placement", "wait"]
    assert suggestion("Placment", known) == "did you mean 'placement'? One of placement, wait"
    assert suggestion("other", known) == "one of placement, wait"
    assert suggestion("any", []) == "there is none"


def test_an_error_is_read_again_from_its_text() -> None:
    fields = {"what": "it failed", "where": "host sut", "why": "a\nb", "remedy": "try again"}
    error = RigError(fields["what"], **{name: fields[name] for name in ("where", "why", "remedy")})
    assert LabkitError.fields(str(error)) == fields
    assert error.as_record() == {"type": "RigError", **fields, "evidence": {}}
