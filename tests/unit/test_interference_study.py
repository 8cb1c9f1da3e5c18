"""The interference study: CPUs, memory and windows of its services."""

import itertools
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import pytest
from notebook_studies import declared


@pytest.fixture(scope="module")
def study():
    """Return the names that the notebook of the interference study defines before its run."""
    return SimpleNamespace(**declared("40-interference.ipynb"))


def placed(study, number, turn, *, limited):
    """Return placement and CPUs of the first or second container of a trial."""
    found = []
    trial = SimpleNamespace(
        turn=turn,
        cpus={"sut": "1", "generator": "0", "all": "0-1"}.__getitem__,
        serve=lambda workload, place, *, name, cpus: nullcontext(found.append((place, cpus))),
    )
    with ExitStack() as stack:
        study.start(trial, stack, number, ["linpack", "netperf"], limited, 2**30)
    assert len(set(found)) == 1 and len(found) == 2, "netserver is placed as its client"
    return found[0]


def test_the_cpus_of_limited_containers_are_taken_in_turns(study):
    for turn in (1, 2, 3):
        place, cpus = placed(study, 0, turn, limited=True)
        assert place.limits.cpuset == cpus == ("0" if turn % 2 else "1")
        # The second of a pair has the other one.
        assert placed(study, 1, turn, limited=True)[1] == ("1" if turn % 2 else "0")
    place, cpus = placed(study, 0, 1, limited=False)
    assert (place.limits.cpuset, place.limits.memory, cpus) == (None, 2**30, "0-1")


@pytest.mark.parametrize("names", [["bonnie"], ["bonnie", "bonnie"], ["stream", "bonnie"]])
def test_each_bonnie_has_memory_for_less_than_half_of_its_file(study, names):
    sizes = (study.bonnie_size, study.linpack_size, study.stream_size)
    memory, count = study.memory_of(names, *sizes), names.count("bonnie")
    file = study.bonnie_size["megabytes"] * 2**20
    flags = study.cached(memory, count, study.bonnie_size)
    if "stream" in names:
        assert flags[0].endswith("for a file of 1536: reading may be cached")
    else:
        assert file / 4 <= memory / count <= file / 2 and not flags


def test_a_pair_has_the_longer_window_of_both_or_its_own(study):
    windows = {"linpack": [1, 1], "bonnie": [0.5, 3], "netperf": [0.5, 1], "a + a": [9, 9]}
    assert study.window_of(["linpack", "bonnie"], windows) == [0.5, 3]
    assert study.window_of(["linpack"], windows) == [1, 1]
    assert study.window_of(["netperf"], windows) == [0.5, 1]
    assert study.window_of(["a", "a"], windows) == [9, 9]


def test_each_pair_is_planned_once(study):
    pairs = itertools.product(study.services, study.services)
    assert sum(study.belongs(one, other, "2") for one, other in pairs) == 10
    assert study.belongs("stream", "none", "1") and not study.belongs("stream", "none", "2")
