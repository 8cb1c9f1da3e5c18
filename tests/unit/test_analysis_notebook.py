"""The analysis notebook on stand-in campaigns: it renders from a pilot to a full one."""

import itertools
import json
import math
from types import SimpleNamespace

import IPython.display
import matplotlib
import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import labkit
from labkit.analysis.published import default_root

NOTEBOOK = default_root().parents[1] / "notebooks" / "analysis" / "10-affinity-spinning.ipynb"
MIME = "application/vnd.labkit.summary+json"
LEVELS = {
    "bare clean": 1.0,
    "bare rules": 1.01,
    "bare chroot": 1.01,
    "bare cgroup": 1.03,
    "docker host": 1.03,
    "docker bridge": 1.2,
}
FACTORS = {
    "placement": list(LEVELS),
    "affinity": ["free", "split"],
    "wait": ["block", "spin"],
}


def conditions(ladder):
    """Cells as the study has them: middle rungs with bound ends only, two placements doubled."""
    for placement, affinity, wait in itertools.product(*FACTORS.values()):
        middle = placement in ("bare rules", "bare chroot")
        if middle and (affinity == "free" or wait not in ladder):
            continue
        yield (placement, affinity, wait), 1
        twice = affinity == "split" and placement in ("bare clean", "docker host")
        if twice or (placement, affinity, wait) == ("bare clean", "free", "block"):
            yield (placement, affinity, wait), 2


def attempt(rng, levels, copy, block, position, n, failed):
    """One row of trials, and its samples."""
    placement, affinity, wait = levels
    spins, bound = wait == "spin", affinity == "split"
    level = 30_000 * LEVELS[placement] * (0.3 if spins else 1) * (0.93 if bound else 1)
    level *= math.exp(0.02 * math.sin(block) + rng.normal(0, 0.008))
    name = f"b{block:02d}-p{position:02d}"
    cell = dict(zip(FACTORS, levels, strict=True))
    row = {"trial": name, "attempt": 1, "block": block, "position": position, **cell}
    row |= {"copy": copy, "status": "failed" if failed else "ok", "n_samples": 0 if failed else n}
    row |= {"started_ns": 1_800_000_000 * 10**9 + position, "seconds": 1.0, "session": 1}
    row |= {"flags": "" if bound else "server migrated 3 times"}
    row |= {"problems": "the server ended" if failed else ""}
    row |= {"context_switches": 0.1 if spins else 4.0, "idle_exits": np.nan if failed else 1.9}
    row |= {"server_switches": 0.0 if spins else 1.0, "steal": 0.0}
    values = (level * (0.9 + rng.gamma(2, 0.05, n))).astype("int64")
    return row, pd.DataFrame(
        {"trial": name, "block": block, **cell, "copy": copy, "rtt_ns": values}
    )


def campaign(blocks, n=300, ladder=("spin",), failing=(), shared=True, without=()):
    """Return a stand-in for a dataset."""
    rng, rows, parts = np.random.default_rng(2015), [], []
    cells = [one for one in conditions(ladder) if one[0][0] not in without]
    for block in range(1, blocks + 1):
        for position, index in enumerate(rng.permutation(len(cells)), start=1):
            levels, copy = cells[index]
            failed = (block, levels) in failing
            row, part = attempt(rng, levels, copy, block, position, n, failed)
            rows.append(row)
            parts += [] if failed else [part]
    samples = pd.concat(parts, ignore_index=True)
    samples = samples.astype(dict.fromkeys(("trial", *FACTORS), "category"))
    plan = {
        "settings": {"messages": n, "size": 64, "idle": "as found"},
        "factors": FACTORS,
        "conditions": [
            {"levels": dict(zip(FACTORS, levels, strict=True)), "copy": copy}
            for levels, copy in cells
        ],
        "seed": 2015,
        "blocks": blocks,
        "refusals": [{"condition": name, "reason": "no engine"} for name in without],
    }
    rig = {"shared_kernel": shared, "caveats": ["one kernel, 2 vCPUs, shared softirq"]}
    rig |= {"cpu_map": {"sut": "1"}, "capabilities": {"nic-hardware": "veth pairs"}}
    facts = {"sut": {"stable": {"cpu": {"model": "stand-in"}, "engine": None}, "volatile": {}}}
    return SimpleNamespace(
        trials=pd.DataFrame(rows), samples=lambda: samples.copy(), plan=plan, facts=facts, rig=rig
    )


def words(shown):
    return "\n".join(str(getattr(value, "data", "")) for value in shown)


def execute(monkeypatch, stand_in, **parameters):
    """Run the notebook's code cells in one namespace; return what they displayed."""
    shown = []

    def show(*values, raw=False, **options):
        shown.extend(values)

    matplotlib.use("agg")
    monkeypatch.setattr(IPython.display, "display", show)
    monkeypatch.setattr(labkit, "load", lambda path: stand_in, raising=False)
    names = {}
    for cell in nbformat.read(NOTEBOOK, 4).cells:
        if cell.cell_type != "code":
            continue
        lines = cell.source.rstrip()
        exec(compile(lines, cell.id, "exec"), names)
        if "parameters" in cell.metadata.get("tags", []):
            names.update(parameters)
        last = lines.splitlines()[-1]
        if last.startswith("plots.") or (last == ")" and "\nplots." in f"\n{lines}"):
            shown.append(eval(lines[lines.rindex("plots.") :], names))
    for value in shown:
        if isinstance(value, Figure):
            value.canvas.draw()
    return shown, names


def summary_of(shown):
    summaries = [value[MIME] for value in shown if isinstance(value, dict) and MIME in value]
    assert len(summaries) == 1
    return json.loads(json.dumps(summaries[0], allow_nan=False))


def test_a_campaign_is_decided(monkeypatch):
    failing = {(2, ("docker host", "split", "spin"))}
    stand_in = campaign(6, failing=failing, ladder=("block", "spin"))
    shown, names = execute(monkeypatch, stand_in, data="data/local/quick/affinity-spinning/x")
    summary = summary_of(shown)
    assert (summary["blocks"], summary["failed"], summary["profile"]) == (6, 2, "quick")
    assert summary["measured"] == "2027-01-15" and not summary["reference"]
    assert 0 < summary["decidable_margin"] < 0.1 and len(summary["noise_floor"]) == 5
    verdicts = {line["text"]: line["verdict"] for line in summary["headlines"]}
    assert verdicts["docker host: spinning against blocking, bound ends"] == "different"
    assert verdicts["docker bridge against its nearest twin (bare cgroup), split + spin"] == (
        "different"
    )
    claim = "the paper: tuned, Docker host identical to no Docker"
    assert verdicts[claim] == "not decidable on this rig"
    missing = names["against_clean"].set_index(["tuning", "contrast"])["blocks_missing"]
    assert missing.loc[("split + spin", "docker host / bare clean")] == (2,)
    statements = names["statements"]
    assert statements["published"].iloc[2] == pytest.approx(4.13 / 4.15, abs=1e-3)
    assert (statements["here"].iloc[4:6] == "agrees").all()
    text = words(shown)
    assert "Decidable margins on medians" in text and "Not known for `free + spin`" in text
    assert all(f"`{tuning}` " in text for tuning in ("free + block", "split + spin"))
    assert summary["decidable_margin"] == max(names["known"].values())
    assert "every block was measured within one session" in text.lower()
    assert "as planned" not in text and "default" in text  # an older plan names no margin
    assert "6 blocks" in text and "2 attempts failed" in text
    assert sum(isinstance(value, Figure) for value in shown) == 11


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
    _, names = execute(monkeypatch, stand_in)
    tables = [names[name] for name in ("against_clean", "against_twin", "spinning")]
    tables.append(names["tuned"]["median"])
    for tuning in names["TUNINGS"]:
        rungs, _ = names["ladder"](tuning)
        contrast = rungs["condition"] + " / bare clean"
        tables.append(rungs.assign(tuning=tuning, contrast=contrast))
    seen, again = {}, 0
    for table in tables:
        for key, decided in contrasts_of(table[table["n_blocks"] > 0]):
            again += key in seen
            assert seen.setdefault(key, decided) == decided, key
    assert again >= 10 and len(seen) > 25


def test_the_margin_is_the_plans_and_another_is_said(monkeypatch):
    stand_in = campaign(3, n=60)
    stand_in.plan["margin"] = 0.05
    shown, names = execute(monkeypatch, stand_in)
    assert names["margin"] == 0.05 and "Margin: 5.0%, as planned." in words(shown)
    shown, names = execute(monkeypatch, stand_in, margin=0.03)
    assert names["margin"] == 0.03
    assert "**Margin: 3.0%, chosen after the plan, which has 5.0%.**" in words(shown)


def test_a_block_over_two_sessions_is_left_out_and_said(monkeypatch):
    stand_in = campaign(5, n=120)
    rows = stand_in.trials
    late = (rows["block"] > 3) | ((rows["block"] == 3) & (rows["position"] > 4))
    rows["session"] = np.where(late, 2, 1)
    shown, names = execute(monkeypatch, stand_in)
    said = words(shown)
    assert "Left out of every paired comparison: block 3**" in said and "4 of 5 blocks" in said
    for table in (names["against_clean"], names["against_twin"], names["spinning"]):
        assert set(table["n_blocks"]) <= {0, 4}
    assert set(names["floor"]["n_blocks"]) == {4} == set(names["quantiles"]["n_blocks"])
    assert summary_of(shown)["blocks"] == 5


def test_a_single_block_over_two_sessions_still_renders(monkeypatch):
    stand_in = campaign(1, n=120)
    stand_in.trials["session"] = np.where(stand_in.trials["position"] > 4, 2, 1)
    shown, names = execute(monkeypatch, stand_in)
    assert "Left out of every paired comparison: block 1**" in words(shown)
    assert set(names["against_clean"]["n_blocks"]) == {0}
    assert summary_of(shown)["decidable_margin"] == "unknown (pilot)"


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_pilot_renders_and_decides_nothing(monkeypatch, blocks):
    shown, names = execute(monkeypatch, campaign(blocks, n=60))
    summary = summary_of(shown)
    assert summary["reference"] and summary["blocks"] == blocks
    verdicts = {line["verdict"] for line in summary["headlines"]}
    assert verdicts == {"inconclusive (pilot)", "not decidable on this rig"}
    assert set(names["against_clean"]["verdict"]) == {"inconclusive"}
    assert (summary["decidable_margin"] == "unknown (pilot)") == (blocks == 1)
    assert names["trials"]["p99"].isna().all()


def test_what_a_rig_refused_is_said_and_separate_machines_are_an_analogue(monkeypatch):
    stand_in = campaign(5, shared=False, without=("bare cgroup", "docker bridge"))
    shown, names = execute(monkeypatch, stand_in)
    summary = summary_of(shown)
    assert [one["condition"] for one in summary["refusals"]] == ["bare cgroup", "docker bridge"]
    assert names["twin"] == "bare clean"
    assert set(names["statements"]["the paper's claim"]) == {"analogue"}
    assert names["statements"]["here"].iloc[3] == "not measured"


def test_the_notebook_is_kept_as_agreed():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(len(cell.source.splitlines()) <= 15 for cell in code)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert [cell.source.splitlines() for cell in tagged] == [
        ['data = "data/reference/affinity-spinning"', "margin = None"]
    ]
