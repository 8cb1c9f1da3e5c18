"""A real browser for the pages of the report, with every request refused and recorded."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


# Not for the whole session: an event loop that is kept would take the interrupts of other tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=FLAGS, headless=True
        )
        yield chromium
        chromium.close()


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """Return a page of 1280 x 800 that must end without a request or an error."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, color_scheme=request.param
    )
    asked: list[str] = []
    said: list[str] = []

    def refuse(route: Any) -> None:
        url = route.request.url
        if url.startswith(("file:", "data:")):
            route.continue_()
        else:
            asked.append(url)
            route.abort()

    context.route("**/*", refuse)
    tab = context.new_page()
    tab.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: said.append(str(error)))
    yield tab
    if folder := os.environ.get("LABKIT_SCREENSHOTS"):
        name = re.sub(r"\W+", "-", request.node.name) + ".png"
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=Path(folder) / name, full_page=True)
    context.close()
    assert asked == []
    assert [line for line in said if not line.startswith(("log:", "info:"))] == []
