"""Parsers of Linpack, STREAM, Bonnie++ and Netperf on output recorded from the tools."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.claims.schema import load_claims
from labkit.errors import ToolMissing, ToolOutput, UsageError
from labkit.hosts import LocalHost
from labkit.tools import bonnie, linpack, netperf, stream

CAPTURED = Path(__file__).parents[2] / "captured"
PARSERS = {
    "linpack.txt": linpack.parse,
    "stream.txt": stream.parse,
    "bonnie.txt": bonnie.parse,
    "netperf.txt": netperf.parse,
}


def read(name):
    return (CAPTURED / name).read_text()


def test_linpack_s_rate_is_that_of_its_operations_and_its_time():
    found = linpack.parse(read("linpack.txt")).metrics
    n = 1000
    rate = (2 / 3 * n**3 + 2 * n**2) / found["linpack_seconds"] / 1e9
    assert found["gflops"] == pytest.approx(rate, rel=1e-6)
    assert found["linpack_threads"] == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("check=passed", "check=failed"),
        ("residual=0.00183027", "residual=17.2"),
        ("=0.0018", "=nan"),
    ],
)
def test_a_wrong_solution_is_an_error_and_no_rate(old, new):
    with pytest.raises(ToolOutput, match=new.rpartition("=")[2]):
        linpack.parse(read("linpack.txt").replace(old, new))


def test_stream_s_best_rate_is_the_metric_and_its_mean_is_beside_it():
    found = stream.parse(read("stream.txt")).metrics
    assert found["copy_gb_per_s"] == pytest.approx(49.7531)
    assert found["triad_mean_gb_per_s"] == pytest.approx(32.001371)
    for kernel in stream.KERNELS:
        assert found[f"{kernel}_gb_per_s"] >= found[f"{kernel}_mean_gb_per_s"]


def test_arrays_that_hold_something_else_are_an_error():
    with pytest.raises(ToolOutput, match="must"):
        stream.parse(read("stream.txt").replace("check=passed", "check=failed"))


def test_bonnie_s_kibibytes_become_megabytes_of_a_million_bytes():
    measurement = bonnie.parse(read("bonnie.txt"))
    assert measurement.metrics["block_output_mb_per_s"] == pytest.approx(545_626 * 1024 / 1e6)
    assert measurement.metrics["block_rewrite_mb_per_s"] == pytest.approx(588_740 * 1024 / 1e6)
    assert measurement.metrics["block_input_mb_per_s"] == pytest.approx(1_609_591 * 1024 / 1e6)
    assert measurement.metrics["seeks_per_s"] == 4881 and measurement.flags == ()


def test_a_phase_that_was_too_short_has_no_number():
    measurement = bonnie.parse(read("bonnie-short.txt"))
    assert measurement.metrics == {}
    assert measurement.flags == tuple(
        f"bonnie++ found {name} too short to time"
        for name in ("block_output", "block_rewrite", "block_input", "seeks")
    )
    part = bonnie.parse(read("bonnie.txt").replace(",4881,", ",+++++,"))
    assert set(part.metrics) == set(bonnie.COLUMNS) - {"seeks_per_s"}


def test_another_format_of_bonnie_is_not_guessed_at():
    with pytest.raises(ToolOutput, match=r"format 1\.97"):
        bonnie.parse(read("bonnie.txt").replace("1.98,", "1.97,", 1))


def test_netperf_reads_megabits_of_a_million_bits():
    found = netperf.parse(read("netperf.txt")).metrics
    assert found == {"mbit_per_s": 15_446.70, "netperf_seconds": 1.0}
    assert netperf.parse(read("netperf-de.txt")).metrics["mbit_per_s"] == 18_639.74


def test_netperf_in_another_unit_is_an_error():
    with pytest.raises(ToolOutput, match="is not TCP in 10"):
        netperf.parse(read("netperf-gigabits.txt"))


def test_a_netserver_that_is_down_is_an_error_with_the_tools_words():
    with pytest.raises(ToolOutput, match="are you sure there is a netserver"):
        netperf.parse(read("netperf-refused.txt"))


@pytest.mark.parametrize("name", PARSERS)
def test_nothing_printed_is_an_error(name):
    with pytest.raises(ToolOutput, match=r"\(nothing\)"):
        PARSERS[name]("", "")


@pytest.mark.parametrize("name", ["linpack.txt", "stream.txt", "netperf.txt"])
def test_a_decimal_comma_is_an_error_that_shows_it(name):
    with pytest.raises(ToolOutput, match=r"\d,\d"):
        PARSERS[name](read(name).replace(".", ","), "")


def test_a_decimal_comma_of_bonnie_shifts_no_column():
    with pytest.raises(ToolOutput):
        bonnie.parse(read("bonnie.txt").replace("1.98", "1,98"))


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_output_cut_anywhere_gives_the_same_numbers_or_an_error(name, data):
    text = read(name)
    whole = PARSERS[name](text, "").metrics
    cut = data.draw(st.integers(0, len(text.rstrip()) - 1))
    try:
        part = PARSERS[name](text[:cut], "").metrics
    except ToolOutput:
        return
    assert part == whole


@pytest.mark.parametrize(
    "make",
    [
        lambda: linpack.solve(0),
        lambda: linpack.solve(100, alignment=100),
        lambda: stream.kernels(1000, times=1),
        lambda: stream.kernels(1000, times=300),
        lambda: bonnie.disk(0),
        lambda: bonnie.disk(100, chunk=1000),
        lambda: netperf.tcp_stream("198.18.0.3", seconds=1.5),
    ],
)
def test_sizes_that_a_tool_would_misread_are_refused(make):
    with pytest.raises(UsageError):
        make()


def test_commands_carry_their_sizes():
    assert linpack.solve(2000, alignment=4096).argv == ("linpack", "2000", "4096", "0")
    assert stream.kernels(1000, times=10).argv == ("stream", "1000", "10")
    assert "-s 1280:131072" in " ".join(bonnie.disk(1280, chunk=131_072).argv)
    assert (
        bonnie.disk(64).argv[0] == "bonnie++"
        and bonnie.disk(64, short=True).argv[0] == bonnie.SHORT
    )
    client = netperf.tcp_stream("198.18.0.3", seconds=2, port=12866)
    assert client.target == "198.18.0.3" and "-p 12866" in " ".join(client.argv)
    assert netperf.server(port=12866).protocol == "tcp"


class _Without(LocalHost):
    """A host on which no program is found."""

    def run(self, *argv, **options):
        return super().run("/bin/sh", "-c", "echo not found >&2; exit 127", **options)


@pytest.mark.parametrize("tool", [linpack, stream, bonnie, netperf])
def test_a_tool_that_is_not_there_is_said(tool):
    with pytest.raises(ToolMissing, match="is not installed"):
        tool.probe(_Without())


def test_the_fixtures_are_what_the_iterations_of_a_repeat_hold():
    lines = [json.loads(line) for line in read("repeat-linpack.txt").splitlines()]
    assert "gflops" in linpack.parse(lines[0]["stdout"]).metrics


@pytest.fixture(scope="module")
def study():
    """The names that the cells of the interference study define, without the plan and its run."""
    path = Path(__file__).parents[3] / "notebooks" / "studies" / "40-interference.ipynb"
    names = {"In": [""]}
    for cell in nbformat.read(path, 4).cells:
        source = cell.source.replace("check_parameters(In)", "")
        if cell.cell_type == "code" and "Rig.open" in source:
            return names
        if cell.cell_type == "code":
            exec(compile(source, cell.id, "exec"), names)
    raise AssertionError("the study has no cell that opens a rig")


def trial_of(study, case, turn=0):
    names = ["linpack_size", "stream_size", "bonnie_size", "windows"]
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


def test_bonnie_beside_what_needs_much_memory_is_flagged_in_one_container_only(study):
    (flag,) = study["cached"](trial_of(study, "2"), ["stream", "bonnie"])
    assert flag.endswith("reading may be cached") and "file of 320" in flag
    for case, names in (("3a", ["stream", "bonnie"]), ("2", ["stream", "netperf"])):
        assert study["cached"](trial_of(study, case), names) == ()


def test_a_pair_has_the_longer_window_of_both_or_its_own(study):
    windows = {"linpack": [1, 1], "bonnie": [0.5, 3], "netperf": [0.5, 1], "a + a": [9, 9]}
    assert study["window_of"](["linpack", "bonnie"], windows) == [0.5, 3]
    assert study["window_of"](["linpack", "none"], windows) == [1, 1]
    assert study["window_of"](["fio"], windows) == [0.5, 1]
    assert study["window_of"](["a", "a"], windows) == [9, 9]


def test_the_four_tools_give_every_metric_of_which_a_claim_may_speak():
    known = {claim.metric for claim in load_claims() if claim.study == "interference"}
    given = {name for file in PARSERS for name in PARSERS[file](read(file), "").metrics}
    assert known and known <= given
