"""`labkit reproduction` on the reference: pages, links, PDF, digests; built once."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pandas as pd
import pytest
from accessibility import serious_findings
from playwright.sync_api import Page

from labkit import citation
from labkit.claims.schema import load_claims
from labkit.paths import project
from labkit.report import pdf
from labkit.report.release import build_release

pytestmark = pytest.mark.browser
KEYS = load_claims().sources
Visit = Callable[[str], AbstractContextManager[Page]]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduction") / "release"
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1800000000")
        index, missing = build_release(folder, project("data/reference"), say=said.append)
    assert index == folder / "index.html" and missing == []
    assert [line for line in said if line.startswith("writing")] == [
        f"writing the page of {key}" for key in KEYS
    ]
    return folder


def test_every_page_is_one_click_from_the_index_and_from_the_ledger(
    release: Path, visit: Visit
) -> None:
    titles = {entry.key: entry.title for entry in citation.studies()}
    with visit("reproduction-index") as page:
        for start in ("index.html", "ledger.html"):
            for key in KEYS:
                page.goto((release / start).as_uri())
                page.locator(f'a[href="{key}.html"]').first.click()
                assert page.url.endswith(f"/{key}.html")
                assert page.locator("h1").inner_text() == titles[key]


@pytest.mark.parametrize("key", KEYS)
def test_a_page_has_answer_figures_table_and_reasons(release: Path, visit: Visit, key: str) -> None:
    with visit(f"reproduction-{key}") as page:
        page.goto((release / f"{key}.html").as_uri())
        assert not page.locator('[role="alert"], details.code').count()
        headings = page.locator("h2").all_inner_texts()
        places = [
            next(number for number, text in enumerate(headings) if text.startswith(wanted))
            for wanted in ("Answer", "What the paper said", "The paper against here", "Why", "Cite")
        ]
        assert places == sorted(places)
        assert page.locator("img").count() >= 4
        assert all(one.get_attribute("alt") for one in page.locator("img").all())
        heads = page.locator("table thead").all_inner_texts()
        assert any("Ratio, paper" in text and "Setting" in text for text in heads)
        rows = pd.read_csv(release / "ledger.csv")
        headlines = rows[(rows["source"] == key) & (rows["tier"] == "headline")]
        for name in headlines["id"]:
            assert page.locator(f'a[href="ledger.html#{name}"]').count() == 1
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["index", "struye2017"])
def test_axe_has_no_serious_finding(release: Path, visit: Visit, name: str) -> None:
    with visit(f"reproduction-axe-{name}") as page:
        page.goto((release / f"{name}.html").as_uri())
        assert serious_findings(page) == []


def test_the_pdf_holds_all_pages_and_links_between_them(release: Path) -> None:
    printed = (release / "reproduction.pdf").read_bytes()
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") > len(KEYS)
    for entry in citation.studies():
        assert f"/Title ({entry.title})".encode() in printed
        assert f"/Dest /{entry.key}\n".encode() in printed
    assert b"(D:20270115080000+00'00')" in printed


def test_the_same_page_prints_to_the_same_bytes(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1800000000")
    for name in ("one.pdf", "two.pdf"):
        pdf.print_pdf(release / "index.html", tmp_path / name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "two.pdf").read_bytes()


def test_digests_and_citations_are_complete(release: Path) -> None:
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=release, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert len(checked.stdout.splitlines()) == len(list(release.iterdir())) - 1
    bibtex = (release / "CITATION.bib").read_text("utf-8")
    keys = re.findall(r"^@\w+\{(\S+),", bibtex, re.MULTILINE)
    assert keys[0] == "labkit" and keys[1].startswith("labkit-data-") and set(KEYS) <= set(keys)
