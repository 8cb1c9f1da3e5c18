"""Values of sysfs files: reading, comparing, restoring, and CPU masks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ToolOutput, UsageError
from labkit.hosts import LocalHost
from labkit.hosts.sysfs import cpu_mask, mask_cpus, read_files, same_value, written_value
from labkit.placement import parse_cpus


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("3\n", "00000003", True),
        ("00000000,00000003", "3", True),
        ("ff", "000000ff", True),
        ("0,1", "0-1", True),
        ("0-2,3,7", "7,0-3", True),
        ("performance [powersave]", "powersave", True),
        ("always [madvise] never", "madvise", True),
        ("4096\t131072 6291456", "4096 131072 6291456", True),
        ("0", "00000000,00000000", True),
        ("3", "30", False),
        ("0,2", "0-2", False),
        ("-1", "1", False),
        ("a", "b", False),
        ("1 2", "12", False),
        ("", "0", False),
        ("10", "1", False),
    ],
)
def test_same_value(left: str, right: str, same: bool) -> None:
    assert same_value(left, right) == same_value(right, left) == same


def test_written_value() -> None:
    assert written_value("none [mq-deadline] kyber\n") == "mq-deadline"
    assert written_value("|/usr/lib/core[x] %p\n") == "|/usr/lib/core[x] %p"


def test_read_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "b").write_text("two\nlines\n\n")
    paths = [f"{tmp_path}/{name}" for name in ("a", "missing", "b")]
    assert list(read_files(LocalHost(), paths).values()) == ["one", None, "two\nlines"]
    assert read_files(LocalHost(), []) == {}


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [
        ("", "0"),
        ("0", "1"),
        ("1,0", "3"),
        ("31", "80000000"),
        ("32", "1,00000000"),
        ("0,33", "2,00000001"),
        ("64-67,3", "f,00000000,00000008"),
    ],
)
def test_masks(cpus: str, mask: str) -> None:
    assert cpu_mask(cpus) == mask and cpu_mask(mask_cpus(mask)) == mask


@given(st.sets(st.integers(0, 300)))
def test_a_mask_has_the_cpus_of_its_list(cpus: set[int]) -> None:
    mask = cpu_mask(",".join(map(str, cpus)))
    assert set(parse_cpus(mask_cpus(mask))) == cpus
    assert int(mask.replace(",", ""), 16) == sum(1 << cpu for cpu in cpus)
    assert all(len(group) == 8 for group in mask.split(",")[1:])


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "0,", "0 1", "8192", "99999", "0x3", "\u0661"])
def test_invalid_cpu_lists(text: str) -> None:
    with pytest.raises(UsageError, match="invalid CPU list"):
        cpu_mask(text)


@pytest.mark.parametrize("text", ["", "g", "3,", "123456789", "0-1", "-"])
def test_invalid_masks(text: str) -> None:
    with pytest.raises(ToolOutput, match="is not a CPU mask"):
        mask_cpus(text)
