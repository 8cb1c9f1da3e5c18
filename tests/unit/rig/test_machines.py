"""The checks of hosts, and what the rig of a rig.toml concludes from their answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_rig import make_rig
from test_rigfile import GOOD, MORE, write

from labkit import doctor
from labkit.errors import HostUnreachable, LabkitError, ToolMissing
from labkit.hosts import LocalHost
from labkit.process import boot
from labkit.rig import checks, machines, networks
from labkit.rig.checks import Check, Seen
from labkit.rig.rigfile import RigFile, read_rigfile

#: What `seen` may change of the facts, each by its path.
FACTS = {
    "online": ("cpu", "online"),
    "isolated": ("cpu", "isolated"),
    "governor": ("cpu", "governor"),
    "engine": ("engine",),
    "version": ("cgroup", "version"),
    "controllers": ("cgroup", "controllers"),
}


def seen(file: RigFile, role: str, boot_id: str = "a", **changes: Any) -> Seen:
    """Return a host that answers as its table says, but for the changes."""
    machine = file.machines[role]
    stable: dict[str, Any] = {
        "cpu": {"online": "0-3", "isolated": "2-3", "governor": {"0": "performance"}},
        "interfaces": {"eth1": {"driver": changes.pop("driver", "ixgbe")}},
        "engine": {"CgroupDriver": "cgroupfs", "Driver": "overlay2", "version": "20.10"},
        "virtualisation": {"hypervisor": False},
        "idle": {"states": [{"name": "C1"}]},
        "dma_latency_us": 0,
        "cgroup": {"version": "v2", "controllers": ["cpu", "cpuset"]},
        "kernel": {"clock_source": "tsc", "psi": ["cpu"], "sysctl": {}},
    }
    for name in [name for name in changes if name in FACTS]:
        *above, last = FACTS[name]
        (stable[above[0]] if above else stable)[last] = changes.pop(name)
    clock_s = changes.pop("clock_s", 0.0)
    links = [{"ifname": "eth1", "addr_info": [{"local": a} for a in machine.addresses]}]
    links.append({"ifname": "eth2", "flags": ["UP"], "master": "labbr0", "addr_info": []})
    bridge = {"Options": {"com.docker.network.bridge.name": "labbr0"}}
    answers = {
        "python": "3.11.2",
        "user": 0,
        "processes": "pid:[1]",
        "scratch": True,
        "free_gib": 50.0,
        "absent": list(checks.PAPERS),
        "links": links,
        "routes": {"198.18.0.9": [{"dev": "eth1"}]},
        "rules": role != "clean",
        "real_time": "",
        "filters": ["errno"],
        "filtered": False,
        "network": [bridge | {"IPAM": {"Config": [{"Subnet": "198.18.1.0/24"}]}}],
    }
    volatile = {"boot_id": boot_id}
    facts = {"stable": stable, "volatile": volatile}
    return Seen(role, machine, answers | changes, facts, {}, clock_s)


@pytest.fixture
def file(tmp_path: Path) -> RigFile:
    return read_rigfile(write(tmp_path, GOOD))


def faults(host: Seen) -> dict[str, Check]:
    return {check.title: check for check in checks.check(host) if not check.ok}


def test_a_host_as_its_table_says_has_no_fault(file: RigFile) -> None:
    assert set(faults(seen(file, "sut"))) == {"congestion control", "programs of the papers"}


PORT = {"ifname": "eth2", "flags": ["UP"], "master": "labbr0"}
LAB = {"ifname": "eth1", "addr_info": [{"local": "198.18.0.3"}]}


@pytest.mark.parametrize(
    ("changes", "title", "fault", "remedy"),
    [
        ({"python": "3.8.10"}, "python3", "3.9 or later", "apt-get install python3"),
        ({"user": 1000}, "root", "need root", "sudo = true"),
        ({"absent": ["sockperf"]}, "programs", "sockperf", "--no-install-recommends sockperf"),
        ({"controllers": ["cpu"]}, "control groups", "no controller cpuset", "mount"),
        ({"links": [{"ifname": "eth1"}, PORT]}, "addresses", "198.18.0.3 is not on", "ip addr add"),
        ({"routes": {"198.18.0.2": []}}, "routes", "by no interface", "ip route add 198.18.0.2"),
        ({"engine": None}, "engine", "no Docker Engine answers", "systemctl start docker"),
        ({"network": []}, "bridge", "no network labkit-layer2", "docker network create"),
        (
            {"network": [{"Driver": "host"}]},
            "bridge",
            "not labbr0 198.18.1.0/24",
            "docker network rm",
        ),
        (
            {"links": [LAB, PORT | {"addr_info": [{"scope": "global"}]}]},
            *("bridge", "would lose its connections", "without an address"),
        ),
        ({"links": [LAB, PORT | {"master": "br1"}]}, "bridge", "not on labbr0", "ip link set eth2"),
    ],
)
def test_what_keeps_studies_from_a_host_has_a_remedy(
    file: RigFile, changes: dict[str, Any], title: str, fault: str, remedy: str
) -> None:
    found = faults(seen(file, "sut", **changes))
    check = found[title]
    assert check.needed and fault in check.fault and remedy in check.remedy
    assert check.line().startswith(f"MISS  {title}: ") and check.remedy in check.line()
    assert [name for name in found if found[name].needed] == [title]


@pytest.mark.parametrize(
    ("changes", "title", "remedy"),
    [
        ({"clock_s": 3.0}, "clock", "systemctl start systemd-timesyncd"),
        ({"governor": {"0": "powersave"}}, "frequency governor", "cpupower"),
        ({"filtered": True}, "seccomp", "seccomp=unconfined"),
    ],
)
def test_what_only_limits_a_host_is_a_note(
    file: RigFile, changes: dict[str, Any], title: str, remedy: str
) -> None:
    check = faults(seen(file, "sut", **changes))[title]
    assert not check.needed and remedy in check.remedy and check.line().startswith("note")


def test_commands_are_for_the_host(file: RigFile) -> None:
    check = faults(seen(file, "sut", absent=["lxc-start", "socat"]))["programs"]
    install = "apt-get install --no-install-recommends socat lxc"
    assert check.remedy == f"ssh -p 2222 admin@sut.example sudo {install}"


def missing(file: RigFile, boot_id: str = "b", **changes: Any) -> dict[str, str]:
    hosts = {role: seen(file, role) for role in file.machines}
    return machines.missing(file, hosts | {"sut": seen(file, "sut", boot_id, **changes)})


def test_separate_machines_with_real_interfaces_lack_little(file: RigFile) -> None:
    absent = {f"network:{name}" for name in networks.NAMES}
    assert set(missing(file)) - absent == {"clean-host", "collector", "peer"}


@pytest.mark.parametrize(
    ("changes", "capability", "why"),
    [
        ({"boot_id": "a"}, "separate-machines", "one kernel"),
        ({"isolated": "2"}, "isolated-cpus", "host sut: 2; CPU 2-3 is not isolated"),
        ({"driver": "veth"}, "nic-hardware", "host sut: eth1 is veth"),
        ({"driver": "veth"}, "busy-poll", "no queue"),
        ({"real_time": "not permitted"}, "realtime", "not permitted"),
        ({"rules": False}, "rules", "no rules of an engine"),
    ],
)
def test_a_missing_capability_has_its_reason(
    file: RigFile, changes: dict[str, Any], capability: str, why: str
) -> None:
    assert why in missing(file, **changes)[capability]


def test_a_missing_capability_names_the_key_of_the_file(tmp_path: Path) -> None:
    def lacks(text: str) -> dict[str, str]:
        return missing(read_rigfile(write(tmp_path, text)))

    assert "[hosts.collector]" in lacks(GOOD)["collector"]
    assert not {"collector", "peer"} & set(lacks(MORE))
    assert "no key weave in its table [networks]" in lacks(MORE)["network:weave"]
    assert "network:nat" not in lacks(MORE)
    plain = GOOD.partition("bridge_port")[0]
    assert "bridge_port" in lacks(plain)["layer2"]
    needing = {"docker", "layer2", "nat", "chroot", "cgroup", "network:macvlan"}
    assert needing <= set(lacks(plain + 'engine = "none"'))


@pytest.mark.parametrize("boot_id", ["a", "b"])
def test_guests_of_one_machine_are_not_separate_machines(tmp_path: Path, boot_id: str) -> None:
    file = read_rigfile(write(tmp_path, "shared_machine = true\n" + GOOD))
    assert "separate-machines" in missing(file, boot_id)
    hosts = {"generator": seen(file, "generator"), "sut": seen(file, "sut", boot_id)}
    said = machines.caveats(file, hosts)
    assert any("guests of one machine: they share its CPUs" in text for text in said)


def test_cpu_maps(file: RigFile) -> None:
    hosts = {"generator": seen(file, "generator"), "sut": seen(file, "sut", "b")}
    cpus, notes = machines.cpu_map(file.machines, hosts)
    assert cpus["sut"] == "2-3" and set(notes) == {"softirq", "harness"}
    assert cpus["all.generator"] == cpus["all.sut"] == "0-3"
    rig = make_rig(cpu_map=cpus, cpu_notes=notes, shared_kernel=False)
    assert (rig.cpus("sut", "free"), rig.cpus("generator", "split")) == ("0-3", "2")
    hosts["sut"] = seen(file, "sut")
    cpus, notes = machines.cpu_map(file.machines, hosts)
    assert cpus["all"] == "0-3" and "harness" in cpus and set(notes) == {"softirq"}


def test_the_harness_shares_the_generators_cpus_where_no_other_is_left(file: RigFile) -> None:
    tables = {
        role: file.machines[role].model_copy(update={"cpus": cpus})
        for role, cpus in (("generator", "0-1"), ("sut", "2-3"))
    }
    hosts = {role: seen(file, role, boot()) for role in tables}
    assert machines.cpu_map(tables, hosts)[0]["harness"] == "0,1"


def test_the_parent_of_control_groups_depends_on_the_engine(file: RigFile) -> None:
    # Not "/labkit", in which the virtual rig kills every process.
    assert machines.cgroup_parent(seen(file, "sut").facts) == "/labkit-host"
    systemd = seen(file, "sut", engine={"CgroupDriver": "systemd"})
    assert machines.cgroup_parent(systemd.facts) == "labkit.slice"


def test_a_clean_host_that_is_another_machine_is_a_caveat(file: RigFile) -> None:
    for boot_id in ("a", "b"):
        clean = replace(seen(file, "generator", boot_id), role="clean")
        texts = machines.caveats(file, {"sut": seen(file, "sut"), "clean": clean})
        assert any("clean is another machine" in text for text in texts) == (boot_id == "b")


# Hosts that are asked.


def test_this_machine_is_checked_as_a_host() -> None:
    titles = {check.title for check in checks.check(checks.look(LocalHost()))}
    assert {"python3", "root", "programs", "control groups", "seccomp"} <= titles
    assert not {"addresses", "engine"} & titles


def test_a_host_without_python_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("timeout", "sh", "env", "sleep"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(LocalHost, "python", "python3")
    with pytest.raises(ToolMissing, match="python3 does not run") as caught:
        checks.look(LocalHost())
    assert "apt-get install python3" in caught.value.remedy


def test_what_fails_on_one_host_is_its_result_and_the_others_are_asked(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)

    def do(file: RigFile, role: str, host: object) -> str:
        if role == "generator":
            raise LabkitError("it failed")
        return role

    found = machines.each(path, do)
    assert found["sut"] == "sut" and isinstance(found["generator"], LabkitError)


def test_a_host_that_does_not_answer_is_a_fault(tmp_path: Path) -> None:
    # The discard port of loopback, where nothing listens.
    closed = 'ssh = "127.0.0.1"\nport = 9\n'
    text = GOOD.replace('ssh = "gen.example"\n', closed).replace('ssh = "sut.example"\n', closed)
    path = write(tmp_path, text.replace("port = 2222\n", ""))
    found = doctor.check_rig(path)
    assert list(found) == ["generator", "sut"]
    for (check,) in found.values():
        assert check.needed and not check.ok and "cannot be reached" in check.fault and check.remedy
    assert isinstance(machines.each(path, machines.look)["sut"], HostUnreachable)
