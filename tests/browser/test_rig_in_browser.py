"""The rig's page in a real browser, built from the reference campaigns."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from labkit.paths import SHIPPED as ROOT
from labkit.report.rig_page import build_rig

pytestmark = pytest.mark.browser
STUDIES = ("10-affinity-spinning", "65-rps")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The executed notebooks carry the same summaries as their pages.
    pages = {
        ROOT / f"notebooks/analysis/{name}.ipynb": ROOT / "data/reference" / name[3:]
        for name in STUDIES
    }
    counts = {"rohprimardho2015": {"not decidable on this rig": 9}}
    return build_rig(pages, tmp_path_factory.mktemp("rig") / "rig.html", ledger=counts)


def test_the_rig_is_drawn_mapped_and_measured(page: Page, rig: Path) -> None:
    page.goto(rig.as_uri())
    # A drawing for each machine: the two studies may have been measured on different ones.
    drawn = " ".join(page.locator("svg.topology").all_text_contents())
    for words in ("generator", "198.18.0.3", "peer", "collector", "mirror of sut, clean"):
        assert words in drawn
    assert "not stated" not in drawn
    cells = page.locator(".grid tbody tr", has_text="generator").locator("td").all_inner_texts()
    assert cells[:2] == ["runs", "–"]
    ladder = page.get_by_role("group", name="Baseline levels", exact=True).locator("tbody tr")
    assert [row.locator("th").inner_text() for row in ladder.all()] == [
        *("bare clean", "bare rules", "bare chroot", "bare cgroup"),
        *("docker host", "docker bridge"),
    ]
    assert "1.43 [1.36 to 1.50]" in ladder.last.inner_text()
    image = page.locator("main img")
    assert "docker bridge over docker host 1.43" in (image.get_attribute("alt") or "")
    assert image.evaluate("one => one.complete && one.naturalWidth > 300")
    assert page.locator("h1").count() == page.locator("main").count() == 1
    assert page.locator("[aria-current=page]").inner_text() == "The rig"


def test_nothing_is_wider_than_a_phone(page: Page, rig: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(rig.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    page.get_by_text("Every condition against itself").click()
    assert page.get_by_role("group", name="Noise by condition").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
