"""Rules of every rig: where placements go, what is infeasible, how one is opened and closed."""

import os
import subprocess
import sys
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

import pytest

from labkit import Study, treatments
from labkit.errors import DryRun, Interrupted, RigError, UsageError
from labkit.hosts import Host
from labkit.hosts.target import Target
from labkit.placement import RELEASES, bare, container, docker
from labkit.rig import KINDS, Rig, networks, opener, virtual
from labkit.rig.checks import Check


def make_rig(**changes):
    """Return a rig without hosts, for rules that need none."""
    values: dict[str, Any] = {"name": "x", "kind": "inventory", "targets": {}}
    values |= {"cpu_map": {}, "shared_kernel": True}
    return Rig(**values | changes)


def target(engine="unix:///run/engine.sock"):
    return Target(Host("peer"), "198.18.0.5", engine=engine)


def test_a_placement_goes_to_the_sut_or_to_the_named_host_or_there_is_a_reason():
    sut, peer, without = target(), target(), target(engine=None)
    rig = make_rig(targets={"sut": sut, "peer": peer})
    assert rig.target(docker("nat")) is sut
    assert rig.target(docker("nat"), at="peer") is rig.target(bare("rules"), at="peer") is peer
    # Any host without an engine is a clean one.
    rig = make_rig(targets={"peer": without}, missing={"clean-host": "there is none"})
    assert rig.target(bare("clean"), at="peer") is without
    with pytest.raises(RigError, match="not possible here"):
        rig.target(bare("clean"))
    for targets, missing, why in (
        ({}, {}, "without a host 'peer'"),
        ({"peer": without}, {}, "peer has no engine"),
        ({"peer": peer}, {"rules": "no rules anywhere"}, "no rules anywhere"),
    ):
        with pytest.raises(RigError, match=why):
            make_rig(targets=targets, missing=missing).target(docker("nat"), at="peer")


#: Placements without a capability.
LACKING = {
    "clean-host": "bare clean",
    "network:bridge": "docker bridge, lxc bridge",
    "network:nat": "lxc nat",
    "network:macvlan": "docker macvlan",
    "runtime:lxc": "lxc bridge, lxc nat",
    "rules": "bare rules, bare chroot, bare cgroup, docker host, docker bridge, docker nat, "
    "docker macvlan, lxc bridge, lxc nat",
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_missing_capability_makes_placements_infeasible(lacking):
    placements = [bare(level) for level in ("clean", "rules", "chroot", "cgroup")]
    placements += [docker(network) for network in ("host", "bridge", "nat", "macvlan")]
    placements += [container("lxc", network) for network in ("bridge", "nat")]
    rig = make_rig(missing={lacking: "because"})
    found = ", ".join(p.label for p in placements if rig.infeasible(p) == "because")
    assert found == LACKING[lacking]
    assert not [p for p in placements if make_rig().infeasible(p)]


# Opening and closing.


@pytest.mark.parametrize(
    ("spec", "added", "what"),
    [
        ("virtual", {"peer": ["nothing"]}, "no image called 'nothing'"),
        ("rack", {}, "no rig called 'rack'"),
        *((f"virtual:{rate}", {}, "invalid rate") for rate in ("", "0gbit", "1.5gbit", "1Gbit")),
    ],
)
def test_what_is_unknown_is_an_error_before_anything_is_made(spec, added, what):
    with pytest.raises(UsageError, match=what), Rig.open(spec, **added):
        pass


def test_auto_is_the_virtual_rig_or_an_error(monkeypatch):
    """Only for a fault that nothing can be measured with."""
    note, fault = (Check("c", "none", False, "no sshd", "apt", needed) for needed in (False, True))
    monkeypatch.setattr(virtual, "check_machine", lambda: [note])
    assert opener("auto") is opener("virtual") is virtual.opened
    monkeypatch.setattr(virtual, "check_machine", lambda: [note, fault])
    with pytest.raises(RigError, match="can have no virtual rig") as caught:
        opener("auto")
    assert caught.value.why == "no sshd" and "rig.toml" in caught.value.remedy


@pytest.mark.parametrize("attached", [False, True])
def test_ctrl_c_is_reported_once_the_rig_is_down(monkeypatch, tmp_path, attached):
    closed: list[bool] = []

    @contextmanager
    def opened(spec, added):
        if not attached:
            raise KeyboardInterrupt
        try:
            yield make_rig()
        finally:
            closed.append(True)

    monkeypatch.setitem(KINDS, ".toml", (lambda spec: None, opened))
    monkeypatch.setattr("labkit.rig.base.LOCK", tmp_path / "lock")
    with pytest.raises(Interrupted, match="interrupted; what was measured"), Rig.open("rig.toml"):
        raise KeyboardInterrupt
    assert bool(closed) == attached


@pytest.mark.parametrize("engine", [None, {"components": {"Engine": "1", "runc": "1"}}])
def test_a_rig_whose_engine_or_containerd_does_not_answer_has_no_facts(monkeypatch, engine):
    rig = make_rig(targets={"sut": target()})
    answers = {"stable": {"engine": engine}}
    monkeypatch.setattr(Host, "call", lambda host, function, **options: answers)
    with pytest.raises(RigError, match="the engine does not answer"):
        rig.facts()


# The virtual rig, and the dry one.


def test_the_ends_are_on_different_cores_of_the_cpus_that_a_container_has(monkeypatch):
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {topology.format(cpu): "0-3" if cpu < 4 else "4-7" for cpu in range(8)}
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {1, 2, 6, 7})
    cpus = virtual.cpu_map(cores, ["generator", "sut"])
    assert (cpus["generator"], cpus["sut"], cpus["harness"]) == ("1", "6", "2")
    assert cpus["all"] == "1-2,6-7"


def test_a_release_of_docker_is_a_host_of_its_own():
    bridge = networks.VIRTUAL["bridge"]
    own = [networks.of_host(bridge, role) for role in ("sut", *RELEASES)]
    places = [int(ip_address(one)) for row in own for one in (row.gateway, row.address(20))]
    assert places == sorted(set(places)) and {row.subnet for row in own} == {bridge.subnet}
    with Rig.open("dry", releases=["sid"]) as rig:
        placements = [docker("nat", release=one) for one in ("", "sid", "debian13")]
        placements.append(docker("overlay", release="sid"))
        assert [bool(rig.infeasible(one)) for one in placements] == [False, False, True, True]
        assert rig.cpus("sid", "split") == rig.cpus("sut", "split")


def test_a_dry_rig_shows_the_plan_and_measures_nothing(tmp_path, capsys):
    placements = [bare("clean"), docker("nat"), docker("overlay")]
    hosts = treatments.SecondHost(1, 2, at=2, images=["net"])
    factors = {"placement": placements, "hosts": hosts}
    study = Study("tiny", lambda trial, placement: trial.serve(None, placement), factors=factors)
    with pytest.raises(DryRun, match="tiny: 6 conditions x 5 blocks = 30 trials on rig dry"):
        study.run("dry", blocks=5, seed=1, into=tmp_path)
    assert "expected duration" in capsys.readouterr().out and not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="drops a capability of root")
def test_root_without_cap_sys_admin():
    drop = ("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    argv = [*drop, sys.executable, "-c", "from labkit.rig import opener; opener('auto')"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "RigError" in found.stderr
    assert "user 0 has no right to make network namespaces (" in found.stderr
