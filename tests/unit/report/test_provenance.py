"""Each page and each claim names its dataset and the command that measures it again."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import nbformat
import pytest
from small_datasets import write_campaign

import labkit
from labkit.claims.stated import disagreements, recompute
from labkit.paths import project
from labkit.report.ledger_page import build_ledger
from labkit.report.pages import build_index
from labkit.report.provenance import fingerprint, measure_command, provenance

REFERENCE = "data/reference/affinity-spinning"
CELLS = [
    "from labkit import Page, plots\nfrom labkit.analysis.compare import factor_effect",
    "page = Page(data, value='rtt_ns')\npage.what_was_run()",
    "effect = factor_effect(page.paired, 'placement', list(page.plan['factors']['placement']), [],"
    " value='median', margin=0.02)\npage.show_comparison(effect)",
    "plots.ecdf(page.samples, value='rtt_ns', hue='placement')",
    "page.answer(page.told(effect, condition='it', baseline='nothing'))",
    "page.conclusions(page.headlines(effect, 'a cost'), title='Echo')",
]
BUILD = """
import sys
from pathlib import Path
from labkit.report.pages import build_page
build_page(Path(sys.argv[1]), Path(sys.argv[2]), title="Echo", parameters={"data": sys.argv[3]})
"""


@pytest.mark.parametrize(
    ("study", "profile", "more"),
    [
        ("affinity-spinning", "decide", " -p tool {tool}"),
        ("network-isolation", "decide", ""),
        ("cpu-quota", "decide", ""),
        ("rps", "decide", ""),
    ],
)
def test_the_command_measures_the_plan_again(study: str, profile: str, more: str) -> None:
    plan = labkit.load(project("data/reference") / study).plan
    command = measure_command(plan)
    expected = f"labkit run {study} --profile {profile} -p seed {plan['seed']}"
    # Of several tools the plan names the one that was taken.
    assert command == expected + more.format(tool=plan["settings"].get("tool"))
    other = plan | {"blocks": 7, "settings": plan["settings"] | {"idle": "held, at 0"}}
    own = f" -p tool {plan['settings']['tool']}" if study == "affinity-spinning" else ""
    assert measure_command(other).endswith(f" -p blocks 7{own} -p idle 'held, at 0'")
    assert measure_command({"study": "nowhere"}) == ""


def test_provenance_names_dataset_plan_rig_and_version() -> None:
    campaign = labkit.load(project(REFERENCE))
    lines = provenance(campaign)
    assert lines["Dataset"] == REFERENCE
    assert re.fullmatch("[0-9a-f]{16}", lines["Fingerprint"])
    assert lines["Plan"].startswith(f"affinity-spinning, {campaign.plan['blocks']} blocks of ")
    assert f"seed {campaign.plan['seed']}, identity " in lines["Plan"]
    assert lines["Rig"] == "virtual (virtual)"
    assert lines["Measured with"].startswith(f"labkit {campaign.plan['labkit']}")
    assert shlex.split(lines["Measured again by"])[:3] == ["labkit", "run", "affinity-spinning"]


def test_a_fingerprint_changes_with_a_record_and_not_with_the_place(tmp_path: Path) -> None:
    path = write_campaign(tmp_path / "echo")
    before = fingerprint(labkit.load(path))
    moved = Path(shutil.copytree(path, tmp_path / "moved"))
    assert fingerprint(labkit.load(moved)) == before
    record = next(moved.glob("trials/*/trial.json"))
    record.write_text(json.dumps(json.loads(record.read_text()) | {"seconds": 0.75}))
    assert fingerprint(labkit.load(moved)) != before


@pytest.fixture(scope="module")
def built_twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], Path]:
    """Return one small page, built by two processes that hash differently, and its campaign."""
    folder = tmp_path_factory.mktemp("provenance")
    campaign = write_campaign(folder / "echo")
    plan = labkit.load(campaign).plan
    more = {"settings": {"messages": 4}, "seed": 1, "blocks": 3, "infeasible": []}
    (campaign / "plan.json").write_text(json.dumps(plan | more))
    first = nbformat.v4.new_code_cell("data = ''", metadata={"tags": ["parameters"]})
    cells = [first, *map(nbformat.v4.new_code_cell, CELLS)]
    notebook = folder / "echo.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, notebook, folder / seed / "echo.html", campaign],
            env=os.environ | {"PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": "1700000000"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    return [folder / seed / "echo.html" for seed in ("1", "2")], campaign


def test_a_page_is_the_same_byte_for_byte(built_twice: tuple[list[Path], Path]) -> None:
    (first, second), _ = built_twice
    assert first.read_bytes() == second.read_bytes()
    assert b"on 2023-11-14 22:13 UTC" in first.read_bytes()


def test_a_page_has_one_provenance_block(
    built_twice: tuple[list[Path], Path], tmp_path: Path
) -> None:
    (page, _), campaign = built_twice
    text = page.read_text()
    assert text.count('class="provenance"') == text.count('id="provenance"') == 1
    for line in provenance(labkit.load(campaign)).values():
        assert f"<dd><code>{line}</code></dd>" in unescape(text) or not line
    index = build_index([page], tmp_path / "index.html").read_text()
    assert 'echo.html#provenance"' in index


def test_each_evaluated_claim_has_its_provenance(tmp_path: Path) -> None:
    rows = labkit.ledger(labkit.load(project(REFERENCE)))
    (tmp_path / "10-affinity-spinning.html").touch()
    text = unescape(
        build_ledger(rows, recompute(), disagreements(), tmp_path / "ledger.html").read_text()
    )
    evaluated = int(rows["estimate"].notna().sum())
    assert text.count('<details class="provenance">') == evaluated > 0
    assert text.count('<a href="10-affinity-spinning.html">The page of the study</a>') == evaluated
    source = rows.loc[rows["estimate"].notna(), "source"].iloc[0]
    assert f"labkit ledger {REFERENCE} --source {source}" in text
    assert fingerprint(labkit.load(project(REFERENCE))) in text
    assert "A result of one campaign holds for this rig on that day" in text
