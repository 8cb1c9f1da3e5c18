"""The analysis of forwarding chains on campaigns made up: what each hop costs is found again."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from memory_campaigns import Campaign, record
from notebook_pages import ANALYSES, execute, executed, summary_of, words

NOTEBOOK = ANALYSES / "50-forwarding-chains.ipynb"
#: Of bare metal's packets: what is let through, with one hop and with more.
KEPT = {"bare clean": (1.0, 1.0), "docker host": (0.9, 0.8), "docker nat": (0.7, 0.5)}
KEPT |= {"docker macvlan": (0.7, 0.7), "lxc host": (0.9, 0.85), "lxc nat": (0.8, 0.7)}
KEPT |= {"lxc macvlan": (0.95, 0.9)}
#: What a hop takes, in ns; 20 us lie beside the hops.
HOP = {"bare clean": 20_000, "docker host": 24_000, "docker nat": 30_000}
HOP |= {"docker macvlan": 28_000, "lxc host": 24_000, "lxc nat": 32_000, "lxc macvlan": 24_000}
FACTORS = {
    "placement": [*KEPT, "rkt host"],
    "hosts": ["1", "2"],
    "chain": ["1", "5", "20", "21"],
    "payload_b": ["28"],
}


def conditions(without, two_hosts):
    for place, chain in itertools.product(KEPT, ("1", "5", "20")):
        if place in without or (chain == "5" and place not in ("docker host", "docker nat")):
            continue
        copies = 1 + (chain == "1" and place in ("bare clean", "docker host"))
        for replicate in range(1, copies + 1):
            yield (place, "1", chain), replicate
    for place in KEPT if two_hosts else ():
        yield (place, "2", "21"), 1


def measured(rng, level, place, chain, size, rest):
    """Return what one chain measures; `rest` packets of a long one are nowhere counted."""
    rate = 90_000 * KEPT[place][chain > 1] / chain * (0.5 if size == 1454 else 1.0)
    arrived = round(rate * level * math.exp(rng.normal(0, 0.004)))
    sent, left = 150_000, rest if chain == 20 else 0
    dropped = sent - arrived - left
    delay = (20_000 + HOP[place] * chain) * level * math.exp(rng.normal(0, 0.004))
    found = {"packets_per_s": float(arrived), "arrived": arrived, "sent": sent}
    found |= {"offered_per_s": 332_446, "sent_per_s": float(sent)}
    found |= {"hop_drops": dropped, "first_hop_drops": dropped - (10 if chain > 1 else 0)}
    found |= {"latency_ns_median": delay, "latency_ns_mean": 1.1 * delay, "loss": 0.0}
    found |= {"latency_ns_p90": 1.2 * delay, "latency_ns_p99": 2 * delay}
    # A queue of 277 packets at each hop, and what the CPU that all share takes for a packet.
    wait = 277 * 1e9 / arrived
    found |= {"loaded_latency_ns_mean": wait, "loaded_latency_ns_median": 0.9 * wait}
    found |= {"loaded_latency_ns_p99": 2 * wait, "loaded_packets_per_s": 0.9 * arrived}
    found |= {"loaded_paired_share": 0.4, "loaded_seen_share": 1.0, "capture_drops": 0.0}
    return found | {"captured": 2002, "paired": 1001, "server_cpu": 0.33, "client_cpu": 0.32}


def campaign(blocks, payloads=(28,), rest=0, without=(), failing=(), two_hosts=False):
    """Return a campaign of the cells that the profile quick has, with rkt refused."""
    rng, records = np.random.default_rng(2017), []
    cells = list(conditions(without, two_hosts))
    for block in range(1, blocks + 1):
        level = math.exp(rng.normal(0, 0.03))
        for position, ((place, hosts, chain), replicate) in enumerate(cells, start=1):
            more = {"replicate": replicate, "n_samples": 0, "started_ns": 10**18}
            more["flags"] = ["rate not reached: 150,000 of 332,446 datagrams a second"]
            first, *others = (
                measured(rng, level, place, int(chain), size, rest) for size in payloads
            )
            more["also"] = [
                {"levels": {"payload_b": str(size)}, "metrics": values}
                for size, values in zip(payloads[1:], others, strict=True)
            ]
            if two_hosts:
                first["lossless_per_s"] = 0.0 if chain == "21" else 1_000.0
            if (block, place) in failing:
                more |= {"status": "failed", "error": {"what": "no answer"}, "also": []}
                first = {}
            levels = dict(zip(FACTORS, (place, hosts, chain, str(payloads[0])), strict=True))
            records.append(record(block, position, levels, first, **more))
    names = [
        {
            "levels": dict(zip(FACTORS, (*one, str(payloads[0])), strict=True)),
            "replicate": replicate,
        }
        for one, replicate in cells
    ]
    plan = {"study": "forwarding-chains", "factors": FACTORS, "conditions": names, "seed": 1}
    rig = {"name": "made up", "shared_kernel": True, "capabilities": {}, "caveats": ["none"]}
    rig |= {"hosts": {"generator": {}, "sut": {"engine": True}}, "cpu_map": {"sut": "1"}}
    plan |= {"infeasible": [{"condition": "rkt host | 1 | 1 | 28", "reason": "rkt is not here"}]}
    settings = {"seconds": 1, "payloads": list(payloads), "latency_rate": 1000}
    return Campaign(plan | {"blocks": blocks, "settings": settings, "rig": rig}, records)


def verdicts(table, chain):
    rows = table[(table["chain"].astype(str) == chain) & (table["n_blocks"] > 0)]
    return rows.set_index("contrast")["verdict"].to_dict()


@pytest.fixture(scope="module")
def five_blocks():
    """Return what a page of five blocks displayed, and its names."""
    return executed(campaign(5), NOTEBOOK)


def test_what_was_put_in_is_found(five_blocks):
    shown, names = five_blocks
    packets = names["packets"].set_index(["chain", "contrast"])
    assert packets.loc[("20", "docker nat / bare clean"), "estimate"] == pytest.approx(0.5, 0.03)
    assert set(verdicts(names["packets"], "20").values()) == {"different"}
    # A cell without bare metal is no row of the comparison.
    assert set(names["packets"]["chain"].astype(str)) == {"1", "20"}
    engines = names["engines"].set_index(["network", "chain", "contrast"])
    assert engines.loc[("nat", "20", "docker / lxc"), "estimate"] == pytest.approx(5 / 7, 0.03)
    line = names["nat"].iloc[0]
    assert line["slope"] == pytest.approx(6_000, rel=0.1) and line["n_levels"] == 3
    assert line["verdict"] in ("growing", "fixed and growing")
    every = names["every"].set_index("contrast")
    assert every.loc["lxc nat / bare clean", "slope"] == pytest.approx(12_000, rel=0.1)
    assert names["balance"] == "every packet that did not arrive was dropped at a hop's socket"
    assert "The rate was not reached (by more than 1 %) in 90 of 90 rows" in words(shown)
    summary = summary_of(shown)
    said = {one["text"]: one for one in summary["headlines"]}
    one = said["packets a second, docker nat, 20 hops, 28 B"]
    assert one["verdict"] == "different" and one["low"] < 0.5 < one["high"]
    hop = said["Docker's published port over its host network, 28 B, each hop"]
    assert hop["unit"] == "ns" and hop["low"] < 6000 < hop["high"]
    assert "rkt host, hosts 1, chain 1, payload 28 B" in {
        one["condition"] for one in summary["infeasible"]
    }
    assert sum(isinstance(one, Figure) for one in shown) == 9
    assert "the captured window has 0.900 times the packets a second" in words(shown)
    assert set(names["waits"]["capture dropped"]) == {"0"}
    loaded = names["late"]["loaded_latency_ns_mean"].set_index(["chain", "contrast"])
    # Half the packets a second is twice the wait in the same queue.
    ratio = loaded.loc[("20", "docker nat / bare clean"), "estimate"]
    assert ratio == pytest.approx(2, 0.03)
    assert said["mean latency at the offered rate, docker nat, 20 hops, 28 B"]["low"] > 1.8


def test_the_papers_table_and_claims_stand_beside(five_blocks):
    _, names = five_blocks
    table = names["shown_losses"]
    assert table.loc[("docker", "20", "28"), "paper"] == "58 to 89"
    assert table.loc[("docker", "20", "28"), "nat"].startswith(("49.", "50.", "51."))
    assert ("rkt", "1", "28") in names["rest"] and ("lxc", "1", "28") not in names["rest"]
    claims = names["entries"].set_index("id")
    assert len(claims) > 30 and not (claims["result"] == "error").any()
    # The generator never reached the rate that was asked of it.
    for name in ("lxc-small-one", "nat-worst"):
        claim = claims.loc[f"struye2017-{name}"]
        assert claim["result"] == "undecided" and "the load generator reached" in claim["why"]
    assert claims.loc["struye2017-rkt-small-one", "result"] == "not measured"


def test_two_payloads_and_packets_that_nobody_counted(monkeypatch):
    stand_in = campaign(5, payloads=(28, 1454), rest=900)
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    assert names["balance"].startswith("all but 0.60%")
    assert "among them every row of chains of 1 and 5" in words(shown)
    table = names["shown_losses"]
    assert table.loc[("lxc", "1", "1454"), "paper"] == "0 to 0"
    assert set(names["nat"]["payload_b"].astype(str)) == {"28", "1454"}


def test_two_hosts_are_no_part_of_the_line_over_one(monkeypatch):
    shown, names = execute(monkeypatch, campaign(5, two_hosts=True), NOTEBOOK)
    assert set(verdicts(names["packets"], "21").values()) == {"different"}
    assert names["nat"]["n_levels"].tolist() == [3] and ("docker", "21", "28") not in names["rest"]
    assert "It was not looked for" not in words(shown) and names["table"].loc["21"].eq(0).all()
    claims = names["entries"].set_index("id")
    assert claims.loc["struye2017-two-hosts-macvlan-gain", "result"] != "not measured"


def test_a_pilot_with_failures_decides_nothing(monkeypatch):
    shown, names = execute(monkeypatch, campaign(1, failing={(1, "lxc nat")}), NOTEBOOK)
    summary = summary_of(shown)
    assert summary["failed"] == 2 and summary["decidable_margin"] == "unknown (pilot)"
    assert set(verdicts(names["packets"], "1").values()) == {"undecided"}
    assert not set(names["entries"]["result"]) & {"replicated", "contradicted", "error"}
    assert "pilot" in words(shown) and names["nat"]["verdict"].tolist() == ["undecided"]


def test_a_rig_without_a_clean_host_has_a_page(monkeypatch):
    stand_in = campaign(5, without=("bare clean", "lxc host", "lxc nat", "lxc macvlan"))
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    assert "Nothing was measured beside bare metal" in words(shown)
    assert names["engines"].empty and names["nat"]["verdict"].iloc[0] != "undecided"
    assert summary_of(shown)["headlines"]


def test_latency_at_the_offered_rate_may_be_missing(monkeypatch):
    stand_in = campaign(5)
    for one in stand_in.records:
        one["metrics"] = {
            name: value
            for name, value in one["metrics"].items()
            if not name.startswith(("loaded_", "capture_"))
        }
    shown, names = execute(monkeypatch, stand_in, NOTEBOOK)
    assert "It was not measured in this campaign." in words(shown)
    claims = names["entries"].set_index("id")
    # A metric that no trial has may be a misspelt one: the ledger says which there are.
    late = claims.loc["struye2017-latency-bare-below-small"]
    assert late["result"] == "error" and "unknown metric 'loaded_latency_ns_mean'" in late["why"]
