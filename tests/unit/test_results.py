"""Results of a campaign: comparisons, what they show of what was not measured, tables."""

import json

import pandas as pd
import pytest
from made_up import write

from labkit import compare, results
from labkit.errors import UsageError

PLACES = ["bare", "docker", "podman"]


def values(cell, block):
    if cell["place"] == "podman":
        return None
    docker = 1.4 if cell["place"] == "docker" else 1.0
    fast = 0.5 if cell.get("wait") == "spin" else 1.0
    return {"switches": 4.0 / fast, "rtt_ns_median": 5000.0 * docker * fast}


@pytest.fixture
def folder(tmp_path):
    """A campaign of three placements, one of which always fails, and two ways of waiting."""
    factors = {"place": PLACES, "wait": ["block", "spin"]}
    return write(
        tmp_path / "made-up",
        factors,
        values,
        repeat={"place": "bare"},
        infeasible=[{"condition": "lxc | block", "reason": "lxc <b>is</b> not installed"}],
        samples="rtt_ns",
    ).path


def test_a_comparison_has_the_numbers_of_compare_and_one_difference(folder):
    blocking = results(folder).where(wait="block")
    row = blocking.compare("place", to="bare").table.set_index("condition").loc["docker"]
    trials = blocking.trials
    expected = compare(trials, value="rtt_ns_median", condition="place", baseline="bare")
    expected = expected.set_index("condition").loc["docker"]
    for name in ("estimate", "low", "high", "difference", "p_value", "n_blocks", "verdict"):
        assert row[name] == expected[name]
    assert row["difference"] == row["value"] - row["baseline"]
    assert row["verdict"] == "differs"


def test_the_answer_says_direction_values_ratio_interval_and_blocks(folder):
    cost = results(folder).where(wait="block").compare("place", to="bare")
    (sentence,) = cost.answer("docker").sentences
    row = cost.table.set_index("condition").loc["docker"]
    for text in (
        "docker is slower than bare",
        "us against",
        f"{row['estimate']:.2f}x",
        "10 blocks",
    ):
        assert text in sentence
    assert sentence in repr(cost)


def test_running_twice_shows_the_same_and_views_do_not_change(folder):
    whole = results(folder)
    cost = whole.where(wait="block").compare("place", to="bare")
    assert cost._repr_html_() == cost._repr_html_()
    assert cost.plot().svg() == cost.plot().svg()
    assert len(whole.trials) > len(whole.where(wait="block").trials)
    assert whole.where(wait="block").where(place=["bare", "docker"]).ok["place"].nunique() == 2


def test_what_was_not_measured_shows_its_reason_escaped(folder):
    cost = results(folder).where(wait="block").compare("place", to="bare")
    reasons = cost.table.set_index("condition")["reason"]
    assert "it failed" in reasons["podman"]
    assert "not installed" in reasons["lxc"]
    assert set(cost.table["verdict"]) == {"differs", "not measured"}
    page = cost._repr_html_()
    assert "<b>is</b>" not in page
    assert "&lt;b&gt;is" in page
    assert "lxc" in repr(cost.plot().alt)


def test_a_factor_that_is_left_open_is_refused(folder):
    with pytest.raises(UsageError, match="wait"):
        results(folder).compare("place", to="bare")
    by = results(folder).compare("place", to="bare", by="wait")
    assert set(by.table["wait"]) == {"block", "spin"}
    both = results(folder).compare(["place", "wait"], to=("bare", "block"))
    assert ("docker", "spin") in set(both.table["condition"])


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.compare("plaec", to="bare"),
        lambda r: r.compare("place", to="bare", of="rtt_nanoseconds"),
        lambda r: r.compare("place", to="bare").answer("docker", wiat="spin"),
        lambda r: r.where(wiat="spin").trials,
    ],
)
def test_unknown_names_are_refused(folder, call):
    with pytest.raises(UsageError):
        call(results(folder).where(wait="block"))


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.compare("place", to="bear"),
        lambda r: r.compare("place", to="bare").answer("dokcer"),
        lambda r: r.compare("place", to="bare", of="latency_ns_p99"),
        lambda r: r.where(place="dokcer").compare("place", to="bare"),
        lambda r: r.compare("place", to="bear").plot(),
        lambda r: (
            r.where(place="dokcer").compare(["place", "wait"], to=("a", "b")).grid("place", "wait")
        ),
        lambda r: r.where(place="dokcer").over_blocks(hue="place"),
        lambda r: r.where(place="dokcer").curve("wait", "place"),
        lambda r: r.where(place="dokcer").tail("place"),
    ],
)
def test_levels_and_columns_that_a_campaign_lacks_are_not_measured(folder, call):
    shown = call(results(folder).where(wait="block"))
    texts = [getattr(shown, "alt", ""), repr(shown), getattr(shown, "_repr_html_", str)()]
    assert any("measured" in text for text in texts)


def test_a_page_of_a_smaller_campaign_shows_what_there_is(folder):
    whole = results(folder)
    missing = whole.where(place="lxc")
    assert len(missing.validity(by="wait").frame) == 0
    assert len(missing.counters("switches", by="wait").frame) == 0
    cost = whole.where(wait="block").compare("place", to="bare")
    sentences = cost.answer("docker", "rkt").sentences
    assert "slower" in sentences[0]
    assert "not measured" in sentences[1]
    assert list(cost.why("rkt", "switches").frame.iloc[:, 0]) == ["bare"]


def test_a_saturated_load_generator_decides_nothing(folder):
    whole = results(folder).where(wait="block")
    trials = whole.campaign.trials
    docker = trials["place"] == "docker"
    whole.campaign.__dict__["trials"] = trials.assign(saturated=docker)
    row = whole.compare("place", to="bare").table.set_index("condition").loc["docker"]
    assert row["verdict"] == "cannot tell"
    assert "generator" in row["reason"]


def test_a_ladder_compares_each_level_with_the_one_before(tmp_path):
    levels = {"clean": 1.0, "rules": 1.1, "docker": 1.3}
    write(
        tmp_path, {"place": list(levels)}, lambda cell, block: {"ns": 100 * levels[cell["place"]]}
    )
    table = results(tmp_path).ladder("place").table
    assert list(table["to"]) == ["clean", "rules"]
    assert list(table["estimate"]) == pytest.approx([1.1, 1.3 / 1.1], rel=0.03)


def test_validity_counts_noise_failures_and_flags(folder):
    frame = results(folder).validity(by="wait").frame
    assert list(frame["failed attempts"]) == ["10", "10"]
    assert frame["ratio of repeats"].str.startswith(("1.0", "0.9")).all()
    assert frame["decidable margin"].str.endswith("%").all()


def test_counters_and_reasons_are_of_the_same_trials(folder):
    whole = results(folder)
    table = whole.where(place="bare").counters("switches", by="wait").frame
    assert list(table["switches"]) == ["4", "8"] or len(table) == 2
    spinning = whole.compare("wait", to="block", by="place")
    why = spinning.why("spin", "switches", "nothing", place="bare").frame
    assert [text[0] for text in why["switches"]] == ["8", "4"] and set(why["nothing"]) == {""}


def test_figures_have_alternative_texts(folder):
    blocking = results(folder).where(wait="block", place=["bare", "docker"])
    figures = [blocking.tail(hue="place"), blocking.over_blocks(hue="place")]
    figures.append(results(folder).where(place=["bare", "docker"]).curve("wait", "place"))
    assert all("bare" in figure.alt for figure in figures)


def test_claims_are_read_from_a_ledger_that_was_written_before(folder, tmp_path):
    row = {
        "id": "p-1",
        "source": "p",
        "study": "made-up",
        "says": "It <i>costs</i>.",
        "place": "1",
        "verdict": "holds",
        "marks": "•",
        "parts": "1.4x",
        "needs": "",
        "why": "",
        "n_blocks": 10,
    }
    path = tmp_path / "ledger.csv"
    pd.DataFrame([row, {**row, "id": "p-2", "study": "another"}]).to_csv(path, index=False)
    table = results(folder, ledger=str(path)).claims("p")
    assert len(table.frame) == 1
    assert "&lt;i&gt;costs" in table._repr_html_()


def test_a_list_of_levels_is_their_order_and_a_figure_shows_some(folder):
    parts = results(folder).where(place=["docker", "bare"])
    assert parts.factors["place"] == ["docker", "bare"]
    cost = parts.compare("place", to="bare", by="wait")
    assert "spin" not in cost.plot("docker", wait="block").alt and "spin" in cost.plot().alt


def test_the_bundle_of_answers_is_json(folder, monkeypatch):
    shown = []
    monkeypatch.setattr("labkit.analysis.results.display", lambda data, raw: shown.append(data))
    r = results(folder).where(wait="block")
    r.summary(r.compare("place", to="bare").answer("podman"))
    assert json.dumps(shown[0], allow_nan=False, default=float)
