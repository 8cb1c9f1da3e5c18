"""Campaigns that cannot be read: the error names the file and a remedy, and the exit code is 1."""

import json
import math
import shutil

import pandas as pd
import pytest
from made_up import write

from labkit import Study, compare, load
from labkit.analysis.package import pack
from labkit.errors import DatasetError, UsageError


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A campaign of two sizes, whose levels are numbers."""
    folder = tmp_path_factory.mktemp("good")
    values = {"rtt_ns": 1.0}
    write(folder / "raw", {"size": [1, 2]}, lambda *at: values, blocks=2, samples="rtt_ns")
    pack(folder / "raw", folder / "campaign")
    return folder / "campaign"


def edited(name, change):
    """Return a function that changes a JSON file of a campaign."""

    def apply(folder):
        content = change(json.loads((folder / name).read_text()))
        (folder / name).write_text(json.dumps(content))

    return apply


def without(name, key):
    return edited(name, lambda content: {k: v for k, v in content.items() if k != key})


def written(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def in_trials(change):
    """Return a function that changes the table of trials."""

    def apply(folder):
        change(pd.read_parquet(folder / "trials.parquet")).to_parquet(folder / "trials.parquet")

    return apply


BAD = {
    "no plan": (lambda folder: (folder / "plan.json").unlink(), ""),
    "nothing": (shutil.rmtree, ""),
    "truncated": (written("plan.json", b'{"format": 2, "stu'), "plan.json"),
    "empty": (written("plan.json", b""), "plan.json"),
    "not text": (written("plan.json", b"\xff\xfe"), "plan.json"),
    "a list": (written("plan.json", b"[1, 2]"), "plan.json"),
    "format 1": (edited("plan.json", lambda plan: plan | {"format": 1}), "plan.json"),
    "format 99": (edited("plan.json", lambda plan: plan | {"format": 99}), "plan.json"),
    "no format": (without("plan.json", "format"), "plan.json"),
    "brackets": (written("plan.json", b"[" * 100_000), "plan.json"),
    "no study": (without("plan.json", "study"), "plan.json"),
    "no factors": (without("plan.json", "factors"), "plan.json"),
    "no order": (without("plan.json", "order"), "plan.json"),
    "no sessions": (without("sessions.json", "sessions"), "sessions.json"),
    "sessions of format 1": (edited("sessions.json", lambda one: {"format": 1}), "sessions.json"),
    "damaged trials": (written("trials.parquet", b"PAR1" * 9), "trials.parquet"),
    "damaged samples": (written("samples.parquet", b"PAR1" * 9), "samples.parquet"),
    "no factor": (in_trials(lambda trials: trials.drop(columns="size")), ""),
    "no block": (in_trials(lambda trials: trials.drop(columns="block")), ""),
    "a level of text": (in_trials(lambda trials: trials.assign(size="x")), ""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_campaign_that_cannot_be_read(name, good, tmp_path):
    change, file = BAD[name]
    folder = tmp_path / "campaign"
    shutil.copytree(good, folder)
    change(folder)
    with pytest.raises(DatasetError) as caught:
        campaign = load(folder)
        repr(campaign), campaign.sessions, campaign.complete_blocks, campaign.samples("rtt_ns")
    assert str(folder / file) in caught.value.where
    assert caught.value.remedy
    assert caught.value.exit_code == 1


def test_a_record_of_a_trial_that_was_cut_off(good, tmp_path):
    folder = tmp_path / "campaign"
    shutil.copytree(good, folder)
    (folder / "trials.parquet").unlink()
    (folder / "trials" / "b01-p01-a1").mkdir(parents=True)
    record = folder / "trials" / "b01-p01-a1" / "trial.json"
    for text in ('{"format": 2, "ro', '{"format": 2}'):
        record.write_text(text)
        with pytest.raises(DatasetError) as caught:
            _ = load(folder).trials
        assert caught.value.where == str(record)


def test_an_archive_and_campaigns_of_several_studies(good, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "one"), "tar", good)
    with pytest.raises(DatasetError, match=r"tar -xf .*one\.tar"):
        load(archive)
    for study in ("one", "other"):
        shutil.copytree(good, tmp_path / "all" / study)
        edited("plan.json", lambda plan, study=study: plan | {"study": study})(
            tmp_path / "all" / study
        )
    with pytest.raises(DatasetError, match="several studies") as caught:
        load(tmp_path / "all")
    assert "all/one" in caught.value.remedy and "all/other" in caught.value.remedy


def test_columns_that_were_not_measured_are_wrong_use(good):
    with pytest.raises(UsageError, match="did you mean 'rtt_ns'"):
        load(good).samples("rtt")
    with pytest.raises(UsageError, match="no column called 'sizes'"):
        load(good).samples("rtt_ns", sizes=1)


@pytest.mark.parametrize("margin", [5, 1, 0, -0.1, math.inf, math.nan])
def test_a_margin_in_per_cent_is_refused(margin):
    frame = pd.DataFrame({"block": [1, 2] * 2, "at": list("aabb"), "ns": [1.0, 1.1, 3.0, 3.1]})
    with pytest.raises(UsageError, match="margin"):
        compare(frame, value="ns", condition="at", baseline="a", margin=margin)
    with pytest.raises(UsageError, match="margin"):
        Study("made-up", print, {"at": ["a", "b"]}, margin=margin)
