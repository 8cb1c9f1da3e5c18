"""Writing a campaign: complete or not at all, and what was measured comes back to the bit."""

from __future__ import annotations

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
from labkit.campaign.store import Store, write_json, write_samples
from labkit.dataset import campaigns, read_json
from labkit.errors import PlanMismatch, UsageError

PLAN: dict[str, Any] = {"identity": {"settings": {"messages": 3}}, "factors": {}}
RECORD = {"trial": "b01-p01", "attempt": 1, "status": "ok"}
INT64 = np.iinfo(np.int64)
EXTREMES = st.sampled_from([int(INT64.min), int(INT64.max), 0, -1, 1])
VALUES = st.lists(st.one_of(st.integers(int(INT64.min), int(INT64.max)), EXTREMES), max_size=300)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.resume_or_begin(tmp_path / "study", PLAN, new=False)


@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), VALUES, min_size=1, max_size=2))
def test_samples_round_trip_exactly(columns: dict[str, list[int]]) -> None:
    shortest = min(map(len, columns.values()))
    arrays = {name: np.array(v[:shortest], dtype=np.int64) for name, v in columns.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.parquet"
        write_samples(path, arrays)
        table = parquet.read_table(path)
    assert table.column_names == list(arrays)
    for name, values in arrays.items():
        found = table[name].to_numpy()
        assert found.dtype == np.int64 and np.array_equal(found, values)


@pytest.mark.parametrize("values", [[1.5], [float("nan")], ["1"], [2**63]])
def test_samples_that_are_no_integers_are_refused(tmp_path: Path, values: list[Any]) -> None:
    with pytest.raises(TypeError, match="safe"):
        write_samples(tmp_path / "samples.parquet", {"rtt_ns": np.array(values)})


def test_samples_are_packed(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(30_000, 500, 100_000).astype(np.int64)
    write_samples(tmp_path / "x.parquet", {"rtt_ns": values})
    assert (tmp_path / "x.parquet").stat().st_size < values.nbytes / 4


def test_json_keeps_numbers_of_numpy_and_refuses_what_is_no_data(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"n": np.int64(3), "x": np.float64(0.5)})
    assert read_json(path) == {"format": 1, "n": 3, "x": 0.5}
    with pytest.raises(TypeError):
        write_json(path, {"n": object()})
    assert read_json(path)["n"] == 3  # what was there is there


def test_the_same_plan_resumes_and_another_is_refused(store: Store, tmp_path: Path) -> None:
    assert Store.resume_or_begin(tmp_path / "study", PLAN, new=False).path == store.path
    other = PLAN | {"identity": {"settings": {"messages": 4}}}
    with pytest.raises(PlanMismatch, match=r"settings\.messages: 3 -> 4"):
        Store.resume_or_begin(tmp_path / "study", other, new=False)
    new = Store.resume_or_begin(tmp_path / "study", other, new=True)
    again = Store.resume_or_begin(tmp_path / "study", other, new=True)
    assert campaigns(tmp_path / "study") == [store.path, new.path, again.path]


def test_torn_writes_are_swept_and_whole_trials_stay(store: Store, tmp_path: Path) -> None:
    whole = store.add(RECORD, {"rtt_ns": np.array([1])}, {"tool.out": "x"})
    part = store.path / "trials" / ".b01-p02-a1.part"
    part.mkdir()
    (part / "samples.parquet").write_bytes(b"PAR1")
    (part / ".trial.json.tmp").write_text("{")
    (store.path / ".plan.json.tmp").write_text("{")
    (store.path / "sessions").mkdir()
    (store.path / "sessions" / ".01.json.tmp").write_text("{")
    assert store.attempts() == {"b01-p01": ["ok"]}
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    with Store.resume_or_begin(tmp_path / "study", PLAN, new=False).held():
        pass
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before
    assert [path.name for path in (store.path / "trials").iterdir()] == ["b01-p01-a1"]
    assert not [*store.path.rglob(".*.tmp"), *store.path.rglob(".*.part")]


def test_a_campaign_whose_plan_was_never_written_is_swept(store: Store, tmp_path: Path) -> None:
    torn = tmp_path / "study" / "20990101-000000-abcdef"
    torn.mkdir()
    (torn / ".plan.json.tmp").write_text("{")
    assert Store.resume_or_begin(tmp_path / "study", PLAN, new=False).path == store.path
    assert campaigns(tmp_path / "study") == [store.path] and not torn.exists()


@pytest.mark.parametrize("new", [False, True])
def test_a_campaign_is_begun_by_several_at_once(tmp_path: Path, new: bool) -> None:
    def begin(number: int) -> Path:
        return Store.resume_or_begin(tmp_path / "study", PLAN, new=new).path

    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(begin, range(8)))
    assert paths == set(campaigns(tmp_path / "study")) and len(paths) == (8 if new else 1)


def test_a_campaign_is_measured_by_one_process(store: Store, tmp_path: Path) -> None:
    with store.held():
        part = store.path / "trials" / ".b01-p01-a1.part"
        part.mkdir(parents=True)
        other = Store.resume_or_begin(tmp_path / "study", PLAN, new=False)
        with pytest.raises(UsageError, match="another process measures") as caught, other.held():
            pass
        assert caught.value.why == f"process {os.getpid()} on {platform.node()}"
        assert part.exists()
    with other.held():
        assert not part.exists()


@pytest.mark.parametrize("step", range(8))
def test_a_trial_appears_complete_or_not_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Die at each flush to the disk in turn; what is then there is nothing or everything."""
    calls = iter(range(1000))

    def dying(handle: int) -> None:
        if next(calls) == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(store_module.os, "fsync", dying)
    died = False
    try:
        store.add(RECORD, {"rtt_ns": np.array([1, 2])}, {"tool.out": "x", "server.log": "y"})
    except KeyboardInterrupt:
        died = True
    monkeypatch.setattr(store_module.os, "fsync", os.fsync)
    visible = [path for path in (store.path / "trials").iterdir() if path.name[0] != "."]
    for path in visible:
        names = sorted(one.name for one in path.iterdir())
        assert names == ["samples.parquet", "server.log", "tool.out", "trial.json"]
        assert json.loads((path / "trial.json").read_text())["trial"] == "b01-p01"
    assert died == (step <= 6)
    assert bool(visible) == (step >= 6)
    store.sweep()
    if not visible:
        store.add(RECORD, {"rtt_ns": np.array([1, 2])}, {})
    assert store.attempts() == {"b01-p01": ["ok"]}


def test_an_attempt_is_never_overwritten(store: Store) -> None:
    store.add(RECORD, {}, {"tool.out": "first"})
    with pytest.raises(OSError):
        store.add(RECORD, {}, {"tool.out": "second"})
    assert (store.path / "trials" / "b01-p01-a1" / "tool.out").read_text() == "first"


def test_attempts_are_in_order_beyond_nine(store: Store) -> None:
    for attempt in range(1, 12):
        store.add(RECORD | {"attempt": attempt, "status": f"status {attempt}"}, {}, {})
    assert store.attempts() == {"b01-p01": [f"status {number}" for number in range(1, 12)]}
    assert store.last_attempt("b01-p01") == 11


def test_a_packed_campaign_is_not_continued(store: Store, tmp_path: Path) -> None:
    (store.path / "trials.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match="packed campaign cannot be continued"):
        Store.resume_or_begin(tmp_path / "study", PLAN, new=False)
    assert Store.resume_or_begin(tmp_path / "study", PLAN, new=True).path != store.path


def test_sessions_are_numbered_beyond_two_digits(store: Store) -> None:
    for number in (8, 99, 100):
        write_json(store.path / "sessions" / f"{number:02d}.json", {"boot": f"boot {number}"})
    assert store.session({}, "boot 100") == 100
    assert store.session({}, "boot a") == 101


def test_a_boot_is_a_session(store: Store) -> None:
    assert [store.session({"n": 1}, "boot a") for _ in range(2)] == [1, 1]
    assert store.session({"n": 2}, "boot b") == 2
    assert store.session({"n": 3}, "boot a") == 3  # the machine was started again in between
    folder = store.path / "sessions"
    assert sorted(path.name for path in folder.iterdir()) == ["01.json", "02.json", "03.json"]
    assert read_json(folder / "01.json")["facts"] == {"n": 1}
