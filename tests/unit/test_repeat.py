"""Repeated runs: the program itself, its reader, and two runs held against each other."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.benchmarks import linpack, repeat
from labkit.benchmarks.base import Client, Reading
from labkit.benchmarks.repeat import Iteration, Repeated, beside, overlap, together
from labkit.errors import ToolOutput, UsageError

CAPTURED = Path(__file__).parents[1] / "captured"
PROGRAM = Path(repeat.__file__).parent / "programs" / "repeat.py"


def read(name):
    return (CAPTURED / name).read_text()


def ran(*spans, name="rate", cut=()):
    """Return iterations of (start, end, value); those at the places of `cut` were cut."""
    return Repeated(
        {},
        {},
        iterations=tuple(
            Iteration(start, end, cut=True)
            if place in cut
            else Iteration(start, end, metrics={name: value})
            for place, (start, end, value) in enumerate(spans)
        ),
    )


def test_every_iteration_is_read_by_the_tool_s_own_parser():
    reading = repeat.parse(linpack.parse, read("repeat-linpack.txt"))
    whole = [one for one in reading.iterations if not one.cut]
    rates = [one.metrics["gflops"] for one in whole]
    assert len(rates) > 3 and reading.metrics["gflops"] == pytest.approx(sum(rates) / len(rates))
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(whole))


def test_an_iteration_that_failed_is_an_error_with_its_words():
    with pytest.raises(ToolOutput, match="status 2") as caught:
        repeat.parse(linpack.parse, read("repeat-failed.txt"))
    assert "usage: linpack" in str(caught.value)


@given(st.integers(0, 100_000))
def test_output_cut_anywhere_is_an_error(cut):
    text = read("repeat-linpack.txt").rstrip()
    with pytest.raises(ToolOutput):
        repeat.parse(linpack.parse, text[: cut % len(text)])


def _run(*argv):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.read_text(), *argv],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_program_ends_after_so_many_iterations_and_speaks_c():
    found = _run("60", "2", "sh", "-c", "echo $LC_ALL; echo said >&2")
    assert len(found) == 3 and "end" in found[-1]
    assert [one["stdout"] for one in found[:-1]] == ["C\n", "C\n"]
    assert found[0]["stderr"] == "said\n" and found[0]["end_ns"] <= found[1]["start_ns"]


def test_the_program_cuts_what_runs_when_the_window_ends():
    found = _run("0.3", "0", "sh", "-c", "sleep 60 & wait")
    assert [one["cut"] for one in found[:-1]] == [True]


def test_the_program_stops_at_what_fails():
    found = _run("60", "0", "sh", "-c", "echo wrong; exit 3")
    assert len(found) == 2 and found[0]["status"] == 3 and found[0]["stdout"] == "wrong\n"


def test_a_client_is_repeated_with_its_own_target_and_parser():
    once = Client(("tool", "x"), "198.18.0.3", 5.0, lambda out, log: Reading({}, {"rate": 2.0}))
    client = repeat.repeated(once, seconds=3, at_most=4)
    assert client.target == "198.18.0.3" and client.argv[-4:] == ("3", "4", "tool", "x")
    lines = [{"start_ns": 1, "end_ns": 5, "cut": False, "status": 0, "stdout": "", "stderr": ""}]
    text = "\n".join(json.dumps(one) for one in [*lines, {"end": 6}])
    assert client.parse(text, "").metrics == {"rate": 2.0}


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_window_must_have_a_length(seconds):
    with pytest.raises(UsageError):
        repeat.repeated(linpack.solve(10), seconds=seconds)


def test_a_client_with_a_log_cannot_be_repeated():
    once = Client(("tool", "{log}"), "", 1.0, lambda out, log: Reading({}))
    with pytest.raises(UsageError):
        repeat.repeated(once, seconds=1)


def test_overlap_is_the_share_of_an_iteration_s_own_time():
    one = ran((0, 100, 1), (100, 200, 1), (300, 400, 1))
    other = ran((50, 100, 1), (100, 180, 1))
    assert overlap(one.iterations, other.iterations) == [0.5, 0.8, 0.0]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=8), st.integers(0, 60))
def test_an_iteration_overlaps_itself_wholly_and_never_more(lengths, shift):
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    one = ran(*((end - length, end, 1) for end, length in zip(ends, lengths, strict=True)))
    later = ran(*((it.start_ns + shift, it.end_ns + shift, 1) for it in one.iterations))
    assert overlap(one.iterations, one.iterations) == [1.0] * len(lengths)
    assert all(0 <= share <= 1 for share in overlap(one.iterations, later.iterations))


def test_only_iterations_that_ran_wholly_beside_the_other_count():
    one = ran((0, 100, 5), (100, 200, 7), (200, 300, 9), (300, 350, 0), cut=[3])
    other = ran((80, 190, 1), (192, 320, 1))
    found = beside("linpack", one, other)
    # The second has 98 of its 100; the first 20; the third all; the fourth was cut.
    assert found.metrics["rate"] == 8 and found.metrics["iterations"] == 2
    assert found.metrics["iterations_partly"] == 1
    assert found.metrics["overlap"] == pytest.approx(0.99)
    assert [row["overlap"] for row in found.iterations] == [0.2, 0.98, 1.0, 0.4]
    assert [row["cut"] for row in found.iterations] == [False, False, False, True]
    assert found.flags == ()


def test_what_the_other_was_cut_in_still_disturbed():
    found = beside("stream", ran((0, 100, 5)), ran((0, 100, 0), cut=[0]))
    assert found.metrics["rate"] == 5 and found.flags == ()


def test_without_an_iteration_wholly_beside_there_is_no_number_but_a_flag():
    found = beside("bonnie", ran((0, 100, 5)), ran((50, 200, 1)))
    assert "rate" not in found.metrics and found.metrics["iterations_partly"] == 1
    assert found.flags == ("no iteration of bonnie ran wholly beside its neighbour",)


def test_alone_every_iteration_that_ended_counts():
    reading, sides = together([("linpack", ran((0, 10, 4), (10, 20, 6), (20, 25, 0), cut=[2]))])
    assert reading.metrics == {"rate": 5, "iterations": 2, "iterations_partly": 0}
    assert reading.also == () and len(sides) == 1 and reading.messages == 2


def test_a_pair_is_two_rows_each_with_the_other_s_rate():
    a, b = ran((0, 90, 4), name="gflops"), ran((0, 50, 2), (50, 100, 4), name="mbit_per_s")
    b = Repeated({}, {"mbit_per_s": 3.0}, iterations=b.iterations)
    a = Repeated({}, {"gflops": 4.0}, iterations=a.iterations)
    reading, _ = together([("linpack", a), ("netperf", b)])
    assert reading.metrics["gflops"] == 4 and reading.metrics["neighbour_mbit_per_s"] == 3
    ((levels, metrics),) = reading.also
    assert levels == {"service": "netperf", "neighbour": "linpack"}
    # Its second iteration outlasted the other.
    assert metrics["mbit_per_s"] == 2 and metrics["neighbour_gflops"] == 4


def test_two_of_one_service_are_one_row_of_the_mean_of_both():
    reading, sides = together([("linpack", ran((0, 10, 4))), ("linpack", ran((0, 10, 6)))])
    assert reading.metrics["rate"] == 5 and reading.also == () and len(sides) == 2


def test_one_of_two_alike_without_a_value_leaves_the_other_s_and_a_flag():
    reading, _ = together([("bonnie", ran((0, 10, 4))), ("bonnie", ran((0, 40, 6)))])
    assert reading.metrics["rate"] == 4
    assert reading.flags == ("no iteration of bonnie ran wholly beside its neighbour",)


def test_three_services_are_no_pair():
    with pytest.raises(UsageError):
        together([("a", ran((0, 1, 1)))] * 3)


def test_the_record_s_times_begin_with_the_earlier_of_both():
    _, sides = together([("a", ran((700, 800, 1))), ("b", ran((650, 900, 1)))])
    assert sides[0].iterations[0]["start_ns"] == 50 and sides[1].iterations[0]["start_ns"] == 0
