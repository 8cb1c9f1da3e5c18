"""What a claim asks of a rig against what the rig has, and that it goes before the result."""

from __future__ import annotations

from typing import Any

import pytest
from claim_files import claim, claims
from hypothesis import given
from hypothesis import strategies as st
from memory_campaigns import FACTS, MACHINE, PLACEMENTS, REAL, Campaign, campaign

from labkit.claims.ledger import ledger
from labkit.claims.schema import CAPABILITIES, Claims, Needs, PaperHosts, Workload
from labkit.claims.setting import setting

A = {"placement": PLACEMENTS[0], "size_b": 4}


def small(**options: Any) -> Campaign:
    factors = {"placement": PLACEMENTS, "size_b": ["4"]}
    return campaign(lambda placement, size: 1.0, **{"factors": factors} | options)


def one(found: Any, which: Any) -> Any:
    return ledger(found, claims=claims(which)).iloc[0]


def rig_of(rig: dict[str, Any], facts: Any = FACTS, needs: Needs = Needs(), **more: Any) -> Any:  # noqa: B008
    found = small(blocks=2)
    found = Campaign(found.plan | {"rig": rig}, found.records, None, facts)
    which = claim("bound", condition=A, high=2, needs=needs, **more)
    return setting(which, found, 5000, {})


@pytest.mark.parametrize(
    ("needs", "rig", "facts", "reason"),
    [
        (
            Needs(capabilities=("busy-poll",)),
            REAL | {"capabilities": {"busy-poll": "veth"}},
            FACTS,
            "veth",
        ),
        (Needs(capabilities=("busy-poll",)), {"name": "silent"}, FACTS, "does not state"),
        (
            Needs(capabilities=("separate-machines",)),
            REAL | {"shared_kernel": True},
            FACTS,
            "one kernel",
        ),
        (Needs(cores=16), REAL, FACTS, "16 CPUs of the system under test: there are 8"),
        (Needs(cores=2), REAL, {}, "does not state"),
        (Needs(hosts=3), REAL, FACTS, "3 hosts: there are 2"),  # clean only stands in for sut
        (Needs(hosts=2), {"name": "silent", "capabilities": {}}, FACTS, "does not state"),
        (Needs(samples=10**6), REAL, FACTS, "1,000,000 samples a trial: there are 5,000"),
        (Needs(link_gbit_per_s=40), REAL, FACTS, "40 Gbit/s: there are 10 Gbit/s"),
        (Needs(link_gbit_per_s=1), REAL, {"sut": MACHINE}, "does not state a rate"),
        (
            Needs(link_gbit_per_s=1),
            REAL | {"capabilities": {"nic-hardware": "veth pairs"}},
            FACTS,
            "veth pairs",
        ),
        (Needs(engine="lxc"), REAL, FACTS, "lxc: nothing ran under it"),
        (
            Needs(capabilities=("aufs",)),
            REAL | {"offers": []},
            FACTS,
            "aufs: the rig does not offer it",
        ),
        (Needs(cores_at_most=2), REAL, FACTS, "at most 2 CPUs of the system under test: there"),
        (Needs(cores_at_most=2), REAL, {}, "at most 2 CPUs"),
        (Needs(own_cpus=16), REAL, FACTS, "16 CPUs of the server's host alone: there are 8"),
        (
            Needs(own_cpus=2),
            REAL | {"shared_kernel": True, "cpu_map": {"sut": "1", "all": "0-1"}},
            FACTS,
            "2 CPUs of the server's host alone: there are 1",
        ),
        (Needs(own_cpus=1), REAL | {"shared_kernel": True}, FACTS, "does not state"),
    ],
)
def test_what_a_rig_lacks(needs: Needs, rig: Any, facts: Any, reason: str) -> None:
    word, why = rig_of(rig, facts, needs)
    assert word == "unsuitable" and reason in why
    word, why = rig_of(rig, facts, same=needs)
    assert word == "analogue" and reason in why


def test_a_rig_that_has_all_is_the_same_setting() -> None:
    needs = Needs(
        capabilities=CAPABILITIES,
        cores=8,
        own_cpus=8,
        hosts=2,
        link_gbit_per_s=10,
        samples=5000,
        engine="docker",
    )
    assert rig_of(REAL, FACTS, needs, same=needs) == ("same", "")


def test_an_engine_without_placements_is_that_of_the_hosts() -> None:
    found = campaign(lambda placement, size: 1.0, factors={"size_b": ["4"]}, blocks=6)
    which = claim("bound", condition={"size_b": 4}, high=3, needs=Needs(engine="docker"))
    assert one(found, which)["setting"] == "same"
    found.plan["rig"]["hosts"]["sut"]["engine"] = False
    assert one(found, which)["setting"] == "unsuitable"


@given(
    st.sets(st.sampled_from(CAPABILITIES)),
    st.sets(st.sampled_from(CAPABILITIES)),
    st.booleans(),
    st.sampled_from([1, 100, 6000]),
    st.booleans(),
)
def test_what_a_rig_lacks_is_never_decided(
    lacks: set[str], asks: set[str], shared: bool, samples: int, holds: bool
) -> None:
    rig = REAL | {"shared_kernel": shared, "capabilities": dict.fromkeys(lacks, "lacking")}
    which = claim(
        "bound",
        condition=A,
        high=10 if holds else 0.1,
        needs=Needs(capabilities=tuple(sorted(asks)), samples=samples),
    )
    clear = small()
    row = one(Campaign(clear.plan | {"rig": rig}, clear.records), which)
    one_kernel = set(CAPABILITIES[:3]) if shared else set()
    unmet = asks & (lacks | one_kernel) or samples > 5000
    decided = "replicated" if holds else "contradicted"
    assert row["result"] == ("not decidable on this rig" if unmet else decided)
    assert row["setting"] == ("unsuitable" if unmet else "same")


@pytest.mark.parametrize(
    ("settings", "word", "why"),
    [
        ({"size": {"n": [0, 900]}}, "same", ""),
        ({"size": {"n": [0, 400]}}, "analogue", "size, n: 1,000 in the paper, 400 here"),
        ({}, "analogue", "size, n: 1,000 in the paper, not stated here"),
    ],
)
def test_sizes_within_a_factor_of_two_are_the_same_setting(
    settings: dict[str, Any], word: str, why: str
) -> None:
    which = claim(
        "difference", condition=A | {"placement": PLACEMENTS[1]}, baseline=A, direction="higher"
    )
    workload = Workload(source="small", study="nets", sizes={"size.n.1": 1000.0})
    known = Claims((which,), workloads=(workload,))
    row = ledger(campaign(lambda *_: 1.0, settings=settings), claims=known).iloc[0]
    assert (row["setting"], row["setting_why"]) == (word, why)


def test_guests_of_one_machine_have_kernels_of_their_own_only() -> None:
    rig = REAL | {"capabilities": {"separate-machines": "the hosts are guests of one machine"}}
    for capability, word in (("separate-kernels", "same"), ("separate-machines", "unsuitable")):
        needs = Needs(capabilities=(capability,))
        which = claim(
            "difference",
            condition=A | {"placement": PLACEMENTS[1]},
            baseline=A,
            direction="higher",
            needs=needs,
        )
        row = ledger(campaign(lambda *_: 1.0, rig=rig), claims=Claims((which,))).iloc[0]
        assert row["setting"] == word


@pytest.mark.parametrize(
    ("receives", "word"), [("own", "same"), ("as found", "unsuitable"), (None, "unsuitable")]
)
def test_cpu_time_is_a_host_s_own_where_it_takes_in_its_own_packets(
    receives: str | None, word: str
) -> None:
    rig = REAL | {"shared_kernel": True, "capabilities": {"separate-kernels": "namespaces"}}
    settings = {} if receives is None else {"receiving_cpu": receives}
    for capability, expected in (("separate-cpu-time", word), ("separate-kernels", "unsuitable")):
        needs = Needs(capabilities=(capability,))
        which = claim("bound", condition=A, high=2, needs=needs)
        found = campaign(lambda *_: 1.0, rig=rig, settings=settings)
        row = ledger(found, claims=Claims((which,))).iloc[0]
        assert row["setting"] == expected, row["setting_why"]
    rig["capabilities"]["separate-cpu-time"] = "one network interface"
    found = campaign(lambda *_: 1.0, rig=rig, settings=settings)
    which = claim("bound", condition=A, high=2, needs=Needs(capabilities=("separate-cpu-time",)))
    row = ledger(found, claims=Claims((which,))).iloc[0]
    assert row["setting"] == "unsuitable" and "one network interface" in row["setting_why"]


@pytest.mark.parametrize(
    ("used", "word", "why"),
    [
        ({"a": 0.35, "b": 0.2}, "same", ""),
        ({"a": 0.45, "b": 0.35}, "unsuitable", "it uses 45%"),
        ({"a": 0.2, "b": 0.1}, "unsuitable", "it uses 20%"),
        ({}, "unsuitable", "the campaign does not state it"),
    ],
)
def test_a_server_that_uses_another_part_of_a_cpu_is_another_setting(
    used: dict[str, float], word: str, why: str
) -> None:
    found = small()
    for record in found.records:
        network = record["levels"]["placement"].split()[-1]
        if network in used:
            record["mechanisms"] |= {"cpu_ns": used[network] * 1e10, "cpu_use": 0.9}
            record["metrics"] |= {"elapsed_ns": 9e9, "warmup_ns": 1e9}
    which = claim(
        "bound", condition=A, high=2, where={"size_b": 4}, needs=Needs(cpu_use=(0.3, 0.39))
    )
    row = one(found, which)
    assert row["setting"] == word and why in row["setting_why"]


def test_a_range_of_cpu_use_is_the_lower_number_first() -> None:
    with pytest.raises(ValueError, match="the lower one first"):
        Needs(cpu_use=(0.39, 0.3))


@pytest.mark.parametrize(
    ("lost", "word", "why"),
    [
        ({"a": 0.3, "b": 0.001}, "same", ""),
        ({"a": 0.001, "b": 0.3}, "unsuitable", "it loses 30 %"),
        ({}, "unsuitable", "the campaign does not state it"),
    ],
)
def test_a_baseline_that_loses_packets_is_no_setting_for_their_latency(
    lost: dict[str, float], word: str, why: str
) -> None:
    found = small()
    for record in found.records:
        network = record["levels"]["placement"].split()[-1]
        if network in lost:
            record["metrics"] |= {"loaded_loss": lost[network]}
    baseline, needs = {"placement": PLACEMENTS[1], "size_b": 4}, Needs(loss_at_most=0.01)
    which = claim("ratio", condition=A, baseline=baseline, high=2, needs=needs)
    row = one(found, which)
    assert row["setting"] == word and why in row["setting_why"]


def machine(**stable: Any) -> dict[str, Any]:
    return {"sut": {"stable": stable}, "generator": {"stable": stable}}


def tcp(name: str) -> dict[str, Any]:
    return machine(kernel={"sysctl": {"net/ipv4/tcp_congestion_control": name}})


ENGINE = {"SecurityOptions": ["name=seccomp,profile=builtin", "name=cgroupns"]}


@pytest.mark.parametrize(
    ("had", "facts", "settings", "here"),
    [
        ({"congestion_control": "cubic"}, tcp("cubic"), {}, ""),
        ({"congestion_control": "cubic"}, tcp("bbr"), {}, "bbr"),
        ({"congestion_control": "cubic"}, tcp("bbr"), {"congestion_control": "cubic"}, ""),
        ({"congestion_control": "cubic"}, tcp("bbr"), {"congestion_control": "as found"}, "bbr"),
        ({"congestion_control": "cubic"}, {}, {}, "not recorded"),
        ({"disk": "hard disk"}, {}, {}, "not recorded"),
        ({"disk": "hard disk"}, machine(storage={"engine": {"disk": "NVMe"}}), {}, "NVMe"),
        ({"disk": "NVMe"}, machine(storage={"engine": {"disk": "NVMe"}}), {}, ""),
        ({"idle": "as found"}, {}, {}, ""),
        ({"idle": "as found"}, {}, {"idle": "held"}, "held"),
        ({"seccomp": "none"}, machine(engine=ENGINE), {}, "default"),
        ({"seccomp": "default"}, machine(engine=ENGINE), {}, ""),
        ({"seccomp": "none"}, machine(engine={"SecurityOptions": []}), {}, ""),
        ({"seccomp": "none"}, machine(engine=None), {}, "not recorded"),
    ],
)
def test_hosts_with_something_else_than_the_paper_s_are_an_analogue(
    had: dict[str, str], facts: Any, settings: dict[str, Any], here: str
) -> None:
    which = claim("bound", condition=A, high=2)
    found = small(blocks=6, settings=settings)
    found = Campaign(found.plan, found.records, None, facts)
    hosts = PaperHosts(source="small", study="nets", **had)
    row = ledger(found, claims=Claims((which,), hosts=(hosts,))).iloc[0]
    (value,) = had.values()
    assert row["setting"] == ("analogue" if here else "same")
    assert row["setting_why"].endswith(f": {value} in the paper, {here} here" if here else "")


def test_what_a_placement_had_counts_beside_the_hosts() -> None:
    found = small(blocks=6)
    for one in found.records:
        one["verification"] = {"congestion_control": "reno"}
    found = Campaign(found.plan, found.records, None, tcp("cubic"))
    _, why = setting(claim("bound", condition=A, high=2), found, 1, {}, {"congestion_control": "x"})
    assert why == "TCP congestion control: x in the paper, cubic and reno here"


@pytest.mark.parametrize(
    ("paths", "here"),
    [(["fastdp"], ""), (["sleeve", "fastdp"], "fastdp and sleeve"), ([], "not recorded")],
)
def test_what_carried_weave_net_s_packets_is_part_of_the_setting(
    paths: list[str], here: str
) -> None:
    found = small(blocks=6)
    for one, path in zip(found.records, paths * len(found.records), strict=False):
        one["verification"] = {"router": {"198.18.0.5": path}}
    kind, why = setting(claim("bound", condition=A, high=2), found, 1, {}, {"weave": "fastdp"})
    wanted = f"the data path of Weave Net: fastdp in the paper, {here} here"
    assert why == (wanted if here else "")
    # User space passes so much less that no result of a paper can be told from it.
    assert (kind == "unsuitable") == bool(here and paths)


@pytest.mark.parametrize(
    ("where", "concerned"),
    [
        ({}, True),
        ({"placement": (PLACEMENTS[0],)}, True),
        ({"placement": (PLACEMENTS[1], "docker other")}, False),
        ({"size_b": (4.0,), "placement": (PLACEMENTS[0],)}, True),
        ({"application": ("some",)}, True),  # the claim names no application
    ],
)
def test_which_claims_depend_on_the_paper_s_hosts(where: dict[str, Any], concerned: bool) -> None:
    hosts = PaperHosts(source="small", study="nets", where=where, disk="SSD")
    known = Claims((claim("bound", condition=A, high=2),), hosts=(hosts,))
    assert known.paper_hosts(known.claims[0]) == ({"disk": "SSD"} if concerned else {})
