"""Campaigns of the first study, made up: with captured trials too where they are asked for."""

import itertools
import math

import numpy as np
from memory_campaigns import Campaign, record

LEVELS = {
    "bare clean": 1.0,
    "bare rules": 1.01,
    "bare chroot": 1.01,
    "bare cgroup": 1.03,
    "docker host": 1.03,
    "docker bridge": 1.2,
}
FACTORS = {
    "placement": list(LEVELS),
    "affinity": ["free", "split"],
    "wait": ["block", "spin"],
}


def conditions(ladder):
    """Cells as the study has them: middle levels with bound ends only, two replicated."""
    for placement, affinity, wait in itertools.product(*FACTORS.values()):
        middle = placement in ("bare rules", "bare chroot")
        if middle and (affinity == "free" or wait not in ladder):
            continue
        yield (placement, affinity, wait), 1
        twice = affinity == "split" and placement in ("bare clean", "docker host")
        if twice or (placement, affinity, wait) == ("bare clean", "free", "block"):
            yield (placement, affinity, wait), 2


def attempt(rng, levels, replicate, block, position, n, failed):
    """The record of one trial, and its samples."""
    placement, affinity, wait = levels
    spins, bound = wait == "spin", affinity == "split"
    level = 30_000 * LEVELS[placement] * (0.3 if spins else 1) * (0.93 if bound else 1)
    level *= math.exp(0.02 * math.sin(block) + rng.normal(0, 0.008))
    name = f"b{block:02d}-p{position:02d}"
    counters = {"context_switches": 0.1 if spins else 4.0, "idle_exits": np.nan if failed else 1.9}
    counters |= {"server_switches": 0.0 if spins else 1.0, "steal": 0.0}
    more = {"trial": name, "replicate": replicate, "started_ns": 1_800_000_000 * 10**9 + position}
    more |= {"flags": [] if bound else ["server migrated 3 times"], "mechanisms": counters}
    more |= {"n_samples": 0 if failed else n, "status": "failed" if failed else "ok"}
    more |= {"error": {"what": "the server ended"} if failed else None}
    values = (level * (0.9 + rng.gamma(2, 0.05, n))).astype("int64")
    return record(block, position, dict(zip(FACTORS, levels, strict=True)), {}, **more), values


SHARED = ("bare clean", "docker host", "docker bridge")
TUNINGS = ["free + block", "free + spin", "split + block", "split + spin"]


def observe(stand_in, factor=1.2, watched=SHARED, tunings=("split + spin",)):
    """Add trials that were captured: round trips take longer, and most of each lies outside."""
    stand_in.__dict__.pop("trials", None)
    plan, later = stand_in.plan, []
    plan["factors"] = {**FACTORS, "capture": ["off", "on"]}
    for one in [*stand_in.records, *plan["conditions"]]:
        one["levels"] = one["levels"] | {"capture": "off"}
    for one in stand_in.records:
        levels = one["levels"]
        tuned = f"{levels['affinity']} + {levels['wait']}" in tunings and one["replicate"] == 1
        if not tuned or levels["placement"] not in watched:
            continue
        name, rtt = f"{one['trial']}-on", stand_in.arrays[one["trial"]]
        inside = (rtt * (0.5 if levels["placement"] == "docker bridge" else 0.4)).astype("int64")
        stand_in.arrays[name] = {"rtt_ns": (rtt * factor).astype("int64"), "residence_ns": inside}
        counts = {"captured": 900.0, "paired": 449.0, "unpaired": 2.0, "capture_drops": 1.0}
        more = {"trial": name, "metrics": counts, "levels": levels | {"capture": "on"}}
        later.append(one | more | {"flags": ["lossy capture: 1 of 901 packets"]})
    stand_in.records.extend(later)
    return stand_in


def campaign(blocks, n=300, ladder=("spin",), failing=(), shared=True, without=()):
    """Return a campaign that was never on disk."""
    rng, records, samples = np.random.default_rng(2015), [], {}
    cells = [one for one in conditions(ladder) if one[0][0] not in without]
    for block in range(1, blocks + 1):
        for position, index in enumerate(rng.permutation(len(cells)), start=1):
            levels, replicate = cells[index]
            failed = (block, levels) in failing
            one, values = attempt(rng, levels, replicate, block, position, n, failed)
            records.append(one)
            samples[one["trial"]] = values
    rig = {"shared_kernel": shared, "caveats": ["one kernel, 2 vCPUs, shared softirq"]}
    rig |= {"cpu_map": {"sut": "1"}, "capabilities": {"nic-hardware": "veth pairs"}}
    rig |= {"hosts": {"generator": {}, "sut": {"engine": True}}}
    plan = {
        "study": "affinity-spinning",
        "settings": {"messages": n, "size": 64, "idle": "as found", "capture": "off"},
        "factors": FACTORS,
        "conditions": [
            {"levels": dict(zip(FACTORS, levels, strict=True)), "replicate": replicate}
            for levels, replicate in cells
        ],
        "seed": 2015,
        "blocks": blocks,
        "order": [[*range(len(cells))] for _ in range(blocks)],
        "infeasible": [{"condition": name, "reason": "no engine"} for name in without],
        "rig": rig,
    }
    cpu = {"model": "stand-in", "count": 2}
    facts = {"sut": {"stable": {"cpu": cpu, "engine": None}, "volatile": {}}}
    return Campaign(plan, records, samples, facts)
