"""From a number to its trials: through pandas, as a query, on a page, and the same page twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape

import nbformat
import pandas as pd
import pytest
from small_datasets import write_campaign

import labkit
from labkit.analysis import compare as comparing
from labkit.analysis.origin import follows, mark, origin_of, stated, track, union
from labkit.claims.ledger import origin
from labkit.dataset.selecting import query_for
from labkit.report import build_index, repeating
from labkit.report.origin import claimed


def trials_of(value):
    origin = origin_of(value)
    return origin and "".join(sorted(origin.trials))


@pytest.fixture
def frame():
    return track(
        pd.DataFrame(
            {"trial": list("abcd"), "place": list("xxyy"), "block": [1, 2] * 2, "v": [1.0, 2, 3, 4]}
        )
    )


RESULTS = {
    "a filter": lambda f: f,
    "means": lambda f: f.groupby("place")[["v"]].mean(),
    "a column": lambda f: f["v"] * 2,
    "texts": lambda f: f[["v"]].map(str),
    "an index": lambda f: f.set_index("place")[["v"]].round(1).T,
    "unstacked": lambda f: f.groupby(["place", "block"])["v"].mean().unstack(),
    "side by side": lambda f: pd.concat({"here": f[["v"]], "paper": f[["v"]]}, axis=1),
}


@pytest.mark.parametrize("name", RESULTS)
def test_what_pandas_makes_knows_its_trials(frame, name):
    made = RESULTS[name](frame[frame["place"] == "x"])
    assert trials_of(made) == "ab"


def test_two_parts_together_are_of_both(frame):
    x, y = frame[frame["place"] == "x"], frame[frame["place"] == "y"]
    assert trials_of(pd.concat([x, y])) == "abcd"
    assert trials_of(x.groupby("block")["v"].mean() / y.groupby("block")["v"].mean()) == "abcd"
    filled = y.assign(base=x["v"].reset_index(drop=True))
    assert trials_of(filled.groupby("block")["base"].mean()) == "abcd"
    assert trials_of(filled[filled["block"] == 1]) == "abc"


def test_columns_are_those_that_were_looked_at(frame):
    assert origin_of(frame.groupby("place")[["v"]].mean()).columns == ("v",)
    table = comparing.compare(
        frame, value="v", condition="place", baseline="x", block="block", margin=0.1
    )
    assert (trials_of(table), origin_of(table).columns) == ("abcd", ("v",))
    assert trials_of(table[table["n_blocks"] > 0]) == "abcd"


def test_what_has_no_trials_says_so(frame):
    @follows
    def made(*tables):
        return pd.DataFrame({"a": [1]})

    assert origin_of(made(pd.DataFrame({"v": [1]}))) is None
    assert trials_of(made([frame.head(1)], {"b": frame.tail(1)})) == "ad"
    assert origin_of(stated(pd.DataFrame(), "plan.json")).stated == "plan.json"
    assert union([stated(pd.DataFrame(), "plan.json")]) is None
    assert mark("words", origin_of(frame)) == "words"


LEVELS = [
    {"place": place, "wait": wait, "size": size}
    for place in ("bare", "docker host", "it's")
    for wait in ("block", "spin")
    for size in (1, 64)
]
TABLE = pd.DataFrame(
    [
        {"trial": f"b{block}-p{place}", "block": block, "copy": 1, **levels}
        for block in (1, 2)
        for place, levels in enumerate(LEVELS)
    ]
)
QUERIES = {
    "size == 64": "size == 64",
    "place in ['bare', \"it's\"] and wait == 'spin'": None,
    "block == 2": "block == 2",
    "(place == 'bare' and wait == 'block') or (place == 'docker host' and wait == 'spin')": None,
    "(place == 'bare' and size == 1) or (wait == 'spin' and size == 64)": None,
    "trial in ['b1-p3', 'b2-p4', 'b2-p11']": "trial in ['b1-p3', 'b2-p11', 'b2-p4']",
}


@pytest.mark.parametrize("wanted", QUERIES)
def test_a_query_gives_these_very_rows(wanted):
    meant = set(TABLE.query(wanted)["trial"])
    query = query_for(TABLE, meant, ["place", "wait", "size"])
    assert set(TABLE.query(query)["trial"]) == meant
    assert QUERIES[wanted] in (None, query)
    if QUERIES[wanted] is None:
        assert "trial" not in query


def test_all_rows_take_no_query():
    assert query_for(TABLE, set(TABLE["trial"]), ["place"]) == ""


@pytest.mark.parametrize("study", ["affinity-spinning", "application-networks", "rps"])
def test_the_command_measures_the_plan_again(study):
    plan = labkit.load(labkit.project("data/reference") / study).plan
    command = repeating.command(plan)
    assert command == f"labkit run {study} --profile quick -p seed {plan['seed']}"
    other = plan | {"blocks": 7, "settings": plan["settings"] | {"idle": "held, at 0"}}
    assert repeating.command(other).endswith(" -p blocks 7 -p idle 'held, at 0'")
    assert repeating.command({"study": "nowhere"}) == ""


CELLS = [
    "page = chapters.Page(data, value='rtt_ns')\npage.join('place', ['placement'])",
    "page.what_was_run()",
    "part = page.part(page.trials, {'placement': 'docker bridge'})\n"
    "display(part.groupby('block')[['median']].mean())",
    "found = factor_effect(page.paired, 'placement', list(page.plan['factors']['placement']), [],"
    " value='median', margin=0.02)\nshow(found)",
    "plots.ecdf(page.samples, value='rtt_ns', hue='placement')",
    "page.conclusions(headlines_of(found, 'a cost'), title='Echo')",
]
BUILD = """
import sys
from pathlib import Path
from labkit.report import build_page
build_page(Path(sys.argv[1]), Path(sys.argv[2]), title="Echo", parameters={"data": sys.argv[3]})
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Return one small page, built by two processes that hash differently, and its campaign."""
    folder = tmp_path_factory.mktemp("origin")
    campaign = write_campaign(folder / "echo")
    plan = labkit.load(campaign).plan
    more = {"settings": {"messages": 4}, "seed": 1, "blocks": 3, "refusals": []}
    (campaign / "plan.json").write_text(json.dumps(plan | more))
    first = nbformat.v4.new_code_cell("data = ''", metadata={"tags": ["parameters"]})
    names = "from labkit import chapters\nfrom labkit.analysis import plots\n"
    names += "from labkit.analysis.summary import factor_effect\n"
    names += "from labkit.chapters import headlines_of, show\nfrom IPython.display import display"
    cells = [first, *map(nbformat.v4.new_code_cell, [names, *CELLS])]
    notebook = folder / "echo.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, notebook, folder / seed / "echo.html", campaign],
            env=os.environ | {"PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": "1700000000"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    for one in running:
        _, said = one.communicate()
        assert one.returncode == 0, said
    return [(folder / seed / "echo.html").read_bytes() for seed in ("1", "2")], campaign


def test_a_page_is_the_same_byte_for_byte(twice):
    (first, second), _ = twice
    assert first == second
    assert b"on 2023-11-14 22:13 UTC" in first


def test_each_cell_leads_to_its_rows(twice):
    (first, _), campaign = twice
    text = first.decode()
    parts = re.findall(r'<details class="whence".*?</details>', text, re.DOTALL)
    said = [unescape(re.search(r"<summary>(.*?)</summary>", one)[1]) for one in parts]
    head = "Where these numbers come from: "
    every, some = f"{head}6 of 6 trials of echo", f"{head}3 of 6 trials of echo"
    assert said == [f"{every}; the campaign's plan and facts", some, every, every, every]
    code = unescape(re.search(r"<pre.*?>(.*?)</pre>", parts[1], re.DOTALL)[1])
    assert "placement == 'docker bridge'" in code
    names = {}
    exec(code.replace('labkit.project("echo")', repr(str(campaign))), names)
    assert sorted(names["rows"]["trial"]) == ["b01-p02", "b02-p02", "b03-p02"]
    assert len(names["samples"]) == 12
    for anchor in re.findall(r'href="#(rows[^"]*)"', text):
        assert f'id="{anchor}"' in text
    rows = re.search(r'<section id="rows".*?</section>', text, re.DOTALL)[0]
    assert rows.count('<th scope="row">') == 6
    assert "median of rtt_ns" in rows
    concluded = unescape(parts[-1])
    assert 'id="concluded"' in concluded
    assert "<li>a cost: 6 rows</li>" in concluded


def test_the_index_leads_to_where_conclusions_come_from(twice, tmp_path):
    (first, _), _ = twice
    (tmp_path / "echo.html").write_bytes(first)
    index = build_index([tmp_path / "echo.html"], tmp_path / "index.html").read_text()
    assert '<a href="echo.html#concluded"' in index


def test_a_wrong_date_is_refused(monkeypatch):
    from labkit.report.html import frame

    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(labkit.LabkitError, match="is no time"):
        frame("Echo", {})


def test_a_claim_leads_to_the_trials_that_it_was_held_against(tmp_path):
    place = "data/reference/affinity-spinning"
    campaign = labkit.load(labkit.project(place))
    rows = labkit.ledger(campaign)
    (tmp_path / "10-affinity-spinning.html").touch()
    whence = claimed(rows, tmp_path)
    measured = rows[rows["estimate"].notna()]
    row = measured.iloc[0].to_dict()
    text = unescape(str(whence(row)))
    assert 'href="10-affinity-spinning.html#rows"' in text
    assert f"labkit ledger {place} --source {row['source']}" in text
    query = re.search(r"rows</a>: <code>(.*?)</code>", text)[1]
    assert set(campaign.ok.query(query)["trial"]) == origin(measured.head(1)).trials
    absent = rows[rows["result"] == "not measured"].iloc[0].to_dict()
    assert str(whence(absent)) == ""
