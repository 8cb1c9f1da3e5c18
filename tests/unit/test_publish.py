"""Pages load nothing, escape every text, and one that fails does not stop the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat.v4 as nb
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from hypothesis import given
from hypothesis import strategies as st

from labkit import cli
from labkit.analysis import claims, overview
from labkit.analysis.html import VERDICTS, Html, Table
from labkit.analysis.publish import ANSWER, page, report

HOSTILE = "<script src=https://evil.example/x.js></script><img src=x onerror=alert(1)>"
TEXT = st.text(st.characters(exclude_categories=["C", "Z"]))
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"><text>5 us</text></svg>'


def write(path: Path, *cells: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(cells):
        cell["id"] = str(number)
    path.write_text(json.dumps(nb.new_notebook(cells=list(cells))))
    return path


def shown(data: dict[str, Any], **metadata: Any) -> Any:
    output = nb.new_output("display_data", data=data, metadata=metadata)
    return nb.new_code_cell("x = 1 < 2", outputs=[output])


@pytest.fixture(scope="module")
def soup(tmp_path_factory: pytest.TempPathFactory) -> BeautifulSoup:
    """A page with hostile texts in every kind of output."""
    folder = tmp_path_factory.mktemp("page")
    table = Table(pd.DataFrame({HOSTILE: [HOSTILE]}), HOSTILE)
    stream = nb.new_output("stream", name="stdout", text=HOSTILE)
    error = nb.new_output("error", ename=HOSTILE, evalue="", traceback=[HOSTILE])
    executed = write(
        folder / "n.ipynb",
        nb.new_markdown_cell("# A <title>\n\nText."),
        nb.new_code_cell("blocks: int = 5", metadata={"tags": ["parameters"]}),
        nb.new_code_cell("secret", metadata={"tags": ["hide"]}),
        shown({"text/html": table._repr_html_(), "text/plain": "Html"}),
        shown({"text/markdown": HOSTILE}),
        shown({"text/plain": HOSTILE}),
        shown({"application/javascript": "alert(1)", "text/plain": "js"}),
        shown({"image/svg+xml": SVG}, **{"image/svg+xml": {"alt": 'a "figure"'}}),
        nb.new_code_cell(HOSTILE, outputs=[stream, error]),
    )
    page(executed, folder / "page.html", note=HOSTILE)
    return BeautifulSoup((folder / "page.html").read_text(), "html.parser")


def test_a_page_loads_nothing_and_texts_of_data_are_no_elements(soup: Any) -> None:
    assert soup.find_all(["script", "iframe", "object", "embed"]) == []
    assert {one.get("src", "data:")[:5] for one in soup.find_all(True)} == {"data:"}
    assert [one["href"] for one in soup.find_all("link")] == ["data:,"]
    assert "url(" not in soup.style.get_text() and "@import" not in soup.style.get_text()
    assert not [one for one in soup.find_all(True) for name in one.attrs if name.startswith("on")]
    policy = soup.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
    assert policy.startswith("default-src 'none'") and "script-src" not in policy
    # Note, caption, label, heading, cell, markdown, text, code, stream, error and traceback.
    assert soup.get_text().count("<script src=https://evil.example/x.js>") == 10


def test_a_page_is_accessible_and_leaves_out_what_is_hidden(soup: Any) -> None:
    assert soup.html["lang"] == "en" and soup.title.get_text() == "A <title>"
    assert soup.find(class_="skip")["href"] == "#" + soup.main["id"]
    assert soup.find(class_="figure")["aria-label"] == 'a "figure"'
    assert soup.find("svg").get_text() == "5 us"
    box = soup.find(attrs={"role": "group"})
    assert box["tabindex"] == "0" and box.caption and box.find("th", {"scope": "col"})
    assert all(one.find_parent("details") for one in soup.find_all("pre", string="x = 1 < 2"))
    assert "secret" not in soup.get_text() and "blocks: int" not in soup.get_text()


def test_the_same_notebook_gives_the_same_bytes(tmp_path: Path) -> None:
    executed = write(tmp_path / "n.ipynb", nb.new_markdown_cell("# T"), shown({"text/html": SVG}))
    texts = []
    for _ in range(2):
        page(executed, tmp_path / "page.html")
        texts.append((tmp_path / "page.html").read_bytes())
    assert texts[0] == texts[1] and not list(tmp_path.glob(".*"))


@given(st.lists(TEXT, min_size=1), TEXT)
def test_every_text_of_a_table_is_shown_as_it_is(texts: list[str], caption: str) -> None:
    frame = pd.DataFrame({"name": texts, "number": 1.5, "own": [Html("<b>x</b>")] * len(texts)})
    soup = BeautifulSoup(Table(frame, caption)._repr_html_(), "html.parser")
    assert [row.th.get_text() for row in soup.tbody.find_all("tr")] == texts
    assert len(soup.tbody.find_all("b")) == len(texts) == len(soup.find_all("td", class_="number"))
    assert soup.caption.get_text() == caption


def campaign(folder: Path, study: str, blocks: int) -> None:
    folder.mkdir(parents=True)
    plan = {"format": 2, "study": study, "factors": {"at": ["a"]}, "settings": {}, "margin": 0.02}
    plan |= {
        "rig": {"name": "virtual"},
        "conditions": [{"levels": {"at": "a"}}],
        "order": [[0]] * blocks,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    trials = {"trial": [f"b{one}" for one in range(blocks)], "block": range(1, blocks + 1)}
    trials |= {"attempt": 1, "position": 1, "at": "a", "status": "ok"}
    pd.DataFrame(trials).to_parquet(folder / "trials.parquet")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with three studies, of which one fails, and with index and ledger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(claims, "ledger", lambda *folders: pd.DataFrame({"in": map(str, folders)}))
    (tmp_path / "data" / "reference").mkdir(parents=True)
    write(tmp_path / "notebooks/00-start.ipynb")
    tag = {"tags": ["parameters"]}
    answer = f'display({{"{ANSWER}": {{"data": data}}, "text/plain": ""}}, raw=True)'
    for name, source in {"10-x": answer, "20-y": answer, "30-z": "1 / 0", "40-none": "1"}.items():
        write(
            tmp_path / f"notebooks/analysis/{name}.ipynb",
            nb.new_markdown_cell(f"# {name}"),
            nb.new_code_cell('data: str = ""\nledger: str = ""', metadata=tag),
            nb.new_code_cell(source),
        )
    for name, more in {"90-ledger": "", "00-summary": '\nanswers: str = ""'}.items():
        source = "print(open(ledger).read())" + ("\nprint(open(answers).read())" if more else "")
        write(
            tmp_path / f"notebooks/{name}.ipynb",
            nb.new_markdown_cell(f"# {name}"),
            nb.new_code_cell(f'ledger: str = ""{more}', metadata=tag),
            nb.new_code_cell(source),
        )
    for name, study, blocks in [("x", "x", 9), ("y", "y", 9), ("z", "z", 2)]:
        campaign(tmp_path / "data/reference" / name, study, blocks)
    for name, study, blocks in [("ask/x", "x", 6), ("quick/x", "x", 7), ("ask/y", "y", 5)]:
        campaign(tmp_path / "data/local" / name / "one", study, blocks)
    return tmp_path


def test_every_study_has_a_page_of_the_campaign_that_counts(project: Path) -> None:
    out = project / "out"
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", "--output", str(out)])
    assert caught.value.code == 1
    answers = json.loads((out / "answers.json").read_text())
    assert {one["page"]: one.get("data") for one in answers} == {
        "10-x.html": "data/local/quick/x/one",
        "20-y.html": "data/reference/y",
        "30-z.html": None,
    }
    pages = {"10-x.html", "20-y.html", "30-z.html", "90-ledger.html", "index.html"}
    names = {path.name for path in out.iterdir()}
    assert names == pages | {"ledger.csv", "answers.json", "notebooks"}
    assert [one.get("source") for one in answers] == ["here", "reference", None]
    assert "Measured here: data/local/quick/x/one" in (out / "10-x.html").read_text()
    assert "ZeroDivisionError" in (out / "30-z.html").read_text()
    index = (out / "index.html").read_text()
    assert "data/local/quick/x/one" in index and "ZeroDivisionError" in index


def test_a_folder_shows_the_campaigns_that_are_in_it(project: Path) -> None:
    answers = report(project / "out", project / "data/local/ask", say=lambda text: None)
    assert [one["data"] for one in answers] == ["data/local/ask/x/one", "data/local/ask/y/one"]
    assert (project / "out/ledger.csv").read_text() == f"in\n{project}/data/local/ask\n"


def test_the_ledger_prints_findings_and_writes_the_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pd.DataFrame(
        {"source": ["jha2018", "rohprimardho2015"], "verdict": "holds", "says": "s"}
    ).assign(needs="", why="w")
    monkeypatch.setattr(claims, "ledger", lambda *folders: rows)
    monkeypatch.setattr(claims, "findings", lambda ledger: ledger)
    cli.main(["ledger", "--paper", "jha2018", "--csv", str(tmp_path / "l.csv")])
    assert capsys.readouterr().out.startswith(f"holds{' ' * 15}s (jha2018)\n{' ' * 20}w\n\n")
    assert list(pd.read_csv(tmp_path / "l.csv")["source"]) == ["jha2018"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["ledger", "--paper", "nosuch"])
    assert caught.value.code == 2


def test_the_index_and_the_ledger_escape_and_count() -> None:
    row = {"id": "i", "source": "jha2018", "says": HOSTILE, "place": "p"}
    row |= {"published": 1.2, "n_blocks": 9, "marks": "•", "needs": "n", "why": HOSTILE}
    row |= {"dataset": HOSTILE, "claims": "i", "sentence": HOSTILE}
    rows = pd.DataFrame([{**row, "verdict": word} for word in VERDICTS])
    answer = {"page": "p.html", "title": HOSTILE, "study": "s", "source": "reference", "blocks": 3}
    answer |= {"sentences": [HOSTILE], "rig": HOSTILE, "measured": ""}
    answer["rows"] = [{"ratio": "1.2x [1.1, 1.3]", "n_blocks": 5.0}]
    answers = [answer, {"page": "q.html", "title": "q", "error": HOSTILE}]
    parts = [
        overview.opening(rows, answers),
        overview.findings_table(rows),
        overview.verdict_bars(rows),
        overview.paper(rows, "jha2018"),
        overview.answers_table(answers),
    ]
    soup = BeautifulSoup("".join(part._repr_html_() for part in parts), "html.parser")
    assert not soup.find_all(["script", "img"])
    assert [one.get_text() for one in soup.select("tbody .verdict")] == [*VERDICTS, *VERDICTS]
    assert len(soup.select(".alarm")) == 3 and soup.find("tr", id="i")
