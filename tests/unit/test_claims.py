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
from labkit.errors import DatasetError

PLACES = ["bare", "docker"]
ABOUT = {"id": "p-c", "source": "p", "says": "", "place": "", "study": "made-up", "value": "ns"}
#: A claim about the ratio of two placements.
PAIR = {**ABOUT, "of": {"place": "docker"}, "to": {"place": "bare"}}


def measured(folder, effect, *, value="ns", **options):
    """A campaign of two placements, with a known ratio."""
    return write(
        folder,
        {"place": PLACES},
        lambda cell, block: {value: 1000 * (effect if cell["place"] == "docker" else 1)},
        **options,
    )


def judged(folder, effect, claim, **options):
    return evaluate(Claim(**{**PAIR, **claim}), Evidence(measured(folder, effect, **options)))


@pytest.mark.parametrize(
    ("effect", "claim", "verdict"),
    [
        (1.5, {"above": 1.02}, "holds"),
        (0.8, {"above": 1.02}, "does not hold here"),
        (1.0, {"above": 1.1}, "does not hold here"),
        (1.5, {"below": 0.98}, "does not hold here"),
        (1.0, {"within": [0.95, 1.05]}, "holds"),
        (1.3, {"within": [0.95, 1.05]}, "does not hold here"),
        (1.5, {"size": 1.5}, "holds"),
        (1.3, {"size": 1.5}, "holds"),
        (2.5, {"size": 1.5}, "holds, other size"),
        (1.1, {"size": 1.5}, "does not hold here"),
        (0.7, {"size": 1.5}, "does not hold here"),
        (0.4, {"size": 0.5}, "holds"),
        (0.95, {"size": 0.5}, "does not hold here"),
        (0.1, {"size": 0.5}, "holds, other size"),
    ],
)
def test_each_kind_of_claim_has_the_verdict_of_its_rule(tmp_path, effect, claim, verdict):
    assert judged(tmp_path, effect, claim)["verdict"] == verdict


@pytest.mark.parametrize("claim", [{"above": 1.02}, {"within": [0.95, 1.05]}, {"size": 1.5}])
def test_noise_and_few_blocks_cannot_tell(tmp_path, claim):
    noisy = judged(tmp_path / "noisy", 1.2, claim, spread=0.4, seed=7)
    assert noisy["verdict"] == "cannot tell"
    few = judged(tmp_path / "few", 1.5, claim, blocks=4)
    assert few["verdict"] == "cannot tell"


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), effect=st.sampled_from([0.97, 1.0, 1.02, 1.05, 1.2]))
def test_ledger_and_compare_say_the_same_of_a_pair(tmp_path_factory, seed, effect):
    campaign = measured(tmp_path_factory.mktemp("pair"), effect, seed=seed, spread=0.03)
    row = compare(
        campaign.trials, value="ns", condition="place", baseline="bare", margin=0.05
    ).iloc[0]
    evidence = Evidence(campaign)
    above = evaluate(Claim(**PAIR, above=1.0), evidence)
    assert (above["verdict"] == "holds") == (row["differs"] and row["estimate"] > 1)
    assert (above["verdict"] == "does not hold here") == (row["differs"] and row["estimate"] < 1)
    same = evaluate(Claim(**PAIR, within=[1 / 1.05, 1.05]), evidence)
    assert (same["verdict"] == "holds") == row["equivalent"]
    for one in (above, same):
        assert (one["low"], one["high"]) == pytest.approx((row["low"], row["high"]))


def test_an_order_is_a_part_a_step_and_a_ratio_of_ratios_four_cells(tmp_path):
    levels = {1: 1000, 2: 1500, 4: 2500}
    campaign = write(
        tmp_path,
        {"place": PLACES, "size": [1, 2, 4]},
        lambda cell, block: {"ns": levels[cell["size"]] * (2 if cell["place"] == "docker" else 1)},
    )
    of = {"place": "bare", "size": [1, 2, 4]}
    rising = evaluate(Claim(**ABOUT, of=of, order="rising", along="size"), Evidence(campaign))
    assert rising["verdict"] == "holds"
    assert rising["parts"].count(";") == 1
    everything = evaluate(
        Claim(**ABOUT, of={**of, "size": "all"}, order="falling", along="size"), Evidence(campaign)
    )
    assert everything["verdict"] == "does not hold here"
    same = {"of": {"place": "docker", "size": 4}, "to": {"place": "bare"}, "than": {"size": 1}}
    alike = evaluate(Claim(**ABOUT, **same, within=[0.95, 1.05]), Evidence(campaign))
    assert alike["verdict"] == "holds"
    assert alike["estimate"] == pytest.approx(1, abs=0.05)


def test_a_line_is_straight_and_an_offset_is_fixed(tmp_path):
    sizes = [1, 10, 20, 40]
    campaign = write(
        tmp_path,
        {"place": PLACES, "size": sizes},
        lambda cell, block: {"ns": 100 + 50 * cell["size"] + 30 * (cell["place"] == "docker")},
        spread=0.0005,
    )
    evidence = Evidence(campaign)
    straight = Claim(**ABOUT, of={"place": "bare", "size": "all"}, line="linear", along="size")
    assert evaluate(straight, evidence)["verdict"] == "holds"
    fixed = Claim(
        **ABOUT,
        of={"place": "docker", "size": sizes},
        to={"place": "bare"},
        line="fixed",
        along="size",
    )
    row = evaluate(fixed, evidence)
    assert row["verdict"] == "holds"
    assert "added at 0: 3" in row["parts"]
    curved = write(
        tmp_path / "curved",
        {"place": ["bare"], "size": sizes},
        lambda cell, block: {"ns": 100 + cell["size"] ** 2},
        spread=0.0005,
    )
    assert evaluate(straight, Evidence(curved))["verdict"] == "does not hold here"


@given(
    verdicts=st.lists(
        st.sampled_from(["holds", "holds, other size", "cannot tell", "does not hold here"]),
        min_size=1,
        max_size=7,
    )
)
def test_parts_combine_to_the_verdict_of_a_claim(verdicts):
    whole = combine(verdicts, most=False)
    assert (whole == "does not hold here") == ("does not hold here" in verdicts)
    assert (whole == "holds") == (set(verdicts) == {"holds"})
    most = combine(verdicts, most=True)
    more_than_half = len(verdicts) // 2 + 1
    assert (most == "holds") == (
        verdicts.count("holds") >= more_than_half
        and verdicts.count("does not hold here") <= len(verdicts) - more_than_half
    )


def test_equivalence_does_not_hold_where_one_side_failed_more(tmp_path):
    claim = Claim(**PAIR, within=[0.95, 1.05])
    both = {"ns": 1000.0}
    kept = write(tmp_path / "a", {"place": PLACES}, lambda cell, block: both, blocks=12)
    assert evaluate(claim, Evidence(kept))["verdict"] == "holds"
    failing = write(
        tmp_path / "b",
        {"place": PLACES},
        lambda cell, block: None if cell["place"] == "docker" and block <= 3 else both,
        blocks=12,
    )
    assert evaluate(claim, Evidence(failing))["verdict"] != "holds"


def test_marks_show_a_sentence_that_its_table_contradicts_and_another_baseline(tmp_path):
    campaign = write(
        tmp_path,
        {"place": ["clean", "rules", "docker"]},
        lambda cell, block: {"ns": 1000 if cell["place"] == "clean" else 1200},
    )
    claim = {**ABOUT, "of": {"place": "docker"}, "to": {"place": "rules"}}
    other = {"to": {"place": "clean"}}
    row = evaluate(
        Claim(**claim, within=[0.95, 1.05], alternative=other, sentence="no difference"),
        Evidence(campaign),
    )
    assert row["verdict"] == "holds"
    assert row["marks"] == "†‡"
    assert "does not hold here" in row["why"]
    alike = evaluate(Claim(**claim, within=[0.5, 2], alternative=other), Evidence(campaign))
    assert alike["marks"] == ""


LOADED = "loaded_latency_ns_mean"


@pytest.mark.parametrize(
    ("needs", "with_it", "without"),
    [
        ({"cpus": 10}, {}, {"facts": facts(cpus=2)}),
        ({"cpus_at_most": 20}, {}, {"facts": facts(cpus=64)}),
        ({"own_cpus": 2}, {}, {"rig": {**RIG, "shared_kernel": True, "cpu_map": {"sut": "1"}}}),
        ({"hosts": 2}, {}, {"rig": {**RIG, "hosts": {"sut": {}, "clean": {}}}}),
        ({"separate": "machines"}, {}, {"rig": {**RIG, "capabilities": {"separate-machines": ""}}}),
        ({"separate": "kernels"}, {}, {"rig": {**RIG, "shared_kernel": True}}),
        (
            {"separate": "cpu time"},
            {"rig": {**RIG, "shared_kernel": True}, "settings": {"receiving_cpu": "own"}},
            {"rig": {**RIG, "shared_kernel": True}},
        ),
        ({"link_gbit_per_s": 24}, {}, {"facts": facts(speed="10000Mb/s")}),
        (
            {"link_gbit_per_s": 1},
            {
                "rig": {**RIG, "capabilities": {"nic-hardware": ""}},
                "settings": {"link_gbit_per_s": 1},
            },
            {"rig": {**RIG, "capabilities": {"nic-hardware": ""}}},
        ),
        ({"samples": 20_000}, {}, {"columns": {"n_samples": 500}}),
        (
            {"carried": 0.99},
            {"columns": {"packets_per_s": 99.5, "sent_per_s": 100.0}},
            {"columns": {"packets_per_s": 98.0, "sent_per_s": 100.0}},
        ),
        (
            {"cpu_use": [0.3, 0.4]},
            {"columns": {"cpu_ns": 35.0, "elapsed_ns": 90.0, "warmup_ns": 10.0}},
            {"columns": {"cpu_ns": 75.0, "elapsed_ns": 90.0, "warmup_ns": 10.0}},
        ),
        ({"weave": "fastdp"}, {"columns": {"router": "fastdp"}}, {"columns": {"router": "sleeve"}}),
        ({"regime": {"ns": 2000.0}}, {}, {"columns": {"ns": 20.0}}),
    ],
)
def test_a_need_is_met_by_one_rig_and_lacking_on_another(tmp_path, needs, with_it, without):
    claim = Claim(**PAIR, above=1.02, needs=needs)
    for number, options in enumerate((with_it, without)):
        columns = options.pop("columns", {})
        campaign = measured(tmp_path / str(number), 1.5, **options)
        campaign.__dict__["trials"] = campaign.trials.assign(**columns)
        row = evaluate(claim, Evidence(campaign))
        assert bool(row["needs"]) == bool(number), row
        assert (row["verdict"] == "needs") == bool(number)


@pytest.mark.parametrize(
    ("value", "claim", "columns", "settings_", "lacks"),
    [
        (LOADED, {}, {"loaded_saturated": False, "loaded_loss": 0.0}, {}, False),
        (LOADED, {}, {"loaded_saturated": False, "loaded_loss": 0.4}, {}, True),
        ("ns", {}, {"saturated": True}, {}, True),
        ("ns", {"absolute": 900.0}, {}, {}, False),
        ("ns", {"absolute": 90_000.0}, {}, {}, True),
        ("call_ns", {}, {}, {"application": "nginx", "tools": {"nginx": "wrk2"}}, True),
        ("call_ns", {}, {}, {"application": "nginx", "tools": {"nginx": "h2load"}}, False),
    ],
)
def test_rules_that_hold_for_every_claim(tmp_path, value, claim, columns, settings_, lacks):
    campaign = measured(tmp_path, 1.5, value=value, settings=settings_)
    trials = campaign.trials.assign(placement=campaign.trials["place"], **columns)
    campaign.__dict__["trials"] = trials
    row = evaluate(Claim(**{**PAIR, "value": value}, above=1.02, **claim), Evidence(campaign))
    assert bool(row["needs"]) == lacks, row["needs"]


FILE = """
[[needs]]
study = "made-up"
where = {place = "docker"}
cpus = 2

[finding.made-f-slower]
says = "Docker is slower."
place = "abstract"
claims = ["made-slower", "made-twice"]

[claim.made-slower]
says = "Docker is slower."
place = "1"
study = "made-up"
value = "ns"
of = {place = "docker"}
to = {place = "bare"}
above = 1.02

[claim.made-twice]
says = "Docker takes twice as long."
place = "2"
study = "made-up"
value = "ns"
of = {place = "docker"}
to = {place = "bare"}
size = 2
"""


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """A project with the claims of one paper; returns a function that writes its file anew."""
    path = tmp_path / "data" / "claims" / "made.toml"
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(claims, "project", lambda name="": tmp_path / name)
    path.write_text(FILE)
    return path


def test_a_finding_has_the_weakest_verdict_of_its_claims(tmp_path, paper):
    measured(tmp_path / "reference" / "made-up", 1.5)
    rows = ledger(tmp_path / "reference")
    assert list(rows["verdict"]) == ["holds", "holds"]
    (finding,) = findings(rows).to_dict("records")
    assert finding["verdict"] == "holds"
    measured(tmp_path / "other" / "made-up", 1.1)
    rows = ledger(tmp_path / "other")
    assert list(rows["verdict"]) == ["holds", "does not hold here"]
    assert findings(rows)["verdict"].item() == "does not hold here"


def test_a_local_campaign_counts_from_twelve_blocks_on(tmp_path, paper):
    measured(tmp_path / "reference" / "made-up", 1.5)
    measured(tmp_path / "local" / "made-up", 0.8, blocks=11)
    rows = ledger(tmp_path / "reference", tmp_path / "local")
    assert len(rows) == 4
    assert set(current(rows)["verdict"]) == {"holds"}
    measured(tmp_path / "local" / "made-up", 0.8, blocks=12)
    rows = ledger(tmp_path / "reference", tmp_path / "local")
    assert set(current(rows)["verdict"]) == {"does not hold here"}
    assert "local" in findings(rows)["dataset"].item()


def test_interim_analyses_are_paid_for_in_the_mark_alone(tmp_path, paper):
    plain = measured(tmp_path / "a" / "made-up", 1.5)
    paying = measured(tmp_path / "b" / "made-up", 1.5, looks=[4, 7, 10])
    claim = Claim(**PAIR, above=1.02)
    first, second = (evaluate(claim, Evidence(one)) for one in (plain, paying))
    assert second["p"] == pytest.approx(min(1, 3 * first["p"]))
    assert second["verdict"] == first["verdict"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[claim.made-twice]", "[claim.made-slower]", "made-slower"),
        ("size = 2", "sise = 2", "sise"),
        ('claims = ["made-slower"', 'claims = ["made-slow"', "made-slow"),
        ("cpus = 2", "cpu = 2", "cpu"),
        ('value = "ns"', "value = ns", "Invalid value"),
        ('study = "made-up"\nvalue', "value", "study"),
    ],
)
def test_a_mistake_in_a_file_of_claims_is_named(paper, old, new, named):
    paper.write_text(FILE.replace(old, new))
    with pytest.raises(DatasetError, match=named):
        claims.load_papers()


def test_a_folder_without_campaigns_is_refused(tmp_path, paper):
    with pytest.raises(DatasetError):
        ledger(tmp_path / "nothing")


def test_cells_that_were_not_measured_say_so(tmp_path):
    row = judged(tmp_path, 1.5, {"of": {"place": "podman"}, "above": 1.02})
    assert row["verdict"] == "cannot tell"
    assert "podman" in row["why"]


def test_a_ledger_without_any_estimate_has_all_columns(tmp_path, paper):
    paper.write_text(FILE.replace('of = {place = "docker"}', 'of = {place = "podman"}'))
    measured(tmp_path / "local" / "made-up", 1.5)
    rows = ledger(tmp_path / "local")
    assert list(rows) == claims.COLUMNS and rows["estimate"].isna().all()
    assert set(findings(rows)["verdict"]) == {"cannot tell"}


GOLDEN = Path(__file__).parents[1] / "golden" / "ledger.csv"


def test_the_ledger_of_the_reference_is_as_committed():
    rows = ledger("data/reference").set_index("id")
    golden = pd.read_csv(GOLDEN, keep_default_na=False, na_values={"estimate": [""]})
    golden = golden.set_index("id")
    assert list(rows.index) == list(golden.index)
    for name in ("verdict", "marks", "needs", "n_blocks"):
        changed = rows[name] != golden[name]
        assert not changed.any(), rows[changed][[name]]
    for name in ("estimate", "low", "high", "p_adjusted"):
        expected = pd.to_numeric(golden[name], errors="coerce")
        assert rows[name].to_numpy(float) == pytest.approx(
            expected, rel=1e-6, abs=1e-9, nan_ok=True
        )


def test_every_claim_of_the_papers_has_one_rule_and_every_finding_its_claims():
    for paper_ in claims.load_papers():
        for claim in paper_.claims:
            rules = [claim.order, claim.line, claim.above, claim.below, claim.within, claim.size]
            assert sum(bool(rule) for rule in rules) == 1, claim.id
            assert claim.id.startswith(f"{paper_.source}-")
            low, high = claim.region
            assert low < high or math.isinf(low), claim.id
        explained = {claim.explains for claim in paper_.claims} - {""}
        assert explained <= {claim.id for claim in paper_.claims}
        assert all(one["says"] and one["place"] for one in paper_.findings.values())
