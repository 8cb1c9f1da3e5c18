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

from labkit.campaign import store as store_module
from labkit.campaign.store import Store, newest, write_json, write_samples
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


def plans(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/plan.json"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.resume_or_begin(tmp_path / "study", PLAN, new=False)


@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), VALUES, min_size=1, max_size=2))
def test_samples_round_trip_exactly(columns: dict[str, list[int]]) -> None:
    shortest = min(map(len, columns.values()))
    arrays = {name: np.array(v[:shortest], dtype=np.int64) for name, v in columns.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.parquet"
        write_samples(path, "b01-p01", 2, arrays)
        table = parquet.read_table(path)
    assert table.column_names == ["trial", "attempt", *arrays]
    assert set(table["trial"].to_pylist()) <= {"b01-p01"}
    assert set(table["attempt"].to_pylist()) <= {2}
    for name, values in arrays.items():
        found = table[name].to_numpy()
        assert found.dtype == np.int64 and np.array_equal(found, values)


def test_json_keeps_numbers_of_numpy_and_refuses_what_is_no_data(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"n": np.int64(3), "x": np.float64(0.5)})
    assert json.loads(path.read_text()) == {"format": 2, "n": 3, "x": 0.5}
    with pytest.raises(AttributeError):
        write_json(path, {"n": object()})
    assert json.loads(path.read_text())["n"] == 3  # what was there is there


def test_the_same_plan_resumes_and_another_is_refused(store: Store, tmp_path: Path) -> None:
    assert Store.resume_or_begin(tmp_path / "study", PLAN, new=False).path == store.path
    other = PLAN | {"identity": {"settings": {"messages": 4}}}
    with pytest.raises(PlanMismatch, match=r"settings\.messages: 3 -> 4"):
        Store.resume_or_begin(tmp_path / "study", other, new=False)
    new = Store.resume_or_begin(tmp_path / "study", other, new=True)
    again = Store.resume_or_begin(tmp_path / "study", other, new=True)
    assert plans(tmp_path / "study") == [store.path, new.path, again.path]
    assert newest(tmp_path / "study") == again.path


def files(store: Store) -> dict[str, bytes]:
    paths = [path for path in store.path.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(store.path)): path.read_bytes() for path in paths}


def test_torn_writes_are_swept_and_whole_trials_stay(store: Store, tmp_path: Path) -> None:
    store.add({"rows": [ROW]}, RTT, {"tool.out": "x"})
    before = files(store)
    torn = store.path / ".attempt"
    torn.mkdir()
    (torn / "tool.out").write_text("x")
    (torn / ".trial.json.tmp").write_text("{")
    (store.path / "samples.parquet" / "b01-p02-a1.parquet").write_bytes(b"PAR1")
    (store.path / "samples.parquet" / ".b01-p03-a1.parquet.tmp").write_bytes(b"PAR1")
    (store.path / ".sessions.json.tmp").write_text("{")
    assert store.attempts() == [ROW]
    with Store.resume_or_begin(tmp_path / "study", PLAN, new=False).locked():
        pass
    assert files(store) == before
    assert [path.name for path in (store.path / "trials").iterdir()] == ["b01-p01-a1"]


@pytest.mark.parametrize("new", [False, True])
def test_a_campaign_is_begun_by_several_at_once(tmp_path: Path, new: bool) -> None:
    def begin(number: int) -> Path:
        return Store.resume_or_begin(tmp_path / "study", PLAN, new=new).path

    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(begin, range(8)))
    assert paths == set(plans(tmp_path / "study")) and len(paths) == (8 if new else 1)


def test_a_campaign_is_measured_by_one_process(store: Store, tmp_path: Path) -> None:
    with store.locked():
        part = store.path / ".attempt"
        part.mkdir()
        other = Store.resume_or_begin(tmp_path / "study", PLAN, new=False)
        with pytest.raises(UsageError, match="another process measures") as caught, other.locked():
            pass
        assert caught.value.why == f"process {os.getpid()} on {platform.node()}"
        assert part.exists()
    with other.locked():
        assert not part.exists()


@pytest.mark.parametrize("step", range(12))
def test_a_trial_appears_complete_or_not_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Die at each flush to the disk in turn; what is then read is nothing or everything."""
    calls = iter(range(1000))

    def dying(handle: int) -> None:
        if next(calls) == step:
            raise KeyboardInterrupt

    logs = {"tool.out": "x", "server.log": "y"}
    monkeypatch.setattr(store_module.os, "fsync", dying)
    with contextlib.suppress(KeyboardInterrupt):
        store.add({"rows": [ROW]}, RTT, logs)
    monkeypatch.setattr(store_module.os, "fsync", os.fsync)
    whole = bool(store.attempts())
    with store.locked():
        pass
    assert bool(files(store).keys() - {"plan.json"}) == whole
    if not whole:
        store.add({"rows": [ROW]}, RTT, logs)
    names = ["server.log", "tool.out", "trial.json"]
    assert sorted(files(store)) == [
        *("plan.json", "samples.parquet/b01-p01-a1.parquet"),
        *(f"trials/b01-p01-a1/{name}" for name in names),
    ]
    assert load(store.path).samples("rtt_ns")["rtt_ns"].tolist() == [1, 2]


def test_attempts_are_in_order_beyond_nine(store: Store) -> None:
    for attempt in range(1, 12):
        store.add({"rows": [{**ROW, "attempt": attempt}]}, {}, {})
    assert [row["attempt"] for row in store.attempts()] == list(range(1, 12))


def test_a_packed_campaign_is_not_continued(store: Store, tmp_path: Path) -> None:
    (store.path / "trials.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match="packed campaign cannot be continued"):
        Store.resume_or_begin(tmp_path / "study", PLAN, new=False)
    assert Store.resume_or_begin(tmp_path / "study", PLAN, new=True).path != store.path


def test_a_boot_is_a_session(store: Store) -> None:
    assert [store.session({"n": 1}, "boot a") for _ in range(2)] == [1, 1]
    assert store.session({"n": 2}, "boot b") == 2
    assert store.session({"n": 3}, "boot a") == 3  # the machine was started again in between
    sessions = load(store.path).sessions
    assert [(one["session"], one["facts"]["n"]) for one in sessions] == [(1, 1), (2, 2), (3, 3)]
