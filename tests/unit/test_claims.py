"""Verdicts on claims: rules, parts, marks, findings, and what a rig lacks."""

import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import RIG, facts, write

from labkit.analysis import claims
from labkit.analysis.claims import Claim, Evidence, combine, current, evaluate, findings, ledger
from labkit.analysis.stats import compare
from labkit.data import by_study
from labkit.errors import DatasetError
from labkit.units import column

PLACES = ["bare", "docker"]
ABOUT = {"id": "p-c", "source": "p", "says": "", "place": "", "study": "made-up", "value": "ns"}
#: A claim about the ratio of two placements.
PAIR = {**ABOUT, "of": {"place": "docker"}, "to": {"place": "bare"}}
SAME = [0.95, 1.05]


@pytest.fixture
def folder(tmp_path_factory):
    """Return a function that returns a new folder."""
    return lambda: tmp_path_factory.mktemp("campaign")


def measured(folder, effect, *, value="ns", **options):
    """A campaign of two placements, with a known ratio."""
    ratio = {"docker": effect, "bare": 1}
    return write(
        folder, {"place": PLACES}, lambda at, _: {value: 1000 * ratio[at["place"]]}, **options
    )


def judged(campaign, claim, about=PAIR):
    """Return the row of a claim; `claim` has the fields that differ from `about`."""
    return evaluate(Claim(**{**about, **claim}), Evidence(campaign))


FAILS = "does not hold here"


@pytest.mark.parametrize(
    ("claim", "verdicts"),
    [
        ({"above": 1.1}, {1.5: "holds", 1.0: FAILS}),
        ({"below": 0.98}, {0.8: "holds", 1.5: FAILS}),
        ({"within": SAME}, {1.0: "holds", 1.3: FAILS}),
        ({"size": 1.5}, {1.5: "holds", 1.3: "holds", 2.5: "holds, other size", 1.1: FAILS}),
        ({"size": 1.5}, {0.7: FAILS}),
        ({"size": 0.5}, {0.4: "holds", 0.1: "holds, other size", 0.95: FAILS}),
    ],
)
def test_each_kind_of_claim_has_the_verdict_of_its_rule(folder, claim, verdicts):
    for effect, verdict in verdicts.items():
        assert judged(measured(folder(), effect), claim)["verdict"] == verdict
        for unclear in ({"spread": 5.0}, {"blocks": 4}):
            assert judged(measured(folder(), effect, **unclear), claim)["verdict"] == "cannot tell"
    missing = judged(measured(folder(), 1.5), {**claim, "of": {"place": "podman"}})
    assert missing["verdict"] == "cannot tell" and "podman" in missing["why"]


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    effect=st.sampled_from([0.97, 1.0, 1.02, 1.05, 1.2]),
    failing=st.sampled_from([0, 3]),
)
def test_ledger_and_compare_say_the_same_of_a_pair(folder, seed, effect, failing):
    def values(at, block):
        if at["place"] == "bare":
            return {"ns": 1000}
        return {"ns": 1000 * effect} if block > failing else None

    campaign = write(folder(), {"place": PLACES}, values, seed=seed, spread=0.03)
    options = {"value": "ns", "condition": "place", "baseline": "bare", "margin": 0.05}
    row = compare(campaign.trials, **options).iloc[0]
    above = judged(campaign, {"above": 1.0})
    assert (above["verdict"] == "holds") == (row["differs"] and row["estimate"] > 1)
    assert (above["verdict"] == FAILS) == (row["differs"] and row["estimate"] < 1)
    same = judged(campaign, {"within": [1 / 1.05, 1.05]})
    assert (same["verdict"] == "holds") == row["equivalent"]
    for one in (above, same):
        assert (one["low"], one["high"]) == pytest.approx((row["low"], row["high"]))


def test_an_order_is_a_part_a_step_and_a_ratio_of_ratios_four_cells(tmp_path):
    levels, times = {"place": PLACES, "size": [1, 2, 4]}, {"bare": 1000, "docker": 2000}
    campaign = write(tmp_path, levels, lambda at, _: {"ns": times[at["place"]] * at["size"]})
    for order, verdict in {"rising": "holds", "falling": FAILS}.items():
        of = {"of": {"place": "bare", "size": "all"}, "along": "size", "order": order}
        row = judged(campaign, of, ABOUT)
        assert row["verdict"] == verdict and row["parts"].count(";") == 1
    cells = {"of": {"place": "docker", "size": 4}, "than": {"size": 1}}
    alike = judged(campaign, {**cells, "within": SAME})
    assert alike["verdict"] == "holds" and alike["estimate"] == pytest.approx(1, abs=0.05)


def test_a_line_is_straight_and_an_offset_is_fixed(folder):
    sizes = [1, 10, 20, 40]
    levels = {"place": PLACES, "size": sizes}
    straight, curved = (
        write(folder(), levels, lambda at, _, f=f: {"ns": f(at)}, spread=0.0005)
        for f in (
            lambda at: 100 + 50 * at["size"] + 30 * (at["place"] == "docker"),
            lambda at: 100 + at["size"] ** 2,
        )
    )
    line = {"of": {"place": "bare", "size": "all"}, "line": "linear", "along": "size"}
    assert judged(straight, line, ABOUT)["verdict"] == "holds"
    assert judged(curved, line, ABOUT)["verdict"] == FAILS
    fixed = {"of": {"place": "docker", "size": sizes}, "line": "fixed", "along": "size"}
    row = judged(straight, fixed)
    assert row["verdict"] == "holds" and "added at 0: 29.9" in row["parts"]


@given(st.lists(st.sampled_from([one for one in claims.VERDICTS if one != "needs"]), min_size=1))
def test_parts_combine_to_the_verdict_of_a_claim(verdicts):
    holding, failing = verdicts.count("holds"), verdicts.count(FAILS)
    for spare in (0, (len(verdicts) - 1) // 2):
        found, needed = combine(verdicts, spare), len(verdicts) - spare
        assert (found == FAILS) == (failing > spare)
        assert (found == "holds") == (holding >= needed and failing <= spare)


def test_marks_show_a_sentence_that_its_table_contradicts_and_another_baseline(tmp_path):
    times = {"clean": 1000, "rules": 1200, "docker": 1200}
    campaign = write(tmp_path, {"place": [*times]}, lambda at, _: {"ns": times[at["place"]]})
    claim = {"to": {"place": "rules"}, "alternative": {"to": {"place": "clean"}}}
    row = judged(campaign, {**claim, "within": SAME, "sentence": "no difference"})
    assert (row["verdict"], row["marks"]) == ("holds", "†‡") and FAILS in row["why"]
    assert judged(campaign, {**claim, "within": [0.5, 2]})["marks"] == ""


SHARED = {"rig": {**RIG, "shared_kernel": True}}
NO_CARD = {"rig": {**RIG, "capabilities": {"nic-hardware": ""}}}
SENT, CPU = {"sent_per_s": 100.0}, {"elapsed_ns": 90.0, "warmup_ns": 10.0}
ALL = {**SENT, "packets_per_s": 99.9, "offered_per_s": 100.0, "settings": {"payload_b": 28}}
LOADED, NGINX = {"loaded_saturated": False, "loaded_loss": 0.0}, {"placement": PLACES * 10}
H2LOAD, WRK2 = ({"application": "nginx", "tools": {"nginx": one}} for one in ("h2load", "wrk2"))
#: What a claim needs, a plan or columns that have it, and those that lack it.
NEEDS = [
    ({"cpus": 10}, {}, {"facts": facts(cpus=2)}),
    ({"cpus_at_most": 20}, {}, {"facts": facts(cpus=64)}),
    ({"own_cpus": 2}, {}, {"rig": {**SHARED["rig"], "cpu_map": {"sut": "1"}}}),
    ({"hosts": 2}, {}, {"rig": {**RIG, "hosts": {"sut": {}, "clean": {}}}}),
    ({"separate": "machines"}, {}, {"rig": {**RIG, "capabilities": {"separate-machines": ""}}}),
    ({"separate": "kernels"}, {}, SHARED),
    ({"separate": "cpu time"}, {**SHARED, "settings": {"receiving_cpu": "own"}}, SHARED),
    ({"link_gbit_per_s": 24}, {}, {"facts": facts(speed="10000Mb/s")}),
    ({"link_gbit_per_s": 1}, {**NO_CARD, "settings": {"link_gbit_per_s": 1}}, NO_CARD),
    ({"samples": 20_000}, {"n_samples": 20_000}, {"n_samples": 500}),
    ({"carried": 0.99}, {**SENT, "packets_per_s": 99.5}, {**SENT, "packets_per_s": 98.0}),
    ({"offered": {"28": 300.0}}, {**ALL, "offered_per_s": 300.0}, {**ALL, "offered_per_s": 100.0}),
    ({"offered": {"28": 300.0}}, {**ALL, "packets_per_s": 60.0}, ALL),
    ({"cpu_use": [0.3, 0.4]}, {**CPU, "cpu_ns": 35.0}, {**CPU, "cpu_ns": 75.0}),
    ({"weave": "fastdp"}, {"router": "fastdp"}, {"router": "sleeve"}),
    ({"regime": {"ns": 2000.0}}, {}, {"ns": 20.0}),
]
#: Rules for every claim: its fields, and as above.
RULED = [
    ({}, {}, {"saturated": True}),
    ({"absolute": 900.0}, {}, {"ns": 20.0}),
    ({"value": "loaded_latency_ns_mean"}, LOADED, {**LOADED, "loaded_loss": 0.4}),
    ({"value": "call_ns"}, {**NGINX, "settings": H2LOAD}, {**NGINX, "settings": WRK2}),
]


@pytest.mark.parametrize(
    ("claim", "having", "lacking"),
    [*(({"needs": needs}, *changes) for needs, *changes in NEEDS), *RULED],
)
def test_a_rule_is_met_by_one_rig_or_setting_and_lacking_on_another(folder, claim, having, lacking):
    def asked(changes):
        plan = {name: one for name, one in changes.items() if name in ("facts", "rig", "settings")}
        campaign = measured(folder(), 1.5, value=claim.get("value", "ns"), **plan)
        columns = {name: one for name, one in changes.items() if name not in plan}
        campaign.__dict__["trials"] = campaign.trials.assign(**columns)
        return judged(campaign, {"above": 1.02, **claim})

    met, unmet = asked(having), asked(lacking)
    assert met["needs"] == "" and met["verdict"] != "needs"
    assert unmet["needs"] != "" and unmet["verdict"] == "needs"


def test_every_rule_has_a_rig_that_flips_it():
    rules = {name for name in vars(claims._Rules) if not name.startswith("_")}
    assert {name for needs, _, _ in NEEDS for name in needs} == rules


@pytest.fixture
def paper(monkeypatch):
    """Claims and a finding of one paper, as its file has them."""
    said = {name: {"says": "", "place": ""} for name in ("made-slower", "made-twice")}
    said["made-slower"]["above"], said["made-twice"]["size"] = 1.02, 2
    default = {name: PAIR[name] for name in ("study", "value", "of", "to")}
    finding = {"says": "Docker is slower.", "place": "abstract", "claims": [*said]}
    paper = {"default": default, "claim": said, "finding": {"made-f-slower": finding}}
    monkeypatch.setattr(claims, "_papers", lambda: {"made": paper})
    return paper


@pytest.mark.parametrize(
    ("of", "effect", "verdicts"),
    [
        ("docker", 1.5, ["holds"] * 2),
        ("docker", 1.1, ["holds", FAILS]),
        ("podman", 1.5, ["cannot tell"] * 2),
    ],
)
def test_a_finding_has_the_weakest_verdict_of_its_claims(tmp_path, paper, of, effect, verdicts):
    paper["default"]["of"] = {"place": of}
    measured(tmp_path / "reference" / "made-up", effect)
    rows = ledger(tmp_path / "reference")
    assert list(rows["verdict"]) == verdicts and list(rows) == claims.COLUMNS
    assert findings(rows)["verdict"].item() == verdicts[-1]


def test_a_local_campaign_counts_from_twelve_blocks_on(tmp_path, paper):
    with pytest.raises(DatasetError):
        ledger(tmp_path / "reference")
    measured(tmp_path / "reference" / "made-up", 1.5)
    for blocks, verdict in ((11, "holds"), (12, FAILS)):
        measured(tmp_path / "local" / "made-up", 0.8, blocks=blocks)
        rows = ledger(tmp_path / "reference", tmp_path / "local")
        assert len(rows) == 4 and set(current(rows)["verdict"]) == {verdict}
    assert "local" in findings(rows)["dataset"].item()


def test_the_ledger_of_the_reference_is_as_committed():
    path = Path(__file__).parents[1] / "golden" / "ledger.csv"
    golden = pd.read_csv(path, keep_default_na=False, na_values={"estimate": [""]})
    rows = ledger("data/reference")
    for name in ("id", "verdict", "marks", "needs", "n_blocks"):
        pd.testing.assert_series_equal(rows[name], golden[name], check_dtype=False)
    assert set(", ".join(findings(rows)["claims"]).split(", ")) <= set(rows["id"])
    numbers = ["estimate", "low", "high", "p_adjusted"]
    expected = golden[numbers].apply(pd.to_numeric, errors="coerce")
    pd.testing.assert_frame_equal(rows[numbers].astype(float), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("conditions", "metrics"), [(0.1, 1), (1, 0), (1, 0.5)])
def test_every_claim_is_judged_on_a_part_of_its_campaign(conditions, metrics, monkeypatch):
    campaigns = by_study("data/reference")
    for campaign in campaigns.values():
        trials = campaign.trials
        levels = trials[[*campaign.factors]].drop_duplicates()
        part = trials.merge(levels.head(round(conditions * len(levels)) or 1))
        values = [name for name in trials if column(name).kind in ("metric", "share", "counter")]
        dropped = values[round(metrics * len(values)) :]
        campaign.__dict__["trials"] = part.drop(columns=dropped)
    monkeypatch.setattr(claims, "by_study", lambda folder: campaigns)
    assert set(ledger("data/reference")["verdict"]) <= set(claims.VERDICTS)


def test_every_claim_of_the_papers_has_one_rule():
    every = claims.load_claims()
    for claim in every:
        bounds = [math.isfinite(one) for one in (claim.above, claim.below)]
        rules = [claim.order, claim.line, *bounds, claim.within, claim.size]
        assert sum(bool(rule) for rule in rules) == 1, claim.id
        assert claim.id.startswith(f"{claim.source}-") and claim.region[0] < claim.region[1]
        assert all(hasattr(claims._Rules, name) for name in claim.needs), claim.id
    assert {claim.explains for claim in every} <= {"", *(claim.id for claim in every)}
