"""The verification rules, on observations recorded from real placements.

``tests/captured/verification-*``: kernel 6.18, control groups v1 (hybrid), Docker 20.10, nft.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ToolOutput, UsageError
from labkit.hosts import LocalHost, Result
from labkit.hosts.target import Image, Target
from labkit.placement import Limits, bare, cpu_set, docker, weight
from labkit.rig.engine import LAYER2
from labkit.runtimes import RUNTIMES, Instance, observed
from labkit.runtimes.base import Started
from labkit.runtimes.verify import Expectation, problems
from labkit.tools import sockperf

CAPTURED = Path(__file__).parents[2] / "captured"
LIMITS = Limits("1", 512, 10_000, 2_000, 64 << 20)
PLACEMENTS = {
    **{f"bare-{level}": bare(level) for level in ("clean", "rules", "chroot", "cgroup")},
    **{f"docker-{network}": docker(network) for network in ("host", "bridge", "nat")},
    "bare-cgroup-limits": bare("cgroup", LIMITS),
    "docker-bridge-limits": docker("bridge", LIMITS),
}
BARE = [name for name in PLACEMENTS if name.startswith("bare")]
DOCKER = [name for name in PLACEMENTS if name.startswith("docker")]
Change = Callable[[dict[str, Any]], Any]
GROUPED = [*(name for name in BARE if "cgroup" in name), *DOCKER]
LIMITED = [name for name in PLACEMENTS if name.endswith("limits")]


def recorded(name: str) -> dict[str, Any]:
    return json.loads((CAPTURED / f"verification-{name}.json").read_text())


def expected(name: str, really: str = "") -> Expectation:
    """Return what the runtime expects of a placement on the recorded host."""
    placement, clean = PLACEMENTS[name], name == "bare-clean"
    digest = recorded(name)["inspect"].get("image", "")
    image = Image("net", "labkit/net", digest, recorded("bare-chroot")["root"])
    target = Target(
        LocalHost(),
        "198.18.0.4" if clean else "198.18.0.3",
        networks={} if clean else {"bridge": LAYER2},
        images={"net": image},
    )
    identity = recorded(really or name)["inspect"].get("id", "")
    if placement.runtime != "bare":
        identity = identity or "0" * 64
    instance = Instance(target, placement, sockperf.server("spin"), "1", "trial")
    return RUNTIMES[placement.runtime]().expect(instance, Started(1, identity))


def check(name: str, change: Change | None = None) -> str:
    found = recorded(name)
    if change:
        change(found)
    return "; ".join(problems(expected(name), found))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_each_recorded_placement_passes(name: str) -> None:
    assert check(name) == ""


@pytest.mark.parametrize(
    ("label", "really"), [(a, b) for a in PLACEMENTS for b in PLACEMENTS if a != b]
)
def test_no_placement_passes_for_another(label: str, really: str) -> None:
    assert problems(expected(label, really), recorded(really))


def put(*path: str, value: Any) -> Change:
    def change(found: dict[str, Any]) -> None:
        place = found
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = value

    return change


def drop(name: str) -> Change:
    return lambda found: found["limits"].pop(name)


def link(side: str, name: str, **values: Any) -> Change:
    def change(found: dict[str, Any]) -> None:
        for one in found[side]:
            if one["ifname"].startswith(name):
                one.update(values)

    return change


def text(field: str, old: str, new: str) -> Change:
    def change(found: dict[str, Any]) -> None:
        assert old in found[field]
        found[field] = found[field].replace(old, new)

    return change


def ruleset(text: str) -> Change:
    """Return a change after which the host has these firewall rules."""
    return lambda found: found.update(observed.reduced_rules("host_ruleset", text))


def outside(controller: str) -> Change:
    return put("cgroup", controller, value="/user.slice")


CLEAN_NAT = "table ip nat {\n\tchain X {\n\t\tudp dport 11111 counter dnat to 198.18.0.3:11111\n"
CASES = [
    (tuple(PLACEMENTS), put("status", "Cpus_allowed_list", value="0"), "may run on CPUs 0, not 1"),
    (tuple(PLACEMENTS), put("status", "Cpus_allowed_list", value="0-1"), "CPUs 0-1, not 1"),
    (BARE, put("namespaces", "net", value="net:[1]"), "a network of its own"),
    (BARE, put("namespaces", "mnt", value="mnt:[1]"), "a mount namespace of its own"),
    (BARE, put("status", "Seccomp", value="2"), "with a seccomp filter"),
    (BARE, put("root", value="/srv"), "its root is /srv, not /"),
    (["bare-clean"], ruleset("table ip nat {\n}"), "the host has firewall rules"),
    (BARE[1:], ruleset(""), "the engine's firewall rules are missing"),
    (BARE[1:], ruleset(CLEAN_NAT), "a NAT rule publishes port 11111"),
    (BARE[:3], put("cgroup", "cpu", value="/labkit/x"), "it is in the control group /labkit/x"),
    (DOCKER, put("status", "Seccomp", value="0"), "without a seccomp filter"),
    (DOCKER, put("inspect", "image", value="sha256:0"), "its image is sha256:0"),
    (DOCKER, put("inspect", value={}), "its image is None"),
    (DOCKER, put("inspect", "runtime", value="crun"), "it is run by crun, not by runc"),
    (DOCKER, ruleset(""), "the engine's firewall rules are missing"),
    *[(GROUPED, outside(name), name) for name in ("cpu", "cpuset", "memory", "pids", "freezer")],
    (GROUPED, put("limits", "cpu.cfs_quota_us", value="5000"), "CPU quota"),
    (GROUPED, put("limits", "cpu.shares", value="2"), "CPU weight"),
    (GROUPED, put("limits", "memory.limit_in_bytes", value="4096"), "memory limit"),
    (GROUPED, put("limits", "io.max", value="254:0 riops=9"), "none was asked for"),
    (LIMITED, put("limits", "cpuset.cpus", value="0-1"), "its cpuset is 0-1, not 1"),
    (LIMITED, put("limits", "cpu.cfs_period_us", value="100000"), "2000/100000 us, not 2000/10000"),
    (LIMITED, put("limits", "cpu.cfs_quota_us", value="-1"), "its CPU quota is None"),
    (LIMITED, drop("cpuset.cpus"), "its cpuset is None, not 1"),
    (LIMITED, drop("cpu.shares"), "its CPU weight is None, not 512"),
    (LIMITED, drop("cpu.cfs_quota_us"), "its CPU quota is None"),
    (LIMITED, drop("memory.limit_in_bytes"), "its memory limit is None, not 67108864"),
]
BRIDGED = [name for name in DOCKER if "bridge" in name]
NAT = ["docker-nat"]
CASES += [
    (BRIDGED, link("host_links", "veth", master="docker0"), "not enslaved to labbr0"),
    (BRIDGED, link("host_links", "lab1", master=None), "port lab1 is not enslaved"),
    (BRIDGED, put("addresses", "eth0", value=["198.18.1.11"]), "address is not 198.18.1.10"),
    (BRIDGED, put("links", value=[]), "its interface is not enslaved to labbr0"),
    # A veth whose other end is in a third namespace, where its number is that of the lab interface.
    (BRIDGED, link("links", "eth0", link_index=3), "its interface is not enslaved to labbr0"),
    (DOCKER, put("group_cpus", value=["0-1", "1"]), "it may run on CPUs 0-1, not 1"),
    (NAT, text("host_ruleset", "dport 11111", "dport 11112"), "no NAT rule leads from 198.18.0.3"),
    (NAT, text("host_ruleset", "to 198.19.0.2:", "to 198.19.0.3:"), "no NAT rule leads"),
    (NAT, text("host_ruleset", "ip daddr 198.18.0.3 ", "ip daddr 198.18.0.33 "), "no NAT rule"),
    (
        BRIDGED + NAT,
        lambda found: found["namespaces"].update(found["host_namespaces"]),
        "the host network",
    ),
]


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        pytest.param(name, change, words, id=f"{name}: {words}")
        for names, change, words in CASES
        for name in names
    ],
)
def test_a_changed_field_is_reported(name: str, change: Change, words: str) -> None:
    assert words in check(name, change)


LEGACY = """# Generated by iptables-save v1.8.9 on Sat Nov 15 10:00:00 2025
*nat
:PREROUTING ACCEPT [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 198.19.0.0/24 ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
-A DOCKER -d 198.18.0.3/32 ! -i docker0 -p udp -m udp --dport 11111 -j DNAT \
--to-destination 198.19.0.2:11111
COMMIT
"""
EMPTY = """# Generated by iptables-save v1.8.9 on Sat Nov 15 10:00:00 2025
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
COMMIT
"""


def test_rules_of_iptables_legacy() -> None:
    rules = ruleset(LEGACY)
    assert check("docker-nat", rules) == ""
    assert check("docker-bridge", rules) == "a NAT rule publishes port 11111"
    assert check("bare-clean", rules).startswith("the host has firewall rules")
    for old, new in (("0.3/32", "0.30/32"), ("dport 11111", "dport 1"), ("0.2:", "0.20:")):
        other = ruleset(LEGACY.replace(old, new))
        assert "no NAT rule" in check("docker-nat", other)


@pytest.mark.parametrize("text", [EMPTY, "table ip filter {\n\tchain INPUT {\n\t}\n}"])
def test_empty_tables(text: str) -> None:
    tables = ruleset(text)
    assert check("bare-rules", tables) == "the engine's firewall rules are missing"
    # They cost time for every packet, so a clean host has none.
    assert check("bare-clean", tables) == "the host has firewall rules"


def unified(name: str, **limits: str) -> dict[str, Any]:
    """Return a recorded observation as on a host with control groups v2 only."""
    found = recorded(name)
    path = found["cgroup"]["cpu"]
    files = {"cpuset.cpus": "", "cpu.weight": "100", "cpu.max": "max 100000", "memory.max": "max"}
    values = {key.replace("_", "."): value for key, value in limits.items()}
    return found | {"cgroup": {"unified": path}, "limits": files | values if path != "/" else {}}


SET = {"cpuset_cpus": "1", "cpu_weight": "20", "cpu_max": "2000 10000", "memory_max": "67108864"}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_control_groups_v2(name: str) -> None:
    given = SET if name in LIMITED else {}
    assert problems(expected(name), unified(name, **given)) == []


@pytest.mark.parametrize(
    ("file", "value", "words"),
    [
        ("cpu_max", "max 10000", "its CPU quota is None, not 2000/10000 us"),
        ("cpu_weight", "100", "its CPU weight is"),
        ("memory_max", "max", "its memory limit is None, not 67108864"),
        ("cpuset_cpus", "", "its cpuset is None, not 1"),
    ],
)
def test_missing_and_unexpected_limits_of_v2(file: str, value: str, words: str) -> None:
    found = unified("bare-cgroup-limits", **(SET | {file: value}))
    assert words in "; ".join(problems(expected("bare-cgroup-limits"), found))
    # a limit of a placement without limits
    surprise = unified("docker-host", **{file: SET[file]})
    if file != "cpuset_cpus":  # checked by the affinity
        assert "none was asked for" in "; ".join(problems(expected("docker-host"), surprise))


@given(st.integers(2, 262_144), st.booleans())
def test_converted_weights(shares: int, linear: bool) -> None:
    limits = Expectation("1", limits=Limits(shares=shares), engine_rules=False)
    converted = weight(shares, linear=linear)
    found = recorded("bare-clean") | {"limits": {"cpu.weight": str(converted)}}
    assert problems(limits, found) == []
    wrong = next(
        one for one in range(converted + 2, 20_000) if one != weight(shares, linear=not linear)
    )
    found["limits"]["cpu.weight"] = str(wrong)
    assert "CPU weight" in problems(limits, found)[0]


@pytest.mark.parametrize(
    ("shares", "linear", "converted"),
    [(2, 1, 1), (1024, 39, 100), (2000, 77, 170), (262_144, 10_000, 10_000)],
)
def test_weights_are_those_that_runc_sets(shares: int, linear: int, converted: int) -> None:
    """As its developers state them, before and from 1.3.2 on."""
    assert (weight(shares, linear=True), weight(shares, linear=False)) == (linear, converted)


@pytest.mark.parametrize(
    ("printed", "converted"),
    [("runc version 1.1.5+ds1\nspec: 1.0.2", 39), ("runc version 1.3.3-0ubuntu1", 100), ("", 39)],
)
def test_weights_follow_the_version_of_runc(printed: str, converted: int) -> None:
    class Printing(LocalHost):
        def run(self, *argv: str, **options: Any) -> Result:
            assert argv == ("runc", "--version")
            return Result(argv, "here", 0, printed, "", 0.0)

    target = Target(Printing(), "198.18.0.2")
    assert target.cpu_weight(1024) == converted and target.cpu_weight(None) is None


@given(st.integers(1 << 20, 1 << 40), st.sampled_from([4096, 16384, 65536]))
def test_memory_limits_rounded_down_to_pages(memory: int, page: int) -> None:
    limits = Expectation("1", limits=Limits(memory=memory), engine_rules=False)
    held = memory - memory % page
    found = recorded("bare-clean") | {"limits": {"memory.limit_in_bytes": str(held)}}
    assert problems(limits, found) == []
    found["limits"]["memory.limit_in_bytes"] = str(held + page)
    assert "memory limit" in problems(limits, found)[0]


@pytest.mark.parametrize(
    "files",
    [
        {"blkio.throttle.read_iops_device": "254:0 400"},
        {"io.max": "254:0 rbps=max wbps=max riops=400 wiops=max"},
    ],
    ids=["v1", "v2"],
)
def test_the_limit_of_read_requests(files: dict[str, str]) -> None:
    limits = Expectation("1", limits=Limits(reads_per_s=400), engine_rules=False)
    found = recorded("bare-clean")
    for held, words in (
        (files, []),
        (dict.fromkeys(files, ""), ["its limit of read requests is None, not 400"]),
        ({name: text.replace("4", "5") for name, text in files.items()}, ["is 500, not 400"]),
    ):
        found["limits"] = held
        reported = problems(limits, found)
        assert len(reported) == len(words) and all(map(str.__contains__, reported, words))


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpu_set(cpus: set[int]) -> None:
    assert cpu_set(",".join(map(str, sorted(cpus)))) == cpus
    assert cpu_set(f"{min(cpus)}-{max(cpus)}\n") == set(range(min(cpus), max(cpus) + 1))


@given(st.text("01-,", max_size=6))
def test_any_other_affinity_is_reported(allowed: str) -> None:
    found = recorded("bare-clean")
    found["status"]["Cpus_allowed_list"] = allowed
    try:
        same = cpu_set(allowed) == {1}
    except UsageError:
        same = False  # invalid lists are reported too
    assert bool(problems(expected("bare-clean"), found)) != same


RAW = (CAPTURED / "verification-docker-nat.txt").read_text()


@given(st.integers(0, len(RAW)))
def test_truncated_output_never_passes(cut: int) -> None:
    try:
        found = observed.parse(RAW[:cut])
    except ToolOutput:
        return
    assert found == recorded("docker-nat") or problems(expected("docker-nat"), found)
