"""Windows on this machine: loads, their ends, what changes meanwhile, and interruptions."""

import os
import re
import time
from contextlib import nullcontext

import pytest

from labkit.campaign import window
from labkit.campaign.counters import Kernel
from labkit.campaign.window import Load, Window
from labkit.errors import ManipulationError
from labkit.hosts import LocalHost, Result
from labkit.runtimes import Server
from labkit.tools.base import Client, Measurement

CPUS = sorted(os.sched_getaffinity(0))
ALL = ",".join(map(str, CPUS))
ONE, OTHER = str(CPUS[0]), str(CPUS[-1])


def load(name, *argv, cpus=ALL, seconds=5.0, **options):
    client = Client(argv, "", seconds, lambda out, log: Measurement({}), **options)
    return Load(name, client, argv, "", cpus)


def run(tmp_path, *loads, cache_line=()):
    """Run a window with some loads on this machine."""
    own, folder = Kernel(LocalHost(), {"": os.getpid()}), str(tmp_path / "window")
    found = window.measure(loads, [own], folder=folder, label="lkt-window", cache_line=cache_line)
    return found, own


class Stopped(LocalHost):
    """A host from which the end of a window comes half a second late."""

    def call(self, function, **arguments):
        found = super().call(function, **arguments)
        time.sleep(0.5 if function == "run_window" else 0.0)
        return found


@pytest.mark.parametrize("host", [LocalHost, Stopped])
def test_labkit_is_stopped_in_a_window(tmp_path, monkeypatch, host):
    monkeypatch.setattr(window, "LATE", 0.5 if host is Stopped else 60.0)
    kernel, folder = Kernel(host(), {"": os.getpid()}), str(tmp_path / "window")
    found = window.measure([load("tool", "true")], [kernel], folder=folder, label="lkt-window")
    assert bool(found.flags) == (host is Stopped)


def test_a_window_fails_with_the_first_load_that_fails(tmp_path):
    texts = ("echo out; echo err >&2", "sleep 0.2; exit 3", "exit 4")
    found, own = run(tmp_path, *(load(str(n), "sh", "-c", one) for n, one in enumerate(texts)))
    assert (found.job.status, found.job.timed_out, found.job.stderr) == (3, False, "err")
    assert not (tmp_path / "window").exists()
    assert (found.texts["0.out"], found.texts["0.err"]) == ("out\n", "err\n")
    assert own.after["clock_ns"] - own.before["clock_ns"] > 0.2e9
    assert own.before["ran_ns"] <= own.after["ran_ns"]


_TIMING = "trap 'echo 95; exit' TERM; echo 90; while :; do sleep 0.01; done"


@pytest.mark.parametrize(
    ("timing", "printed"), [(_TIMING, "90\n95\n"), ("echo 90", "90\n"), ("false", "")]
)
def test_a_cache_line_is_timed_from_before_the_loads_to_after_them(tmp_path, timing, printed):
    found, _ = run(tmp_path, load("tool", "cat", "line"), cache_line=["sh", "-c", timing])
    assert found.texts["line"] == printed and found.job.status == 0
    assert found.texts["tool.out"] == printed[:3]


# Clients as they ended, inside a placement read by the shell that starts them there.


def ended(*argv):
    result = LocalHost().run(*window.guarded(argv), check=False)
    return *window.taken_end(result.stderr), result.status


def test_a_guarded_client_keeps_its_status_and_streams():
    stderr, end, status = ended("sh", "-c", "echo no >&2; exit 3")
    assert (stderr, status) == ("no\n", 3)
    assert window.problems_of(load("tool"), end) == []
    assert LocalHost().run(*window.guarded(["echo", "yes"])).stdout == "yes\n"
    assert ended("sh", "-c", "kill -9 $$")[2] == 137


def test_a_client_that_ends_at_once_is_read_before_it_is_reaped():
    os.sched_setaffinity(0, CPUS[:1])  # so that it often ends before its shell goes on
    try:
        assert all(ended("true")[1] for _ in range(400))
    finally:
        os.sched_setaffinity(0, CPUS)


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")
def test_a_client_that_was_moved_or_has_another_class_is_named():
    move = f"taskset -pc {OTHER} $$ >&2; chrt --batch --pid 0 $$ >&2"
    _, end, _ = ended("taskset", "-c", ONE, "sh", "-c", move)
    problems = window.problems_of(load("tool", cpus=ONE), end)
    assert re.match("client tool: scheduling class was .* at its end, not ", problems[0])
    assert problems[1] == f"client tool: allowed CPUs were {OTHER} at its end, not {ONE}"
    back = f"taskset -pc {OTHER} $$; taskset -pc {ONE} $$"
    _, end, _ = ended("taskset", "-c", ONE, "sh", "-c", back)
    assert int(end["migrations"]) >= 2
    found = window.problems_of(load("a", cpus=ONE), end)
    assert found == ["client a: it was on another CPU meanwhile"]
    # Not every kernel counts them.
    del end["migrations"]
    assert window.problems_of(load("a", cpus=ONE), end) == []


def test_the_agent_reads_the_end_and_the_time_of_its_own_child(tmp_path):
    # The limit counts ticks, and this the time.
    busy = load("tool", "sh", "-c", "(ulimit -t 1; while :; do :; done) || true", cpus=ONE)
    found, _ = run(tmp_path, busy)
    end = found.ends["tool"]
    assert window.cpu_ns(end) >= 0.1e9 and window.problems_of(busy, end) == []
    (problem,) = window.problems_of(load("tool", cpus=ONE, fifo=10), end)
    assert re.match("client tool: scheduling class was .* at its end, not 1 10", problem)


# What changes in a window.

VERIFIED = {"state": "running", "process": "7", "rules of the host": "none", "setting /x": "1"}


@pytest.mark.parametrize(
    ("first", "last", "ends", "said"),
    [
        ({}, {}, False, ""),
        # What was set up since it was verified.
        ({"rules of the host": "3 lines", "setting /x": "2"}, {}, False, ""),
        ({}, {"rules of the host": "3 lines"}, False, "rules of the host: 3 lines, not none"),
        ({"process": "8"}, {"process": "8"}, False, "process: 8, not 7"),
        ({}, {"state": "ended"}, False, "state: ended, not running"),
        ({}, {"state": "ended"}, True, ""),
    ],
)
def test_what_changes_in_a_window_is_an_error(first, last, ends, said):
    server = Server("", 1, 7, LocalHost(), VERIFIED, "0", list, ends_with_client=ends)
    before, links = {"server": VERIFIED | first}, {"host sut": {"lab0": "up"}}
    after = {"server": VERIFIED | first | last} | links
    done = Result(("job",), "sut", 0, "", "", 1.0)
    found = Window(done, {}, {}, before | links, after)
    with pytest.raises(ManipulationError, match=said) if said else nullcontext():
        window.check_unchanged(found, [], {"server": server})
