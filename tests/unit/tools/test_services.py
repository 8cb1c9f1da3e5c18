"""A tool that is run once, or again and again beside another; and the numbers of the services."""

import json
from itertools import pairwise

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import ran

from labkit.errors import ToolOutput
from labkit.tools import repeat, services
from labkit.tools.base import Client, Measurement
from labkit.tools.repeat import combine, side_of


def test_a_number_of_the_services_is_finite_and_positive():
    for wrong in ("0", "-1", "nan", "inf", "1,5", "", "x", "1e999"):
        with pytest.raises(ValueError):
            services.positive(wrong)


def iterations(*spans, name="rate", cut=(), late=()):
    """Return iterations of (start, end, value); those at the places of `cut` were cut."""
    lines = [
        {"start_ns": start, "end_ns": end, "cut": place in cut, "late": place in late}
        | {"stdout": str(value)}
        for place, (start, end, value) in enumerate(spans)
    ]

    def read(text, log):
        if text == "nan":
            raise ToolOutput("rubbish")
        return Measurement({}, {name: float(text)}, flags=(text,) * (float(text) > 500))

    return repeat.parse(read, json.dumps({"runs": lines}))


def test_iterations_are_read_by_the_tool_and_late_and_cut_ones_are_not_in_the_mean():
    found = iterations((0, 1, 502), (1, 2, 504), (2, 3, 600), (3, 4, 0), late=[2, 3], cut=[3])
    assert found.metrics == {"rate": 503} and found.flags == ("502", "504")
    assert found.iterations[["late", "cut"]].sum().tolist() == [2, 1]
    with pytest.raises(ToolOutput, match="rubbish"):
        iterations((0, 1, float("nan")))


def texts(stdout, log):
    assert (stdout, log) == ("C\n", "1\n2\n")
    return Measurement({}, {"read": 1.0})


def client(script):
    return Client(("sh", "-c", script), "198.18.0.3", 1.0, texts)


def run(script, **options):
    argv = repeat.repeated(client(script), **options).argv
    return pd.DataFrame(json.loads(ran(argv).stdout)["runs"])


def test_the_program_runs_so_often_in_the_locale_c_and_stops_at_a_failure(tmp_path):
    before = tmp_path / "before"
    writes = "echo $LC_ALL; echo said >&2; echo 1 >a; echo 2 >b; mkdir c; "
    found = run(writes, seconds=60, grace=0, at_most=2)
    shown = found[["stdout", "stderr", "files"]].to_numpy().tolist()
    assert shown == [["C\n", "said\n", "1\n2\n"]] * 2
    assert found["end_ns"][0] <= found["start_ns"][1]
    # It is ended in the planned time, and read all the same.
    once = repeat.once(client(f"{writes} sleep 60"), limit=1, first=["touch", str(before)])
    assert once.parse(ran(once.argv).stdout, "").metrics == {"read": 1.0} and before.exists()
    for failing, words in (("echo wrong; exit 3", "status 3:\nwrong"), ("kill -9 $$", "status -9")):
        ended = ran(repeat.once(client(failing)).argv)
        assert ended.returncode == 1 and not ended.stdout and words in ended.stderr


def test_an_iteration_is_late_by_its_start_and_killed_after_the_grace_time():
    found = run("sleep 60 & wait", seconds=0.1, grace=0.2)
    assert found[["cut", "late"]].to_numpy().tolist() == [[True, False]]
    assert found["end_ns"][0] - found["start_ns"][0] > 0.25e9
    found = run("sleep 0.1", seconds=0.3, grace=60, at_most=8)
    assert found["late"].is_monotonic_increasing and found["late"].nunique() == 2


def test_only_iterations_with_the_neighbour_all_the_time_count():
    one = iterations((0, 100, 5), (100, 200, 7), (200, 300, 9), (300, 350, 0), cut=[3])
    found = side_of("linpack", one, iterations((80, 190, 1), (192, 320, 1)))
    # The second has 98 of its 100; the first 20; the third all; the fourth was cut.
    assert found.metrics["rate"] == 8 and found.metrics["iterations"] == 2
    assert found.metrics["iterations_partly"] == found.metrics["iterations_cut"] == 1
    # Of all that ended, and not of those chosen by it.
    assert found.metrics["overlap"] == pytest.approx((0.2 + 0.98 + 1) / 3)
    assert found.flags == ("1 of 4 iterations of linpack did not end in time",)


@pytest.mark.parametrize(
    ("one", "other", "rate", "counts"),
    [
        (iterations((0, 100, 5)), iterations((0, 90, 1)), 5, (1, 0, 0)),
        (iterations((0, 100, 5)), iterations((0, 89, 1)), None, (0, 1, 0)),
        (iterations((0, 100, 5)), iterations((0, 100, 0), cut=[0]), 5, (1, 0, 0)),
        (iterations((0, 9, 5)), iterations((0, 6, 1), (6, 9, 1), late=[1]), 5, (1, 0, 0)),
        (iterations((0, 9, 5), (9, 20, 7), (20, 25, 0), cut=[2], late=[1, 2]), None, 5, (1, 0, 0)),
        (iterations((0, 90, 0), cut=[0]), iterations((0, 90, 1)), None, (0, 0, 1)),
    ],
)
def test_a_neighbour_counts_while_it_ran_also_cut_or_late(one, other, rate, counts):
    found = side_of("stream", one, other)
    assert found.metrics.get("rate") == rate and bool(found.flags) == (rate is None)
    names = ("iterations", "iterations_partly", "iterations_cut")
    assert tuple(found.metrics[name] for name in names) == counts


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(1, 1000))
def test_iterations_count_by_their_start_and_not_by_their_duration(lengths, window):
    starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    late = [place for place, start in enumerate(starts) if start >= window]
    spans = [(a, b, b - a) for a, b in pairwise(starts)]
    # The neighbour goes on until all have ended: that is the purpose of the grace.
    found = side_of("bonnie", iterations(*spans, late=late), iterations((0, starts[-1], 1)))
    began = [value for start, _, value in spans if start < window]
    assert found.metrics["iterations"] == len(began)
    assert found.metrics["rate"] == pytest.approx(sum(began) / len(began))


def test_one_service_two_that_differ_and_two_of_a_kind_are_rows():
    found = combine([("linpack", iterations((0, 10, 4), (10, 20, 6), (20, 25, 0), cut=[2]))])
    numbers = {"iterations": 2, "iterations_partly": 0, "iterations_cut": 1}
    assert found.metrics == {"rate": 5} | numbers and found.also == () and found.messages == 2
    one = iterations((0, 90, 4), name="gflops")
    other = iterations((0, 50, 2), (50, 100, 4), name="mbit_per_s")
    found = combine([("linpack", one), ("netperf", other)])
    assert found.metrics["gflops"] == 4 and found.metrics["neighbour_mbit_per_s"] == 3
    ((levels, others),) = found.also
    assert levels == {"service": "netperf", "neighbour": "linpack"}
    # Its second iteration outlasted the other: it is in the neighbour's rate alone.
    assert others["mbit_per_s"] == 2 and others["neighbour_gflops"] == 4
    # A value where both have one.
    found = combine([("bonnie", iterations((0, 10, 4))), ("bonnie", iterations((0, 10, 6)))])
    assert found.metrics["rate"] == 5 and found.also == ()
    found = combine([("bonnie", iterations((0, 10, 4))), ("bonnie", iterations((0, 40, 6)))])
    assert found.flags == ("no iteration of bonnie overlapped its neighbour entirely",)
    assert "rate" not in found.metrics and found.metrics["iterations"] == 0.5
