"""What an inventory's rig concludes from the answers of its machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_rig import make_rig
from test_rigfile import GOOD, write

from labkit.process import boot
from labkit.rig import inventory_checks, rigfile
from labkit.rig.rigfile import read_rigfile


def facts(boot_id: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "stable": {
            "cpu": {"online": "0-3", "isolated": changes.get("isolated", "2-3")},
            "interfaces": {"eth1": {"driver": changes.get("driver", "ixgbe")}},
            "engine": {"CgroupDriver": changes.get("cgroups", "cgroupfs")},
            "virtualisation": {"hypervisor": False},
        },
        "volatile": {"boot_id": boot_id},
    }


def answers(*addresses: str, **changes: str) -> dict[str, str]:
    links = [{"ifname": "eth1", "addr_info": [{"local": text} for text in addresses]}]
    route = json.dumps([{"dev": "eth1"}])
    rest = {"user": "0", "scratch": "writable", "rules": "table ip nat", "readers": "nft"}
    rest |= {"route 198.18.0.2": route, "route 198.18.0.3": route, "processes": "pid:[1]"}
    return {"addresses": json.dumps(links), **rest, **changes}


@pytest.fixture
def inventory(tmp_path: Path) -> rigfile.Inventory:
    return read_rigfile(write(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("changes", "far", "key", "why"),
    [
        ({}, ["198.18.0.2"], "", ""),
        ({"user": "1000"}, [], "sudo", "as user 1000"),
        ({"scratch": ""}, [], "scratch", "not writable"),
        ({"addresses": "[]"}, [], "interfaces", "no interface eth1"),
        ({"addresses": '[{"ifname": "eth1"}]'}, [], "addresses", "198.18.0.3 is not on eth1"),
        ({"route 198.18.0.2": '[{"dev": "eth0"}]'}, ["198.18.0.2"], "interfaces", "by eth0"),
        ({"route 198.18.0.2": ""}, ["198.18.0.2"], "interfaces", "no interface"),
    ],
)
def test_a_host_is_compared_with_its_table(
    inventory: rigfile.Inventory, changes: dict[str, str], far: list[str], key: str, why: str
) -> None:
    machine, shown = inventory.machines["sut"], answers("198.18.0.3", **changes)
    found = list(inventory_checks.mismatches("sut", machine, shown, facts(), far))
    if not key:
        assert found == []
    else:
        (mismatch,) = found
        assert mismatch.key == key and why in mismatch.why and mismatch.remedy


def test_all_differences_of_a_host_are_listed(inventory: rigfile.Inventory) -> None:
    machine, shown = inventory.machines["sut"], answers("198.18.0.3", user="1000", scratch="")
    found = inventory_checks.mismatches("sut", machine, shown, facts(), ["198.18.0.2"])
    assert [mismatch.key for mismatch in found] == ["sudo", "scratch"]


def missing(inventory: rigfile.Inventory, sut: dict[str, Any], **changes: str) -> dict[str, str]:
    known = {"generator": facts(), "sut": sut}
    kernels = {role: inventory_checks.kernel(answers(), known[role]) for role in known}
    shown = {"generator": answers(), "sut": answers(**changes)}
    return inventory_checks.missing(inventory, kernels, known, shown)


def test_separate_machines_with_real_interfaces_lack_little(inventory: rigfile.Inventory) -> None:
    assert set(missing(inventory, facts("b"))) == {"clean-host", "collector", "one-machine", "peer"}


@pytest.mark.parametrize(
    ("sut", "changes", "capability", "why"),
    [
        (facts("a"), {}, "separate-machines", "one kernel"),
        (facts("b", isolated=""), {}, "isolated-cpus", "CPU 2-3 of sut is not isolated"),
        (facts("b", isolated="3"), {}, "isolated-cpus", "isolcpus: 3"),
        (facts("b", driver="veth"), {}, "nic-hardware", "eth1 of sut is veth"),
        (facts("b", driver="veth"), {}, "busy-poll", "no queue"),
        (facts("b", driver="virtio_net"), {}, "nic-hardware", "virtio_net"),
        (facts("b", driver=None), {}, "nic-hardware", "tells no driver"),
        (facts("b"), {"rules": ""}, "rules", "no firewall rules"),
        (facts("b"), {"readers": "", "rules": ""}, "rules", "neither nft nor"),
    ],
)
def test_a_missing_capability_has_its_reason(
    inventory: rigfile.Inventory,
    sut: dict[str, Any],
    changes: dict[str, str],
    capability: str,
    why: str,
) -> None:
    assert why in missing(inventory, sut, **changes)[capability]


@pytest.mark.parametrize("boot_id", ["a", "b"])
def test_guests_of_one_machine_are_not_separate_machines(tmp_path: Path, boot_id: str) -> None:
    inventory = read_rigfile(write(tmp_path, "shared_machine = true\n" + GOOD))
    lacks = missing(inventory, facts(boot_id))
    assert "separate-machines" in lacks and "separate-kernels" not in lacks
    known = {"generator": facts(), "sut": facts(boot_id)}
    kernels = {role: inventory_checks.kernel(answers(), known[role]) for role in known}
    said = inventory_checks.caveats(inventory, kernels, known)
    assert any("guests of one machine: they share its CPUs" in text for text in said)


def test_a_missing_capability_names_the_key_of_the_file(tmp_path: Path) -> None:
    def lacks(text: str) -> dict[str, str]:
        return missing(read_rigfile(write(tmp_path, text)), facts("b"))

    collector = GOOD + '[hosts.collector]\nssh = "c"\ninterfaces = ["eth1"]\ncpus = "2"\n'
    assert 'mirrors = ["sut"] in [hosts.collector]' in lacks(collector)["collector"]
    assert "collector" not in lacks(collector + 'mirrors = ["sut"]\n')
    plain = GOOD.partition("bridge_port")[0]
    assert "bridge_port" in lacks(plain)["layer2"]
    assert {"docker", "layer2", "nat", "chroot", "cgroup"} <= set(lacks(plain + 'engine = "none"'))


def test_missing_networks_have_the_reason(tmp_path: Path) -> None:
    def lacks(text: str) -> dict[str, str]:
        return inventory_checks.missing_networks(read_rigfile(write(tmp_path, text)))

    nat = GOOD + '[networks]\nnat = "198.18.4.10/24"\n'
    assert "network:nat" not in lacks(nat)
    assert "no key overlay in its table [networks]" in lacks(nat)["network:overlay"]
    without_engine = lacks(GOOD.partition("bridge_port")[0] + 'engine = "none"\n')
    assert set(without_engine) == {f"network:{name}" for name in rigfile.NETWORK_NAMES}
    assert "sut has none" in without_engine["network:macvlan"]


def test_cpu_maps(inventory: rigfile.Inventory) -> None:
    known = {"generator": facts(), "sut": facts("b")}
    cpus, notes = inventory_checks.cpu_map(inventory.machines, known, shared=False)
    assert cpus["sut"] == "2-3" and set(notes) == {"softirq", "harness"}
    assert cpus["all.generator"] == cpus["all.sut"] == "0-3"
    rig = make_rig(cpu_map=cpus, cpu_notes=notes, shared_kernel=False)
    assert (rig.cpus("sut", "free"), rig.cpus("generator", "split")) == ("0-3", "2")
    table = rig.describe()["cpu_map"]
    keys = ["generator", "sut", "softirq", "harness", "all.generator", "all.sut"]
    assert list(table) == keys and table == {**cpus, **notes}
    cpus, notes = inventory_checks.cpu_map(inventory.machines, known, shared=True)
    assert cpus["all"] == "0-3" and "harness" in cpus and set(notes) == {"softirq"}


def test_the_harness_shares_the_generators_cpus_where_no_other_is_left(
    inventory: rigfile.Inventory,
) -> None:
    machines = {
        role: inventory.machines[role].model_copy(update={"cpus": cpus})
        for role, cpus in (("generator", "0-1"), ("sut", "2-3"))
    }
    known = {role: facts(boot()) for role in machines}
    cpus, _ = inventory_checks.cpu_map(machines, known, shared=True)
    assert cpus["harness"] == "0,1"


def test_the_parent_of_control_groups_depends_on_the_engine() -> None:
    assert inventory_checks.cgroup_parent(facts(cgroups="systemd")) == "labkit.slice"
    # Not "/labkit", in which the virtual rig kills every process.
    assert inventory_checks.cgroup_parent(facts()) == "/labkit-host"


@pytest.mark.parametrize("boot_id", ["a", "b"])
def test_a_clean_host_that_is_another_machine_is_a_caveat(
    inventory: rigfile.Inventory, boot_id: str
) -> None:
    kernels = {"sut": ("a", "1"), "clean": (boot_id, "1")}
    texts = inventory_checks.caveats(inventory, kernels, {"sut": facts()})
    assert any("clean is another machine" in text for text in texts) == (boot_id == "b")
