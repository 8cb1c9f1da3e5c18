"""Trials with clients inside placements, several loads, neighbours, and looped containers."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from echoes import echoes

from labkit.campaign.trial import Trial
from labkit.errors import CommandFailed, FenceError, ManipulationError, UsageError
from labkit.hosts import SshHost
from labkit.hosts.settings import LATENCY_REQUEST
from labkit.placement import Limits, Placement, Workload, bare, docker, waiting
from labkit.rig.base import Rig
from labkit.tools import sockperf
from labkit.tools.base import Client, Measurement

pytestmark = pytest.mark.rig
Left = Callable[[], list[str]]
Make = Callable[..., Trial]
#: Uses a second of CPU time, as the kernel counts it by ticks, however long that takes.
BUSY = "(ulimit -t 1; while :; do :; done) || true"
WHERE = f"hostname; taskset -cp $$; {BUSY}"
#: Ends only once the other of two has begun: `sh -c MEET name OWN OTHER`.
MEET = 'touch "/tmp/began-$1"; until [ -e "/tmp/began-$2" ]; do sleep 0.01; done; echo met'


def test_a_plain_trial_takes_six_commands(
    lab: Rig, make_trial: Make, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/method.md lists them."""
    commands, execute = list[str](), SshHost._execute

    def counted(host: SshHost, line: Sequence[str], *rest: Any) -> Any:
        commands.append(f"{host.name}: {' '.join(line)[:200]}")
        return execute(host, line, *rest)

    monkeypatch.setattr(SshHost, "_execute", counted)
    trial = make_trial(docker("bridge"))
    with trial.serve(sockperf.server("block"), docker("bridge")) as server:
        trial.measure(echoes(server.address))
    assert len(commands) <= 6, commands
    assert left() == []


def count_characters(stdout: str, log: str) -> Measurement:
    return Measurement({}, {"characters": float(len(stdout))}, messages=1)


def command(text: str, *args: str, seconds: float = 2.0, bulky: bool = False) -> Client:
    return Client(
        ("sh", "-euc", text, "test", *args), "", seconds, count_characters, samples_in_stdout=bulky
    )


@pytest.mark.parametrize(
    "placement", [docker("host"), docker("nat"), bare("cgroup"), bare("chroot"), bare()], ids=str
)
def test_a_client_inside_a_placement_has_its_cpus_and_namespaces(
    lab: Rig, make_trial: Make, left: Left, placement: Placement
) -> None:
    trial = make_trial(placement)
    with trial.serve(waiting("net"), placement) as server:
        trial.measure(command(WHERE), inside=server)
    words = trial.logs["tool.out"].split()
    assert words[-1] == lab.cpus("sut", "split")
    mechanisms = trial.mechanisms
    assert mechanisms["cpu_ns"] < 50e6  # the server itself sleeps
    if placement.runtime == "docker" or placement.baseline_level == "cgroup":
        assert mechanisms["group_cpu_ns"] > 400e6
    if placement.runtime == "docker":
        assert words[0] != Path("/etc/hostname").read_text().strip() or placement.network == "host"
    assert left() == []


def test_idle_states_are_held_for_a_trial(lab: Rig, make_trial: Make, left: Left) -> None:
    def request() -> int:
        return int.from_bytes(Path(LATENCY_REQUEST).read_bytes()[:4], "little", signed=True)

    before, trial = request(), make_trial(docker("host"), idle="held")
    with trial.treated(), trial.serve(waiting("net"), docker("host")) as server:
        assert request() == before, "CPUs that are to come to share a cache go idle"
        trial.measure(command("sleep 0.1"), inside=server)
        assert request() == 0
    assert trial.mechanisms["latency_request_us"] == 0
    # Without its treatment the window is refused, unless another program holds the same.
    trial = make_trial(docker("host"), idle="held")
    with trial.serve(waiting("net"), docker("host")) as server:
        refused = pytest.raises(ManipulationError, match="held") if before > 0 else nullcontext()
        with refused:
            trial.measure(command("sleep 0.1"), inside=server)
    assert request() == before and left() == []


def test_a_cache_line_is_timed_in_a_window(lab: Rig, make_trial: Make) -> None:
    """Also where the window's server keeps the CPU of the SUT busy."""
    trial = make_trial(docker("host"))
    busy = Workload(("sh", "-c", "while :; do :; done"), 0)
    with trial.serve(busy, docker("host")) as server:
        trial.measure(command("sleep 0.2"), inside=server)
    timed = {name: x for name, x in trial.mechanisms.items() if name.startswith("cache_line")}
    assert timed.keys() == lab.cache_line().keys()
    assert all(value >= 0 for value in timed.values())


def test_loads_of_one_window_run_at_the_same_time(lab: Rig, make_trial: Make, left: Left) -> None:
    placement = docker("host")
    trial = make_trial(placement)
    with trial.serve(waiting("net"), placement) as server:
        measurements = trial.measure_all(
            {
                "first": (command(MEET, "first", "second"), server),
                "second": (command(MEET, "second", "first", bulky=True), server),
            }
        )
    assert set(measurements) == {"first", "second"}
    assert trial.logs["first.out"] == "met\n"
    assert "second.out" not in trial.logs and "second.err" in trial.logs
    assert left() == []


def test_a_neighbour_has_its_own_columns(lab: Rig, make_trial: Make, left: Left) -> None:
    """Both compute all the time on one CPU, with twice as many shares for the first."""
    busy = Workload(("sh", "-c", "while :; do :; done"), 0)
    first, second = docker("host", Limits(shares=1024)), docker("host", Limits(shares=512))
    trial = make_trial(first)
    with (
        trial.serve(busy, first),
        trial.serve(busy, second, name="neighbour") as server,
        trial.serve(
            waiting("net"), docker("host"), name="clock", cpus=lab.cpu_map["generator"]
        ) as clock,
    ):
        trial.measure(command("sleep 3", seconds=4.0), inside=clock)
        assert trial.record["verifications"]["neighbour"]["allowed CPUs"] == lab.cpu_map["sut"]
        assert server.pid != clock.pid
    mechanisms = trial.mechanisms
    cpu, neighbour = mechanisms["cpu_ns"], mechanisms["neighbour_cpu_ns"]
    # Other work on that CPU takes time from both, and changes neither their ratio nor its idle
    # time.
    assert cpu / neighbour == pytest.approx(2, rel=0.3)
    assert mechanisms["cpu_use"] + mechanisms["neighbour_cpu_use"] < 1.1
    assert mechanisms[f"cpu{lab.cpu_map['sut']}_idle"] < 0.1
    assert mechanisms["group_cpu_ns"] == pytest.approx(cpu, rel=0.2)
    assert mechanisms["neighbour_group_cpu_ns"] == pytest.approx(neighbour, rel=0.2)
    assert left() == []


def test_containers_are_started_in_a_loop(lab: Rig, make_trial: Make, left: Left) -> None:
    placement = docker("host")
    trial = make_trial(placement)
    short = Workload(("sh", "-c", "seq 100000 | wc -l"), 0)
    with (
        trial.serve(sockperf.server("block"), placement) as server,
        trial.churn(short, docker("host", Limits(shares=512))) as churn,
    ):
        load = sockperf.ping_pong(server.address, messages=20_000, size=64, wait="block")
        trial.measure(load)
    assert churn.count >= 1
    assert trial.mechanisms["churn_containers"] == churn.count
    assert "churn: " not in str(trial.record["flags"])
    assert left() == []


def test_another_program_that_is_busy_is_a_flag(lab: Rig, make_trial: Make, left: Left) -> None:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        try:
            time.sleep(5.0)  # older than the trial, by more than its last snapshot takes
            trial = make_trial(docker("host"))
            with trial.serve(waiting("net"), docker("host")) as server:
                trial.measure(command(BUSY), inside=server)
        finally:
            busy.kill()
    flags = [flag for flag in trial.record["flags"] if f"(process {busy.pid})" in flag]
    outside = r"sh \(.*\), which is not part of the trial, used \d+% of a CPU of \w+"
    assert re.fullmatch(outside, *flags)
    assert trial.mechanisms["other_programs_cpu"] > 0.05
    assert not {"programs"} & {*trial.record["evidence"]["before"]}
    assert left() == []


def test_a_looped_container_that_fails_is_a_flag(lab: Rig, make_trial: Make, left: Left) -> None:
    trial = make_trial(docker("host"))
    with (
        trial.serve(waiting("net"), docker("host")) as server,
        trial.churn(Workload(("no-such-program",), 0), docker("host")),
    ):
        trial.measure(command("sleep 0.3"), inside=server)
    (flag,) = [flag for flag in trial.record["flags"] if flag.startswith("churn: ")]
    assert "no-such-program" in flag
    with (
        pytest.raises(UsageError, match="cannot be started in a loop"),
        trial.churn(Workload(("true",), 0), bare("cgroup")),
    ):
        pass
    assert left() == []


@pytest.mark.parametrize("placement", [docker("host"), bare("cgroup"), bare()], ids=str)
def test_a_real_time_class_is_set_and_read_back(
    lab: Rig, make_trial: Make, left: Left, placement: Placement
) -> None:
    if "realtime" in lab.missing:
        pytest.skip(lab.missing["realtime"])
    placed = placement.limited(fifo=10)
    trial = make_trial(placed)
    with trial.serve(sockperf.server("block"), placed) as server:
        assert trial.record["verification"]["scheduling class"] == "fifo 10"
        trial.measure(echoes(server.address))
    assert left() == []


def test_clients_without_a_valid_target_are_refused(lab: Rig, make_trial: Make, left: Left) -> None:
    trial = make_trial(docker("host"))
    with trial.serve(waiting("net"), docker("host")) as server:
        with pytest.raises(FenceError, match="a client on the generator has no target"):
            trial.measure(command("true"))
        with (
            pytest.raises(UsageError, match="two placements called 'server'"),
            trial.serve(waiting("net"), docker("host")),
        ):
            pass
        logged = Client(
            ("sh", "-c", "echo 7 >{log}; echo four"),
            "",
            1.0,
            lambda out, log: count_characters(log, out),
        )
        assert trial.measure(logged, inside=server).metrics == {"characters": 2.0}
        elsewhere = Client(("true",), "192.0.2.1", 1.0, count_characters)
        with pytest.raises(FenceError):
            trial.measure(elsewhere, inside=server)
        with pytest.raises(CommandFailed):
            trial.measure(command("echo no >&2; exit 3"), inside=server)
        assert trial.logs["tool.err"].strip() == "no"
    assert left() == []


@pytest.mark.parametrize("placement", [bare(), bare("chroot"), docker("host")], ids=str)
def test_the_log_of_a_client_in_a_placement_is_in_no_shared_folder(
    lab: Rig, make_trial: Make, left: Left, placement: Placement
) -> None:
    """Its folder is made by the client, where another user can neither prepare nor read it."""
    trial = make_trial(placement)
    argv = ("sh", "-c", 'echo "$1" >{log}; stat -c %a "$(dirname {log})" >>{log}', "sh", "{log}")
    logs = []

    def parse(stdout: str, log: str) -> Measurement:
        logs.append(log)
        return Measurement({}, messages=1)

    with trial.serve(waiting("net"), placement) as server:
        trial.measure(Client(argv, "", 1.0, parse), inside=server)
        path, mode = logs[0].split()
        assert not path.startswith("/tmp") and mode == "700"
        here = Path(path) if placement == bare() else Path(server.verification["root"] + path)
        assert not here.parent.exists()
    assert left() == []


def test_a_container_reaches_another_by_its_own_address(
    lab: Rig, make_trial: Make, left: Left
) -> None:
    """Two containers on the engine's bridge: the target is the container's and not the host's."""
    trial = make_trial(docker("nat"))
    with (
        trial.serve(sockperf.server("block"), docker("nat")) as server,
        trial.serve(
            waiting("net"), docker("nat"), name="client", cpus=lab.cpu_map["generator"]
        ) as client,
    ):
        assert server.own_address != server.address
        argv = (
            "sockperf",
            "ping-pong",
            "-i",
            server.own_address,
            "-p",
            str(server.port),
            "-t",
            "1",
        )
        trial.measure(Client(argv, server.own_address, 2.0, count_characters), inside=client)
    assert "Summary: Latency" in trial.logs["tool.out"]
    assert left() == []
