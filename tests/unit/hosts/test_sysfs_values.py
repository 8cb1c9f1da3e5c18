"""Which spellings of a kernel setting are one value, and what to write to put one back."""

from __future__ import annotations

import pytest

from labkit.hosts.sysfs_values import same, settable


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3\n", "00000003"),
        ("00000000,00000003", "3"),
        ("ff", "000000ff"),
        ("0,1", "0-1"),
        ("0-2,3,7", "7,0-3"),
        ("performance [powersave]", "powersave"),
        ("always [madvise] never", "madvise"),
        ("4096\t131072 6291456", "4096 131072 6291456"),
        ("0", "00000000,00000000"),
    ],
)
def test_spellings_of_one_value(one: str, other: str) -> None:
    assert same(one, other)
    assert same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [("3", "30"), ("0,2", "0-2"), ("-1", "1"), ("a", "b"), ("1 2", "12"), ("", "0"), ("10", "1")],
)
def test_different_values(one: str, other: str) -> None:
    assert not same(one, other)


def test_what_to_write_for_what_was_read() -> None:
    assert settable("none [mq-deadline] kyber\n") == "mq-deadline"
    assert settable("|/usr/lib/core[x] %p\n") == "|/usr/lib/core[x] %p"
