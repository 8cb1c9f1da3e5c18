"""The analysis of a study on campaigns made up: it renders from a pilot to a full one."""

import nbformat
import numpy as np
import pytest
from affinity_campaigns import FACTORS, campaign, observe
from matplotlib.figure import Figure
from notebook_pages import ANALYSES, execute, summary_of, words

NOTEBOOK = ANALYSES / "10-affinity-spinning.ipynb"
LEDGER = ANALYSES / "90-ledger.ipynb"


def test_a_campaign_is_decided(monkeypatch):
    failing = {(2, ("docker host", "split", "spin"))}
    stand_in = campaign(6, failing=failing, ladder=("block", "spin"))
    shown, names = execute(
        monkeypatch, stand_in, NOTEBOOK, data="data/local/quick/affinity-spinning/x"
    )
    summary = summary_of(shown)
    assert (summary["blocks"], summary["failed"], summary["profile"]) == (6, 2, "quick")
    assert summary["measured"] == "2027-01-15" and not summary["reference"]
    assert 0 < summary["decidable_margin"] < 0.1 and len(summary["noise_floor"]) == 5
    verdicts = {line["text"]: line["verdict"] for line in summary["headlines"]}
    assert verdicts["docker host: spinning against blocking, bound ends"] == "different"
    assert verdicts["docker bridge against the nearest baseline (bare cgroup), split + spin"] == (
        "different"
    )
    last = summary["headlines"][-1]
    assert last["text"].startswith(f"the paper, {len(names['entries'])} claims: ")
    assert last["verdict"] == "as counted" and last["estimate"] is None
    missing = names["against_clean"].set_index(["tuning", "contrast"])["blocks_missing"]
    assert missing.loc[("split + spin", "docker host / bare clean")] == (2,)
    claims = names["entries"].set_index("id")
    assert set(claims["source"]) == {"rohprimardho2015"} and "error" not in set(claims["result"])
    identical = claims.loc["rohprimardho2015-tuned-host-identical"]
    assert identical["published_value"] == pytest.approx(4.13 / 4.15, abs=1e-3)
    assert identical[["setting", "result"]].to_list() == ["analogue", "not measured"]
    assert identical["why"].endswith("capture on is not in this campaign")
    spinning = claims.loc["rohprimardho2015-spinning-lowers-median"]
    assert (spinning["setting"], spinning["result"]) == ("analogue", "replicated")
    said = f"the paper: {spinning['statement'].rstrip('.')}"
    assert verdicts[said] == "replicated (analogue setting)"
    assert names["model"].n_blocks == 5 and len(names["terms"]) == 7
    text = words(shown)
    assert (
        "Decidable margins of the median round-trip time" in text
        and "Not known for free + spin" in text
    )
    assert "): free + block: " in text and ", split + spin: " in text
    assert summary["decidable_margin"] == pytest.approx(max(names["page"].margins.values()))
    assert "every block was measured within one session" in text.lower()
    assert "as planned" not in text and "default" in text  # an older plan names no margin
    assert "6 blocks" in text and "2 attempts failed" in text
    assert sum(isinstance(value, Figure) for value in shown) == 13


def contrasts_of(table, **known):
    """Yield every ratio of medians as its two cells, with what was decided about it."""
    for row in table.to_dict("records"):
        top, bottom = row["contrast"].split(" / ")
        cells = [dict(known), dict(known)]
        for cell, level in zip(cells, (top, bottom), strict=True):
            cell |= {name: row[name] for name in FACTORS if name in row}
            tuning = level if " + " in level else row.get("tuning", "")
            if tuning:
                cell["affinity"], cell["wait"] = tuning.split(" + ")
            if level in FACTORS["placement"]:
                cell["placement"] = level
            if level in FACTORS["wait"]:
                cell["wait"] = level
        key = tuple(tuple(cell[name] for name in FACTORS) for cell in cells)
        yield key, (row["verdict"], row["p_adjusted"], row["estimate"])


@pytest.mark.parametrize("without", [(), ("bare cgroup",)])
def test_a_contrast_has_one_verdict_on_the_page(monkeypatch, without):
    stand_in = campaign(5, n=60, ladder=("block", "spin"), without=without)
    _, names = execute(monkeypatch, stand_in, NOTEBOOK)
    tables = [names[name] for name in ("against_clean", "against_twin", "spinning")]
    tables.append(names["tuned"]["median"])
    for tuning in names["TUNINGS"]:
        levels, _ = names["ladder"](tuning)
        contrast = levels["condition"] + " / bare clean"
        tables.append(levels.assign(tuning=tuning, contrast=contrast))
    seen, again = {}, 0
    for table in tables:
        for key, decided in contrasts_of(table[table["n_blocks"] > 0]):
            again += key in seen
            assert seen.setdefault(key, decided) == decided, key
    assert again >= 10 and len(seen) > 25


def test_the_margin_is_the_plans_and_another_is_said(monkeypatch):
    stand_in = campaign(3, n=60)
    stand_in.plan["margin"] = 0.05
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    assert names["margin"] == 0.05 and "Margin: 5 %, as planned." in words(shown)
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK, margin=0.03)
    assert names["margin"] == 0.03
    assert "**Margin: 3 %, chosen after the plan, which has 5 %.**" in words(shown)


def test_a_block_over_two_sessions_is_left_out_and_said(monkeypatch):
    stand_in = campaign(5, n=120)
    rows = stand_in.trials
    late = (rows["block"] > 3) | ((rows["block"] == 3) & (rows["position"] > 4))
    rows["session"] = np.where(late, 2, 1)
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    said = words(shown)
    assert "Block 3 spans sessions and is left out" in said and "4 of 5 blocks" in said
    for table in (names["against_clean"], names["against_twin"], names["spinning"]):
        assert set(table["n_blocks"]) <= {0, 4}
    assert set(names["page"].floors[0]["n_blocks"]) == {4} == set(names["quantiles"]["n_blocks"])
    assert summary_of(shown)["blocks"] == 5


def test_a_single_block_over_two_sessions_still_renders(monkeypatch):
    stand_in = campaign(1, n=120)
    stand_in.trials["session"] = np.where(stand_in.trials["position"] > 4, 2, 1)
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    assert "Block 1 spans sessions and is left out" in words(shown)
    assert set(names["against_clean"]["n_blocks"]) == {0}
    assert summary_of(shown)["decidable_margin"] == "unknown (pilot)"


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_pilot_renders_and_decides_nothing(monkeypatch, blocks):
    shown, names = execute(monkeypatch, campaign(blocks, n=60), NOTEBOOK)
    summary, said = summary_of(shown), words(shown)
    assert summary["reference"] and summary["blocks"] == blocks
    assert "No trial of this campaign was captured" in said and not names["watched"]
    assert "not what the paper measured" not in said
    verdicts = {line["verdict"] for line in summary["headlines"]}
    assert verdicts == {"undecided (pilot)", "as counted (pilot)"}
    assert set(names["against_clean"]["verdict"]) == {"undecided"}
    assert (summary["decidable_margin"] == "unknown (pilot)") == (blocks == 1)
    assert names["trials"]["p99"].isna().all()
    assert not set(names["entries"]["result"]) & {"replicated", "contradicted", "error"}
    tails = names["tails_here"].to_dict("records")
    assert {row["of a trial"] for row in tails} == {"refused"}
    assert all("takes" in row["note"] for row in tails)
    assert names["model"].n_blocks == blocks


def test_what_a_rig_refused_is_said_and_separate_machines_are_an_analogue(monkeypatch):
    stand_in = observe(campaign(5, shared=False, without=("bare cgroup", "docker bridge")))
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    summary = summary_of(shown)
    assert [one["condition"] for one in summary["infeasible"]] == ["bare cgroup", "docker bridge"]
    assert names["nearest"] == "bare clean"
    claims = names["entries"].set_index("id")
    decided = claims.loc["rohprimardho2015-tuned-host-identical"]
    assert (decided["setting"], decided["result"]) == ("analogue", "undecided")
    # Claims about the bridge name what was refused.
    assert claims.loc["rohprimardho2015-tuned-bridge-slower", "result"] == "not measured"
    assert "bridge" in claims.loc["rohprimardho2015-tuned-bridge-slower", "why"]


def test_a_grid_with_gaps_has_no_model_and_says_which_cells_it_lacks(monkeypatch):
    failing = {(block, ("docker host", "free", "spin")) for block in range(1, 4)}
    shown, names = execute(monkeypatch, campaign(3, n=60, failing=failing), NOTEBOOK)
    assert names["model"] is None
    said = words(shown)
    assert "**No model: " in said and "docker host/free/spin" in said


@pytest.mark.parametrize(
    ("notebook", "parameters"),
    [
        (NOTEBOOK, ['data = "data/reference/affinity-spinning"', "margin = None"]),
        (LEDGER, ['data = "data/reference"', "alpha = 0.05"]),
    ],
)
def test_the_notebooks_are_kept_as_agreed(notebook, parameters):
    kept = nbformat.read(notebook, 4)
    nbformat.validate(kept)
    code = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert all(len(cell.source.splitlines()) <= 15 for cell in code)
    assert len({cell.id for cell in kept.cells}) == len(kept.cells)
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert [cell.source.splitlines() for cell in tagged] == [parameters]
