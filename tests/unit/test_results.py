"""Results of a campaign: comparisons, their words for conditions not measured, tables."""

import json

import pytest
from made_up import write

from labkit import compare, results
from labkit.analysis.publish import ANSWER
from labkit.data import CPU_SLOW, CPUS_APART
from labkit.errors import UsageError

#: Times and switches by placement and way of waiting.
TIMES = {"bare": 1.0, "docker": 1.4, "block": 5000.0, "spin": 2500.0}
SWITCHES = {"block": 4.0, "spin": 8.0}


def values(cell, block):
    place, wait = cell.values()
    if place != "podman":
        return {"rtt_ns_median": TIMES[place] * TIMES[wait], "switches": SWITCHES[wait]}
    return None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Results of three placements, one of which always fails, and two ways of waiting."""
    campaign = write(
        tmp_path_factory.mktemp("results") / "made-up",
        {"place": ["bare", "docker", "podman"], "wait": ["block", "spin"]},
        values,
        twice={"place": "bare"},
        infeasible=[{"condition": "lxc | block", "reason": "lxc is not installed"}],
        samples="rtt_ns",
    )
    return results(campaign.path)


@pytest.fixture
def blocking(whole):
    return whole.where(wait="block")


@pytest.fixture
def cost(blocking):
    return blocking.compare("place", to="bare")


def row_of(comparison, condition):
    return comparison.table.set_index("condition").loc[condition]


def test_a_comparison_has_the_numbers_of_compare_one_difference_and_a_sentence(blocking, cost):
    table = compare(blocking.trials, value="rtt_ns_median", condition="place", baseline="bare")
    expected, row = table.set_index("condition").loc["docker"], row_of(cost, "docker")
    names = ["estimate", "low", "high", "difference", "p_value", "n_blocks", "verdict"]
    assert list(row[names]) == list(expected[names]) and row["verdict"] == "differs"
    sentence = cost.answer("docker").rows[0]["sentence"]
    texts = ["docker is slower than bare", "us against", f"{row['estimate']:.2f}x", "10 blocks"]
    assert all(text in sentence for text in texts) and sentence in repr(cost)


def test_conditions_not_measured_show_their_reason(cost):
    assert "it failed" in row_of(cost, "podman")["reason"]
    assert "not installed" in row_of(cost, "lxc")["reason"]
    assert set(cost.table["verdict"]) == {"differs", "not measured"}
    assert "lxc is not installed" in cost._repr_html_() and "lxc" in cost.plot().alt


def test_a_factor_that_is_left_open_is_refused(whole):
    with pytest.raises(UsageError, match="wait"):
        whole.compare("place", to="bare")
    by = whole.compare("place", to="bare", by="wait")
    assert set(by.table["wait"]) == {"block", "spin"}
    assert "spin" not in by.plot("docker", wait="block").alt and "spin" in by.plot().alt
    both = whole.compare(["place", "wait"], to=("bare", "block"))
    assert ("docker", "spin") in set(both.table["condition"])


def test_unknown_names_are_refused(blocking, cost):
    for call, name in [
        (lambda: blocking.compare("plaec", to="bare"), "plaec"),
        (lambda: blocking.compare("place", to="bare", of="rtt_nanoseconds"), "rtt_nanoseconds"),
        (lambda: cost.answer("docker", wiat="spin"), "wiat"),
        (lambda: blocking.where(wiat="spin").trials, "wiat"),
    ]:
        with pytest.raises(UsageError, match=name):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.compare("place", to="bear"),
        lambda r: r.compare("place", to="bare").answer("dokcer"),
        lambda r: r.compare("place", to="bare", of="latency_ns_p99"),
        lambda r: r.compare("place", to="bear").plot(),
        lambda r: r.where(place="x").compare(["place", "wait"], to="ab").grid("place", "wait"),
        lambda r: r.where(place="dokcer").curve("wait", "place"),
        lambda r: r.where(place="dokcer").tail("place"),
    ],
)
def test_levels_and_columns_that_a_campaign_lacks_are_not_measured(blocking, call):
    shown = call(blocking)
    texts = [getattr(shown, "alt", ""), repr(shown), getattr(shown, "_repr_html_", str)()]
    assert any("measured" in text for text in texts)


def test_a_page_of_a_smaller_campaign_shows_the_rest(whole, cost):
    missing = whole.where(place="lxc")
    for table in (missing.validity(by="wait"), missing.counters("switches", by="wait")):
        assert len(table.frame) == 0
    first, second = repr(cost.answer("docker", "rkt")).splitlines()
    assert "slower" in first and "not measured" in second
    assert list(cost.why("rkt", "switches").frame.iloc[:, 0]) == ["bare"]


@pytest.mark.parametrize(
    ("place", "blocks", "flag", "reason"),
    [
        ("docker", 10, "", "generator"),
        ("docker", 1, CPU_SLOW, ""),
        ("bare", 1, CPU_SLOW, ""),
        ("", 7, CPUS_APART, "disturbed"),
    ],
)
def test_saturated_and_disturbed_trials_decide_nothing(blocking, place, blocks, flag, reason):
    part = results(blocking.campaign.path).where(wait="block")
    trials = part.campaign.trials
    those = trials["place"].str.startswith(place) & (trials["block"] <= blocks)
    changed = trials.assign(flags=trials["flags"].mask(those, flag), saturated=those & (not flag))
    part.campaign.__dict__["trials"] = changed
    row = row_of(part.compare("place", to="bare"), "docker")
    assert row["verdict"] == ("cannot tell" if reason else "differs") and reason in row["reason"]


@pytest.mark.parametrize("levels", [["007", "8"], ["1e3", "5"], ["1.50", "2.0"], [64, 0.5, 1e-05]])
def test_levels_are_the_texts_or_numbers_that_were_given(levels, tmp_path):
    campaign = write(tmp_path, {"size": levels}, lambda cell, block: {"ns": 1.0}, blocks=1)
    assert campaign.factors["size"] == levels and {*campaign.trials["size"]} == {*levels}


def test_a_ladder_compares_each_level_with_the_one_before(tmp_path):
    levels = {"clean": 100, "rules": 110, "docker": 130}
    write(tmp_path, {"place": list(levels)}, lambda cell, block: {"ns": levels[cell["place"]]})
    table = results(tmp_path).compare("place", to=None).table
    assert list(table["to"]) == ["clean", "rules"]
    assert list(table["estimate"]) == pytest.approx([1.1, 1.3 / 1.1], rel=0.03)


def test_validity_counts_noise_failures_and_flags(whole):
    frame = whole.validity(by="wait").frame
    assert list(frame["failed attempts"]) == ["10", "10"]
    assert frame["ratio of repeats"].str.startswith(("1.0", "0.9")).all()
    assert frame["decidable margin"].str.endswith("%").all()


def test_counters_and_reasons_are_of_the_same_trials(whole):
    table = whole.where(place="bare").counters("switches", by="wait").frame
    spinning = whole.compare("wait", to="block", by="place")
    why = spinning.why("spin", "switches", "nothing", place="bare").frame
    blocking, spinning = table["switches"]
    assert 1.8 < float(spinning) / float(blocking) < 2.2
    assert list(why["switches"]) == [spinning, blocking] and set(why["nothing"]) == {""}


def test_answers_are_json_and_begin_with_what_was_measured(blocking, cost, monkeypatch):
    shown = []
    monkeypatch.setattr("labkit.analysis.results.display", lambda data, raw: shown.append(data))
    blocking.summary(cost.answer("podman"), cost.answer("docker"))
    assert json.dumps(shown[0], allow_nan=False)
    assert [row["verdict"] for row in shown[0][ANSWER]["rows"]] == ["differs", "not measured"]
