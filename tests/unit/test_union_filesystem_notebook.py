"""The analysis of union file systems on campaigns made up, thin ones among them."""

import math

import numpy as np
import pytest
from memory_campaigns import Campaign, record
from notebook_pages import ANALYSES, execute, summary_of, words

NOTEBOOK = ANALYSES / "30-union-filesystem.ipynb"
FEW, MANY = 200, 400
#: What an operation costs on a storage, as a share of what it costs on the bind mount.
SHARES = {"bind": 1.0, "overlay2": 1.2, "btrfs": 1.5, "unionfs-fuse": 3.0}
PLAIN = {"flush": "none", "layer": "top", "cache": "warm", "merged": "no"}
PLAIN |= {"size_b": "0", "layers": "1"}
MEMORY = {"type": "ext4", "point": "/data"}


def cells(storages):
    """The conditions of each operation on each storage, as the study has them in small."""
    for name in storages:
        for size in ("4096", "102400"):
            yield {"operation": "write", "flush": "flush", "size_b": size}, name
            yield {"operation": "first write", "flush": "flush", "size_b": size}, name
        yield {"operation": "write", "flush": "fsync", "size_b": "4096"}, name
        for layer in ("top", "lowest"):
            yield {"operation": "open", "layer": layer, "layers": "32"}, name
        yield {"operation": "traverse", "layers": "1"}, name
        if name != "bind":
            deep = {"operation": "traverse", "layers": "32"}
            yield from [(deep | {"layers": "8"}, name), (deep, name)]
            yield from [(deep | {"cache": "cold"}, name), (deep | {"merged": "yes"}, name)]


def drawn(rng, levels, share):
    """The samples of a trial; writes after the first `FEW` take twice as long."""
    base = {"write": 2e4, "open": 1e4, "first write": 5e5, "traverse": 2e6}[levels["operation"]]
    mean = share * (base + 10 * int(levels["size_b"]))
    mean *= 1 + 0.1 * int(levels["layers"]) * (levels["merged"] == "no")
    plain = levels["operation"] == "write" and levels["flush"] == "flush"
    long = plain and levels["storage"] in ("bind", "overlay2")
    values = mean * (1 + 0.01 * rng.gamma(2, 0.5, MANY if long else FEW))
    values[FEW:] *= 2
    return values.astype("int64")


def campaign(blocks=5, storages=tuple(SHARES), keep=lambda levels: True):
    rng, records, samples = np.random.default_rng(2016), [], {}
    chosen = [PLAIN | levels | {"storage": name} for levels, name in cells(storages)]
    chosen = [one for one in chosen if keep(one)]
    for block in range(1, blocks + 1):
        for position, levels in enumerate(chosen, start=1):
            noise = math.exp(rng.normal(0, 0.002))
            values = drawn(rng, levels, noise * SHARES[levels["storage"]])
            metrics = {"latency_ns_median": float(np.median(values))}
            if levels["operation"] == "first write":
                metrics |= {"again_ns_median": 20_000.0 * noise}
            if levels["operation"] == "open":
                metrics |= {"call_ns_median": 4000.0 * noise, "close_ns_median": 900.0 * noise}
            more = {"n_samples": len(values), "started_ns": 10**18}
            more |= {"mechanisms": {"context_switches": 4.1, "group_cpu_use": 0.9}}
            more |= {"verification": {"data": MEMORY, "inspect": {"storage_driver": "overlay2"}}}
            one = record(block, position, levels, metrics, **more)
            samples[one["trial"]] = values
            records.append(one)
    names = ["storage", "operation", *PLAIN]
    factors = {name: list(dict.fromkeys(one[name] for one in chosen)) for name in names}
    plan = {"study": "union-filesystem", "factors": factors, "seed": 1, "infeasible": []}
    plan |= {"conditions": [{"levels": one, "replicate": 1} for one in chosen], "margin": 0.05}
    rig = {"name": "made up", "shared_kernel": False, "capabilities": {}, "caveats": ["none"]}
    rig |= {"hosts": {"generator": {}, "sut": {"engine": True}}, "cpu_map": {"sut": "1"}}
    counts = {"flush": MANY, "further": FEW, "fsync": FEW}
    plan |= {"blocks": blocks, "rig": rig, "settings": {"counts": counts}}
    return Campaign(plan, records, samples)


def ratios(table):
    return table.set_index(["size_b", "contrast"])["estimate"].to_dict()


def test_like_is_compared_with_like(monkeypatch):
    shown, names = execute(monkeypatch, campaign(), NOTEBOOK)
    found = ratios(names["write_means"])
    assert set(found) == {(size, "overlay2 / bind") for size in ("4096", "102400")}
    assert found["4096", "overlay2 / bind"] == pytest.approx(1.2, rel=0.01)
    # Over all its writes, half of which take twice as long, the bind mount's mean is 1.5 times.
    further = names["effect"](names["first_writes"], "storage", names["STORAGES"], ["size_b"])
    assert ratios(further)["4096", "btrfs / bind"] == pytest.approx(1.5, rel=0.01)
    raw = names["effect"](names["written"], "storage", names["STORAGES"], ["size_b"])
    assert ratios(raw)["4096", "btrfs / bind"] == pytest.approx(1.0, rel=0.01)
    own = names["first_writes"].set_index("trial")["p99"]
    series = names["page"].series.set_index("trial")["latency_ns"]
    assert all(own[trial] <= np.sort(series[trial][:FEW])[-1] for trial in own.index)
    assert f"the first {FEW} writes of every trial" in words(shown)
    said = words(shown)
    assert said.index("`write`:") < said.index("`open`:") and "`traverse`:" not in said


def without(*operations):
    return lambda levels: levels["operation"] not in operations


THIN = {
    "no bind mount": {"storages": ("overlay2", "btrfs")},
    "only a bind mount": {"storages": ("bind",)},
    "no writes": {"keep": without("write")},
    "no first writes": {"keep": without("first write")},
    "no opens": {"keep": without("open")},
    "no traversals": {"keep": without("traverse")},
    "a pilot": {"blocks": 1},
}


@pytest.mark.parametrize("thin", list(THIN))
def test_a_thin_campaign_has_a_page_that_says_what_is_missing(monkeypatch, thin):
    shown, _ = execute(monkeypatch, campaign(**THIN[thin]), NOTEBOOK)
    said, summary = words(shown), summary_of(shown)
    assert ("No bind mount was measured here" in said) == (thin == "no bind mount")
    assert ("No first writes were measured here" in said) == (thin == "no first writes")
    alone = thin in ("only a bind mount", "no writes", "no opens", "no traversals")
    assert ("None of this was measured here." in said) == alone
    texts = [one["text"] for one in summary["headlines"]]
    assert any(text.startswith("writing") for text in texts) == (
        thin not in ("no bind mount", "only a bind mount", "no writes")
    )
