"""Pages are self-contained; summaries reach the index; nothing is invented."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from small_datasets import write_campaign
from small_notebooks import write_notebook

from labkit.dataset import read_json
from labkit.errors import LabkitError
from labkit.report.html import SUMMARY_MIME
from labkit.report.pages import build_glossary, build_index, build_page, read_summary


def test_a_page_that_would_load_from_elsewhere_is_refused(tmp_path: Path) -> None:
    notebook = write_notebook(
        tmp_path,
        'from IPython.display import HTML\nHTML(\'<img src="https://host.invalid/a.png" alt="">\')',
    )
    with pytest.raises(LabkitError, match="load from elsewhere") as caught:
        build_page(notebook, tmp_path / "page.html", title="t")
    assert "host.invalid" in caught.value.why
    assert not (tmp_path / "page.html").exists()


def test_summary_goes_from_the_notebook_into_the_page_and_the_index(tmp_path: Path) -> None:
    summary = {"title": "A <b>study</b>", "headlines": [{"text": "</script><b>", "verdict": "x"}]}
    shown = {SUMMARY_MIME: summary}
    notebook = write_notebook(
        tmp_path, f"from IPython.display import display\ndisplay({shown!r}, raw=True)"
    )
    page = build_page(notebook, tmp_path / "page.html", title="Title")
    assert read_summary(page) == {**summary, "page_title": "Title"}
    index = build_index([page], tmp_path / "index.html", failures={"other": "no engine"})
    text = index.read_text()
    assert "A &lt;b&gt;study&lt;/b&gt;" in text
    assert 'href="page.html"' in text
    assert "no engine" in text
    assert "not stated" in text


@pytest.fixture
def as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build pages of notebooks as they are, without a kernel."""
    monkeypatch.setattr(
        "labkit.report.pages.execute",
        lambda notebook, output, *_, **__: shutil.copy(notebook, output),
    )


@pytest.mark.usefixtures("as_they_are")
@pytest.mark.parametrize(("blocks", "pilot"), [(1, True), (4, True), (5, False), (None, False)])
def test_the_index_names_pilots(tmp_path: Path, blocks: int | None, pilot: bool) -> None:
    notebook = write_notebook(tmp_path, "display")
    document = nbformat.read(notebook, as_version=4)
    data = {SUMMARY_MIME: {"study": "x", "blocks": blocks}}
    document.cells[-1].outputs = [nbformat.v4.new_output("display_data", data)]
    nbformat.write(document, notebook)
    page = build_page(notebook, tmp_path / "x.html", title="t")
    text = build_index([page], tmp_path / "index.html").read_text()
    assert ("Pilots, too few blocks" in text) == pilot
    # Campaigns of other days may differ by more than the interval of one shows.
    assert ("one campaign: this rig on that day" in page.read_text()) == bool(blocks)


def test_the_index_leads_to_the_page_of_a_paper_where_there_is_one(tmp_path: Path) -> None:
    counts = {"jha2018": {"undecided": 2}, "struye2017": {"undecided": 1}}
    text = build_index([], tmp_path / "index.html", ledger=counts).read_text()
    assert "release/" not in text
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "jha2018.html").touch()
    text = build_index([], tmp_path / "index.html", ledger=counts).read_text()
    assert 'href="release/jha2018.html"' in text and "release/struye2017.html" not in text


def test_an_index_without_studies_says_so(tmp_path: Path) -> None:
    text = build_index([], tmp_path / "index.html").read_text()
    assert "No study has been reported yet" in text
    assert "The rig is not stated." in text


@pytest.mark.usefixtures("as_they_are")
@pytest.mark.parametrize("tagged", [True, False])
def test_tagged_cells_come_first_and_the_others_are_folded(tmp_path: Path, tagged: bool) -> None:
    texts = ("how", "so much", "heading")
    notebook = write_notebook(tmp_path, *(f"print({text!r})" for text in texts))
    document = nbformat.read(notebook, as_version=4)
    for cell, text in zip(document.cells[1:], texts, strict=True):
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{text}\n")]
    if tagged:
        for cell, tag in zip(document.cells[-2:], ["answer", "notebook-only"], strict=True):
            cell.metadata["tags"] = [tag]
    nbformat.write(document, notebook)
    page = build_page(notebook, tmp_path / "page.html", title="t")
    body = BeautifulSoup(page.read_text(), "html.parser")
    text = body.get_text()
    assert (text.index("so much") < text.index("how")) == tagged
    assert "how" in body.select("details.appendix")[0].get_text() if tagged else "heading" in text
    assert bool(body.select(".contents a[href='#appendix']")) == tagged
    assert ("heading" not in text) == tagged


def test_a_glossary_has_an_anchor_for_each_term(tmp_path: Path) -> None:
    body = BeautifulSoup(build_glossary(tmp_path / "g.html").read_text(), "html.parser")
    terms = {term.get_text(): term["id"] for term in body("dt")}
    assert terms["noise floor"] == "noise-floor" and len(terms) == len(set(terms.values())) > 20


EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def hostile(value: object) -> object:
    """Return JSON data with HTML in every text and name that is free."""
    if isinstance(value, dict):
        return {name: hostile(item) for name, item in value.items()}
    if isinstance(value, list):
        return [hostile(item) for item in value]
    return f"{value} {EVIL}" if isinstance(value, str) else value


@pytest.mark.parametrize("kind", ["simulated", "emulated", "virtual"])
def test_a_page_without_measurements_says_so_at_its_head(tmp_path: Path, kind: str) -> None:
    campaign = write_campaign(tmp_path / "echo", blocks=6)
    plan = read_json(campaign / "plan.json")
    plan |= {"infeasible": [], "order": [[0, 1]] * 6, "blocks": 6, "seed": 1, "settings": {}}
    plan["rig"] |= {"kind": kind}
    (campaign / "plan.json").write_text(json.dumps(plan))
    source = f"""from labkit import Page
page = Page({str(campaign)!r}, factors=["placement"], value="rtt_ns")
page.conclusions([], title="t")"""
    page = build_page(write_notebook(tmp_path, source), tmp_path / "page.html", title="t")
    head = BeautifulSoup(page.read_text(), "html.parser").select_one("header").get_text()
    assert ("Nothing here is a measurement" in head) == (kind != "virtual")


def test_a_page_has_no_html_from_data(tmp_path: Path) -> None:
    campaign = write_campaign(tmp_path / "echo", blocks=6)
    for path in campaign.rglob("*.json"):
        record = read_json(path)
        own = ("trial", "status", "format", "sha256s", "identity")
        kept = {name: item if name in own else hostile(item) for name, item in record.items()}
        if path.name == "plan.json":
            kept |= {"infeasible": [{"condition": EVIL, "reason": EVIL}], "order": [[0, 1]] * 6}
            kept |= {"blocks": 6, "seed": 1, "settings": {EVIL: EVIL, "idle": EVIL}}
            kept["rig"] |= {"caveats": [EVIL, f"`{EVIL}`"], "capabilities": {EVIL: EVIL}}
            kept["rig"] |= {"links": [EVIL]}
        path.write_text(json.dumps(kept))
    source = f"""from labkit import Page
page = Page({str(campaign)!r}, factors=["placement"], value="rtt_ns")
page.what_was_run(); page.the_rig(); page.validity(); page.conclusions([], title="t")"""
    page = build_page(write_notebook(tmp_path, source), tmp_path / "page.html", title=EVIL)
    body = BeautifulSoup(page.read_text(), "html.parser")
    assert "onerror=alert(1)" in body.get_text()
    assert not body.select("img[onerror], img[src=x]")
    assert not [one for one in body.select("script") if one.get_text().startswith("alert")]
