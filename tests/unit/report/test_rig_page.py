"""The rig's page: hosts, CPUs, ladder, noise, and what is not stated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import small_datasets
from small_datasets import write_campaign

from labkit.campaign.store import write_json
from labkit.dataset import load
from labkit.report.html import SUMMARY_MIME, external_resources
from labkit.report.rig_page import LADDER, MeasuredStudy, build_rig, ladders_of, rigs_of
from labkit.report.topology import draw

HOSTS = {
    "generator": {"addresses": ["198.18.0.2"], "cpus": "0", "engine": False},
    "sut": {"addresses": ["198.18.0.3"], "cpus": "1-2", "engine": True},
}
LISTENS = {"collector": {"addresses": [], "cpus": "", "engine": False}}
CPUS = {"softirq": "the sender's", "harness": "0", "generator": "0", "sut": "1-2", "all": "0-2"}
FACTS = {"cpu": {"model": "Small 3", "isolated": ""}, "kernel": {"release": "6.1"}, "engine": None}
BASELINE_LEVELS = ("bare clean", "bare rules", "docker host")


def _campaign(folder: Path, kernel: str = "6.1", hosts: dict[str, Any] | None = None) -> Path:
    """Write a campaign whose rig is described, and whose hosts' facts were kept."""
    write_campaign(folder, study=folder.name, blocks=6)
    plan = json.loads((folder / "plan.json").read_text())
    plan["rig"] |= {"hosts": HOSTS | (hosts or {}), "cpu_map": CPUS, "shared_kernel": True}
    write_json(folder / "plan.json", plan)
    facts = FACTS | {"kernel": {"release": kernel}}
    known = {role: {"stable": facts} for role in plan["rig"]["hosts"]}
    known["sut"] = {"stable": facts | {"engine": {"version": "20.10"}}}
    session = {"session": 1, "boot": "b", "facts": known}
    write_json(folder / "sessions" / "01.json", session)
    return folder


def _page(folder: Path, name: str, summary: dict[str, Any]) -> Path:
    path = folder / f"{name}.html"
    path.write_text(f'<script type="{SUMMARY_MIME}">{json.dumps(summary)}</script>')
    return path


def _measured(folder: Path) -> MeasuredStudy:
    return MeasuredStudy(folder.name, f"{folder.name}.html", {}, load(folder))


def test_studies_of_one_rig_share_it_with_temporary_hosts(tmp_path: Path) -> None:
    names = {"a": {}, "b": LISTENS, "c": {}}
    paths = [_campaign(tmp_path / name, hosts=hosts) for name, hosts in names.items()]
    other = _campaign(tmp_path / "d", kernel="6.6")
    first, second = rigs_of(_measured(path) for path in [*paths, other])
    assert [one.title for one in first.studies] == ["a", "b", "c"]
    assert [one.title for one in second.studies] == ["d"]
    hosts = {one["role"]: one for one in first.hosts()}
    assert list(hosts) == ["generator", "sut", "collector"]
    assert hosts["collector"]["addresses"] == "at the switch, by its mirror"
    assert hosts["collector"]["cpus"] == "0 (harness)"
    assert [one.title for one in hosts["collector"]["studies"]] == ["b"]
    assert hosts["generator"]["studies"] == []
    assert hosts["sut"]["engine"] == "Docker Engine (20.10)"
    assert len(first.machines()) == 1
    assert first.machines()[0][1]["CPUs isolated at boot"] == "none"
    assert first.machines()[0][1]["Clock source"] == "not stated"


def test_the_cpu_map_is_a_grid_with_text_where_cpus_are_not_numbers(tmp_path: Path) -> None:
    (rig,) = rigs_of([_measured(_campaign(tmp_path / "a", hosts=LISTENS))])
    cpus, rows = rig.cpu_map()
    runs = {row["role"]: row["words"] or row["runs"] for row in rows}
    assert cpus == [0, 1, 2]
    assert runs == {
        "generator": [True, False, False],
        "sut": [False, True, True],
        "collector": [True, False, False],
        "softirq": "the sender's",
        "harness": [True, False, False],
        "all": [True, True, True],
    }


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ({"addresses": []}, ("at the switch", "by its mirror", "CPU 0 (harness)")),
        ({"mirrors": ["sut"], "cpus": "3"}, ("at the switch", "mirror of sut", "CPU 3")),
        ({"addresses": ["198.18.0.9"], "cpus": "3"}, ("198.18.0.9", "CPU 3")),
    ],
)
def test_the_collector_is_drawn_with_what_it_listens_to(
    host: dict[str, Any], words: list[str]
) -> None:
    drawn = draw({"hosts": HOSTS | {"collector": host}, "cpu_map": CPUS})
    assert re.findall(r">([^<>]+)</text>", drawn)[-len(words) - 1 : -1] == list(words)
    assert "no address stated" not in drawn
    assert "no address stated" in draw({"hosts": {"sut": {}}})


def test_the_ladder_has_the_measured_levels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ladders_of(load(write_campaign(tmp_path / "short"))) == []
    monkeypatch.setattr(small_datasets, "PLACEMENTS", BASELINE_LEVELS)
    (ladder,) = ladders_of(load(write_campaign(tmp_path / "long", blocks=6)))
    assert ladder.within == {"wait": "block"}
    rows = ladder.rows
    assert [(row["condition"], row["below"]) for row in rows] == [
        ("bare clean", None),
        ("bare rules", "bare clean"),
        ("docker host", "bare rules"),
    ]
    assert [row["adds"] for row in rows] == [LADDER[name] for name in BASELINE_LEVELS]
    campaign = load(tmp_path / "long")
    assert len(campaign.ok.query(ladder.query)) == len(campaign.ok) == 18
    assert rows[1]["estimate"] == pytest.approx(1.5, rel=0.01)
    assert rows[2]["estimate"] == pytest.approx(1 / 1.5, rel=0.01)
    assert rows[2]["lowest"] == pytest.approx(1, rel=0.01)
    assert rows[0]["level"] == pytest.approx(10.05, rel=0.02)
    (pilot,) = ladders_of(load(write_campaign(tmp_path / "pilot", blocks=1)))
    assert [row["verdict"] for row in pilot.rows] == [None, *["undecided (pilot)"] * 2]
    assert pilot.rows[1]["low"] is None and pilot.image.startswith("data:image/svg+xml,")


def test_a_page_shows_facts_noise_ladder_and_infeasible_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_datasets, "PLACEMENTS", BASELINE_LEVELS)
    infeasible = [{"condition": "x | y", "reason": "no <aufs>"}]
    floors = [{"condition": "bare clean", "sd": 0.05, "low": 0.9, "high": 1.1}]
    summary = {"title": "A study", "infeasible": infeasible, "noise_floor": floors}
    pages = {_page(tmp_path, "10-a", summary): _campaign(tmp_path / "a")}
    counts = {"jha2018": {"not decidable on this rig": 3, "replicated": 1}}
    text = build_rig(pages, tmp_path / "rig.html", ledger=counts).read_text()
    assert external_resources(text) == [] and text.count("<h1>") == 1
    assert re.findall("<th(?![^>]*scope=)[^e>]*>", text) == []
    for words in ("no &lt;aufs&gt;", "5.00 %", "0.900 to 1.10", "Small 3", "198.18.0.3"):
        assert words in text
    assert "<td>0.1.0 <small>measurement version 1</small>" in text
    assert 'href="10-a.html">A study</a>' in text
    assert "source=jha2018&amp;result=not%20decidable%20on%20this%20rig#claims-title" in text
    assert re.search(r'alt="Round trips, [^"]*bare rules over bare clean 1.50 \[', text)


def test_a_page_without_studies_or_facts_says_so(tmp_path: Path) -> None:
    text = build_rig({}, tmp_path / "rig.html").read_text()
    assert "no rig is stated" in text and "Not measured: no campaign" in text
    # A campaign that described no rig at all.
    pages = {_page(tmp_path, "x", {}): write_campaign(tmp_path / "x")}
    bare = build_rig(pages, tmp_path / "rig.html").read_text()
    assert "The topology is not stated" in bare and "The CPU map is not stated" in bare
