"""The notebook of the ledger: without a campaign, and with several studies' campaigns."""

import json

from matplotlib.figure import Figure
from notebook_pages import execute, words
from test_analysis_notebook import LEDGER, campaign

from labkit.dataset.files import FORMAT


def test_the_ledger_without_a_campaign(monkeypatch, tmp_path):
    (tmp_path / "a-study").mkdir()
    shown, names = execute(monkeypatch, None, LEDGER, data=str(tmp_path))
    assert set(names["rows"]["result"]) == {"not measured"}
    said = words(shown)
    assert "No campaign was found" in said and "No claim was measured" in said
    assert sum(isinstance(value, Figure) for value in shown) == 1
    assert len(names["wrong"]) > 20


def test_the_ledger_of_several_studies(monkeypatch, tmp_path):
    for folder in ("affinity-spinning", "other/20270115"):
        (tmp_path / folder).mkdir(parents=True)
        plan = {"format": FORMAT, "study": folder}
        (tmp_path / folder / "plan.json").write_text(json.dumps(plan))
    shown, names = execute(monkeypatch, campaign(5, shared=False), LEDGER, data=str(tmp_path))
    rows = names["rows"]
    measured = rows[rows["estimate"].notna()]
    assert set(measured["source"]) == {"rohprimardho2015"} and "error" not in set(rows["result"])
    assert measured["why"].str.contains("2 campaigns of one plan").all()
    assert {"replicated", "undecided"} <= set(measured["result"])
    assert names["opened"]["blocks_needed"].notna().any()
    said = words(shown)
    assert "`rohprimardho2015`" in said and "No campaign was found" not in said
