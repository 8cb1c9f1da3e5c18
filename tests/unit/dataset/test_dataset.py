"""Datasets on disk: tidy frames, and errors that name a damaged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_datasets import edit, record, write_campaign

import labkit
from labkit.campaign.store import Store, write_json
from labkit.dataset import FORMAT, Dataset, campaigns, load, read_json
from labkit.dataset.files import campaigns_within
from labkit.dataset.package import pack
from labkit.errors import DatasetError
from labkit.paths import project
from labkit.placement import CPU_SLOW, CPUS_APART

PLAN: dict[str, Any] = {
    "identity": {"settings": {"messages": 3}},
    "factors": {"placement": ["bare clean", "docker bridge"], "wait": ["block"]},
    "rig": {"name": "virtual", "kind": "virtual"},
}


FAILED = {"status": "failed", "n_samples": 0, "metrics": {}, "error": {"what": "it broke"}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.resume_or_begin(tmp_path / "study", PLAN, new=False)


def test_campaigns_in_folders_of_profiles_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = ["quick/echo/20260101", "paper/echo/20260201", "decide/echo/20260102"]
    for name in names:
        write_campaign(tmp_path / name, blocks=1)
    found = [path.name for path in campaigns_within(tmp_path)]
    assert found == ["20260101", "20260102", "20260201"]


def add(store: Store, *, samples: tuple[int, ...] = (1, 2, 3), **more: Any) -> Path:
    found = record(**more)
    columns = {"rtt_ns": np.array(samples, dtype=np.int64)} if found["status"] == "ok" else {}
    return store.add(found, columns, {"tool.out": "text\n", "tool.err": ""})


def test_attempts_are_rows_and_samples_have_their_trial(store: Store) -> None:
    add(store, position=1, **FAILED)
    add(store, position=1, attempt=2)
    add(store, position=2, replicate=2, samples=(7,), n_samples=1, flags=["short", "lossy"])
    found = load(store.path)
    assert found.trials["status"].tolist() == ["failed", "ok", "ok"]
    assert found.trials["problems"].tolist() == ["it broke", "", ""]
    assert found.trials["flags"].tolist() == ["", "", "short; lossy"]
    assert found.ok["trial"].tolist() == ["b01-p01", "b01-p02"]
    samples = found.samples()
    assert samples.columns.tolist() == [
        "trial",
        "block",
        "placement",
        "wait",
        "replicate",
        "rtt_ns",
    ]
    assert samples["rtt_ns"].tolist() == [1, 2, 3, 7] and samples["rtt_ns"].dtype == np.int64
    assert samples["replicate"].tolist() == [1, 1, 1, 2]
    assert isinstance(samples["placement"].dtype, pd.CategoricalDtype)
    assert found.rig["name"] == "virtual" and found.facts == {}


def test_trials_that_began_with_the_cpus_apart_are_flagged_once_a_lower_time_is_read(
    store: Store,
) -> None:
    times = [(200.0, 1.0, {}), (80.0, 1.0, {}), (200.0, 2.5, FAILED), (190.0, 1.0, {})]
    for position, (ns, ratio, more) in enumerate(times, 1):
        line = {"cache_line_ns": ns, "cache_line_ratio": ratio}
        add(store, position=position, mechanisms=line, flags=["x"] * (position == 4), **more)
    found = load(store.path)
    assert found.trials["flags"].tolist() == [CPUS_APART, "", "", f"x; {CPUS_APART}"]
    part = found.part(lambda one: one["position"] != 2)
    assert part.trials["flags"].tolist() == [CPUS_APART, "", f"x; {CPUS_APART}"]


def test_trials_before_the_least_time_of_the_reference_are_flagged(store: Store) -> None:
    for position, ns in enumerate((16.0, 10.0, 12.0), 1):
        add(store, position=position, mechanisms={"reference_ns": ns})
    add(store, position=4)
    found = load(store.path)
    assert found.trials["flags"].tolist() == [CPU_SLOW, "", "", ""]
    part = found.part(lambda one: one["position"] == 1)
    assert part.trials["flags"].tolist() == [CPU_SLOW]


def test_a_sample_takes_its_value_and_a_few_bytes(store: Store) -> None:
    names = ["docker bridge", "bare clean"]
    for position in range(1, 5):
        levels = {"placement": names[position % 2], "wait": "block"}
        values = tuple(range(position, position + 5_000))
        add(store, position=position, levels=levels, samples=values, n_samples=5_000)
    found = load(store.path).samples()
    assert found.memory_usage(index=False, deep=False).sum() / len(found) < 8 + 10
    assert (found["block"].dtype, found["replicate"].dtype) == (np.int16, np.int16)
    assert list(found["placement"].cat.categories) == PLAN["factors"]["placement"]
    assert list(found["trial"].cat.categories) == [f"b01-p0{number}" for number in range(1, 5)]
    first = found.drop_duplicates("trial")
    assert first["rtt_ns"].tolist() == [1, 2, 3, 4]
    assert first["placement"].tolist() == [names[1], names[0], names[1], names[0]]


def test_series_have_a_row_for_each_trial(store: Store) -> None:
    names = ["docker bridge", "bare clean"]
    for position, n in enumerate((5, 3, 4), 1):
        levels = {"placement": names[position % 2], "wait": "block"}
        values = tuple(range(10 * position, 10 * position - n, -1))  # not in the order of size
        add(
            store, position=position, levels=levels, samples=values, n_samples=n, replicate=position
        )
    add(store, position=4, **FAILED)
    found = load(store.path)
    series, samples = found.series(), found.samples()
    keys = ["trial", "block", "placement", "wait", "replicate"]
    assert series.columns.tolist() == [*keys, "n", "rtt_ns"] and series["n"].tolist() == [5, 3, 4]
    assert [one.dtype for one in series["rtt_ns"]] == [np.int64] * 3
    long = series.explode("rtt_ns", ignore_index=True).astype({"rtt_ns": "int64"})
    pd.testing.assert_frame_equal(long[samples.columns], samples, check_index_type=False)
    same = [add(store, block=2, position=p) for p in (1, 2)]  # trials of equal length stay arrays
    assert len(load(same[0].parents[1]).series(["rtt_ns"])["rtt_ns"].iloc[-1]) == 3
    largest = found.series("rtt_ns", reduce=max)
    pd.testing.assert_frame_equal(largest.drop(columns="rtt_ns"), series.drop(columns="rtt_ns"))
    assert largest["rtt_ns"].tolist() == [max(one) for one in series["rtt_ns"]] == [10, 20, 30]
    part = series[series["placement"] == "bare clean"]
    assert [one.tolist()[0] for one in part["rtt_ns"]] == [10, 30]


def test_columns_that_only_some_trials_have_are_left_out(store: Store) -> None:
    add(store)
    path = add(store, position=2) / "samples.parquet"
    pd.DataFrame({"rtt_ns": [4, 5, 6], "residence_ns": [1, 2, 3]}).to_parquet(path, index=False)
    edit(path.with_name("trial.json"))
    found = load(store.path)
    assert found.samples().columns.tolist()[-1] == "rtt_ns"
    assert found.samples()["rtt_ns"].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(DatasetError, match="residence_ns"):
        found.series(["residence_ns"])


def test_missing_samples_are_an_error(store: Store) -> None:
    path = add(store) / "samples.parquet"
    pd.DataFrame({"rtt_ns": pd.array([1, None, 3], dtype="Int64")}).to_parquet(path)
    edit(path.with_name("trial.json"))
    with pytest.raises(DatasetError, match="missing in a trial") as caught:
        load(store.path).samples()
    assert caught.value.where == str(path)


def test_rows_are_in_the_order_of_the_plan(store: Store) -> None:
    places = [(9, 1), (10, 2), (10, 100), (99, 1), (100, 1), (100, 11), (1000, 1)]
    for block, position in reversed(places):
        add(store, block=block, position=position)
    for attempt in range(2, 12):
        add(store, block=9, attempt=attempt, **FAILED)
    found = load(store.path).trials
    wanted = [(9, 1, attempt) for attempt in range(1, 12)]
    wanted += [(*place, 1) for place in places[1:]]
    assert list(zip(found.block, found.position, found.attempt, strict=True)) == wanted


def test_an_empty_campaign_has_empty_frames(store: Store) -> None:
    found = load(store.path)
    assert len(found.trials) == 0 == len(found.ok)
    assert found.samples().columns.tolist() == ["trial", "block", "placement", "wait", "replicate"]
    assert found.samples(["rtt_ns"]).columns.tolist()[-1] == "rtt_ns"
    assert found.series(["rtt_ns"]).columns.tolist()[-2:] == ["n", "rtt_ns"]
    assert len(found.samples()) == 0 == len(found.series())


def test_the_newest_campaign_is_loaded(store: Store, tmp_path: Path) -> None:
    add(store)
    second = Store.resume_or_begin(tmp_path / "study", PLAN, new=True)
    assert campaigns(tmp_path / "study") == [store.path, second.path]
    assert load(tmp_path / "study").path == second.path
    assert len(load(store.path).records) == 1 and len(load(second.path).records) == 0


def test_a_folder_without_a_campaign_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no campaign here") as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value) and "labkit run" in caught.value.remedy


@pytest.mark.parametrize("keep", [0, 1, 40, -3])
def test_a_truncated_trial_is_an_error_that_names_the_file(store: Store, keep: int) -> None:
    path = add(store) / "trial.json"
    path.write_text(path.read_text()[:keep])
    for read in (lambda: load(store.path).trials, store.attempts):
        with pytest.raises(DatasetError, match="damaged") as caught:
            read()
        assert caught.value.where == str(path)


@pytest.mark.parametrize("keep", [0, 10, -1, -20])
def test_truncated_samples_are_an_error_that_names_the_file(store: Store, keep: int) -> None:
    path = add(store) / "samples.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    for read in (load(store.path).samples, load(store.path).series):
        with pytest.raises(DatasetError, match="damaged") as caught:
            read()
        assert caught.value.where == str(path)
    assert len(load(store.path).trials) == 1  # what needs no samples still works


def test_lost_samples_are_an_error_that_names_the_file(store: Store) -> None:
    path = add(store) / "samples.parquet"
    path.unlink()
    with pytest.raises(DatasetError, match="lost its samples") as caught:
        load(store.path).samples()
    assert caught.value.where == str(path)


def test_a_column_that_was_not_measured_is_an_error(store: Store) -> None:
    add(store)
    for columns in (["nosuch"], "nosuch"):
        with pytest.raises(DatasetError, match="'nosuch'") as caught:
            load(store.path).samples(columns)
        assert "damaged" not in str(caught.value) and "rtt_ns" in str(caught.value)


def test_a_single_column_is_named_by_a_string(store: Store) -> None:
    add(store)
    data = load(store.path)
    pd.testing.assert_frame_equal(data.samples("rtt_ns"), data.samples(["rtt_ns"]))
    assert data.series("rtt_ns").columns.tolist()[-1] == "rtt_ns"


@pytest.mark.parametrize("file", ["plan.json", "trials/b01-p01-a1/trial.json"])
def test_a_newer_format_is_an_error(store: Store, tmp_path: Path, file: str) -> None:
    add(store)
    path = store.path / file
    path.write_text(json.dumps(read_json(path) | {"format": FORMAT + 1}))
    with pytest.raises(DatasetError, match=f"format {FORMAT + 1} is newer") as caught:
        _ = load(store.path).trials
    assert caught.value.where == str(path) and caught.value.remedy == "update labkit"
    with pytest.raises(DatasetError, match="newer"):
        Store.resume_or_begin(tmp_path / "study", PLAN, new=False).attempts()


@pytest.mark.parametrize("text", ["{}", "[]", '"format"', '{"format": "1"}', '{"format": true}'])
def test_other_json_files_are_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(DatasetError, match="not a file of a labkit dataset"):
        read_json(path)


def test_a_plan_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(DatasetError, match="damaged"):
        load(tmp_path)


def test_sessions_are_read_in_order(store: Store) -> None:
    for number in (1, 2, 10):
        facts = {"sut": {"n": number}}
        write_json(store.path / "sessions" / f"{number:02d}.json", {"facts": facts})
    write_json(store.path / "sessions" / "100.json", {"facts": {"sut": {"n": 100}}})
    found = [one["facts"]["sut"]["n"] for one in Dataset(store.path).sessions]
    assert found == [1, 2, 10, 100]
    assert Dataset(store.path).facts == {"sut": {"n": 100}}


def test_a_trial_of_a_pair_has_a_row_for_each_side(store: Store) -> None:
    other = {"levels": {"placement": "docker bridge"}, "metrics": {"rtt_ns_median": 9.0}}
    add(store, position=1, also=[other])
    add(store, position=2)
    rows = load(store.path).ok.set_index("trial")
    assert list(rows.index) == ["b01-p01", "b01-p01/1", "b01-p02"]
    assert list(rows["placement"]) == ["bare clean", "docker bridge", "bare clean"]
    assert list(rows["rtt_ns_median"]) == [2.0, 9.0, 2.0]
    assert rows["block"].nunique() == 1 and set(rows["wait"]) == {"block"}
    assert len(load(store.path).series()) == 2  # samples belong to the trial, once


def packed(path: Path, folder: Path) -> Dataset:
    """Return the packed form of a campaign."""
    pack(path, folder / "packed")
    return load(folder / "packed")


def assert_same(first: Dataset, second: Dataset) -> None:
    """Hold two forms of a campaign against each other, to the bit."""
    assert first.plan == second.plan and first.sessions == second.sessions
    assert first.records == second.records
    assert first.sampled == second.sampled
    for name in ("trials", "ok"):
        pd.testing.assert_frame_equal(getattr(first, name), getattr(second, name), check_exact=True)
    pd.testing.assert_frame_equal(first.samples(), second.samples(), check_exact=True)
    pd.testing.assert_frame_equal(first.series(), second.series(), check_exact=True)
    for one in first.records:
        key = one["trial"], one["attempt"]
        assert first.raw(*key) == second.raw(*key)


def test_both_forms_have_equal_frames(store: Store, tmp_path: Path) -> None:
    error = {"what": "it broke", "evidence": {"n": [1, None, 0.1, "\udcff"], "x": float("inf")}}
    add(store, position=1, **FAILED | {"error": error})
    add(store, position=1, attempt=2, also=[{"levels": {"wait": "spin"}, "metrics": {"x": 1}}])
    add(store, position=2, seconds=2, window_seconds=None, flags=["short"])
    columns = {"residence_ns": [3, 1, 2], "start_ns": [1, 2, 3], "rtt_ns": [4, 5, -6]}
    values = {name: np.array(one, dtype=np.int64) for name, one in columns.items()}
    store.add(record(3), values, {"tool.out": "", "server.log": "ü\n"})
    store.add(record(10), {"rtt_ns": np.array([2**62, -(2**62), 0])}, {})
    write_json(store.path / "sessions" / "01.json", {"session": 1, "facts": {"sut": {"n": 1}}})
    first, second = load(store.path), packed(store.path, tmp_path)
    assert_same(first, second)
    assert {type(one["seconds"]) for one in second.records} == {int, float}
    assert second.sampled["b03-p01"] == ("residence_ns", "start_ns", "rtt_ns")
    assert second.raw("b03-p01") == {"server.log": "ü\n"} and second.raw("b10-p01") == {}
    part = second.part(lambda one: one["trial"] == "b03-p01")
    assert part.samples(["start_ns"])["start_ns"].tolist() == [1, 2, 3]
    for name in ("trials.parquet", "samples.parquet", "raw.tar.xz", "sessions.json"):
        assert (second.path / name).is_file()


@pytest.mark.parametrize("study", ["application-networks", "interference"])
def test_the_reference_packed_again_is_equal(study: str, tmp_path: Path) -> None:
    data = load(project("data/reference") / study)
    again = packed(data.path, tmp_path)
    assert again.records == data.records
    pd.testing.assert_frame_equal(again.samples(), data.samples(), check_exact=True)


@pytest.mark.parametrize("place", [0.05, 0.5, 0.9])
def test_a_damaged_packed_trial_leaves_the_others(
    store: Store, tmp_path: Path, place: float
) -> None:
    for block in range(1, 21):
        values = tuple(np.random.default_rng(block).integers(0, 2**40, 500).tolist())
        add(store, block=block, samples=values, n_samples=500)
    data = packed(store.path, tmp_path)
    path = data.path / "samples.parquet"
    content = bytearray(path.read_bytes())
    content[int(len(content) * 0.8 * place)] ^= 0xFF
    path.write_bytes(content)
    whole, failed = [], []
    for one in data.records:
        part = data.part(lambda other, name=one["trial"]: other["trial"] == name)
        try:
            part.samples()
        except DatasetError as error:
            assert error.where == f"{path}, {one['directory']}" and "damaged" in error.what
            failed.append(one["trial"])
        else:
            whole.append(one["trial"])
    assert len(failed) == 1 and len(whole) == 19
    assert len(data.trials) == 20


@pytest.mark.parametrize("keep", [0, 10, 0.5, -1])
@pytest.mark.parametrize("name", ["trials.parquet", "samples.parquet"])
def test_a_truncated_table_is_an_error_that_names_it(
    store: Store, tmp_path: Path, name: str, keep: float
) -> None:
    add(store)
    data = packed(store.path, tmp_path)
    path = data.path / name
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep == 0.5 else int(keep)])
    with pytest.raises(DatasetError, match="damaged") as caught:
        load(data.path).samples()
    assert caught.value.where.startswith(str(path))


def test_a_newer_packed_format_is_an_error(store: Store, tmp_path: Path) -> None:
    add(store)
    data = packed(store.path, tmp_path)
    path = data.path / "sessions.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(DatasetError, match="format 9 is newer"):
        _ = load(data.path).sessions
    path = data.path / "trials.parquet"
    table = parquet.read_table(path)
    parquet.write_table(table.set_column(0, "format", [[FORMAT + 1]]), path)
    with pytest.raises(DatasetError, match=f"format {FORMAT + 1} is newer") as caught:
        _ = load(data.path).trials
    assert caught.value.where == str(path)


def test_the_representation_of_a_dataset(store: Store) -> None:
    add(store)
    add(store, position=2, **FAILED)
    assert repr(load(store.path)).splitlines() == [
        f"Dataset({str(store.path)!r})",
        "  study: unknown",
        "  rig: virtual (virtual)",
        "  trials: 1, 1 blocks, 1 failed attempts",
        "  conditions: 1",
        "    placement: bare clean",
        "    wait: block",
        "  metrics: rtt_ns_median",
        "  samples: rtt_ns",
    ]
    shown = load(store.path)._repr_html_()
    assert "<th>placement</th><td>bare clean</td>" in shown
    (store.path / "plan.json").write_text("{")
    assert "damaged" in repr(Dataset(store.path))
    assert "damaged" in Dataset(store.path)._repr_html_()
    study = load(project("data/reference/cpu-quota"))
    assert "trials: 864 of 864 planned, 60 blocks, 31 failed" in repr(study)


def test_one_column_may_be_a_string_and_near_names_are_suggested(store: Store) -> None:
    add(store)
    assert load(store.path).samples("rtt_ns")["rtt_ns"].tolist() == [1, 2, 3]
    assert load(store.path).series("rtt_ns")["n"].tolist() == [3]
    with pytest.raises(DatasetError, match="'rtt_n' was not measured") as caught:
        load(store.path).samples("rtt_n")
    assert "did you mean 'rtt_ns'?" in caught.value.remedy


def test_a_folder_of_several_studies_is_an_error(tmp_path: Path) -> None:
    write_campaign(tmp_path / "data" / "echo", blocks=1)
    write_campaign(tmp_path / "data" / "other", study="other", blocks=1)
    with pytest.raises(DatasetError, match="several studies") as caught:
        load(tmp_path / "data")
    assert f"{tmp_path}/data/echo, {tmp_path}/data/other" in caught.value.remedy
    (tmp_path / "deep").mkdir()
    (tmp_path / "data").rename(tmp_path / "deep" / "data")
    with pytest.raises(DatasetError, match="several studies") as caught:
        load(tmp_path / "deep")
    assert caught.value.remedy == f"name one: {tmp_path}/deep/data"


def test_the_output_of_a_trial(store: Store) -> None:
    add(store)
    add(store, position=2)
    assert labkit.load(store.path).raw("b01-p01") == {"tool.out": "text\n"}
    for key in (("b09-p09",), ("b01-p01", 3)):
        with pytest.raises(DatasetError, match="no such trial"):
            load(store.path).raw(*key)


@pytest.mark.parametrize("inside", ["", "echo"])
def test_an_archive_is_an_error(tmp_path: Path, inside: str) -> None:
    path = tmp_path / "quick.tar"
    path.write_bytes(b"")
    with pytest.raises(DatasetError, match="read from a folder") as caught:
        load(path / inside)
    assert caught.value.where == str(path) and f"tar -xf {path}" in caught.value.remedy


@given(data=st.data())
def test_a_flipped_bit_of_a_local_campaign_is_an_error_that_names_its_file(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_campaign(tmp_path_factory.mktemp("flipped") / "echo", blocks=1)
    trial = load(folder).records[0]["trial"]
    path = data.draw(st.sampled_from(sorted(p for p in folder.rglob("*") if p.is_file())))
    content = bytearray(path.read_bytes())
    # The name of the digest is not data: without it the rest is read as it is.
    first = len('{\n "sha256') if path.suffix == ".json" else 0
    at = data.draw(st.integers(first, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        found = load(folder)
        found.samples()
        _ = found.plan, found.sessions, found.records, found.raw(trial)
    assert caught.value.where == str(path)


def test_what_was_written_before_there_were_digests_is_read(store: Store) -> None:
    folder = add(store)
    assert "sha256s" in (folder / "trial.json").read_text()
    edit(folder / "trial.json")
    assert load(store.path).samples()["rtt_ns"].tolist() == [1, 2, 3]
    assert "tool.out" in load(store.path).raw("b01-p01")
