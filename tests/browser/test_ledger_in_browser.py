"""The ledger's page in a real browser: filters, sorting, links to a claim, a phone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from labkit.report.ledger_page import build_ledger

pytestmark = pytest.mark.browser
NAN = float("nan")


def _claim(name: str, **fields: object) -> dict[str, object]:
    return {
        "id": name,
        "source": name.split("-")[0],
        "place": "section 4",
        "statement": f"What {name} says <of> bridges.",
        "study": "nets",
        "kind": "difference",
        "metric": "latency_ns",
        "statistic": "median",
        "published": "1.2",
        "published_value": 1.2,
        "arithmetic": "follows",
        "arithmetic_detail": "1.2 stated, 1.21 computed",
        "estimate": 1.1,
        "low": 1.05,
        "high": 1.15,
        "unit": "1",
        "n_blocks": 5,
        "p_replicates": 0.01,
        "p_contradicts": 1.0,
        "p_replicates_adjusted": 0.02,
        "p_contradicts_adjusted": 1.0,
        "setting": "analogue",
        "setting_why": "one kernel",
        "tier": "headline" if name.endswith("first") else "result",
        "confidence": 0.95,
        "direction": "",
        "result": "replicated",
        "why": "",
        "dataset": "data/x",
        "rig": "virtual",
    } | fields


ABSENT = {"estimate": NAN, "low": NAN, "high": NAN, "n_blocks": pd.NA, "result": "not measured"}
ROWS = [
    _claim("one-first", estimate=2.5, low=2.0, high=3.0),
    _claim("one-second", result="contradicted", estimate=0.4, low=0.3, high=0.5),
    _claim("two-third", setting="unsuitable", result="not decidable on this rig", estimate=10.0),
    _claim("two-fourth", **ABSENT, arithmetic="does not follow", why="no campaign of nets"),
]
STATED = [
    {
        "id": "one-drop",
        "source": "one",
        "place": "section 5",
        "says": "NAT drops by 8 %",
        "kind": "percentage",
        "stated": stated,
        "computed": stated if stated is True else 8.4,
        "shown": NAN,
        "difference": NAN,
        "tolerance": 0.5,
        "unit": "%",
        "follows": follows,
        "note": "",
    }
    for stated, follows in [(8.0, True), (9.0, False), (True, False)]
]

DISAGREEMENTS = [
    {
        "source": "one",
        "about": "the option",
        "says": "--a",
        "place": "Listing 1",
        "but": "--b",
        "but_place": "Listing 2",
    }
]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = pd.DataFrame(ROWS).astype({"n_blocks": "Int64"})
    stated = pd.DataFrame(STATED)
    stated["id"] = [f"one-drop-{number}" for number in range(len(stated))]
    output = tmp_path_factory.mktemp("ledger") / "ledger.html"
    return build_ledger(rows, stated, pd.DataFrame(DISAGREEMENTS), output)


def _shown(page: Page) -> list[str]:
    rows = page.locator("#claims tbody tr:visible")
    return [str(name) for name in rows.evaluate_all("rows => rows.map((row) => row.id)")]


def test_every_claim_is_shown_as_it_is(page: Page, ledger: Path) -> None:
    page.goto(ledger.as_uri())
    assert _shown(page) == [row["id"] for row in ROWS]
    first = page.locator("#one-first").inner_text()
    for words in ("What one-first says <of> bridges.", "2.50x [2.00, 3.00], 95 %", "replicated"):
        assert words in first
    assert "no campaign of nets" in page.locator("#two-fourth").inner_text()
    assert page.locator("main img").evaluate("one => one.complete && one.naturalWidth > 300")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("source", "two", ["two-third", "two-fourth"]),
        ("result", "contradicted", ["one-second"]),
        ("setting", "unsuitable", ["two-third"]),
        ("arithmetic", "does not follow", ["two-fourth"]),
    ],
)
def test_a_choice_filters(
    page: Page, ledger: Path, name: str, value: str, expected: list[str]
) -> None:
    page.goto(ledger.as_uri())
    page.select_option(f"[name={name}]", value)
    assert _shown(page) == expected
    assert page.locator("#shown").inner_text() == f"{len(expected)} of 4 claims"
    page.reload()  # the choice stands in the address
    assert _shown(page) == expected
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#shown")).to_have_text("4 of 4 claims")


def test_words_filter_and_headings_sort(page: Page, ledger: Path) -> None:
    page.goto(ledger.as_uri())
    page.get_by_role("searchbox").fill("ONE- second")
    assert _shown(page) == ["one-second"]
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Measured").click()
    assert _shown(page) == ["one-second", "one-first", "two-third", "two-fourth"]
    page.get_by_role("button", name="Measured").press("Enter")
    assert _shown(page) == ["two-third", "one-first", "one-second", "two-fourth"]
    sorted_by = page.locator("#claims th[aria-sort]")
    assert [sorted_by.inner_text().strip(" ↓"), sorted_by.get_attribute("aria-sort")] == [
        "Measured",
        "descending",
    ]


def test_every_column_sorts_both_ways(page: Page, ledger: Path) -> None:
    page.goto(ledger.as_uri())
    heads = page.locator("#claims thead th").all()
    for number, head in enumerate(heads):
        cells = f"rows => rows.map((row) => row.cells[{number}].innerText.trim())"
        orders = []
        for way in ("ascending", "descending"):
            head.get_by_role("button").click()
            assert head.get_attribute("aria-sort") == way
            orders.append(page.locator("#claims tbody tr:visible").evaluate_all(cells))
        # Rows with equal cells keep their order, and what was not measured is last in both.
        assert (orders[0] != orders[1]) == (len(set(orders[0])) > 1)
        assert page.locator("#claims th[aria-sort]").count() == 1
    assert len(heads) == 6
    page.select_option("[name=sort]", "-claim")
    assert _shown(page) == ["two-third", "two-fourth", "one-second", "one-first"]


def test_a_view_can_be_linked_to_and_comes_back(page: Page, ledger: Path) -> None:
    page.goto(ledger.as_uri() + "?source=one&sort=-measured#claims")
    assert _shown(page) == ["one-first", "one-second"]
    page.select_option("[name=sort]", "measured")
    page.goto("about:blank")
    page.go_back()
    page.wait_for_selector("#filters:not([hidden])")
    assert page.url.endswith("?source=one&sort=measured#claims")
    assert _shown(page) == ["one-second", "one-first"]
    assert page.locator("#shown").get_attribute("role") == "status"


def test_a_link_to_a_claim_shows_it_although_it_is_filtered(page: Page, ledger: Path) -> None:
    page.goto(ledger.as_uri() + "?source=two#one-second")
    assert page.locator("#one-second").is_visible()


def test_statements_that_do_not_follow_come_first(page: Page, ledger: Path) -> None:
    page.goto(ledger.as_uri())
    assert "3 percentages" in page.locator("main").inner_text()
    assert page.locator("#stated-one-drop-1").is_visible()
    assert not page.locator("#stated-one-drop-0").is_visible()
    page.goto(ledger.as_uri() + "#stated-one-drop-0")
    expect(page.locator("#stated-one-drop-0")).to_be_visible()
    page.reload()
    expect(page.locator("#stated-one-drop-0")).to_be_visible()


def test_places_that_contradict_each_other_stand_side_by_side(page: Page, ledger: Path) -> None:
    page.goto(ledger.as_uri())
    section = page.get_by_role("region", name="Places of a paper that contradict each other")
    cells = section.locator("tbody td").all_inner_texts()
    assert [" ".join(cell.split()) for cell in cells] == [
        "the option",
        "one",
        "--a Listing 1",
        "--b Listing 2",
    ]
    assert len(pd.read_csv(ledger.with_name("disagreements.csv"))) == 1


def test_on_a_phone_nothing_is_wider_than_the_screen(page: Page, ledger: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(ledger.as_uri())
    wide = "document.documentElement.scrollWidth - window.innerWidth"
    assert page.evaluate(wide) <= 0
    page.select_option("[name=source]", "two")
    assert _shown(page) == ["two-third", "two-fourth"]


def test_rows_are_files_too(ledger: Path) -> None:
    rows = pd.read_csv(ledger.with_name("ledger.csv"))
    assert rows["id"].to_list() == [row["id"] for row in ROWS]
    assert pd.read_csv(ledger.with_name("arithmetic.csv"))["follows"].to_list() == [
        True,
        False,
        False,
    ]
