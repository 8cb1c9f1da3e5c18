"""External resources, embedded data, and numbers and verdicts as text."""

from __future__ import annotations

from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.report import html
from labkit.report.html import external_resources, fact_at, frame


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<a href="https://host.invalid">x</a>', 0),
        ('<img src="data:image/png;base64,AA==">', 0),
        ('<svg><use href="#a"/></svg>', 0),
        ("<p>url(https://host.invalid) in prose</p>", 0),
        ('<script src="//host.invalid/x.js"></script>', 1),
        ('<link rel="stylesheet" href="theme.css">', 1),
        ("<style>@import 'x.css'; a { background: url(x.png) }</style>", 2),
        ('<p style="background: url(https://host.invalid/x)">x</p>', 1),
        ('<img srcset="a.png 2x">', 1),
    ],
)
def test_external_resources_of_a_page(page: str, found: int) -> None:
    assert len(external_resources(page)) == found


def test_a_picture_is_the_same_svg_in_fewer_bytes() -> None:
    text = '<svg>\n<text id="it\'s">the "host\'s" # 5 %</text></svg>'
    url = html.picture(text)
    assert '"' not in url and "#" not in url and "\n" not in url
    found, given = (ElementTree.fromstring(one) for one in (unquote(url.partition(",")[2]), text))
    assert found[0].attrib == given[0].attrib == {"id": "it's"}
    assert found[0].text == given[0].text


@given(st.dictionaries(st.text(), st.text()))
def test_embedded_data_cannot_end_its_element(data: dict[str, str]) -> None:
    assert "<" not in frame("t", data)["embedded"]


@given(st.floats())
def test_any_number_can_be_written(value: float) -> None:
    assert html.number(value)
    assert html.relative(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1534, "0.153"), (36.7, "36.7"), (4025, "4,025"), (1234.5, "1,230"), (0.0, "0")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert html.number(value) == text


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [
        ("different", "good"),
        ("not decidable on this rig", "open"),
        ("contradicted", "bad"),
        ("replicated", "good"),
        ("not measured", ""),
    ],
)
def test_tone_of_a_verdict(verdict: str | None, tone: str) -> None:
    assert html.tone(verdict) == tone


def test_infeasible_conditions_with_one_reason_are_one_line() -> None:
    infeasible = [{"condition": c, "reason": "r"} for c in ("a", "b", "a")]
    assert html.by_reason(infeasible) == [("r", "a; b")]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (("engine", "SecurityOptions"), "name=seccomp, name=cgroupns"),
        (("kernel", "sysctl", "tcp"), "bbr"),
        (("storage", "engine", "disk"), None),
        (("kernel", "sysctl", "tcp", "deeper"), None),
    ],
)
def test_facts_are_found_by_path(path: tuple[str, ...], found: str | None) -> None:
    facts = {"engine": {"SecurityOptions": ["name=seccomp", "name=cgroupns"]}}
    assert fact_at(facts | {"kernel": {"sysctl": {"tcp": "bbr"}}}, path) == found
