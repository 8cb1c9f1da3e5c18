"""Verification: what each engine expects, and observations recorded from real placements.

``tests/captured/verifications.json``: kernel 6.18, control groups v1 (hybrid), Docker 20.10, nft.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import ManipulationError
from labkit.hosts import LocalHost, Result
from labkit.hosts.target import Image, Network, Storage, Target
from labkit.placement import Limits, Placement, bare, container, docker, weight
from labkit.rig.engine import LAYER2
from labkit.rig.networks import VIRTUAL
from labkit.runtimes import RUNTIMES, Instance, expect
from labkit.runtimes.base import Started, observed
from labkit.runtimes.verify import Facts, check_translated, check_unchanged, differences
from labkit.tools import sockperf

RECORDED = json.loads((Path(__file__).parents[2] / "captured" / "verifications.json").read_text())
LIMITS = Limits("1", 512, 10_000, 2_000, 64 << 20)
PLACEMENTS = {
    **{f"bare {level}": bare(level) for level in ("clean", "rules", "chroot", "cgroup")},
    **{f"docker {network}": docker(network) for network in ("host", "bridge", "nat")},
    "bare cgroup limited": bare("cgroup", LIMITS),
    "docker bridge limited": docker("bridge", LIMITS),
    "lxc bridge": container("lxc", "bridge"),
}
IMAGE = Image(
    "net",
    "labkit/net",
    RECORDED["docker host"]["image"],
    RECORDED["bare chroot"]["root"],
)


def instance(placement: Placement, **options: object) -> Instance:
    address = "198.18.0.4" if placement == bare() else "198.18.0.3"
    networks = {"bridge": LAYER2, **VIRTUAL}
    target = Target(LocalHost(), address, networks=networks, images={"net": IMAGE}, **options)
    return Instance(target, placement, sockperf.server("spin"), "1", "trial-0-recorded")


def expected(placement: Placement, group: str = "0" * 64, **options: object) -> Facts:
    """Return what the engine expects of a placement on the recorded host."""
    engine = RUNTIMES[placement.runtime]
    return engine.expect(instance(placement, **options), Started(1, group))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_only_the_recorded_placement_passes(name: str) -> None:
    for label, placement in PLACEMENTS.items():
        facts = expected(placement, RECORDED[name].get("container", "0" * 64))
        assert bool(differences(facts, RECORDED[name])) == (label != name), label


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_fact_that_is_not_as_expected_is_reported(name: str) -> None:
    facts = expected(PLACEMENTS[name], RECORDED[name].get("container", ""))
    for fact in facts:
        problems = differences(facts, {**RECORDED[name], fact: "something else"})
        assert len(problems) == 1 and problems[0].startswith(f"{fact}: something else, not ")


def test_what_is_read_follows_from_what_is_expected() -> None:
    facts = {"control group": "none", "mount at /data": "/disk/bind/1"}
    overlay = Network("overlay", "198.18.7.0/24", "198.18.7.10", sandboxes="/netns")
    place = instance(docker("overlay"))
    place.target.networks["overlay"] = overlay  # type: ignore[index]
    read = observed(place, Started(7, "id"), facts)
    assert read["group"] == "" and read["source"] == "/disk/bind/1"
    assert (read["pid"], read["container"], read["sandboxes"]) == (7, "id", "/netns")


def test_the_seccomp_filter_is_expected_unless_it_is_left_out() -> None:
    for seccomp, words in (("default", "yes"), ("unconfined", "none")):
        assert expected(docker().with_seccomp(seccomp))["seccomp filter"] == words


def test_a_storage_is_expected() -> None:
    for storage, mount in (
        (Storage("bind", "overlay2", "ext4", "/disk"), "/disk/bind/net-"),
        (Storage("overlay2", "overlay2", "overlay"), "none"),
    ):
        facts = expected(docker("host", storage=storage.name), storage=storage)
        assert facts["storage driver"] == storage.driver
        assert facts["file system of /data"] == storage.filesystem
        assert str(facts["mount at /data"]).startswith(mount)


def test_a_network_between_hosts_is_expected() -> None:
    end = Network("weave", "198.18.9.0/24", "198.18.9.10", remotes=("198.18.0.5",), router="r:1")
    weave = expect.of_network(instance(docker("weave")), end)
    assert differences(weave, {**weave, "router to 198.18.0.5": "sleeve"}) == []
    assert "router to 198.18.0.5: none" in differences(weave, {})[-1]
    overlay = Network("overlay", "198.18.9.0/24", "198.18.9.10", remotes=("198.18.0.5",))
    facts = expect.of_network(instance(docker("overlay")), overlay)
    assert facts["tunnel"] == facts["tunnel to 198.18.0.5"] == "yes"


@given(st.integers(2, 262_144), st.booleans())
def test_weights_of_either_version_and_conversion(shares: int, linear: bool) -> None:
    words = expect.of_limits(Limits(shares=shares))["CPU weight"]
    converted = weight(shares, linear=linear)
    assert {f"{shares} shares", f"{converted} weight"} <= set(words)
    assert f"{weight(shares, linear=True) + 20_000} weight" not in words


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
        def run(self, *argv: str, **options: object) -> Result:
            assert argv == ("runc", "--version")
            return Result(argv, "here", 0, printed, "", 0.0)

    target = Target(Printing(), "198.18.0.2")
    assert target.cpu_weight(1024) == converted and target.cpu_weight(None) is None


@given(st.integers(1 << 20, 1 << 40), st.sampled_from([4096, 16384, 65536]))
def test_memory_limits_are_rounded_down_to_pages(memory: int, page: int) -> None:
    facts = {"memory limit": expect.of_limits(Limits(memory=memory))["memory limit"]}
    rounded = memory - memory % page
    assert differences(facts, {"memory limit": str(rounded)}) == []
    assert differences(facts, {"memory limit": str(rounded + 65536)})


# The end of a window.


def test_a_change_in_a_window_is_an_error_with_every_change() -> None:
    before = RECORDED["docker nat"]
    check_unchanged("server", before, {**before, "flows udp": "7", "address 198.18.0.9": "yes"})
    after = {name: text for name, text in before.items() if "address" not in name}
    with pytest.raises(ManipulationError, match="server did not stay as it was") as caught:
        check_unchanged("server", before, {**after, "state": "stopped", "nice value": "5"})
    problems = caught.value.evidence["problems"]
    assert problems[0] == "state: stopped, not running" and len(problems) == 4
    with pytest.raises(ManipulationError, match=r"state: ended, not running; .*; and "):
        check_unchanged("server", before, {"state": "ended"})


def test_every_transport_of_a_load_must_have_been_translated() -> None:
    before, after = {"flows tcp": "1"}, {"flows tcp": "2", "flows udp": "1"}
    check_translated(before, after, ("tcp", "udp"))
    check_translated(before, {"flows udp": "2"}, ("",))
    for protocols, words in ((("tcp", "udp"), "udp flows: 1"), (("",), "any flows: 3")):
        with pytest.raises(ManipulationError, match=words):
            check_translated(after, {**after, "flows tcp": "2"}, protocols)
