"""The analysis of interference on campaigns made up: ratios, contrasts, advice and the model."""

import itertools
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from memory_campaigns import Campaign, record
from notebook_pages import ANALYSES, execute, executed, summary_of, words

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
    """The pairs that the study measures, each once, and what is replicated."""
    for service, neighbour, case in itertools.product(SERVICES, ["none", *SERVICES], cases):
        alone = neighbour == "none"
        if alone != (case in ("1", "1u")):
            continue
        if not alone and SERVICES.index(service) > SERVICES.index(neighbour):
            continue
        replicates = (service, neighbour, case) in (
            ("linpack", "none", "1"),
            ("linpack", "stream", "3a"),
            ("bonnie", "netperf", "3a"),
        )
        for replicate in range(1, 2 + replicates):
            yield (service, neighbour, case), replicate


SETTINGS = {
    "linpack_size": {"equations": 1500, "alignment": 4096},
    "stream_size": {"elements": 2**20, "times": 10},
    "bonnie_size": {"megabytes": 200, "chunk": 32_768, "short": True},
}
CACHED = "200 MiB of memory for a file of 200: reading may be cached"


def evidence(block, service, neighbour, case):
    """Return what a trial's record keeps: CPUs in turns, a quarter of the file for Bonnie++.

    Half of each iteration of Linpack and Netperf was timed; of the others that is not known.
    """
    one = {"start_ns": 0, "end_ns": 10**9, "cut": False, "late": False, "overlap": 0.96}
    timed = {name: {f"{name}_seconds": 0.5} for name in ("linpack", "netperf")}
    names = [name for name in (service, neighbour) if name != "none"]
    sides = [
        {"name": name, "iterations": [one | timed.get(name, {}), one | {"late": True, "cut": True}]}
        for name in names
    ]
    found = []
    for number, group in enumerate([names] if case == "2" else [[name] for name in names]):
        cpu = str((block + number) % 2) if case in ("1", "3b") else "0-1"
        memory = str(group.count("bonnie") * 50 * 2**20) if "bonnie" in group else "max"
        found.append({"limits": {"cpuset.cpus": cpu, "memory.max": memory}})
    others = {"neighbour": found[1]} if len(found) > 1 else {}
    return {"details": {"sides": sides}, "verification": found[0], "verifications": others}


def measured(rng, level, cut, service, neighbour, case):
    """Return what a service measures beside a neighbour."""
    share = kept(service, neighbour, case) * level
    rates = RATES[service].items()
    found = {name: rate * share * math.exp(rng.normal(0, 0.01)) for name, rate in rates}
    found |= {"iterations": 4.0, "iterations_partly": 1.0, "iterations_cut": float(service in cut)}
    if neighbour != "none":
        found |= {f"neighbour_{name}": rate for name, rate in RATES[neighbour].items()}
        found["overlap"] = 0.998
    return found


def trial(block, names, side, idle, recorded):
    """Return the fields of one successful trial beside what its service measured."""
    service, neighbour, case = names
    more = {"mechanisms": {"group_cpu_use": 0.9, "cpu_idle": idle, "cpu0_idle": idle}}
    more["mechanisms"] |= {"cpu1_idle": idle, "cpu_iowait": 0.0, "steal": 0.0}
    if neighbour not in ("none", service):
        other = {"service": neighbour, "neighbour": service}
        more["also"] = [{"levels": other, "metrics": side(neighbour, service, case)}]
    if {service, neighbour} == {"stream", "bonnie"} and case == "2":
        more["flags"] = [CACHED]
    if recorded:
        more |= evidence(block, *names)
    return more


def campaign(blocks, cases=CASES, failing=(), idle=0.1, empty=(), cut=(), recorded=True):
    """Return a campaign in which equal services cost each other much, and others little.

    Trials of `failing` (block, service, neighbour) failed; those of `empty` measured nothing on one
    side of an equal pair; services of `cut` have an iteration that did not end.
    """
    rng, records = np.random.default_rng(2018), []
    cells = list(conditions(cases))
    for block in range(1, blocks + 1):
        side = partial(measured, rng, math.exp(rng.normal(0, 0.03)), cut)
        for position, (names, replicate) in enumerate(cells, start=1):
            more = {"replicate": replicate, "n_samples": 0, "started_ns": 10**18}
            metrics = {"iterations": 2.0, "iterations_partly": 0.5, "iterations_cut": 0.5}
            if (block, *names[:2]) in failing:
                more, metrics = more | {"status": "failed", "error": {"what": "no answer"}}, {}
            else:
                more |= trial(block, names, side, idle, recorded)
                metrics = metrics if (block, *names[:2]) in empty else side(*names)
            levels = dict(zip(FACTORS, names, strict=True))
            records.append(record(block, position, levels, metrics, **more))
    names = [{"levels": dict(zip(FACTORS, x, strict=True)), "replicate": n} for x, n in cells]
    plan = {"study": "interference", "conditions": names, "seed": 1, "infeasible": []}
    plan |= {"factors": FACTORS | {"case": list(cases)}, "blocks": blocks, "margin": 0.1}
    rig = {"name": "made up", "shared_kernel": True, "capabilities": {}, "caveats": ["none"]}
    rig |= {"hosts": {"generator": {}, "sut": {"engine": True}}, "cpu_map": {"sut": "1"}}
    return Campaign(plan | {"settings": SETTINGS if recorded else {}, "rig": rig}, records)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a full campaign, once for the tests that look at parts of it."""
    path = tmp_path_factory.mktemp("model") / "model.csv"
    shown, names = executed(campaign(8), NOTEBOOK, model=str(path))
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
    assert any("loses at most 10%" in one["text"] for one in summary["headlines"])
    assert len(summary["noise_floor"]) >= 4 and summary["decidable_margin"] < 0.1
    # Two maps a case, one container with two, the answer, and the distribution.
    assert sum(isinstance(one, Figure) for one in shown) == 9


def test_cpu_time_that_nobody_named_is_shown(monkeypatch, page):
    _, names, _ = page
    assert names["outside"].to_numpy() == pytest.approx(2 * 0.9 - 0.9)
    _, names = execute(monkeypatch, campaign(1, idle=0.55), NOTEBOOK, model="")
    assert names["outside"].to_numpy() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("cases", "recorded"), [(["1", "3a"], True), (["1", "2", "3b"], False)])
def test_a_pilot_decides_nothing_and_says_so(monkeypatch, cases, recorded):
    stand_in = campaign(1, cases, recorded=recorded)
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK, model="")
    assert "this is a pilot" in words(shown)
    assert (len(names["each"]) > 0) == recorded
    assert ("were not recorded" in words(shown)) == (not recorded)
    assert not set(names["entries"]["result"]) & {"replicated", "contradicted", "error"}
    assert set(names["advised"]["advice"]) == {"open"}
    summary_of(shown)


def test_the_proof_counts_what_was_cut_and_trials_without_a_value(monkeypatch):
    odd = campaign(6, empty=[(2, "linpack", "linpack")], cut=["bonnie"])
    shown, names = execute(monkeypatch, odd, NOTEBOOK, model="")
    proof = names["proof"]
    # Half of the iterations of the pair counted, on one side only: it has no value all the same.
    pair = proof.loc[("linpack", "linpack", "3b")]
    assert pair["trials without"] == 1 and pair["trials"] == 6
    assert proof.loc[("linpack", "stream", "3b"), "trials without"] == 0
    assert proof.loc[("bonnie", "stream", "3a"), "cut"] == 1
    assert proof.loc[("netperf", "stream", "3a"), "cut"] == 0
    assert "(bonnie, linpack), whose means lack the slowest" in words(shown)
    assert cell(names, "linpack", "linpack", "3b")["n_blocks"] == 5


def test_the_proof_says_which_part_of_an_iteration_was_timed(page):
    shown, names, _ = page
    table = names["by"].mean()
    assert table.loc[("linpack", "netperf"), "timed"] == pytest.approx(0.5)
    # 4 % of an iteration without the other, at worst all of it in the timed half.
    assert table.loc[("linpack", "netperf"), "beside"] == pytest.approx(0.92)
    assert math.isnan(table.loc[("stream", "netperf"), "timed"])
    assert "none was lost for being slow" in words(shown)


def test_sizes_memory_and_cpus_are_those_of_the_campaign(page):
    shown, names, _ = page
    said = words(shown)
    assert "1,500 equations" in said and "three arrays of 8 MiB each, 10 passes" in said
    assert "a file of 200 MiB, the short program" in said
    assert "CPU 1 in 4, CPU 0 in 4" in said or "CPU 0 in 4, CPU 1 in 4" in said
    # A quarter of the file for each Bonnie++, also where two are in one container.
    share = names["memory"]["of a Bonnie++'s file"]
    assert len(share) == 8 * (2 + 4 * 3 + 1) and share.to_numpy() == pytest.approx(0.25)


def test_cells_whose_reading_may_be_cached_are_named_and_not_asked(page):
    shown, names, _ = page
    assert names["cached"] == {("bonnie", "stream", "2")}
    assert "Reading may be cached beside stream, case 2" in words(shown)
    rows = names["advised"].set_index(["pair", "case"])["rows"]
    assert rows[("bonnie + stream", "3a")] == 8 and rows[("bonnie + stream", "2")] == 5
    # They stay in the table and in the model.
    assert cell(names, "bonnie", "stream", "2", "block_input_mb_per_s")["n_blocks"] == 8


def test_a_contrast_of_few_blocks_in_a_longer_campaign_is_inconclusive(monkeypatch):
    few = campaign(5, failing=[(1, "netperf", "netperf")])
    shown, names = execute(monkeypatch, few, NOTEBOOK, model="")
    found = names["contrasted"].set_index(["case", "service"])
    assert not names["page"].pilot and "CPU 1 in 3, CPU 0 in 2" in words(shown)
    for name in ("netperf", "all"):
        row = found.loc[("3a", name)]
        assert row["n_blocks"] == 4 and row["high"] < 1 and row["verdict"] == "undecided"
    assert found.loc[("3a", "stream"), "verdict"] == "different"


def test_failed_trials_leave_their_cells_open(monkeypatch):
    broken = campaign(6, failing=[(n, "linpack", "bonnie") for n in range(1, 7)])
    shown, names = execute(monkeypatch, broken, NOTEBOOK, model="")
    table = names["table"]
    gone = table[(table["service"] == "bonnie") & (table["neighbour"] == "linpack")]
    assert gone.empty or (gone["n_blocks"] == 0).all()
    assert "no answer" in str([getattr(one, "to_string", str)() for one in shown])
    assert summary_of(shown)["failed"] == 18
    said = names["advised"].set_index(["pair", "case"])["advice"]
    assert (said["bonnie + linpack"] == "open").all() and len(said["bonnie + linpack"]) == 3
