"""A real browser for the pages of the report, with every request blocked and recorded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from chromium import block_requests, chromium
from playwright.sync_api import Browser, Page


# Not for the whole session: its event loop would take the interrupts of other tests.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@contextmanager
def tab(browser: Browser, scheme: str, name: str) -> Iterator[Page]:
    """Open a tab of 1280 x 800; fail if it requested anything or logged an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    blocked = block_requests(context, "file:", "data:")
    messages: list[str] = []
    opened = context.new_page()
    opened.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
    opened.on("pageerror", lambda error: messages.append(str(error)))
    yield opened
    if folder := os.environ.get("LABKIT_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = Path(folder) / (re.sub(r"\W+", "-", name) + ".png")
        opened.screenshot(path=file, full_page=True)
    context.close()
    assert blocked == []
    assert [line for line in messages if not line.startswith(("log:", "info:"))] == []


#: `test_whole_report` tests the contrast in the dark, of three pages.
@pytest.fixture(params=["light", "dark"] if os.environ.get("LABKIT_SCREENSHOTS") else ["light"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    with tab(browser, request.param, request.node.name) as opened:
        yield opened


@pytest.fixture(scope="module")
def visit(browser: Browser) -> Callable[[str], AbstractContextManager[Page]]:
    """Return a function that opens a tab; its argument names the screenshot."""
    return lambda name: tab(browser, "light", name)
