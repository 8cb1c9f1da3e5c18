"""What an inventory's rig says of what its machines showed, and what rigs refuse."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_rig import make_rig
from test_rigfile import GOOD, write

from labkit.campaign import treatments
from labkit.errors import Interrupted, RigError, UsageError
from labkit.placement import bare, container, docker, parse_cpus
from labkit.rig import Rig, auto, inventory_checks, onehost, rigfile, virtual
from labkit.rig.rigfile import read_rigfile


def facts(boot: str = "a", **changes: Any) -> dict[str, Any]:
    cpu = {"online": "0-3", "isolated": changes.get("isolated", "2-3")}
    interface = {"driver": changes.get("driver", "ixgbe")}
    return {
        "stable": {
            "cpu": cpu,
            "interfaces": {"eth1": interface},
            "engine": {"CgroupDriver": changes.get("cgroups", "cgroupfs")},
            "virtualisation": {"hypervisor": changes.get("guest", False)},
        },
        "volatile": {"boot_id": boot},
    }


def answers(*addresses: str, **changes: str) -> dict[str, str]:
    held = [{"ifname": "eth1", "addr_info": [{"local": one} for one in addresses]}]
    routes = {f"route {one}": json.dumps([{"dev": "eth1"}]) for one in ("198.18.0.2", "198.18.0.3")}
    rest = {"user": "0", "scratch": "writable", "rules": "table ip nat", "readers": "nft"}
    return {"addresses": json.dumps(held), "processes": "pid:[1]", **routes, **rest, **changes}


@pytest.fixture
def book(tmp_path: Path) -> rigfile.Inventory:
    return read_rigfile(write(tmp_path, GOOD))


def test_a_host_as_described_passes(book: rigfile.Inventory) -> None:
    seen = answers("198.18.0.3")
    assert (
        inventory_checks.mismatch("sut", book.machines["sut"], seen, facts(), ["198.18.0.2"])
        is None
    )


@pytest.mark.parametrize(
    ("changes", "targets", "key", "why"),
    [
        ({"user": "1000"}, [], "sudo", "as user 1000"),
        ({"scratch": ""}, [], "scratch", "not writable"),
        ({"addresses": "[]"}, [], "interfaces", "no interface eth1"),
        ({"addresses": '[{"ifname": "eth1"}]'}, [], "addresses", "198.18.0.3 is not on eth1"),
        ({"route 198.18.0.2": '[{"dev": "eth0"}]'}, ["198.18.0.2"], "interfaces", "leaves by eth0"),
        ({"route 198.18.0.2": ""}, ["198.18.0.2"], "interfaces", "no interface"),
    ],
)
def test_a_host_that_is_not_as_described(
    book: rigfile.Inventory, changes: dict[str, str], targets: list[str], key: str, why: str
) -> None:
    seen = answers("198.18.0.3", **changes)
    found = inventory_checks.mismatch("sut", book.machines["sut"], seen, facts(), targets)
    assert found is not None
    assert found.key == key and why in found.why and found.remedy


def missing(book: rigfile.Inventory, sut: dict[str, Any], **changes: str) -> dict[str, str]:
    kernels = {
        role: inventory_checks.kernel(answers(), one)
        for role, one in (("generator", facts()), ("sut", sut))
    }
    shown = {"generator": answers(), "sut": answers(**changes)}
    return inventory_checks.missing(
        book.machines, kernels, {"generator": facts(), "sut": sut}, shown
    )


def test_separate_machines_with_real_interfaces_lack_little(book: rigfile.Inventory) -> None:
    assert set(missing(book, facts("b"))) == {"clean-host", "collector", "one-machine", "peer"}


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
def test_what_is_lacking_has_its_reason(
    book: rigfile.Inventory, sut: dict[str, Any], changes: dict[str, str], capability: str, why: str
) -> None:
    assert why in missing(book, sut, **changes)[capability]


def test_what_the_file_does_not_give_has_the_key_in_its_reason(tmp_path: Path) -> None:
    book = read_rigfile(write(tmp_path, GOOD + '[networks]\nvxlan = "198.18.4.10/24"\n'))
    found = inventory_checks.missing_networks(book, "0")
    assert "network:vxlan" not in found
    assert "no key overlay in its table [networks]" in found["network:overlay"]
    assert (
        "root on the generator" in inventory_checks.missing_networks(book, "1000")["network:vxlan"]
    )
    bare_only = GOOD.partition("bridge_port")[0] + 'engine = "none"\n'
    found = inventory_checks.missing_networks(read_rigfile(write(tmp_path, bare_only)), "0")
    assert set(found) == {f"network:{name}" for name in rigfile.NETWORK_NAMES}
    assert "sut has none" in found["network:macvlan"]


def test_a_capture_host_without_a_mirror_says_which_key(tmp_path: Path) -> None:
    table = '[hosts.collector]\nssh = "c"\ninterfaces = ["eth1"]\ncpus = "2"\n'
    found = missing(read_rigfile(write(tmp_path, GOOD + table)), facts("b"))
    assert 'mirrors = ["sut"] in [hosts.collector]' in found["collector"]
    named = missing(read_rigfile(write(tmp_path, GOOD + table + 'mirrors = ["sut"]\n')), facts("b"))
    assert "collector" not in named


def test_an_engine_that_publishes_nothing_needs_the_bridge_laid_for_it() -> None:
    rig = make_rig(missing={"network:nat": "no key nat"})
    assert rig.infeasible(container("lxc", "nat")) == "no key nat"
    assert (
        rig.infeasible(docker("nat")) is None and rig.infeasible(container("podman", "nat")) is None
    )


def test_without_an_engine_or_a_bridge(tmp_path: Path) -> None:
    plain = GOOD.partition("bridge_port")[0]
    found = missing(read_rigfile(write(tmp_path, plain)), facts("b"))
    assert "bridge_port" in found["layer2"]
    found = missing(read_rigfile(write(tmp_path, plain + 'engine = "none"')), facts("b"))
    assert {"docker", "layer2", "nat", "chroot", "cgroup"} <= set(found)


def test_cpu_maps(book: rigfile.Inventory) -> None:
    apart, notes = inventory_checks.cpu_map(
        book.machines, {"generator": facts(), "sut": facts("b")}, shared=False
    )
    assert apart["sut"] == "2-3" and set(notes) == {"softirq", "harness"}
    assert apart["all.generator"] == apart["all.sut"] == "0-3"
    rig = make_rig(cpu_map=apart, shared_kernel=False)
    assert (rig.cpus("sut", "free"), rig.cpus("generator", "split")) == ("0-3", "2")
    described = make_rig(cpu_map=apart, cpu_notes=notes).describe()["cpu_map"]
    keys = ["generator", "sut", "softirq", "harness", "all.generator", "all.sut"]
    assert list(described) == keys and described == {**apart, **notes}
    one, notes = inventory_checks.cpu_map(
        book.machines, {"generator": facts(), "sut": facts()}, shared=True
    )
    assert one["all"] == "0-3"
    assert parse_cpus(one["harness"]) and set(notes) == {"softirq"}


def test_the_harness_beside_a_generator_with_a_range_of_cpus_has_a_plain_list(
    book: rigfile.Inventory,
) -> None:
    here = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    sut, generator = facts(here), facts(here)
    machines = {
        "generator": book.machines["generator"].model_copy(update={"cpus": "0-1"}),
        "sut": book.machines["sut"].model_copy(update={"cpus": "2-3"}),
    }
    cpus, _ = inventory_checks.cpu_map(machines, {"generator": generator, "sut": sut}, shared=True)
    assert [int(cpu) for cpu in cpus["harness"].split(",")] == [0, 1]


def test_systemd_wants_a_slice() -> None:
    assert inventory_checks.cgroup_parent(facts(cgroups="systemd")) == "labkit.slice"
    # The virtual rig ends whatever is in its own group when it is taken down: this is another one.
    assert inventory_checks.cgroup_parent(facts()) == "/labkit-host"


# What a rig refuses.


@pytest.mark.parametrize(
    ("lacking", "refused"),
    [
        ("clean-host", {"bare clean"}),
        ("chroot", {"bare chroot"}),
        ("cgroup", {"bare cgroup"}),
        ("docker", {"docker host", "docker bridge", "docker nat"}),
        ("layer2", {"docker bridge"}),
        ("nat", {"docker nat"}),
        ("rules", {"bare rules", "bare chroot", "bare cgroup"}
                  | {"docker host", "docker bridge", "docker nat"}),
    ],
)  # fmt: skip
def test_a_lacking_capability_refuses_what_needs_it(lacking: str, refused: set[str]) -> None:
    rig = make_rig(missing={lacking: "because"})
    every = [bare(level) for level in ("clean", "rules", "chroot", "cgroup")]
    every += [docker(network) for network in ("host", "bridge", "nat")]
    assert {one.label for one in every if rig.infeasible(one) == "because"} == refused
    assert not [one for one in every if make_rig().infeasible(one)]


def test_ends_on_separate_machines_cannot_share_a_cpu() -> None:
    rig = make_rig(missing={"one-machine": "they share no CPU"})
    assert treatments.Pinning().feasibility(rig, "same", {"wait": "block"}) == "they share no CPU"
    assert treatments.Pinning().feasibility(rig, "split", {"wait": "block"}) is None


def test_closing_undoes_before_it_disconnects() -> None:
    done: list[str] = []

    class Gone:
        def close(self) -> None:
            done.append("closed")

    make_rig(hosts={"sut": Gone()}, at_close=(lambda: done.append("undone"),)).close()
    assert done == ["undone", "closed"]


# Which rig.


def test_an_unknown_rig_is_named() -> None:
    with pytest.raises(UsageError, match="no rig called 'rack'") as caught, Rig.open("rack"):
        pass
    assert "rig.toml" in caught.value.remedy


@pytest.mark.parametrize(
    ("root", "tools", "engine", "rig"),
    [
        (True, {}, "", "virtual"),
        (True, {"sshd": "openssh-server"}, "", "one-host"),
        (False, {}, "", "one-host"),
    ],
)
def test_auto_takes_what_can_be_had(
    monkeypatch: pytest.MonkeyPatch, root: bool, tools: dict[str, str], engine: str, rig: str
) -> None:
    monkeypatch.setattr("labkit.rig.kernel_probe.no_namespaces", lambda: "" if root else "not root")
    monkeypatch.setattr(virtual, "missing_tools", lambda: tools)
    monkeypatch.setattr(onehost, "unreachable", lambda: engine)
    assert auto() == rig


def test_auto_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.rig.kernel_probe.no_namespaces", lambda: "")
    monkeypatch.setattr(virtual, "missing_tools", lambda: {"sshd": "openssh-server"})
    monkeypatch.setattr(onehost, "unreachable", lambda: "nobody answers")
    with pytest.raises(RigError) as caught:
        auto()
    assert "openssh-server" in caught.value.why
    assert "nobody answers" in caught.value.why
    assert caught.value.remedy


@pytest.mark.parametrize("when", ["comes up", "stands"])
def test_an_interrupt_is_told_as_one_once_the_rig_is_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    def attach(spec: str, say: Any) -> SimpleNamespace:
        if when == "comes up":
            raise KeyboardInterrupt
        return SimpleNamespace(close=lambda: print("taken down"))

    monkeypatch.setattr("labkit.rig.inventory.InventoryRig.attach", attach)
    for name in ("LOCK", "MACHINE"):
        monkeypatch.setattr(f"labkit.rig.lock.{name}", tmp_path / "lock")
    with pytest.raises(Interrupted) as caught, Rig.open("rig.toml"):
        raise KeyboardInterrupt
    assert capsys.readouterr().out == ("taken down\n" if when == "stands" else "")
    assert str(caught.value).startswith("interrupted; what was measured is kept")


def test_an_engine_elsewhere_is_not_this_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("DOCKER_HOST", "ssh://elsewhere.example")
    assert "must be on this machine" in onehost.unreachable()
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no docker command" in onehost.unreachable()


@pytest.mark.parametrize("label", ["image", "trial-x", "trial-999999999-b01"])
def test_a_label_without_a_living_owner_is_nobodys(label: str) -> None:
    assert not onehost._is_of_another_user(label)


def test_a_clean_host_that_is_another_machine_is_a_caveat():
    facts = {"sut": {"stable": {"virtualisation": {"hypervisor": False}}}}
    apart = inventory_checks.caveats({"sut": ("a", "1"), "clean": ("b", "1")}, facts)
    assert any("clean is another machine" in text for text in apart)
    together = inventory_checks.caveats({"sut": ("a", "1"), "clean": ("a", "1")}, facts)
    assert not any("clean is another machine" in text for text in together)


def test_threads_of_one_core_are_known_where_a_core_has_four(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for cpu in range(8):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        siblings = "0-3\n" if cpu < 4 else "4-7\n"
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(virtual, "CPU_FOLDER", tmp_path)
    assert "two-cores" in virtual._missing({"generator": "1", "sut": "2"})
    assert "two-cores" not in virtual._missing({"generator": "1", "sut": "4"})
    monkeypatch.setattr(virtual, "_cpus", lambda: [1, 2, 6, 7])
    cpus = virtual.cpu_map()
    assert (cpus["generator"], cpus["sut"], cpus["harness"]) == ("1", "2", "6")
