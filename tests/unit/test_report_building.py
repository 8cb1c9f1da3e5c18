"""Notebooks are executed as told, failures are kept, pages are complete, nothing is invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import LabkitError, UsageError
from labkit.report import (
    SUMMARY_MIME,
    build_index,
    build_page,
    check_parameters,
    declared_parameters,
    execute,
    read_summary,
)
from labkit.report import text as words
from labkit.report.html import frame
from labkit.report.loads import loads
from labkit.report.topology import draw, in_order

PARAMETERS = 'blocks = 2\nname: str = "a=b"\nrates = [1, 2]  # per second'


def _notebook(folder: Path, *sources: str, parameters: str = PARAMETERS) -> Path:
    cells = [nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    cells += [nbformat.v4.new_code_cell(source) for source in sources]
    path = folder / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_declared_parameters_are_those_of_the_tagged_cell(tmp_path: Path) -> None:
    assert declared_parameters(_notebook(tmp_path, "other = 1")) == ["blocks", "name", "rates"]


@pytest.mark.parametrize("build", [execute, build_page])
def test_an_unknown_parameter_is_an_error_before_anything_runs(tmp_path: Path, build: Any) -> None:
    notebook = _notebook(tmp_path, "import pathlib; pathlib.Path('ran').touch()")
    more = {"title": "t"} if build is build_page else {}
    with pytest.raises(UsageError, match="'block'") as caught:
        build(notebook, tmp_path / "out" / "page.html", parameters={"block": 5}, **more)
    assert "blocks, name, rates" in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) in (
        ["notebook.ipynb"],
        ["notebook.ipynb", "out"],
    )


def test_a_file_that_is_no_notebook_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_text("[]")
    with pytest.raises(UsageError, match="cannot read"):
        check_parameters(tmp_path / "x.ipynb", {})
    with pytest.raises(UsageError, match="cannot read"):
        check_parameters(tmp_path / "none.ipynb", {})


def test_execute_injects_parameters_and_runs_in_the_working_directory(tmp_path: Path) -> None:
    notebook = _notebook(
        tmp_path, "import pathlib; pathlib.Path('ran').write_text(f'{blocks}{name}')"
    )
    (tmp_path / "cwd").mkdir()
    output = execute(
        notebook, tmp_path / "out.ipynb", {"blocks": 7, "name": "c=d"}, cwd=tmp_path / "cwd"
    )
    assert output == tmp_path / "out.ipynb"
    assert (tmp_path / "cwd" / "ran").read_text() == "7c=d"
    assert not list(tmp_path.glob(".*"))


def test_a_failing_notebook_is_kept_with_its_error(tmp_path: Path) -> None:
    notebook = _notebook(tmp_path, "raise KeyError('on purpose')")
    with pytest.raises(LabkitError, match="failed in cell") as caught:
        execute(notebook, tmp_path / "out.ipynb")
    kept = tmp_path / "out.failed.ipynb"
    assert caught.value.evidence["notebook"] == str(kept)
    assert "KeyError: 'on purpose'" in caught.value.why
    assert "on purpose" in kept.read_text()
    assert not (tmp_path / "out.ipynb").exists()


def test_time_that_is_up_interrupts_and_lets_the_cell_take_down(tmp_path: Path) -> None:
    forever = (
        "import pathlib, time\ntry:\n    while True:\n        time.sleep(0.05)\n"
        "finally:\n    pathlib.Path('down').touch()"
    )
    notebook = _notebook(tmp_path, forever, "pathlib.Path('went-on').touch()")
    with pytest.raises(LabkitError, match="failed"):
        execute(notebook, tmp_path / "out.ipynb", timeout=3)
    assert (tmp_path / "down").exists()
    assert not (tmp_path / "went-on").exists()


def test_a_kernel_that_is_interrupted_interrupts_whoever_runs_it(tmp_path: Path) -> None:
    source = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        execute(_notebook(tmp_path, source), tmp_path / "out.ipynb")
    assert "KeyboardInterrupt" in (tmp_path / "out.failed.ipynb").read_text()


def test_an_interrupt_beside_a_rig_is_one_sentence_in_the_notebook(tmp_path: Path) -> None:
    source = "from labkit.errors import Interrupted\nraise Interrupted from KeyboardInterrupt()"
    with pytest.raises(KeyboardInterrupt):
        execute(_notebook(tmp_path, source), tmp_path / "out.ipynb")
    cells = nbformat.read(tmp_path / "out.failed.ipynb", as_version=4).cells
    (shown,) = [one for cell in cells for one in cell.get("outputs", []) if "traceback" in one]
    sentence = "interrupted; what was measured is kept, and the same command goes on"
    assert shown["traceback"] == [sentence]


def test_a_page_that_would_load_from_elsewhere_is_refused(tmp_path: Path) -> None:
    notebook = _notebook(
        tmp_path,
        'from IPython.display import HTML\nHTML(\'<img src="https://host.invalid/a.png" alt="">\')',
    )
    with pytest.raises(LabkitError, match="load from elsewhere") as caught:
        build_page(notebook, tmp_path / "page.html", title="t")
    assert "host.invalid" in caught.value.why
    assert not (tmp_path / "page.html").exists()


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
def test_what_a_browser_would_load_is_found(page: str, found: int) -> None:
    assert len(loads(page)) == found


def test_summary_goes_from_the_notebook_into_the_page_and_the_index(tmp_path: Path) -> None:
    summary = {"title": "A <b>study</b>", "headlines": [{"text": "</script><b>", "verdict": "x"}]}
    shown = {SUMMARY_MIME: summary}
    notebook = _notebook(
        tmp_path, f"from IPython.display import display\ndisplay({shown!r}, raw=True)"
    )
    page = build_page(notebook, tmp_path / "page.html", title="Title")
    assert read_summary(page) == {**summary, "page_title": "Title"}
    index = build_index([page], tmp_path / "index.html", failures={"other": "no engine"})
    text = index.read_text()
    assert "A &lt;b&gt;study&lt;/b&gt;" in text
    assert 'href="page.html"' in text
    assert "no engine" in text
    assert "not stated" in text


@pytest.mark.parametrize(("blocks", "pilot"), [(1, True), (4, True), (5, False), (None, False)])
def test_the_index_names_pilots(tmp_path: Path, blocks: int | None, pilot: bool) -> None:
    mime = f"{{{SUMMARY_MIME!r}: {{'study': 'x', 'blocks': {blocks}}}}}"
    source = f"from IPython.display import display\ndisplay({mime}, raw=True)"
    page = build_page(_notebook(tmp_path, source), tmp_path / "x.html", title="t")
    text = build_index([page], tmp_path / "index.html").read_text()
    assert (">pilot</span>" in text) == pilot


def test_an_index_of_nothing_says_so(tmp_path: Path) -> None:
    text = build_index([], tmp_path / "index.html").read_text()
    assert "No study has been reported yet" in text
    assert "topology is not stated" in text


@given(st.dictionaries(st.text(), st.text()))
def test_embedded_data_cannot_end_its_element(data: dict[str, str]) -> None:
    assert "<" not in frame("t", data)["embedded"]


@given(st.floats())
def test_any_number_can_be_written(value: float) -> None:
    assert words.number(value)
    assert words.relative(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1534, "0.153"), (36.7, "36.7"), (4025, "4,025"), (1234.5, "1,234"), (0.0, "0.0")],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("verdict", "tone"),
    [
        ("different", "good"),
        ("not decidable on this rig", "open"),
        ("not replicated", "bad"),
        ("replicated", "good"),
        (None, "open"),
    ],
)
def test_tone_of_a_verdict(verdict: str | None, tone: str) -> None:
    assert words.tone(verdict) == tone


def test_refusals_with_one_reason_are_one_line() -> None:
    refusals = [{"condition": c, "reason": "r"} for c in ("a", "b", "a")]
    assert words.by_reason(refusals) == [("r", "a; b")]


@pytest.mark.parametrize("hosts", [0, 1, 2, 3, 6])
def test_topology_names_every_host(hosts: int) -> None:
    rig = {"hosts": {f"host{i}": {"addresses": f"198.18.0.{i}"} for i in range(hosts)}}
    drawn = draw(rig)
    assert all(f"host{i}" in drawn for i in range(hosts))
    assert ("links not stated" in drawn) == (hosts > 1)


def test_topology_escapes_what_it_is_given() -> None:
    assert "<b>" not in draw({"hosts": {"<b>": {"addresses": ["<b>"]}}, "links": ["<b>"]})


def test_roles_are_shown_in_a_fixed_order() -> None:
    assert list(in_order({"all": 1, "zz": 2, "sut": 3, "generator": 4})) == [
        "generator",
        "sut",
        "all",
        "zz",
    ]
