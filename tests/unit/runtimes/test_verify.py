"""Facts that engines expect, and those recorded of placements (control groups v1); jobs' rules."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.errors import ManipulationError
from labkit.hosts import Host, Result
from labkit.hosts.target import Image, Network, Storage, Target
from labkit.placement import Limits, Workload, bare, container, docker
from labkit.rig.networks import VIRTUAL
from labkit.runtimes import RUNTIMES, Instance
from labkit.runtimes.base import check_translated, differences, of_limits, of_process, weights
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
DIGEST, ROOT = RECORDED["docker host"]["image"], RECORDED["bare chroot"]["root"]


def instance(placement, **more):
    address = "198.18.0.4" if placement == bare() else "198.18.0.3"
    images = {"net": Image("net", "labkit/net", DIGEST, ROOT)}
    target = Target(Host(), address, networks=VIRTUAL, images=images, **more)
    return Instance(target, placement, sockperf.server("spin"), "1", "trial-0-recorded")


def expected(placement, group="0" * 64, **more):
    """Return what the engine expects of a placement on the recorded host."""
    return RUNTIMES[placement.runtime].expect(instance(placement, **more), group)


#: Facts that are expected of every placement, and further ones: of each engine and network.
ALWAYS = "CPU quota, allowed CPUs, control group, listens on 11111/udp, mounts, network, "
ALWAYS += "scheduling class, seccomp filter, state"
GROUP = "engine rules, CPU weight, memory limit"
LAYER2 = "address 198.18.1.10, bridge labbr0, lab1 on labbr0, vethwe-bridge on labbr0"
FURTHER = {
    "clean": "root, rules of the host",
    "rules": "root, engine rules",
    "chroot": "root, engine rules",
    "cgroup": f"root, {GROUP}",
    "docker": f"{GROUP}, OCI runtime, held by containerd-shim, image",
    "lxc": f"{GROUP}, held by lxc-start, layer over",
    "bridge": f"{LAYER2}, NAT of port 11111",
    "nat": "NAT from 198.18.0.3 udp",
    "limited": "cpuset",
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_only_the_recorded_placement_passes(name):
    group = RECORDED[name].get("container", "0" * 64)
    for label, placement in PLACEMENTS.items():
        assert bool(differences(expected(placement, group), RECORDED[name])) == (label != name)
    facts = expected(PLACEMENTS[name], group)
    names = ", ".join([ALWAYS, *(FURTHER[word] for word in name.split() if word in FURTHER)])
    assert {*facts, "NAT of port 11111"} == {*names.split(", "), "NAT of port 11111"}
    for fact in facts:
        problems = differences(facts, {**RECORDED[name], fact: "something else"})
        assert len(problems) == 1 and problems[0].startswith(f"{fact}: something else, not ")


def test_seccomp_storage_and_networks_between_hosts_are_expected():
    for seccomp, words in (("default", "yes"), ("unconfined", "none")):
        assert expected(docker().with_seccomp(seccomp))["seccomp filter"] == words
    bound = Storage("bind", "overlay2", "ext4")
    facts = expected(docker(storage="bind"), storage=bound, disk="/disk")
    assert (facts["storage driver"], facts["file system of /data"]) == ("overlay2", "ext4")
    assert str(facts["mount at /data"]).startswith("/disk/bind/net-")
    overlay = Network("overlay", "198.18.9.0/24", "198.18.9.10", remotes=("198.18.0.5",))
    facts = of_process(instance(docker("overlay")), overlay)
    assert facts["tunnel"] == facts["tunnel to 198.18.0.5"] == "yes"
    weave = of_process(instance(docker("weave")), replace(overlay, router="r:1"))
    assert weave["router to 198.18.0.5"] == ("fastdp", "sleeve")


def test_limits_are_converted_as_runc_and_the_kernel_do():
    """As runc's developers state it: 2,000 shares are 170, and 77 before 1.3.2."""
    assert (weights(2000), weights(1024), weights(1 << 18)) == ((170, 77), (100, 39), (10_000,) * 2)
    facts = of_limits(Limits(shares=1024, memory=100_000_000))
    assert facts["CPU weight"] == ("1024 shares", "100 weight", "39 weight")
    assert facts["memory limit"] == ("99999744", "99991552", "99942400")


def test_every_transport_of_a_load_must_have_been_translated():
    before, after = {"flows tcp": "1"}, {"flows tcp": "2", "flows udp": "1"}
    check_translated(before, after, ("tcp", "udp"))
    check_translated(before, {"flows udp": "2"}, ("",))
    for protocols, words in ((("tcp", "udp"), "udp flows: 1"), (("",), "any flows: 3")):
        with pytest.raises(ManipulationError, match=words):
            check_translated(after, {**after, "flows tcp": "2"}, protocols)


# The rules that publish ports of placements that are jobs.

RULE = '-A PREROUTING -d 198.18.0.3/32 -p udp --dport {} -m comment --comment "labkit={}" -j DNAT'


class Rules(Host):
    def __init__(self, labels):
        super().__init__("sut")
        rules = [RULE.format(number, label) for number, label in enumerate(labels)]
        self.listing, self.deleted = "\n".join(["-P PREROUTING ACCEPT", *rules]), list[str]()

    def run(self, *argv, **options):
        self.deleted += [argv[argv.index("--dport") + 1]] if "-D" in argv else []
        return Result(argv, self.name, 0, self.listing if argv[-1] == "-S" else "", "")

    def call(self, function, **arguments):
        return ""


@pytest.mark.parametrize("label", ["trial-7-b01-p02-a1", "trial-7-b01-p02-a1-end", "trial-a.b"])
def test_only_the_rules_of_a_placement_are_withdrawn(label):
    host = Rules([label, f"{label}-2", f"{label}2", f"x{label}", label.replace(".", "c")])
    target = Target(host, "198.18.0.3")
    server = Workload(("server",), 1, ("udp",), "net")
    RUNTIMES["lxc"].stop(Instance(target, container("lxc", "nat"), server, "1", label))
    assert host.deleted == ["0", *["4"] * ("." not in label)]
