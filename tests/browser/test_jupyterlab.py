"""Run All in a real JupyterLab: an analysis, and the explorer, in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from chromium import chromium
from jupyter_browser import Notebook, copied, opened
from lab_server import Server, jupyterlab
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.browser
ANALYSIS = "analysis/65-rps.ipynb"
EXPLORER = "explore.ipynb"
#: How the first table of each view begins.
TITLES = {
    "Distribution": re.compile(r"^round-trip time, p99 \(µs\), over the trials"),
    "Shift": re.compile(r"^round-trip time, p99 \(µs\) against"),
    "Blocks": re.compile(r"^round-trip time, p99 \(µs\), over the trials"),
    "Mechanism": re.compile("^Means over the trials"),
    "Rows": re.compile("^Attempts"),
}
#: Milliseconds for an answer of the explorer, with a margin for a busy machine.
ANSWERS = 60_000


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("jupyterlab")
    for name in (ANALYSIS, EXPLORER):
        copied(name, folder / "notebooks")
    with jupyterlab(folder) as server:
        yield server


def run_all(notebook: Notebook) -> None:
    """Run all cells to the end, without errors and warnings."""
    notebook.run_all()
    notebook.until(notebook.is_over, seconds=300)
    assert notebook.errors() == [] and notebook.complaints() == ""
    assert notebook.whole()


def test_an_analysis_runs_to_its_figures_and_tables(server: Server, chrome: Browser) -> None:
    with opened(server, chrome, ANALYSIS) as notebook:
        assert notebook.figures() == notebook.tables() == 0
        run_all(notebook)
        shown = [data for one in notebook.outputs() for data in [one.get("data", {})]]
        assert notebook.figures() == sum("image/svg+xml" in data for data in shown) > 1
        tables = sum("".join(data.get("text/html", "")).count("<table") for data in shown)
        assert notebook.tables() == tables > 5


def test_the_explorer_answers_each_choice(server: Server, chrome: Browser) -> None:
    with opened(server, chrome, EXPLORER) as notebook:
        run_all(notebook)
        assert notebook.widgets() == 1
        panel = notebook.panel.locator(".labkit-explorer").first
        figure = panel.locator('.labkit-view img[src^="data:image/svg+xml"]:visible')
        expect(figure).to_have_count(1, timeout=ANSWERS)
        for label in ("study", "quantity", "statistic", "baseline"):
            expect(panel.get_by_label(label, exact=True)).to_be_visible()
        panel.get_by_label("statistic", exact=True).select_option("p99")
        caption = panel.locator('caption:has-text("round-trip time, p99"):visible')
        expect(caption).to_have_count(1, timeout=ANSWERS)
        said: set[str] = set()
        for name in ("Distribution", "Shift", "Blocks", "Mechanism", "Rows"):
            panel.locator("button", has_text=re.compile(f"^{name}$")).click()
            view = panel.locator(".labkit-view:visible").first
            expect(view.locator("caption").first).to_have_text(TITLES[name], timeout=ANSWERS)
            said.add(view.locator("p").first.inner_text())
            expect(panel.locator("[role=alert]")).to_have_count(0)
        assert len(said) == 5
