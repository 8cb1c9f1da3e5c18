"""What the first study's page shows beside its main part: captures, other sizes and exchanges."""

import pytest
from affinity_campaigns import FACTORS, SHARED, TUNINGS, campaign, observe
from matplotlib.figure import Figure
from notebook_pages import ANALYSES, execute, summary_of, words

NOTEBOOK = ANALYSES / "10-affinity-spinning.ipynb"


def test_what_observing_costs_is_apart_from_everything_else(monkeypatch):
    _, before = execute(monkeypatch, campaign(6), NOTEBOOK)
    shown, names = execute(monkeypatch, observe(campaign(6)), NOTEBOOK)
    text = words(shown)
    assert "one part of the campaign: capture off" in text
    assert names["watched"] == ["bare clean", "docker host", "docker bridge"]
    assert names["captured"] == ["split + spin"]
    found = names["observing"].set_index(["tuning", "placement", "contrast"])
    for name in names["watched"]:
        row = found.loc[("split + spin", name, "on / off")]
        # Where a condition ran twice, both copies are what a captured trial is compared with.
        assert row["estimate"] == pytest.approx(1.2, abs=0.015) and row["verdict"] == "different"
    resident = names["resident"].set_index("contrast")
    bridge = resident.loc["docker bridge / bare clean", "estimate"]
    assert bridge == pytest.approx(1.2 * 1.25, abs=0.05)
    counts = names["counts"].loc[("split + spin", "docker host")]
    assert counts.to_dict() == {
        "captured": 5400.0,
        "capture_drops": 6.0,
        "paired": 2694.0,
        "unpaired": 12.0,
    }
    # No table, model or claim on round trips takes a captured trial.
    for name in ("against_clean", "against_twin", "spinning"):
        assert names[name].equals(before[name]), name
    assert names["model"].terms.equals(before["model"].terms)
    by_id, earlier = (one["entries"].set_index("id") for one in (names, before))
    trips = by_id["metric"] == "rtt_ns"
    assert trips.sum() > 0 and by_id.loc[trips, "estimate"].equals(earlier.loc[trips, "estimate"])
    slower = by_id.loc["rohprimardho2015-tuned-bridge-slower"]
    assert slower["estimate"] == pytest.approx(bridge) and slower["result"] == "replicated"
    # Without a tuning that was captured nothing is said of it.
    assert by_id.loc["rohprimardho2015-untuned-docker-higher", "result"] == "not measured"
    texts = [line["text"] for line in summary_of(shown)["headlines"]]
    assert "docker host: captured against not captured, split + spin" in texts
    assert "138 of 138 planned trials" in text
    assert sum(isinstance(value, Figure) for value in shown) == 14
    assert "No trial of this campaign was captured" not in text


def test_residence_times_of_every_tuning_are_beside_the_papers(monkeypatch):
    stand_in = observe(campaign(5, n=120), tunings=TUNINGS)
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    assert sorted(names["captured"]) == TUNINGS and len(names["observing"]) == 12
    assert set(names["counts"].index) == {(one, name) for one in TUNINGS for name in SHARED}
    bridge = names["resident"].query("contrast == 'docker bridge / bare clean'")
    assert bridge["tuning"].astype(str).tolist() == TUNINGS
    assert bridge["estimate"].between(1.4, 1.6).all()
    claims = names["entries"].set_index("id")
    untuned = claims.loc["rohprimardho2015-untuned-docker-higher"]
    assert untuned["metric"] == "residence_ns" and untuned["estimate"] > 1
    beside = names["stays"].loc[("free + block", "bare clean"), "median"]
    assert beside / names["stays"].loc[("split + spin", "bare clean"), "median"] > 3
    assert "residence time, free + block" in words(shown)


def test_one_captured_placement_is_compared_with_itself_alone(monkeypatch):
    shown, names = execute(monkeypatch, observe(campaign(1), watched=("docker host",)), NOTEBOOK)
    assert names["watched"] == ["docker host"] and "resident" not in names
    assert set(names["observing"]["verdict"]) == {"undecided"}
    assert "`bare clean` was not captured" in words(shown)


def test_other_sizes_and_exchanges_have_a_chapter_of_their_own(monkeypatch):
    stand_in = campaign(5, n=60)
    more = [
        one | {"trial": f"{one['trial']}-large", "levels": one["levels"] | {"size": "1024"}}
        for one in stand_in.records
    ]
    for one in [*stand_in.records, *stand_in.plan["conditions"]]:
        one["levels"] = one["levels"] | {"size": "64"}
    for one in more:
        stand_in.arrays[one["trial"]] = 2 * stand_in.arrays[one["trial"].removesuffix("-large")]
    stand_in.records.extend(more)
    stand_in.__dict__.pop("trials", None)
    stand_in.plan["factors"] = {**FACTORS, "size": ["64", "1024"]}
    stand_in.plan["settings"].pop("size")
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    assert "one part of the campaign: size 64" in words(shown)
    assert set(names["elsewhere"]["size"].astype(str)) == {"64", "1024"}
    medians = names["medians"]["bare clean"].unstack("size")
    assert (medians["1024"] / medians["64"]).round(6).eq(2).all()
    _, alone = execute(monkeypatch, campaign(5, n=60), NOTEBOOK)
    assert names["against_clean"].equals(alone["against_clean"])


def test_what_is_not_the_papers_setting_is_said_beside_its_claims(monkeypatch):
    stand_in = campaign(2, n=60)
    stand_in.plan["settings"] |= {"exchange": "tcp", "load": {"kind": "stress-ng", "count": 2}}
    shown, _ = execute(monkeypatch, stand_in, NOTEBOOK)
    said = words(shown)
    assert "exchange tcp, load {'kind': 'stress-ng', 'count': 2}: not what the paper" in said
