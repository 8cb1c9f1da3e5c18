"""Tools that write files, rows of numbers, and rates that were not reached."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from labkit.errors import ToolOutput
from labkit.tools.base import logged
from labkit.tools.parsing import csv_rows, rows, shortfall, split, too_few, unreadable

WRITES = ("sh", "-c", "echo said; echo 1 >a; echo 2 >b; mkdir c")


def run(argv: tuple[str, ...], log: Path) -> subprocess.CompletedProcess[str]:
    command = [part.replace("{log}", str(log)) for part in argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("destination", ["-", "{log}"])
def test_files_become_the_log_wherever_the_tool_runs(tmp_path: Path, destination: str) -> None:
    ended = run(logged(WRITES, log=destination), tmp_path / "log")
    log = "" if destination == "-" else (tmp_path / "log").read_text()
    printed, files = split(ended.stdout, log)
    assert (printed.strip(), files) == ("said", "1\n2\n")
    assert [path.name for path in tmp_path.iterdir()] == ([] if destination == "-" else ["log"])


def test_a_tool_that_is_ended_in_the_planned_time_is_read_and_a_failure_fails(
    tmp_path: Path,
) -> None:
    late = ("sh", "-c", "echo 1 >a; exec sleep 60")
    ended = run(logged(late, limit=2), tmp_path / "log")
    assert ended.returncode == 0 and split(ended.stdout, "")[1] == "1\n"
    for status, limit in ((7, 0), (7, 5), (124, 0)):
        argv = logged(("sh", "-c", f"exit {status}"), log="{log}", limit=limit)
        assert run(argv, tmp_path / "log").returncode == status
        assert not list(tmp_path.iterdir())


def test_rows_are_integers_in_complete_lines() -> None:
    columns = rows("1 2\n3 4\n", ("a", "b"), " ", tool="a tool")
    assert columns["a"].tolist() == [1, 3] and columns["b"].dtype == "int64"
    for wrong in ("", "1 2", "1 2\n3\n", "1 2\n3 4 5\n", "1 2.5\n", "1 \n", "\n\n", "1 2\n\n"):
        with pytest.raises(ToolOutput):
            rows(wrong, ("a", "b"), " ", tool="a tool")
    assert csv_rows("a,b\n1,2\n", ("a", "b"), tool="a tool")["b"].tolist() == [2]
    with pytest.raises(ToolOutput, match="not the columns a, b"):
        csv_rows("1,2\n", ("a", "b"), tool="a tool")
    assert "a tool" in str(unreadable("a tool", "why", ""))


def test_rates_and_numbers_that_fall_short_are_flagged() -> None:
    assert shortfall(99, 100) == shortfall(95, 100, chance=5) == ()
    assert shortfall(93, 100, chance=5) == ("rate not reached: 93.0 of 100.0 per second",)
    assert too_few(5, None) == too_few(5, 5) == ()
    assert too_few(4, 5) == ("short: 4 of 5 messages",)
