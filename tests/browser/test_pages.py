"""Every page of the report in Chromium: it loads nothing, is accessible, and fits a phone."""

import os
import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from labkit.analysis.publish import report
from labkit.paths import project

pytestmark = pytest.mark.browser
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
STUDIES = [path.stem for path in sorted(project("notebooks/analysis").glob("[1-8]*.ipynb"))]
NAMES = [f"{name}.html" for name in ["index", *STUDIES, "90-ledger"]]
#: Opens what is folded, and removes rows beyond the first three of a table: axe would take minutes.
PREPARE = """() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
  for (const one of document.querySelectorAll("tbody tr:nth-child(n+4)")) one.remove();
}"""
#: Elements without a scroll bar of their own that are wider than the window.
WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return the folder of the report of the reference dataset, which is built once."""
    folder = tmp_path_factory.mktemp("reports")
    answers = report(folder, project("data/reference"))
    assert [one for one in answers if "error" in one] == []
    assert [one["page"] for one in answers if one["rows"]] == NAMES[1:-1]
    return folder


# Not for the whole session: its event loop would take the interrupts of other tests.
@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)


@pytest.fixture
def page(browser):
    """A tab that fails where the page requests something or logs an error."""
    context, problems = browser.new_context(), []

    def decide(route):
        if route.request.url.startswith(("file:", "data:")):
            return route.continue_()
        problems.append(route.request.url)
        return route.abort()

    context.route("**/*", decide)
    opened = context.new_page()
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    context.close()
    assert problems == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_small_accessible_and_fits_a_phone(name, pages, page):
    assert (pages / name).stat().st_size < 600_000
    page.goto((pages / name).as_uri())
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(WIDE) <= 0
        if folder := os.environ.get("LABKIT_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{name}-{width}.png", full_page=True)
    page.evaluate(PREPARE)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        options = {"resultTypes": ["violations"], "preload": False, "iframes": False}
        found = Axe().run(page, options=options).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["target"]) for one in serious] == []
