"""The report in a real browser, from files, with every request blocked."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page

from labkit.answers import Answer
from labkit.errors import LabkitError
from labkit.report.pages import build_index, build_page

pytestmark = pytest.mark.browser
RIG = {
    "name": "virtual",
    "kind": "virtual",
    "hosts": {
        "generator": {"addresses": ["198.18.0.10"], "cpus": "0", "engine": False},
        "sut": {"addresses": ["198.18.0.20", "198.18.0.21"], "cpus": "1", "engine": True},
        "clean": {"addresses": ["198.18.0.30"], "cpus": "1", "engine": False},
    },
    "links": ["each host a veth pair to the bridge of the switch namespace"],
    "shared_kernel": True,
    "cpu_map": {"generator": "0", "sut": "1", "softirq": "0-1", "harness": "0", "all": "0-1"},
    "capabilities": {"collector": "no separate machine", "idle-policy": True},
    "caveats": ["one kernel, 2 vCPUs, shared softirq"],
}
SUMMARY = {
    "study": "affinity-spinning",
    "title": "Affinity and spinning",
    "headlines": [
        {
            "text": f"spinning against blocking, {where}",
            "verdict": verdict,
            "estimate": estimate,
            "low": estimate * 0.94,
            "high": estimate * 1.07,
            "unit": "1",
        }
        for where, verdict, estimate in [
            ("bare, separate CPUs", "different", 0.153),
            ("Docker host, separate CPUs", "different", 0.161),
            ("Docker bridge, separate CPUs", "different", 0.172),
            ("Docker host against the nearest baseline, blocking", "undecided", 1.04),
            ("Docker bridge against host, blocking", "not decidable on this rig", 1.12),
        ]
    ],
    "decided": 3,
    "open": 1,
    "answer": {
        **Answer(
            *("docker bridge", "docker host", "rtt_ns", "median", "ns", "lower"),
            value=17_300,
            base=12_400,
            ratio=1.40,
            low=1.25,
            high=1.56,
            n_blocks=5,
            verdict="different",
        ).as_record(),
        "cells": {"value": "17.3 us", "difference": "+4.90 us", "ratio": "1.40x [1.25, 1.56]"},
        "quantity": "median round-trip time",
        "noise_low": 0.96,
        "noise_high": 1.05,
    },
    "noise_floor": [
        {"condition": "bare, blocking", "sd": 0.051, "low": 0.96, "high": 1.05},
        {"condition": "docker host, spinning", "sd": 0.023, "low": 0.98, "high": 1.02},
    ],
    "decidable_margin": 0.084,
    "blocks": 5,
    "trials": 75,
    "failed": 0,
    "infeasible": [
        {"condition": "docker host, same CPU, spinning", "reason": "measures the scheduler"},
        {"condition": "docker bridge, same CPU, spinning", "reason": "measures the scheduler"},
    ],
    "rig": RIG,
    "dataset": "data/local/affinity-spinning-1a2b3c",
    "measured": "2026-11-21",
    "profile": "quick",
    "reference": False,
}


def _notebook(path: Path, *more: str) -> Path:
    cells = [
        nbformat.v4.new_markdown_cell("# Affinity and spinning\n\nWhat spinning buys here."),
        nbformat.v4.new_code_cell("blocks = 5", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(
            "%matplotlib inline\nimport matplotlib.pyplot as plt\nimport pandas as pd\n"
            f"from IPython.display import display\nsummary = {SUMMARY!r}\n"
            "display({'application/vnd.labkit.summary+json': summary}, raw=True)"
        ),
        nbformat.v4.new_markdown_cell("## Table\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"),
        nbformat.v4.new_code_cell(
            "pd.DataFrame({f'statistic number {i}': [i / 7, i / 3] for i in range(14)})"
        ),
        nbformat.v4.new_code_cell("print('it is slower')", metadata={"tags": ["answer"]}),
        nbformat.v4.new_markdown_cell("## Distributions"),
        nbformat.v4.new_code_cell(
            "figure, axes = plt.subplots(figsize=(9, 3))\naxes.plot([1, 2, 4], label='bare')\n"
            "axes.legend()\nplt.show()"
        ),
        *(nbformat.v4.new_code_cell(source) for source in more),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with an index, a page, and the page of a notebook that failed."""
    folder = tmp_path_factory.mktemp("report")
    good = build_page(
        _notebook(folder / "10.ipynb"),
        folder / "out" / "10-affinity-spinning.html",
        parameters={"blocks": 5},
        title="Affinity and spinning",
    )
    with pytest.raises(LabkitError, match="failed in cell"):
        build_page(
            _notebook(folder / "20.ipynb", "raise ValueError('on purpose')"),
            folder / "out" / "20-failed.html",
            title="A study that failed",
        )
    counts = {"jha2018": {"replicated": 3, "not measured": 25}, "struye2017": {"not measured": 39}}
    build_index([good], folder / "out" / "index.html", ledger=counts)
    return folder / "out"


def _bottom(page: Page, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    assert box is not None, f"{selector} is not shown"
    return box["y"] + box["height"]


def _overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


PARTS = ("#sentence", "#headlines .forest", "#studies .studies", "#papers .bar", "#rig")


@pytest.mark.parametrize("part", PARTS)
def test_the_index_shows_all_parts_on_two_screens(page: Page, report: Path, part: str) -> None:
    page.goto((report / "index.html").as_uri())
    assert _bottom(page, part) <= 2 * 800
    assert _overflow(page) <= 0


def test_the_index_answers_in_words_and_scaled_units(page: Page, report: Path) -> None:
    page.goto((report / "index.html").as_uri())
    assert _bottom(page, "#headlines .forest") <= 800
    text = page.locator("main").inner_text()
    for words in ("docker bridge against docker host", "17.3 us", "+4.90 us", "1.40x [1.25, 1.56]"):
        assert words in text
    assert "docker bridge is slower than docker host" in text
    assert "Rig: virtual, 3 hosts, one kernel, CPUs 0-1, measured 2026-11-21" in text
    drawing = page.locator("svg.forest")
    assert drawing.get_attribute("aria-label") == (
        "docker bridge against docker host: 1.40x [1.25, 1.56], slower"
    )
    row = page.locator("#studies tbody tr").first.inner_text()
    assert row.split()[-2:] == ["3", "1"]


def test_on_a_phone_names_have_the_width_of_the_index(page: Page, report: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((report / "index.html").as_uri())
    for table in ("forest", "studies", "papers"):
        box = page.locator(f"table.{table} tbody th").first.bounding_box()
        assert box is not None and box["width"] > 300


def test_index_leads_to_the_page_and_to_the_claims_with_a_result(page: Page, report: Path) -> None:
    page.goto((report / "index.html").as_uri())
    for part in ("#headlines", "#studies"):
        link = page.locator(f"{part} tbody th a").first
        assert link.get_attribute("href") == "10-affinity-spinning.html"
    rows = page.locator("#papers tbody tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["jha2018", "3", "25", "28"],
        ["struye2017", "39", "39"],
    ]
    link = page.locator("#papers .bar a").first
    assert link.get_attribute("href") == "ledger.html?source=jha2018&result=replicated#claims-title"


def test_page_folds_code_away_and_keeps_it(page: Page, report: Path) -> None:
    page.goto((report / "10-affinity-spinning.html").as_uri())
    assert _overflow(page) <= 0
    page.locator(".appendix > summary").click()
    code = page.locator("details.code", has_text="matplotlib.pyplot")
    assert not code.locator(".source").is_visible()
    code.locator("summary").click()
    assert code.locator(".source").is_visible()
    assert "matplotlib" in code.inner_text()


def test_page_has_figure_with_text_and_table(page: Page, report: Path) -> None:
    page.goto((report / "10-affinity-spinning.html").as_uri())
    page.locator(".appendix > summary").click()
    image = page.locator("main img")
    assert image.get_attribute("alt") == "Figure 1 of Distributions"
    assert image.evaluate("one => one.complete && one.naturalWidth > 100")
    assert page.locator("main table.dataframe").is_visible()


def test_page_begins_with_the_answer_and_a_contents_list(page: Page, report: Path) -> None:
    page.goto((report / "10-affinity-spinning.html").as_uri())
    assert _bottom(page, "#answer") < 800
    assert page.get_by_text("it is slower", exact=True).is_visible()
    assert not page.locator("main img").is_visible()
    page.locator(".contents a", has_text="Appendix").click()
    assert page.locator("main img").is_visible()


def test_failed_notebook_shows_its_error(page: Page, report: Path) -> None:
    page.goto((report / "20-failed.html").as_uri())
    assert page.locator("header .alarm").is_visible()
    assert "ValueError: on purpose" in page.locator(".output_error").inner_text()


@pytest.mark.parametrize("name", ["index", "10-affinity-spinning", "20-failed"])
def test_on_a_phone_nothing_is_wider_than_the_screen(page: Page, report: Path, name: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((report / f"{name}.html").as_uri())
    assert _overflow(page) <= 0


@pytest.mark.parametrize("name", ["index", "10-affinity-spinning"])
def test_on_paper_what_was_found_is_there(page: Page, report: Path, name: str) -> None:
    page.emulate_media(media="print")
    page.goto((report / f"{name}.html").as_uri())
    assert page.locator("h1").count() == 1
    assert page.locator("h1").is_visible()
    assert not [one for one in page.locator("details.code").all() if one.is_visible()]
