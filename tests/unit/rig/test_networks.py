"""Networks between containers: addresses, and steps that are undone."""

from __future__ import annotations

import ipaddress
from itertools import combinations
from pathlib import Path

import pytest
from small_rig import make_rig

from labkit.errors import CommandFailed, UsageError
from labkit.hosts import LocalHost
from labkit.hosts.target import Target
from labkit.rig import Rig, networks
from labkit.rig.netns import LAB
from labkit.rig.networks import UndoLog


def test_networks_of_the_virtual_rig_are_in_the_lab_and_do_not_overlap() -> None:
    subnets = {
        name: ipaddress.ip_network(network.subnet) for name, network in networks.VIRTUAL.items()
    }
    assert set(subnets) == set(networks.NAMES) == set(networks._CREATE)
    assert all(subnet.subnet_of(ipaddress.ip_network(LAB)) for subnet in subnets.values())
    assert not any(a.overlaps(b) for a, b in combinations(subnets.values(), 2))
    for name, network in networks.VIRTUAL.items():
        assert ipaddress.ip_address(network.first) + 2 * networks.APART in subnets[name]


def test_an_unknown_network_is_an_error() -> None:
    with (
        pytest.raises(UsageError, match="unknown network 'flannel'"),
        networks.created(make_rig(), ["flannel"]),
    ):
        pass


def test_missing_networks_are_left_out() -> None:
    rig = make_rig(missing={f"network:{name}": "because" for name in networks.NAMES})
    with rig.networks(list(networks.NAMES)):
        assert rig.targets == {}


def test_a_peer_on_the_generators_machine_is_one_end_of_a_tunnel() -> None:
    same = {"generator": ("198.18.0.2",), "sut": ("198.18.0.3",), "peer": ("198.18.0.2",)}
    apart = same | {"peer": ("198.18.0.5",)}
    roles = ["sut", "peer", "generator"]
    assert list(networks._machines(make_rig(addresses=same), roles).values()) == ["sut", "peer"]
    assert list(networks._machines(make_rig(addresses=apart), roles).values()) == roles


# Steps on a host.


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return make_rig(targets={"sut": Target(LocalHost("sut"), "", directory=str(tmp_path / "jobs"))})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def take(steps: UndoLog, folder: Path, name: str) -> None:
    """Make a file; undoing it removes the file and adds its name to a log."""
    path = str(folder / name)
    undo = ("sh", "-c", 'rm "$1" && echo "$1" >>"$2"', "sh", path, str(folder / "log"))
    steps.take("sut", "touch", path, undo=undo)


def test_steps_are_undone_in_reverse_order(rig: Rig, tmp_path: Path) -> None:
    steps = UndoLog(rig, "macvlan")
    for name in ("one", "two words", "three"):
        take(steps, tmp_path, name)
    assert set(names(tmp_path)) == {"one", "two words", "three", "undo-sut-macvlan."}
    steps.undo()
    assert names(tmp_path) == ["log"]
    order = [Path(line).name for line in (tmp_path / "log").read_text().splitlines()]
    assert order == ["three", "two words", "one"]


def test_a_log_leaves_the_steps_of_another_one(rig: Rig, tmp_path: Path) -> None:
    outer, inner = UndoLog(rig, "macvlan-nat"), UndoLog(rig, "macvlan")
    take(outer, tmp_path, "outer")
    take(inner, tmp_path, "inner")
    inner.undo()
    assert (tmp_path / "outer").exists() and not (tmp_path / "inner").exists()
    outer.undo()
    assert names(tmp_path) == ["log"]


def test_the_next_user_undoes_every_log_after_a_kill(rig: Rig, tmp_path: Path) -> None:
    for log, name in (("nat", "one"), ("routed", "two")):
        take(UndoLog(rig, log), tmp_path, name)
    folders = networks.undo_folders(str(tmp_path / "jobs"), "sut")
    done = networks.undo_steps(LocalHost(), folders)
    assert names(tmp_path) == ["log"] and len(done) == 2
    assert networks.undo_steps(LocalHost(), folders) == [], "once"


def test_undoing_a_step_that_failed_is_no_error(rig: Rig, tmp_path: Path) -> None:
    steps = UndoLog(rig, "nat")
    with pytest.raises(CommandFailed):
        steps.take("sut", "false", undo=("rm", str(tmp_path / "never")))
    take(steps, tmp_path, "one")
    steps.undo()
    assert names(tmp_path) == ["log"]
