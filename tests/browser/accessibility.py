"""What axe-core finds on a page in a browser."""

from __future__ import annotations

import json
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

OPEN = """() => {
  for (const one of document.querySelectorAll("details")) one.open = true;
}"""
#: Removes rows and words of code that look like an earlier one: with them axe takes minutes.
FEWER = """() => {
  const kinds = new Set();
  for (const one of document.querySelectorAll("tbody tr, .source span")) {
    const inner = [one, ...one.querySelectorAll("[class]")].map((part) => part.className);
    const where = one.tagName === "TR" ? one.cells.length + one.closest("table").className : "";
    const kind = [...new Set(inner), where].join("|");
    if (kinds.has(kind)) one.remove();
    kinds.add(kind);
  }
}"""
QUICKLY = {"resultTypes": ["violations"], "preload": False, "iframes": False, "ancestry": False}


def serious_findings(page: Page, **options: Any) -> list[str]:
    """Return the serious findings on a page, opened and without rows that are alike."""
    page.evaluate(OPEN)
    page.evaluate(FEWER)
    found = Axe().run(page, options=QUICKLY | options).response["violations"]
    return [
        f"{one['id']}: {json.dumps([node['target'] for node in one['nodes']][:3])}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
