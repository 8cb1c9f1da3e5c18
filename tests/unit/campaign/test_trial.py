"""A trial: contexts entered at the same time, the record, the rows, and a prepared client."""

import os
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.campaign.trial import AT_ONCE, Trial, at_once, saturated
from labkit.design import Condition
from labkit.errors import ToolOutput, UsageError
from labkit.hosts import LocalHost, labelled
from labkit.placement import docker
from labkit.tools.base import Client, Measurement, Prestart
from labkit.tools.parsing import NOT_REACHED

NOWHERE: Any = None


class Places:
    """Contexts that keep a list of those that stand, and may fail on the way in or out."""

    def __init__(self):
        self.standing: set[int] = set()
        self.left: set[int] = set()

    @contextmanager
    def place(self, number, fails=""):
        if fails == "in":
            raise ValueError(f"{number} does not start")
        self.standing.add(number)
        try:
            yield number
        finally:
            self.standing.discard(number)
            self.left.add(number)
            if fails == "out":
                raise ValueError(f"{number} does not end")


@pytest.mark.parametrize(
    ("failing", "fails", "said"),
    [
        (None, "", ""),
        (7, "in", "7 does not start"),
        (0, "out", "0 does not end"),
        (None, "block", "in the block"),
    ],
)
def test_all_stand_in_order_or_none_is_left(failing, fails, said):
    places, began = Places(), []
    contexts = [places.place(number, fails if number == failing else "") for number in range(20)]
    with (
        pytest.raises(ValueError, match=said) if said else nullcontext(),
        at_once(contexts) as entered,
    ):
        assert entered == list(range(20)) and places.standing == set(range(20))
        began.append(True)
        if fails == "block":
            raise ValueError("in the block")
    assert not places.standing and bool(began) == (fails != "in")
    assert fails == "in" or places.left == set(range(20))


def test_they_are_entered_at_the_same_time():
    barrier = threading.Barrier(AT_ONCE)

    @contextmanager
    def meeting():
        barrier.wait(timeout=60)  # broken unless all are under way at once
        yield
        barrier.wait(timeout=60)

    with at_once([meeting() for _ in range(AT_ONCE)]):
        pass


def test_two_placements_of_one_name_are_refused_before_any_is_made():
    twice = Trial(NOWHERE, {}, "trial-1").serve_all([{"name": "hop"}] * 2)
    with pytest.raises(UsageError, match="two placements called 'hop' at once"), twice:
        pass


def test_a_long_argument_is_recorded_by_its_digest():
    trial = Trial(NOWHERE, {}, "trial-1")
    for text in ("x" * 5000, "x" * 5001):
        trial.keep_command(("python3", "-c", text))
    one, other = trial.record["commands"]
    assert one[:2] == ["python3", "-c"] and one[2].startswith("<5000 characters, sha256 ")
    assert one[2] != other[2]


# Rows.

KEYS = {"trial": "b01-p02", "attempt": 1, "block": 1, "position": 2, "session": 1}
OUTCOME = {"status": "ok", "problem": "", "started_ns": 5, "seconds": 0.5}
CONDITION = Condition({"placement": docker("host"), "size_b": 64}, repeat=2)


def rows(measurement, *flags, **verified):
    trial = Trial(NOWHERE, {}, "trial-1", counters={"steal": 0.1}, _verified=verified)
    trial.flag(*(flags or ("odd", "late")))
    return trial.rows(KEYS, CONDITION, OUTCOME, measurement)


def test_a_row_has_levels_flags_counters_metrics_and_statistics():
    samples = {"rtt_ns": np.arange(1, 21), "start_ns": np.arange(20), "set": np.arange(20)}
    (row,) = rows(Measurement(samples, {"rate": 2.5, "steal": 0.2, "unknown": None}))
    assert list(row)[:8] == [*KEYS, "repeat", "placement", "size_b"]
    assert (row["placement"], row["size_b"], row["repeat"]) == ("docker host", "64", 2)
    assert (row["flags"], row["n_samples"], row["steal"]) == ("odd; late", 20, 0.2)
    found = {name: value for name, value in row.items() if name.startswith("rtt_ns")}
    assert found["rtt_ns_median"] == 10.5 and found["rtt_ns_p95"] == np.quantile(range(1, 21), 0.95)
    assert found["rtt_ns_std"] == np.std(range(1, 21), ddof=1) and "rtt_ns_p99" not in found
    assert not {"start_ns_mean", "set_mean", "unknown", "loaded_saturated"} & set(row)
    assert row["router"] == ""


def test_further_conditions_and_the_data_path_of_routers_are_in_rows():
    verified = {"server": {"router to 198.18.0.5": "sleeve"}, "client": {}}
    also = (({"size_b": 128}, {"rate": 3.0}),)
    own, other = rows(Measurement({}, {"rate": 2.0}, also=also), **verified)
    assert [row["trial"] for row in (own, other)] == ["b01-p02", "b01-p02/1"]
    assert [row["size_b"] for row in (own, other)] == ["64", "128"]
    assert [row["rate"] for row in (own, other)] == [2.0, 3.0]
    assert other["placement"] == "docker host" and other["steal"] == 0.1
    assert other["router"] == "sleeve"


@pytest.mark.parametrize(
    ("numbers", "flags", "expected"),
    [
        ({}, "", False),
        ({"tool_cpu": 0.91}, "", True),
        ({"tool_cpu": 0.9, "client_delay": 0.05}, "", False),
        ({"client_delay": 0.06}, "", True),
        ({"reached": 0.9}, "", False),
        ({"reached": 0.9}, f"{NOT_REACHED}: 9 of 10", True),
        ({"reached": 0.96}, NOT_REACHED, False),
        ({"sent_per_s": 90.0, "offered_per_s": 100}, NOT_REACHED, True),
        ({"sent_per_s": 90.0}, NOT_REACHED, False),
    ],
)
def test_a_load_generator_may_be_the_limit(numbers, flags, expected):
    assert saturated(numbers, flags) is expected


def test_the_window_at_the_offered_rate_has_its_own_limit():
    numbers = {"sent_per_s": 99.0, "loaded_sent_per_s": 80.0, "offered_per_s": 100}
    (row,) = rows(Measurement({}, numbers), NOT_REACHED)
    assert (row["saturated"], row["loaded_saturated"]) == (False, True)


# A client that is started before its window, and stopped until then.

HOST, LABEL = LocalHost(), f"test-prestart-{os.getpid()}"
#: As sockperf does: it says so, sleeps in one call, and then sends.
PROGRAM = """
import sys, time
print("Warmup stage", flush=True)
time.sleep(0.2)
open(sys.argv[1], "w").write("begun")
print("sent")
sys.exit(7)
"""


class Place(SimpleNamespace):
    """A rig of which the generator is this machine."""

    targets: Any

    def check_target(self, address):
        assert address == "198.18.0.1"

    def cpus(self, role, affinity):
        return "0"


def prepared(folder, *command):
    """Return the context of a client that was started and stopped in `folder`/LABEL-load."""
    rig: Any = Place(targets={"generator": SimpleNamespace(host=HOST, directory=str(folder))})
    sleep = Prestart(0.2, "Warmup stage")
    client = Client(command, "198.18.0.1", 1.0, lambda *_: Measurement({}), prestart=sleep)
    return Trial(rig, {}, LABEL).prepare(client, name="load")


def test_it_begins_when_it_is_let_go_and_not_before(tmp_path):
    begun, folder = tmp_path / "begun", tmp_path / f"{LABEL}-load"
    command = ("python3", "-c", PROGRAM, str(begun))
    with prepared(tmp_path, *command) as one:
        ready = one.ready()
        # It has slept its time, and is stopped all the same.
        pid = (folder / "client").read_text().strip()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "T" and not begun.exists()
        result = HOST.run(*ready.argv, check=False)
        assert begun.exists() and result.status == 7
        assert result.stdout.splitlines() == ["Warmup stage", "sent"]
        # Whoever looks what aims where finds the command itself.
        assert set(command) <= set(ready.argv)
    assert not folder.exists()


def test_one_that_is_never_let_go_is_ended(tmp_path):
    with prepared(tmp_path, "python3", "-c", PROGRAM, str(tmp_path / "begun")) as one:
        one.ready()
    assert not (tmp_path / "begun").exists() and labelled(HOST, LABEL) == []


def test_one_that_ends_at_once_says_why(tmp_path):
    with (
        prepared(tmp_path, "sh", "-c", "echo no such option >&2; exit 1") as one,
        pytest.raises(ToolOutput, match="no such option"),
    ):
        one.ready()
