"""The whole report of the reference dataset: for eyes, ears and keyboard, on a phone and on paper.

Each page is opened once, and everything that is asked of it is read then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import committed
import pytest
from accessibility import OPEN, serious_findings
from playwright.sync_api import Page

pytestmark = pytest.mark.browser
Visit = Callable[[str], AbstractContextManager[Page]]

#: Everything that is read of a page as it stands.
FACTS = """() => ({
  height: document.documentElement.scrollHeight,
  appendix: document.querySelector(".appendix")?.getBoundingClientRect().top ?? 0,
  answer: document.querySelector("#answer")?.getBoundingClientRect().top ?? 0,
  images: [...document.images].map((one) => one.getAttribute("alt")),
  drawings: [...document.querySelectorAll("svg")].map(
    (one) => [one.getAttribute("role"), one.getAttribute("aria-label")]),
  headings: [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map(
    (one) => [Number(one.tagName[1]), one.textContent.trim()]),
  ids: [...document.querySelectorAll("[id]")].map((one) => one.id),
  links: [...document.querySelectorAll("a[href]")].map((one) => one.getAttribute("href")),
  tables: [...document.querySelectorAll("th:not([scope])")].map((one) => one.outerHTML),
})"""
#: What does not fit on a phone: the page itself, and what scrolls but cannot be focused.
PHONE = """() => ({
  wider: document.documentElement.scrollWidth - window.innerWidth,
  stuck: [...document.querySelectorAll("body *")].filter((one) =>
    one.scrollWidth > one.clientWidth + 1 && one.clientWidth &&
    ["auto", "scroll"].includes(getComputedStyle(one).overflowX) &&
    one.tabIndex < 0 && !one.querySelector("a, button, input, [tabindex]")
  ).map((one) => one.outerHTML.slice(0, 200)),
})"""
#: What paper would cut or hide.
PAPER = """() => ({
  cut: [...document.querySelectorAll("h1, p, li, table, img, svg, pre")].filter((one) =>
    one.getBoundingClientRect().right > window.innerWidth + 1
  ).map((one) => one.caption?.textContent ?? one.outerHTML.slice(0, 200)),
  hidden: [...document.querySelectorAll("main :is(table, img)")].filter((one) =>
    !one.offsetHeight && !one.closest("details")
  ).map((one) => one.outerHTML.slice(0, 200)),
  ground: getComputedStyle(document.documentElement).backgroundColor + " " +
    getComputedStyle(document.body).backgroundColor,
})"""


@pytest.fixture(scope="module")
def seen(reference_report: Path, visit: Visit) -> dict[str, dict[str, Any]]:
    """Return what is read of each page, by its name."""
    return {path.name: _read(path, visit) for path in sorted(reference_report.glob("*.html"))}


def _read(path: Path, visit: Visit) -> dict[str, Any]:
    with visit(path.stem) as page:
        page.goto(path.as_uri())
        facts = page.evaluate(FACTS)
        page.evaluate(OPEN)
        page.set_viewport_size({"width": 390, "height": 844})
        facts |= page.evaluate(PHONE)
        # A4 with the margins of the style sheet.
        page.set_viewport_size({"width": 718, "height": 1000})
        page.emulate_media(media="print", color_scheme="dark")
        facts |= page.evaluate(PAPER)
        page.set_viewport_size({"width": 1280, "height": 800})
        page.emulate_media(media="screen", color_scheme="light")
        facts["axe"] = serious_findings(page)
        if path.stem in ("index", "ledger", "65-rps"):
            page.emulate_media(color_scheme="dark")
            facts["axe"] += serious_findings(page, runOnly=["color-contrast"])
        if os.environ.get("LABKIT_SCREENSHOTS"):
            page.reload()  # the picture shows the page, and not what is left of it
    return facts


def problems_of(
    pages: dict[str, dict[str, Any]], wrong: Callable[[dict[str, Any]], Iterable[Any]]
) -> Any:
    """Return what is wrong with each page, where anything is."""
    found = {name: list(wrong(facts)) for name, facts in pages.items()}
    return {name: problems for name, problems in found.items() if problems}


def test_every_page_is_there(seen: dict[str, Any]) -> None:
    pages = {f"{study.stem}.html" for study in committed.published()}
    assert set(seen) >= pages | {"index.html", "ledger.html"}


def test_axe_has_no_serious_finding(seen: dict[str, Any]) -> None:
    assert problems_of(seen, lambda facts: facts["axe"]) == {}


def test_every_figure_says_what_it_shows(seen: dict[str, Any]) -> None:
    # Where it stands, and then its axes, series and counts.
    assert (
        problems_of(seen, lambda facts: [alt for alt in facts["images"] if len(alt or "") < 60])
        == {}
    )
    assert (
        problems_of(seen, lambda facts: [d for d in facts["drawings"] if d[0] != "img" or not d[1]])
        == {}
    )
    assert sum(len(facts["images"]) for facts in seen.values()) > 70


def test_answers_are_near_the_top(seen: dict[str, Any]) -> None:
    assert seen["index.html"]["height"] <= 2 * 800
    assert (
        problems_of(seen, lambda facts: [facts["appendix"]] if facts["appendix"] > 8000 else [])
        == {}
    )
    answers = {name: facts["answer"] for name, facts in seen.items() if name[0].isdigit()}
    assert answers and all(0 < top < 800 for top in answers.values()), answers


def test_pages_are_small(reference_report: Path, seen: dict[str, Any]) -> None:
    sizes = {name: (reference_report / name).stat().st_size for name in seen}
    assert {name: size for name, size in sizes.items() if size > 1_000_000} == {}


def test_headings_tables_and_identities_are_in_order(seen: dict[str, Any]) -> None:
    def headings(facts: dict[str, Any]) -> Iterable[Any]:
        levels = [level for level, _ in facts["headings"]]
        if levels.count(1) != 1:
            yield f"{levels.count(1)} main headings"
        for (before, _), (level, text) in zip(
            [(0, ""), *facts["headings"]], facts["headings"], strict=False
        ):
            if level > before + 1:
                yield text

    assert problems_of(seen, headings) == {}
    assert problems_of(seen, lambda facts: facts["tables"]) == {}
    assert (
        problems_of(seen, lambda facts: {i for i in facts["ids"] if facts["ids"].count(i) > 1})
        == {}
    )


def test_on_a_phone_tables_scroll_and_pages_do_not(seen: dict[str, Any]) -> None:
    assert problems_of(seen, lambda facts: [facts["wider"]] if facts["wider"] > 0 else []) == {}
    assert problems_of(seen, lambda facts: facts["stuck"]) == {}


def test_on_paper_nothing_is_cut_hidden_or_dark(seen: dict[str, Any]) -> None:
    assert problems_of(seen, lambda facts: facts["cut"] + facts["hidden"]) == {}
    assert {facts["ground"] for facts in seen.values()} == {"rgba(0, 0, 0, 0) rgb(255, 255, 255)"}


def test_every_link_leads_somewhere(seen: dict[str, Any], reference_report: Path) -> None:
    def broken(name: str) -> Iterable[str]:
        for link in seen[name]["links"]:
            parts = urlsplit(link)
            if parts.scheme:
                if parts.scheme not in ("https", "data") or " " in link:
                    yield link
                continue
            page = unquote(parts.path) or name
            ids = {"", *(seen[page]["ids"] if page in seen else [])}
            # As browsers do: as it stands, and else without its percent signs.
            there = parts.fragment in ids or unquote(parts.fragment) in ids
            if not there or not (reference_report / page).is_file():
                yield link

    assert {name: found for name in seen if (found := list(broken(name)))} == {}


@pytest.mark.parametrize("name", ["index", "ledger"])
def test_a_keyboard_goes_through_a_page_in_order(
    reference_report: Path, visit: Visit, name: str
) -> None:
    with visit(f"{name} by keyboard") as page:
        page.goto((reference_report / f"{name}.html").as_uri())
        page.keyboard.press("Tab")
        skip = page.locator(".skip")
        assert skip.evaluate("one => one === document.activeElement")
        assert (skip.bounding_box() or {"x": -1})["x"] >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.tagName") == "MAIN"
        places = []
        for _ in range(12):
            page.keyboard.press("Tab")
            shown, place = page.evaluate("""() => {
                const one = document.activeElement;
                const all = [...document.querySelectorAll("body *")];
                return [getComputedStyle(one).outlineStyle, all.indexOf(one)];
            }""")
            assert shown != "none"
            places.append(place)
        assert places == sorted(places) and len(set(places)) == 12


def test_words_are_not_searched_in_the_provenance(reference_report: Path, visit: Visit) -> None:
    with visit("ledger-words") as page:
        page.goto((reference_report / "ledger.html").as_uri() + "?words=labkit+run")
        assert page.locator("#claims details.provenance").count() > 0
        assert page.locator("#shown").inner_text().startswith("0 of ")
