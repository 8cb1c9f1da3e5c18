"""The sections that all analysis notebooks share, on campaigns in memory."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from memory_campaigns import REAL, Campaign, campaign, fail, record
from notebook_pages import display_into, summary_of, words

import labkit.dataset
from labkit.analysis.compare import compare, factor_effect
from labkit.analysis.sequential import Looks
from labkit.claims.ledger import ledger
from labkit.errors import DatasetError
from labkit.report.page import Page

SERVICES = {"linpack": "gflops", "netperf": "mbit_per_s"}
FACTORS = {"service": [*SERVICES], "case": ["1", "3b"]}
SIZES = ["0", "1024", "10240"]
#: Of one side at 2.5 % over all looks.
LEVELS = Looks((6, 12, 24)).levels(0.025, (6, 12))
PLACEMENTS = ["docker host", "docker nat"]


@pytest.fixture
def shown(monkeypatch):
    return display_into(monkeypatch)


@pytest.fixture
def page_of(monkeypatch):
    """Return what makes a page of a campaign that was never on disk."""

    def make(stand_in, data="data/local/quick/nets/20270115", **options):
        monkeypatch.setattr(labkit.dataset, "load", lambda path: stand_in)
        return Page(data, **options)

    return make


def planned(blocks, cells, factors, **more):
    """Return a plan of some cells, each with its copy."""
    conditions = [
        {"levels": dict(zip(factors, one, strict=True)), "replicate": n} for one, n in cells
    ]
    plan = {"factors": factors, "settings": {"size": 64}, "seed": 1, "blocks": blocks}
    plan["order"] = [[*range(len(conditions))] for _ in range(blocks)]
    return plan | {"conditions": conditions, "infeasible": [], "rig": dict(REAL)} | more


def services(blocks, **more):
    """Return a campaign whose services have a metric each, every condition twice a block."""
    rng, records = np.random.default_rng(3), []
    cells = [((s, c), n) for s in FACTORS["service"] for c in FACTORS["case"] for n in (1, 2)]
    for block in range(1, blocks + 1):
        for position, ((service, case), replicate) in enumerate(cells, 1):
            value = float(10 * (0.8 if case == "3b" else 1) * np.exp(rng.normal(0, 0.01)))
            levels = {"service": service, "case": case}
            metrics = {SERVICES[service]: value, "cpu_use": 0.5}
            records.append(
                record(block, position, levels, metrics, replicate=replicate, n_samples=0)
            )
    plan = planned(blocks, cells, FACTORS, study="interference", margin=0.05)
    return Campaign(plan | more, records)


def calls(blocks, n=400, noise=0.01, **more):
    """Return a campaign of samples: a published port costs 20 us whatever the size."""
    rng, records, samples = np.random.default_rng(5), [], {}
    cells = [((p, s), k) for p in PLACEMENTS for s in SIZES for k in (1, 2)]
    for block in range(1, blocks + 1):
        for position, ((placement, size), replicate) in enumerate(cells, 1):
            level = 200_000 + 10 * float(size) + 20_000 * (placement == "docker nat")
            level *= math.exp(rng.normal(0, noise))
            about = {"started_ns": 1_800_000_000 * 10**9, "n_samples": n, "replicate": replicate}
            about |= {"mechanisms": {"context_switches": 4.0}}
            levels = {"placement": placement, "size_b": size}
            one = record(block, position, levels, {}, **about)
            samples[one["trial"]] = (level * (0.9 + rng.gamma(2, 0.05, n))).astype("int64")
            records.append(one)
    factors = {"placement": PLACEMENTS, "size_b": SIZES}
    settings = {"sides": "server", "direction": "receive"}
    plan = planned(blocks, cells, factors, study="network-isolation", margin=0.02)
    return Campaign(plan | {"settings": settings} | more, records, samples)


def all_sections(page, headlines=()):
    page.what_was_run()
    page.the_rig()
    page.validity()
    page.block_plot()
    page.claims("latency2016")
    page.conclusions(headlines, title="A study")


def test_a_campaign_of_samples_has_all_sections(page_of, shown):
    page = page_of(calls(6), factors=["placement", "size_b"], value="latency_ns")
    assert page.summary == "median" and not page.pilot and page.margin == 0.02
    assert len(page.trials) == 72 and list(page.trials["size_b"].cat.categories) == SIZES
    assert {"median", "mean", "p99", "std", "context_switches"} <= set(page.trials)
    assert set(page.samples["n"]) == {400} and len(page.series["latency_ns"].iloc[0]) == 400
    effect = factor_effect(page.paired, "placement", PLACEMENTS, ["size_b"], value="median")
    headlines = page.headlines(effect, "the port, nothing to carry", size_b="0")
    page.show_comparison(effect)
    page.compared(effect, label=["contrast", "size_b"], baseline="docker host")
    names = [one.get_text() for one in shown[-1].axes[0].get_yticklabels()]
    assert names[0] == "docker nat, size 0 B"  # and not "docker nat / docker host"
    all_sections(page, headlines)
    text, summary = words(shown), summary_of(shown)
    assert "72 of 72 planned trials in 6 blocks; 28,800 samples; 0 attempts failed." in text
    assert "Margin: 2 %, as planned." in text and "Every condition is feasible on this rig." in text
    assert "Decidable margins of the median latency of a call (80 % power, 6 blocks" in text
    assert "Every block was measured within one session" in text
    assert "6 claims: " in text
    assert re.search(r"- the port, nothing to carry: [\d.]+ us, \+[\d.]+ us, 1.10x \[", text)
    assert (summary["study"], summary["title"]) == ("network-isolation", "A study")
    assert (summary["profile"], summary["measured"]) == ("quick", "2027-01-15")
    assert summary["headlines"][0]["verdict"] == "different"
    assert summary["headlines"][0]["estimate"] == pytest.approx(1.1, abs=0.02)
    assert summary["decidable_margin"] == pytest.approx(page.margins["median, "])
    assert summary["decidable_margin"] < 0.05
    assert len(summary["noise_floor"]) == 6 and summary["blocks"] == 6
    assert summary["headlines"][-1]["text"].startswith("the paper, 6 claims: ")
    assert "error" not in set(page.entries["result"])
    assert sum(isinstance(one, Figure) for one in shown) == 2
    assert list(summary["provenance"])[:3] == ["Dataset", "Fingerprint", "Plan"]
    assert summary["provenance"]["Rig"] == "real (inventory)"
    outputs = [one for one in shown if isinstance(one, dict)]
    assert summary["provenance"]["Fingerprint"] in outputs[-1]["text/html"]


def test_each_metric_of_a_study_has_its_own_validity(page_of, shown):
    page = page_of(services(6), value="gflops")
    assert page.samples is None and page.summary == "gflops"
    for service, metric in SERVICES.items():
        page.validity(metric, within={"service": service}, by="case")
        page.block_plot(metric, within={"service": service}, hue="case")
    page.conclusions([], title="Interference")
    text, summary = words(shown), summary_of(shown)
    assert text.count("### Sessions") == text.count("### Flags") == 1
    assert "### Throughput of Netperf, netperf" in text
    assert (
        "Decidable margins of the speed of Linpack (80 % power, 6 blocks, the noisiest condition"
        in text
    )
    assert [one["condition"] for one in summary["noise_floor"]] == [
        "speed of Linpack, linpack, case 1",
        "speed of Linpack, linpack, case 3b",
        "throughput of Netperf, netperf, case 1",
        "throughput of Netperf, netperf, case 3b",
    ]
    assert len(page.margins) == 4 and summary["decidable_margin"] == pytest.approx(
        max(page.margins.values())
    )
    assert sum(isinstance(one, Figure) for one in shown) == 2


@pytest.mark.parametrize("make", [calls, services])
def test_a_pilot_has_a_page_that_decides_nothing(page_of, shown, make):
    page = page_of(make(1), value="latency_ns" if make is calls else "gflops")
    assert page.pilot
    all_sections(page)
    text, summary = words(shown), summary_of(shown)
    assert "in 1 block;" in text and "**Fewer than 5 blocks: this is a pilot.**" in text
    assert "The spread is not known" in text and summary["decidable_margin"] == "unknown (pilot)"
    assert not set(page.entries["result"]) & {"replicated", "contradicted"}


def test_every_headline_of_a_pilot_that_was_measured_says_so(page_of, shown):
    lines = ["undecided (pilot)", "as counted", "from its tables"]
    page = page_of(calls(1), value="latency_ns")
    page.conclusions([{"text": "x", "verdict": one, "estimate": None} for one in lines], title="t")
    verdicts = [one["verdict"] for one in summary_of(shown)["headlines"]]
    assert verdicts == ["undecided (pilot)", "as counted (pilot)", "from its tables"]


def test_what_failed_is_counted_named_and_left_out(page_of, shown):
    stand_in = calls(5)
    fail(stand_in, lambda one: one["levels"]["placement"] == "docker nat" and one["block"] < 3)
    page = page_of(stand_in, value="latency_ns")
    assert page.failed == 12 and len(page.trials) == 48
    all_sections(page)
    text = words(shown)
    assert "48 of 60 planned trials in 5 blocks; 19,200 samples; 12 attempts failed." in text
    bad = [one for one in shown if isinstance(one, pd.DataFrame) and "problems" in one]
    assert len(bad) == 1 and set(bad[0]["problems"]) == {"it broke"} and len(bad[0]) == 12


@pytest.mark.parametrize("make", [calls, services])
def test_a_campaign_in_which_nothing_succeeded_has_a_page(page_of, shown, make):
    stand_in = make(2)
    fail(stand_in, lambda one: True)
    page = page_of(stand_in, value="latency_ns" if make is calls else "gflops")
    assert page.n_blocks == 0 and page.trials.empty and page.samples is None
    all_sections(page)
    assert "no trial has a value of this" in words(shown)
    assert summary_of(shown)["blocks"] == 0 and summary_of(shown)["trials"] == 0


def test_a_campaign_without_any_attempt_has_a_page(page_of, shown):
    page = page_of(Campaign(services(1).plan, []), value="gflops")
    all_sections(page)
    assert "0 of 8 planned trials in 0 blocks" in words(shown)
    assert summary_of(shown)["measured"] == ""


def test_a_block_over_two_sessions_is_blanked_for_comparisons_only(page_of, shown):
    stand_in = services(5)
    for one in stand_in.records:
        one["session"] = 2 if (one["block"], one["position"]) > (3, 4) else 1
    page = page_of(stand_in, value="gflops")
    assert page.spanned == [3]
    blanked = page.paired["block"] == 3
    assert page.paired.loc[blanked, ["gflops", "mbit_per_s", "cpu_use"]].isna().all(axis=None)
    assert page.paired["replicate"].notna().all() and page.paired["position"].notna().all()
    assert page.trials["cpu_use"].notna().all()
    page.validity("gflops", within={"service": "linpack"})
    assert "**Block 3 spans sessions and is left out of the comparisons" in words(shown)
    assert set(page.floors[0]["n_blocks"]) == {4}


def test_nothing_ran_twice_and_values_without_a_ratio(page_of, shown):
    stand_in = campaign(lambda name, size: 5.0, blocks=5, metrics=("rate", "lost"))
    plan = planned(5, [(("docker a", "1"), 1)], stand_in.plan["factors"])
    stand_in.plan.update(plan)
    for one in stand_in.records:
        one["metrics"]["lost"] = 0.0
    page = page_of(stand_in, value="rate")
    page.validity()
    page.validity("lost")
    text = words(shown)
    assert "No condition ran twice in a block: the noise floor is not known." in text
    assert "more blocks" not in text
    assert "no trial has a value of this (lost)." in text
    page.trust()
    assert "not known: it takes conditions that run twice in each block" in str(shown)


def test_rows_that_a_trial_measured_beside_its_own_are_conditions_too(page_of, shown):
    stand_in = services(5)
    rows = stand_in.trials
    also = rows[rows["position"] == 1].assign(gflops=3.0, case="also")
    also["trial"] += "/1"
    together = pd.concat([rows, also], ignore_index=True).assign(flags="slow")
    stand_in.__dict__["trials"] = together
    page = page_of(stand_in, value="gflops")
    assert len(page.trials) == 45 and "also" in set(page.trials["case"])
    page.what_was_run()
    page.conclusions([], title="x")
    assert "40 of 40 planned trials" in words(shown) and summary_of(shown)["trials"] == 40
    page.trust()
    assert "40 of 40 trials carry a flag" in str(shown)
    page.validity()
    flags = next(one for one in shown if isinstance(one, pd.DataFrame) and "slow" in one.index)
    assert flags.loc["slow"].to_dict() == {"linpack": 20, "netperf": 20}


def test_joined_factors_and_parts(page_of):
    page = page_of(calls(2), value="latency_ns")
    page.join("cell", ["placement", "size_b"])
    for table in (page.trials, page.paired, page.samples, page.series):
        assert "docker nat, 1024".replace(", ", " + ") in set(table["cell"])
    some = page.part(page.trials, {"placement": "docker nat", "size_b": ["0", 1024]})
    assert set(some["size_b"]) == {"0", "1024"} and len(some) == 8
    assert page.part(page.trials, None) is page.trials


def test_comparisons_count_the_looks_at_which_the_campaign_could_stop(page_of, shown):
    planned = page_of(services(6), value="gflops")
    assert planned.tests == {"margin": 0.05, "alpha": 0.05}
    looked = page_of(services(6, looks=[6, 12, 24]), value="gflops")
    spent = Looks((6, 12, 24)).levels(0.025, (6,))[-1]
    assert looked.tests["alpha"] == pytest.approx(2 * spent) and spent < 0.02
    # Conditions that a look dropped rest on its blocks: the strictest look counts for a table.
    dropped = services(12, looks=[6, 12, 24])
    dropped.__dict__["looks"] = [{"blocks": 6, "dropped": ["linpack | 1"]}]
    level = page_of(dropped, value="gflops").tests["alpha"]
    assert level == pytest.approx(min(2 * one for one in LEVELS))
    looked.answer(None)
    assert "look at the results after 6, 12 and 24 blocks" in words(shown)
    assert "in place of 5 %" in words(shown)


def test_trials_of_dropped_conditions_are_not_planned(page_of, shown):
    looked = services(12, looks=[6, 12])
    looked.__dict__["looks"] = [{"blocks": 6, "dropped": ["linpack | 1", "netperf | 3b"]}]
    dropped = (["linpack", "1"], ["netperf", "3b"])
    looked.records[:] = [
        one
        for one in looked.records
        if one["block"] <= 6 or [*one["levels"].values()] not in dropped
    ]
    page_of(looked, value="gflops").what_was_run()
    assert "72 of 72 planned trials in 12 blocks" in words(shown)
    part = page_of(looked, value="gflops", within={"service": "linpack"})
    assert part.campaign.planned == 36


def test_noise_is_stated_at_the_level_of_the_page(page_of):
    margins = []
    for looks in ([], [6, 12, 24]):
        page = page_of(services(6, looks=looks), value="gflops")
        page.validity("gflops", within={"service": "linpack"})
        margins.append(max(page.margins.values()))
    assert margins[0] < margins[1] < 2 * margins[0]


def test_noise_that_is_not_known_of_a_part_is_not_trusted(page_of, shown):
    stand_in = services(6)
    stand_in.records[:] = [
        one
        for one in stand_in.records
        if one["levels"]["service"] == "linpack" or one["replicate"] == 1
    ]
    page = page_of(stand_in, value="gflops", margin=0.5)
    page.validity("gflops", within={"service": "linpack"})
    assert page._noise_mark()["good"] and page._noise_mark()["text"].startswith("2 conditions ran")
    page.validity("gflops", within={"service": "linpack"}, by="case")  # counted once all the same
    assert page._noise_mark()["text"].startswith("2 conditions ran")
    page.validity("mbit_per_s", within={"service": "netperf"})
    mark = page._noise_mark()
    assert not mark["good"] and "not known for throughput of Netperf" in mark["text"]


def test_rows_of_several_quantities_have_their_own_units(page_of, shown):
    page = page_of(services(6), value="gflops")
    rated = page.paired.assign(rate=page.paired["gflops"].fillna(page.paired["mbit_per_s"]))
    table = factor_effect(rated, "case", ["1", "3b"], ["service"], value="rate", **page.tests)
    metric = table["service"].astype(str).map(SERVICES)
    page.compared(table.assign(metric=metric), label="service", baseline="case 1")
    text = " ".join(one.get_text() for one in shown[-1].findobj(Text))
    assert "Gflop/s" in text and "Mbit/s" in text


def test_the_index_counts_what_the_looks_decided_as_the_command_line_did(page_of, shown):
    lines = [
        {"text": "x", "verdict": verdict, "estimate": None}
        for verdict in ("different", "equivalent (pilot)", "undecided", "as counted")
    ]
    page_of(services(6), value="gflops").conclusions(lines, title="t")
    assert [summary_of(shown)[name] for name in ("decided", "open")] == [2, 1]
    shown.clear()
    looked = services(6, looks=[6, 12])
    states = ["decided", "open", "given up"]
    questions = [{"name": one, "state": one, "result": "", "conditions": []} for one in states]
    looked.__dict__["looks"] = [{"blocks": 6, "dropped": [], "questions": questions}]
    page_of(looked, value="gflops").conclusions(lines, title="t")
    assert [summary_of(shown)[name] for name in ("decided", "open")] == [1, 2]
    assert "planned for 3 questions; its last look decided 1 of them" in words(shown)


def test_a_margin_that_was_not_planned_is_said(page_of, shown):
    page = page_of(services(2), value="gflops", margin=0.1)
    page.what_was_run(["service"])
    assert "**Margin: 10 %, chosen after the plan, which has 5 %.**" in words(shown)


def test_infeasible_conditions_and_counters_are_shown(page_of, shown):
    infeasible = [{"condition": "docker nat | 0", "reason": "no published ports here"}]
    page = page_of(calls(2, infeasible=infeasible), value="latency_ns")
    page.what_was_run()
    Page.show_counters(page.trials, by=["placement"], columns=["context_switches", "softirqs"])
    assert "Infeasible on this rig" in words(shown)
    assert "Not recorded here: softirqs." in words(shown)
    counters = [one for one in shown if isinstance(one, pd.DataFrame)][-1]
    assert list(counters["context switches of all CPUs per operation"]) == ["4", "4"]
    assert "size 0 B" in str([one for one in shown if isinstance(one, pd.DataFrame)])
    page.conclusions([], title="x")
    found = summary_of(shown)["infeasible"]
    assert [one["reason"] for one in found] == [one["reason"] for one in infeasible]
    assert found[0]["condition"].endswith("size 0 B")


def counted(**counters):
    """Return trials of 5 blocks on the host's network and behind a port, with these counters."""
    rows = [
        {"block": block, "placement": place}
        | {name: at[place][block % len(at[place])] for name, at in counters.items()}
        for block in range(5)
        for place in PLACEMENTS
    ]
    return pd.DataFrame(rows)


def test_counters_that_differ_say_why_in_numbers(page_of, shown):
    page = page_of(calls(5), factors=["placement", "size_b"], value="latency_ns")
    trials = counted(
        context_switches={"docker host": [2.0, 2.1], "docker nat": [4.0, 4.1]},
        server_cpu={"docker host": [0.3, 0.5], "docker nat": [0.5, 0.3]},
        hop_drops={"docker host": [0], "docker nat": [3, 5]},
        retransmits={"docker host": [0], "docker nat": [0, 9]},
        softirqs={"docker host": [1.0, 2.0], "docker nat": [2.0, 1.0]},
    )
    page.why(trials, "placement", PLACEMENTS, [*trials.columns[2:], "rps_ipis"])
    text = words(shown)
    # Each counter at 5 %, as one family: with 5 blocks a level of 5 % / 4 would decide nothing.
    switches = "context switches of all CPUs per operation"
    assert f"{switches}: more (4.04/operation, +2.00/operation" in text
    assert "sockets dropped: counted with docker nat only, 3.80 on average." in text
    assert text.endswith(
        "No difference is shown in: TCP segments sent again; CPU time of the server's side busy; "
        "network softirqs of all CPUs per operation."
    )


def test_counters_that_differ_a_little_or_were_not_recorded_are_said_to_be_so(page_of, shown):
    page = page_of(calls(6), factors=["placement", "size_b"], value="latency_ns", margin=0.5)
    trials = counted(
        context_switches={"docker host": [2.0, 2.01], "docker nat": [2.1, 2.111]},
        idle_exits={"docker host": [math.nan], "docker nat": [3.0]},
    )
    page.why(trials, "placement", PLACEMENTS, [*trials.columns[2:]])
    text = words(shown)
    assert "context switches of all CPUs per operation: same within 50 %" in text
    assert "No difference" not in text and "Nothing that was counted" not in text
    assert "with docker nat only" not in text and "Not recorded of both: " in text


def test_counters_that_do_not_differ_are_said_not_to_say_why(page_of, shown):
    page = page_of(calls(5), factors=["placement", "size_b"], value="latency_ns")
    same = {place: [0.3, 0.5] for place in PLACEMENTS}
    page.why(counted(server_cpu=same), "placement", PLACEMENTS, ["server_cpu"])
    assert "these counters do not say why" in words(shown)
    page.why(counted(), "placement", PLACEMENTS, ["server_cpu"])
    assert "No counter was recorded of both docker nat and docker host." in words(shown)


def test_a_column_that_was_never_sampled_is_an_error(page_of):
    class Lacking(Campaign):
        def _measured(self, columns, reduce=None):
            raise DatasetError(f"{columns} was not measured")

    stand_in = calls(1)
    with pytest.raises(DatasetError, match="was not measured"):
        page_of(Lacking(stand_in.plan, stand_in.records), value="other_ns")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ({"estimate": None}, "- x: **open**"),
        ({"estimate": 1.23456, "unit": "1"}, "- x: 1.23x **open**"),
        (
            {"estimate": 12.3456, "low": 1.0, "high": 20.0, "unit": "us"},
            "- x: 12.3 us [1.00, 20.0] ",
        ),
    ],
)
def test_a_headline_in_words(line, text):
    assert Page.headline_text({"text": "x", "verdict": "open", **line}).startswith(text)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        ("different", "- x: 1.20x [1.10, 1.30] **slower**"),
        ("different (pilot)", "- x: 1.20x [1.10, 1.30] **slower (pilot)**"),
        ("equivalent", "- x: 1.20x [1.10, 1.30] **same within the margin**"),
        ("undecided", "- x: 1.20x [1.10, 1.30] **cannot tell yet**"),
        ("may share", "- x: 1.20x [1.10, 1.30] **may share**"),
    ],
)
def test_the_verdict_of_a_headline_has_a_direction(verdict, text):
    line = {"estimate": 1.2, "low": 1.1, "high": 1.3, "unit": "1", "metric": "rtt_ns_p99"}
    assert Page.headline_text({"text": "x", "verdict": verdict, **line}) == text
    if verdict == "different":
        said = Page.headline_text({"text": "x", "verdict": verdict, **line, "target": 2})
        assert said.endswith("**faster**")
        said = Page.headline_text({"text": "x", "verdict": verdict, **line, "metric": "softirqs"})
        assert said.endswith("**more**")


def test_the_claims_of_a_page_share_their_error_with_the_papers_other_studies(shown):
    names = ["p_replicates_adjusted", "p_contradicts_adjusted", "result"]
    studies = [f"data/reference/{name}" for name in ("network-isolation", "cpu-quota")]
    rows = Page(studies[0], value="latency_ns").claims("latency2016")
    both = ledger([*studies, "data/reference/union-filesystem"])
    both = both[both["id"].isin(rows["id"])]
    pd.testing.assert_frame_equal(rows[names], both[names])
    alone = ledger(studies[0]).set_index("id")["p_contradicts_adjusted"]
    assert (alone[rows["id"]].to_numpy() < rows["p_contradicts_adjusted"]).any()


def test_a_headline_can_be_of_a_level_that_is_called_condition(page_of):
    page = page_of(calls(6), factors=["placement", "size_b"], value="latency_ns")
    names = {"condition": "placement", "baseline": "docker host"}
    table = compare(page.paired[page.paired["size_b"] == "0"], value="median", **names)
    (line,) = page.headlines(table, "a port", condition="docker nat")
    assert line["text"] == "a port" and re.fullmatch(r"[\d.]+ us, \+[\d.]+ us", line["amount"])
