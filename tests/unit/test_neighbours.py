"""Parsers of fio, sysbench and stress-ng on output recorded from the tools."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ToolOutput, UsageError
from labkit.tools import fio, stress_ng, sysbench

CAPTURED = Path(__file__).parents[1] / "captured"
PARSERS = {
    "fio.json": fio.parse,
    "sysbench-cpu.txt": sysbench.parse,
    "sysbench-memory.txt": sysbench.parse,
    "stress-ng.txt": partial(stress_ng.parse, stressor="cpu"),
}


def read(name):
    return (CAPTURED / name).read_text()


def test_fio_reads_only_directions_with_requests():
    found = fio.parse(read("fio.json")).metrics
    assert set(found) == {"fio_read_mb_per_s", "fio_read_requests_per_s"}
    # A request has 4096 bytes.
    each = found["fio_read_mb_per_s"] * 1e6 / found["fio_read_requests_per_s"]
    assert each == pytest.approx(4096, rel=0.01)


def test_a_job_that_fio_could_not_begin_is_an_error_with_its_words():
    with pytest.raises(ToolOutput, match="not a directory"):
        fio.parse(read("fio-failed.json"))


def test_a_job_that_failed_is_an_error():
    with pytest.raises(ToolOutput, match="error is 5"):
        fio.parse(read("fio.json").replace('"error" : 0', '"error" : 5'))


def test_sysbench_reads_either_test():
    assert sysbench.parse(read("sysbench-cpu.txt")).metrics == {
        "sysbench_cpu_events_per_s": 2208.30
    }
    memory = sysbench.parse(read("sysbench-memory.txt")).metrics
    assert memory == {"sysbench_memory_mb_per_s": pytest.approx(5300.67 * 2**20 / 1e6)}


def test_sysbench_s_own_error_is_shown():
    with pytest.raises(ToolOutput, match="Invalid value for the 'threads' option"):
        sysbench.parse(read("sysbench-failed.txt"))


def test_stress_ng_as_a_load_computes_until_it_is_ended():
    load = stress_ng.busy(2)
    assert load.argv == ("stress-ng", "--cpu", "2", "--timeout", "0") and load.port == 0
    with pytest.raises(UsageError):
        stress_ng.busy(0)


def test_stress_ng_reads_the_rate_by_the_clock_on_the_wall():
    found = stress_ng.parse(read("stress-ng.txt"), stressor="cpu").metrics
    assert found == {"stress_cpu_per_s": 1634.50}


@pytest.mark.parametrize(
    ("name", "stressor"), [("stress-ng.txt", "vm"), ("stress-ng-failed.txt", "cpu")]
)
def test_a_stressor_without_a_row_is_an_error(name, stressor):
    with pytest.raises(ToolOutput, match=f"no whole result of {stressor}"):
        stress_ng.parse(read(name), stressor=stressor)


@pytest.mark.parametrize("name", PARSERS)
def test_nothing_printed_is_an_error(name):
    with pytest.raises(ToolOutput, match=r"\(nothing\)"):
        PARSERS[name]("", "")


@pytest.mark.parametrize("name", PARSERS)
def test_decimal_commas_are_an_error(name):
    with pytest.raises(ToolOutput):
        PARSERS[name](read(name).replace(".", ","), "")


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
        lambda: fio.disk("sideways", seconds=1, megabytes=16),
        lambda: fio.disk("read", seconds=1, megabytes=16, block=100),
        lambda: sysbench.run("disk", seconds=1),
        lambda: sysbench.run("cpu", seconds=0),
        lambda: stress_ng.stress("cpu; reboot", seconds=1),
        lambda: stress_ng.stress("cpu", seconds=1, workers=0),
    ],
)
def test_what_a_tool_would_misread_is_refused(make):
    with pytest.raises(UsageError):
        make()
