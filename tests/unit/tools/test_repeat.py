"""Repeated runs: the program itself, its reader, and two runs held against each other."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ToolOutput, UsageError
from labkit.tools import repeat
from labkit.tools.base import Client, Measurement
from labkit.tools.repeat import Iteration, Repeated, combine, overlap, side_of
from labkit.tools.services import linpack, parse_linpack

CAPTURED = Path(__file__).parents[2] / "captured"
PROGRAM = Path(repeat.__file__).parent / "programs" / "repeat.py"


def read(name):
    return (CAPTURED / name).read_text()


def ran(*spans, name="rate", cut=(), late=()):
    """Return iterations of (start, end, value); those at the places of `cut` were cut."""
    found = [
        Iteration(start, end, cut=True, late=place in late)
        if place in cut
        else Iteration(start, end, late=place in late, metrics={name: value})
        for place, (start, end, value) in enumerate(spans)
    ]
    whole = [one for one in found if not (one.cut or one.late)]
    return Repeated({}, repeat.means(whole), iterations=tuple(found))


def line(start, end, said="", **more):
    """Return what the program prints of an iteration."""
    whole = {"cut": False, "late": False, "status": 0, "stdout": said, "stderr": ""}
    return {"start_ns": start, "end_ns": end} | whole | more


def captured():
    """Return recorded output; it is older than `late`, which it gets: no iteration of it is."""
    lines = [json.loads(text) for text in read("repeat-linpack.txt").splitlines()]
    return "\n".join(json.dumps({"late": False} | one) for one in lines)


def test_every_iteration_is_read_by_the_tool_s_own_parser():
    measurement = repeat.parse(parse_linpack, captured())
    whole = [one for one in measurement.iterations if not one.cut]
    rates = [one.metrics["gflops"] for one in whole]
    assert len(rates) > 3 and measurement.metrics["gflops"] == pytest.approx(
        sum(rates) / len(rates)
    )
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(whole))


def test_an_iteration_that_failed_is_an_error_with_its_words():
    lines = [json.loads(text) for text in read("repeat-failed.txt").splitlines()]
    text = "\n".join(json.dumps({"late": False} | one) for one in lines)
    with pytest.raises(ToolOutput, match="status 2") as caught:
        repeat.parse(parse_linpack, text)
    assert "usage: linpack" in str(caught.value)


def test_an_iteration_that_printed_nothing_has_a_cause():
    lines = [{"status": -9, "stdout": "", "stderr": ""}, {"status": 1, "stdout": "", "stderr": " "}]
    said = []
    for one in lines:
        whole = {"start_ns": 0, "end_ns": 1, "cut": False, "late": False} | one
        with pytest.raises(ToolOutput) as caught:
            repeat.parse(parse_linpack, f'{json.dumps(whole)}\n{{"end": 2}}')
        said.append(caught.value.why)
    assert said == ["signal 9 ended it, as by hand or for want of memory", "it printed nothing"]


@given(st.integers(0, 100_000))
def test_output_cut_anywhere_is_an_error(cut):
    text = captured()
    with pytest.raises(ToolOutput):
        repeat.parse(parse_linpack, text[: cut % len(text)])


def _run(*argv):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.read_text(), *argv],
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_program_ends_after_so_many_iterations_in_the_locale_c():
    found = _run("60", "0", "2", "sh", "-c", "echo $LC_ALL; echo said >&2")
    assert len(found) == 3 and "end" in found[-1]
    assert [one["stdout"] for one in found[:-1]] == ["C\n", "C\n"]
    assert found[0]["stderr"] == "said\n" and found[0]["end_ns"] <= found[1]["start_ns"]


def test_the_program_kills_an_iteration_that_outlasts_the_grace_time():
    found = _run("0.1", "0.2", "0", "sh", "-c", "sleep 60 & wait")
    assert [(one["cut"], one["late"]) for one in found[:-1]] == [(True, False)]
    assert found[0]["end_ns"] - found[0]["start_ns"] > 0.25e9


def test_a_slow_iteration_ends_in_the_grace_time_and_is_not_late():
    found = _run("0.1", "30", "1", "sleep", "0.4")
    assert [(one["cut"], one["late"]) for one in found[:-1]] == [(False, False)]


def test_an_iteration_that_starts_after_the_window_is_late():
    *found, _ = _run("0.3", "60", "8", "sleep", "0.1")
    late = [one["late"] for one in found]
    assert late == sorted(late) and late[0] is False and late[-1] is True
    first = found[0]["start_ns"]
    # The window begins a little before its first iteration.
    assert all(one["start_ns"] - first < 0.3e9 for one in found if not one["late"])
    assert all(one["start_ns"] - first > 0.2e9 for one in found if one["late"])


def test_the_program_stops_at_a_failure():
    found = _run("60", "0", "0", "sh", "-c", "echo wrong; exit 3")
    assert len(found) == 2 and found[0]["status"] == 3 and found[0]["stdout"] == "wrong\n"


def test_a_client_is_repeated_with_its_own_target_and_parser():
    once = Client(("tool", "x"), "198.18.0.3", 5.0, lambda out, log: Measurement({}, {"rate": 2.0}))
    client = repeat.repeated(once, seconds=3, grace=2, at_most=4)
    assert client.target == "198.18.0.3" and client.argv[-5:] == ("3", "2", "4", "tool", "x")
    # The command has the time for the stragglers too.
    assert client.seconds > 5
    text = "\n".join(json.dumps(one) for one in [line(1, 5), {"end": 6}])
    assert client.parse(text, "").metrics == {"rate": 2.0}


@pytest.mark.parametrize(
    ("seconds", "grace"), [(0, 1), (-1, 1), (float("nan"), 1), (1, -0.1), (1, float("nan"))]
)
def test_window_and_grace_time_must_be_positive(seconds, grace):
    with pytest.raises(UsageError):
        repeat.repeated(linpack(10), seconds=seconds, grace=grace)


def test_late_and_cut_iterations_are_kept_but_not_in_the_mean():
    lines = [line(0, 10, "2"), line(10, 30, "4"), line(30, 50, "600", late=True)]
    lines += [line(50, 60, late=True, cut=True), {"end": 61}]
    text = "\n".join(json.dumps(one) for one in lines)
    found = repeat.parse(lambda out, log: Measurement({}, {"rate": float(out)}, flags=(out,)), text)
    assert found.metrics == {"rate": 3} and found.flags == ("2", "4")
    assert [(one.cut, one.late) for one in found.iterations] == [
        (False, False),
        (False, False),
        (False, True),
        (True, True),
    ]


def test_a_late_iteration_that_fails_is_an_error_too():
    text = "\n".join(json.dumps(one) for one in [line(0, 9, late=True, status=3), {"end": 10}])
    with pytest.raises(ToolOutput, match="status 3"):
        repeat.parse(lambda out, log: Measurement({}), text)


def test_overlap_is_the_share_of_an_iteration_s_own_time():
    one = ran((0, 100, 1), (100, 200, 1), (300, 400, 1))
    other = ran((50, 100, 1), (100, 180, 1))
    assert overlap(one.iterations, other.iterations) == [0.5, 0.8, 0.0]


@given(st.lists(st.integers(1, 50), min_size=2, max_size=8), st.integers(0, 60))
def test_an_iteration_overlaps_itself_completely_and_never_more(lengths, shift):
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    one = ran(*((end - length, end, 1) for end, length in zip(ends, lengths, strict=True)))
    later = ran(*((it.start_ns + shift, it.end_ns + shift, 1) for it in one.iterations))
    assert overlap(one.iterations, one.iterations) == [1.0] * len(lengths)
    assert all(0 <= share <= 1 for share in overlap(one.iterations, later.iterations))


def test_only_iterations_with_the_neighbour_all_the_time_count():
    one = ran((0, 100, 5), (100, 200, 7), (200, 300, 9), (300, 350, 0), cut=[3])
    other = ran((80, 190, 1), (192, 320, 1))
    found = side_of("linpack", one, other)
    # The second has 98 of its 100; the first 20; the third all; the fourth was cut.
    assert found.metrics["rate"] == 8 and found.metrics["iterations"] == 2
    assert found.metrics["iterations_partly"] == found.metrics["iterations_cut"] == 1
    # Of all that ended, and not of those chosen by it.
    assert found.metrics["overlap"] == pytest.approx((0.2 + 0.98 + 1) / 3)
    assert [row["overlap"] for row in found.iterations] == [0.2, 0.98, 1.0, 0.4]
    assert [row["cut"] for row in found.iterations] == [False, False, False, True]
    assert found.flags == ("1 of 4 iterations of linpack did not end in time",)


def test_late_iterations_are_neither_counted_nor_cut():
    one = ran((0, 100, 5), (100, 200, 700), (200, 250, 0), cut=[2], late=[1, 2])
    found = side_of("linpack", one, ran((0, 250, 1)))
    assert found.metrics == {
        "rate": 5,
        "iterations": 1,
        "iterations_partly": 0,
        "iterations_cut": 0,
        "overlap": 1,
    }
    assert [row["late"] for row in found.iterations] == [False, True, True]


def test_a_late_iteration_of_the_neighbour_counts_as_overlap():
    other = ran((0, 60, 1), (60, 130, 1), late=[1])
    found = side_of("stream", ran((0, 120, 5)), other)
    assert found.metrics["rate"] == 5 and found.metrics["overlap"] == 1


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(1, 1000))
def test_what_counts_depends_on_the_start_and_not_on_the_duration(lengths, window):
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    late = [place for place, start in enumerate(starts) if start >= window]
    spans = [(a, b, b - a) for a, b in pairwise(starts)]
    # The neighbour goes on until all have ended: that is what the grace is for.
    found = side_of("bonnie", ran(*spans, late=late), ran((0, starts[-1], 1)))
    began = [value for start, _, value in spans if start < window]
    assert found.metrics["iterations"] == len(began)
    assert found.metrics["rate"] == pytest.approx(sum(began) / len(began))
    assert found.metrics["iterations_cut"] == found.metrics["iterations_partly"] == 0


@pytest.mark.parametrize(("end", "counts"), [(100, 1), (90, 1), (89, 0)])
def test_the_overlap_must_be_nine_tenths(end, counts):
    found = side_of("linpack", ran((0, 100, 5)), ran((0, end, 1)))
    assert found.metrics["iterations"] == counts and found.metrics["overlap"] == end / 100


def test_a_cut_iteration_of_the_neighbour_counts_as_overlap():
    found = side_of("stream", ran((0, 100, 5)), ran((0, 100, 0), cut=[0]))
    assert found.metrics["rate"] == 5 and found.flags == ()


def test_without_a_counted_iteration_there_is_a_flag_and_no_metric():
    found = side_of("bonnie", ran((0, 100, 5)), ran((50, 200, 1)))
    assert "rate" not in found.metrics and found.metrics["iterations_partly"] == 1
    assert found.flags == ("no iteration of bonnie overlapped its neighbour entirely",)


def test_alone_every_iteration_that_ended_counts():
    measurement, sides = combine([("linpack", ran((0, 10, 4), (10, 20, 6), (20, 25, 0), cut=[2]))])
    numbers = {"iterations": 2, "iterations_partly": 0, "iterations_cut": 1}
    assert measurement.metrics == {"rate": 5} | numbers
    assert measurement.also == () and len(sides) == 1 and measurement.messages == 2


def test_a_pair_is_two_rows_each_with_the_other_s_rate():
    a, b = ran((0, 90, 4), name="gflops"), ran((0, 50, 2), (50, 100, 4), name="mbit_per_s")
    measurement, _ = combine([("linpack", a), ("netperf", b)])
    assert measurement.metrics["gflops"] == 4 and measurement.metrics["neighbour_mbit_per_s"] == 3
    ((levels, metrics),) = measurement.also
    assert levels == {"service": "netperf", "neighbour": "linpack"}
    # Its second iteration outlasted the other: it is in the neighbour's rate alone.
    assert metrics["mbit_per_s"] == 2 and metrics["neighbour_gflops"] == 4


def test_two_of_one_service_are_one_row_of_the_mean_of_both():
    measurement, sides = combine([("linpack", ran((0, 10, 4))), ("linpack", ran((0, 10, 6)))])
    assert measurement.metrics["rate"] == 5 and measurement.also == () and len(sides) == 2


def test_two_of_one_service_have_no_value_where_one_side_has_none():
    measurement, sides = combine([("bonnie", ran((0, 10, 4))), ("bonnie", ran((0, 40, 6)))])
    assert "rate" not in measurement.metrics and measurement.also == ()
    assert sides[0].metrics["rate"] == 4 and "rate" not in sides[1].metrics
    assert measurement.flags == ("no iteration of bonnie overlapped its neighbour entirely",)
    assert measurement.metrics["iterations"] == measurement.metrics["iterations_partly"] == 0.5
    assert measurement.metrics["overlap"] == pytest.approx((1 + 0.25) / 2)


def test_a_side_without_ended_iterations_leaves_the_pair_without_value():
    late = ran((0, 90, 0), cut=[0])
    measurement, _ = combine([("bonnie", ran((0, 80, 4))), ("bonnie", late)])
    assert "rate" not in measurement.metrics and measurement.metrics["iterations_cut"] == 0.5
    assert len(measurement.flags) == 1


def test_flags_are_those_of_the_iterations_that_count():
    its = [
        Iteration(0, 50, metrics={"rate": 1}, flags=("early",)),
        Iteration(50, 100, metrics={"rate": 1}, flags=("beside",)),
        Iteration(100, 150, late=True, metrics={"rate": 1}, flags=("late",)),
    ]
    found = side_of("bonnie", Repeated({}, {}, iterations=tuple(its)), ran((40, 160, 1)))
    assert found.flags == ("beside",) and found.metrics["iterations"] == 1


def test_the_record_s_times_begin_with_the_earlier_of_both():
    _, sides = combine([("a", ran((700, 800, 1))), ("b", ran((650, 900, 1)))])
    assert sides[0].iterations[0]["start_ns"] == 50 and sides[1].iterations[0]["start_ns"] == 0
