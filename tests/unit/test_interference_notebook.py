"""The analysis of interference on campaigns made up: ratios, contrasts, advice and the model."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from memory_campaigns import Campaign, record
from notebook_pages import ANALYSES, execute, summary_of, words

NOTEBOOK = ANALYSES / "40-interference.ipynb"
SERVICES = ["linpack", "stream", "bonnie", "netperf"]
CASES = ["1", "1u", "2", "3a", "3b"]
FACTORS = {"service": SERVICES, "neighbour": ["none", *SERVICES], "case": CASES}
KERNELS = ("copy", "scale", "add", "triad")
RATES = {
    "linpack": {"gflops": 40.0},
    "stream": {f"{one}_gb_per_s": 30.0 for one in KERNELS},
    "bonnie": {f"block_{one}_mb_per_s": 900.0 for one in ("output", "input", "rewrite")},
    "netperf": {"mbit_per_s": 9000.0},
}
RATES["stream"] |= {f"{one}_mean_gb_per_s": 25.0 for one in KERNELS}
RATES["bonnie"] |= {"seeks_per_s": 5000.0}
#: What lifting the limits is worth, and what an equal service costs.
LIFTED, EQUAL = 1.6, 0.55


def kept(service, neighbour, case):
    """Return the share of its limited rate alone that a service has."""
    free = LIFTED if service == "linpack" and case in ("1u", "2", "3a") else 1.0
    apart = {"2": 0.9, "3a": 0.95, "3b": 0.99}
    if neighbour == "none":
        return free
    return free * (EQUAL if service == neighbour else apart[case])


def conditions(cases):
    """The pairs that the study measures, each once, and what is doubled."""
    for service, neighbour, case in itertools.product(SERVICES, ["none", *SERVICES], cases):
        alone = neighbour == "none"
        if alone != (case in ("1", "1u")):
            continue
        if not alone and SERVICES.index(service) > SERVICES.index(neighbour):
            continue
        doubled = (service, neighbour, case) in (
            ("linpack", "none", "1"),
            ("linpack", "stream", "3a"),
            ("bonnie", "netperf", "3a"),
        )
        for copy in range(1, 2 + doubled):
            yield (service, neighbour, case), copy


def campaign(blocks, cases=CASES, failing=(), idle=0.1):
    """Return a campaign in which equal services cost each other much, and others little."""
    rng, records = np.random.default_rng(2018), []
    cells = list(conditions(cases))
    for block in range(1, blocks + 1):
        level = math.exp(rng.normal(0, 0.03))

        def side(service, neighbour, case, level=level):
            share = kept(service, neighbour, case) * level
            found = {
                name: rate * share * math.exp(rng.normal(0, 0.01))
                for name, rate in RATES[service].items()
            }
            found |= {"iterations": 4.0, "iterations_partly": 1.0}
            if neighbour != "none":
                found |= {f"neighbour_{name}": rate for name, rate in RATES[neighbour].items()}
                found["overlap"] = 0.998
            return found

        for position, ((service, neighbour, case), copy) in enumerate(cells, start=1):
            failed = (block, service, neighbour) in failing
            levels = dict(zip(FACTORS, (service, neighbour, case), strict=True))
            more = {"copy": copy, "n_samples": 0, "started_ns": 10**18}
            more |= {"status": "failed" if failed else "ok"}
            more |= {"error": {"what": "no answer"} if failed else None}
            more["mechanisms"] = {"group_cpu_use": 0.9, "cpu_idle": idle, "cpu0_idle": idle}
            more["mechanisms"] |= {"cpu1_idle": idle, "cpu_iowait": 0.0, "steal": 0.0}
            if not failed and neighbour not in ("none", service):
                other = {"service": neighbour, "neighbour": service}
                more["also"] = [{"levels": other, "metrics": side(neighbour, service, case)}]
            metrics = {} if failed else side(service, neighbour, case)
            records.append(record(block, position, levels, metrics, **more))
    names = [{"levels": dict(zip(FACTORS, x, strict=True)), "copy": n} for x, n in cells]
    plan = {"study": "interference", "conditions": names, "seed": 1, "refusals": []}
    plan["factors"] = FACTORS | {"case": list(cases)}
    rig = {"name": "made up", "shared_kernel": True, "capabilities": {}, "caveats": ["none"]}
    rig |= {"hosts": {"generator": {}, "sut": {"engine": True}}, "cpu_map": {"sut": "1"}}
    return Campaign(plan | {"blocks": blocks, "margin": 0.1, "settings": {}, "rig": rig}, records)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a full campaign, once for the tests that look at parts of it."""
    path = tmp_path_factory.mktemp("model") / "model.csv"
    with pytest.MonkeyPatch.context() as patch:
        shown, names = execute(patch, campaign(8), NOTEBOOK, model=str(path))
    return shown, names, path


def cell(names, service, neighbour, case, metric=None):
    table = names["table"]
    keys = {"service": service, "neighbour": neighbour, "case": case}
    keys["metric"] = metric or names["MAIN"][service]
    rows = table[(table[list(keys)] == pd.Series(keys)).all(axis=1)]
    assert len(rows) == 1
    return rows.iloc[0]


def test_every_cell_of_the_papers_tables_stands_beside_ours(page):
    _, names, _ = page
    table = names["table"]
    beside = table[table["neighbour"] != "none"]
    # 4 services, 4 neighbours, 3 cases; 1 + 4 + 4 + 1 operations.
    assert len(beside) == 4 * 3 * (1 + 4 + 4 + 1) and beside["paper"].notna().all()
    assert cell(names, "linpack", "linpack", "2")["paper"] == -0.2102
    assert cell(names, "netperf", "bonnie", "3a")["paper"] == -0.2381
    copied = cell(names, "stream", "linpack", "2")["paper"]
    assert copied == pytest.approx(14.01 / 13.36 - 1)
    seeks = cell(names, "bonnie", "bonnie", "2", "seeks_per_s")["paper"]
    assert seeks == pytest.approx(3.5 / 10.5 - 1)


def test_both_sides_of_a_pair_are_rows_with_their_own_ratio(page):
    _, names, _ = page
    for one, other in (("stream", "netperf"), ("netperf", "stream")):
        row = cell(names, one, other, "3b")
        assert row["ir"] == pytest.approx(-0.01, abs=0.02) and row["verdict"] == "equivalent"
    equal = cell(names, "bonnie", "bonnie", "3b")
    assert equal["ir_low"] < EQUAL - 1 < equal["ir_high"] and equal["differs"]


def test_the_lifted_limit_is_told_from_the_neighbour(page):
    _, names, _ = page
    row = cell(names, "linpack", "stream", "3a")
    assert row["ir"] == pytest.approx(LIFTED * 0.95 - 1, abs=0.03)
    free = names["parts"].set_index(names["FACTORS"]).loc[("linpack", "stream", "3a")]
    assert free["ir_free"] == pytest.approx(-0.05, abs=0.02)
    alone = cell(names, "linpack", "none", "1u")
    assert alone["ir"] == pytest.approx(LIFTED - 1, abs=0.03)


def test_equal_pairs_are_contrasted_with_the_others(page):
    _, names, _ = page
    found = names["contrasted"].set_index(["case", "service"])
    for case, apart in (("2", 0.9), ("3a", 0.95), ("3b", 0.99)):
        row = found.loc[(case, "all")]
        assert row["estimate"] == pytest.approx(EQUAL / apart, rel=0.02)
        assert row["low"] < EQUAL / apart < row["high"] and row["verdict"] == "different"


def test_one_container_against_two_is_compared_pair_by_pair(page):
    _, names, _ = page
    found = names["inside"].set_index(["service", "neighbour"])
    assert len(found) == 16
    row = found.loc[("stream", "bonnie")]
    assert row["estimate"] == pytest.approx(0.9 / 0.95, abs=0.02)


def test_advice_and_model_follow_from_the_table(page):
    _, names, path = page
    said = names["advised"].set_index(["pair", "case"])["advice"]
    assert said[("bonnie + bonnie", "2")] == "keep apart"
    assert said[("netperf + stream", "3b")] == "may share"
    model = pd.read_csv(path, dtype={"case": str})
    assert len(model) == len(names["table"])
    row = model[(model.service == "linpack") & (model.neighbour == "linpack")].iloc[0]
    assert row["beside"] == pytest.approx(row["alone"] * (1 + row["ir"]), rel=1e-4)


def test_claims_conclusions_and_figures_are_there(page):
    shown, names, _ = page
    claims = names["entries"].set_index("id")
    assert set(claims["source"]) == {"jha2018"}
    assert not set(claims["result"]) & {"error", "not measured"}
    assert claims.loc["jha2018-linpack-pair-limited", "result"] == "contradicted"
    summary = summary_of(shown)
    assert any("losing 10% at most" in one["text"] for one in summary["headlines"])
    assert len(summary["noise_floor"]) >= 4 and summary["decidable_margin"] < 0.1
    # Two maps a case, and the comparison of one container with two.
    assert sum(isinstance(one, Figure) for one in shown) == 7


def test_cpu_time_that_nobody_named_is_shown(monkeypatch):
    _, names = execute(monkeypatch, campaign(1), NOTEBOOK, model="")
    assert names["outside"].to_numpy() == pytest.approx(2 * 0.9 - 0.9)
    _, names = execute(monkeypatch, campaign(1, idle=0.55), NOTEBOOK, model="")
    assert names["outside"].to_numpy() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("cases", [["1", "3a"], ["1", "2", "3b"], CASES])
def test_a_pilot_decides_nothing_and_says_so(monkeypatch, cases):
    shown, names = execute(monkeypatch, campaign(1, cases), NOTEBOOK, model="")
    assert "this is a pilot" in words(shown)
    assert not set(names["entries"]["result"]) & {"replicated", "contradicted", "error"}
    assert set(names["advised"]["advice"]) == {"open"}
    summary_of(shown)


def test_failed_trials_leave_their_cells_open(monkeypatch):
    broken = campaign(6, failing=[(n, "linpack", "bonnie") for n in range(1, 7)])
    shown, names = execute(monkeypatch, broken, NOTEBOOK, model="")
    table = names["table"]
    gone = table[(table["service"] == "bonnie") & (table["neighbour"] == "linpack")]
    assert gone.empty or (gone["n_blocks"] == 0).all()
    assert "no answer" in str([getattr(one, "to_string", str)() for one in shown])
    assert summary_of(shown)["failed"] == 18
