"""Input that cannot be read: the error names the file and a remedy, and the exit code is 1.

``LABKIT_EXAMPLES=5000`` tries that many damaged inputs of each kind.
"""

import math
import shutil

import capture_files
import pandas as pd
import pytest
from damaged import damaged, survives
from hypothesis import given
from hypothesis import strategies as st
from made_up import write

from labkit import Study, compare, load, pcap
from labkit.analysis.package import pack
from labkit.errors import DatasetError, UsageError
from labkit.paths import SHIPPED
from labkit.placement import parse_cpus
from labkit.rig.rigfile import EXAMPLE, read_rigfile


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A campaign of two sizes, whose levels are numbers."""
    folder = tmp_path_factory.mktemp("good")
    values = {"rtt_ns": 1.0}
    write(folder / "raw", {"size": [1, 2]}, lambda *at: values, blocks=2, samples="rtt_ns")
    pack(folder / "raw", folder / "campaign")
    return folder / "campaign"


@pytest.fixture
def folder(good, tmp_path):
    """A copy of it that a test may damage."""
    return shutil.copytree(good, tmp_path / "campaign")


#: A file, and its bytes or how its table changes.
BAD = {
    "truncated": ("plan.json", b'{"format": 2, "stu'),
    "not text": ("plan.json", b"\xff\xfe"),
    "a list": ("plan.json", b"[1, 2]"),
    "format 99": ("plan.json", b'{"format": 99}'),
    "no format": ("plan.json", b"{}"),
    "brackets": ("plan.json", b"[" * 100_000),
    "no study": ("plan.json", b'{"format": 2, "factors": {}}'),
    "no factors": ("plan.json", b'{"format": 2, "study": "x"}'),
    "no sessions": ("sessions.json", b'{"format": 2}'),
    "sessions of format 1": ("sessions.json", b'{"format": 1, "sessions": []}'),
    "damaged trials": ("trials.parquet", b"PAR1" * 9),
    "damaged samples": ("samples.parquet", b"PAR1" * 9),
    "no factor": ("", lambda trials: trials.drop(columns="size")),
    "no block": ("", lambda trials: trials.drop(columns="block")),
    "a level of text": ("", lambda trials: trials.assign(size="x")),
}


@pytest.mark.parametrize("name", BAD)
def test_a_campaign_that_cannot_be_read(name, folder):
    file, content = BAD[name]
    if file:
        (folder / file).write_bytes(content)
    else:
        content(pd.read_parquet(folder / "trials.parquet")).to_parquet(folder / "trials.parquet")
    with pytest.raises(DatasetError) as caught:
        campaign = load(folder)
        repr(campaign), campaign.sessions, campaign.complete_blocks, campaign.samples("rtt_ns")
    assert str(folder / file) in caught.value.where
    assert caught.value.remedy and caught.value.exit_code == 1


@pytest.mark.parametrize("text", ['{"format": 2, "ro', '{"format": 2}'])
def test_a_record_of_a_trial_that_was_cut_off(folder, text):
    (folder / "trials.parquet").unlink()
    record = folder / "trials" / "b01-p01-a1" / "trial.json"
    record.parent.mkdir(parents=True)
    record.write_text(text)
    with pytest.raises(DatasetError) as caught:
        _ = load(folder).trials
    assert caught.value.where == str(record)


def test_a_folder_without_a_campaign_an_archive_and_campaigns_of_several_studies(good, tmp_path):
    with pytest.raises(DatasetError, match="no campaign here"):
        load(tmp_path)
    archive = shutil.make_archive(str(tmp_path / "one"), "tar", good)
    with pytest.raises(DatasetError, match=r"tar -xf .*one\.tar"):
        load(archive)
    for study in ("one", "other"):
        write(tmp_path / "all" / study, {"size": [1]}, lambda *at: {"ns": 1.0}, study=study)
    with pytest.raises(DatasetError, match=r"several studies(.|\n)*all/one, .*all/other"):
        load(tmp_path / "all")


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
        Study("made-up", lambda trial: None, {"at": ["a", "b"]}, margin=margin)


def read_rig(text, folder):
    (folder / "rig.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    return read_rigfile(folder / "rig.toml")


TEXTS = {
    "cpus": ("0-3,8,10-11", lambda text, folder: parse_cpus(text)),
    "rig": ((SHIPPED / EXAMPLE).read_text("utf-8"), read_rig),
}


@pytest.mark.parametrize("name", TEXTS)
@given(data=st.data())
def test_damaged_texts_are_read_or_refused(name, data, tmp_path):
    text, read = TEXTS[name]
    changed = data.draw(damaged(text))
    survives(lambda: read(changed, tmp_path))


@given(data=st.data())
def test_damaged_captures_are_read_or_refused(data):
    packets = [(10**18 + n, capture_files.message(n, 20 + n)) for n in range(3)]
    whole = bytearray(capture_files.pcap(packets))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole)))
        whole[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=8))
    summary = "3 packets captured\n0 packets dropped by kernel\n"
    survives(lambda: pcap.pair(*[pcap.read(bytes(whole), summary).packets] * 2))
