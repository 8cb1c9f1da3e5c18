"""Repeated runs: the program itself, its reader, and two runs side by side."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import read

from labkit.errors import ToolOutput, UsageError
from labkit.tools import repeat
from labkit.tools.base import Client, Measurement, python
from labkit.tools.repeat import Iteration, Repeated, combine, overlap, side_of
from labkit.tools.services import parse_linpack

Span = tuple[int, int, float]


def ran(*spans: Span, name: str = "rate", cut: Any = (), late: Any = ()) -> Repeated:
    """Return iterations of (start, end, value); those at the places of `cut` were cut."""
    found = [
        Iteration(start, end, place in cut, place in late, {} if place in cut else {name: value})
        for place, (start, end, value) in enumerate(spans)
    ]
    whole = [one for one in found if not (one.cut or one.late)]
    measured = repeat.means([one.metrics for one in whole])
    return Repeated({}, measured, iterations=tuple(found))


def printed(*lines: dict[str, Any]) -> str:
    """Return what the program prints of iterations, each with what differs from a plain one."""
    plain = {"start_ns": 0, "end_ns": 1, "cut": False, "late": False, "status": 0, "stderr": ""}
    texts = [json.dumps(plain | {"stdout": ""} | line) for line in lines]
    return "\n".join([*texts, '{"end": 99}'])


def recorded(name: str) -> str:
    """Return recorded output; it is older than `late`, which it gets: no iteration of it is."""
    lines = [json.loads(text) for text in read(name).splitlines()]
    return "\n".join(json.dumps({"late": False} | one) for one in lines)


def test_every_iteration_is_read_by_the_tool_s_own_parser() -> None:
    measurement = repeat.parse(parse_linpack, recorded("repeat-linpack.txt"))
    whole = [one for one in measurement.iterations if not one.cut]
    rates = [one.metrics["gflops"] for one in whole]
    assert len(rates) > 3
    assert measurement.metrics["gflops"] == pytest.approx(sum(rates) / len(rates))
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(whole))


@given(st.integers(0, 100_000))
def test_output_cut_anywhere_is_an_error(cut: int) -> None:
    text = recorded("repeat-linpack.txt")
    with pytest.raises(ToolOutput):
        repeat.parse(parse_linpack, text[: cut % len(text)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (recorded("repeat-failed.txt"), "status 2(?s:.*)usage: linpack"),
        (printed({"status": -9}), "signal 9 ended it, as by hand or for want of memory"),
        (printed({"status": 1, "stderr": " "}), "it printed nothing"),
        (printed({"status": 3, "late": True}), "status 3"),
        (printed({"stdout": "rubbish"}), "rubbish"),
    ],
)
def test_an_iteration_that_failed_is_an_error_with_its_words(text: str, words: str) -> None:
    with pytest.raises(ToolOutput, match=words):
        repeat.parse(parse_linpack, text)


def number(stdout: str, log: str) -> Measurement:
    return Measurement({}, {"rate": float(stdout)}, flags=(stdout,))


def test_late_and_cut_iterations_are_kept_but_not_in_the_mean() -> None:
    text = printed(
        {"stdout": "2"},
        {"stdout": "4"},
        {"stdout": "600", "late": True},
        {"late": True, "cut": True},
    )
    found = repeat.parse(number, text)
    assert found.metrics == {"rate": 3} and found.flags == ("2", "4")
    assert [one.late for one in found.iterations] == [False, False, True, True]
    assert [one.cut for one in found.iterations] == [False, False, False, True]


def run(*argv: str) -> list[dict[str, Any]]:
    command = (*python("repeat"), *argv)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_program_runs_so_often_in_the_locale_c_and_stops_at_a_failure() -> None:
    *found, end = run("60", "0", "2", "sh", "-c", "echo $LC_ALL; echo said >&2")
    assert "end" in end and [one["stdout"] for one in found] == ["C\n", "C\n"]
    assert found[0]["stderr"] == "said\n" and found[0]["end_ns"] <= found[1]["start_ns"]
    *found, _ = run("60", "0", "0", "sh", "-c", "echo wrong; exit 3")
    assert [(one["status"], one["stdout"]) for one in found] == [(3, "wrong\n")]


def test_an_iteration_is_late_by_its_start_and_killed_after_the_grace_time() -> None:
    *found, _ = run("0.1", "0.2", "0", "sh", "-c", "sleep 60 & wait")
    assert [(one["cut"], one["late"]) for one in found] == [(True, False)]
    assert found[0]["end_ns"] - found[0]["start_ns"] > 0.25e9
    *found, _ = run("0.3", "60", "8", "sleep", "0.1")
    late = [one["late"] for one in found]
    assert late == sorted(late) and late[0] is False and late[-1] is True
    # The window begins a little before its first iteration.
    spans = [one["start_ns"] - found[0]["start_ns"] for one in found if not one["late"]]
    assert max(spans) < 0.3e9


def test_a_client_is_repeated_with_its_own_target_and_parser() -> None:
    once = Client(("tool", "x"), "198.18.0.3", 5.0, number)
    client = repeat.repeated(once, seconds=3, grace=2, at_most=4)
    assert client.target == "198.18.0.3" and client.argv[-5:] == ("3", "2", "4", "tool", "x")
    # The command has the time for the stragglers too.
    assert client.seconds > 5
    assert client.parse(printed({"stdout": "2"}), "").metrics == {"rate": 2.0}
    for seconds, grace in [(0, 1), (float("nan"), 1), (1, -0.1), (1, float("nan"))]:
        with pytest.raises(UsageError):
            repeat.repeated(once, seconds=seconds, grace=grace)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=8), st.integers(0, 60))
def test_an_iteration_overlaps_itself_completely_and_never_more(
    lengths: list[int], shift: int
) -> None:
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    one = ran(*((end - length, end, 1) for end, length in zip(ends, lengths, strict=True)))
    later = ran(*((it.start_ns + shift, it.end_ns + shift, 1) for it in one.iterations))
    assert overlap(one.iterations, one.iterations) == [1.0] * len(lengths)
    assert all(0 <= share <= 1 for share in overlap(one.iterations, later.iterations))


def test_only_iterations_with_the_neighbour_all_the_time_count() -> None:
    one = ran((0, 100, 5), (100, 200, 7), (200, 300, 9), (300, 350, 0), cut=[3])
    other = ran((80, 190, 1), (192, 320, 1))
    found = side_of("linpack", one, other)
    # The second has 98 of its 100; the first 20; the third all; the fourth was cut.
    assert found.metrics["rate"] == 8 and found.metrics["iterations"] == 2
    assert found.metrics["iterations_partly"] == found.metrics["iterations_cut"] == 1
    # Of all that ended, and not of those chosen by it.
    assert found.metrics["overlap"] == pytest.approx((0.2 + 0.98 + 1) / 3)
    assert [row["overlap"] for row in found.iterations] == [0.2, 0.98, 1.0, 0.4]
    assert found.flags == ("1 of 4 iterations of linpack did not end in time",)


@pytest.mark.parametrize(
    ("one", "other", "rate", "counts"),
    [
        (ran((0, 100, 5)), ran((0, 90, 1)), 5, (1, 0, 0)),
        (ran((0, 100, 5)), ran((0, 89, 1)), None, (0, 1, 0)),
        (ran((0, 100, 5)), ran((0, 100, 0), cut=[0]), 5, (1, 0, 0)),
        (ran((0, 120, 5)), ran((0, 60, 1), (60, 130, 1), late=[1]), 5, (1, 0, 0)),
        (ran((0, 9, 5), (9, 20, 7), (20, 25, 0), cut=[2], late=[1, 2]), None, 5, (1, 0, 0)),
        (ran((0, 90, 0), cut=[0]), ran((0, 90, 1)), None, (0, 0, 1)),
    ],
)
def test_a_neighbour_counts_while_it_ran_also_cut_or_late(
    one: Repeated, other: Repeated | None, rate: float | None, counts: tuple[int, int, int]
) -> None:
    found = side_of("stream", one, other)
    assert found.metrics.get("rate") == rate and bool(found.flags) == (rate is None)
    names = ("iterations", "iterations_partly", "iterations_cut")
    assert tuple(found.metrics[name] for name in names) == counts


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(1, 1000))
def test_iterations_count_by_their_start_and_not_by_their_duration(
    lengths: list[int], window: int
) -> None:
    starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    late = [place for place, start in enumerate(starts) if start >= window]
    spans = [(a, b, b - a) for a, b in pairwise(starts)]
    # The neighbour goes on until all have ended: that is the purpose of the grace.
    found = side_of("bonnie", ran(*spans, late=late), ran((0, starts[-1], 1)))
    began = [value for start, _, value in spans if start < window]
    assert found.metrics["iterations"] == len(began)
    assert found.metrics["rate"] == pytest.approx(sum(began) / len(began))


def test_alone_every_iteration_that_ended_counts() -> None:
    measurement, sides = combine([("linpack", ran((0, 10, 4), (10, 20, 6), (20, 25, 0), cut=[2]))])
    numbers = {"iterations": 2, "iterations_partly": 0, "iterations_cut": 1}
    assert measurement.metrics == {"rate": 5} | numbers
    assert measurement.also == () and len(sides) == 1 and measurement.messages == 2


def test_a_pair_is_two_rows_each_with_the_other_s_rate() -> None:
    a, b = ran((0, 90, 4), name="gflops"), ran((0, 50, 2), (50, 100, 4), name="mbit_per_s")
    measurement, _ = combine([("linpack", a), ("netperf", b)])
    assert measurement.metrics["gflops"] == 4 and measurement.metrics["neighbour_mbit_per_s"] == 3
    ((levels, metrics),) = measurement.also
    assert levels == {"service": "netperf", "neighbour": "linpack"}
    # Its second iteration outlasted the other: it is in the neighbour's rate alone.
    assert metrics["mbit_per_s"] == 2 and metrics["neighbour_gflops"] == 4
    _, sides = combine([("a", ran((700, 800, 1))), ("b", ran((650, 900, 1)))])
    assert [side.iterations[0]["start_ns"] for side in sides] == [50, 0]


def test_two_of_one_service_are_one_row_with_a_value_where_both_have_one() -> None:
    measurement, sides = combine([("linpack", ran((0, 10, 4))), ("linpack", ran((0, 10, 6)))])
    assert measurement.metrics["rate"] == 5 and measurement.also == () and len(sides) == 2
    measurement, sides = combine([("bonnie", ran((0, 10, 4))), ("bonnie", ran((0, 40, 6)))])
    assert "rate" not in measurement.metrics and sides[0].metrics["rate"] == 4
    assert measurement.flags == ("no iteration of bonnie overlapped its neighbour entirely",)
    assert measurement.metrics["iterations"] == measurement.metrics["iterations_partly"] == 0.5


def test_flags_are_those_of_the_iterations_that_count() -> None:
    its = [
        Iteration(0, 50, metrics={"rate": 1}, flags=("early",)),
        Iteration(50, 100, metrics={"rate": 1}, flags=("beside",)),
        Iteration(100, 150, late=True, metrics={"rate": 1}, flags=("late",)),
    ]
    found = side_of("bonnie", Repeated({}, {}, iterations=tuple(its)), ran((40, 160, 1)))
    assert found.flags == ("beside",) and found.metrics["iterations"] == 1
