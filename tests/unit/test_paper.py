"""`claims.Paper`: printed values beside measured ones, in units, with ratios and reasons."""

from __future__ import annotations

import html
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure
from notebook_pages import execute, words

from labkit import claims, project
from labkit.claims.paper import ABSENT
from labkit.claims.published import published
from labkit.claims.schema import load_claims
from labkit.errors import UsageError
from labkit.plots.figure import alt_text

BARE = {"placement": {"bare": "bare clean"}}
ROUND_TRIP = {"levels": BARE, "where": {"capture": "off"}, "baseline": {"placement": "bare"}}
ALONE = {"neighbour": "none", "case": "1"}
RUNTIMES = {
    f"{runtime} any": [{"placement": f"{runtime} {net}"} for net in ("host", "nat", "macvlan")]
    for runtime in ("docker", "lxc", "rkt")
}


@pytest.fixture(scope="module")
def papers() -> dict[str, claims.Paper]:
    return {key: claims.Paper(key) for key in load_claims().sources}


def tuned(paper: claims.Paper) -> pd.DataFrame:
    metrics = {"residence_time": "rtt_ns"}
    return paper.beside("Table 4.2", metrics, study="affinity-spinning", **ROUND_TRIP)


def chains(paper: claims.Paper) -> pd.DataFrame:
    return paper.beside(
        "Table II",
        {"throughput_loss": "packets_per_s"},
        study="forwarding-chains",
        levels={"placement": {**RUNTIMES, "bare": "bare clean"}},
        baseline={"placement": "bare"},
        relative=lambda loss: 1 - loss / 100,
    )


def test_a_ratio_is_the_one_that_the_ledger_tests(papers: dict[str, claims.Paper]) -> None:
    paper = papers["rohprimardho2015"]
    rows = paper.beside(
        "Table 4.2",
        {"residence_time": "residence_ns"},
        study="affinity-spinning",
        **{**ROUND_TRIP, "where": {"capture": "on"}},
    )
    row = rows.query("placement == 'docker bridge' and statistic == 'median'").iloc[0]
    claim = paper.rows.set_index("id").loc["rohprimardho2015-tuned-bridge-slower"]
    assert row["ratio"] == pytest.approx(claim["estimate"])
    assert row["paper_ratio"] == pytest.approx(claim["published_value"])
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert (row["setting"], row["setting_why"]) == (claim["setting"], claim["setting_why"])


def test_values_keep_their_units_and_statistics(papers: dict[str, claims.Paper]) -> None:
    rows = tuned(papers["rohprimardho2015"]).set_index(["placement", "statistic"])
    median = rows.loc[("docker host", "median")]
    assert (median["paper"], median["paper_unit"], median["unit"]) == (4.13, "us", "ns")
    assert median["quantity"] == "median round-trip time" and median["n_blocks"] == 16
    assert len(median["values"]) == 16 and median["sd"] == pytest.approx(
        pd.Series(median["values"]).std()
    )
    # The deviation of single samples is a quantity of its own; that of a mean belongs to it.
    assert rows.loc[("docker host", "std"), "paper"] == 0.22
    iperf3 = papers["haruna2019"].beside(
        "Table 5.1", {"throughput": "throughput_mbit_per_s"}, study="application-networks"
    )
    assert list(iperf3["paper_sd"]) == [634.865, 620.433, 422.759, 93.614]
    assert set(iperf3["paper_n"]) == {30} and set(iperf3["unit"].dropna()) == {"Mbit/s"}


def test_another_quantity_than_the_printed_one_is_named(papers: dict[str, claims.Paper]) -> None:
    rows = papers["rohprimardho2015"].beside(
        "Table 4.2",
        {"residence_time": "rtt_ns"},
        study="affinity-spinning",
        printed_as="residence time",
        **ROUND_TRIP,
    )
    assert "median residence time; here round-trip time" in set(rows["quantity"])


def test_what_no_paper_prints_is_measured_alone(papers: dict[str, claims.Paper]) -> None:
    where = {"sides": "server", "direction": "send"}
    over = {"placement": ["docker host", "docker nat"], "size_b": [1024, 102400]}
    rows = papers["latency2016"].measured(
        "network-isolation", "latency_ns", "mean", over=over, where=where
    )
    assert rows["paper"].isna().all() and rows["here"].notna().all() and set(rows["unit"]) == {"ns"}
    blocks = claims.Paper.blocks(rows)
    assert len(blocks) == 80 and set(blocks["run"]) == set(range(1, 21))
    first = blocks[(blocks["placement"] == "docker host") & (blocks["size_b"] == 1024)]
    assert first["value"].min() < rows["here"][0] < first["value"].max()


def test_the_baseline_has_no_ratio_to_itself(papers: dict[str, claims.Paper]) -> None:
    rows = tuned(papers["rohprimardho2015"])
    bare = rows[rows["placement"] == "bare"]
    assert len(bare) and bare[["ratio", "paper_ratio"]].isna().all(axis=None)
    assert rows[rows["placement"] != "bare"]["ratio"].notna().all()


def test_what_is_printed_relative_to_the_baseline_becomes_a_ratio(
    papers: dict[str, claims.Paper],
) -> None:
    rows = papers["jha2018"].beside(
        "Table III",
        {"interference_ratio": "gflops"},
        study="interference",
        baseline=ALONE,
        relative=lambda change: 1 + change,
    )
    pair = rows.query("neighbour == 'linpack' and case == '2'").iloc[0]
    assert pair["paper_ratio"] == pytest.approx(0.7898) and math.isnan(pair["paper"])
    assert pair["unit"] == "Gflop/s" and 0.5 < pair["ratio"] < 1


def test_a_range_over_networks_stands_beside_each_of_them(papers: dict[str, claims.Paper]) -> None:
    rows = chains(papers["struye2017"]).query("payload_b == 28 and chain == 1")
    assert list(rows["condition"].str.split(",").str[0]) == [
        f"{runtime} {net}"
        for runtime in ("docker", "rkt", "lxc")
        for net in ("host", "nat", "macvlan")
    ]
    docker = rows[rows["placement"] == "docker any"]
    assert set(docker["paper_ratio_low"].round(3)) == {0.4}
    assert set(docker["paper_ratio_high"].round(3)) == {0.53}
    assert docker["ratio"].notna().all()


def test_what_was_not_measured_has_a_reason_and_no_value(papers: dict[str, claims.Paper]) -> None:
    rows = papers["struye2017"].beside(
        [f"section VI.B.{number}" for number in (1, 2, 3, 4)],
        {"latency": "loaded_latency_ns_mean"},
        study="forwarding-chains",
        levels=BARE,
    )
    absent = rows[rows["absent"].notna()]
    assert list(absent["placement"]) == ["rkt any"] and len(absent) < len(rows)
    assert absent[["here", "sd", "ratio"]].isna().all(axis=None)
    table, reasons = papers["struye2017"].table(rows)
    shown = table["Here [95 % interval] ± SD"]
    assert shown.str.startswith(ABSENT).sum() == len(absent)
    number = int(shown[shown.str.startswith(ABSENT)].iloc[0].partition("(")[2].rstrip(")"))
    assert number in reasons.index
    assert any("rkt any is not in this campaign" in reason for reason in reasons["Reason"])


def test_what_a_rig_cannot_run_has_its_reason(papers: dict[str, claims.Paper]) -> None:
    where = {"operation": "write", "flush": "fsync", "layer": "top", "cache": "warm"}
    where |= {"merged": "no", "size_b": "4096", "layers": "1"}
    over = {"storage": ["overlay2", "aufs"]}
    rows = papers["latency2016"].measured(
        "union-filesystem", "latency_ns", "median", over=over, where=where
    )
    assert rows["here"].notna().tolist() == [True, False]
    assert rows["absent"][1] == "infeasible: the kernel has no aufs"


def test_no_campaign_leaves_only_what_is_printed(tmp_path: Path) -> None:
    shutil.copytree(project("data/reference/rps"), tmp_path / "rps")
    paper = claims.Paper("rohprimardho2015", tmp_path)
    rows = tuned(paper)
    assert set(rows["absent"]) == {"no campaign of affinity-spinning"}
    assert rows["paper"].notna().all() and rows["here"].isna().all()
    assert set(paper.rows["result"]) == {"not measured"}
    assert "No headline could be decided" in paper.answer()
    where = {"affinity": "split", "wait": "spin", "capture": "off"}
    names = {"by": "placement", "levels": ["bare clean"], "where": where}
    assert paper.distribution("affinity-spinning", "rtt_ns", **names).empty


def test_samples_that_few_trials_have_are_read_from_those(papers: dict[str, claims.Paper]) -> None:
    where = {"affinity": "split", "wait": "spin", "capture": "on"}
    names = {"by": "placement", "levels": ["bare clean", "docker nat"], "where": where}
    known = papers["rohprimardho2015"].distribution("affinity-spinning", "residence_ns", **names)
    assert set(known["placement"]) == {"bare clean"}
    assert known["value"].is_monotonic_increasing and 1_000 < known["value"].median() < 1_000_000


def test_a_distribution_takes_only_some_samples_of_a_trial(papers: dict[str, claims.Paper]) -> None:
    def latency(lag_ns: int) -> pd.DataFrame:
        where = {"application": "postgresql 300/s", "lag_ns": lag_ns}
        names = {"by": "placement", "levels": ["docker host"], "where": where}
        return papers["haruna2019"].distribution("application-networks", "latency_ns", **names)

    one, other = latency(83_000)["value"], latency(84_000)["value"]
    assert len(one) and not one.equals(other)


def test_every_headline_stands_in_the_table_with_its_row_of_the_ledger(
    papers: dict[str, claims.Paper],
) -> None:
    for paper in papers.values():
        headlines = paper.rows[paper.rows["tier"] == "headline"]
        text = paper.headlines()
        assert len(headlines) and all(
            f'href="ledger.html#{name}"' in text for name in headlines["id"]
        )
        assert paper.answer().startswith(f"**{len(headlines)} headlines: ")


def test_a_headline_of_two_conditions_has_their_values(papers: dict[str, claims.Paper]) -> None:
    # The knee's claim: 99 % of calls under a quota of 1,000 us against none.
    said = papers["latency2016"].answer()
    assert "- **Replicated:** A CPU quota causes a very long tail" in said
    assert " ms against " in said and "(slower)" in said


def test_a_paper_whose_tables_are_not_what_it_says_is_told(
    papers: dict[str, claims.Paper],
) -> None:
    text = papers["jha2018"].headlines()
    # Its text calls Netperf beside others comparable, and its Table VI has 0.544.
    assert "<td>0.544x in its tables, against its own text</td>" in text
    assert "<td>shows it in its tables</td>" in papers["haruna2019"].headlines()
    assert "<td>no number</td>" in papers["struye2017"].headlines()


def test_a_number_of_several_comparisons_says_which_it_is_of(
    papers: dict[str, claims.Paper],
) -> None:
    paper = papers["haruna2019"]
    row = paper.rows.set_index("id").loc["haruna2019-memcached-latency-order"]
    assert " against docker " in row["part"]
    assert f" ({row['part']})" in paper.headlines()
    assert not paper.rows.set_index("id").loc["haruna2019-tcp-overlay", "part"]


def test_a_paper_that_is_unknown_is_named() -> None:
    with pytest.raises(UsageError, match="no paper 'struye2018'"):
        claims.Paper("struye2018")


def test_every_paper_has_its_notebook() -> None:
    notebooks = {path.stem for path in project("notebooks/papers").glob("*.ipynb")}
    assert notebooks == set(load_claims().sources)
    assert all(len(published(key)) for key in notebooks)


@pytest.mark.parametrize("key", load_claims().sources)
def test_a_page_of_a_paper_needs_no_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    """Of a folder with another study the page has what is printed, and says what is missing."""
    shutil.copytree(project("data/reference/network-isolation"), tmp_path / "network-isolation")
    shown, names = execute(
        monkeypatch, None, project(f"notebooks/papers/{key}.ipynb"), data=str(tmp_path)
    )
    assert ABSENT in words(shown)
    assert len(names["table"]) and names["table"]["Paper"].str.len().max() > 0
    figures = [value for value in shown if isinstance(value, Figure)]
    assert all(alt_text(figure) for figure in figures)


def test_what_was_tested_of_a_contradiction_stands_in_the_answer_and_beside_it(
    papers: dict[str, claims.Paper],
) -> None:
    paper = papers["rohprimardho2015"]
    results = paper.rows.set_index("id")["result"]
    told = [one for one in paper.reasons if results[one.claim] == "contradicted"]
    headlines = set(paper.rows.loc[paper.rows["tier"] == "headline", "id"])
    # Another condition of the study's own campaign, and an experiment.
    reasons = [str(one) for one in told if one.claim in headlines]
    assert len(reasons) == 2
    for reason in reasons:
        assert reason in paper.answer() and html.escape(reason) in paper.headlines()
        assert not any(reason in line for line in paper.decided())
