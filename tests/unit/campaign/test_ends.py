"""Clients as they ended, read by the shell that starts them inside a placement."""

from __future__ import annotations

import os
import re

import pytest

from labkit.campaign import ends
from labkit.hosts import LocalHost, agent

CPUS = sorted(os.sched_getaffinity(0))


def ended(*argv: str) -> tuple[str, ends.End | None, int | None]:
    result = LocalHost().run(*ends.guarded(argv), check=False)
    stderr, end = ends.take_end(result.stderr)
    return stderr, end, result.status


def test_a_guarded_client_keeps_its_status_and_streams() -> None:
    stderr, end, status = ended("sh", "-c", "echo no >&2; exit 3")
    assert (stderr, status) == ("no\n", 3)
    assert end is not None and end.own == end.inherited
    assert ends.problems_of(end, "tool", ",".join(map(str, CPUS))) == []
    assert LocalHost().run(*ends.guarded(["echo", "yes"])).stdout == "yes\n"
    assert ended("sh", "-c", "kill -9 $$")[2] == 137


def test_a_client_that_ends_at_once_is_read_before_it_is_reaped() -> None:
    os.sched_setaffinity(0, CPUS[:1])  # so that it often ends before its shell goes on
    try:
        assert all(ended("true")[1] for _ in range(400))
    finally:
        os.sched_setaffinity(0, CPUS)


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_a_client_that_was_moved_or_has_another_class_is_named() -> None:
    move = f"taskset -pc {CPUS[1]} $$ >&2; chrt --batch --pid 0 $$ >&2"
    _, end, _ = ended("taskset", "-c", str(CPUS[0]), "sh", "-c", move)
    assert end is not None
    problems = ends.problems_of(end, "tool", str(CPUS[0]))
    assert re.match("client tool: scheduling class was .* at its end, not ", problems[0])
    assert problems[1] == f"client tool: allowed CPUs were {CPUS[1]} at its end, not {CPUS[0]}"
    back = f"taskset -pc {CPUS[1]} $$; taskset -pc {CPUS[0]} $$"
    _, end, _ = ended("taskset", "-c", str(CPUS[0]), "sh", "-c", back)
    assert end is not None and end.migrations >= 2


def test_the_agent_reads_the_end_of_its_own_child() -> None:
    end = ends.end_of(agent.end_of(os.spawnlp(os.P_NOWAIT, "true", "true")))
    assert end is not None and ends.problems_of(end, "tool", end.cpus) == []
    (problem,) = ends.problems_of(end, "tool", end.cpus, fifo=10)
    assert re.match("client tool: scheduling class was .* at its end, not 1 10", problem)


def test_the_time_of_a_client_and_its_children_is_counted() -> None:
    busy = "(ulimit -t 1; while :; do :; done) || true"
    _, end, _ = ended("sh", "-c", busy)
    assert end is not None and end.cpu_ns >= 0.1e9  # the limit counts ticks, and this the time
    assert ends.lost_time("server", end.cpu_ns, end.cpu_ns) == []
    assert ends.lost_time("server", None, end.cpu_ns) == []
    (problem,) = ends.lost_time("server", 0.3e9, 1e9)
    assert problem.startswith("server: its control group used 0.30 s of CPU time")
