"""The interference study: CPUs, memory and windows of its services."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest


@pytest.fixture(scope="module")
def study():
    """Return the names that the cells of the interference study define before its plan."""
    path = Path(__file__).parents[2] / "notebooks" / "studies" / "40-interference.ipynb"
    names = {"In": [""]}
    for cell in nbformat.read(path, 4).cells:
        source = cell.source.replace("check_parameters(In)", "")
        if cell.cell_type == "code" and "Rig.open" in source:
            return names
        if cell.cell_type == "code":
            exec(compile(source, cell.id, "exec"), names)
    raise AssertionError("the study has no cell that opens a rig")


def trial_of(study, case, turn=0):
    names = ["linpack_size", "stream_size", "bonnie_size", "reads_per_s", "windows"]
    settings = {name: study[name] for name in names}
    cpus = {"sut": "1", "generator": "0", "all": "0-1"}.__getitem__
    return SimpleNamespace(case=case, turn=turn, half_memory=2**34, cpus=cpus, **settings)


def test_the_cpus_of_limited_containers_are_taken_in_turns(study):
    for case, turn in itertools.product(("1", "3b"), (1, 2, 3)):
        trial = trial_of(study, case, turn)
        own, cpus = study["limits"](trial, ["linpack"], 0)
        assert own["cpuset"] == cpus == ("0" if turn % 2 else "1")
        # The second of a pair has the other one.
        assert study["limits"](trial, ["stream"], 1)[1] == ("1" if turn % 2 else "0")
    assert study["limits"](trial_of(study, "3a", 1), ["linpack"], 0) == (
        {"cpuset": None, "memory": 0},
        "0-1",
    )


@pytest.mark.parametrize("case", ["1", "1u", "2", "3a", "3b"])
def test_each_bonnie_has_memory_for_less_than_half_of_its_file(study, case):
    trial, file = trial_of(study, case), study["bonnie_size"]["megabytes"] * 2**20
    groups = [["bonnie"], ["bonnie", "bonnie"]] if case == "2" else [["bonnie"]]
    for names in groups:
        memory = study["limits"](trial, names, 0)[0]["memory"]
        assert file / 4 <= memory / len(names) <= file / 2
        assert study["cached"](trial, names) == ()


def test_only_containers_with_bonnie_have_a_limit_of_read_requests(study):
    trial = trial_of(study, "3a")
    for reads, names, held in ((600, ["bonnie"], 600), (600, ["stream"], 0), (0, ["bonnie"], 0)):
        trial.reads_per_s = reads
        assert study["limits"](trial, names, 0)[0].get("reads_per_s", 0) == held


def test_bonnie_beside_what_needs_much_memory_is_flagged_in_one_container_only(study):
    (flag,) = study["cached"](trial_of(study, "2"), ["stream", "bonnie"])
    assert flag.endswith("reading may be cached") and "file of 1536" in flag
    for case, names in (("3a", ["stream", "bonnie"]), ("2", ["stream", "netperf"])):
        assert study["cached"](trial_of(study, case), names) == ()


def test_a_pair_has_the_longer_window_of_both_or_its_own(study):
    windows = {"linpack": [1, 1], "bonnie": [0.5, 3], "netperf": [0.5, 1], "a + a": [9, 9]}
    assert study["window_of"](["linpack", "bonnie"], windows) == [0.5, 3]
    assert study["window_of"](["linpack", "none"], windows) == [1, 1]
    assert study["window_of"](["netperf"], windows) == [0.5, 1]
    assert study["window_of"](["a", "a"], windows) == [9, 9]
