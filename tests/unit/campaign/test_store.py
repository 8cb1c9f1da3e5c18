"""Writing a campaign: complete or not at all, and what was measured comes back to the bit."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.campaign import runner
from labkit.campaign.runner import Store, write_json, write_samples
from labkit.data import load
from labkit.errors import PlanMismatch, UsageError

PLAN: dict[str, Any] = {"identity": {"settings": {"messages": 3}}}
PLAN |= {"study": "made-up", "factors": {}, "settings": {}}
KEYS = {"trial": "b01-p01", "attempt": 1, "block": 1, "position": 1, "session": 1, "repeat": 1}
ROW = {**KEYS, "status": "ok", "flags": ""}
RTT = {"rtt_ns": np.array([1, 2])}
INT64 = np.iinfo(np.int64)
EXTREMES = st.sampled_from([int(INT64.min), int(INT64.max), 0, -1, 1])
VALUES = st.lists(st.one_of(st.integers(int(INT64.min), int(INT64.max)), EXTREMES), max_size=300)


def begin(tmp_path: Path, plan: dict[str, Any] = PLAN, new: bool = False) -> Store:
    return Store.resume_or_begin(tmp_path / "study", plan, new=new)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return begin(tmp_path)


@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), VALUES, min_size=1, max_size=2))
def test_samples_round_trip_exactly(columns: dict[str, list[int]]) -> None:
    shortest = min(map(len, columns.values()))
    arrays = {name: np.array(v[:shortest], dtype=np.int64) for name, v in columns.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.parquet"
        write_samples(path, "b01-p01", 2, arrays)
        table = parquet.read_table(path)
    assert table.column_names == ["trial", "attempt", *arrays]
    assert table.to_pydict()["trial"] == ["b01-p01"] * shortest
    for name, values in {"attempt": [2] * shortest, **arrays}.items():
        assert np.array_equal(table[name].to_numpy(), values)


def test_json_keeps_numbers_of_numpy_and_refuses_what_is_no_data(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"n": np.int64(3), "x": np.float64(0.5)})
    with pytest.raises(AttributeError):
        write_json(path, {"n": object()})
    assert json.loads(path.read_text()) == {"format": 2, "n": 3, "x": 0.5}


def test_the_same_plan_resumes_and_another_or_a_packed_one_is_refused(
    store: Store, tmp_path: Path
) -> None:
    assert begin(tmp_path).path == store.path
    other = PLAN | {"identity": {"settings": {"messages": 4}}}
    with pytest.raises(PlanMismatch, match=r"settings\.messages: 3 -> 4"):
        begin(tmp_path, other)
    new, again = begin(tmp_path, other, True).path, begin(tmp_path, other, True).path
    found = sorted(path.parent for path in tmp_path.glob("study/*/plan.json"))
    assert found == [store.path, new, again] and begin(tmp_path, other).path == again
    (store.path / "plan.json").write_text('{"format": 1}')  # only the newest one matters
    (again / "trials.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match="packed campaign cannot be continued"):
        begin(tmp_path, other)


def files(store: Store) -> dict[str, bytes]:
    paths = [path for path in store.path.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(store.path)): path.read_bytes() for path in paths}


def test_torn_writes_are_swept_and_whole_trials_stay(store: Store) -> None:
    store.add({"rows": [ROW]}, RTT, {"tool.out": "x"})
    before = files(store)
    torn = [".attempt/tool.out", ".attempt/.trial.json.tmp", ".sessions.json.tmp"]
    torn += ["samples.parquet/b01-p02-a1.parquet", "samples.parquet/.b01-p03-a1.parquet.tmp"]
    (store.path / ".attempt").mkdir()
    for name in torn:
        (store.path / name).write_bytes(b"PAR1")
    assert store.attempts() == [ROW]
    with store.locked():
        assert files(store) == before
    assert [path.name for path in (store.path / "trials").iterdir()] == ["b01-p01-a1"]


@pytest.mark.parametrize(("new", "count"), [(False, 1), (True, 8)])
def test_a_campaign_is_begun_by_several_at_once(tmp_path: Path, new: bool, count: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda _: begin(tmp_path, new=new).path, range(8)))
    assert len(paths) == len(list(tmp_path.glob("study/*/plan.json"))) == count


def test_a_campaign_is_measured_by_one_process(store: Store, tmp_path: Path) -> None:
    part, other = store.path / ".attempt", begin(tmp_path)
    with store.locked():
        part.mkdir()
        with pytest.raises(UsageError, match="another process measures") as caught, other.locked():
            pass
        assert caught.value.why == f"process {os.getpid()} on {platform.node()}"
        assert part.exists()
    with other.locked():
        assert not part.exists()


@pytest.mark.parametrize("step", range(13))
def test_a_trial_appears_complete_or_not_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Die at each flush to the disk in turn; what is then read is nothing or everything."""
    calls = iter(range(1000))

    def dying(handle: int) -> None:
        if next(calls) == step:
            raise KeyboardInterrupt

    logs = {"tool.out": "x", "server.log": "y"}
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(runner.os, "fsync", dying)
        store.add({"rows": [ROW]}, RTT, logs)
    whole = bool(store.attempts())
    with store.locked():
        assert bool(files(store).keys() - {"plan.json"}) == whole
    if not whole:
        store.add({"rows": [ROW]}, RTT, logs)
    assert sorted(files(store)) == [
        *("plan.json", "samples.parquet/b01-p01-a1.parquet"),
        *(f"trials/b01-p01-a1/{name}" for name in ("server.log", "tool.out", "trial.json")),
    ]
    assert load(store.path).samples("rtt_ns")["rtt_ns"].tolist() == [1, 2]


def test_attempts_are_in_order_beyond_nine(store: Store) -> None:
    for attempt in range(1, 12):
        store.add({"rows": [{**ROW, "attempt": attempt}]}, {}, {})
    assert [row["attempt"] for row in store.attempts()] == list(range(1, 12))


def test_a_boot_is_a_session(store: Store) -> None:
    boots = ["boot a", "boot a", "boot b", "boot a"]  # it was started again in between
    assert [store.session({"n": boot}, boot) for boot in boots] == [1, 1, 2, 3]
    sessions = load(store.path).sessions
    found = [(one["session"], one["facts"]["n"]) for one in sessions]
    assert found == [(1, "boot a"), (2, "boot b"), (3, "boot a")]
