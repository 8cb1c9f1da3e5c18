"""Debian's Chromium for tests and benchmarks, with requests blocked unless they are allowed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium for the duration of a ``with`` block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=FLAGS, headless=True
        )
        yield browser
        browser.close()


def block_requests(context: BrowserContext, *allowed: str) -> list[str]:
    """Block requests except to URLs with an allowed prefix; return the list of blocked ones."""
    blocked: list[str] = []

    def decide(route: Any) -> None:
        url = route.request.url
        if url.startswith(allowed):
            route.continue_()
        else:
            blocked.append(url)
            route.abort()

    context.route("**/*", decide)
    return blocked
