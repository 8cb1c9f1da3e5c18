"""The time of a cache line between CPUs, measured on this machine."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from labkit.hosts import LocalHost
from labkit.hosts.cache_line import LEAST_NS, _untold, command, timings
from labkit.hosts.target import Target
from labkit.rig.base import Rig

CPUS = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize("other", [CPUS[-1], 4095])
def test_a_cache_line_is_timed_between_cpus_that_share_a_cache(other: int) -> None:
    done = LocalHost().run(*command((CPUS[0], other)), check=False)
    why = _untold(CPUS[0], other)
    assert (why in done.stderr, done.status) == (True, 1 if why else 0)
    # The CPUs may be busy with other work, so that there is no upper bound.
    assert [ns >= 0 for ns in timings(done.stdout)] == [True] * (not why)
    assert other != 4095 or why


@pytest.mark.skipif(bool(_untold(CPUS[0], CPUS[-1])), reason="no cache to be timed")
@pytest.mark.parametrize("seconds", [0.002, 60.0])
def test_it_is_timed_again_and_again_until_it_is_to_end(seconds: float) -> None:
    """Also between two timings, and then once more."""
    line = command((CPUS[0], CPUS[-1]), seconds)
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as timing:
        assert timing.stdout
        rows = [timing.stdout.readline() for _ in range(5 if seconds < 1 else 1)]
        (child,) = psutil.Process(timing.pid).children()
        timing.send_signal(signal.SIGTERM)
        timing.communicate(timeout=50)
    assert timing.returncode == 0 and len(timings("".join(rows))) == len(rows)
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def rig(**cpus: str) -> Rig:
    return Rig("r", "virtual", {"sut": Target(LocalHost(), "")}, cpus, shared_kernel=True)


def test_separate_machines_and_one_cpu_have_no_cache_line() -> None:
    lines = [rig(generator="0", sut="0"), rig(generator="", sut="1"), rig()]
    lines.append(rig(generator="0", sut="1"))
    lines[-1].shared_kernel = False
    assert [one.cache_line() or one.cache_line_command() for one in lines] == [[]] * 4


def test_a_cache_line_is_compared_with_the_least_of_the_session() -> None:
    one = rig()
    found = [one.cache_line_of(text) for text in ("200", "80", "200", "20", "80")]
    # Two threads of a core are nearer than CPUs ever need to be.
    ratios = [1, 1, 2.5, 20 / LEAST_NS, 80 / LEAST_NS]
    assert [each["cache_line_ratio"] for each in found] == pytest.approx(ratios)
    assert one.cache_line_of("") == one.cache_line_of("no shared cache") == {}
    assert one.cache_line_of("65\n195\n80\n") == {"cache_line_ns": 195, "cache_line_ratio": 3}
