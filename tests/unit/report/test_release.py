"""The reproduction report: what it joins for the PDF, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from click.testing import CliRunner

from labkit import load
from labkit.cli import app
from labkit.dataset.files import SUMS, write_sums
from labkit.errors import LabkitError, UsageError
from labkit.paths import project
from labkit.report import pdf, release

PAGE = """<html><body><header><nav>x</nav><h1>{name}</h1></header><main id="main">
<h2 id="answer">A</h2><a href="#answer">here</a><a href="other.html#answer">there</a>
<a href="other.html">whole</a><a href="ledger.html#claim">claim</a></main><footer>f</footer>
<script>s</script></body></html>"""


def test_joined_pages_keep_links_between_them_and_lose_others() -> None:
    text = pdf.joined({name: PAGE.format(name=name) for name in ("one.html", "other.html")})
    soup = BeautifulSoup(text, "html.parser")
    assert [one["id"] for one in soup.select("article.printed")] == ["one", "other"]
    assert [one.get_text() for one in soup.select("h1")] == ["one.html", "other.html"]
    targets = [one.get("href") for one in soup.select("#one a")]
    assert targets == ["#one-answer", "#other-answer", "#other", None]
    ids = {str(one["id"]) for one in soup.select("[id]")}
    assert {target[1:] for target in targets if target} <= ids
    assert not soup.select("nav, footer, script")


def test_dates_of_a_pdf_are_those_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    printed = b"/CreationDate (D:20261123102654+00'00')\n/ModDate (D:20261123102654+00'00')>>"
    dated = pdf._dated(printed)
    assert dated == printed.replace(b"20261123102654", b"19700102000000")


def test_nodes_of_a_pdf_are_numbered_from_one_in_the_same_order() -> None:
    printed = b"/ID (node00000031)>> /Headers [(node00000029) (node00000031)] (node7)"
    again = printed.replace(b"31", b"32").replace(b"29", b"30")
    numbered = b"/ID (node00000002)>> /Headers [(node00000001) (node00000002)] (node7)"
    assert pdf._renumbered(printed) == pdf._renumbered(again) == numbered


def test_without_chromium_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pdf.browser() is None
    with pytest.raises(LabkitError, match=r"cannot be printed[\s\S]*apt-get install chromium"):
        pdf.print_pdf(tmp_path / "page.html", tmp_path / "page.pdf")


def test_a_folder_with_something_else_is_not_emptied(tmp_path: Path) -> None:
    kept = tmp_path / "thesis.tex"
    kept.write_text("years of work")
    with pytest.raises(UsageError, match="something else than a report"):
        release._refuse_others(tmp_path)
    assert kept.read_text() == "years of work"


def test_a_file_beside_a_report_is_named_and_kept(tmp_path: Path) -> None:
    for name in ("ledger.csv", "index.html"):
        (tmp_path / name).write_text(name)
    write_sums(tmp_path / SUMS, dict.fromkeys(("ledger.csv", "index.html"), "0" * 64))
    release._refuse_others(tmp_path)
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(UsageError) as caught:
        release._refuse_others(tmp_path)
    assert caught.value.why == "notes.md" and (tmp_path / "notes.md").exists()


def test_the_command_says_how_it_is_used() -> None:
    said = CliRunner().invoke(app, ["reproduction", "--help"])
    assert said.exit_code == 0 and "without measuring" in " ".join(said.output.split())


def test_a_trial_that_measured_several_conditions_counts_once() -> None:
    data = load(project("data/reference/forwarding-chains"))
    ok = [record for record in data.records if record["status"] == "ok"]
    assert release._about(data)["trials"] == len(ok) < len(data.ok)


def test_data_without_a_campaign_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LabkitError, match="no campaign"):
        release.build_release(tmp_path / "report", tmp_path, say=lambda text: None)
    assert not (tmp_path / "report").exists()
