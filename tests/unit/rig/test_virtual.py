"""The virtual rig on this machine: CPU map, and rates of links."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.errors import UsageError
from labkit.rig import Rig, netns, virtual


def test_threads_of_one_core_are_not_two_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for cpu in range(8):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        siblings = "0-3\n" if cpu < 4 else "4-7\n"
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(virtual, "CPU_FOLDER", tmp_path)
    assert "two-cores" in virtual._missing_cpus({"generator": "1", "sut": "2"})
    assert "two-cores" not in virtual._missing_cpus({"generator": "1", "sut": "4"})
    monkeypatch.setattr(virtual, "allowed_cpus", lambda: [1, 2, 6, 7])
    cpus = virtual.cpu_map()
    assert (cpus["generator"], cpus["sut"], cpus["harness"]) == ("1", "2", "6")
    assert cpus["all"] == "1-2,6-7"  # a container may have fewer CPUs than are online


@pytest.mark.parametrize(
    ("isolated", "reason"),
    [(None, "no CPU"), ("\n", "no CPU"), ("2-3\n", "the two ends"), ("0-1\n", "")],
)
def test_the_two_ends_have_to_be_on_isolated_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, isolated: str | None, reason: str
) -> None:
    if isolated is not None:
        (tmp_path / "isolated").write_text(isolated)
    monkeypatch.setattr(virtual, "CPU_FOLDER", tmp_path)
    found = virtual._missing_cpus({"generator": "0", "sut": "1"}).get("isolated-cpus", "")
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_rates_are_read_as_tc_writes_them() -> None:
    rates = ("virtual", "virtual:1gbit", "virtual:250mbit", "virtual:64kbit")
    assert [netns.bits_per_second(rate) for rate in rates] == [0, 10**9, 25 * 10**7, 64_000]


@pytest.mark.parametrize("rate", ["", "0gbit", "1.5gbit", "1Gbit"])
def test_an_invalid_rate_is_an_error_before_anything_is_made(rate: str) -> None:
    with pytest.raises(UsageError, match="invalid rate") as caught, Rig.open(f"virtual:{rate}"):
        pass
    assert "virtual:1gbit" in caught.value.remedy
