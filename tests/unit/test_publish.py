"""Pages load nothing, escape every text, and one that fails does not stop the others."""

import json

import nbformat.v4 as nb
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from made_up import write

from labkit import cli
from labkit.analysis import claims, publish, tables
from labkit.analysis.publish import ANSWER, page
from labkit.analysis.tables import VERDICTS, Table
from labkit.data import load
from labkit.errors import LabkitError

HOSTILE = "<script src=https://evil.example/x.js></script><img src=x onerror=alert(1)>"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="10"><text>5 us</text></svg>'


def notebook(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    for number, cell in enumerate(cells):
        cell["id"] = str(number)
    path.write_text(json.dumps(nb.new_notebook(cells=list(cells))))
    return path


def shown(data, **metadata):
    output = nb.new_output("display_data", data=data, metadata=metadata)
    return nb.new_code_cell("x = 1 < 2", outputs=[output])


@pytest.fixture(scope="module")
def soup(tmp_path_factory):
    """A page with hostile texts in every kind of output."""
    folder = tmp_path_factory.mktemp("page")
    table = Table(pd.DataFrame({HOSTILE: [HOSTILE]}), HOSTILE)
    stream = nb.new_output("stream", name="stdout", text=HOSTILE)
    error = nb.new_output("error", ename=HOSTILE, evalue="", traceback=[HOSTILE])
    executed = notebook(
        folder / "n.ipynb",
        nb.new_markdown_cell("# A <title>\n\nText."),
        nb.new_code_cell("blocks: int = 5", metadata={"tags": ["parameters"]}),
        nb.new_code_cell("secret", metadata={"tags": ["hide"]}),
        shown({"text/html": table._repr_html_(), "text/plain": "Html"}),
        shown({"text/markdown": HOSTILE}),
        shown({"text/plain": HOSTILE}),
        shown({"application/javascript": "alert(1)", "text/plain": "js"}),
        shown({"image/svg+xml": SVG}, **{"image/svg+xml": {"alt": 'a "figure"', "wide": SVG}}),
        nb.new_code_cell(HOSTILE, outputs=[stream, error]),
    )
    page(executed, folder / "page.html", HOSTILE)
    first = (folder / "page.html").read_bytes()
    page(executed, folder / "page.html", HOSTILE)
    assert (folder / "page.html").read_bytes() == first
    return BeautifulSoup(first, "html.parser")


def test_a_page_loads_nothing_and_texts_of_data_are_no_elements(soup):
    assert soup.find_all(["script", "iframe", "object", "embed"]) == []
    assert {one.get("src", "data:")[:5] for one in soup.find_all(True)} == {"data:"}
    assert [one["href"] for one in soup.find_all("link")] == ["data:,"]
    assert "url(" not in soup.style.get_text() and "@import" not in soup.style.get_text()
    assert not [one for one in soup.find_all(True) for name in one.attrs if name.startswith("on")]
    policy = soup.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
    assert policy.startswith("default-src 'none'") and "script-src" not in policy
    # Note, caption, label, heading, cell, markdown, text, code, stream, error and traceback.
    assert soup.get_text().count("<script src=https://evil.example/x.js>") == 10


def test_a_page_has_its_title_and_texts_of_figures_and_leaves_out_what_is_hidden(soup):
    assert soup.title.get_text() == "A <title>" and soup.find("svg").get_text() == "5 us"
    assert [one["aria-label"] for one in soup.select(".broad, .narrow")] == 2 * ['a "figure"']
    assert all(one.find_parent("details") for one in soup.find_all("pre", string="x = 1 < 2"))
    assert "secret" not in soup.get_text() and "blocks: int" not in soup.get_text()


def test_a_page_without_a_report_has_no_links_to_others_and_each_answer_once(project):
    campaign = load(project / "data/local/ask/x")
    (answer,) = publish.study_pages(project / "reports", campaign)
    soup = BeautifulSoup((project / "reports" / answer["page"]).read_text(), "html.parser")
    assert answer["data"] == "data/local/ask/x/one" and not soup.find("nav")
    assert not soup.find("pre", string=answer["data"])


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with three studies, of which one fails; its notebooks show their parameters."""

    def execute(source, executed, parameters, *, cwd):
        files = (cwd / parameters[one] for one in ("ledger", "answers") if one in parameters)
        data = {"text/plain": "".join(path.read_text() for path in files)}
        if "data" in parameters:
            data = {"text/plain": parameters["data"], ANSWER: {"data": parameters["data"]}}
        if source.stem == "30-z":
            executed = executed.with_name("30-z.failed.ipynb")
        notebook(executed, nb.new_markdown_cell(f"# {source.stem}"), shown(data))
        if source.stem == "30-z":
            raise LabkitError("it failed")

    monkeypatch.setattr(publish, "execute", execute)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(claims, "ledger", lambda *folders: pd.DataFrame({"in": map(str, folders)}))
    for name in ("00-start", "analysis/10-x", "analysis/20-y", "analysis/30-z"):
        notebook(tmp_path / f"notebooks/{name}.ipynb")
    # Ten blocks, of which the trials of so many succeeded.
    campaigns = {"reference/x": 9, "reference/y": 9, "reference/z": 2}
    campaigns |= {"local/ask/x/one": 6, "local/quick/x/one": 7, "local/ask/y/one": 5}
    for name, complete in campaigns.items():
        study = name.removesuffix("/one")[-1]
        write(
            tmp_path / "data" / name,
            {"at": ["a"]},
            lambda at, block, last=complete: {"ns": 1.0} if block <= last else None,
            study=study,
        )
    return tmp_path


def test_every_study_has_a_page_of_the_campaign_that_counts(project):
    out = project / "reports"
    with pytest.raises(SystemExit) as caught:
        cli.main(["report"])
    assert caught.value.code == 1
    answers = json.loads((out / "answers.json").read_text())
    assert [(one["page"], one.get("data"), one.get("source")) for one in answers] == [
        ("10-x.html", "data/local/quick/x/one", "here"),
        ("20-y.html", "data/reference/y", "reference"),
        ("30-z.html", None, None),
    ]
    pages = {path.name: path.read_text() for path in out.glob("*.html")}
    assert set(pages) == {"10-x.html", "20-y.html", "30-z.html", "90-ledger.html", "index.html"}
    assert "Measured here: data/local/quick/x/one" in pages["10-x.html"]
    assert all(text in pages["index.html"] for text in ("data/local/quick/x/one", "it failed"))
    assert "data/local" in pages["90-ledger.html"] and "<title>30-z</title>" in pages["30-z.html"]
    for text in pages.values():
        links = [one["href"] for one in BeautifulSoup(text, "html.parser").select("nav a")]
        assert links == ["index.html", "90-ledger.html"]


def test_a_folder_shows_the_campaigns_in_it_each_executed_once(project):
    folder = project / "data/local/ask"
    answers = publish.report(project / "out", folder)
    assert [one["data"] for one in answers] == ["data/local/ask/x/one", "data/local/ask/y/one"]
    assert (project / "out/ledger.csv").read_text() == f"in\n{folder}\n"
    executed = project / "out/notebooks/10-x.ipynb"
    executed.write_text(executed.read_text().replace("# 10-x", "# executed before"))
    done = [load(folder / "x").path]
    again = publish.report(project / "out", folder, done=done)
    assert [one["title"] for one in again] == ["executed before", "20-y"]


def test_the_ledger_prints_findings_and_writes_the_claims(tmp_path, monkeypatch, capsys):
    rows = pd.DataFrame({"source": ["jha2018", "rohprimardho2015"], "says": "s", "why": "w"})
    rows = rows.assign(verdict="holds", needs="")
    monkeypatch.setattr(claims, "ledger", lambda *folders: rows)
    monkeypatch.setattr(claims, "findings", lambda ledger: ledger)
    cli.main(["ledger", "--paper", "jha2018", "--csv", str(tmp_path / "l.csv")])
    assert capsys.readouterr().out.startswith(f"holds{' ' * 15}s (jha2018)\n{' ' * 20}w\n\n")
    assert list(pd.read_csv(tmp_path / "l.csv")["source"]) == ["jha2018"]


def test_the_index_and_the_ledger_escape_and_count():
    row = {"id": "i", "source": "jha2018", "place": "p", "claims": "i", "marks": "•", "needs": "n"}
    row |= dict.fromkeys(["says", "why", "dataset", "sentence"], HOSTILE)
    row |= {"published": 1.2, "n_blocks": 9}
    rows = pd.DataFrame([{**row, "verdict": word} for word in VERDICTS])
    answer = {"page": "p.html", "title": HOSTILE, "study": "s", "source": "reference", "blocks": 3}
    answer |= {"rig": HOSTILE, "measured": ""}
    answer["rows"] = [{"sentence": HOSTILE, "n_blocks": 5.0}]
    answers = [answer, {"page": "q.html", "title": "q", "error": HOSTILE}]
    answers.append({**answer, "rows": []})
    parts = [tables.opening(rows, answers), tables.answers_table(answers)]
    parts += [tables.findings_table(rows), tables.verdict_bars(rows), tables.paper(rows, "jha2018")]
    soup = BeautifulSoup("".join(part._repr_html_() for part in parts), "html.parser")
    assert not soup.find_all(["script", "img"])
    assert [one.get_text() for one in soup.select("tbody .verdict")] == [*VERDICTS, *VERDICTS]
    assert len(soup.select(".alarm")) == 3 and soup.find("tr", id="i")
