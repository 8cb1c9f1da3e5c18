"""Every placement on the real rig: started, verified, measured and removed; wrong ones rejected."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import leftovers
from loads import echoes
from processes import alive

from labkit import placement as known
from labkit.errors import ManipulationError, PlacementError, RigError
from labkit.hosts import script
from labkit.placement import Limits, Placement, Workload, bare, container, docker, waiting
from labkit.runtimes import RUNTIMES, Instance, base, placed
from labkit.runtimes.jobs import withdraw
from labkit.tools import sockperf

pytestmark = pytest.mark.rig
REQUIRED = os.environ.get("LABKIT_REQUIRE_RIG")
#: 100,000,000 bytes are not a multiple of the page size.
LIMITS = Limits("1", 512, 10_000, 2_000, 100_000_000)
EVERY = [
    *(bare(level) for level in known.BASELINE_LEVELS),
    docker("host").with_seccomp("unconfined"),
    *(docker(network, release="debian13") for network in ("host", "bridge", "nat")),
    bare("cgroup", LIMITS),
    *(container(engine, "host", LIMITS) for engine in known.ENGINES),
    *(
        container(engine, network)
        for engine in known.ENGINES
        for network in known.NETWORKS
        if network not in RUNTIMES[engine].impossible
    ),
]


def refused(lab, trial, placement):
    """Tell whether a placement is infeasible; check that it raises an error with the reason then.

    In CI whatever needs only packages that `make test` installs must be feasible.
    """
    reason = lab.infeasible(placement)
    if reason:
        assert not REQUIRED or placement.runtime == "rkt" or placement.network == "weave", reason
        serving = trial.serve(sockperf.server("block"), placement)
        with pytest.raises(RigError, match=re.escape(reason)), serving:
            pass
    return bool(reason)


@pytest.mark.parametrize("placement", EVERY, ids=str)
def test_a_trial_from_start_to_stop(lab, make_trial, placement):
    trial = make_trial(placement)
    if refused(lab, trial, placement):
        return
    wait = "spin" if placement.limits.quota_us else "block"
    with trial.serve(sockperf.server(wait), placement) as server:
        lab.check_target(server.address)
        if placement.network in ("overlay", "weave"):  # the generator has no address there
            with trial.serve(waiting("net"), placement, name="client", at="peer") as client:
                inside = sockperf.ping_pong(server.address, messages=100, size=64, wait="block")
                measurement = trial.measure(inside, inside=client)
        else:
            route = lab.hosts["generator"].run("ip", "route", "get", server.address).stdout
            assert " dev lab0 " in route
            measurement = trial.measure(echoes(server.address, 500))
            # Nothing is said of a trial that nobody tampered with.
            assert not [flag for flag in trial.flags if "pause" in flag or "impossible" in flag]
        if placement.runtime == "lxc":
            Path("/proc", str(server.pid), "root", "written").write_text("mine")
        assert leftovers() != []  # it finds the running placement
    assert measurement.messages > 0
    verification, mechanisms = trial.record["verification"], trial.mechanisms
    assert verification["command"].startswith("sockperf server -i 0.0.0.0")
    assert verification["state"] == "running" and not alive(server.pid)
    assert mechanisms["server_last_cpu"] == float(lab.cpu_map["sut"])
    assert (mechanisms.get("nr_throttled", 0) > 0) == bool(placement.limits.quota_us)
    assert "sockperf" in trial.logs["server.log"]
    assert not Path(lab.targets["sut"].images["net"].rootfs, "written").exists()


def broken(name, really=None, *, options=(), image="", after=None):
    """Return an engine that starts another placement, or with other options of a network or image.

    `after` is called with the target and what was started, before anything is checked.
    """

    class Broken(type(RUNTIMES[name])):
        def start(self, instance):
            images = dict(instance.target.images)
            if image:
                images["net"] = replace(images["net"], reference=images[image].reference)
            target = replace(instance.target, images=images)
            placement = really or instance.placement
            started = super().start(replace(instance, target=target, placement=placement))
            if after:
                after(target, started)
            return started

        def options(self, instance):
            words = super().options(instance)
            at = words.index("--network")
            return [*words[:at], *options, *words[at + 4 :]] if options else words

    return Broken()


def unpublish(target, started):
    """Delete the rule that leads to Docker's container; a proxy of the engine would answer."""
    text = """iptables -t nat -S DOCKER | sed -n 's/^-A \\(.*--dport 11111 .*\\)/-D \\1/p' |
    while read -r rule; do iptables -t nat $rule; done"""
    target.host.run(*script(text))


def withdraw_all(target, started):
    # As for what a killed campaign has left.
    assert withdraw(target.host, "trial-other") == []
    assert withdraw(target.host, "trial-")


def to_cpu_0(target, started):
    pid, container = started
    shown = ("docker", "inspect", "--format", "{{.State.Pid}}", container)
    engine = {"DOCKER_HOST": str(target.engine)}
    pid = pid or target.host.run(*shown, env=engine).stdout.strip()
    target.host.run("taskset", "-acp", "0", str(pid))


MEMORY, QUOTA = Limits(memory=64 << 20), Limits(period_us=10_000, quota_us=2_000)
LAYER2, NAT, HOST, CGROUP = docker("bridge"), docker("nat"), docker("host"), bare("cgroup")
MACVLAN, OVERLAY, CHROOT = docker("macvlan"), docker("overlay"), bare("chroot")
UNCONFINED = HOST.with_seccomp("unconfined")
OTHER = {"options": ("--network", "labkit-layer2", "--ip", "198.18.1.11")}
DEFAULT = {"options": ("--network", "bridge")}
NO_NAT = "NAT from 198.18.0.3 udp: none"
#: A placement, what is started instead, and what the error says.
WRONG: list[tuple[Placement, dict[str, Any], str]] = [
    (LAYER2, {"really": HOST}, "network: the host's, not its own"),
    (LAYER2, DEFAULT, "bridge labbr0: none, not yes"),
    (LAYER2, OTHER, "address 198.18.1.10: none, not yes"),
    (HOST, {"really": NAT}, "network: its own, not the host's"),
    (NAT, {"after": unpublish}, f"{NO_NAT}, not to it"),
    (MACVLAN, {"really": LAYER2}, "macvlan of lab0: none"),
    (OVERLAY, {"really": LAYER2}, "tunnel: none"),
    (container("lxc", "bridge"), {"really": container("lxc", "host")}, "network: the host's"),
    (container("lxc", "nat"), {"after": withdraw_all}, NO_NAT),
    (container("rkt", "nat"), {"really": container("rkt", "host")}, "network: the host's"),
    (docker("host", MEMORY), {"really": HOST}, "memory limit: none, not 67108864"),
    (bare("cgroup", QUOTA), {"really": CGROUP}, "CPU quota: none, not 2000/10000 us"),
    (HOST, {"really": docker("host", QUOTA)}, "2000/10000 us, not none"),
    (CGROUP, {"really": bare("cgroup", Limits(shares=2))}, "CPU weight: "),
    (CGROUP, {"really": CHROOT}, "control group: / of /sys/fs"),
    (CHROOT, {"really": bare("rules")}, "root: /, not"),
    (HOST, {"after": to_cpu_0}, "allowed CPUs: 0, not 1"),
    (UNCONFINED, {"really": HOST}, "seccomp filter: yes, not none"),
    (HOST, {"image": "python"}, "image: sha256:"),
    (bare("clean"), {"at": "sut"}, "rules of the host: "),
    (docker("host", release="debian13"), {"at": "sut"}, "system of its holder: Debian"),
    (bare("rules"), {"at": "clean"}, "engine rules: none, not yes"),
]


@pytest.mark.parametrize(("placement", "wrong", "words"), WRONG)
def test_wrong_placements_are_rejected(lab, make_trial, placement, wrong, words):
    trial, options = make_trial(placement), dict(wrong)
    if refused(lab, trial, placement):
        return
    target = lab.targets[options.pop("at")] if "at" in options else lab.target(placement)
    workload = waiting("net") if "image" in wrong else sockperf.server("block")
    instance = Instance(target, placement, workload, lab.cpu_map["sut"], trial.label)
    placing = placed(broken(placement.runtime, **options), instance, trial.logs, "server")
    with pytest.raises(ManipulationError) as caught, placing:
        raise AssertionError("verification passed")
    assert "command" in caught.value.evidence["verification"] and "server.log" in trial.logs
    assert words in caught.value.what


@pytest.mark.parametrize(
    ("argv", "words"),
    [(("sleep", "60"), "nothing listens on the port yet"), (("false",), "has ended")],
)
@pytest.mark.parametrize("placement", [CGROUP, NAT, container("lxc", "nat")], ids=str)
def test_a_server_that_does_not_become_ready(lab, label, placement, argv, words, monkeypatch):
    patience = 0.2 if argv[0] == "sleep" else 20.0
    monkeypatch.setattr(base, "PATIENCE", patience)
    instance = Instance(lab.target(placement), placement, Workload(argv, 11111), "1", label)
    placing = placed(RUNTIMES[placement.runtime], instance, {}, "server")
    with pytest.raises(PlacementError) as caught, placing:
        raise AssertionError("verification passed")
    said = str(caught.value)
    assert words in said or "ended at once" in said or "did not start" in said
