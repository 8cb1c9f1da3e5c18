"""Tables of the papers next to a campaign."""

import tomllib

import numpy as np
import pytest
from small_campaigns import write_campaign

from labkit.analysis.papers import published, side_by_side
from labkit.data import load
from labkit.errors import UsageError
from labkit.paths import project

PAPERS = ("haruna2019", "jha2018", "latency2016", "rohprimardho2015", "struye2017")


@pytest.fixture(scope="module")
def affinity(tmp_path_factory):
    """A campaign in which Docker's host network takes 1.5 times as long, without a bridge."""

    def measure(levels, generator):
        slower = 1.5 if levels["placement"] == "docker host" else 1.0
        time = 1000 * slower * np.exp(generator.normal(0, 1e-3))
        names = ("min", "median", "p95", "p99", "std")
        return {f"{kind}_ns_{name}": time for kind in ("rtt", "residence") for name in names}

    factors = {"placement": ["bare clean", "docker host"], "affinity": ["free", "split"]}
    factors |= {"wait": ["block", "spin"], "capture": ["off", "on"]}
    folder = tmp_path_factory.mktemp("affinity")
    return load(write_campaign(folder, factors, measure, study="affinity-spinning"))


def test_printed_and_measured_ratios_stand_in_one_row(affinity):
    table = side_by_side(affinity, "rohprimardho2015", ["Table 4.2"])
    assert len(table) == 30 and set(table["table"]) == {"Table 4.2"}
    row = table[table["condition"].eq("docker host, split, spin") & table["paper"].eq(4.13)].iloc[0]
    assert row["paper_ratio"] == pytest.approx(4.13 / 4.15) and row["paper_unit"] == "us"
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    assert row["ratio"] == pytest.approx(1.5, rel=0.01) and row["n_blocks"] == 6
    assert row["low"] <= row["here"] <= row["high"]
    assert row["here"] == pytest.approx(1500, rel=0.01)


def test_what_was_not_measured_has_a_reason(affinity):
    table = side_by_side(affinity, "rohprimardho2015")
    missing = table["condition"].str.startswith("docker bridge")
    assert missing.sum() == 20
    assert table.loc[missing, "here"].isna().all() and table.loc[missing, "reason"].notna().all()
    assert table.loc[~missing, "here"].notna().all() and table.loc[~missing, "reason"].isna().all()


def test_a_printed_loss_is_a_ratio_and_a_range_has_a_row_a_condition(tmp_path):
    factors = {"placement": ["bare clean", "lxc nat", "lxc host"], "hosts": ["1"], "chain": ["20"]}
    factors["payload_b"] = ["28"]
    folder = write_campaign(
        tmp_path,
        factors,
        lambda levels, generator: {"packets_per_s": 100.0},
        study="forwarding-chains",
    )
    table = side_by_side(load(folder), "struye2017", ["Table II"])
    row = table[table["condition"] == "lxc nat, hosts 1, chain 20, payload 28 B"].iloc[0]
    assert row["paper_low"] < row["paper_high"] and row["ratio"] == 1
    assert row["paper_ratio_low"] == pytest.approx(1 - row["paper_high"] / 100)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_entry_of_the_mapping_has_printed_numbers(paper):
    printed = published(paper)
    for entry in tomllib.loads(project(f"data/published/{paper}.toml").read_text())["table"]:
        rows = printed[printed["item"].isin(entry["items"])]
        assert set(entry["items"]) == set(rows["item"])
        assert set(entry["values"]) <= set(rows["metric"])
        for factor, levels in entry.get("levels", {}).items():
            assert set(levels) <= {*rows[factor], *entry.get("baseline", {}).values()}


@pytest.mark.parametrize(
    ("paper", "tables"),
    [("nobody1900", []), ("rohprimardho2015", ["Table 9"]), ("jha2018", [])],
)
def test_unknown_papers_and_tables_are_refused(affinity, paper, tables):
    with pytest.raises(UsageError):
        side_by_side(affinity, paper, tables)
