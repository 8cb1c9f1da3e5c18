"""A real browser for the pages of the report, with every request refused and recorded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import chromium, refuse
from playwright.sync_api import Browser, Page


# Not for the whole session: an event loop that is kept would take the interrupts of other tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """Return a page of 1280 x 800 that must end without a request or an error."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, color_scheme=request.param
    )
    asked = refuse(context, "file:", "data:")
    said: list[str] = []
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
