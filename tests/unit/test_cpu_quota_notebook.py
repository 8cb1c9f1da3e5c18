"""The analysis of the CPU quota on campaigns made up: a group that is cut off is seen through."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from memory_campaigns import FACTS
from notebook_pages import ANALYSES, execute, summary_of, words

from labkit.analysis.estimates import Estimate
from labkit.campaign.store import Store, write_json
from labkit.dataset import load

NOTEBOOK = ANALYSES / "20-cpu-quota.ipynb"
QUOTAS = [1000, 1500, 2000, 2500, 3000, 4000, 5000, 7000, 10000]
#: In ns: a call and the server's part of it, the period.
CALL, COMPUTING, PERIOD = 80_000, 32_000, 10_000_000
PLAIN = {"placement": "docker host", "shares": 0, "quota_us": 0}
PLAIN |= {"neighbour": "none", "scheduling": "other", "loop": "closed"}
DIFFERING = [
    *[{"placement": "bare clean"}, {"placement": "bare cgroup"}, {"shares": 1024}, {"shares": 512}],
    *[{"quota_us": quota} for quota in QUOTAS],
    {"shares": 1024, "neighbour": "shares 512"},
    *[{"shares": 1024, "quota_us": quota, "neighbour": "quota"} for quota in (2000, 7000)],
    {"shares": 1024, "neighbour": "coming and going"},
    {"shares": 1024, "scheduling": "fifo"},
    {"shares": 1024, "neighbour": "coming and going", "scheduling": "fifo"},
    *[{"placement": "bare clean", "loop": "open"}, {"shares": 1024, "loop": "open"}],
    *[{"quota_us": quota, "loop": "open"} for quota in (1000, 2000, 5000)],
    {"shares": 1024, "neighbour": "shares 512", "loop": "busy"},
]
FACTORS = {
    name: list(dict.fromkeys(str({**PLAIN, **one}[name]) for one in DIFFERING)) for name in PLAIN
}
RATE = 4_000


def called(levels, level, rng, n):
    """Return due, late and latency of calls to a server that its quota cuts off, and the cuts."""
    quota = int(levels["quota_us"]) * 1000 or math.inf
    free, used, period, cuts, rows = 0.0, 0.0, 0, [], []
    for number in range(n):
        due = number * 1e9 / RATE if levels["loop"] == "open" else free
        sent = max(due, free)
        if sent // PERIOD > period:
            period, used = sent // PERIOD, 0.0
        begin = sent
        if used + COMPUTING > quota:
            begin = (period + 1) * PERIOD
            cuts.append(begin - sent)
            period, used = period + 1, 0.0
        used += COMPUTING
        took = level * CALL * (1 + 0.02 * rng.gamma(2, 0.5))
        if (
            levels["neighbour"] != "none"
            and levels["scheduling"] == "other"
            and rng.random() < 0.02
        ):
            took += 500_000 * rng.random()
        free = begin + took
        rows.append((due, sent - due, free - due))
    names = ("start_ns", "lateness_ns", "latency_ns")
    columns = np.array(rows).round().astype(np.int64).T
    return dict(zip(names, columns, strict=True)), cuts


def trial(levels, rng, n):
    """Return the metrics, counters and samples of one trial."""
    level = math.exp(rng.normal(0, 0.01)) * (1.06 if levels["placement"] == "docker host" else 1.0)
    if levels["loop"] == "busy":
        return {"neighbour_cpu_ratio": 2 * level / 1.06}, {"cpu_use": 0.6}, {}
    samples, cuts = called(levels, level, rng, n)
    elapsed = float(samples["start_ns"][-1] + samples["latency_ns"][-1])
    slow = float((samples["latency_ns"] > 1_000_000).sum())
    metrics = {"elapsed_ns": elapsed, "warmup_ns": 0.0, "slow_calls": slow, "slow_warmup": 0.0}
    metrics |= {"client_delay_ns": elapsed * 4e-4, "client_delay": 4e-4}
    if levels["quota_us"] != "0":
        metrics["slow_product_us"] = slow * int(levels["quota_us"])
    counters = {"cpu_ns": n * level * COMPUTING, "cpu_use": n * COMPUTING / elapsed}
    counters |= {"nr_periods": elapsed // PERIOD + 1, "nr_throttled": float(len(cuts))}
    return metrics, counters | {"throttled_time": float(sum(cuts))}, samples


def campaign(folder, blocks, n=1500, without=()):
    """Return a campaign on disk in which a server computes for 40 % of the time it is called.

    `without` names levels, whose conditions were refused, and counters that a kernel lacks.
    """
    rng = np.random.default_rng(2016)
    cells = [{name: str(level) for name, level in {**PLAIN, **one}.items()} for one in DIFFERING]
    cells = [one for one in cells if not set(without) & set(one.values())]
    twice = [one for one in cells if one == {**cells[0], "placement": "bare clean"}][:1]
    conditions = [(one, 1) for one in cells] + [(one, 2) for one in twice]
    rig = {"name": "made up", "shared_kernel": True, "capabilities": {}, "caveats": ["none"]}
    rig |= {"hosts": {"generator": {}, "sut": {"engine": True}, "clean": {}}}
    settings = {"period_us": 10_000, "rate": RATE, "calls": n}
    plan = {"study": "cpu-quota", "factors": FACTORS, "seed": 1, "blocks": blocks, "margin": 0.05}
    plan |= {
        "conditions": [
            {"levels": levels, "replicate": replicate} for levels, replicate in conditions
        ]
    }
    plan |= {"settings": settings, "rig": rig, "infeasible": [], "identity": {}}
    write_json(folder / "plan.json", plan)
    write_json(folder / "sessions" / "01.json", {"session": 1, "boot": "x", "facts": FACTS})
    store = Store(folder)
    for block in range(1, blocks + 1):
        for position, (levels, replicate) in enumerate(conditions, start=1):
            metrics, counters, samples = trial(levels, rng, n)
            counters = {key: one for key, one in counters.items() if key not in without}
            name = {"trial": f"b{block:02d}-p{position:02d}", "block": block, "position": position}
            told = {
                "levels": levels,
                "replicate": replicate,
                "attempt": 1,
                "status": "ok",
                "session": 1,
            }
            told |= {"n_samples": len(samples.get("latency_ns", ())), "started_ns": 10**18}
            told |= {"seconds": 1.0, "metrics": metrics, "mechanisms": counters}
            store.add(name | told, samples, {})
    return load(folder)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return what the page of a whole campaign displays, and its names."""
    measured = campaign(tmp_path_factory.mktemp("cpu-quota") / "whole", 5)
    with pytest.MonkeyPatch.context() as patches:
        yield execute(patches, measured, NOTEBOOK)


def test_the_arithmetic_of_the_cuts_is_found_again(page):
    shown, names = page
    use = names["use"].value
    assert use == pytest.approx(COMPUTING / (1.01 * CALL), rel=0.02)
    assert names["BELOW"] == [1000, 1500, 2000, 2500, 3000]
    for quota in names["BELOW"]:
        row = names["found"][quota]
        assert row["elapsed time / predicted time"].value == pytest.approx(1, abs=0.1)
        assert row["slow calls / throttled periods"].value == pytest.approx(1, abs=0.02)
    low, high = names["bent"].at.interval()
    assert low < 1.1 * use * 10_000 and high > 0.9 * use * 10_000
    waited = names["waited"]
    # So few calls waited for the larger quotas that chance would put many in one place.
    assert (waited.loc[[1000, 1500], "punctual"] == 100).all()
    assert waited.loc[[2000, 2500, 3000], "punctual"].isna().all()
    expected = waited.loc[names["BELOW"], "t_p - t_q / u"]
    np.testing.assert_allclose(waited.loc[names["BELOW"], "wait_ns"], expected, atol=400)
    assert sum(isinstance(one, Figure) for one in shown) >= 3


def test_the_loops_are_told_apart(page):
    _, names = page
    medians = names["of_views"].groupby(["case", "counted"], observed=True)["median"].mean()
    overload = medians["docker host, quota 1000"]
    assert overload["open, since due"] > 100 * overload["open, since sent"]
    enough = medians["docker host, shares 1024"]
    assert enough["open, since due"] == pytest.approx(enough["closed"], rel=0.05)
    # What the open loop used itself; the closed loop stands beside it.
    demand = names["asked"].value * names["PERIOD_US"]
    assert demand == pytest.approx(RATE * 1.06 * COMPUTING / 1e5, rel=0.02)
    closed, paced = (
        float(names["DEMAND"][f"CPU time of a call, {loop} loop (us)"].partition(" ")[0])
        for loop in ("closed", "open")
    )
    assert closed == pytest.approx(paced, rel=0.1)


def test_the_conclusions_say_what_was_put_in(page):
    shown, names = page
    found = {one["text"]: one for one in summary_of(shown)["headlines"]}
    ratio = found["docker host, shares 1024 / bare clean: mean"]
    assert ratio["verdict"] == "different" and ratio["estimate"] == pytest.approx(1.06, abs=0.02)
    cut = [one for text, one in found.items() if text.startswith("quota 1")]
    assert len(cut) == 2 and {one["verdict"] for one in cut} == {"equivalent"}
    over = [one for text, one in found.items() if text.startswith("the knee")]
    assert len(over) == 1 and "free slope" in over[0]["text"]
    assert over[0]["low"] < over[0]["estimate"] < over[0]["high"]
    assert any("quota 2000, beside quota" in text and "throttled in" in text for text in found)
    assert "17 claims" in words(shown)
    results = names["entries"].set_index("id")["result"]
    assert results["latency2016-quota-mean-falls"] == "replicated"
    assert results["latency2016-shares-two-to-one"] == "replicated"
    assert results["latency2016-quota-tail"] == "not decidable on this rig"  # too few calls


def test_a_knee_is_compared_with_a_use_that_is_uncertain_itself(page):
    _, names = page
    over_use, use, period = names["over_use"], names["use"], names["PERIOD_US"]

    class Place:
        value, n_blocks = use.value * period, 5

        def __init__(self, width):
            self.width = width

        def interval(self, alpha):
            return self.value * (1 - self.width), self.value * (1 + self.width)

    found = over_use(Place(0.0), within=1e9)
    least, most = use.interval(0.025)
    assert found["low"] == pytest.approx(use.value / most) and found["low"] < 1
    assert found["high"] == pytest.approx(use.value / least) and found["high"] > 1
    assert over_use(Place(0.01))["verdict"] == "equivalent"
    assert over_use(Place(0.3))["verdict"] == "undecided"
    away = Place(0.01)
    away.value = 2 * Place.value
    assert over_use(away)["verdict"] == "different"
    away.n_blocks = 4
    assert over_use(away)["verdict"] == "undecided"


def test_fewer_blocks_than_a_verdict_takes_decide_nothing_in_a_whole_campaign(page):
    _, names = page
    sure = [Estimate(0.0, 1e-3, blocks - 1.0, "log", blocks) for blocks in (4, 5)]
    verdicts = [names["concluded"]("text", one)["verdict"] for one in sure]
    assert verdicts == ["undecided", "equivalent"]


LACKING = [(), ("bare clean", "bare cgroup"), ("open", "busy", "fifo")]
LACKING += [("nr_periods", "nr_throttled", "throttled_time"), tuple(map(str, QUOTAS))]


@pytest.mark.parametrize("without", LACKING)
def test_a_pilot_and_a_rig_that_lacks_conditions_have_a_page(tmp_path, monkeypatch, without):
    pilot = campaign(tmp_path / "pilot", 1, n=300, without=without)
    shown, _ = execute(monkeypatch, pilot, NOTEBOOK)
    verdicts = {one["verdict"] for one in summary_of(shown)["headlines"]}
    assert not {"different", "equivalent", "replicated", "contradicted"} & verdicts
    assert "pilot" in words(shown)
