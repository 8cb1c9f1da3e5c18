"""sfnt-pingpong's parser on output recorded from the tool, and how its file becomes the log."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from recordings import ADDRESS, CAPTURED, read

from labkit.errors import ToolOutput
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.tools import sfnt_pingpong as sfnt
from labkit.tools.base import Client


def raw(name: str) -> np.ndarray:
    return np.array(read(name).split(), dtype=np.int64)


def test_whole_round_trips_are_taken_as_they_are() -> None:
    text, log = read("sfnt-udp--rtt.txt"), read("sfnt-udp--rtt-64.dat")
    measurement = sfnt.parse(text, log, size=64, messages=5000)
    rtt = measurement.samples["rtt_ns"]
    assert rtt.dtype == np.int64 and (rtt == raw("sfnt-udp--rtt-64.dat")).all()
    row = sfnt.summary(text)[64]
    assert (len(rtt), rtt.min(), rtt.max()) == (row["iter"], row["min"], row["max"])
    assert int(rtt.mean()) == row["mean"] and np.sort(rtt)[2500] == row["median"]
    assert measurement.messages == 5000 + sfnt.WARMUP and measurement.flags == ()


@pytest.mark.parametrize("name", ["sfnt-udp", "sfnt-udp--spin"])
def test_halves_are_doubled(name: str) -> None:
    measurement = sfnt.parse(read(f"{name}.txt"), read(f"{name}-64.dat"), size=64)
    assert (measurement.samples["rtt_ns"] == 2 * raw(f"{name}-64.dat")).all()


@pytest.mark.parametrize("name", ["sfnt-udp", "sfnt-udp--rtt"])
def test_an_older_version_shows_it_by_its_command(name: str) -> None:
    lines = [line for line in read(f"{name}.txt").splitlines() if "# reporting" not in line]
    log = read(f"{name}-64.dat")
    factor = 1 if "--rtt" in name else 2
    found = sfnt.parse("\n".join(lines), log, size=64).samples["rtt_ns"]
    assert (found == factor * raw(f"{name}-64.dat")).all()
    neither = [line for line in lines if "# cmdline" not in line]
    with pytest.raises(ToolOutput, match="half or whole"):
        sfnt.parse("\n".join(neither), log, size=64)


def test_the_rows_of_several_sizes_are_told_apart() -> None:
    found = sfnt.summary(read("sfnt-tcp-two-sizes.txt"))
    assert {size: row["median"] for size, row in found.items()} == {64: 7370, 1024: 7411}
    with pytest.raises(ToolOutput, match="raw file holds 5,000 values"):
        sfnt.parse(read("sfnt-tcp-two-sizes.txt"), read("sfnt-udp-64.dat"), size=64)
    with pytest.raises(ToolOutput, match="no row for 128 bytes"):
        sfnt.parse(read("sfnt-tcp-two-sizes.txt"), read("sfnt-udp-64.dat"), size=128)


def test_too_few_are_flagged() -> None:
    measurement = sfnt.parse(read("sfnt-udp.txt"), read("sfnt-udp-64.dat"), size=64, messages=6000)
    assert measurement.flags == ("short: 5000 of 6000 messages",)


def test_commands_ask_for_whole_round_trips_and_pin_nothing() -> None:
    client = sfnt.ping_pong(ADDRESS, messages=1000, size=64, wait="spin", protocol="tcp")
    assert client.argv[-2:] == ("tcp", ADDRESS) and client.target == ADDRESS
    assert {"--rtt", "--spin", "--affinity=any;any", "--maxiter=1000"} <= set(client.argv)
    assert "--spin" not in sfnt.ping_pong(ADDRESS, messages=1000, size=64, wait="block").argv
    assert sfnt.server(port=3000).argv == ("sfnt-pingpong", "--port=3000")
    assert sfnt.server().protocol == "tcp"


#: Stands for the tool: writes what was recorded where the real one would.
FAKE = """#!/bin/sh
for option in "$@"; do
    case $option in --raw=*) raw=${option#--raw=} ;; --sizes=*) size=${option#--sizes=} ;; esac
done
cat "$RECORDED-$size.dat" >"$raw-$size.dat"
cat "$RECORDED.txt"
exit "${STATUS:-0}"
"""


def run(client: Client, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    tool = folder / "bin" / "sfnt-pingpong"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(FAKE)
    tool.chmod(0o755)
    argv = [part.replace("{log}", str(folder / "tool.log")) for part in client.argv]
    path = {"PATH": f"{tool.parent}:/usr/bin:/bin", "RECORDED": str(CAPTURED / "sfnt-udp--rtt")}
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        env={**path, "TMPDIR": str(folder), **env},
    )


def test_the_tools_file_becomes_the_log_and_nothing_else_is_left(tmp_path: Path) -> None:
    client = sfnt.ping_pong(ADDRESS, messages=5000, size=64, wait="block")
    ended = run(client, tmp_path)
    measurement = client.parse(ended.stdout, (tmp_path / "tool.log").read_text())
    assert (measurement.samples["rtt_ns"] == raw("sfnt-udp--rtt-64.dat")).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "tool.log"]


def test_a_tool_that_fails_fails_the_client(tmp_path: Path) -> None:
    client = sfnt.ping_pong(ADDRESS, messages=5000, size=64, wait="block")
    assert run(client, tmp_path, STATUS="3").returncode == 3
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_where_it_is_not_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    targets = {role: Target(LocalHost(role), ADDRESS) for role in ("generator", "sut")}
    found = sfnt.lacking(targets)
    assert list(found) == ["generator", "sut", "image"]
    assert "host generator" in found["generator"] and "containers/apps/local" in found["image"]
    tool = tmp_path / "sfnt-pingpong"
    tool.write_text("#!/bin/sh\necho '# version: 1.5.0'\n")
    tool.chmod(0o755)
    assert list(sfnt.lacking(targets)) == ["image"]
