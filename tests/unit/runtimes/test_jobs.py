"""Placements that are jobs: the rules that publish their ports."""

import pytest

from labkit.hosts import Host, Result
from labkit.hosts.target import Target
from labkit.placement import Workload, container
from labkit.runtimes import RUNTIMES, Instance

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
