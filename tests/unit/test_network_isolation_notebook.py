"""The analysis of network isolation on campaigns made up: a fixed cost is called fixed."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from memory_campaigns import Campaign, record
from notebook_pages import ANALYSES, execute, summary_of, words

NOTEBOOK = ANALYSES / "25-network-isolation.ipynb"
PAPER = (1024, 10240, 30720, 51200, 71680, 102400)
FACTORS = {
    "placement": ["bare clean", "bare cgroup", "docker host", "docker bridge", "docker nat"],
    "sides": ["server", "both"],
    "direction": ["receive", "send"],
    "size_b": [str(size) for size in (0, 100, 200, *PAPER)],
}
#: What a call costs more at the server's side, in ns.
ADDED = {"bare clean": 0, "bare cgroup": 500, "docker host": 1_000, "docker bridge": 11_000}
ADDED["docker nat"] = 21_000


def conditions():
    """The cells that the quick profile has."""
    bridged = ("docker bridge", "1024"), ("docker bridge", "51200"), ("docker bridge", "102400")
    for place, sides, direction, size in itertools.product(*FACTORS.values()):
        port = place in ("docker host", "docker nat")
        steps = sides == "server" and (place, size) in (*bridged, ("bare clean", "1024"))
        line = port and sides == "server" and int(size) in PAPER
        received = direction == "receive" and (steps or (port and size == "200"))
        copies = (line or received) + (port and size in ("200", "1024", "102400"))
        if not (line or received):
            continue
        for replicate in range(1, copies + 1):
            yield (place, sides, direction, size), replicate


def campaign(blocks, share=0.0, n=400, without=(), failing=()):
    """Return a campaign in which a port costs 20 us, and a share of what is carried."""
    rng, records, samples = np.random.default_rng(2016), [], {}
    cells = [one for one in conditions() if not set(one[0]) & set(without)]
    for block in range(1, blocks + 1):
        level = math.exp(rng.normal(0, 0.02))
        for position, (levels, replicate) in enumerate(cells, start=1):
            place, sides, _, size = levels
            mean = 80_000 + 2 * int(size) + ADDED[place] * (2 if sides == "both" else 1)
            mean += share * int(size) * (place == "docker nat")
            mean *= level * math.exp(rng.normal(0, 0.001))
            failed = (block, place) in failing
            more = {"replicate": replicate, "n_samples": 0 if failed else n}
            more |= {"status": "failed" if failed else "ok", "started_ns": 10**18}
            more |= {"error": {"what": "no answer"} if failed else None}
            more |= {"mechanisms": {"context_switches": 4.1, "softirqs": 2.0}}
            plain = dict(zip(FACTORS, levels, strict=True))
            one = record(block, position, plain, {}, **more)
            values = mean * (1 + 0.02 * (rng.gamma(2, 0.5, n) - 1))
            samples[one["trial"]] = values.astype("int64")
            records.append(one)
    names = [{"levels": dict(zip(FACTORS, x, strict=True)), "replicate": n} for x, n in cells]
    plan = {"study": "network-isolation", "factors": FACTORS, "conditions": names, "seed": 1}
    rig = {"name": "made up", "shared_kernel": False, "capabilities": {}, "caveats": ["none"]}
    rig |= {"hosts": {"generator": {}, "sut": {"engine": True}}, "cpu_map": {"sut": "1"}}
    infeasible = [{"condition": name, "reason": "not here"} for name in without]
    plan |= {"blocks": blocks, "margin": 0.02, "settings": {"calls": n}, "rig": rig}
    return Campaign(plan | {"infeasible": infeasible}, records, samples)


def verdicts(names, value="median"):
    table = names["lines"][value]
    table = table[table["n_blocks"] > 0].set_index(["direction", "contrast"])
    return table["verdict"].to_dict()


def test_a_fixed_cost_is_found_fixed_and_the_claim_replicated(monkeypatch):
    shown, names = execute(monkeypatch, campaign(8), NOTEBOOK)
    port = "docker nat / docker host"
    assert verdicts(names) == {
        ("receive", port): "fixed",
        ("receive", "docker bridge / docker host"): "fixed",
        ("send", port): "fixed",
    }
    line = names["lines"]["mean"].set_index(["direction", "contrast"]).loc[("receive", port)]
    assert line["intercept"] == pytest.approx(20_000, rel=0.05)
    claims = names["entries"].set_index("id")
    assert len(claims) == 6 and not set(claims["result"]) & {"error", "not measured"}
    assert claims.loc["latency2016-port-fixed", "result"] == "replicated"
    assert claims.loc["latency2016-port-both-sides", "result"] == "replicated"
    # 20 us of 81 is far above 10 %
    assert claims.loc["latency2016-port-small-nearly-10", "result"] == "contradicted"
    summary = summary_of(shown)
    said = {one["text"]: one for one in summary["headlines"]}
    text = "published port, server to receive: cost at size 0 (median), and whether it is fixed"
    assert said[text]["verdict"] == "fixed" and said[text]["unit"] == "ns"
    assert said[text]["low"] < 20_000 < said[text]["high"]
    both = said["published ports at both ends against host networks at both, 200 B, mean"]
    assert both["verdict"] == "different" and both["estimate"] == pytest.approx(1.5, abs=0.03)
    assert sum(isinstance(one, Figure) for one in shown) == 9
    alone = names["foreseen"]("median")
    assert (alone["fixed cost alone"] - alone["ratio"]).abs().max() < 0.01


def test_a_cost_that_grows_is_not_called_fixed(monkeypatch):
    _, names = execute(monkeypatch, campaign(8, share=0.5), NOTEBOOK)
    found = verdicts(names)
    assert found[("receive", "docker nat / docker host")] == "fixed and growing"
    assert found[("receive", "docker bridge / docker host")] == "fixed"
    claims = names["entries"].set_index("id")
    assert claims.loc["latency2016-port-fixed", "result"] == "contradicted"


def test_a_pilot_with_failures_decides_nothing(monkeypatch):
    failing = {(1, "docker bridge")}
    shown, names = execute(monkeypatch, campaign(1, failing=failing), NOTEBOOK)
    assert set(verdicts(names).values()) == {"undecided"}
    summary = summary_of(shown)
    assert summary["failed"] == 3 and summary["decidable_margin"] == "unknown (pilot)"
    assert not set(names["entries"]["result"]) & {"replicated", "contradicted", "error"}
    assert "pilot" in words(shown)


def test_a_rig_without_a_second_engine_or_a_bridge_has_a_page(monkeypatch):
    stand_in = campaign(5, without=("both", "docker bridge", "bare clean"))
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    assert "No client was in a container here" in words(shown)
    claims = names["entries"].set_index("id")
    assert claims.loc["latency2016-port-both-sides", "result"] == "not measured"
    assert {one["condition"] for one in summary_of(shown)["infeasible"]} >= {"both"}
    assert verdicts(names)[("send", "docker nat / docker host")] == "fixed"
