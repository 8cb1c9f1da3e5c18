"""Outputs of notebooks have names, scopes and text alternatives, and can be focused."""

from __future__ import annotations

import pandas as pd
from bs4 import BeautifulSoup

from labkit.report.accessible import make_accessible

HEADING = '<h2 id="Noise">Noise<a class="anchor-link" href="#Noise">¶</a></h2>'
IMAGE = '<div class="output_figure"><img src="data:image/png;base64,AA=="{}></div>'


def _accessible(body: str) -> BeautifulSoup:
    return BeautifulSoup(make_accessible(body), "html.parser")


def _table() -> str:
    frame = pd.DataFrame({"two_words": [1, 2], "b": [3, 4]}, index=["x", "y"])
    return f'<div class="output_html">{frame.rename_axis("placement")._repr_html_()}</div>'


def test_a_table_is_named_by_its_heading_and_the_sentence_above() -> None:
    body = _accessible(f"{HEADING}<p>As medians:</p>{_table()}{_table()}")
    names = ["Table 1 of Noise: As medians", "Table 2 of Noise: As medians"]
    assert [caption.get_text() for caption in body.select("table > caption")] == names
    boxes = body.select(".wide[tabindex='0'][role=group]:has(> table)")
    assert [box["aria-label"] for box in boxes] == names


def test_the_two_rows_of_headings_of_pandas_become_one_with_scopes() -> None:
    body = _accessible(_table())
    rows = body.select("thead tr")
    assert [[cell.get_text() for cell in row.find_all("th")] for row in rows] == [
        ["placement", "two_words", "b"]
    ]
    assert {cell["scope"] for cell in rows[0].find_all("th")} == {"col"}
    assert [cell["scope"] for cell in body.select("tbody th")] == ["row", "row"]
    assert body.select_one("thead th:nth-child(2) wbr") is not None
    assert not body.select("style, [border]")


def test_names_of_columns_and_of_an_index_stay_apart() -> None:
    frame = pd.DataFrame([[1, 2]], index=["x"], columns=["off", "on"])
    frame = frame.rename_axis("row").rename_axis("rps", axis=1)
    body = _accessible(f'<div class="output_html">{frame._repr_html_()}</div>')
    texts = [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in body("tr")[:2]]
    assert texts == [["rps", "off", "on"], ["row", "", ""]]
    assert not [cell for cell in body("th") if not cell.get_text()]


def test_an_image_has_its_heading_and_its_text_alternative() -> None:
    alternative = ' alt="A ratio of 1."'
    body = _accessible(HEADING + IMAGE.format("") + IMAGE.format(alternative))
    assert [image["alt"] for image in body("img")] == [
        "Figure 1 of Noise",
        "Figure 2 of Noise. A ratio of 1.",
    ]
    assert len(body.select(".output_figure.wide[tabindex='0'] > img")) == 2


def test_ids_are_unique_and_links_follow() -> None:
    body = _accessible(HEADING * 3)
    assert [tag["id"] for tag in body("h2")] == ["Noise", "Noise-2", "Noise-3"]
    assert [link["href"] for link in body("a")] == ["#Noise", "#Noise-2", "#Noise-3"]
